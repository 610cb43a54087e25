"""The trade-off curves that a run would have with less noise, or with more."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy import special

from lipdp import accounting

# Pairs of a curve that a test looks at: the more, the nearer it comes to the curve. A part of them is valid by itself.
_PAIRS = 512
# Noise at which the search ends: nothing below has a bound, and above a lower bound is 0 for all practical purposes.
_LEAST_NOISE, _MOST_FACTOR = 0.05, 256.0
_HALVINGS = 8


@dataclasses.dataclass(frozen=True)
class Family:
    """All runs that differ from one run by a factor on their noise.

    Args:
        mechanisms: What the run is charged for.
        delta: Of the lower bound, in (0, 1).

    **Guarantee.** `lower_bound` returns epsilon of a member that was rejected, by the tight accountant, and members
    are ordered: with more noise a curve allows less, so that whoever rejects one rejects all with more noise.
    """

    mechanisms: tuple[accounting.Mechanism, ...]
    delta: float

    @classmethod
    def of(cls, mechanisms: Iterable[accounting.Mechanism], delta: float) -> "Family":
        return cls(accounting.mechanism.canonical(mechanisms), delta)

    def scaled(self, factor: float) -> tuple[accounting.Mechanism, ...]:
        """Returns the releases with their noise multiplied."""
        return tuple(dataclasses.replace(m, noise_multiplier=m.noise_multiplier * factor) for m in self.mechanisms)

    def epsilon(self, factor: float = 1.0) -> float:
        """Returns epsilon at `delta` of the run with its noise multiplied."""
        return accounting.compose(self.scaled(factor), self.delta)

    def curve(self, factor: float = 1.0) -> "Curve":
        """Returns the trade-off curve of the run with its noise multiplied."""
        return _curve(self.scaled(factor))

    def lower_bound(self, rejects: Callable[["Curve"], bool], halvings: int = _HALVINGS) -> float:
        """Returns epsilon of the least noise whose curve is rejected; 0 when none is, infinity when all are."""
        least = _LEAST_NOISE / min(m.noise_multiplier for m in self.mechanisms)
        kept, rejected, factor = None, None, 1.0
        while kept is None or rejected is None:
            if rejects(self.curve(factor)):
                rejected = factor
                if factor <= least:
                    return math.inf
                factor = max(least, factor / 2.0)
            else:
                kept = factor
                if factor >= _MOST_FACTOR:
                    return 0.0
                factor *= 2.0
            if kept is not None and rejected is not None:
                break
        for _ in range(halvings):
            middle = math.sqrt(kept * rejected)
            if rejects(self.curve(middle)):
                rejected = middle
            else:
                kept = middle
        return self.epsilon(rejected)


class Curve:
    """How many false positives a test needs at least, from the pairs (epsilon, delta) of a run.

    Args:
        risk: What `accounting.risk_of` returned.
    """

    def __init__(self, risk: accounting.Risk):
        self.risk = risk
        places = np.unique(np.linspace(0, len(risk.epsilons) - 1, _PAIRS).astype(int))
        self._epsilons, self._deltas = risk.epsilons[places], risk.deltas[places]
        self._small, self._large = np.exp(-self._epsilons), np.exp(np.minimum(self._epsilons, 700.0))

    def false_positives(self, true_positives: Any) -> Any:
        """Returns the least false positive rate of a test with this true positive rate, or for an array of them."""
        rate = np.clip(np.asarray(true_positives, "float64"), 0.0, 1.0)
        if self.risk.mu is not None:
            found = rate if self.risk.mu == 0.0 else special.ndtr(special.ndtri(rate) - self.risk.mu)
        else:
            above = (self._small * (rate[..., None] - self._deltas)).max(axis=-1)
            below = (1.0 - self._deltas - self._large * (1.0 - rate[..., None])).max(axis=-1)
            found = np.maximum(0.0, np.maximum(above, below))
        return float(found) if rate.ndim == 0 else found


@functools.lru_cache(maxsize=256)
def _curve(mechanisms: tuple[Any, ...]) -> Curve:
    return Curve(accounting.risk_of(mechanisms))
