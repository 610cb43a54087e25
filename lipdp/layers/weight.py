"""A weight that all rows share, as a layer: class tokens, positions, scales."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from lipdp import _keras, checks


@_keras.serializable
class Weight(keras.layers.Layer):
    """Returns a weight, once for each row of its input, of which it reads nothing but their number.

    For class tokens, positions and scales in functional models. For strategies that clip: it has no bounds for clipless
    training.

    Args:
        shape: Shape of the weight, without an axis of rows; `()` is one number.
        initializer: What the weight begins with, as in `add_weight`. Zeros unless told otherwise.
        **kwargs: As those of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of shape `(batch, ...)`.

    Returns:
        Tensor of shape `(batch, *shape)`.

    Raises:
        ValueError: `shape` is no tuple or list of whole numbers >= 1.

    Example:
        >>> import keras
        >>> from lipdp import layers
        >>> patches = keras.Input((16, 8))
        >>> token = layers.Weight((1, 8))(patches)
        >>> keras.ops.concatenate([token, patches], axis=1).shape
        (None, 17, 8)

    **Guarantee.** Each row of the output is the weight: no row of the input enters it, and the gradient of an example
    is the cotangent of its own row, whole. There are no bounds for clipless training.
    """

    def __init__(self, shape: Sequence[int], initializer: Any = "zeros", **kwargs: Any):
        super().__init__(**kwargs)
        if not isinstance(shape, (tuple, list)):
            raise ValueError(f"`shape` must be a tuple of whole numbers, such as (8,). Received: {shape!r}.")
        self.shape = tuple(checks.integer("shape", size, 1) for size in shape)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.weight = self.add_weight(name="weight", shape=self.shape, initializer=self.initializer)

    def call(self, inputs: Any) -> Any:
        return ops.broadcast_to(ops.convert_to_tensor(self.weight), (ops.shape(inputs)[0], *self.shape))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], *self.shape)
