"""What `tf.vectorized_map` computes wrongly: products of matrices with batch axes, rolls, padding."""

import contextlib
import functools
import threading
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

# How TensorFlow vectorizes each operation; private, so it may be gone one day.
_CONVERTERS = getattr(pfor, "_pfor_converter_registry", {})
_LOCK = threading.RLock()


@contextlib.contextmanager
def own_converters() -> Iterator[None]:
    """Has `tf.vectorized_map` take `product` for products of matrices, roll within rows only, and pad with constants.

    On CPUs TensorFlow 2.21 reads past the end of a matrix that stands for all of several batch axes, gives what it
    finds there as the result, and may crash (its issue 117700). One row at a time turns `x @ kernel`, for x of shape
    (batch, steps, channels), into such a product.

    It counts the axis of a roll from the front also where it is negative, so that `roll(x, 1, axis=-1)` of each row
    moves whole rows into others. And it pads with zeros, whatever the constant is.
    """
    with _LOCK:
        before = {name: _CONVERTERS[name] for name in _OWN if name in _CONVERTERS}
        _CONVERTERS.update({name: functools.partial(_OWN[name], before=kept) for name, kept in before.items()})
        try:
            yield
        finally:
            _CONVERTERS.update(before)


def product(x: tf.Tensor, y: tf.Tensor, adjoint_x: bool = False, adjoint_y: bool = False, paired: bool = False):
    """Returns the products of matrices in the last two axes; all other axes are broadcast as by `tf.matmul`.

    Args:
        x, y: Tensors of known rank, at least 2.
        adjoint_x, adjoint_y: Whether the matrices of x, or of y, are transposed first.
        paired: Whether the first axes of both are of one size, which need not be known.
    """
    static = tf.broadcast_static_shape(x.shape[:-2], y.shape[:-2])
    batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
    x, y = _alone(x), _alone(y)
    if 2 in (x.shape.rank, y.shape.rank):
        x, y = _flat(x), _flat(y)
    elif not _alike(x, y, paired):
        x, y = (tf.broadcast_to(t, tf.concat([batch, tf.shape(t)[-2:]], axis=0)) for t in (x, y))
    result = tf.matmul(x, y, adjoint_a=adjoint_x, adjoint_b=adjoint_y)
    matrix = result.shape[-2:]
    result = tf.reshape(result, tf.concat([batch, tf.shape(result)[-2:]], axis=0))
    result.set_shape(static.concatenate(matrix))
    return result


def _product(each, before):
    """As TensorFlow's own function for this operation, but for `product`."""
    each.expanddim_inputs_for_broadcast()
    (x, x_stacked, _), (y, y_stacked, _) = each.input(0), each.input(1)
    found = product(x, y, each.get_attr("adj_x"), each.get_attr("adj_y"), x_stacked and y_stacked)
    return pfor.wrap(found, True)


def _roll(each, before):
    """As TensorFlow's own function, but for negative axes."""
    shift, shift_stacked, _ = each.input(1)
    axis = each.unstacked_input(2)
    if not shift_stacked:
        return pfor.wrap(tf.roll(each.stacked_input(0), shift, tf.where(axis < 0, axis, axis + 1)), True)
    known = tf.get_static_value(axis)
    if known is None or (known < 0).any():
        raise NotImplementedError("Shifts of each row's own, along an axis that is counted from the end.")  # a loop
    return before(each)


def _pad(each, before):
    """As TensorFlow's own function, but with the constant, which has to be that of all rows: else a loop."""
    paddings = tf.concat([[[0, 0]], each.unstacked_input(1)], axis=0)
    constant = each.unstacked_input(2)
    return pfor.wrap(tf.raw_ops.PadV2(input=each.stacked_input(0), paddings=paddings, constant_values=constant), True)


_OWN = {"BatchMatMulV2": _product, "Roll": _roll, "PadV2": _pad}


def _alone(t):
    """A tensor that holds one matrix, as that matrix."""
    ones = t.shape.rank > 2 and all(size == 1 for size in t.shape[:-2])
    return tf.squeeze(t, axis=list(range(t.shape.rank - 2))) if ones else t


def _flat(t):
    """A tensor of matrices with one batch axis, or none where it is one matrix."""
    if t.shape.rank < 4:
        return t
    shape = tf.shape(t)
    return tf.reshape(t, tf.concat([tf.reduce_prod(shape[:-2], keepdims=True), shape[-2:]], axis=0))


def _alike(x, y, paired: bool) -> bool:
    """Whether the batch axes are known to be of the same sizes, so that none is broadcast."""
    left, right = x.shape[:-2].as_list(), y.shape[:-2].as_list()
    if paired and left and right:
        left, right = left[1:], right[1:]
    return left == right and None not in left
