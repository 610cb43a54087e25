"""Matrix products: Dense, EinsumDense, SpectralDense; with what `enable_lora` adds, two products more."""

import math
import string

import keras
from keras import ops

from lipdp import _keras, backend, layers
from lipdp.gradients.factors import MatrixLayout, Outer
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import adapted, additions, before_activation, bias, not_quantized


@rule(keras.layers.Dense, applies=not_quantized)
def dense(layer, call, tape, inputs, **kwargs):
    outputs, activation = before_activation(layer, call, inputs, **kwargs)
    scale, low_rank = additions(layer)

    def gradients(rows, g, inputs, low_rank):
        kernel = _keras.own_matrix(layer, "kernel")
        yield kernel, product(rows, inputs, g, kernel)
        if low_rank is not None:
            a, b = low_rank
            back, down = backend.made_once((ops.matmul(g, ops.transpose(b)), ops.matmul(inputs, a)))
            yield layer.lora_kernel_a, product(rows, inputs, scale * back, a)
            yield layer.lora_kernel_b, product(rows, down, scale * g, b)
        if layer.bias is not None:
            yield bias(rows, g, layer.bias)

    return activation(tape.tap(outputs, (inputs, low_rank), gradients))


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


def _covered(layer) -> bool:
    letters = _einsum(layer) if not_quantized(layer) else None
    # Low-rank additions split the last axis of the kernel off: it must be one of the output alone.
    return letters is not None and (not adapted(layer) or letters[1][-1] in letters[-1])


@rule(keras.layers.EinsumDense, applies=_covered)
def einsum_dense(layer, call, tape, inputs, **kwargs):
    outputs, activation = before_activation(layer, call, inputs, **kwargs)
    scale, low_rank = additions(layer)
    letters = _einsum(layer)
    in_letters, kernel_letters, out_letters, places, groups, contracted, new = letters

    def gradients(rows, g, inputs, low_rank):
        kernel = _keras.own_matrix(layer, "kernel")
        yield kernel, _einsum_product(rows, inputs, g, kernel.shape, letters)
        if low_rank is not None:
            a, b = low_rank
            last, rank = kernel_letters[-1], next(c for c in string.ascii_letters if c not in layer.equation)
            # What the kernel's first half makes of the inputs, with the rank in the place of the last letter.
            middle = out_letters.replace(last, rank)
            first = (in_letters, kernel_letters[:-1] + rank, middle, places, groups, contracted)
            first = (*first, [c if c != last else rank for c in new])
            back = _spelled(ops.einsum, f"{out_letters},{rank}{last}->{middle}", g, b)
            down = _spelled(ops.einsum, f"{in_letters},{first[1]}->{middle}", inputs, a)
            back, down = backend.made_once((scale * back, down))
            yield layer.lora_kernel_a, _einsum_product(rows, inputs, back, a.shape, first)
            others = [c for c in middle if c != rank]
            second = (middle, rank + last, out_letters, others, [], [rank], [last])
            yield layer.lora_kernel_b, _einsum_product(rows, down, scale * g, b.shape, second)
        if layer.bias is not None:
            yield bias(rows, g, layer.bias)

    return activation(tape.tap(outputs, (inputs, low_rank), gradients))


def _spelled(einsum, equation, *operands):
    return einsum(equation.replace("\0", "..."), *operands)


def _einsum_product(rows, inputs, g, shape, letters):
    """Returns the factor of a kernel of this shape in a product that `_einsum` has split."""
    in_letters, kernel, out_letters, places, groups, contracted, new = letters

    def arrange(tensor, letters, last):
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

    sizes = dict(zip(kernel, shape, strict=True))

    def total(letters):
        return math.prod(sizes[c] for c in letters)

    matrix = ((total(groups),) if groups else ()) + (total(contracted), total(new))
    axes = [kernel.index(c) for c in [*groups, *contracted, *new]]
    layout = MatrixLayout(shape, None if axes == sorted(axes) else axes, matrix)
    return Outer(arrange(inputs, in_letters, contracted), arrange(g, out_letters, new), layout)
