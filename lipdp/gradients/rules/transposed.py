"""Transposed convolutions: Conv1DTranspose, Conv2DTranspose, Conv3DTranspose.

`conv_transpose(x)` is the derivative of a convolution from large images to small ones. The gradient of its kernel is
that of this convolution, with the cotangent of the large image in the place of the input and x in the place of the
cotangent.
"""

import keras

from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import before_activation, bias, plain
from lipdp.gradients.rules.convolution import channels_last
from lipdp.gradients.unfolding import Geometry, kernel_factor


def _padding(k, s, d, padding, extra, size, large):
    """(before, after) of the convolution from `large` places to `size`: what Keras' transpose cuts off."""
    reach = (k - 1) * d + 1
    if padding == "valid":
        before = 0
    else:
        # Keras documents the transpose in the terms of JAX: `length` zeros around the dilated image.
        length = s + reach - 2 if extra is None else reach + reach % 2 - 2 + extra
        before = reach - 1 - min(length // 2 + length % 2, reach - 1)
    return before, (size - 1) * s + reach - before - large


@rule(keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose, applies=plain)
def transposed(layer, call, tape, inputs):
    outputs, activation = before_activation(layer, call, inputs)
    shape = tuple(layer.kernel.shape)  # (*kernel, outputs, inputs)

    def gradients(rows, g, inputs):
        g, small = channels_last(layer, g), channels_last(layer, inputs)
        if any(n is None for n in (*small.shape[1:-1], *g.shape[1:-1])):
            raise ValueError(
                f"Layer '{layer.name}' cuts off an amount that depends on the size of its input. Received: input shape "
                f"{tuple(inputs.shape)}. Give the model's input a full shape."
            )
        extra = layer.output_padding
        if extra is None or isinstance(extra, int):
            extra = (extra,) * layer.rank
        sizes = zip(
            layer.kernel_size, layer.strides, layer.dilation_rate, extra, small.shape[1:-1], g.shape[1:-1], strict=True
        )
        pads = tuple(_padding(k, s, d, layer.padding, e, n, m) for k, s, d, e, n, m in sizes)
        where = Geometry(tuple(layer.kernel_size), tuple(layer.strides), tuple(layer.dilation_rate), pads)
        yield layer.kernel, kernel_factor(rows, g, small, where, shape)
        if layer.bias is not None:
            yield bias(rows, g, layer.bias)

    return activation(tape.tap(outputs, (inputs,), gradients))
