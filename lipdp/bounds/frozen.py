"""Frozen layers without a bound, for backbones in front of everything that trains."""

import keras
from keras import layers

from lipdp import _keras
from lipdp.bounds.registry import BoundRules
from lipdp.isolation import stock_activation
from lipdp.layers.standardized import StandardizedConv2D

# Layers that treat each example on its own, whatever their weights. Batch statistics, dropout and random augmentation
# are not among them; a frozen BatchNormalization is, because Keras runs it with its moving averages.
_PER_EXAMPLE = {
    *(layers.Dense, layers.Embedding),
    *(layers.Conv1D, layers.Conv2D, layers.Conv3D, StandardizedConv2D),
    *(layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose),
    *(layers.DepthwiseConv1D, layers.DepthwiseConv2D, layers.SeparableConv1D, layers.SeparableConv2D),
    *(layers.BatchNormalization, layers.LayerNormalization, layers.GroupNormalization, layers.RMSNormalization),
    *(layers.UnitNormalization, layers.Normalization, layers.PReLU, layers.Activation, layers.Multiply),
    *(layers.AveragePooling1D, layers.AveragePooling2D, layers.AveragePooling3D),
}

_ALONG_AXES = (layers.LayerNormalization, layers.RMSNormalization, layers.UnitNormalization)


def frozen(layer: keras.layers.Layer, refusal: ValueError) -> BoundRules | None:
    """Returns the bounds of a frozen layer that is known to keep examples apart: no constant, nothing to protect.

    Its output is unbounded, so that a `BoundedInput` has to follow before anything trains, and no cotangent can
    pass it, so that nothing trainable can stand in front of it. Its weights must be public.
    """
    if type(layer) not in _PER_EXAMPLE or layer.trainable_variables:
        return None
    if isinstance(layer, layers.BatchNormalization) and layer.trainable:
        return None
    if isinstance(layer, _ALONG_AXES) and not _keeps_apart(layer):
        return None
    if hasattr(layer, "activation") and not stock_activation(layer.activation):
        return None

    def trained(bounds):
        raise refusal

    return BoundRules(
        lambda bounds: float("inf"),
        lambda bounds: (float("inf"),) * len(bounds),
        lambda bounds, cotangent: (),
        trained,
        refusal=refusal,
    )


def _keeps_apart(layer) -> bool:
    """Whether no axis that is normalized over is the one of the batch."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    ranks = {len(shape) for shape in _keras.input_shapes(layer)}
    return all(axis % rank for axis in axes for rank in ranks)
