"""The Gaussian mechanism: exact epsilon without sampling, privacy loss distribution with sampling."""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from lipdp.accounting.loss_distribution import LossDistribution

# Outcomes further out than this (probability e^-50) count as a total loss of privacy.
TAIL = -float(special.ndtri_exp(-50.0 - math.log(2.0)))
_SMALL = 1e-4  # of mu: below it, delta is not the difference of two probabilities
# Nearer to 1, the logarithm of a delta has lost the digits.
_NEAR_1 = 1.0 - 1e-6
_MILLS_AT_0 = math.sqrt(0.5 * math.pi)
_MANY, _DENSE = 1 << 17, 1 << 13  # grid points from which on not all are looked at, and how many then


def hockey_stick(epsilon: np.ndarray, *, sampling_probability: float, noise_multiplier: float, add: bool) -> np.ndarray:
    """Returns delta(epsilon) of one sampled Gaussian, less 1 - e^epsilon where epsilon < 0.

    What is subtracted is the trivial part of delta. What is left is of the order of the sampling rate, so
    a tiny one keeps its digits. The inverse of the loss is a closed form, hence the whole grid in numpy.

    Args:
        epsilon: the grid, an array of any finite floats.
        sampling_probability: in (0, 1].
        noise_multiplier: above 0.
        add: True when the first data set lacks the example, False when the second does.

    Returns:
        An array like `epsilon`, at least 0.

    **Guarantee.**
    Conditions: sensitivity 1; add or remove one example.
    Bound: sup over S of P(S) - e^epsilon Q(S), up to rounding; equal to dp_accounting's in the tests.
    Not covered: replacing one example.
    Source: Neyman and Pearson: S is where the privacy loss exceeds epsilon.

    Example:
        >>> curve = hockey_stick(np.array([1.0]), sampling_probability=1.0, noise_multiplier=1.0, add=False)
        >>> round(float(curve[0]), 6)
        0.126937
    """
    q, z = sampling_probability, noise_multiplier
    if q == 1.0:
        add = False  # the two directions are the same
    # Loss at the outcome x: log(1 - q + q e^(-(x + 1/2) / z^2)) for remove, minus that at -x for add.
    loss = -epsilon if add else epsilon
    inside = loss > math.log1p(-q) if q < 1.0 else np.ones(loss.shape, dtype=bool)
    curve = np.zeros(epsilon.shape)
    e = epsilon[inside]
    unsampled = log_odds(loss[inside], q) * z * z
    if add:
        x = 0.5 + unsampled
        sampled = q * np.exp(e) * between(x - 1.0, x, z)
    else:
        x = -0.5 - unsampled
        sampled = q * between(x, x + 1.0, z)
    # delta = sampled - (e^epsilon - 1) F(x); less the trivial part, F(x) becomes -F(-x).
    with np.errstate(divide="ignore"):
        log_expm1 = np.maximum(e, 0.0) + np.log(-np.expm1(-np.abs(e)))
    rest = np.exp(log_expm1 + special.log_ndtr(np.where(e < 0.0, -x, x) / z))
    curve[inside] = np.maximum(sampled - np.where(e == 0.0, 0.0, rest), 0.0)
    return curve


def log_odds(loss: np.ndarray, q: float) -> np.ndarray:
    """Returns log(1 + (e^loss - 1) / q): the loss without sampling behind a loss above log(1 - q)."""
    large = np.maximum(loss, 30.0)
    ratio = np.maximum(np.expm1(np.minimum(loss, 30.0)) / q, math.nextafter(-1.0, 0.0))
    far = large - math.log(q) + np.log1p(-(1.0 - q) * np.exp(-large))
    return np.where(loss > 30.0, far, np.log1p(ratio) if q < 1.0 else loss)


def between(low: np.ndarray, high: np.ndarray, z: float) -> np.ndarray:
    """Returns P(low < N(0, z^2) <= high), from the tail that keeps its digits."""
    upper = low > 0.0
    a = np.where(upper, -high, low) / z
    b = np.where(upper, -low, high) / z
    return special.ndtr(b) - special.ndtr(a)


def loss_distribution(sampling_probability: float, noise_multiplier: float, step: float, add: bool) -> LossDistribution:
    """Returns the privacy loss of one sampled Gaussian, on the multiples of `step`.

    Args:
        sampling_probability: in (0, 1].
        noise_multiplier: above 0.
        step: distance of the grid points, above 0.
        add: direction, as in `hockey_stick`.

    Returns:
        A `LossDistribution`.

    **Guarantee.**
    Conditions: those of `hockey_stick`.
    Bound: its delta(epsilon) is exact at the grid points and above the exact one between them.
    Not covered: rounding.
    Source: Doroshenko et al. 2022 (connect the dots), algorithm 1.

    Example:
        >>> len(loss_distribution(0.01, 1.0, 0.01, add=False).masses)
        568
    """
    q, z = sampling_probability, noise_multiplier
    curve = functools.partial(hockey_stick, sampling_probability=q, noise_multiplier=z, add=add)
    return connect_dots(curve, *loss_range(q, z, add), step)


def connect_dots(
    curve: Callable[[np.ndarray], np.ndarray], lowest: float, highest: float, step: float
) -> LossDistribution:
    """Returns the distribution, on the multiples of `step`, whose delta(epsilon) passes through a given curve.

    Args:
        curve: from an array of epsilons to delta(epsilon), less 1 - e^epsilon where epsilon < 0; that of some
            pair of distributions.
        lowest: below it, the curve may be rounded to 0.
        highest: what of delta is left there counts as a total loss of privacy.
        step: distance of the grid points, above 0.

    Returns:
        A `LossDistribution`.
    """
    low = min(math.floor(lowest / step), -1)
    high = max(math.ceil(highest / step), 1)
    points = np.arange(low, high + 1) if high - low < _MANY else grid(low, high, _DENSE)
    values, gaps = curve(points * step), np.diff(points) * step
    # The mass at a point depends on the slopes of delta in e^epsilon, to which the part taken off below 0 adds nothing
    # but a kink at 0.
    rise = np.diff(values)
    with np.errstate(over="ignore"):  # the last steps of a sparse grid may be wider than the exponents of floats
        up, down = rise / np.expm1(gaps), rise / np.expm1(-gaps)
    mass = np.concatenate(([up[0] - values[0]], up[1:] + down[:-1], [down[-1]]))
    mass[np.searchsorted(points, 0)] += 1.0
    masses = np.zeros(high - low + 1)
    masses[points - low] = np.maximum(mass, 0.0)
    return LossDistribution(step, low, masses, float(values[-1]))


def grid(low: int, high: int, dense: int) -> np.ndarray:
    """Returns all integers from `low` to `high` up to about `dense`, further out so many per factor of e.

    A loss is then known to within a share 1 / `dense` of itself, which is all that large, rare ones need.
    """
    far = max(high, -low)
    count = max(math.ceil(dense * math.log(max(far / dense, 1.0))), 1)
    sparse = np.ceil(dense * np.exp(np.arange(1, count + 1) / dense)).astype(np.int64)
    side = np.unique(np.concatenate((np.arange(min(dense, far) + 1), sparse[sparse < far], [far])))
    points = np.concatenate((-side[:0:-1], side))
    return np.unique(np.concatenate(([low], points[(points > low) & (points < high)], [high])))


def loss_range(
    sampling_probability: float, noise_multiplier: float, add: bool, tail: float = TAIL
) -> tuple[float, float]:
    """Returns the smallest and the largest privacy loss of outcomes within `tail` standard deviations."""
    q, z = sampling_probability, noise_multiplier
    far = 0.5 / (z * z) + tail / z
    if far < 30.0:
        largest = math.log1p(q * math.expm1(far))
    else:
        largest = far + math.log(q) + math.log1p((1.0 - q) / q * math.exp(-far))
    near = math.log1p(q * math.expm1(-far)) if q < 1.0 else -far
    return (-largest, -near) if add else (near, largest)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns epsilon of Gaussian releases without sampling.

    Args:
        mu: square root of the sum of 1 / noise_multiplier^2 over the releases, at least 0.
        delta: in (0, 1).

    Returns:
        The smallest epsilon, rounded up in the tenth digit.

    **Guarantee.**
    Conditions: every release has sensitivity 1 over its noise multiplier; adaptive choices are allowed.
    Bound: exact for delta up to 1 - 1e-6; above, that of 1 - 1e-6, which is larger.
    Not covered: sampling (this is the cost without amplification).
    Source: Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022 for composition.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 3)
        4.377
    """
    if mu == 0.0:
        return 0.0
    if mu > 1e6:  # epsilon is about mu^2 / 2: no guarantee at all
        return math.inf
    delta = min(delta, _NEAR_1)

    def excess(epsilon):
        if mu < _SMALL:
            return _log_delta_of_small(mu, epsilon) - math.log(delta)
        upper = special.log_ndtr(0.5 * mu - epsilon / mu)
        lower = epsilon + special.log_ndtr(-0.5 * mu - epsilon / mu)
        return upper + math.log(max(-math.expm1(lower - upper), 1e-300)) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    top = mu * (0.5 * mu + math.sqrt(-2.0 * math.log(delta)) + 1.0)
    root = optimize.brentq(excess, 0.0, top, xtol=1e-12 * top, rtol=1e-12)
    return root * (1.0 + 1e-10) + 1e-11 * top


def _log_delta_of_small(mu: float, epsilon: float) -> float:
    """Returns the logarithm of a delta that is just above the one of Gaussian releases.

    With R the Mills ratio and a = epsilon / mu - mu / 2, delta = phi(a) (R(a) - R(a + mu)), which loses its digits
    where mu is small. -R' = 1 - x R is convex, so the trapezoid bounds the integral from above: by a relative mu^2
    a^2 / 12 too much.
    """
    a = epsilon / mu - 0.5 * mu
    slopes = (1.0 - x * _MILLS_AT_0 * float(special.erfcx(x / math.sqrt(2.0))) for x in (a, a + mu))
    return -0.5 * a * a - 0.5 * math.log(2.0 * math.pi) + math.log(0.5 * mu * sum(slopes))
