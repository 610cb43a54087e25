"""Down- and up-sampling of images that loses nothing."""

from typing import Any

import keras
from keras import ops

from lipdp import _keras
from lipdp.layers.base import LipschitzLayer, require_channels_last, sizes


def space_to_depth(inputs: Any, blocks: tuple[int, ...]) -> Any:
    """Returns images with each block of pixels moved into the channels: (h a, w b, c) becomes (h, w, a b c)."""
    (a, b), (height, width, channels) = blocks, inputs.shape[1:]
    parts = ops.reshape(inputs, (-1, height // a, a, width // b, b, channels))
    return ops.reshape(ops.transpose(parts, (0, 1, 3, 2, 4, 5)), (-1, height // a, width // b, a * b * channels))


def depth_to_space(inputs: Any, blocks: tuple[int, ...]) -> Any:
    """Returns the inverse of `space_to_depth`."""
    (a, b), (height, width, channels) = blocks, inputs.shape[1:]
    parts = ops.reshape(inputs, (-1, height, width, a, b, channels // (a * b)))
    return ops.reshape(ops.transpose(parts, (0, 1, 3, 2, 4, 5)), (-1, height * a, width * b, channels // (a * b)))


def blocked_shape(
    layer: keras.layers.Layer, input_shape: tuple[int | None, ...], blocks: tuple[int, ...]
) -> tuple[int | None, ...]:
    """Returns the shape after `space_to_depth`; refuses images that blocks do not fill."""
    if len(input_shape) != 4 or any(n is None or n % k for n, k in zip(input_shape[1:3], blocks, strict=True)):
        raise ValueError(
            f"Layer '{layer.name}' needs images (batch, height, width, channels) that its blocks fill exactly. "
            f"Received: input shape {tuple(input_shape)}, blocks {blocks}. Pad the images with ZeroPadding2D."
        )
    batch, height, width, channels = input_shape
    return (batch, height // blocks[0], width // blocks[1], channels * blocks[0] * blocks[1])


@_keras.configured
class BlockLayer(LipschitzLayer):
    """Base of the two layers that move blocks of `pool_size` pixels.

    **Guarantee.** None of its own, see `LipschitzLayer`.
    """

    def __init__(self, pool_size: int | tuple[int, int] = 2, **kwargs: Any):
        super().__init__(**kwargs)
        require_channels_last(self)
        self.pool_size = sizes("pool_size", pool_size, 2)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.compute_output_shape(input_shape)


@_keras.serializable
class InvertibleDownSampling2D(BlockLayer):
    """Moves each block of `pool_size` pixels into the channels: a smaller image with nothing lost.

    Args:
        pool_size: Integer or pair; height and width must be multiples of it.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Returns:
        Tensor of shape `(batch, height / a, width / b, a * b * channels)`.

    Raises:
        ValueError: `pool_size` is out of range or does not divide the image.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.InvertibleDownSampling2D(2)(np.ones((1, 4, 4, 3), "float32")).shape)[1:]
        (2, 2, 12)

    **Guarantee.** A permutation of the entries: 1-Lipschitz, keeps every norm and every gradient norm.
    """

    def call(self, inputs: Any) -> Any:
        return space_to_depth(inputs, self.pool_size)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return blocked_shape(self, input_shape, self.pool_size)


@_keras.serializable
class InvertibleUpSampling2D(BlockLayer):
    """The inverse of `InvertibleDownSampling2D`: channels become blocks of pixels.

    Args:
        pool_size: Integer or pair; the number of channels must be a multiple of its product.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, a * b * channels)`.

    Returns:
        Tensor of shape `(batch, height * a, width * b, channels)`.

    Raises:
        ValueError: `pool_size` is out of range or does not divide the channels.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.InvertibleUpSampling2D(2)(np.ones((1, 2, 2, 12), "float32")).shape)[1:]
        (4, 4, 3)

    **Guarantee.** A permutation of the entries: 1-Lipschitz, keeps every norm and every gradient norm.
    """

    def call(self, inputs: Any) -> Any:
        return depth_to_space(inputs, self.pool_size)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        a, b = self.pool_size
        if len(input_shape) != 4 or None in input_shape[1:] or input_shape[-1] % (a * b):
            raise ValueError(
                f"Layer '{self.name}' needs images (batch, height, width, channels) of known size with a multiple of "
                f"{a * b} channels. Received: input shape {tuple(input_shape)}."
            )
        batch, height, width, channels = input_shape
        return (batch, height * a, width * b, channels // (a * b))
