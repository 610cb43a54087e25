"""Composition of privacy loss distributions by a Fourier transform that keeps the digits of the upper tail."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import fft, optimize

from lipdp.accounting.gaussian import grid
from lipdp.accounting.loss_distribution import LossDistribution

_OUTSIDE = 1e-15  # tilted mass on each side of the window of the transform
_NEGLIGIBLE = -100.0
LARGEST_STEP = 1.0  # where only a coarser grid will do, epsilon is above some 1e4
MOST = 1 << 21  # grid points of a transform: some 0.3 s and 150 MB


class _Tilted:
    """The sum of all losses, `K(tilt) = log E e^(tilt loss)`, and the distribution of one loss under a tilt.

    `rough` is a bound on K, at tilts above 0, from some thousand grid points.
    """

    def __init__(self, pmfs, counts):
        self.counts = counts
        self.parts = [(pmf.losses, _log(pmf.masses)) for pmf in pmfs]
        self.few = [_few(pmf) for pmf in pmfs]

    def cumulant(self, tilt: float) -> float:
        return _cumulant(self.counts, self.parts, tilt)

    def rough(self, tilt: float) -> float:
        return _cumulant(self.counts, self.few, tilt)

    def masses(self, tilt: float) -> list[np.ndarray]:
        return _masses(self.parts, tilt)

    def deviation(self, tilt: float) -> float:
        """Returns the standard deviation under a tilt, roughly."""
        variance = 0.0
        for count, mass, (loss, _) in zip(self.counts, _masses(self.few, tilt), self.few, strict=True):
            variance += count * np.sum(mass * (loss - np.sum(mass * loss)) ** 2)
        return max(math.sqrt(variance), 1e-3 * (self.parts[0][0][1] - self.parts[0][0][0]))


def _few(pmf) -> tuple[np.ndarray, np.ndarray]:
    """Returns losses and log masses of an upper bound on few grid points."""
    knots = grid(pmf.lowest, pmf.lowest + len(pmf.masses), 100)
    return knots * pmf.step, _log(pmf.spread(knots))


def _log(masses: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(masses)


def _cumulant(counts, parts, tilt: float) -> float:
    return sum(c * _log_sum_exp(tilt * loss + log) for c, (loss, log) in zip(counts, parts, strict=True))


def _masses(parts, tilt: float) -> list[np.ndarray]:
    exponents = [tilt * loss + log for loss, log in parts]
    return [np.exp(np.maximum(exponent - _log_sum_exp(exponent), -700.0)) for exponent in exponents]


def compose(pmfs: Sequence[LossDistribution], counts: Sequence[int], tilt: float = 0.0, most: int = MOST) -> tuple:
    """Returns the distribution of `counts[i]` losses of each kind, all independent, and what was added for rounding.

    A plain transform errs by some count * 2^-53 of the TOTAL mass, which swallows a tail of mass 1e-11 when there are
    many releases. Under the tilt `mass * e^(t loss) / M(t)` at which the Chernoff bound on epsilon is least, that tail
    is where most of the mass is, so the same error is small beside delta itself.

    Args:
        pmfs: distributions of one loss, on one grid.
        counts: how many losses of each, at least 1.
        tilt: at least 0, see `best_tilt`; decides where the digits are, not whether the bound holds.
        most: grid points of the transform. A window that needs more is composed on a coarser grid, which bounds time
            and memory; see `LossDistribution.coarsened`.

    Returns:
        A `LossDistribution` and the array of what was added to each of its masses.

    **Guarantee.**
    Conditions: `pmfs` are what they should be; the routines of the transform err by no more than the textbook bound.
    Bound: delta(epsilon) is nowhere below the exact one. A transform f of a mass 1 has |f| <= 1 and errs by at most
    g = 8 log2(2n) 2^-52 at each of n frequencies (5 roundings per halving, tilting, twice for safety). So a product of
    powers errs by at most the product of (|f| + g)^count times the sum of count g / (|f| + g), doubled for the rounding
    of the powers; the inverse by the mean of this over the frequencies and g times the mean of the product. This is
    added to every mass. Mass that the cyclic transform wraps around only adds; above the window it is paid as infinite.
    Not covered: rounding within the given distributions.
    Source: Higham 2002, section 24.1; the tilt: as in saddle-point accountants (Alghamdi et al. 2023).

    Example:
        >>> from lipdp.accounting import gaussian
        >>> one = gaussian.loss_distribution(0.01, 1.0, 0.001, add=False)
        >>> pmf, added = compose([one], [2000])
        >>> round(pmf.epsilon(1e-6), 2), bool(added.sum() < 1e-8)
        (2.96, True)
    """
    step, total = pmfs[0].step, sum(counts)
    if any(not is_distribution(pmf) for pmf in pmfs):
        return _nothing(step)
    if total == 1:
        return pmfs[0], np.zeros(len(pmfs[0].masses))
    losses = _Tilted(pmfs, counts)
    cumulant = losses.cumulant(tilt)
    low, high = _window(losses, tilt, cumulant, step, pmfs)
    longest = max(high - low + 1, *(len(pmf.masses) for pmf in pmfs))
    if longest > most:
        factor = max(2, math.ceil(longest / most))
        if factor * step > LARGEST_STEP:
            return _nothing(step)
        return compose([pmf.coarsened(factor) for pmf in pmfs], counts, tilt, most)
    masses = losses.masses(tilt)
    size = fft.next_fast_len(longest, real=True)
    unit = 8.0 * math.log2(2.0 * size) * 2.0**-52
    product, log_size, share = 1.0, 0.0, 0.0
    for count, mass in zip(counts, masses, strict=True):
        transform = fft.rfft(mass, size)
        above = np.abs(transform) + unit
        log_above = count * np.log(above)
        seen = log_above > _NEGLIGIBLE  # the power of the others is less, and takes long
        product = product * np.power(transform, count, out=np.zeros_like(transform), where=seen)
        log_size, share = log_size + log_above, share + 2.0 * count * unit / above
    error = 2.0 / size * float(np.sum(np.exp(log_size) * share + unit * np.abs(product))) + math.exp(_NEGLIGIBLE)
    first = sum(count * pmf.lowest for count, pmf in zip(counts, pmfs, strict=True))
    composed = np.roll(fft.irfft(product, size), first - low)[: high - low + 1]
    loss = np.arange(low, high + 1) * step
    # Back from the tilt, with the rounding of the cumulant. No mass is above 1.
    exponent = cumulant + total * unit - tilt * loss
    composed = np.exp(np.minimum(np.log(np.maximum(composed, 0.0) + error) + exponent, 0.0))
    composed[0] = 1.0
    kept = sum(count * math.log1p(-pmf.infinite) for count, pmf in zip(counts, pmfs, strict=True))
    infinite = -math.expm1(kept) + _OUTSIDE * math.exp(min(exponent[-1], 0.0))
    added = np.exp(np.minimum(math.log(error) + exponent, 0.0))
    return LossDistribution(step, low, composed, min(infinite, 1.0)), added


def _nothing(step: float) -> tuple:
    return LossDistribution(step, 0, np.array([0.0]), 1.0), np.zeros(1)


def is_distribution(pmf: LossDistribution) -> bool:
    """Returns whether the masses of one release are numbers that add up to 1, or to a little more: upper bounds."""
    # Where losses of one release exceed some 700, e^loss overflows and the masses are no distribution any more.
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.sum(pmf.masses)) + pmf.infinite
    return -1e-6 < total - 1.0 < 1e-3 and np.min(pmf.masses) >= 0.0 and pmf.infinite < 1.0


def _log_sum_exp(exponent: np.ndarray) -> float:
    top = float(np.max(exponent))
    return top + math.log(np.sum(np.exp(np.maximum(exponent - top, -700.0))))  # numbers below 1e-308 take long


def best_tilt(pmfs: Sequence[LossDistribution], counts: Sequence[int], delta: float) -> float:
    """Returns the tilt of the least Chernoff bound on epsilon at `delta`, roughly; not above that of a Gaussian."""
    losses, bits = _Tilted(pmfs, counts), -math.log(delta)
    most = math.log(1.5 * math.sqrt(2.0 * bits) / losses.deviation(0.0))

    def bound(log_tilt):
        tilt = math.exp(log_tilt)
        return (losses.rough(tilt) + bits) / tilt

    least = optimize.minimize_scalar(bound, bounds=(most - 9.0, most), method="bounded", options={"xatol": 0.05})
    return math.exp(least.x)


def _window(losses, tilt, cumulant, step, pmfs) -> tuple[int, int]:
    """Returns grid points between which all but `_OUTSIDE` of the tilted sum lies on each side, by Chernoff."""
    low = sum(count * pmf.lowest for count, pmf in zip(losses.counts, pmfs, strict=True))
    high = low + sum(count * (len(pmf.masses) - 1) for count, pmf in zip(losses.counts, pmfs, strict=True))
    bits = -math.log(_OUTSIDE)
    widest = max(loss[-1] - loss[0] for loss, _ in losses.parts)  # decides where a large loss is rare
    orders = np.geomspace(0.05, 1.5, 8) * math.sqrt(2.0 * bits) / losses.deviation(tilt)
    for order in np.concatenate((orders, np.array([2.0, 8.0, 20.0]) / widest)):
        up, down = (losses.rough(tilt + sign * order) - cumulant + bits for sign in (1.0, -1.0))
        high, low = min(high, math.ceil(up / order / step)), max(low, math.floor(-down / order / step))
    return low, max(high, low + 1)
