"""What the networks share: where an image enters, and where logits leave."""

import keras

from lipdp import layers
from lipdp.model import DP_Model


def entrance(input_shape, input_norm: float, centred: bool):
    """The input and the image after centring and clipping to the ball."""
    inputs = keras.Input(tuple(input_shape))
    x = layers.LayerCentering()(inputs) if centred else inputs
    return inputs, layers.BoundedInput(norm=input_norm)(x)


def narrowed(x, norm: float | None):
    """A tighter ball inside the network: less noise behind it, and no certificate beyond it is lost."""
    return x if norm is None else layers.BoundedInput(norm=norm)(x)


def biased(x, bias: bool):
    return layers.Bias()(x) if bias else x


def dense(x, units: int, bias: bool):
    return layers.Abs()(biased(layers.SpectralDense(units)(x), bias))


def convolved(x, filters: int, kernel_size, bias: bool, strides=1):
    return layers.Abs()(biased(layers.SpectralConv2D(filters, kernel_size, strides=strides)(x), bias))


def finished(inputs, x, classes: int, bias: bool, name: str) -> DP_Model:
    """The model that ends in a dense layer of logits."""
    return DP_Model(inputs, biased(layers.SpectralDense(classes, name="logits")(x), bias), name=name)
