"""Pooling by the L2 norm of a window."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from lipdp import _keras
from lipdp.layers.base import LipschitzLayer, positions, refuse_empty, require_channels_last, sizes
from lipdp.norms import conv_multiplicity, sums

# Keeps the square root differentiable at zero; subtracted again so that zero maps to zero.
_EPSILON = 1e-10
# Up to so many places their squares are one sum, whose rounding the slack of a layer covers.
_AT_ONCE = 2**7


def _smooth_norm(squares):
    return ops.sqrt(squares + _EPSILON) - math.sqrt(_EPSILON)


class AveragePooling(LipschitzLayer):
    """Base of the layers made of an average pooling and of what `pool` does before and after it.

    **Guarantee.** None of its own, see `LipschitzLayer`.
    """

    def __init__(self, pool_size: int | tuple[int, int], strides: int | tuple[int, int] | None, **kwargs: Any):
        super().__init__(**kwargs)
        require_channels_last(self)
        self.pool_size = sizes("pool_size", pool_size, 2)
        self.strides = sizes("strides", self.pool_size if strides is None else strides, 2)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.compute_output_shape(input_shape)

    def pool(self, average: Callable, inputs: Any) -> Any:
        """Returns the outputs, computed with the function `average` of images."""
        raise NotImplementedError

    def call(self, inputs: Any) -> Any:
        options = (self.pool_size, self.strides, "valid", "channels_last")
        return self.pool(lambda images: ops.average_pool(images, *options), inputs)

    def output_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int | None:
        return math.prod(self.pool_size)

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        # Pooling operations do not survive a file on JAX, pooling layers do.
        stock = keras.layers.AveragePooling2D(self.pool_size, self.strides, data_format="channels_last", name=self.name)
        return stock, []

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return self.pool(stock, inputs)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        spatial = [
            None if n is None else (n - k) // s + 1
            for n, k, s in zip(input_shape[1:3], self.pool_size, self.strides, strict=True)
        ]
        refuse_empty(self, input_shape, spatial)
        return (input_shape[0], *spatial, input_shape[3])


@_keras.serializable
class L2NormPooling2D(AveragePooling):
    """Replaces each window of each channel by its L2 norm.

    Args:
        pool_size: Integer or pair.
        strides: Integer or pair; default: `pool_size` (no overlap).

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`; borders that do not fill a window
            are dropped.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> round(float(layers.L2NormPooling2D(2)(np.ones((1, 2, 2, 1), "float32"))[0, 0, 0, 0]), 3)
        2.0

    **Guarantee.** With `n(w) = sqrt(||w||^2 + e) - sqrt(e)` on each window w: `n(w) <= ||w||` and n is 1-Lipschitz. A
    pixel appears in at most M windows, so the layer is sqrt(M)-Lipschitz and `||y|| <= sqrt(M) ||x||`; M = 1 without
    overlap.
    """

    lipschitz_formula = "sqrt(M)"

    def __init__(
        self, pool_size: int | tuple[int, int] = 2, strides: int | tuple[int, int] | None = None, **kwargs: Any
    ):
        super().__init__(pool_size, strides, **kwargs)

    @property
    def multiplicity(self) -> int:
        """M, the largest number of windows that read one entry of the input."""
        return conv_multiplicity(self.pool_size, self.strides, (1, 1))

    def pool(self, average: Callable, inputs: Any) -> Any:
        return _smooth_norm(average(ops.square(inputs)) * math.prod(self.pool_size))

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        return (math.sqrt(self.multiplicity),)


@_keras.serializable
class GlobalL2NormPooling2D(LipschitzLayer):
    """Replaces each channel of an image by its L2 norm.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.GlobalL2NormPooling2D()(np.ones((1, 4, 4, 3), "float32")).shape)[1:]
        (3,)

    **Guarantee.** As `L2NormPooling2D` with one window: 1-Lipschitz, `||y|| <= ||x||`. From 128 places on squares are
    summed by blocks, so that their rounding grows with the root of the number (`norms.sums`).
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        require_channels_last(self)
        self.compute_output_shape(input_shape)

    def call(self, inputs: Any) -> Any:
        squares = ops.square(inputs)
        if None in inputs.shape[1:3]:
            return _smooth_norm(ops.sum(squares, axis=(1, 2)))
        places = math.prod(inputs.shape[1:3])
        return _smooth_norm(sums.sum_per_row(ops.reshape(squares, (-1, places, inputs.shape[3])), _AT_ONCE))

    def output_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int | None:
        return sums.chain(positions(input_shapes[0], self), _AT_ONCE)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        if len(input_shape) != 4:  # a volume would become several rows
            raise ValueError(
                f"Layer '{self.name}' needs images (batch, height, width, channels). Received: input shape "
                f"{tuple(input_shape)}. Bring others into this form with Reshape."
            )
        return (input_shape[0], input_shape[3])


@_keras.serializable
class ScaledAveragePooling2D(AveragePooling):
    """Average pooling times the square root of the window size: keeps the norm of constant windows.

    Args:
        pool_size: Integer or pair; windows do not overlap, borders that do not fill one are dropped.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> float(layers.ScaledAveragePooling2D(2)(np.ones((1, 2, 2, 1), "float32"))[0, 0, 0, 0])
        2.0

    **Guarantee.** Each window is mapped to `<w, 1> / sqrt(n)`, an inner product with a unit vector, and windows are
    disjoint: 1-Lipschitz, `||y|| <= ||x||`.
    """

    def __init__(self, pool_size: int | tuple[int, int] = 2, **kwargs: Any):
        super().__init__(pool_size, None, **kwargs)

    def pool(self, average: Callable, inputs: Any) -> Any:
        return average(inputs) * math.sqrt(math.prod(self.pool_size))
