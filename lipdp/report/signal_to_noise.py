"""Signal-to-noise ratio of an update, from the bounds of a model and the noise of a plan."""

import math
from typing import Any

from lipdp import checks, strategies


def signal_to_noise(model: Any, *, noise_multiplier: float, batch_size: int, strategy: Any = "clipless") -> dict:
    """Returns the signal-to-noise ratio that a model can reach, from its bounds alone: no data are read.

    Args:
        model: a compiled `DP_Model` or `DP_Sequential`.
        noise_multiplier: of the plan, above 0.
        batch_size: expected batch size B, at least 1.
        strategy: as in `fit`.

    Returns:
        A dict with `"aligned"`, the ratio of the longest possible averaged gradient (all examples pull in one
        direction at their bound) to the expected length of the noise; `"independent"`, the same when the examples
        of a batch pull in independent directions, sqrt(B) times less; and `"variables"`, both for each trainable
        variable with its gradient bound, its noise and its size. A ratio is None where there is no noise.

    Raises:
        ValueError: when the model is not compiled, has no bounds, or an argument is out of range.

    Example:
        >>> import lipdp
        >>> from lipdp import layers, losses
        >>> model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(3)])
        >>> model.compile(loss=losses.SparseCategoricalCrossentropy())
        >>> ratio = signal_to_noise(model, noise_multiplier=2.0, batch_size=120)
        >>> round(ratio["aligned"], 2), round(ratio["independent"], 2)  # 120 / (2 sqrt(12)), 12 weights
        (17.32, 1.58)
    """
    noise = checks.positive("noise_multiplier", noise_multiplier)
    batch_size = checks.integer("batch_size", batch_size, minimum=1)
    if not getattr(model, "compiled", False) or model.loss is None:
        raise ValueError("The bounds start at the loss. Call `compile(optimizer, loss=...)` first.")
    calibration = strategies.get(strategy).calibrate(model, model.loss, batch_size)
    rows, signal, total = [], 0.0, 0.0
    for variable, std in zip(model.trainable_variables, calibration.noise_std, strict=True):
        bound = calibration.bounds.gradient(variable)
        length = noise * std * math.sqrt(math.prod(variable.shape))
        signal, total = signal + bound**2, total + length**2
        facts = {"variable": variable.path, "size": math.prod(variable.shape), "gradient_bound": bound}
        rows.append({**facts, "noise_std": noise * std, **_ratios(bound, length, batch_size)})
    return {**_ratios(math.sqrt(signal), math.sqrt(total), batch_size), "variables": rows}


def _ratios(signal: float, noise: float, batch_size: int) -> dict:
    if noise == 0.0:
        return {"aligned": None, "independent": None}
    return {"aligned": signal / noise, "independent": signal / noise / math.sqrt(batch_size)}
