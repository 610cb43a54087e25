"""Matrix products: Dense, EinsumDense, SpectralDense."""

import math

import keras
from keras import ops

from lipdp import layers
from lipdp.gradients.factors import MatrixLayout, Outer
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import before_activation, bias, plain


@rule(keras.layers.Dense, applies=plain)
def dense(layer, call, tape, inputs, **kwargs):
    outputs, activation = before_activation(layer, call, inputs, **kwargs)

    def gradients(rows, g, inputs):
        yield layer.kernel, product(rows, inputs, g, layer.kernel)
        if layer.bias is not None:
            yield bias(rows, g, layer.bias)

    return activation(tape.tap(outputs, (inputs,), gradients))


@rule(layers.SpectralDense)
def spectral_dense(layer, call, tape, inputs):
    def gradients(rows, g, inputs):
        yield layer.kernel, product(rows, inputs, g, layer.kernel)

    return tape.tap(call(inputs), (inputs,), gradients)


def product(rows, inputs, g, kernel):
    """Returns the factor of `kernel` in `inputs @ kernel`."""
    return Outer(rows.positions(inputs), rows.positions(g), MatrixLayout(kernel.shape))


def _einsum(layer):
    """Splits the letters of an equation by their role; None where no product of matrices is behind it.

    Returns:
        The letters of input, kernel and output (an ellipsis becomes one letter), and the letters that are batch or
        position, groups (each with a matrix of its own), contracted, and new. Keras puts the batch first.
    """
    inputs, rest = layer.equation.replace(" ", "").split(",")
    kernel, outputs = rest.split("->")
    inputs, outputs = inputs.replace("...", "\0"), outputs.replace("...", "\0")
    if any(len(set(t)) != len(t) for t in (inputs, kernel, outputs)) or "..." in kernel:
        return None
    if set(inputs) - set(kernel) - set(outputs) or set(kernel) - set(inputs) - set(outputs):
        return None  # a letter that is summed on its own
    places = [c for c in inputs if c not in kernel]
    groups = [c for c in inputs if c in kernel and c in outputs]
    contracted = [c for c in inputs if c in kernel and c not in outputs]
    new = [c for c in outputs if c in kernel and c not in inputs]
    if not places or outputs[0] != places[0] or inputs[0] != places[0]:
        return None
    return inputs, kernel, outputs, places, groups, contracted, new


@rule(keras.layers.EinsumDense, applies=lambda layer: plain(layer) and _einsum(layer) is not None)
def einsum_dense(layer, call, tape, inputs, **kwargs):
    outputs, activation = before_activation(layer, call, inputs, **kwargs)
    in_letters, kernel, out_letters, places, groups, contracted, new = _einsum(layer)

    def arrange(rows, tensor, letters, last):
        extra = len(tensor.shape) - len(letters)  # what an ellipsis stands for, less one
        starts, start = {}, 0
        for c in letters:
            width = 1 + extra if c == "\0" else 1
            starts[c], start = list(range(start, start + width)), start + width
        order = [axis for c in [*places, *groups, *last] for axis in starts[c]]
        if order != sorted(order):
            tensor = ops.transpose(tensor, order)
        inner = len(groups) + len(last)
        tensor = rows.positions(tensor, inner)
        size = math.prod(tensor.shape[2 + len(groups) :])
        if not groups:
            return ops.reshape(tensor, (*ops.shape(tensor)[:2], size))
        count = math.prod(tensor.shape[2 : 2 + len(groups)])
        tensor = ops.reshape(tensor, (*ops.shape(tensor)[:2], count, size))
        return ops.transpose(tensor, (0, 2, 1, 3))

    def gradients(rows, g, inputs):
        shape = tuple(layer.kernel.shape)
        sizes = dict(zip(kernel, shape, strict=True))

        def total(letters):
            return math.prod(sizes[c] for c in letters)

        matrix = ((total(groups),) if groups else ()) + (total(contracted), total(new))
        axes = [kernel.index(c) for c in [*groups, *contracted, *new]]
        layout = MatrixLayout(shape, None if axes == sorted(axes) else axes, matrix)
        a = arrange(rows, inputs, in_letters, contracted)
        yield layer.kernel, Outer(a, arrange(rows, g, out_letters, new), layout)
        if layer.bias is not None:
            yield bias(rows, g, layer.bias)

    return activation(tape.tap(outputs, (inputs,), gradients))
