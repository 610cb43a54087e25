"""The Householder activation."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras
from lipdp.layers.base import ShapePreserving, positions

# Pairs of channels up to which a product with a mostly empty matrix is faster than passes over the tensor.
_WIDEST_MATMUL = 64


@_keras.serializable
class Householder(ShapePreserving):
    """Reflects pairs of channels at a learned line: the half plane on one side of it stays, the other is mirrored.

    Channel i of the first half and channel i of the second half form a pair (a, b) with an angle t_i:
    unchanged where `a sin(t/2) >= b cos(t/2)`, otherwise `(a cos t + b sin t, a sin t - b cos t)`. At the
    initial angle pi / 2 that is (max, min). Freeze the angles with `trainable=False`.

    Call arguments:
        inputs: Tensor whose last axis is even and whose inner sizes are known.

    Returns:
        Tensor of the same shape.

    Raises:
        ValueError: the last axis is odd or an inner size is unknown.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> [round(float(v), 3) for v in layers.Householder()(np.array([[1.0, 5.0]], "float32"))[0]]
        [5.0, 1.0]

    **Guarantee.** Each pair is mapped by the identity or by a reflection, which agree on the line between them:
    continuous, 1-Lipschitz, keeps the norm up to rounding. Forward and backward pass use the same choice, so the
    Jacobian is orthogonal at ties too. The derivative of a reflected pair by its angle is
    `(-a sin t + b cos t, a cos t + b sin t)`, of norm `||(a, b)||`; for one angle read at P positions the gradient is
    at most `||x_i|| ||g_i||` (Cauchy-Schwarz), x_i and g_i the pair's share of input and cotangent, and all angles
    together have a gradient of norm at most `sqrt(sum_i ||x_i||^2 ||g_i||^2) <= ||x|| ||g||`. Any angle is allowed.
    Source of the activation: Singla et al., ICLR 2022.
    """

    gradient_formula = "‖x‖ ‖g‖"

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        positions(input_shape, self)
        if input_shape[-1] is None or input_shape[-1] % 2:
            raise ValueError(f"Householder needs an even, known last axis. Received: input shape {tuple(input_shape)}.")
        self.angles = self.add_weight(
            name="angles", shape=(input_shape[-1] // 2,), initializer=keras.initializers.Constant(math.pi / 2.0)
        )

    def call(self, inputs: Any) -> Any:
        # With n = (sin(t/2), -cos(t/2)), the normal of the line, both sides are x - 2 min(n x, 0) n: far fewer passes
        # over the tensor than a choice between two results.
        half = inputs.shape[-1] // 2
        sine, cosine = ops.sin(0.5 * self.angles), ops.cos(0.5 * self.angles)
        if half > _WIDEST_MATMUL:
            pairs, normals = ops.reshape(inputs, (-1, 2, half)), ops.stack([sine, -cosine])
            behind = ops.minimum(ops.sum(pairs * normals, axis=1, keepdims=True), 0.0)
            return ops.reshape(pairs - 2.0 * behind * normals, ops.shape(inputs))
        normals = ops.concatenate([ops.diag(sine), -ops.diag(cosine)], axis=0)
        pairs = ops.reshape(inputs, (-1, 2 * half))
        behind = ops.relu(-ops.matmul(pairs, normals))
        return ops.reshape(pairs + ops.matmul(behind, 2.0 * ops.transpose(normals)), ops.shape(inputs))

    def export_call(self, stock: Any, inputs: Any) -> Any:
        angles = ops.convert_to_numpy(self.angles)
        first, second = ops.split(inputs, 2, axis=-1)
        cosine, sine = np.cos(angles), np.sin(angles)
        unchanged = first * np.sin(0.5 * angles) > second * np.cos(0.5 * angles)
        mirrored = first * cosine + second * sine, first * sine - second * cosine
        halves = [ops.where(unchanged, *pair) for pair in zip((first, second), mirrored, strict=True)]
        return ops.concatenate(halves, axis=-1)

    def gradient_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int:
        # Two sums of which each may be as large as the bound, see `call`.
        return 2 * positions(output_shape, self)

    def parameter_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        return (input_bounds[0] * cotangent_bound,)
