"""Accountant by the library autodp: independent of dp_accounting, to compare with."""

import functools
import importlib.metadata
import math
import warnings
from typing import Any

from lipdp.accounting import accountant
from lipdp.accounting.rdp import LARGEST_NOISE, SMALLEST_NOISE

# Above, the library's series take minutes or overflow, and the guarantee is void in practice.
_LEAST_SAMPLED_NOISE = 0.1


class AutodpAccountant(accountant.Accountant):
    """RDP of autodp, in its own implementation of the sampled Gaussian.

    **Guarantee.**
    Conditions: those of `Mechanism`; Poisson sampling (add or remove one example) or no sampling.
    Bound: an upper bound on epsilon, 1.1 to 2.5 times that of "pld".
    Not covered: as "rdp".
    Source: Wang, Balle and Kasiviswanathan 2019; Zhu and Wang 2019.
    """

    name = "autodp"

    def epsilon(self, mechanisms: Any, delta: float, rough: bool = False) -> float:
        """Returns epsilon; see the class. ValueError for other samplers, or without autodp."""
        if not mechanisms:
            return 0.0
        for mechanism in mechanisms:
            if mechanism.shift is None and not mechanism.plain:
                raise accountant.unsupported(self.name, mechanism)
            least = SMALLEST_NOISE if mechanism.shift is not None else _LEAST_SAMPLED_NOISE
            if mechanism.noise_multiplier < least:
                return math.inf
        _, transformers = _library()
        parts = [_single(m.sampling_probability, m.shift, m.noise_multiplier) for m in mechanisms]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = transformers.Composition()(parts, [m.count for m in mechanisms]).get_approxDP(delta)
        return float(value) if math.isfinite(value) else math.inf

    def describe(self, mechanisms: Any, delta: float) -> dict[str, Any]:
        """Returns name, library, version and settings."""
        version = importlib.metadata.version("autodp")
        return {"name": self.name, "library": "autodp", "version": version, "settings": "RDP, improved bound"}


@functools.cache
def _library():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from autodp import mechanism_zoo, transformer_zoo
    except ImportError as error:
        raise ValueError(
            'The accountant "autodp" needs the package autodp, which is not installed. Run pip install autodp, or use '
            'accountant="rdp".'
        ) from error
    return mechanism_zoo, transformer_zoo


@functools.lru_cache(maxsize=64)
def _single(probability, shift, noise):
    mechanisms, transformers = _library()
    gaussian = mechanisms.GaussianMechanism(sigma=min(noise, LARGEST_NOISE) / (shift or 1.0))
    if shift is not None:
        return gaussian
    sample = transformers.AmplificationBySampling(PoissonSampling=True)
    return sample(gaussian, probability, improved_bound_flag=True)


accountant.register(AutodpAccountant())
