"""A convolution whose filters have mean zero and one norm, inside the forward pass."""

from typing import Any

import keras
from keras import ops

from lipdp import _keras

# The smallest squared norm of a centered filter that is divided by: equal weights stand for nothing.
_FLOOR = 1e-4


@_keras.serializable
class StandardizedConv2D(keras.layers.Conv2D):
    """`Conv2D` with weight standardization: each filter is centered, divided by its norm and multiplied by a gain.

    The convolution of Qiao et al. 2019 and Brock et al. 2021, which De et al. 2022 train by DP-SGD, with group
    normalization behind it. Noise adds to the kernel's length in every update and cannot add to that of what is
    convolved with; as a kernel grows, steps turn it by less. For strategies that clip: it has no bounds for clipless
    training, nor certificates.

    Args:
        *args: As those of `keras.layers.Conv2D`: `filters`, `kernel_size`, `strides` and so on.
        **kwargs: As those of `keras.layers.Conv2D`, `padding="valid"` and `use_bias=True` unless told otherwise.

    Call arguments:
        inputs: As those of `keras.layers.Conv2D`: images `(batch, height, width, channels)`.

    Returns:
        The tensor that `Conv2D` returns for the kernel `gain * (w - mean(w)) / max(||w - mean(w)||, 0.01)`, filter by
        filter, in place of `w`. A filter has `kernel_size * channels / groups` weights, and one gain that is trained.

    Raises:
        ValueError: an argument is one that `keras.layers.Conv2D` refuses.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> layer = layers.StandardizedConv2D(2, 3)
        >>> layer.build((None, 8, 8, 4))
        >>> filters = np.reshape(layer.standardized(7.0 * layer.kernel + 1.0), (-1, 2))
        >>> [round(float(v), 3) for v in np.linalg.norm(filters, axis=0)], [w.name for w in layer.weights]
        ([1.0, 1.0], ['kernel', 'bias', 'gain'])

    **Guarantee.** Each row of the output is a function of the same row of the input and the weights, and strategies
    that clip compute the gradients of kernel and gain through the standardization, one for each example, and take norm
    and sum of the same float32 numbers. There is no Lipschitz constant.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.gain = self.add_weight(name="gain", shape=(self.filters,), initializer="ones")

    def standardized(self, kernel: Any) -> Any:
        """Returns the kernel that inputs are convolved with."""
        found, _, _ = directions(kernel)
        return ops.cast(found * ops.cast(self.gain, "float32"), kernel.dtype)

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        return super().convolution_op(inputs, self.standardized(kernel))

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)  # kernel and bias, as Keras' convolutions write them
        if self.built:
            store["gain"] = self.gain

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        if self.built:
            self.gain.assign(store["gain"])

    def stock_layer(self) -> tuple[keras.layers.Layer, list]:
        """Returns Keras' own layer that computes the same, and its weights."""
        kernel = ops.convert_to_numpy(self.standardized(ops.convert_to_tensor(self.kernel)))
        return keras.layers.Conv2D.from_config(self.get_config()), [
            kernel,
            *([] if self.bias is None else [ops.convert_to_numpy(self.bias)]),
        ]


def directions(kernel: Any) -> tuple[Any, Any, Any]:
    """Returns each centered filter over its norm, one over that norm, and whether it is above its floor, in float32."""
    kernel = ops.cast(kernel, "float32")
    centered = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
    squares = ops.sum(ops.square(centered), axis=(0, 1, 2), keepdims=True)
    inverse = ops.rsqrt(ops.maximum(squares, _FLOOR))
    return centered * inverse, inverse, squares > _FLOOR
