"""Convolutions that are orthogonal as operators: products of matrices and shifts."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import (
    LipschitzLayer,
    StartedIn,
    of_products,
    positions,
    refuse_empty,
    require_channels_last,
    sizes,
)
from lipdp.norms import SpectralBall, spectral_norm

# `norms.project` may leave a factor above 1 by about half of this (1.2e-5 was seen). The slack of a layer, which is as
# large, covers one; the kernel pays for the others.
_PER_FACTOR = 2e-5


@_keras.serializable
class OrthogonalConv2D(LipschitzLayer):
    """A convolution whose kernel is a product of matrices and shifts by one pixel: 1-Lipschitz, and no norm is lost.

    `SpectralConv2D` divides by the root of the number of taps; this layer does not. Each of its factors is a square
    matrix over the channels of one pixel (the first reads the input's channels, the last one writes `filters`).
    Between two factors half of the channels move by one pixel, along height and width in turn, until the kernel is as
    large as asked for. The product is computed once per step, as one kernel for one ordinary convolution. There is no
    bias and no activation inside; `GroupSort` behind it certified more than `Abs`. In front of the hidden layer of the
    robust recipe it certifies more than `SpectralConv2D` and less than no convolution, see `benchmarks/orthogonal.py`.

    Args:
        filters: Number of output channels, a positive integer. From the number of input channels on, no norm is lost.
        kernel_size: Integer or pair (a, b). There are a + b - 1 factors.
        padding: `"same"` (zeros), `"valid"`, or `"circular"`: the image continues at its opposite border.
        kernel_initializer: Keras initializer of each factor; what it returns is projected. Default: orthogonal.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`. For strides, put `InvertibleDownSampling2D` in
            front, which loses nothing.

    Returns:
        Tensor of shape `(batch, new_height, new_width, filters)`.

    Raises:
        ValueError: an argument is out of range, the kernel does not fit into the image (`"valid"`, `"circular"`), or
            the image format is channels first.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> x = np.ones((1, 4, 4, 1), "float32")
        >>> round(float(np.linalg.norm(layers.OrthogonalConv2D(4, 3, padding="circular")(x))), 2)
        4.0

    **Guarantee.** On images over the infinite grid (square-summable, zero outside of the image) the layer is `x -> A_n
    S_n ... S_1 A_0 x`. Each A_i acts on the channels of one pixel and is kept at `||A_i||_2 <= 1`; each S_i moves some
    channels by one pixel, which permutes entries and keeps every norm. So the product has norm at most 1, for every
    weight in the ball. `"same"` and `"valid"` restrict it: the output is a part of that on the grid, so its norm is at
    most `||x||`, for images of every size. `"circular"` is the same product on a torus, where the S_i are permutations
    too. Gradients: let x_i be what A_i reads on the grid and g_i the cotangent of what it writes. `||x_i|| <= ||x||`
    and `||g_i|| <= ||g||`, as all other factors have norm at most 1 and a cropped cotangent is continued by zeros. The
    gradient of A_i is the sum over pixels of `x_i g_i'`, of norm at most `||x_i|| ||g_i|| <= ||x|| ||g||`. Float32: for
    each factor after the first the kernel is multiplied by 1 - 2e-5, more than `norms.project` may leave above 1;
    gradients are first summed for the kernel, see `gradient_terms`. Certificates use the product of the norms of the
    trained factors. No norm is lost where all A_i have orthonormal rows, which needs `filters` >= channels and which
    training keeps nearly, as the projection moves singular values towards 1: then `||y|| = ||x||` under `"circular"`,
    and under `"same"` for x that is zero within `kernel_size // 2` pixels of the border. Other images lose there what
    leaves the image. With `filters` <= channels the same holds for cotangents. Not covered: orthogonal convolutions
    that cannot be written so; weights changed by hand during `fit`. Source: Li et al., "Preventing gradient
    attenuation in Lipschitz constrained convolutional networks" (BCOP), NeurIPS 2019: their factor (P, I - P) is U' S U
    with U orthogonal.
    """

    gradient_formula = "‖x‖ ‖g‖"

    def __init__(
        self,
        filters: int,
        kernel_size: int | tuple[int, int],
        padding: str = "same",
        kernel_initializer: str | keras.initializers.Initializer = "orthogonal",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        require_channels_last(self)
        self.filters = checks.integer("filters", filters, 1)
        self.kernel_size = sizes("kernel_size", kernel_size, 2)
        self.padding = checks.choice("padding", padding, ("same", "valid", "circular"))
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if len(input_shape) != 4 or input_shape[-1] is None:
            raise ValueError(
                f"Layer '{self.name}' reads images with a known number of channels. Received: input shape "
                f"{tuple(input_shape)}."
            )
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        # The wider of the two inside: a narrow start or end would lose what the other side could keep.
        widths = [max(channels, self.filters)] * (sum(self.kernel_size) - 1)
        self.factors = []
        for place, shape in enumerate(zip([channels, *widths[1:]], [*widths[1:], self.filters], strict=True)):
            ball = SpectralBall()
            initializer = self.kernel_initializer
            if isinstance(initializer, keras.initializers.Initializer):
                # One instance draws the same numbers at every call.
                initializer = initializer.clone()
            initializer = StartedIn(SpectralBall(steps=3).start, initializer)
            self.factors.append(self.add_weight(shape, initializer, constraint=ball, name=f"factor_{place}"))

    def call(self, inputs: Any) -> Any:
        kernel = self.scale * composed(self.factors, self.kernel_size)
        return ops.conv(self.continued(inputs), kernel, 1, self._edges(), "channels_last")

    @property
    def scale(self) -> float:
        """What the kernel is multiplied by: slightly less than 1, for the rounding of several factors."""
        return (1.0 - _PER_FACTOR) ** (sum(self.kernel_size) - 2)

    def continued(self, images: Any) -> Any:
        """Returns images with what `"circular"` reads beyond their border."""
        if self.padding == "circular":
            for axis, k in enumerate(self.kernel_size, 1):
                before, after = (k - 1) // 2, k // 2
                length = images.shape[axis]
                places = np.arange(-before, length + after) % length
                images = ops.take(images, places, axis=axis) if k > 1 else images
        return images

    def _edges(self) -> str:
        return "same" if self.padding == "same" else "valid"

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        options: dict[str, Any] = {"use_bias": False, "data_format": "channels_last", "name": self.name}
        stock = keras.layers.Conv2D(self.filters, self.kernel_size, 1, self._edges(), **options)
        return stock, [ops.convert_to_numpy(self.scale * composed(self.factors, self.kernel_size))]

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return stock(self.continued(inputs))

    def parameter_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        return (input_bounds[0] * cotangent_bound,) * (sum(self.kernel_size) - 1)

    def gradient_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int:
        # The kernel's gradient G comes first. Its entries sum over the positions, of terms whose absolute values have
        # norm at most sqrt(taps) |x| |g|, as a pixel is read once per tap. From G to a factor all is linear with norm
        # at most 1, in sums over taps and channels that round like those of a chain of layers.
        taps, channels = math.prod(self.kernel_size), max(input_shapes[0][-1], self.filters)
        return positions(output_shape, self) * math.ceil(math.sqrt(taps)) + taps * channels * sum(self.kernel_size)

    def output_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int | None:
        return of_products(math.prod(self.kernel_size) * input_shapes[0][-1])

    def trained_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        # Not the norm of the product: where factors cancel, their rounding does not.
        norms = (spectral_norm(ops.convert_to_numpy(factor)) for factor in self.factors)
        return (self.scale * math.prod(norms),)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        spatial = input_shape[1:-1]
        if self.padding != "same":
            cut = [None if n is None else n - k + 1 for n, k in zip(spatial, self.kernel_size, strict=True)]
            refuse_empty(self, input_shape, cut)
            if self.padding == "valid":
                spatial = tuple(cut)
            elif None in spatial:
                raise ValueError(
                    f"Layer '{self.name}' needs a known height and width to continue images at the opposite border. "
                    f"Received: input shape {tuple(input_shape)}. Give the input a full shape."
                )
        return (input_shape[0], *spatial, self.filters)


def directions(kernel_size: Sequence[int]) -> list[int]:
    """Returns the axis of the kernel along which each shift goes: 0 and 1 in turn, as often as the sizes ask for."""
    left, axes = [k - 1 for k in kernel_size], []
    while any(left):
        axis = len(axes) % 2 if left[len(axes) % 2] else int(not left[0])
        left[axis] -= 1
        axes.append(axis)
    return axes


def shifted(kernel: Any, axis: int) -> Any:
    """Returns a kernel whose first half of output channels was moved by one tap against the others."""
    pads = [(0, 0)] * 4
    first, second = [*pads], [*pads]
    first[axis], second[axis] = (0, 1), (1, 0)
    half = kernel.shape[-1] // 2
    parts = [ops.pad(kernel[..., :half], first), ops.pad(kernel[..., half:], second)]
    return ops.concatenate(parts, axis=-1)


def composed(factors: Sequence[Any], kernel_size: Sequence[int]) -> Any:
    """Returns the kernel `(a, b, channels, filters)` of a product of factors with shifts between them."""
    kernel = ops.reshape(factors[0], (1, 1, *factors[0].shape))
    for axis, factor in zip(directions(kernel_size), factors[1:], strict=True):
        kernel = ops.matmul(shifted(kernel, axis), factor)
    return kernel
