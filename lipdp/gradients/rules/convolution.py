"""Convolutions: Conv1D, Conv2D, Conv3D, SpectralConv2D."""

import math

import keras
from keras import ops

from lipdp import layers
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import before_activation, bias, plain
from lipdp.gradients.unfolding import Geometry, grouped_factor, kernel_factor


def geometry(layer, padding: str) -> Geometry:
    """Returns the geometry of a Keras convolution with `padding` of "same", "valid" or "causal"."""
    kernel, dilation = tuple(layer.kernel_size), tuple(layer.dilation_rate)
    pads = None
    if padding == "valid":
        pads = ((0, 0),) * len(kernel)
    elif padding == "causal":
        pads = ((dilation[0] * (kernel[0] - 1), 0),)
    return Geometry(kernel, tuple(layer.strides), dilation, pads)


def channels_last(layer, tensor):
    if layer.data_format == "channels_last":
        return tensor
    return ops.transpose(tensor, (0, *range(2, len(tensor.shape)), 1))


def known(layer, inputs) -> bool:
    """Whether the padding can be computed: "same" with strides depends on the size of the image."""
    spatial = inputs.shape[1:-1] if layer.data_format == "channels_last" else inputs.shape[2:]
    return layer.padding != "same" or max(layer.strides) == 1 or all(n is not None for n in spatial)


def refuse_unknown(layer, inputs) -> None:
    if not known(layer, inputs):
        raise ValueError(
            f"Layer '{layer.name}' pads by an amount that depends on the size of its input. Received: input shape "
            f"{tuple(inputs.shape)}. Give the model's input a full shape, or use padding='valid'."
        )


@rule(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D, applies=plain)
def convolution(layer, call, tape, inputs):
    refuse_unknown(layer, inputs)
    outputs, activation = before_activation(layer, call, inputs)
    shape = tuple(layer.kernel.shape)

    def gradients(rows, g, inputs):
        g, image = channels_last(layer, g), channels_last(layer, inputs)
        where = geometry(layer, layer.padding)
        if layer.groups == 1:
            yield layer.kernel, kernel_factor(rows, image, g, where, shape)
        else:
            yield layer.kernel, grouped_factor(rows, image, g, where, shape, layer.groups)
        if layer.bias is not None:
            yield bias(rows, g, layer.bias)

    return activation(tape.tap(outputs, (inputs,), gradients))


@rule(layers.SpectralConv2D)
def spectral_convolution(layer, call, tape, inputs):
    scale = 1.0 / math.sqrt(layer.multiplicity)
    pads = None if layer.padding == "same" else ((0, 0), (0, 0))
    where = Geometry(layer.kernel_size, layer.strides, layer.dilation_rate, pads)
    shape = tuple(layer.kernel.shape)

    def gradients(rows, g, inputs):
        yield layer.kernel, kernel_factor(rows, inputs, g * scale, where, shape)

    return tape.tap(call(inputs), (inputs,), gradients)
