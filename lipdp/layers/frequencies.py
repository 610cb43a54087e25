"""The low frequencies of images."""

import math
from typing import Any

import numpy as np
from keras import ops

from lipdp import _keras
from lipdp.layers.base import LipschitzLayer, of_products, require_channels_last, sizes
from lipdp.layers.products import product


@_keras.serializable
class LowFrequencies2D(LipschitzLayer):
    """Keeps the lowest coefficients of a cosine transform of each channel: a smaller image of what varies slowly.

    Most of the norm of a natural image is in few of them, so a private network behind it has fewer weights, hence
    less noise, and certificates are still about pixels. Behind it come `BoundedInput`, `Flatten` and `SpectralDense`.

    Args:
        size: Integer or pair: how many frequencies are kept along height and width, at most that of the image. The
            robust recipe keeps 43 % of them, 12 of 28.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Returns:
        Tensor of shape `(batch, size, size, channels)`: entry (i, j) belongs to i and j half periods.

    Raises:
        ValueError: `size` is out of range, or the input is not a batch of images of known size.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> y = layers.LowFrequencies2D(2)(np.ones((1, 4, 4, 1), "float32"))
        >>> np.round(y[0, :, :, 0], 4).tolist()
        [[4.0, 0.0], [0.0, 0.0]]

    **Guarantee.** The rows of the transform (type 2, orthonormal) that are kept are orthonormal, along each axis and
    so for their product: 1-Lipschitz, `||y|| <= ||x||`, with equality where nothing above `size` is in the image. It
    has no weights.
    """

    def __init__(self, size: int | tuple[int, int], **kwargs: Any):
        super().__init__(**kwargs)
        require_channels_last(self)
        self.size = sizes("size", size, 2)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.compute_output_shape(input_shape)
        # The sides are known, see above.
        self._rows = [cosines(kept, int(n or 0)) for kept, n in zip(self.size, input_shape[1:3], strict=True)]

    def call(self, inputs: Any) -> Any:
        rows, columns = (part.T for part in self._rows)
        # Height first: what is left of it makes the second product smaller.
        height, width, channels = inputs.shape[1:]
        down = ops.swapaxes(ops.reshape(inputs, (-1, height, width * channels)), 1, 2)
        across = ops.reshape(product(down, rows), (-1, width, channels, self.size[0]))
        return ops.swapaxes(product(ops.transpose(across, (0, 3, 2, 1)), columns), 2, 3)

    def output_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int | None:
        return of_products(max(input_shapes[0][1:3]))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        sides = input_shape[1:3]
        if len(input_shape) != 4 or any(n is None or k > n for n, k in zip(sides, self.size, strict=True)):
            raise ValueError(
                f"Layer '{self.name}' needs images (batch, height, width, channels) with at least as many pixels "
                f"along each side as frequencies are kept. Received: input shape {tuple(input_shape)}, size="
                f"{self.size}. Pass a smaller `size`."
            )
        return (input_shape[0], *self.size, input_shape[3])


def cosines(kept: int, length: int) -> np.ndarray:
    """Returns the first rows of the orthonormal cosine transform, `(kept, length)`."""
    places, frequencies = np.arange(length) + 0.5, np.arange(kept)[:, None]
    rows = np.cos(np.pi * places * frequencies / length) * math.sqrt(2.0 / length)
    rows[0] /= math.sqrt(2.0)
    return rows.astype("float32")
