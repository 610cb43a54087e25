"""Accountant by privacy loss distributions (PLD): the tight one, and the default."""

import dataclasses
import functools
import importlib.metadata
import math

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import fft, signal

from lipdp.accounting import accountant, gaussian, pairs
from lipdp.accounting.mechanism import REPLACE, Mechanism
from lipdp.accounting.rdp import LARGEST_NOISE, SMALLEST_NOISE, RdpAccountant

SMALLEST_DELTA = 1e-11
_STEP_FRACTION = 30.0  # grid steps per standard deviation of one loss: epsilon within 0.02 % of its limit
_ROUGH = 8.0
_TAIL = 1e-15  # mass of a composition that counts as a total loss of privacy
_LARGEST_STEP = 1e-3  # enough for epsilon up to 10; above, epsilon / 1e4
_MOST_SINGLE, _MOST_COMPOSED = 1e6, 4e6  # grid points; a coarser grid is still an upper bound


@functools.lru_cache(maxsize=32)
def _single(pair, step: float) -> pld_pmf.DensePLDPmf:
    """Returns the distribution of one release. Cached: another count only needs a self-composition."""
    return gaussian.connect_dots(pair.curve, *pair.losses(), step)


@functools.lru_cache(maxsize=256)
def _moments(pair) -> tuple[float, float]:
    """Returns mean and deviation of one privacy loss, roughly: they only choose the grid."""
    low, high = pair.losses()
    step = max((high - low) / 4096.0, 1e-12)
    pmf = gaussian.connect_dots(pair.curve, low, high, step)
    loss = (pmf._lower_loss + np.arange(len(pmf._probs))) * step
    mean = float(np.sum(pmf._probs * loss))
    square = float(np.sum(pmf._probs * (loss - mean) ** 2))
    return mean, math.sqrt(max(square - step * step / 6.0, square / 16.0, 1e-300))


def _self_compose(pmf: pld_pmf.DensePLDPmf, count: int) -> pld_pmf.DensePLDPmf:
    """Returns the distribution of `count` releases.

    As dp_accounting's, with a real transform, and with orders of the Chernoff bound that suit any count (the
    library's make the time grow with the count instead of its square root).
    """
    mass = pmf._probs
    # Where losses of one release exceed some 700, e^loss overflows and the masses are no distribution any more.
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.sum(mass)) + pmf._infinity_mass
    if not abs(total - 1.0) < 1e-6 or np.min(mass) < -1e-9:
        return pld_pmf.DensePLDPmf(pmf._discretization, 0, np.array([0.0]), 1.0, True)
    if count == 1:
        return pmf
    index = np.arange(len(mass))
    # Sums rather than dot products: threads of the linear algebra library cost more than they save here.
    deviation = math.sqrt(np.sum(mass * (index - np.sum(mass * index)) ** 2))
    best = math.sqrt(2.0 * math.log(2.0 / _TAIL) / count) / max(deviation, 1e-3)
    orders = np.geomspace(0.05, 1.5, 8) * best
    orders = np.minimum(np.concatenate((orders, [2.0 / len(mass), 20.0 / len(mass)])), 20.0 / len(mass))
    low, high = 0, (len(mass) - 1) * count
    for order in orders:  # Chernoff; order * index is at most 20, so nothing overflows
        up, down = (math.log(np.sum(mass * np.exp(sign * order * index))) for sign in (1.0, -1.0))
        high = min(high, math.ceil((count * up + math.log(2.0 / _TAIL)) / order))
        low = max(low, math.floor(-(count * down + math.log(2.0 / _TAIL)) / order))
    size = fft.next_fast_len(max(high - low + 1, len(mass)), real=True)
    composed = fft.irfft(fft.rfft(mass, size) ** count, size)
    composed = np.roll(composed, -low)[: high - low + 1]
    # The transform leaves noise of both signs where the mass is below about 1e-15. Negative mass would make
    # delta, hence epsilon, too small; positive noise only makes them larger.
    composed = np.maximum(composed, 0.0)
    infinite = _TAIL - math.expm1(count * math.log1p(-pmf._infinity_mass))
    return pld_pmf.DensePLDPmf(pmf._discretization, pmf._lower_loss * count + low, composed, infinite, True)


def _composed(mechanism: Mechanism, step: float, dropped: float) -> tuple:
    """Returns the distributions of all releases in both directions, and the tail mass lost in each of them."""
    mechanism = dataclasses.replace(mechanism, noise_multiplier=min(mechanism.noise_multiplier, LARGEST_NOISE))
    if mechanism.shift is not None:  # count Gaussians are one Gaussian
        scale = mechanism.shift * math.sqrt(mechanism.count)
        pmf = _single(pairs.SampledGaussian(1.0, mechanism.noise_multiplier / scale, False), step)
        return pmf, pmf, 0.0
    remove, add, lost = pairs.directions(mechanism, dropped)
    remove_pmf = _self_compose(_single(remove, step), mechanism.count)
    return remove_pmf, remove_pmf if add == remove else _self_compose(_single(add, step), mechanism.count), lost


def _smallest_epsilon(pmf: pld_pmf.DensePLDPmf, delta: float) -> float:
    """Returns the smallest epsilon >= 0 with delta(epsilon) <= delta, without overflow at any epsilon."""
    if pmf._infinity_mass > delta:
        return math.inf
    step = pmf._discretization
    mass = np.maximum(pmf._probs, 0.0)[::-1]  # from the largest loss down
    # lower[k] = sum over losses above of mass * e^(loss_k - loss); curve[k] = delta(loss_k).
    lower = signal.lfilter([1.0], [1.0, -math.exp(-step)], mass)
    rise = -math.expm1(-step) * np.concatenate(([0.0], lower[:-1]))
    curve = pmf._infinity_mass + np.cumsum(rise)
    k = int(np.searchsorted(curve, delta, side="right")) - 1  # delta(loss_k) <= delta < delta(loss_{k+1})
    loss = (pmf._lower_loss + len(mass) - 1 - k) * step
    # Below loss_k down to the next grid point: delta(e) = delta(loss_k) + (1 - e^(e - loss_k)) * lower[k].
    slack = (delta - curve[k]) / lower[k] if lower[k] > 0.0 else 0.0
    below = math.log1p(-slack) if slack < 1.0 else -math.inf
    if k + 1 < len(mass):
        below = max(below, -step)
    return max(0.0, loss + below)


class PldAccountant(accountant.Accountant):
    """PLD by dp_accounting: connect-the-dots, pessimistic, both directions.

    **Guarantee.**
    Conditions: those of `Mechanism`; delta >= 1e-11 (below, Fourier noise is of the order of delta).
    Bound: an upper bound on epsilon, within about 0.1 % of the exact value; exact when nothing is sampled.
    Not covered: choosing the noise of a release from what earlier releases showed; floating-point error of
    the library beyond the clamping of negative masses done here.
    Source: Koskela et al. 2020; Doroshenko et al. 2022.

    Example:
        >>> round(PldAccountant().epsilon((Mechanism(256 / 60000, 1.1, 2350),), 1e-5), 4)
        0.9202
    """

    name = "pld"

    def epsilon(self, mechanisms, delta, rough=False):
        """Returns epsilon; see the class. ValueError when delta is below 1e-11."""
        return max(self.both(mechanisms, delta, rough))

    def both(self, mechanisms, delta, rough=False) -> tuple[float, float]:
        """Returns epsilon where the first data set has the example (or group) and the second has not, and back."""
        if delta < SMALLEST_DELTA:
            raise ValueError(
                f"delta is below {SMALLEST_DELTA}, where PLD deltas are rounding noise. "
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
        parts = [_composed(m, step, dropped) for m in mechanisms]
        # One direction is composed with itself only: an example is there in all releases, or in none.
        remove, add = (functools.reduce(_compose, direction) for direction in list(zip(*parts, strict=True))[:2])
        lost = sum(m.count * math.log1p(-part[2]) for m, part in zip(mechanisms, parts, strict=True))
        return _smallest_epsilon(remove, delta + lost), _smallest_epsilon(add, delta) - lost

    def discretization(self, mechanisms, delta) -> float:
        """Returns the grid step of the losses: 1, 2 or 5 times a power of ten.

        Connect-the-dots adds about step^2 / 6 to the variance of each loss, so the step follows the standard
        deviation of one loss. It does not depend on the count until epsilon passes 10: one cached
        distribution then serves a whole training run.
        """
        counts = sum(m.count for m in mechanisms)
        dropped = _tail_cut(mechanisms, delta)
        found = [_scale(m, dropped) for m in mechanisms]
        variance = sum(m.count * deviation**2 for m, (_, deviation, _) in zip(mechanisms, found, strict=True))
        if all(_is_plain(m) for m in mechanisms):
            guess = RdpAccountant().epsilon(mechanisms, delta, rough=True)
        else:
            mean = sum(m.count * mean for m, (mean, _, _) in zip(mechanisms, found, strict=True))
            guess = mean + math.sqrt(-2.0 * math.log(delta) * variance)
        step = min(math.sqrt(variance / counts) / _STEP_FRACTION, max(_LARGEST_STEP, guess / 1e4))
        single = max(largest for _, _, largest in found) / _MOST_SINGLE
        composed = 20.0 * math.sqrt(variance) / _MOST_COMPOSED
        return _round_down(max(step, single, composed))

    def describe(self, mechanisms, delta):
        """Returns name, library, version and settings."""
        version = importlib.metadata.version("dp-accounting")
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            settings = f"none: noise multipliers below {SMALLEST_NOISE} give no guarantee"
        elif all(m.shift is not None for m in mechanisms):
            settings = "closed form of the Gaussian mechanism, no discretisation"
        else:
            step = self.discretization(mechanisms, delta)
            settings = f"discretisation {step:g}, connect-the-dots, pessimistic"
        return {"name": self.name, "library": "dp_accounting", "version": version, "settings": settings}


def _compose(one: pld_pmf.DensePLDPmf, other: pld_pmf.DensePLDPmf) -> pld_pmf.DensePLDPmf:
    return one.compose(other, _TAIL)


def _is_plain(mechanism: Mechanism) -> bool:
    return mechanism.sampler == "poisson" and mechanism.group_size == 1 and mechanism.relation != REPLACE


def _tail_cut(mechanisms, delta: float) -> float:
    """Returns how much mass each release of a group may lose: at most a millionth of delta in all."""
    if all(m.group_size == 1 for m in mechanisms):
        return 0.0
    return 10.0 ** math.floor(math.log10(1e-6 * delta / sum(m.count for m in mechanisms)))


def _scale(mechanism: Mechanism, dropped: float) -> tuple[float, float, float]:
    """Returns mean, deviation and largest value of one privacy loss, roughly."""
    z = min(mechanism.noise_multiplier, LARGEST_NOISE)
    if not _is_plain(mechanism):
        pair = pairs.directions(dataclasses.replace(mechanism, noise_multiplier=z, count=1), dropped)[0]
        return *_moments(pair), pair.losses()[1]
    q = mechanism.sampling_probability
    largest = gaussian.loss_range(q, z, False)[1]
    # Chi-square deviation, or half the range if less.
    return 0.0, min(q * math.sqrt(math.expm1(min(1.0 / (z * z), 700.0))), 0.5 * largest), largest


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{next(m for m in (5.0, 2.0, 1.0) if m * power <= value * (1 + 1e-9)) * power:.1e}")


accountant.register(PldAccountant())
