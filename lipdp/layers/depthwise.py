"""Convolutions of each channel on its own."""

import math
from typing import Any

import keras
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.convolution import SpectralConv


class SpectralDepthwiseConv(SpectralConv):
    """Base of the depthwise convolutions: a grouped convolution with as many groups as channels.

    **Guarantee.** See `SpectralConv` with one channel per group.
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, ...],
        strides: int | tuple[int, ...] = 1,
        padding: str = "same",
        depth_multiplier: int = 1,
        dilation_rate: int | tuple[int, ...] = 1,
        kernel_initializer: str | keras.initializers.Initializer = "orthogonal",
        projected: bool = True,
        **kwargs: Any,
    ):
        self.depth_multiplier = checks.integer("depth_multiplier", depth_multiplier, 1)
        kwargs |= {"kernel_initializer": kernel_initializer, "projected": projected}
        super().__init__(depth_multiplier, kernel_size, strides, padding, dilation_rate, **kwargs)
        if len(set(self.strides)) > 1:
            raise ValueError(
                "`strides` of a depthwise convolution must be equal: TensorFlow has no others on CPUs. Received: "
                f"strides={strides!r}."
            )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if input_shape[-1] is None:
            raise ValueError(
                f"Layer '{self.name}' needs a known number of channels. Received: input shape {tuple(input_shape)}."
            )
        self.groups = input_shape[-1]
        self.filters = self.groups * self.depth_multiplier
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        shape = (*self.kernel_size, self.groups, self.depth_multiplier)
        kernel = ops.reshape(self.kernel, shape) * (1.0 / math.sqrt(self.multiplicity))
        return ops.depthwise_conv(inputs, kernel, self.strides, self.padding, "channels_last", self.dilation_rate)

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        stock, kernel = self._stock(f"DepthwiseConv{self.rank}D", depth_multiplier=self.depth_multiplier)
        return stock, [kernel.reshape(*self.kernel_size, self.groups, self.depth_multiplier)]

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return stock(inputs)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*super().compute_output_shape(input_shape)[:-1], input_shape[-1] * self.depth_multiplier)

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "depth_multiplier": self.depth_multiplier}
        return {key: value for key, value in config.items() if key not in ("filters", "groups")}


@_keras.serializable
class SpectralDepthwiseConv1D(SpectralDepthwiseConv):
    """Each channel of a sequence convolved with its own kernels: `y_c = conv(x_c, W_c) / sqrt(M)`.

    Args:
        kernel_size: Integer.
        strides: Integer.
        padding: `"same"` (zeros) or `"valid"`.
        depth_multiplier: Number of output channels per input channel.
        dilation_rate: Integer; 1 where `strides` is above 1.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.
        projected: Whether the kernels are projected onto their balls, see `SpectralConv2D`.

    Call arguments:
        inputs: Tensor of shape `(batch, steps, channels)`.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.SpectralDepthwiseConv1D(3)(np.ones((1, 8, 4), "float32")).shape)[1:]
        (8, 4)

    **Guarantee.** That of `SpectralConv1D` with one group per channel: `||W_c||_2 <= 1` for each channel's (k,
    depth_multiplier) matrix, so the layer is 1-Lipschitz, and the gradient of all kernels together has norm at most
    `||x|| ||g||`, as `sum_c ||x_c||^2 ||g_c||^2 <= ||x||^2 ||g||^2`.
    """

    rank = 1


@_keras.serializable
class SpectralDepthwiseConv2D(SpectralDepthwiseConv):
    """Each channel of an image convolved with its own kernels: `y_c = conv(x_c, W_c) / sqrt(M)`.

    Args:
        kernel_size: Integer or pair.
        strides: Integer or equal pair.
        padding: `"same"` (zeros) or `"valid"`.
        depth_multiplier: Number of output channels per input channel.
        dilation_rate: Integer or pair; 1 where `strides` is above 1.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.
        projected: Whether the kernels are projected onto their balls, see `SpectralConv2D`.

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.SpectralDepthwiseConv2D(3, strides=2)(np.ones((1, 8, 8, 4), "float32")).shape)[1:]
        (4, 4, 4)

    **Guarantee.** That of `SpectralConv2D` with one group per channel: `||W_c||_2 <= 1` for each channel's (kh*kw,
    depth_multiplier) matrix, so the layer is 1-Lipschitz, and the gradient of all kernels together has norm at most
    `||x|| ||g||`, as `sum_c ||x_c||^2 ||g_c||^2 <= ||x||^2 ||g||^2`.
    """

    rank = 2
