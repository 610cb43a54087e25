"""What the networks share: where an image enters, and where logits leave."""

from typing import Any

import keras

from lipdp import layers
from lipdp.model import DP_Model


def entrance(input_shape: tuple[int, ...], input_norm: float, centred: bool) -> tuple[Any, Any]:
    """The input and the image after centring and clipping to the ball."""
    inputs = keras.Input(tuple(input_shape))
    x = layers.LayerCentering()(inputs) if centred else inputs
    return inputs, layers.BoundedInput(norm=input_norm)(x)


def narrowed(x: Any, norm: float | None) -> Any:
    """A tighter ball inside the network: less noise behind it, and no certificate beyond it is lost."""
    return x if norm is None else layers.BoundedInput(norm=norm)(x)


def biased(x: Any, bias: bool) -> Any:
    return layers.Bias()(x) if bias else x


def dense(x: Any, units: int, bias: bool) -> Any:
    return layers.Abs()(biased(layers.SpectralDense(units)(x), bias))


def convolved(
    x: Any, filters: int, kernel_size: int | tuple[int, ...], bias: bool, strides: int | tuple[int, ...] = 1
) -> Any:
    return layers.Abs()(biased(layers.SpectralConv2D(filters, kernel_size, strides=strides)(x), bias))


def finished(inputs: Any, x: Any, classes: int, bias: bool, name: str) -> DP_Model:
    """The model that ends in a dense layer of logits."""
    return DP_Model(inputs, biased(layers.SpectralDense(classes, name="logits")(x), bias), name=name)
