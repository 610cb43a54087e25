"""A threshold that follows a private quantile of norms (Andrew et al. 2021)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from lipdp import checks

# In the words of the statement.
FOLLOWING = "following a private quantile of the norms that is part of each release (sensitivity: at first)"


@dataclasses.dataclass(frozen=True)
class Quantile:
    """How a clipping threshold `C = C_0 * s` moves, and what it costs.

    Each update releases, beside the gradient, how many of its examples stay below C, less half of them, with
    noise of standard deviation `noise`; then `s` is multiplied by `exp(-rate * (fraction below - quantile))`.

    Args:
        quantile: Fraction in (0, 1) of examples that should stay below.
        noise: Standard deviation of the noise on the count; None: B / 20.
        rate: Learning rate of log C, above 0.

    Raises:
        ValueError: an argument is out of range.

    **Guarantee.** An example moves the centered count by 1/2, so a count alone is a Gaussian mechanism of multiplier
    `2 noise`; together with the gradient it is one of the plan's multiplier, see `Calibration.noise_stddevs`.
    C depends on released counts only.
    """

    quantile: float
    noise: float | None
    rate: float

    def __post_init__(self):
        object.__setattr__(self, "quantile", checks.fraction("quantile", self.quantile))
        object.__setattr__(self, "noise", checks.positive("quantile_noise", self.noise, optional=True))
        object.__setattr__(self, "rate", checks.positive("quantile_rate", self.rate))

    def noise_std(self, batch_size: int) -> float:
        """Returns the standard deviation of the noise on the count."""
        return batch_size / 20.0 if self.noise is None else self.noise

    def initial_state(self) -> list:
        """Returns the factor s."""
        return [np.ones((), "float32")]

    def count(self, norms: Sequence[float], threshold: Any, weight: Any) -> Any:
        """Returns the count to release: examples below the threshold, less half of all."""
        return ops.sum(weight * (ops.cast(norms <= threshold, weight.dtype) - 0.5))

    def advance(self, factor: Any, count: Any, batch_size: int, least: float, most: float) -> Any:
        """Returns the next factor s, within `least` and `most`, from a released count."""
        fraction = count / batch_size + 0.5
        return ops.clip(factor * ops.exp(-self.rate * (fraction - self.quantile)), least, most)


def optional(quantile: float | None, noise: float | None, rate: float) -> Quantile | None:
    """Returns a `Quantile`, or None when there is no quantile to follow."""
    if quantile is not None:
        return Quantile(quantile, noise, rate)
    if noise is not None:
        raise ValueError(f"`quantile_noise` belongs to a `quantile`. Received: quantile_noise={noise!r} without one.")
    return None
