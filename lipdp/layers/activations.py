"""Gradient-norm-preserving activations."""

import keras
from keras import ops

from lipdp.layers.base import LipschitzLayer


@keras.saving.register_keras_serializable(package="lipdp")
class Abs(LipschitzLayer):
    """`|x|`: the default activation. Gradient-norm preserving and as cheap as ReLU.

    Guarantee:
        1-Lipschitz, keeps the norm; its Jacobian is diagonal with entries in {-1, 0, 1}.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> [float(v) for v in layers.Abs()(np.array([-2.0, 3.0], "float32"))]
        [2.0, 3.0]
    """

    def call(self, inputs):
        return ops.abs(inputs)

    def compute_output_shape(self, input_shape):
        return input_shape


@keras.saving.register_keras_serializable(package="lipdp")
class GroupSort(LipschitzLayer):
    """Sorts neighbouring pairs of the last axis: (x0, x1) becomes (min, max).

    Args:
        group_size: Only 2 is available, as min and max without a sort.

    Raises:
        ValueError: `group_size` is not 2, or the last axis is odd.

    Guarantee:
        A permutation of the input: 1-Lipschitz, keeps the norm. The backward pass applies the same
        permutation, also at ties, where separate minimum and maximum would send both cotangents to the
        first entry and have norm sqrt(2).

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> [float(v) for v in layers.GroupSort()(np.array([[3.0, 1.0]], "float32"))[0]]
        [1.0, 3.0]
    """

    def __init__(self, group_size: int = 2, **kwargs):
        super().__init__(**kwargs)
        if group_size != 2:
            raise ValueError(f"`group_size` must be 2. Received: group_size={group_size!r}.")
        self.group_size = group_size

    def build(self, input_shape):
        if input_shape[-1] is None or input_shape[-1] % 2:
            raise ValueError(f"GroupSort needs an even, known last axis. Received: input shape {tuple(input_shape)}.")

    def call(self, inputs):
        # A static shape, where there is one, can be stored in the graph of an exported model.
        inner = tuple(inputs.shape)[1:]
        shape = ops.shape(inputs) if None in inner[:-1] else (-1, *inner)
        pairs = ops.reshape(inputs, (*shape[:-1], shape[-1] // 2, 2))
        first, second = pairs[..., 0], pairs[..., 1]
        ordered = first <= second
        low, high = ops.where(ordered, first, second), ops.where(ordered, second, first)
        return ops.reshape(ops.stack([low, high], axis=-1), shape)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "group_size": self.group_size}
