"""Products of matrices under `tf.vectorized_map`, without the batch axes that oneDNN reads wrongly."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

_OPERATION = "BatchMatMulV2"
# How TensorFlow vectorizes each operation; private, so it may be gone one day.
_CONVERTERS = getattr(pfor, "_pfor_converter_registry", {})
_LOCK = threading.RLock()


@contextlib.contextmanager
def own_products() -> Iterator[None]:
    """Has `tf.vectorized_map` take `product` for products of matrices with batch axes.

    On CPUs TensorFlow 2.21 reads past the end of a matrix that stands for all of several batch axes, gives what it
    finds there as the result, and may crash (its issue 117700). One row at a time turns `x @ kernel`, for x of shape
    (batch, steps, channels), into such a product.
    """
    with _LOCK:
        before = _CONVERTERS.get(_OPERATION)
        if before is not None:
            _CONVERTERS[_OPERATION] = _convert
        try:
            yield
        finally:
            if before is not None:
                _CONVERTERS[_OPERATION] = before


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


def _convert(each):
    """As TensorFlow's own function for this operation, but for `product`."""
    each.expanddim_inputs_for_broadcast()
    (x, x_stacked, _), (y, y_stacked, _) = each.input(0), each.input(1)
    found = product(x, y, each.get_attr("adj_x"), each.get_attr("adj_y"), x_stacked and y_stacked)
    return pfor.wrap(found, True)


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
