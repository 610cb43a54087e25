"""A bias with a bounded norm, sound on feature maps and token sequences."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import ShapePreserving, positions
from lipdp.norms import L2Ball, sums

# Up to so many positions the gradient is one sum, whose rounding is below 0.03 % of its bound.
_AT_ONCE = 2**12


@_keras.serializable
class Bias(ShapePreserving):
    """Adds `b / sqrt(P)` over the last axis, with `||b|| <= max_norm`; P = number of positions.

    Args:
        max_norm: Largest norm of the bias vector, > 0.

    Call arguments:
        inputs: Tensor of shape `(batch, ..., features)` with known inner sizes.

    Returns:
        Tensor of the same shape.

    Raises:
        ValueError: `max_norm` is not positive, or an inner size is unknown.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> tuple(layers.Bias()(np.zeros((2, 4, 4, 3), "float32")).shape)[1:]
        (4, 4, 3)

    **Guarantee.** 1-Lipschitz in its input. The same bias is read at P positions, so without the scale its gradient
    would be `sum_p g_p`, of norm up to `sqrt(P) ||g||`; with it the gradient is `sum_p g_p / sqrt(P)`, of norm at most
    `||g||` (Cauchy-Schwarz), and the output obeys `||y|| <= ||x|| + max_norm`. From 4096 positions on, the gradient is
    summed by blocks, so that its rounding grows with `sqrt(P)` (`norms.sums`). Not covered: weights changed by hand
    during `fit`.
    """

    gradient_formula = "‖g‖"

    def __init__(self, max_norm: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.max_norm = checks.positive("max_norm", max_norm)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        positions(input_shape, self)
        self.bias = self.add_weight(
            name="bias", shape=(input_shape[-1],), initializer="zeros", constraint=L2Ball(self.max_norm)
        )

    def call(self, inputs: Any) -> Any:
        # Of these inputs, not of those it was built on: a shared layer may read feature maps of several sizes.
        count = positions(inputs.shape, self)
        bias = self.bias * (1.0 / math.sqrt(count))
        return inputs + bias if count <= _AT_ONCE else _added(inputs, ops.convert_to_tensor(bias))

    def export_call(self, stock: Any, inputs: Any) -> Any:
        shift = ops.convert_to_numpy(self.bias) * np.float32(1.0 / math.sqrt(positions(inputs.shape, self)))
        return keras.layers.Rescaling(1.0, offset=shift.tolist())(inputs)

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        return input_bounds[0] + self.max_norm

    def trained_output_bound(self, input_bounds: tuple[float, ...]) -> float:
        """Returns the largest norm of the output for the present bias, which may have been set by hand."""
        length = float(np.linalg.norm(np.asarray(ops.convert_to_numpy(self.bias), "float64")))
        return input_bounds[0] + (math.inf if math.isnan(length) else length)

    def parameter_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        return (cotangent_bound,)

    def gradient_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int:
        return sums.chain(positions(output_shape, self), _AT_ONCE)


@ops.custom_gradient
def _added(inputs, bias):
    """The sum of both; autodiff would leave to the compiler in which order the gradient of the bias is added up."""

    def backward(*args, upstream=None):
        cotangent = upstream if upstream is not None else args[0]
        return cotangent, sums.sum_over_positions(cotangent, _AT_ONCE)

    return inputs + bias, backward
