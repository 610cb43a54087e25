"""Accountant by privacy loss distributions (PLD): the tight one, and the default."""

import dataclasses
import functools
import importlib.metadata
import math
from typing import Any

import numpy as np

from lipdp.accounting import accountant, dominating_pairs, fft_composition, gaussian
from lipdp.accounting.loss_distribution import LossDistribution
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.rdp import LARGEST_NOISE, SMALLEST_NOISE, RdpAccountant

SMALLEST_DELTA = 1e-11
_STEP_FRACTION = 30.0  # grid steps per standard deviation of one loss: epsilon within 0.02 % of its limit
_ROUGH = 8.0
_LARGEST_STEP = 1e-3  # enough for epsilon up to 10; above, epsilon / 1e4
_PAID = 1e-3  # share of delta that rounding may cost before a larger tilt is tried
_MOST_SINGLE, _MOST_COMPOSED = 1e6, 4e6  # grid points; a coarser grid is still an upper bound


@functools.lru_cache(maxsize=32)
def _single(pair, step: float) -> LossDistribution:
    """Returns the distribution of one release. Cached: another count only needs a self-composition."""
    low, high = pair.losses()
    return gaussian.connect_dots(pair.curve, low, high, step)


@functools.lru_cache(maxsize=256)
def _moments(pair) -> tuple[float, float]:
    """Returns mean and deviation of one privacy loss, roughly: they only choose the grid."""
    low, high = pair.losses()
    step = max((high - low) / 4096.0, 1e-12)
    pmf = gaussian.connect_dots(pair.curve, low, high, step)
    mean = float(np.sum(pmf.masses * pmf.losses))
    square = float(np.sum(pmf.masses * (pmf.losses - mean) ** 2))
    return mean, math.sqrt(max(square - step * step / 6.0, square / 16.0, 1e-300))


def _directions(mechanism: Mechanism, step: float, dropped: float) -> tuple:
    """Returns the distribution of one release, its count, the same in the other direction, and the tail mass lost."""
    mechanism = dataclasses.replace(mechanism, noise_multiplier=min(mechanism.noise_multiplier, LARGEST_NOISE))
    if mechanism.shift is not None:  # count Gaussians are one Gaussian
        scale = mechanism.shift * math.sqrt(mechanism.count)
        pmf = _single(dominating_pairs.SampledGaussian(1.0, mechanism.noise_multiplier / scale, False), step)
        return (pmf, 1), (pmf, 1), 0.0
    remove, add, lost = dominating_pairs.directions(mechanism, dropped)
    return (_single(remove, step), mechanism.count), (_single(add, step), mechanism.count), lost


def _epsilon(pmfs, counts, delta: float) -> float:
    """Returns epsilon of `counts[i]` losses of each kind, by the smallest tilt that keeps the digits of delta."""
    least, best = math.inf, None
    # Each one is an upper bound; a tilt makes rare large losses, hence the grid, longer.
    for share in (0.0, 0.3, 0.6, 1.0):
        if share and best is None:
            best = fft_composition.best_tilt(pmfs, counts, delta)
        pmf, added = fft_composition.compose(pmfs, counts, share * best if share else 0.0)
        least = min(least, pmf.epsilon(delta))
        if pmf.infinite >= 1.0:  # no distribution
            return least
        above = math.ceil(min(least / pmf.step, 1e18)) - pmf.lowest
        if math.isfinite(least) and np.sum(added[max(above, 0) :]) <= _PAID * delta:
            return least
    return least


class PldAccountant(accountant.Accountant):
    """PLD by dp_accounting: connect-the-dots, pessimistic, both directions.

    **Guarantee.**
    Conditions: those of `Mechanism`; delta >= 1e-11 (below, rounding within one release is of the order of delta).
    Bound: an upper bound on epsilon, within about 0.1 % of the exact value; exact when nothing is sampled.
    The error of the Fourier transform grows with the number of releases; it is bounded and added (`fft_composition`).
    Not covered: choosing the noise of a release from what earlier releases showed; rounding within the distribution
    of one release, some 1e-16 of each probability.
    Source: Koskela et al. 2020; Doroshenko et al. 2022.

    Example:
        >>> round(PldAccountant().epsilon((Mechanism(256 / 60000, 1.1, 2350),), 1e-5), 4)
        0.9202
    """

    name = "pld"

    def epsilon(self, mechanisms: tuple[Mechanism, ...], delta: float, rough: bool = False) -> float:
        """Returns epsilon; see the class. ValueError when delta is below 1e-11."""
        return max(self.both(mechanisms, delta, rough))

    def both(self, mechanisms: tuple[Mechanism, ...], delta: float, rough: bool = False) -> tuple[float, float]:
        """Returns epsilon where the first data set has the example (or group) and the second has not, and back."""
        if delta < SMALLEST_DELTA:
            raise ValueError(
                f'`delta` must be at least {SMALLEST_DELTA} for "pld": below, its deltas are rounding noise. '
                f'Received: delta={delta!r}. Use accountant="rdp".'
            )
        if not mechanisms:
            return 0.0, 0.0
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            return math.inf, math.inf
        if all(m.shift is not None for m in mechanisms):
            square = sum(m.count * (m.shift / m.noise_multiplier) ** 2 for m in mechanisms)
            return (gaussian.gaussian_epsilon(math.sqrt(square), delta),) * 2
        step = self.discretization(mechanisms, delta) * (_ROUGH if rough else 1.0)
        if step > 1.0:  # epsilon above 1e4
            return math.inf, math.inf
        dropped = _tail_cut(mechanisms, delta)
        parts = [_directions(m, step, dropped) for m in mechanisms]
        # One direction is composed with itself only: an example is there in all releases, or in none.
        lost = sum(m.count * math.log1p(-part[2]) for m, part in zip(mechanisms, parts, strict=True))
        (remove, counts), (add, _) = (tuple(zip(*side, strict=True)) for side in list(zip(*parts, strict=True))[:2])
        first = _epsilon(remove, counts, delta + lost)
        if all(one is other for one, other in zip(remove, add, strict=True)):
            return first, first - lost
        return first, _epsilon(add, counts, delta) - lost

    def discretization(self, mechanisms: tuple[Mechanism, ...], delta: float) -> float:
        """Returns the grid step of the losses: 1, 2 or 5 times a power of ten.

        Connect-the-dots adds about step^2 / 6 to the variance of each loss, so the step follows the standard
        deviation of one loss. It does not depend on the count until epsilon passes 10: one cached
        distribution then serves a whole training run.
        """
        counts = sum(m.count for m in mechanisms)
        dropped = _tail_cut(mechanisms, delta)
        scales = [_scale(m, dropped) for m in mechanisms]
        variance = sum(m.count * deviation**2 for m, (_, deviation, _) in zip(mechanisms, scales, strict=True))
        if all(m.plain for m in mechanisms):
            guess = RdpAccountant().epsilon(mechanisms, delta, rough=True)
        else:
            mean = sum(m.count * mean for m, (mean, _, _) in zip(mechanisms, scales, strict=True))
            guess = mean + math.sqrt(-2.0 * math.log(delta) * variance)
        step = min(math.sqrt(variance / counts) / _STEP_FRACTION, max(_LARGEST_STEP, guess / 1e4))
        single = max(largest for _, _, largest in scales) / _MOST_SINGLE
        composed = 20.0 * math.sqrt(variance) / _MOST_COMPOSED
        return _round_down(max(step, single, composed))

    def describe(self, mechanisms: tuple[Mechanism, ...], delta: float) -> dict[str, Any]:
        """Returns name, library, version and settings."""
        version = importlib.metadata.version("dp-accounting")
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            settings = f"none: noise multipliers below {SMALLEST_NOISE} give no guarantee"
        elif all(m.shift is not None for m in mechanisms):
            settings = "closed form of the Gaussian mechanism, no discretization"
        else:
            step = self.discretization(mechanisms, delta)
            settings = f"discretization {step:g}, connect-the-dots, pessimistic"
        return {"name": self.name, "library": "dp_accounting", "version": version, "settings": settings}


def _tail_cut(mechanisms, delta: float) -> float:
    """Returns how much mass each release of a group may lose: at most a millionth of delta in all."""
    if all(m.group_size == 1 for m in mechanisms):
        return 0.0
    return 10.0 ** math.floor(math.log10(1e-6 * delta / sum(m.count for m in mechanisms)))


def _scale(mechanism: Mechanism, dropped: float) -> tuple[float, float, float]:
    """Returns mean, deviation and largest value of one privacy loss, roughly."""
    z = min(mechanism.noise_multiplier, LARGEST_NOISE)
    if not mechanism.plain:
        pair = dominating_pairs.directions(dataclasses.replace(mechanism, noise_multiplier=z, count=1), dropped)[0]
        return *_moments(pair), pair.losses()[1]
    q = mechanism.sampling_probability
    largest = gaussian.loss_range(q, z, False)[1]
    # Chi-square deviation, or half the range if less.
    return 0.0, min(q * math.sqrt(math.expm1(min(1.0 / (z * z), 700.0))), 0.5 * largest), largest


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{next(m for m in (5.0, 2.0, 1.0) if m * power <= value * (1 + 1e-9)) * power:.1e}")


accountant.register(PldAccountant())
