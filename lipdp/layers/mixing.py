"""Dense layers across the tokens of a sequence."""

from typing import Any

from keras import ops

from lipdp import _keras
from lipdp.layers.base import entries
from lipdp.layers.dense import SpectralDense


@_keras.serializable
class TokenMixing(SpectralDense):
    """`y = W' x` over the tokens of a sequence, with `||W||_2 <= 1`: one matrix, applied to every channel.

    The token mixing of an MLP-Mixer; its channel mixing is `SpectralDense`, which works on the last axis.

    Args:
        units: Number of output tokens, a positive integer.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.
        projected: Whether the kernel is projected onto the ball, see `SpectralDense`.

    Call arguments:
        inputs: Tensor of shape `(batch, tokens, channels)`.

    Returns:
        Tensor of shape `(batch, units, channels)`.

    Raises:
        ValueError: `units` is not a positive integer, or the input has no token axis of known size.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.TokenMixing(3)(np.ones((2, 5, 4), "float32")).shape)[1:]
        (3, 4)

    **Guarantee.** W acts on each of the columns of the (tokens, channels) matrix x, so `||y||_F <= ||W||_2 ||x||_F`:
    the layer is 1-Lipschitz. For one example the gradient of W is `x g'`, a product of matrices, with
    `||x g'||_F <= ||x||_2 ||g||_F <= ||x|| ||g||`, however many channels there are.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if len(input_shape) != 3 or input_shape[1] is None:
            raise ValueError(
                f"Layer '{self.name}' mixes the tokens of inputs of shape (batch, tokens, channels). Received: input "
                f"shape {tuple(input_shape)}."
            )
        super().build((input_shape[0], input_shape[2], input_shape[1]))

    def call(self, inputs: Any) -> Any:
        return ops.matmul(ops.transpose(self.kernel), inputs)

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return ops.transpose(stock(ops.transpose(inputs, (0, 2, 1))), (0, 2, 1))

    def gradient_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int:
        return entries((None, output_shape[2]), self)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], self.units, input_shape[2])
