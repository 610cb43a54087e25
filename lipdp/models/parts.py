"""Parts that the networks share: the input, blocks of layers, the model around them."""

from typing import Any

import keras

from lipdp import checks, layers
from lipdp.model import DP_Model


def image_input(input_shape: tuple[int, ...], input_norm: float, centered: bool) -> Any:
    """Returns the input tensor and the image, centered on request and clipped to the ball."""
    inputs = keras.Input(tuple(input_shape))
    x = layers.LayerCentering()(inputs) if checks.boolean("centered", centered) else inputs
    return inputs, layers.BoundedInput(norm=checks.between("input_norm", input_norm, 1e-6, 1e6))(x)


def inner_ball(x: Any, inner_norm: float | None) -> Any:
    """Returns features clipped to a smaller ball: less noise in the layers after it, and certificates still hold."""
    inner_norm = checks.between("inner_norm", inner_norm, 1e-6, 1e6, optional=True)
    return x if inner_norm is None else layers.BoundedInput(norm=inner_norm)(x)


def add_bias(x: Any, bias: bool) -> Any:
    return layers.Bias()(x) if checks.boolean("bias", bias) else x


def dense(x: Any, units: int, bias: bool) -> Any:
    return layers.Abs()(add_bias(layers.SpectralDense(units)(x), bias))


def conv(
    x: Any, filters: int, kernel_size: int | tuple[int, ...], bias: bool, strides: int | tuple[int, ...] = 1
) -> Any:
    return layers.Abs()(add_bias(layers.SpectralConv2D(filters, kernel_size, strides=strides)(x), bias))


def logits_model(inputs: Any, x: Any, classes: int, bias: bool, name: str) -> DP_Model:
    """Returns the model that ends in a dense layer of logits."""
    logits = layers.SpectralDense(checks.integer("classes", classes, 1), name="logits")(x)
    return DP_Model(inputs, add_bias(logits, bias), name=name)
