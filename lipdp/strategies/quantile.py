"""A threshold that follows a private quantile of norms (Andrew et al. 2021)."""

import numpy as np
from keras import ops

from lipdp.strategies.arguments import positive

# In the words of the statement.
FOLLOWING = "following a private quantile of the norms that is part of each release (sensitivity: at first)"


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

    Guarantee:
        An example moves the centred count by 1/2, so a count alone is a Gaussian mechanism of multiplier
        `2 noise`; together with the gradient it is one of the plan's multiplier, see `Calibration.deviations`.
        C depends on released counts only.
    """

    def __init__(self, quantile: float, noise: float | None, rate: float):
        if not isinstance(quantile, (int, float)) or not 0.0 < quantile < 1.0:
            raise ValueError(f"`quantile` must be in (0, 1). Received: quantile={quantile!r}.")
        self.quantile = float(quantile)
        self.noise = positive("quantile_noise", noise, optional=True)
        self.rate = positive("quantile_rate", rate)

    def noise_std(self, batch_size: int) -> float:
        """Standard deviation of the noise on the count."""
        return batch_size / 20.0 if self.noise is None else self.noise

    def initial_state(self) -> list:
        """The factor s."""
        return [np.ones((), "float32")]

    def count(self, norms, threshold, weight):
        """The number to release: examples below the threshold, less half of all."""
        return ops.sum(weight * (ops.cast(norms <= threshold, weight.dtype) - 0.5))

    def advance(self, factor, answer, batch_size: int, least: float, most: float):
        """The next factor s, within `least` and `most`."""
        fraction = answer / batch_size + 0.5
        return ops.clip(factor * ops.exp(-self.rate * (fraction - self.quantile)), least, most)


def optional(quantile, noise, rate) -> Quantile | None:
    """A `Quantile`, or None when there is no quantile to follow."""
    if quantile is not None:
        return Quantile(quantile, noise, rate)
    if noise is not None:
        raise ValueError(f"`quantile_noise` belongs to a `quantile`. Received: quantile_noise={noise!r} without one.")
    return None
