"""Transposed convolutions: the adjoints of the convolutions."""

import math
from typing import Any

import keras
from keras import ops

from lipdp import _keras
from lipdp.layers.base import of_products, positions, refuse_empty
from lipdp.layers.convolution import SpectralConv


class SpectralConvTranspose(SpectralConv):
    """Base of the transposed convolutions; see `SpectralConv2DTranspose`.

    **Guarantee.** See `SpectralConv2DTranspose`.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        padding: str = "same",
        dilation_rate: int | tuple[int, ...] = 1,
        kernel_initializer: str | keras.initializers.Initializer = "orthogonal",
        projected: bool = True,
        **kwargs: Any,
    ):
        kwargs |= {"kernel_initializer": kernel_initializer, "projected": projected}
        super().__init__(filters, kernel_size, strides, padding, dilation_rate, **kwargs)
        if max(self.dilation_rate) > 1:
            raise ValueError(
                "`dilation_rate` of a transposed convolution must be 1: the backends pad the others differently. "
                f"Received: dilation_rate={dilation_rate!r}."
            )

    def kernel_shape(self, channels: int) -> tuple[int, ...]:
        return (*self.kernel_size, self.filters, channels)

    def call(self, inputs: Any) -> Any:
        kernel = self.kernel * (1.0 / math.sqrt(self.multiplicity))
        # The backward pass is a convolution of the cotangent, whose channels are the filters (see `SpectralConv`).
        padded = self.filters == 1 and self._uneven()
        if padded:
            kernel = ops.pad(kernel, [(0, 0)] * self.rank + [(0, 1), (0, 0)])
        outputs = ops.conv_transpose(
            inputs, kernel, strides=self.strides, padding=self.padding, data_format="channels_last"
        )
        return outputs[..., :1] if padded else outputs

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        stock, kernel = self._stock(f"Conv{self.rank}DTranspose", self.filters)
        return stock, [kernel]

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return stock(inputs)

    def gradient_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int:
        return positions(input_shapes[0], self)

    def output_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int | None:
        return of_products(math.prod(self.kernel.shape) // self.filters)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        spatial = [
            None if n is None else n * s + (0 if self.padding == "same" else max(k - s, 0))
            for n, k, s in zip(input_shape[1:-1], self.kernel_size, self.strides, strict=True)
        ]
        refuse_empty(self, input_shape, spatial)
        return (input_shape[0], *spatial, self.filters)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("groups")
        return config


@_keras.serializable
class SpectralConv1DTranspose(SpectralConvTranspose):
    """Adjoint of `SpectralConv1D`: lengthens a sequence by the factor `strides`.

    Args:
        filters, kernel_size, strides, padding, dilation_rate, kernel_initializer, projected: As in
            `SpectralConv2DTranspose`, with integers.

    Call arguments:
        inputs: Tensor of shape `(batch, steps, channels)`.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.SpectralConv1DTranspose(2, 3, strides=2)(np.ones((1, 4, 3), "float32")).shape)[1:]
        (8, 2)

    **Guarantee.** That of `SpectralConv2DTranspose`, on one axis.
    """

    rank = 1


@_keras.serializable
class SpectralConv2DTranspose(SpectralConvTranspose):
    """Adjoint of a strided convolution: enlarges an image by the factor `strides`.

    Args:
        filters: Number of output channels, a positive integer.
        kernel_size: Integer or pair.
        strides: Integer or pair.
        padding: `"same"` (size times stride) or `"valid"` (all that the kernel reaches).
        dilation_rate: Must be 1.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.
        projected: Whether the kernel is projected onto the ball, see `SpectralConv2D`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.SpectralConv2DTranspose(2, 3, strides=2)(np.ones((1, 4, 4, 3), "float32")).shape)[1:]
        (8, 8, 2)

    **Guarantee.** `y = C(W)^T x / sqrt(M)`, where C(W) is the zero-padded convolution with the same kernel, strides
    and padding that maps images of y's shape to images of x's shape, and W, read as a (taps*filters, channels) matrix,
    has `||W||_2 <= 1`. An operator and its adjoint have the same norm, at most sqrt(M) (`SpectralConv2D`, M = prod
    ceil(k / s)), so the layer is 1-Lipschitz. Its gradient is that of the convolution with input and cotangent
    exchanged, because `<g, C(W)^T x> = <C(W) g, x>`: of norm at most `sqrt(M) ||g|| ||x|| / sqrt(M)`.
    """

    rank = 2


@_keras.serializable
class SpectralConv3DTranspose(SpectralConvTranspose):
    """Adjoint of `SpectralConv3D`: enlarges a volume by the factor `strides`.

    Args:
        filters, kernel_size, strides, padding, dilation_rate, kernel_initializer, projected: As in
            `SpectralConv2DTranspose`, with one or three integers.

    Call arguments:
        inputs: Tensor of shape `(batch, depth, height, width, channels)`.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.SpectralConv3DTranspose(2, 2, strides=2)(np.ones((1, 2, 2, 2, 3), "float32")).shape)[1:]
        (4, 4, 4, 2)

    **Guarantee.** That of `SpectralConv2DTranspose`, on three axes.
    """

    rank = 3
