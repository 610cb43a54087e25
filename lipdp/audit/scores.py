"""What an attacker computes for each canary from all that a run released along its direction."""

from typing import Any

import numpy as np
from scipy import special

from lipdp.accounting.schemes import REPLACE, Sampling

# Scores by name, in the order in which they are tried.
NAMES = ("likelihood", "spread")


class Crowded:
    """Adds up the updates of a run, whatever is in a batch.

    `likelihood` is the plain sum, the log of the likelihood ratio for Gaussians of one variance. `spread` is the
    largest observation less the smallest: noise that is used twice drops out of it.

    Args:
        canaries: How many.
    """

    def __init__(self, canaries: int):
        self._total = np.zeros(canaries)
        self._low, self._high = np.full(canaries, np.inf), np.full(canaries, -np.inf)

    def add(self, update: int, observed: np.ndarray, noise_multiplier: float, rate: float) -> None:
        """Adds one update.

        Args:
            update: Its number from the start of the run.
            observed: Along each canary's direction, in units of what one example may contribute, `(m,)`.
            noise_multiplier: Standard deviation of `observed`.
            rate: Probability of a row to be in this update.
        """
        self._low, self._high = np.minimum(self._low, observed), np.maximum(self._high, observed)
        self._total = self._total + self._gain(update, observed, noise_multiplier, rate)

    def _gain(self, update: int, observed: np.ndarray, noise_multiplier: float, rate: float) -> Any:
        return observed

    def values(self) -> dict[str, np.ndarray]:
        """Returns the scores of the run so far, by name, each `(m,)`."""
        return {"likelihood": self._total, "spread": self._high - self._low}


class Scores(Crowded):
    """Adds up, over the updates of a run, the log of the likelihood ratio of the sampler's law.

    Canaries are taken to have exactly the norm that is charged; the two worlds are a canary and nothing, or, where a
    row is replaced, a canary and its opposite.

    Args:
        sampling: Who is in a batch, bound.
        places: Row of each canary in the data, `(m,)`.
    """

    def __init__(self, sampling: Sampling, places: np.ndarray):
        super().__init__(len(places))
        self._sampling, self._replaced = sampling, sampling.relation == REPLACE
        self._steps = sampling.updates_per_epoch
        self._own = places // sampling.batch_size if sampling.name == "fixed_order" else None
        self._epoch: list[np.ndarray] = []

    def _gain(self, update, observed, noise_multiplier, rate):
        present = (observed - 0.5) / noise_multiplier**2
        absent = (-observed - 0.5) / noise_multiplier**2 if self._replaced else np.zeros(len(observed))
        if not self._sampling.by_epoch:
            return _mixed(present, rate) - (_mixed(absent, rate) if self._replaced else 0.0)
        if self._own is not None:
            return np.where(self._own == update % self._steps, present - absent, 0.0)
        self._epoch.append(np.stack([present, absent]))
        if (update + 1) % self._steps:
            return 0.0
        sums = special.logsumexp(self._epoch, axis=0)
        self._epoch = []
        return sums[0] - (sums[1] if self._replaced else np.log(self._steps))


def _mixed(gain: Any, rate: float) -> Any:
    """Returns log(1 - rate + rate e^gain)."""
    if rate >= 1.0:
        return gain
    return np.logaddexp(np.log1p(-rate), np.log(rate) + gain)
