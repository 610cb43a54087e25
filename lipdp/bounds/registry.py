"""Who answers for a layer: the layer itself, or an entry here by type."""

from collections.abc import Callable
from dataclasses import dataclass

import keras

from lipdp.layers.base import LipschitzLayer, times

Norms = tuple[float, ...]


@dataclass(frozen=True)
class Answers:
    """The answers of one layer, as functions of norm bounds (see `LipschitzLayer`).

    `cotangent_bounds` is for layers whose backward pass is not the derivative of the forward pass; without it the
    cotangent is multiplied by `input_lipschitz`.
    """

    output_bound: Callable[[Norms], float]
    input_lipschitz: Callable[[Norms], Norms]
    parameter_bounds: Callable[[Norms, float], Norms]
    trained_lipschitz: Callable[[Norms], Norms]
    cotangent_bounds: Callable[[Norms, float], Norms] | None = None


_ENTRIES: dict[type, Callable] = {}
_REPLACEMENTS: dict[str, str] = {
    "Dense": "lipdp.layers.SpectralDense, followed by lipdp.layers.Bias and lipdp.layers.Abs",
    **{
        kind: f"lipdp.layers.Spectral{kind}, followed by lipdp.layers.Bias and lipdp.layers.Abs"
        for kind in (
            *("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D"),
            *("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        )
    },
    "Embedding": "lipdp.layers.BoundedEmbedding",
    "SeparableConv2D": "lipdp.layers.SpectralDepthwiseConv2D, then lipdp.layers.SpectralConv2D with kernel size 1",
    "BatchNormalization": "lipdp.layers.LayerCentering (batch statistics mix examples)",
    "LayerNormalization": "lipdp.layers.LayerCentering (division by a variance is not Lipschitz)",
    "GroupNormalization": "lipdp.layers.LayerCentering (division by a variance is not Lipschitz)",
    "RMSNormalization": "lipdp.layers.BoundedInput",
    "UnitNormalization": "lipdp.layers.BoundedInput",
    "Normalization": "keras.layers.Rescaling with public constants",
    "PReLU": "lipdp.layers.Abs",
    "Multiply": "lipdp.layers.Add (a product is not Lipschitz)",
    "Lambda": "a layer with bounds: subclass lipdp.layers.LipschitzLayer",
}


def register(layer_type: type, entry: Callable | None = None):
    """Declares the bounds of a layer type that cannot carry them itself.

    Args:
        layer_type: A `keras.layers.Layer` class. The exact type is matched: a subclass may compute
            something else, so it does not inherit the entry.
        entry: Function of one layer instance. It returns a float, the Lipschitz constant of a
            parameter-free layer that maps zero to zero, or a full `Answers`; it raises `ValueError` for
            a configuration without a bound. Without it, `register` is a decorator.

    Example:
        >>> import keras
        >>> from lipdp import bounds
        >>> class Half(keras.layers.Layer):
        ...     def call(self, inputs):
        ...         return 0.5 * inputs
        >>> bounds.register(Half, lambda layer: 0.5)
        >>> bounds.answers(Half()).output_bound((4.0,))
        2.0
    """
    if entry is None:
        return lambda function: register(layer_type, function) or function
    _ENTRIES[layer_type] = entry
    return None


def answers(layer) -> Answers:
    """The answers of a layer or operation.

    Raises:
        ValueError: nobody answers for it; the message names it and what to use instead.
    """
    if isinstance(layer, LipschitzLayer):
        return Answers(
            layer.output_bound,
            layer.input_lipschitz,
            layer.parameter_bounds,
            layer.trained_lipschitz,
            layer.cotangent_bounds,
        )
    entry = _ENTRIES.get(type(layer))
    if entry is None:
        raise ValueError(_unknown(layer))
    answer = entry(layer)
    if isinstance(answer, Answers):
        return answer
    constant = float(answer)
    return parameter_free(lambda bounds: (constant,) * len(bounds))


def parameter_free(lipschitz: Callable[[Norms], Norms], output_bound: Callable | None = None) -> Answers:
    """Answers of a layer without parameters; by default it maps zero to zero and adds over its inputs."""

    def added(bounds):
        return sum(times(c, x) for c, x in zip(lipschitz(bounds), bounds, strict=True))

    return Answers(output_bound or added, lipschitz, lambda bounds, cotangent: (), lipschitz)


def _unknown(layer) -> str:
    kind = type(layer).__name__
    is_layer = isinstance(layer, keras.layers.Layer)
    name = f"Layer '{layer.name}' of type {kind}" if is_layer else f"Operation '{kind}'"
    default = (
        "a layer of lipdp.layers, or declare a proven bound with lipdp.bounds.register"
        if is_layer
        else "the layer of lipdp.layers that does the same (raw operations carry no bound)"
    )
    return (
        f"{name} has no sensitivity bound, so it cannot be part of a private model. "
        f"Use instead: {_REPLACEMENTS.get(kind, default)}."
    )
