"""Gradient-norm-preserving activations."""

from typing import Any

import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import ShapePreserving


@_keras.serializable
class Abs(ShapePreserving):
    """`|x|`: the default activation. Gradient-norm preserving and as cheap as ReLU.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> [float(v) for v in layers.Abs()(np.array([-2.0, 3.0], "float32"))]
        [2.0, 3.0]

    **Guarantee.** 1-Lipschitz, keeps the norm; its Jacobian is diagonal with entries in {-1, 0, 1}.
    """

    def call(self, inputs: Any) -> Any:
        return ops.abs(inputs)


@_keras.serializable
class GroupSort(ShapePreserving):
    """Sorts neighboring pairs of the last axis: (x0, x1) becomes (min, max).

    Args:
        group_size: Only 2 is available, as min and max without a sort.

    Raises:
        ValueError: `group_size` is not 2, or the last axis is odd.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> [float(v) for v in layers.GroupSort()(np.array([[3.0, 1.0]], "float32"))[0]]
        [1.0, 3.0]

    **Guarantee.** A permutation of the input: 1-Lipschitz, keeps the norm. The backward pass applies the same
    permutation, also at ties, where separate minimum and maximum would send both cotangents to the first entry and
    have norm sqrt(2).
    """

    def __init__(self, group_size: int = 2, **kwargs: Any):
        super().__init__(**kwargs)
        self.group_size = checks.integer("group_size", group_size, 1)
        if self.group_size != 2:
            raise ValueError(f"`group_size` must be 2. Received: group_size={group_size!r}.")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if input_shape[-1] is None or input_shape[-1] % 2:
            raise ValueError(f"GroupSort needs an even, known last axis. Received: input shape {tuple(input_shape)}.")

    def call(self, inputs: Any) -> Any:
        return _sorted_pairs(inputs)

    def export_call(self, stock: Any, inputs: Any) -> Any:
        index = np.arange(inputs.shape[-1])
        partners = ops.take(inputs, index ^ 1, axis=-1)
        return ops.where(index % 2 == 0, ops.minimum(inputs, partners), ops.maximum(inputs, partners))


@ops.custom_gradient
def _sorted_pairs(inputs):
    """Swaps neighbors where the first is larger, and their cotangents in the backward pass.

    Strided slices are ten times slower in a TensorFlow graph than the product with a small permutation matrix, which
    is exact: one times an entry plus zeros.
    """
    channels = inputs.shape[-1]
    block = max(size for size in range(2, min(channels, 32) + 1, 2) if channels % size == 0)
    index = np.arange(block)
    swap = np.zeros((block, block), "float32")
    swap[index, index ^ 1] = 1.0
    sign = np.where(index % 2, -1.0, 1.0).astype("float32")
    shape = ops.shape(inputs)

    def blocks(tensor):
        return ops.reshape(tensor, (-1, block))

    rows = blocks(inputs)
    swapped = ops.matmul(rows, swap)
    # At ties both stay. a - b is exactly -(b - a), so the two of a pair agree.
    kept = sign * (rows - swapped) <= 0

    def backward(*args, upstream=None):
        # JAX passes the cotangent by position, TensorFlow also by keyword.
        cotangent = blocks(upstream if upstream is not None else args[0])
        return ops.reshape(ops.where(kept, cotangent, ops.matmul(cotangent, swap)), shape)

    return ops.reshape(ops.where(kept, rows, swapped), shape), backward
