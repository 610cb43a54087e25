"""Accountant by privacy loss distributions (PLD): the tight one, and the default."""

import dataclasses
import functools
import importlib.metadata
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from lipdp.accounting import accountant, dominating_pairs, fft_composition, gaussian
from lipdp.accounting.loss_distribution import LossDistribution
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.rdp import LARGEST_NOISE, SMALLEST_NOISE, RdpAccountant, supports

SMALLEST_DELTA = 1e-11
_STEP_FRACTION = 30.0  # grid steps per standard deviation of one loss: epsilon within 0.02 % of its limit
_ROUGH = 8.0
_ENDLESS = 1e100  # the squares of what is below it are floats
_NEAR = 1e-8  # of a grid step: rounding of an epsilon on the grid
_CURVE_DELTA = 1e-9  # decides the grid of a whole curve
_LARGEST_STEP = 1e-3  # enough for epsilon up to 10; above, epsilon / 1e4
_PAID = 1e-3  # share of delta that rounding may cost before a larger tilt is tried
_MOST_SINGLE, _MOST_COMPOSED = 1e6, 4e6  # grid points; a coarser grid is still an upper bound
_QUICK = 1 << 18  # the same while tilts are tried


@functools.lru_cache(maxsize=16)
def _single(pair, step: float, tail: float) -> LossDistribution:
    """Returns the distribution of one release. Cached: another count mostly needs a self-composition only."""
    low, high = pair.losses(tail)
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


def _directions(mechanism: Mechanism, step: float, dropped: float, tail: float = gaussian.TAIL) -> tuple:
    """Returns the distribution of one release, its count, the same in the other direction, and the tail mass lost."""
    mechanism = dataclasses.replace(mechanism, noise_multiplier=min(mechanism.noise_multiplier, LARGEST_NOISE))
    if mechanism.shift is not None:  # count Gaussians are one Gaussian
        scale = mechanism.shift * math.sqrt(mechanism.count)
        pmf = _single(dominating_pairs.SampledGaussian(1.0, mechanism.noise_multiplier / scale, False), step, tail)
        return (pmf, 1), (pmf, 1), 0.0
    remove, add, lost = dominating_pairs.directions(mechanism, dropped)
    return (_single(remove, step, tail), mechanism.count), (_single(add, step, tail), mechanism.count), lost


def _epsilon(pmfs, counts, delta: float, known: float = 0.0) -> float:
    """Returns epsilon of `counts[i]` losses of each kind, by the smallest tilt that keeps the digits of delta.

    Each tilt and each grid gives an upper bound. Grids that would be too large are first tried coarsely; only the best
    tilts are worth more points, and none that is below what is `known` to be spent anyway.
    """
    found: dict[float, tuple[float, float]] = {}  # by tilt: epsilon and the step it was computed with
    least, best, step = math.inf, 0.0, pmfs[0].step
    if not all(map(fft_composition.is_distribution, pmfs)):
        return math.inf
    factor = math.ceil(max(len(pmf.masses) for pmf in pmfs) / _QUICK)
    few = [pmf.coarsened(factor) for pmf in pmfs] if factor > 1 else pmfs
    # A tilt makes rare large losses, hence the grid, longer.
    for share in (0.0, 0.3, 0.6, 1.0):
        if share == 0.3:
            best = fft_composition.best_tilt(few, counts, delta)
        pmf, added = fft_composition.compose(few, counts, share * best, _QUICK)
        found[share * best] = pmf.epsilon(delta), pmf.step
        least = min(least, found[share * best][0])
        above = math.ceil(min(least / pmf.step, 1e18)) - pmf.lowest
        if math.isfinite(least) and np.sum(added[max(above, 0) :]) <= _PAID * delta:
            break
    for most, number in ((fft_composition.MOST // 2, 2), (fft_composition.MOST, 1)):
        for tilt in sorted(found, key=lambda tilt: found[tilt][0])[:number]:
            if found[tilt][1] > step and least > known:
                pmf, _ = fft_composition.compose(pmfs, counts, tilt, most)
                found[tilt] = pmf.epsilon(delta), pmf.step
                least = min(least, found[tilt][0])
    return least


class PldAccountant(accountant.Accountant):
    """PLD by dp_accounting: connect-the-dots, pessimistic, both directions.

    **Guarantee.**
    Conditions: those of `Mechanism`.
    Bound: an upper bound on epsilon; exact when nothing is sampled. Otherwise within about 0.1 % of the exact value for
    epsilons from 0.01 to 100 of rates and counts that training has; 0.5 % at epsilons of 800; looser where large losses
    are so rare that the grid is coarsened to bound time and memory (a rate of 1e-6 and 1e6 releases: a few percent).
    Below a delta of 1e-11, where rounding within one release is of the order of delta, the bound is that of RDP.
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
        """Returns epsilon; see the class. ValueError when delta is below 1e-11 and RDP has no bound either."""
        if _too_small(mechanisms, delta):
            unknown = [mechanism for mechanism in mechanisms if not supports(mechanism)]
            if unknown:
                raise _no_digits(delta, unknown[0])
            return RdpAccountant().epsilon(mechanisms, delta, rough)
        return max(self._both(mechanisms, delta, rough, lazy=True))

    def both(self, mechanisms: tuple[Mechanism, ...], delta: float) -> tuple[float, float]:
        """Returns epsilon where the first data set has the example (or group) and the second has not, and back."""
        return self._both(mechanisms, delta)

    def curve(self, mechanisms: tuple[Mechanism, ...], points: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns epsilons from about 0 on, and a delta for each of them that holds in both directions.

        From one epsilon to the next delta falls by at most 1 / `points`, or that of one step of the grid.
        """
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            return np.zeros(1), np.ones(1)
        step = self.discretization(mechanisms, _CURVE_DELTA)
        if step > fft_composition.LARGEST_STEP:
            return np.zeros(1), np.ones(1)
        dropped, tail = _tail_cut(mechanisms, _CURVE_DELTA), _reach(mechanisms, _CURVE_DELTA, step)
        parts = [_directions(m, step, dropped, tail) for m in mechanisms]
        lost = -sum(m.count * math.log1p(-part[2]) for m, part in zip(mechanisms, parts, strict=True))
        (remove, counts), (add, _) = (tuple(zip(*side, strict=True)) for side in list(zip(*parts, strict=True))[:2])
        sides = [fft_composition.compose(pmfs, counts)[0] for pmfs in (remove, add)]
        epsilons = np.unique(np.concatenate([np.zeros(1), *(_knots(side, points) for side in sides)]))
        # The mass that was dropped is paid: as delta in one direction, as epsilon in the other.
        first = _at(sides[0], epsilons) + lost
        deltas = np.minimum(np.maximum(first, _at(sides[1], epsilons - lost)), 1.0)
        return epsilons + 2.0 * _NEAR * max(side.step for side in sides), deltas

    def _both(self, mechanisms, delta: float, rough: bool = False, lazy: bool = False) -> tuple[float, float]:
        if not mechanisms:
            return 0.0, 0.0
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            return math.inf, math.inf
        if all(m.shift is not None for m in mechanisms):
            return (gaussian.gaussian_epsilon(mu_of(mechanisms) or 0.0, delta),) * 2
        if delta < SMALLEST_DELTA:
            raise _no_digits(delta, mechanisms[0])
        step = self.discretization(mechanisms, delta) * (_ROUGH if rough else 1.0)
        if step > fft_composition.LARGEST_STEP:
            return math.inf, math.inf
        dropped, tail = _tail_cut(mechanisms, delta), _reach(mechanisms, delta, step)
        parts = [_directions(m, step, dropped, tail) for m in mechanisms]
        # One direction is composed with itself only: an example is there in all releases, or in none.
        lost = sum(m.count * math.log1p(-part[2]) for m, part in zip(mechanisms, parts, strict=True))
        (remove, counts), (add, _) = (tuple(zip(*side, strict=True)) for side in list(zip(*parts, strict=True))[:2])
        known = math.inf if rough else 0.0
        first = _epsilon(remove, counts, delta + lost, known)
        second = first
        if not all(one is other for one, other in zip(remove, add, strict=True)):
            second = _epsilon(add, counts, delta, first + lost if lazy else known)
        if all(m.capacity is None for m in mechanisms):
            # The masses of nearly certain samples may be no distribution, or lose digits; certain ones cost no less.
            certain = mu_of([m.without_amplification() for m in mechanisms])
            most = math.inf if certain is None else gaussian.gaussian_epsilon(certain, delta)
            first, second = min(first, most), min(second, most)
        return first, second - lost

    def discretization(self, mechanisms: tuple[Mechanism, ...], delta: float) -> float:
        """Returns the grid step of the losses: 1, 2 or 5 times a power of ten.

        Connect-the-dots adds about step^2 / 6 to the variance of each loss, so the step follows the standard
        deviation of one loss. It does not depend on the count until epsilon passes 10: one cached
        distribution then serves a whole training run.
        """
        counts = sum(m.count for m in mechanisms)
        dropped = _tail_cut(mechanisms, delta)
        scales = [_scale(m, dropped) for m in mechanisms]
        variance = sum(m.count * deviation**2 for m, (_, deviation) in zip(mechanisms, scales, strict=True))
        if all(m.plain for m in mechanisms):
            guess = RdpAccountant().epsilon(mechanisms, delta, rough=True)
        else:
            mean = sum(m.count * mean for m, (mean, _) in zip(mechanisms, scales, strict=True))
            guess = mean + math.sqrt(-2.0 * math.log(delta) * variance)
        step = min(math.sqrt(variance / counts) / _STEP_FRACTION, max(_LARGEST_STEP, guess / 1e4))
        step = max(step, 20.0 * math.sqrt(variance) / _MOST_COMPOSED)
        single = _largest(mechanisms, delta, _reach(mechanisms, delta, step)) / _MOST_SINGLE
        step = _round_down(max(step, single))
        return step if step >= single else _round_down(2.5 * step)

    def describe(self, mechanisms: tuple[Mechanism, ...], delta: float) -> dict[str, Any]:
        """Returns name, library, version and settings."""
        version = importlib.metadata.version("dp-accounting")
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            settings = f"none: noise multipliers below {SMALLEST_NOISE} give no guarantee"
        elif all(m.shift is not None for m in mechanisms):
            settings = "closed form of the Gaussian mechanism, no discretization"
        elif delta < SMALLEST_DELTA:
            bound = RdpAccountant().describe(mechanisms, delta)["settings"]
            settings = f"RDP, {bound}: below a delta of {SMALLEST_DELTA:g} PLD has no digits"
        else:
            step = self.discretization(mechanisms, delta)
            settings = f"discretization {step:g}, connect-the-dots, pessimistic"
        return {"name": self.name, "library": "dp_accounting", "version": version, "settings": settings}


def mu_of(mechanisms: Sequence[Mechanism]) -> float | None:
    """Returns mu of releases that are not sampled, rounded up where it vanishes; None where one is, or has no noise."""
    if any(m.shift is None or m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
        return None
    shares = (m.shift / min(m.noise_multiplier, _ENDLESS) for m in mechanisms)
    return math.sqrt(sum(m.count * share**2 for m, share in zip(mechanisms, shares, strict=True)))


def _knots(pmf: LossDistribution, points: int) -> np.ndarray:
    """Returns grid points of at least 0 between which delta falls by little, and by a small factor."""
    start = max(0, -pmf.lowest)
    deltas = np.minimum(pmf.deltas[start:], 1.0)
    if not len(deltas):
        return np.zeros(1)
    high, low = float(deltas[0]), float(deltas[-1])
    levels = np.linspace(high, low, points), np.geomspace(max(high, 1e-15), max(low, 1e-15), points)
    places = np.searchsorted(-deltas, -np.concatenate(levels))
    places = np.clip(np.concatenate([places, places - 1]), 0, len(deltas) - 1)
    return (pmf.lowest + start + np.unique(places)) * pmf.step


def _at(pmf: LossDistribution, epsilons: np.ndarray) -> np.ndarray:
    """Returns delta at the grid points at or below the epsilons, give or take `_NEAR` of a step; there it is larger."""
    place = np.floor(epsilons / pmf.step + _NEAR).astype(int) - pmf.lowest
    deltas = np.concatenate([[1.0], pmf.deltas])
    return deltas[np.clip(place + 1, 0, len(pmf.masses))]


def _too_small(mechanisms, delta: float) -> bool:
    """Returns whether delta is too small for a distribution, where one is needed."""
    sampled = any(m.shift is None for m in mechanisms)
    return delta < SMALLEST_DELTA and sampled and all(m.noise_multiplier >= SMALLEST_NOISE for m in mechanisms)


def _no_digits(delta: float, mechanism: Mechanism) -> ValueError:
    return ValueError(
        f"`delta` must be at least {SMALLEST_DELTA:g} here: smaller ones are rounding noise of the distribution, and "
        f"RDP has no bound for such releases. Received: delta={delta!r}, sampler={mechanism.sampler!r}, "
        f"relation={mechanism.relation!r}, group_size={mechanism.group_size}. Pass delta={SMALLEST_DELTA:g}; smaller "
        "ones work for one example under Poisson sampling (add or remove, zero out) and under fixed_size (replace, "
        "zero out), and where nothing is sampled."
    )


def _tail_cut(mechanisms, delta: float) -> float:
    """Returns how much mass each release of a group, or epoch, may lose: at most a millionth of delta in all."""
    if all(m.group_size == 1 and not m.sampling.scheme.allocates for m in mechanisms):
        return 0.0
    return _negligible(mechanisms, delta)


def _reach(mechanisms, delta: float, step: float) -> float:
    """Returns how many standard deviations out an outcome counts as a total loss of privacy.

    As far as it is cheap, and at least so far that this costs a millionth of delta.
    """
    if _largest(mechanisms, delta, gaussian.TAIL) <= _QUICK * step:
        return gaussian.TAIL
    return min(gaussian.TAIL, -float(special.ndtri(_negligible(mechanisms, delta))))


def _largest(mechanisms, delta: float, tail: float) -> float:
    """Returns the largest loss of one release among outcomes within `tail` standard deviations."""
    dropped = _tail_cut(mechanisms, delta)
    return max(dominating_pairs.directions(_quiet(m), dropped)[0].losses(tail)[1] for m in mechanisms)


def _quiet(mechanism: Mechanism) -> Mechanism:
    noise = min(mechanism.noise_multiplier, LARGEST_NOISE)
    return dataclasses.replace(mechanism, noise_multiplier=noise, count=1)


def _negligible(mechanisms, delta: float) -> float:
    """Returns a probability, a power of ten, that is at most a millionth of delta over all releases."""
    return 10.0 ** math.floor(math.log10(1e-6 * delta / sum(m.count for m in mechanisms)))


def _scale(mechanism: Mechanism, dropped: float) -> tuple[float, float]:
    """Returns mean and deviation of one privacy loss, roughly."""
    if not mechanism.plain:
        return _moments(dominating_pairs.directions(_quiet(mechanism), dropped)[0])
    q, z = mechanism.sampling_probability, min(mechanism.noise_multiplier, LARGEST_NOISE)
    largest = gaussian.loss_range(q, z, False)[1]
    # Chi-square deviation, or half the range if less.
    return 0.0, min(q * math.sqrt(math.expm1(min(1.0 / (z * z), 700.0))), 0.5 * largest)


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{next(m for m in (5.0, 2.0, 1.0) if m * power <= value * (1 + 1e-9)) * power:.1e}")


accountant.register(PldAccountant())
