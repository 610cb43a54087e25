"""Depthwise and separable convolutions."""

import keras
from keras import ops

from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import before_activation, bias, plain
from lipdp.gradients.rules.convolution import channels_last, geometry, refuse_unknown
from lipdp.gradients.unfolding import Geometry, depthwise_factor, kernel_factor


@rule(keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D, applies=plain)
def depthwise(layer, call, tape, inputs):
    refuse_unknown(layer, inputs)
    outputs, activation = before_activation(layer, call, inputs)

    def gradients(rows, g, inputs):
        g, image = channels_last(layer, g), channels_last(layer, inputs)
        where = geometry(layer, layer.padding)
        yield layer.kernel, depthwise_factor(rows, image, g, where, tuple(layer.kernel.shape))
        if layer.bias is not None:
            yield bias(rows, g, layer.bias)

    return activation(tape.tap(outputs, (inputs,), gradients))


@rule(keras.layers.SeparableConv1D, keras.layers.SeparableConv2D, applies=plain)
def separable(layer, call, tape, inputs):
    refuse_unknown(layer, inputs)
    where = geometry(layer, layer.padding)
    middle = ops.depthwise_conv(
        inputs, layer.depthwise_kernel, layer.strides, layer.padding, layer.data_format, layer.dilation_rate
    )

    def depthwise_gradients(rows, g, image):
        g, image = channels_last(layer, g), channels_last(layer, image)
        kernel = layer.depthwise_kernel
        yield kernel, depthwise_factor(rows, image, g, where, tuple(kernel.shape))

    middle = tape.tap(middle, (inputs,), depthwise_gradients)
    ones = (1,) * layer.rank
    outputs = ops.conv(middle, layer.pointwise_kernel, strides=1, padding="valid", data_format=layer.data_format)
    if layer.bias is not None:
        shape = (-1,) if layer.data_format == "channels_last" else (-1, *ones)
        outputs = outputs + ops.reshape(layer.bias, shape)

    def pointwise_gradients(rows, g, middle):
        g, middle = channels_last(layer, g), channels_last(layer, middle)
        kernel = layer.pointwise_kernel
        point = Geometry(ones, ones, ones, ((0, 0),) * layer.rank)
        yield kernel, kernel_factor(rows, middle, g, point, tuple(kernel.shape))
        if layer.bias is not None:
            yield bias(rows, g, layer.bias)

    outputs = tape.tap(outputs, (middle,), pointwise_gradients)
    return outputs if layer.activation is None else layer.activation(outputs)
