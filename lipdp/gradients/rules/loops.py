"""TimeDistributed: the same layer at each time, without Keras' loop."""

import keras
from keras import ops

from lipdp import _keras
from lipdp.gradients.leaves import rule


@rule(keras.layers.TimeDistributed)
def time_distributed(layer, call, tape, inputs, training=None, mask=None):
    """Time joins the batch: the rows of one example stay together, which is all that the inner rules need."""
    inner, steps, size = layer.layer, inputs.shape[1], ops.shape(inputs)
    kwargs = {}
    if _keras.takes(inner, "mask") and mask is not None:
        kwargs["mask"] = ops.reshape(mask, (-1, *ops.shape(mask)[2:]))
    if _keras.takes(inner, "training"):
        kwargs["training"] = training
    before = tape.rows
    tape.rows = before.times(steps)
    try:
        outputs = inner.call(ops.reshape(inputs, (-1, *size[2:])), **kwargs)
    finally:
        tape.rows = before
    return ops.reshape(outputs, (-1, steps or size[1], *ops.shape(outputs)[1:]))
