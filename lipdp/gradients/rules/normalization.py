"""Scales and shifts: normalizations inside an example, PReLU, Bias, Weight."""

import math

import keras
from keras import ops

from lipdp import layers
from lipdp.gradients.factors import Whole
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import bias, without
from lipdp.layers.base import positions


def affine(tape, normalized, scale, shift, shape, offset: float = 0.0):
    """`normalized * (offset + scale) + shift`, both broadcast in `shape`, recorded."""
    outputs = normalized
    if scale is not None:
        factor = ops.reshape(scale, shape)
        outputs = outputs * ops.cast(offset + factor if offset else factor, outputs.dtype)
    if shift is not None:
        outputs = outputs + ops.cast(ops.reshape(shift, shape), outputs.dtype)

    def gradients(rows, g, normalized):
        for variable, product in ((scale, lambda: normalized * g), (shift, lambda: g)):
            if variable is not None:
                summed = rows.summed(product(), shape)
                yield variable, Whole(ops.reshape(summed, (-1, *variable.shape)))

    return tape.tap(outputs, (normalized,), gradients)


@rule(keras.layers.LayerNormalization)
def layer_normalization(layer, call, tape, inputs):
    axes = [axis % len(inputs.shape) for axis in layer.axis]
    shape = tuple(inputs.shape[k] if k in axes else 1 for k in range(1, len(inputs.shape)))
    with without(layer, "gamma", "beta"):
        normalized = call(inputs)
    return affine(tape, normalized, layer.gamma, layer.beta, shape)


@rule(keras.layers.RMSNormalization)
def rms_normalization(layer, call, tape, inputs):
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    axes = [axis % len(inputs.shape) for axis in axes]
    shape = tuple(inputs.shape[k] if k in axes else 1 for k in range(1, len(inputs.shape)))
    with without(layer, "scale"):
        normalized = call(inputs)
    return affine(tape, normalized, layer.scale, None, shape)


@rule(keras.layers.GroupNormalization)
def group_normalization(layer, call, tape, inputs):
    axis = layer.axis % len(inputs.shape)
    shape = tuple(inputs.shape[k] if k == axis else 1 for k in range(1, len(inputs.shape)))
    if axis == len(inputs.shape) - 1 and None not in inputs.shape[1:]:
        normalized = of_channels(inputs, layer.groups, layer.epsilon)
    else:
        with without(layer, "scale", "center"):
            normalized = call(inputs)
    return affine(tape, normalized, layer.gamma, layer.beta, shape)


def of_channels(inputs, groups: int, epsilon: float):
    """Returns what Keras' group normalization over the last axis does, before its scale.

    Places are summed for each channel first, and the channels of a group then: TensorFlow adds up both at once, and
    spreads what belongs to both, several times slower on a CPU.
    """
    *places, channels = inputs.shape[1:]
    flat = ops.cast(ops.reshape(inputs, (-1, math.prod(places), channels)), "float32")

    of_group = channels // groups
    share = ops.full((1, 1, of_group), 1.0 / (math.prod(places) * of_group))

    def mean(values):
        # Sums that keep their axes: in the gradients of others TensorFlow asks for shapes by tens of operations.
        found = ops.reshape(ops.sum(values, axis=1, keepdims=True), (-1, groups, of_group))
        found = ops.sum(found, axis=-1, keepdims=True) * share
        return ops.reshape(found, (-1, 1, channels))

    centered = flat - mean(flat)
    normalized = centered * ops.rsqrt(mean(ops.square(centered)) + epsilon)
    return ops.cast(ops.reshape(normalized, (-1, *places, channels)), inputs.dtype)


@rule(keras.layers.PReLU)
def prelu(layer, call, tape, inputs):
    def gradients(rows, g, inputs):
        yield bias(rows, -ops.relu(-inputs) * g, layer.alpha)

    return tape.tap(call(inputs), (inputs,), gradients)


@rule(layers.Bias)
def scaled_bias(layer, call, tape, inputs):
    scale = 1.0 / math.sqrt(positions(inputs.shape, layer))

    def gradients(rows, g):
        yield bias(rows, g * scale, layer.bias)

    return tape.tap(call(inputs), (), gradients)


@rule(layers.Weight)
def weight(layer, call, tape, inputs):
    def gradients(rows, g):
        yield bias(rows, g, layer.weight)

    return tape.tap(call(inputs), (), gradients)
