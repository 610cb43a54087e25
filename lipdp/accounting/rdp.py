"""Accountant by Renyi differential privacy (RDP)."""

import dataclasses
import functools
import importlib.metadata
import logging
import math
from typing import Any

import numpy as np
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant

from lipdp.accounting import accountant
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.schemes import ADD_OR_REMOVE

# Below this noise the guarantee is void in practice and the library's series overflow.
SMALLEST_NOISE = 0.01
# More noise never costs more, so a larger multiplier is accounted as this one: beyond it rounding dominates.
LARGEST_NOISE = 1e5
# The library's curve is exact to about 1e-16 per release and may even come out negative.
_ROUNDING = 1e-15
_LEAST_INTEGRATED = 0.1  # below, the integrals have too many points
_SAME = 1e-4  # a series that is off by less is kept, with the numbers stated by earlier versions
ORDERS = tuple(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
# Integer orders are quick, and close enough for a first guess.
_ROUGH_ORDERS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64, 128, 256)
_NEIGHBORS = privacy_accountant.NeighboringRelation


def _quiet(record: logging.LogRecord) -> bool:
    return "failed to converge" not in record.getMessage()


def supports(mechanism: Mechanism) -> bool:
    """Returns whether RDP has a bound for such releases."""
    if mechanism.shift is not None or mechanism.plain:
        return True
    one = mechanism.group_size == 1
    return one and mechanism.sampler == "fixed_size" and mechanism.relation != ADD_OR_REMOVE


@functools.lru_cache(maxsize=1024)
def single(mechanism: Mechanism, orders: tuple[float, ...] = ORDERS) -> np.ndarray:
    """Returns the RDP of one release at `orders`; infinite where there is no bound."""
    noise = min(mechanism.noise_multiplier, LARGEST_NOISE)
    if mechanism.shift is not None:
        curve = 0.5 * np.asarray(orders) * (mechanism.shift / noise) ** 2
    else:
        relation, event = _NEIGHBORS.ADD_OR_REMOVE_ONE, dp_event.GaussianDpEvent(noise)
        if mechanism.sampler == "fixed_size":
            # The library measures the noise by how far a replacement moves the sum: twice a contribution.
            relation, event = _NEIGHBORS.REPLACE_ONE, dp_event.GaussianDpEvent(noise / 2.0)
            event = dp_event.SampledWithoutReplacementDpEvent(1.0, mechanism.sampling_probability, event)
        else:
            event = dp_event.PoissonSampledDpEvent(mechanism.sampling_probability, event)
        library = rdp_privacy_accountant.RdpAccountant(orders, relation)
        logger = logging.getLogger("absl")
        logger.addFilter(_quiet)  # orders that do not converge are left out by the library, which is sound
        try:
            library.compose(event)
        finally:
            logger.removeFilter(_quiet)
        curve = library.rdp
    # A comparison with NaN would pass any budget.
    curve = np.where(np.isnan(curve), np.inf, np.maximum(curve, 0.0)) + _ROUNDING
    for i, order in enumerate(orders):
        # The library's series for fractional orders adds up absolute values, or does not converge: near a rate of 1/2
        # it exceeds the next integer's value, which the true one never does.
        if order > 1.0 and order != math.floor(order) and curve[i] > single(mechanism, (math.ceil(order),))[0]:
            curve[i] = _between_integers(mechanism, float(order))
    curve.setflags(write=False)
    return curve


@functools.lru_cache(maxsize=1024)
def tight(mechanism: Mechanism, orders: tuple[float, ...]) -> np.ndarray:
    """Returns `single`, but the integral itself where the series is too large, which makes epsilon monotone.

    Filters keep to `single`: what they planned and charged in files must not change.
    """
    curve = single(mechanism, orders)
    noise = min(mechanism.noise_multiplier, LARGEST_NOISE)
    if not mechanism.plain or mechanism.shift is not None or noise < _LEAST_INTEGRATED:
        return curve
    curve = np.array(curve)
    for i, order in enumerate(orders):
        if order > 1.0 and order != math.floor(order):
            integral = _integral(mechanism.sampling_probability, noise, float(order))
            curve[i] = integral if curve[i] > (1.0 + _SAME) * integral else curve[i]
    curve.setflags(write=False)
    return curve


@functools.lru_cache(maxsize=65536)
def at_order(mechanism: Mechanism, order: float) -> float:
    """Returns the RDP of one release at `order`; infinite where the noise gives no guarantee."""
    return math.inf if mechanism.noise_multiplier < SMALLEST_NOISE else float(single(mechanism, (order,))[0])


def _integral(q: float, z: float, order: float) -> float:
    """Returns the RDP of one Poisson-sampled Gaussian by the trapezoidal rule, rounded up.

    With r(x) = 1 - q + q e^((2x - 1) / (2 z^2)), the integrand f = N(x; 0, z^2) r(x)^order has no singularity
    within pi z^2 of the real line, and |f(x + iy)| <= f(x) e^(y^2 / (2 z^2)). The rule of step h thus errs by a share
    of at most 2 e^(c^2 / (2 z^2) - 2 pi c / h) for c up to pi z^2: below e^-70 here. By convexity r^order is at most
    1 - q + q e^(order (2x - 1) / (2 z^2)), hence what is left out below e^-90 of the whole.
    """
    step, far = min(z / 8.0, z * z / 4.0), z * (14.0 + math.sqrt(-2.0 * (order - 1.0) * math.log(q)))
    x = np.arange(-far, order + far + step, step)
    ratio = math.log1p(-q) + np.logaddexp(0.0, (2.0 * x - 1.0) / (2.0 * z * z) + math.log(q) - math.log1p(-q))
    exponent = order * ratio - 0.5 * (x / z) ** 2
    top = float(np.max(exponent))
    total = top + math.log(float(np.sum(np.exp(exponent - top))) * step / (z * math.sqrt(2.0 * math.pi)))
    # Where f counts, its exponent is a difference of numbers that are rounded.
    counts = exponent > top - 40.0
    size = float(np.max(np.abs(order * ratio[counts]) + order * np.abs(x[counts]) / (z * z) + (x[counts] / z) ** 2))
    return (max(total, 0.0) + 2.0**-49 * (size + order / (z * z) - order * math.log(q) + 16.0)) / (order - 1.0)


def _between_integers(mechanism: Mechanism, order: float) -> float:
    """Returns a bound on the RDP at a fractional order from its neighbors, which are finite sums.

    (order - 1) RDP(order) is the logarithm of a moment, hence convex in the order, and 0 at order 1.
    """
    low = math.floor(order)
    below, above = ((n - 1) * single(mechanism, (n,))[0] if n > 1 else 0.0 for n in (low, low + 1))
    return ((low + 1 - order) * below + (order - low) * above) / (order - 1.0)


class RdpAccountant(accountant.Accountant):
    """RDP of the sampled Gaussian at dp_accounting's default orders.

    **Guarantee.**
    Conditions: those of `Mechanism`; Poisson sampling (add or remove), fixed size (replace), or no sampling.
    Bound: an upper bound on epsilon, at every delta in (0, 1); looser than PLD by 7 to 150 %.
    Not covered: choosing the noise of a release from what earlier releases showed.
    Source: Mironov, Talwar and Zhang 2019; Wang, Balle and Kasiviswanathan 2019 (fixed size); Canonne, Kamath and
    Steinke 2020, proposition 12.

    Example:
        >>> round(RdpAccountant().epsilon((Mechanism(256 / 60000, 1.1, 2350),), 1e-5), 4)
        1.0997
    """

    name = "rdp"

    def curve(
        self, mechanisms: tuple[Mechanism, ...], orders: tuple[float, ...] = ORDERS
    ) -> tuple[tuple[float, ...], np.ndarray]:
        """Returns the orders, and the RDP of all `mechanisms` together at each of them."""
        for mechanism in mechanisms:
            if not supports(mechanism):
                raise accountant.unsupported(self.name, mechanism)
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            return orders, np.full(len(orders), math.inf)
        singles = ((m.count, tight(kind(m), orders)) for m in mechanisms)
        return orders, sum((count * curve for count, curve in singles), np.zeros(len(orders)))

    def epsilon(self, mechanisms: tuple[Mechanism, ...], delta: float, rough: bool = False) -> float:
        """Returns epsilon; see the class. ValueError for what RDP has no bound for."""
        orders, total = self.curve(mechanisms, _ROUGH_ORDERS if rough else ORDERS)
        if not mechanisms:
            return 0.0
        if not np.isfinite(total).any():
            return math.inf
        return float(rdp_privacy_accountant.compute_epsilon(orders, total, delta)[0])

    def describe(self, mechanisms: tuple[Mechanism, ...], delta: float) -> dict[str, Any]:
        """Returns name, library, version and settings."""
        version = importlib.metadata.version("dp-accounting")
        settings = f"best of {len(ORDERS)} orders from {min(ORDERS)} to {max(ORDERS)}"
        return {"name": self.name, "library": "dp_accounting", "version": version, "settings": settings}


def kind(mechanism: Mechanism) -> Mechanism:
    """Returns the mechanism without its count, so that the curve of one release is found again."""
    return dataclasses.replace(mechanism, count=0)


accountant.register(RdpAccountant())
