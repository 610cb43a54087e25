"""Convolutions that are 1-Lipschitz at every stride, dilation, padding and number of groups."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import KernelLayer, refuse_empty, require_channels_last, sizes
from lipdp.norms import SpectralBall, conv_fourier_bound, conv_multiplicity, spectral_norm


@_keras.configured
class SpectralConv(KernelLayer):
    """Base of the convolutions: `y = conv(x, W) / sqrt(M)`, one matrix of norm at most 1 per group of filters.

    Subclasses set `rank` and may change the operation; each proves its bound in its own docstring.

    **Guarantee.** Let `U(x)` be the matrix of patches, one row per output position. An entry of x appears in at most
    `M = prod_axis ceil(k / (s / gcd(s, d)))` entries of it (`norms.conv_multiplicity`), so
    `||U(x)||_F <= sqrt(M) ||x||`. With `y = U(x) W / sqrt(M)`: `||y|| <= ||W||_2 ||x||`, and the gradient of W is
    `U(x)^T g / sqrt(M)`, of norm at most `||x|| ||g||`. Groups read and write channels of their own:
    `||y||^2 = sum_j ||y_j||^2 <= max_j ||W_j||_2^2 ||x||^2`, and the gradient of W has squared norm
    `sum_j ||x_j||^2 ||g_j||^2 <= ||x||^2 ||g||^2`. Certificates use the smaller of `||W||_2` and
    `conv_fourier_bound(W) / sqrt(M)`.
    """

    rank: int

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        padding: str = "same",
        dilation_rate: int | tuple[int, ...] = 1,
        groups: int = 1,
        kernel_initializer: str | keras.initializers.Initializer = "orthogonal",
        projected: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        require_channels_last(self)
        self.filters = checks.integer("filters", filters, 1)
        self.groups = checks.integer("groups", groups, 1)
        if self.filters % self.groups:
            raise ValueError(f"`groups` must divide `filters`. Received: groups={self.groups}, filters={self.filters}.")
        self.kernel_size = sizes("kernel_size", kernel_size, self.rank)
        self.strides = sizes("strides", strides, self.rank)
        self.dilation_rate = sizes("dilation_rate", dilation_rate, self.rank)
        if max(self.strides) > 1 and max(self.dilation_rate) > 1:
            raise ValueError(
                "`strides` and `dilation_rate` cannot both be above 1 (TensorFlow has no such convolution). "
                f"Received: strides={strides!r}, dilation_rate={dilation_rate!r}."
            )
        self.padding = checks.choice("padding", padding, ("same", "valid"))
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.projected = checks.boolean("projected", projected)

    @property
    def multiplicity(self) -> int:
        """M, the largest number of (output, tap) pairs that read one entry of the input."""
        return conv_multiplicity(self.kernel_size, self.strides, self.dilation_rate)

    def kernel_shape(self, channels: int) -> tuple[int, ...]:
        """Returns the shape of the kernel for inputs with `channels` channels; the last axis holds the groups."""
        return (*self.kernel_size, channels // self.groups, self.filters)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if len(input_shape) != self.rank + 2 or input_shape[-1] is None or input_shape[-1] % self.groups:
            raise ValueError(
                f"Layer '{self.name}' reads inputs with {self.rank} spatial axes and a number of channels that "
                f"`groups` divides. Received: input shape {tuple(input_shape)}, groups={self.groups}."
            )
        self.compute_output_shape(input_shape)
        # A part of an orthogonal matrix is not orthogonal: the filters of a group are made so among themselves.
        orthogonal = isinstance(self.kernel_initializer, keras.initializers.Orthogonal) and self.groups > 1
        first = SpectralBall(self.groups, steps=40) if orthogonal else None
        self.add_kernel(self.kernel_shape(input_shape[-1]), SpectralBall(self.groups), first)

    def call(self, inputs: Any) -> Any:
        kernel = self.kernel * (1.0 / math.sqrt(self.multiplicity))
        if inputs.shape[-1] == 1 and self._uneven():
            # oneDNN, behind TensorFlow on CPUs, reads past the image here when the output is one column wide.
            # A second channel of zeros takes another path, with the same result.
            inputs = _pad_channels(inputs)
            kernel = ops.pad(kernel, [(0, 0)] * self.rank + [(0, 1), (0, 0)])
        return ops.conv(inputs, kernel, self.strides, self.padding, "channels_last", self.dilation_rate)

    def _uneven(self) -> bool:
        # A sequence is an image of one row, which is stepped over by one.
        return len({*self.strides, *((1,) if self.rank == 1 else ())}) > 1

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        stock, kernel = self._stock(f"Conv{self.rank}D", self.filters, groups=self.groups)
        if self._widened():
            kernel = np.concatenate([kernel, np.zeros_like(kernel)], axis=-2)
        return stock, [kernel]

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return stock(_pad_channels(inputs) if self._widened() else inputs)

    def _widened(self) -> bool:
        # Also in an export, see `call`.
        return self.groups * self.kernel.shape[-2] == 1 and self._uneven()

    def _stock(self, kind: str, *filters: int, **options):
        """Returns a stock convolution with the same geometry, and the kernel it needs."""
        options |= {"dilation_rate": self.dilation_rate, "data_format": "channels_last", "name": self.name}
        stock = getattr(keras.layers, kind)(
            *filters, self.kernel_size, self.strides, self.padding, use_bias=False, **options
        )
        return stock, ops.convert_to_numpy(self.kernel) * np.float32(1.0 / math.sqrt(self.multiplicity))

    def trained_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        kernel, largest = ops.convert_to_numpy(self.kernel), 0.0
        columns = kernel.shape[-1] // self.groups
        parts = [kernel[..., j * columns : (j + 1) * columns] for j in range(self.groups)]
        parts = sorted(((spectral_norm(p.reshape(-1, columns)), j) for j, p in enumerate(parts)), reverse=True)
        for unfold, j in parts:
            if unfold <= largest:
                break
            part = kernel[..., j * columns : (j + 1) * columns]
            fourier = conv_fourier_bound(part, self.strides, self.dilation_rate) / math.sqrt(self.multiplicity)
            largest = max(largest, min(unfold, fourier))
        return (largest,)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        spatial = []
        for size, k, s, d in zip(input_shape[1:-1], self.kernel_size, self.strides, self.dilation_rate, strict=True):
            if size is not None:
                size = -(-(size if self.padding == "same" else size - d * (k - 1)) // s)
            spatial.append(size)
        refuse_empty(self, input_shape, spatial)
        return (input_shape[0], *spatial, self.filters)


def _pad_channels(inputs):
    return ops.pad(inputs, [(0, 0)] * (len(inputs.shape) - 1) + [(0, 1)])


@_keras.serializable
class SpectralConv1D(SpectralConv):
    """`y = conv(x, W) / sqrt(M)` over a sequence, with `||W||_2 <= 1`, W read as a (k*channels, filters) matrix.

    M is the largest number of (output, tap) pairs that read one position. There is no bias and no activation
    inside: add `Bias` and `Abs` after it.

    Args:
        filters: Number of output channels, a positive integer.
        kernel_size: Integer.
        strides: Integer.
        padding: `"same"` (zeros) or `"valid"`.
        dilation_rate: Integer; 1 where `strides` is above 1, as in Keras.
        groups: Number of equal parts of channels and filters, each convolved on its own, as in Keras.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.
        projected: Whether the kernel is projected onto the ball, see `SpectralConv2D`.

    Call arguments:
        inputs: Tensor of shape `(batch, steps, channels)`.

    Returns:
        Tensor of shape `(batch, new_steps, filters)`.

    Raises:
        ValueError: an argument is out of range, or the kernel does not fit into the input (`"valid"`).

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.SpectralConv1D(4, 3, strides=2)(np.ones((1, 8, 1), "float32")).shape)[1:]
        (4, 4)

    **Guarantee.** `M = ceil(k / (s / gcd(s, d)))`: two taps that read the same position differ by a multiple of
    `s / gcd(s, d)`. So `||U(x)||_F <= sqrt(M) ||x||` for the matrix of patches, the layer is 1-Lipschitz, and the
    gradient of its kernel has norm at most `||x|| ||g||`; see `SpectralConv2D`.
    """

    rank = 1


@_keras.serializable
class SpectralConv2D(SpectralConv):
    """`y = conv(x, W) / sqrt(M)` with `||W||_2 <= 1`, W read as a (kh*kw*channels, filters) matrix.

    M is the largest number of (output, tap) pairs that read one pixel. There is no bias and no
    activation inside: add `Bias` and `Abs` after it.

    Args:
        filters: Number of output channels, a positive integer.
        kernel_size: Integer or pair.
        strides: Integer or pair.
        padding: `"same"` (zeros) or `"valid"`.
        dilation_rate: Integer or pair; 1 where `strides` is above 1, as in Keras.
        groups: Number of equal parts of channels and filters, each convolved on its own, as in Keras.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.
        projected: Whether the kernel is projected onto the ball. A layer with nothing trainable upstream may
            leave it unconstrained: its own gradient does not depend on its norm. Put a `BoundedInput` after its
            activation, so that the next layers have a bound on their input.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Returns:
        Tensor of shape `(batch, new_height, new_width, filters)`.

    Raises:
        ValueError: an argument is out of range, the kernel does not fit into the image (`"valid"`), or the
            image format is channels first.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.SpectralConv2D(4, 3, strides=2)(np.ones((1, 8, 8, 1), "float32")).shape)[1:]
        (4, 4, 4)

    **Guarantee.** Let `U(x)` be the matrix of patches, one row per output position. A pixel appears in at most
    `M = prod_axis ceil(k / (s / gcd(s, d)))` entries of it, so `||U(x)||_F <= sqrt(M) ||x||`. With
    `y = U(x) W / sqrt(M)`: `||y|| <= ||W||_2 ||x|| <= ||x||`, and the gradient of W is `U(x)^T g / sqrt(M)`, of norm
    at most `||x|| ||g||`. Groups see channels of their own, so the largest of their norms counts. The averaged count
    that other libraries use in place of M is not an upper bound: it is exceeded by up to 20 % per 3x3 layer.
    Certificates use the smaller of `||W||_2` and `norms.conv_fourier_bound` of the trained kernel. Training does not:
    the Fourier bound can only scale a kernel down, and without a step towards orthogonality, for which no closed form
    is known in kernels of bounded size, singular values collapse. With `projected=False` the gradient bound stays, and
    the layer has no Lipschitz constant for training. Not covered: weights changed by hand during `fit`.
    """

    rank = 2


@_keras.serializable
class SpectralConv3D(SpectralConv):
    """`y = conv(x, W) / sqrt(M)` over volumes, with `||W||_2 <= 1`, W read as a (taps*channels, filters) matrix.

    M is the largest number of (output, tap) pairs that read one voxel. There is no bias and no activation
    inside: add `Bias` and `Abs` after it.

    Args:
        filters: Number of output channels, a positive integer.
        kernel_size: Integer or three of them.
        strides: Integer or three of them.
        padding: `"same"` (zeros) or `"valid"`.
        dilation_rate: Must be 1: TensorFlow has no dilated 3-D convolution on CPUs.
        groups: Number of equal parts of channels and filters, each convolved on its own, as in Keras.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.
        projected: Whether the kernel is projected onto the ball, see `SpectralConv2D`.

    Call arguments:
        inputs: Tensor of shape `(batch, depth, height, width, channels)`.

    Returns:
        Tensor of shape `(batch, new_depth, new_height, new_width, filters)`.

    Raises:
        ValueError: an argument is out of range, or the kernel does not fit into the input (`"valid"`).

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.SpectralConv3D(4, 2, strides=2)(np.ones((1, 4, 4, 4, 1), "float32")).shape)[1:]
        (2, 2, 2, 4)

    **Guarantee.** That of `SpectralConv2D` with the product over three axes, `M = prod_axis ceil(k / s)`: taps that
    read one voxel are counted on each axis, and the patches are products of those.
    """

    rank = 3

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        padding: str = "same",
        dilation_rate: int | tuple[int, ...] = 1,
        **kwargs: Any,
    ):
        super().__init__(filters, kernel_size, strides, padding, dilation_rate, **kwargs)
        if max(self.dilation_rate) > 1:
            raise ValueError(
                "`dilation_rate` must be 1: TensorFlow has no dilated 3-D convolution on CPUs. Received: "
                f"dilation_rate={dilation_rate!r}."
            )
