"""Clipless DP-SGD: noise calibrated to propagated bounds, nothing clipped per example."""

import math

import keras

from lipdp import bounds
from lipdp.strategies.base import Calibration, Strategy

ALLOCATIONS = ("global", "per_layer", "optimal")


@keras.saving.register_keras_serializable(package="lipdp")
class Clipless(Strategy):
    """Trains on the ordinary gradient of a Lipschitz network.

    Args:
        noise: How the noise is shared between variables of gradient bound `D_i` and size `d_i`.
            `"global"`: the same standard deviation everywhere, in proportion to `sqrt(sum D_i^2)`.
            `"per_layer"`: `sqrt(n) D_i` for n variables. `"optimal"`: the split of least total energy,
            `s_i^2 = (sum_j D_j sqrt(d_j)) D_i / sqrt(d_i)`.

    Guarantee:
        With per-example gradients bounded by `D_i / B` after division by the constant B, the variables
        divided by `s_i` form one vector of sensitivity `sqrt(sum (D_i / s_i)^2) / B = 1 / B` under
        adding or removing one example, so one update is one Gaussian mechanism of the plan's noise
        multiplier, whatever the split. Source: Bethune et al. 2024, section 3; the least-energy split
        by a Lagrange multiplier (d/ds_i of `d_i s_i^2 + l D_i^2 / s_i^2`). Not covered: losses without
        a Lipschitz constant and layers without bounds, which are refused.

    Example:
        >>> from lipdp import strategies
        >>> strategies.Clipless(noise="optimal").get_config()
        {'noise': 'optimal'}
    """

    name = "clipless"

    def __init__(self, noise: str = "global"):
        if noise not in ALLOCATIONS:
            raise ValueError(f"`noise` must be one of {ALLOCATIONS}. Received: noise={noise!r}.")
        self.noise = noise

    def calibrate(self, model, loss, batch_size: int) -> Calibration:
        propagated = bounds.propagate(model, loss.lipschitz(model.output_shape[-1]))
        variables = model.trainable_variables
        sensitivities = [propagated.gradient(v) / batch_size for v in variables]
        sizes = [math.prod(v.shape) for v in variables]
        total = math.sqrt(sum(s * s for s in sensitivities))
        return Calibration(allocate(sensitivities, sizes, self.noise), total, propagated)

    def get_config(self) -> dict:
        return {"noise": self.noise}


def allocate(sensitivities, sizes, noise: str) -> tuple[float, ...]:
    """Splits noise of multiplier 1 between variables: `sum (sensitivity / std)^2 = 1`.

    Args:
        sensitivities: One L2 sensitivity per variable, >= 0.
        sizes: Number of entries of each variable.
        noise: One of `ALLOCATIONS`.

    Returns:
        One standard deviation per variable. A variable of sensitivity 0 gets 0 under `"per_layer"` and
        `"optimal"`: it carries nothing about the data.
    """
    if noise == "global":
        return (math.sqrt(sum(s * s for s in sensitivities)),) * len(sensitivities)
    if noise == "per_layer":
        used = sum(s > 0 for s in sensitivities)
        return tuple(math.sqrt(used) * s for s in sensitivities)
    energy = math.sqrt(sum(s * math.sqrt(d) for s, d in zip(sensitivities, sizes, strict=True)))
    return tuple(energy * math.sqrt(s) / d**0.25 for s, d in zip(sensitivities, sizes, strict=True))
