"""From tokens to vectors of bounded norm."""

import math
from typing import Any

import keras
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import LipschitzLayer, StartedIn, entries, integer_between
from lipdp.norms import RowBall


@_keras.serializable
class BoundedEmbedding(LipschitzLayer):
    """Replaces token t by `E[t] / sqrt(T)`, T = number of tokens of an example; each row of E has norm <= `max_norm`.

    Where a text or a list of codes enters a private network: no `BoundedInput` is needed in front of it.

    Args:
        input_dim: Number of different tokens, a positive integer.
        output_dim: Length of the vectors, a positive integer.
        max_norm: Largest norm of a row, in [1e-6, 1e6].
        embeddings_initializer: Keras initializer; rows are scaled into the ball.

    Call arguments:
        inputs: Integers of shape `(batch, ...)` with known inner sizes. What is below 0 or above
            `input_dim - 1` is read as the nearest token: no gather out of range, and no error that
            depends on private data.

    Returns:
        Tensor of shape `(batch, ..., output_dim)`.

    Raises:
        ValueError: an argument is out of range, or an inner size is not known.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> y = layers.BoundedEmbedding(10, 4, max_norm=2.0)(np.array([[1, 1, 3]]))
        >>> tuple(y.shape), bool(np.linalg.norm(y) <= 2.0)
        ((1, 3, 4), True)

    **Guarantee.** `||y||^2 = sum_p ||E[t_p]||^2 / T <= max_norm^2`, for all tokens. Row r of the gradient is
    `sum over p with t_p = r of g_p / sqrt(T)`: repeated tokens add. If token r occurs at m_r positions, its squared
    norm is at most `m_r / T` times the sum of `||g_p||^2` over these (Cauchy-Schwarz), so the whole gradient has norm
    at most `||g||`, reached by one token everywhere. Tokens are discrete: there is no Lipschitz constant, and so no
    certificate, upstream of this layer. Nothing trainable can come before it. Noise is added to all rows, including
    those of tokens that never occur.
    """

    lipschitz_formula, gradient_formula = "none: tokens", "‖g‖"

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        max_norm: float = 1.0,
        embeddings_initializer: str | keras.initializers.Initializer = "random_normal",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        # Data arrive in float32, which holds integers up to 2^24.
        self.input_dim = integer_between("input_dim", input_dim, 1, 2**24)
        self.output_dim = integer_between("output_dim", output_dim, 1, 2**24)
        self.max_norm = checks.between("max_norm", max_norm, 1e-6, 1e6)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        entries(input_shape, self)
        shape, ball = (self.input_dim, self.output_dim), RowBall(self.max_norm)
        initializer = StartedIn(ball, self.embeddings_initializer)
        self.embeddings = self.add_weight(shape, initializer, constraint=ball, name="embeddings")

    def call(self, inputs: Any) -> Any:
        return self._scaled_lookup(lambda tokens: ops.take(self.embeddings, tokens, axis=0), inputs)

    def _scaled_lookup(self, lookup, inputs):
        tokens = ops.clip(ops.cast(inputs, "int32"), 0, self.input_dim - 1)
        # Of these inputs, not of those it was built on: a shared layer may read texts of several lengths.
        return lookup(tokens) * (1.0 / math.sqrt(max(1, entries(inputs.shape, self))))

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        stock = keras.layers.Embedding(self.input_dim, self.output_dim, name=self.name)
        return stock, [ops.convert_to_numpy(self.embeddings)]

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return self._scaled_lookup(stock, inputs)

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        return (float("inf"),)

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        return self.max_norm

    def parameter_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        return (cotangent_bound,)

    def gradient_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int:
        return entries(input_shapes[0], self)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape, self.output_dim)
