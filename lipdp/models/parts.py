"""Parts that the networks share: the input, blocks of layers, the model around them."""

import keras

from lipdp import checks, layers
from lipdp.model import DP_Model


def image_input(input_shape, input_norm: float, centered: bool):
    """Returns the input tensor and the image, centered on request and clipped to the ball."""
    inputs = keras.Input(tuple(input_shape))
    x = layers.LayerCentering()(inputs) if checks.boolean("centered", centered) else inputs
    return inputs, layers.BoundedInput(norm=checks.between("input_norm", input_norm, 1e-6, 1e6))(x)


def inner_ball(x, inner_norm: float | None):
    """Returns features clipped to a smaller ball: less noise in the layers after it, and certificates still hold."""
    inner_norm = checks.between("inner_norm", inner_norm, 1e-6, 1e6, optional=True)
    return x if inner_norm is None else layers.BoundedInput(norm=inner_norm)(x)


def add_bias(x, bias: bool):
    return layers.Bias()(x) if checks.boolean("bias", bias) else x


def dense(x, units: int, bias: bool):
    return layers.Abs()(add_bias(layers.SpectralDense(units)(x), bias))


def conv(x, filters: int, kernel_size, bias: bool, strides=1):
    return layers.Abs()(add_bias(layers.SpectralConv2D(filters, kernel_size, strides=strides)(x), bias))


def logits_model(inputs, x, classes: int, bias: bool, name: str) -> DP_Model:
    """Returns the model that ends in a dense layer of logits."""
    logits = layers.SpectralDense(checks.integer("classes", classes, 1), name="logits")(x)
    return DP_Model(inputs, add_bias(logits, bias), name=name)
