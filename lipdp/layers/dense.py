"""Fully connected layer whose kernel has spectral norm at most one."""

from typing import Any

import keras
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import KernelLayer
from lipdp.norms import SpectralBall


@_keras.serializable
class SpectralDense(KernelLayer):
    """`y = x W` over the last axis, with `||W||_2 <= 1`.

    There is no bias and no activation inside: add `Bias` and `Abs` after it.

    Args:
        units: Number of outputs, a positive integer.
        kernel_initializer: Keras initializer; the kernel it returns is projected. Default: orthogonal.
        projected: Whether the kernel is projected onto the ball. A layer with nothing trainable upstream may
            leave it unconstrained: its own gradient does not depend on its norm. Put a `BoundedInput` after its
            activation, so that the next layers have a bound on their input.

    Call arguments:
        inputs: Tensor of shape `(batch, ..., features)`.

    Returns:
        Tensor of shape `(batch, ..., units)`.

    Raises:
        ValueError: `units` is not a positive integer.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> layers.SpectralDense(3)(np.ones((2, 5), "float32")).shape[1]
        3

    **Guarantee.** Under the kernel constraint (kept by the optimizer after each update and by `fit` before the first),
    `||y|| <= ||x||` and the layer is 1-Lipschitz. For one example with P positions the gradient of the kernel is
    `x^T g`, so its Frobenius norm is at most `||x|| ||g||`, any P. With `projected=False` the gradient bound stays,
    and the layer has no Lipschitz constant for training; certificates use the norm of the trained kernel. Float32
    rounding is covered by the slack that `bounds.propagate` adds per layer. Not covered: weights changed by hand
    during `fit`.
    """

    def __init__(
        self,
        units: int,
        kernel_initializer: str | keras.initializers.Initializer = "orthogonal",
        projected: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.units = checks.integer("units", units, 1)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.projected = checks.boolean("projected", projected)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.add_kernel((input_shape[-1], self.units), SpectralBall())

    def call(self, inputs: Any) -> Any:
        return ops.matmul(inputs, self.kernel)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)
