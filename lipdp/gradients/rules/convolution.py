"""Convolutions: Conv1D, Conv2D, Conv3D, StandardizedConv2D, SpectralConv2D, OrthogonalConv2D."""

import math

import keras
from keras import ops

from lipdp import layers
from lipdp.gradients.factors import Whole
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import before_activation, bias, plain
from lipdp.gradients.unfolding import Geometry, grouped_factor, kernel_factor
from lipdp.layers import standardized
from lipdp.layers.orthogonal_convolution import directions, shifted


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

    def gradients(rows, g, inputs):
        yield layer.kernel, _kernel_factor(layer, rows, g, inputs)
        if layer.bias is not None:
            yield bias(rows, channels_last(layer, g), layer.bias)

    return activation(tape.tap(outputs, (inputs,), gradients))


@rule(layers.StandardizedConv2D, applies=plain)
def standardized_convolution(layer, call, tape, inputs):
    refuse_unknown(layer, inputs)
    outputs, activation = before_activation(layer, call, inputs)

    def gradients(rows, g, inputs, kernel, gain):
        # Of what is convolved with: the gradients of kernel and gain follow from it, one filter at a time.
        whole = ops.cast(_kernel_factor(layer, rows, g, inputs).whole(), "float32")
        direction, inverse, turns = standardized.directions(kernel)
        along = ops.sum(whole * direction, axis=(1, 2, 3), keepdims=True)
        # Below the floor of its norm a filter is divided by a constant.
        turned = ops.where(turns, whole - along * direction, whole)
        turned = turned - ops.mean(turned, axis=(1, 2, 3), keepdims=True)
        yield layer.kernel, Whole(turned * (ops.cast(gain, "float32") * inverse))
        yield layer.gain, Whole(along[:, 0, 0, 0])
        if layer.bias is not None:
            yield bias(rows, channels_last(layer, g), layer.bias)

    saved = (inputs, ops.convert_to_tensor(layer.kernel), ops.convert_to_tensor(layer.gain))
    return activation(tape.tap(outputs, saved, gradients))


def _kernel_factor(layer, rows, g, inputs):
    """Returns the factor of the kernel that a Keras convolution convolves with."""
    g, image = channels_last(layer, g), channels_last(layer, inputs)
    where, shape = geometry(layer, layer.padding), tuple(layer.kernel.shape)
    if layer.groups == 1:
        return kernel_factor(rows, image, g, where, shape)
    return grouped_factor(rows, image, g, where, shape, layer.groups)


@rule(layers.SpectralConv2D)
def spectral_convolution(layer, call, tape, inputs):
    scale = 1.0 / math.sqrt(layer.multiplicity)
    pads = None if layer.padding == "same" else ((0, 0), (0, 0))
    where = Geometry(layer.kernel_size, layer.strides, layer.dilation_rate, pads)
    shape = tuple(layer.kernel.shape)

    def gradients(rows, g, inputs):
        yield layer.kernel, kernel_factor(rows, inputs, g * scale, where, shape)

    return tape.tap(call(inputs), (inputs,), gradients)


@rule(layers.OrthogonalConv2D)
def orthogonal_convolution(layer, call, tape, inputs):
    pads = None if layer.padding == "same" else ((0, 0), (0, 0))
    where = Geometry(layer.kernel_size, (1, 1), (1, 1), pads)
    shape = (*layer.kernel_size, inputs.shape[-1], layer.filters)

    def gradients(rows, g, inputs, factors):
        whole = kernel_factor(rows, layer.continued(inputs), layer.scale * g, where, shape).whole()
        for variable, gradient in zip(layer.factors, _of_factors(factors, layer.kernel_size, whole), strict=True):
            yield variable, Whole(gradient)

    return tape.tap(call(inputs), (inputs, [ops.convert_to_tensor(f) for f in layer.factors]), gradients)


def _of_factors(factors, kernel_size, gradients):
    """Returns the gradients of the factors of a kernel from those of the kernel, `(batch, a, b, channels, filters)`."""
    kernels, axes = [ops.reshape(factors[0], (1, 1, *factors[0].shape))], directions(kernel_size)
    for axis, factor in zip(axes, factors[1:], strict=True):
        kernels.append(shifted(kernels[-1], axis))
        kernels.append(ops.matmul(kernels[-1], factor))
    batch, found = ops.shape(gradients)[0], []
    for axis, factor in zip(reversed(axes), reversed(factors[1:]), strict=True):
        kernels.pop()
        moved = kernels.pop()
        width, outputs = factor.shape
        flat = ops.reshape(gradients, (batch, -1, outputs))
        found.append(ops.matmul(ops.transpose(ops.reshape(moved, (-1, width))), flat))
        gradients = ops.reshape(ops.matmul(flat, ops.transpose(factor)), (batch, *moved.shape))
        # Each half goes back to where it was moved from.
        first, second = [slice(None)] * 4, [slice(None)] * 4
        first[axis + 1], second[axis + 1] = slice(None, -1), slice(1, None)
        half = width // 2
        gradients = ops.concatenate([gradients[(*first, slice(half))], gradients[(*second, slice(half, None))]], -1)
    found.append(ops.reshape(gradients, (batch, *factors[0].shape)))
    return reversed(found)
