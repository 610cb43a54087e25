"""Accountant by privacy loss distributions (PLD): the tight one, and the default."""

import functools
import importlib.metadata
import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library
from scipy import fft, signal

from lipdp.accounting import accountant
from lipdp.accounting.gaussian import gaussian_epsilon, loss_distribution, loss_range
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.rdp import LARGEST_NOISE, SMALLEST_NOISE, RdpAccountant

SMALLEST_DELTA = 1e-11
_STEP_FRACTION = 30.0  # grid steps per standard deviation of one loss: epsilon within 0.02 % of its limit
_ROUGH = 8.0
_TAIL = 1e-15  # mass of a composition that counts as a total loss of privacy
_LARGEST_STEP = 1e-3  # enough for epsilon up to 10; above, epsilon / 1e4
_MOST_SINGLE, _MOST_COMPOSED = 1e6, 4e6  # grid points; a coarser grid is still an upper bound


@functools.lru_cache(maxsize=16)
def _single(q: float, z: float, step: float) -> library.PrivacyLossDistribution:
    """Returns the distribution of one release. Cached: another count only needs a self-composition."""

    remove = loss_distribution(q, z, step, add=False)
    return library.PrivacyLossDistribution(remove, None if q == 1.0 else loss_distribution(q, z, step, add=True))


def _self_compose(pmf: pld_pmf.DensePLDPmf, count: int) -> pld_pmf.DensePLDPmf:
    """Returns the distribution of `count` releases.

    As dp_accounting's, with a real transform, and with orders of the Chernoff bound that suit any count (the
    library's make the time grow with the count instead of its square root).
    """
    mass = pmf._probs
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


def _composed(mechanism: Mechanism, step: float) -> library.PrivacyLossDistribution:
    q, z, count = mechanism.sampling_probability, mechanism.noise_multiplier, mechanism.count
    if q == 1.0:  # count Gaussians are one Gaussian
        return _single(1.0, z / math.sqrt(count), step)
    single = _single(q, min(z, LARGEST_NOISE), step)
    if count == 1:
        return single
    remove, add = (_self_compose(pmf, count) for pmf in (single._pmf_remove, single._pmf_add))
    return library.PrivacyLossDistribution(remove, add)


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
        if delta < SMALLEST_DELTA:
            raise ValueError(
                f"delta is below {SMALLEST_DELTA}, where PLD deltas are rounding noise. "
                f'Received: delta={delta!r}. Use accountant="rdp".'
            )
        if not mechanisms:
            return 0.0
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            return math.inf
        if all(m.sampling_probability == 1.0 for m in mechanisms):
            square = sum(m.count / m.noise_multiplier**2 for m in mechanisms)
            return gaussian_epsilon(math.sqrt(square), delta)
        step = self.discretization(mechanisms, delta) * (_ROUGH if rough else 1.0)
        if step > 1.0:  # epsilon above 1e4
            return math.inf
        parts = (_composed(m, step) for m in mechanisms)
        total = functools.reduce(library.PrivacyLossDistribution.compose, parts)
        return max(_smallest_epsilon(total._pmf_remove, delta), _smallest_epsilon(total._pmf_add, delta))

    def discretization(self, mechanisms, delta) -> float:
        """Returns the grid step of the losses: 1, 2 or 5 times a power of ten.

        Connect-the-dots adds about step^2 / 6 to the variance of each loss, so the step follows the standard
        deviation of one loss. It does not depend on the count until epsilon passes 10: one cached
        distribution then serves a whole training run.
        """
        counts = sum(m.count for m in mechanisms)
        variance = sum(m.count * _deviation(m) ** 2 for m in mechanisms)
        guess = RdpAccountant().epsilon(mechanisms, delta)
        step = min(math.sqrt(variance / counts) / _STEP_FRACTION, max(_LARGEST_STEP, guess / 1e4))
        single = max(map(_largest_loss, mechanisms)) / _MOST_SINGLE
        composed = 20.0 * math.sqrt(variance) / _MOST_COMPOSED
        return _round_down(max(step, single, composed))

    def describe(self, mechanisms, delta):
        """Returns name, library, version and settings."""
        version = importlib.metadata.version("dp-accounting")
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            settings = f"none: noise multipliers below {SMALLEST_NOISE} give no guarantee"
        elif all(m.sampling_probability == 1.0 for m in mechanisms):
            settings = "closed form of the Gaussian mechanism, no discretisation"
        else:
            step = self.discretization(mechanisms, delta)
            settings = f"discretisation {step:g}, connect-the-dots, pessimistic"
        return {"name": self.name, "library": "dp_accounting", "version": version, "settings": settings}


def _deviation(mechanism: Mechanism) -> float:
    """Returns the scale of one privacy loss: chi-square deviation, or half its range if less."""
    q, z = mechanism.sampling_probability, min(mechanism.noise_multiplier, LARGEST_NOISE)
    return min(q * math.sqrt(math.expm1(min(1.0 / (z * z), 700.0))), 0.5 * _largest_loss(mechanism))


def _largest_loss(mechanism: Mechanism) -> float:
    return loss_range(mechanism.sampling_probability, min(mechanism.noise_multiplier, LARGEST_NOISE), False)[1]


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{next(m for m in (5.0, 2.0, 1.0) if m * power <= value * (1 + 1e-9)) * power:.1e}")


accountant.register(PldAccountant())
