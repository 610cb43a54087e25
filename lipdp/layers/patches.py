"""Convolution of disjoint patches, an orthogonal map of each."""

from typing import Any

import keras
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import KernelLayer, require_channels_last, sizes
from lipdp.layers.resampling import blocked_shape, space_to_depth
from lipdp.norms import SpectralBall


@_keras.serializable
class OrthogonalPatchConv2D(KernelLayer):
    """A convolution with stride = kernel size whose matrix is kept orthogonal: each patch is rotated into channels.

    The first layer of an MLP-Mixer. It computes `patch W`, W of shape (a*b*channels, filters).

    Args:
        filters: Number of output channels, a positive integer. From a*b*channels on, no norm is lost.
        patch_size: Integer or pair (a, b); height and width must be multiples of it.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Returns:
        Tensor of shape `(batch, height / a, width / b, filters)`.

    Raises:
        ValueError: `filters` or `patch_size` is out of range, or patches do not fill the image.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> x = np.ones((1, 4, 4, 1), "float32")
        >>> round(float(np.linalg.norm(layers.OrthogonalPatchConv2D(4, 2)(x))), 4)
        4.0

    **Guarantee.** Patches are disjoint, so a pixel is read once (M = 1): with `||W||_2 <= 1` the layer is 1-Lipschitz
    and the gradient of W, `U(x)' g` with U(x) the matrix of patches, has norm at most `||U(x)|| ||g|| = ||x|| ||g||`.
    Where W has orthonormal rows (filters >= a*b*channels), `||y|| = ||x||` for every x; where it has orthonormal
    columns, no cotangent loses norm. After every update five Bjorck steps bring the singular values there: to within
    1e-5 of 1 from any value between 0.5 and 1.6. That they reach it is not part of the bound, which holds for all
    singular values of at most 1.
    """

    def __init__(
        self,
        filters: int,
        patch_size: int | tuple[int, int],
        kernel_initializer: str | keras.initializers.Initializer = "orthogonal",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        require_channels_last(self)
        self.filters = checks.integer("filters", filters, 1)
        self.patch_size = sizes("patch_size", patch_size, 2)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        inputs = blocked_shape(self, input_shape, self.patch_size)[-1]
        self.add_kernel((inputs, self.filters), SpectralBall(steps=5))

    def call(self, inputs: Any) -> Any:
        # `ops.matmul` of Keras before 3.15 has TensorFlow read past the end of the kernel (its issue 117700).
        return ops.tensordot(space_to_depth(inputs, self.patch_size), self.kernel, axes=[[-1], [0]])

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return stock(space_to_depth(inputs, self.patch_size))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*blocked_shape(self, input_shape, self.patch_size)[:-1], self.filters)
