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

    def coarsened(self, factor: int) -> "LossDistribution":
        """Returns an upper bound on a grid of `factor` times the step; see `spread`."""
        last = self.lowest + len(self.masses) - 1
        knots = factor * np.arange(self.lowest // factor, last // factor + 2)
        return LossDistribution(self.step * factor, int(knots[0]) // factor, self.spread(knots), self.infinite)

    def spread(self, knots: np.ndarray) -> np.ndarray:
        """Returns the masses of an upper bound on fewer grid points.

        The mass at a loss l is split between the neighbors a <= l < b, so that neither its sum nor that of
        mass e^-loss, the probability under the second distribution, changes.

        Args:
            knots: increasing grid points in steps, the first at most, the last above all losses, `(m,)`.

        Returns:
            An array like `knots`.

        **Guarantee.**
        Conditions: none.
        Bound: delta(epsilon) is that of before at the knots, and the chord in e^epsilon, so above it, between them.
        Not covered: rounding.
        Source: Doroshenko et al. 2022 (connect the dots); Ghazi et al. 2022 (evolving discretization).
        """
        gaps = np.diff(knots)
        first = self.lowest - int(knots[0])
        cell = np.repeat(np.arange(len(gaps)), gaps)[first : first + len(self.masses)]
        offset = self.lowest + np.arange(len(self.masses)) - knots[cell]
        share = np.expm1(-offset * self.step) / np.expm1(-gaps * self.step)[cell]
        upper = self.masses * share
        masses = np.bincount(cell, self.masses - upper, len(knots))
        masses[1:] += np.bincount(cell, upper, len(knots))[:-1]
        return np.maximum(masses, 0.0)

    @property
    def deltas(self) -> np.ndarray:
        """Returns delta(epsilon) at each grid point, `(n,)`."""
        return self._curve()[0][::-1]

    def _curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns, from the largest loss down, delta there and the sum of mass e^(here - loss) over those above."""
        mass = np.maximum(self.masses, 0.0)[::-1]
        lower = signal.lfilter([1.0], [1.0, -math.exp(-self.step)], mass)
        rise = -math.expm1(-self.step) * np.concatenate(([0.0], lower[:-1]))
        return self.infinite + np.cumsum(rise), lower

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon >= 0 with delta(epsilon) <= `delta`, without overflow at any epsilon."""
        if self.infinite > delta:
            return math.inf
        step = self.step
        curve, lower = self._curve()
        mass = self.masses
        k = int(np.searchsorted(curve, delta, side="right")) - 1  # delta(loss_k) <= delta < delta(loss_{k+1})
        loss = (self.lowest + len(mass) - 1 - k) * step
        # Below loss_k down to the next grid point: delta(e) = delta(loss_k) + (1 - e^(e - loss_k)) * lower[k].
        slack = (delta - curve[k]) / lower[k] if lower[k] > 0.0 else 0.0
        below = math.log1p(-slack) if slack < 1.0 else -math.inf
        if k + 1 < len(mass):
            below = max(below, -step)
        return max(0.0, loss + below)
