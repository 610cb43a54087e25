"""Privacy loss distributions on a grid."""

import dataclasses
import math

import numpy as np
from scipy import signal


@dataclasses.dataclass(frozen=True, eq=False)
class LossDistribution:
    """A privacy loss that is a multiple of `step`, or infinite; pessimistic, as connect-the-dots makes it.

    Args:
        step: distance of the grid points, above 0.
        lowest: the first grid point, in steps; what lies below is counted as lying there.
        masses: probability of each grid point, `(n,)`.
        infinite: probability of an infinite loss.
    """

    step: float
    lowest: int
    masses: np.ndarray
    infinite: float

    @property
    def losses(self) -> np.ndarray:
        """Returns the grid points, `(n,)`."""
        return (self.lowest + np.arange(len(self.masses))) * self.step

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon >= 0 with delta(epsilon) <= `delta`, without overflow at any epsilon."""
        if self.infinite > delta:
            return math.inf
        step = self.step
        mass = np.maximum(self.masses, 0.0)[::-1]  # from the largest loss down
        # lower[k] = sum over losses above of mass * e^(loss_k - loss); curve[k] = delta(loss_k).
        lower = signal.lfilter([1.0], [1.0, -math.exp(-step)], mass)
        rise = -math.expm1(-step) * np.concatenate(([0.0], lower[:-1]))
        curve = self.infinite + np.cumsum(rise)
        k = int(np.searchsorted(curve, delta, side="right")) - 1  # delta(loss_k) <= delta < delta(loss_{k+1})
        loss = (self.lowest + len(mass) - 1 - k) * step
        # Below loss_k down to the next grid point: delta(e) = delta(loss_k) + (1 - e^(e - loss_k)) * lower[k].
        slack = (delta - curve[k]) / lower[k] if lower[k] > 0.0 else 0.0
        below = math.log1p(-slack) if slack < 1.0 else -math.inf
        if k + 1 < len(mass):
            below = max(below, -step)
        return max(0.0, loss + below)
