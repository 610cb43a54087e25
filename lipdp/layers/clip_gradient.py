"""Clipping in the backward pass, at any place of the graph."""

from typing import Any

import keras
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import ShapePreserving, entries
from lipdp.norms import sums


@_keras.serializable
class ClipGradient(ShapePreserving):
    """The identity, whose backward pass clips each example's cotangent to a norm.

    Everything between the input and this layer then gets less noise: its gradient bounds start from `norm`. A loss
    with `clip=` does the same at the logits, more cheaply.

    Args:
        norm: Largest norm of one example's cotangent, in units of the loss of one example, in [1e-6, 1e6].

    Call arguments:
        inputs: Tensor of shape `(batch, ...)`.

    Returns:
        The same tensor.

    Raises:
        ValueError: `norm` is out of range, an inner size of what `fit` passes through is not known, or there are so
            many entries (about 1.7e9) that rounding would take more than one per cent of the norm.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> [float(v) for v in layers.ClipGradient(0.1)(np.array([[3.0, 4.0]], "float32"))[0]]
        [3.0, 4.0]

    **Guarantee.** `g -> g min(1, c / ||g||)` is applied to the whole cotangent of each example, after autodiff has
    summed what all readers of the output send back; a layer used several times clips each use. `fit` averages the loss
    over the expected batch size B, so `c = norm * scale` with the variable `scale`, which `fit` sets to 1 / B. Before
    it does, `scale` is 0 and nothing trains: a forgotten scale cannot void a bound. The computed norm of n entries errs
    by at most (c + 8) 2^-24 relative, c = n up to 2^16 entries and about 2 sqrt(n) above (`norms.sums`), and the limit
    is reduced by twice that. The forward pass, and so every certificate, is that of the identity: 1-Lipschitz. Not
    covered: gradients taken outside of `fit`, and losses scaled by hand.
    """

    lipschitz_formula = "1; cotangents at most `norm`"

    def __init__(self, norm: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.norm = checks.between("norm", norm, 1e-6, 1e6)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        # A variable: a constant would be compiled into the step, and `fit` may change the batch size.
        self.scale = self.add_weight(name="scale", shape=(), initializer="zeros", trainable=False)
        if None not in input_shape[1:]:
            self._margin(input_shape)

    def call(self, inputs: Any) -> Any:
        limit = self.norm * ops.convert_to_tensor(self.scale)
        # Sizes that the graph of the model leaves open are known by the time that gradients are taken.
        return _clipped(inputs, limit, lambda: self._margin(inputs.shape))

    def _margin(self, shape) -> float:
        return sums.margin(entries(shape, self), times=2.0, name=f"The input of layer '{self.name}'")

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        return keras.layers.Identity(name=self.name), []

    def cotangent_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        return (min(cotangent_bound, self.norm),)


def _clipped(inputs, limit, margin):
    @ops.custom_gradient
    def identity(inputs, limit):
        def backward(*args, upstream=None):
            # JAX passes the cotangent by position, TensorFlow also by keyword.
            cotangent = upstream if upstream is not None else args[0]
            radius = limit * margin()
            # Divided by the largest entry first: squares of small cotangents would underflow.
            axes = tuple(range(1, len(cotangent.shape)))
            largest = ops.max(ops.abs(cotangent), axis=axes, keepdims=True)
            largest = ops.where(largest > 0, largest, ops.ones_like(largest))
            norm = ops.sqrt(sums.sum_of_squares(cotangent / largest)) * largest
            factor = ops.where(norm > radius, radius / ops.where(norm > radius, norm, ops.ones_like(norm)), 1.0)
            return cotangent * factor, ops.zeros_like(limit)

        return inputs, backward

    return identity(inputs, limit)
