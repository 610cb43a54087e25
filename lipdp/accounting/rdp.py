"""Accountant by Renyi differential privacy (RDP)."""

import functools
import importlib.metadata
import logging
import math

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from lipdp.accounting import accountant
from lipdp.accounting.mechanism import Mechanism

# Below this noise the guarantee is void in practice and the library's series overflow.
SMALLEST_NOISE = 0.01
# More noise never costs more, so a larger multiplier is accounted as this one: beyond it rounding dominates.
LARGEST_NOISE = 1e5
# The library's curve is exact to about 1e-16 per release and may even come out negative.
_ROUNDING = 1e-15


def _quiet(record: logging.LogRecord) -> bool:
    return "failed to converge" not in record.getMessage()


@functools.lru_cache(maxsize=1024)
def _curve(sampling_probability: float, noise_multiplier: float) -> np.ndarray:
    single = Mechanism(sampling_probability, min(noise_multiplier, LARGEST_NOISE), 1)
    library = rdp_privacy_accountant.RdpAccountant()
    logger = logging.getLogger("absl")
    logger.addFilter(_quiet)  # orders that do not converge are left out by the library, which is sound
    try:
        library.compose(single.event())
    finally:
        logger.removeFilter(_quiet)
    curve = np.maximum(library.rdp, 0.0) + _ROUNDING
    curve.setflags(write=False)
    return curve


class RdpAccountant(accountant.Accountant):
    """RDP of the sampled Gaussian at dp_accounting's default orders.

    **Guarantee.**
    Conditions: those of `Mechanism`.
    Bound: an upper bound on epsilon, at every delta in (0, 1); looser than PLD by 7 to 150 %.
    Not covered: choosing the noise of a release from what earlier releases showed.
    Source: Mironov, Talwar and Zhang 2019; Canonne, Kamath and Steinke 2020, proposition 12.

    Example:
        >>> round(RdpAccountant().epsilon((Mechanism(256 / 60000, 1.1, 2350),), 1e-5), 4)
        1.0997
    """

    name = "rdp"

    def epsilon(self, mechanisms, delta, rough=False):
        """Returns epsilon; see the class."""
        if not mechanisms:
            return 0.0
        if any(m.noise_multiplier < SMALLEST_NOISE for m in mechanisms):
            return math.inf
        total = sum(m.count * _curve(m.sampling_probability, m.noise_multiplier) for m in mechanisms)
        orders = rdp_privacy_accountant.DEFAULT_RDP_ORDERS
        return float(rdp_privacy_accountant.compute_epsilon(orders, total, delta)[0])

    def describe(self, mechanisms, delta):
        """Returns name, library, version and settings."""
        version = importlib.metadata.version("dp-accounting")
        orders = rdp_privacy_accountant.DEFAULT_RDP_ORDERS
        settings = f"best of {len(orders)} orders from {min(orders)} to {max(orders)}"
        return {"name": self.name, "library": "dp_accounting", "version": version, "settings": settings}


accountant.register(RdpAccountant())
