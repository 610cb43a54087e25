"""Normalization by moments of the data, which `fit` reads with noise and charges."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.released import Query, ReleasedConstants

# Room for the float32 roundings of one subtraction, one root and one product.
_ROUNDING = 1.0 + 1e-6


@_keras.serializable
class PrivateNormalization(ReleasedConstants):
    """Subtracts the mean of the data and divides by their standard deviation, both released with noise by `fit`.

    Keras' `Normalization`, whose `adapt` reads the exact moments off the rows, leaks: epsilon does not cover it. Here
    the first `fit` of a model with this layer releases them as two Gaussian queries, charges these to the model's
    ledger, and spends what is left of the budget on the updates. Later fits keep them. Nothing that trains may stand in
    front of it; for clipless training a `BoundedInput` follows.

    Args:
        norm: Largest L2 norm of an example, over all its entries, in [1e-6, 1e6]; longer ones are clipped to it while
            the moments are computed, and there only. A public constant, near the norm of most examples: never computed
            from private data.
        noise_multiplier: Noise standard deviation of each of the two releases over its sensitivity, in [1e-3, 1e6].
            About `24 / epsilon` for budgets below 3, else 8: 100 updates or more then get a few percent more noise.
        axis: Axis or axes of the input, never the batch axis 0, whose entries each have a variance of their own, as in
            Keras; None: one variance for all. The fewer variances, the less noise in each. Means are those of each
            entry, whatever the axis.

    Call arguments:
        inputs: Tensor of shape `(batch, ...)` with known inner sizes.

    Returns:
        Tensor of the same shape. Before the first `fit` the inputs as they are.

    Raises:
        ValueError: an argument is out of range, the batch axis is named, an axis does not exist, or an inner size is
            unknown.

    Example:
        >>> import keras, numpy as np, lipdp
        >>> from lipdp import layers
        >>> x = np.random.default_rng(0).normal(2.0, 0.1, (1000, 3)).astype("float32")
        >>> model = lipdp.DP_Sequential([keras.Input((3,)), layers.PrivateNormalization(norm=4.0),
        ...                              keras.layers.Dense(2)])
        >>> model.compile("sgd", loss=lipdp.losses.SparseCategoricalCrossentropy())
        >>> _ = model.fit(x, np.arange(1000) % 2, epsilon=4.0, verbose=0)
        >>> [entry.kind for entry in model.run.ledger.entries], abs(float(model.layers[0].mean[0]) - 2.0) < 0.5
        (['moments', 'moments', 'gradient'], True)

    **Guarantee.** Conditions: each row of what reaches the layer depends on one example, and nothing in front of it is
    trained; `fit` refuses what does not fulfil that. Bound: the first release is the mean of the rows, each clipped
    to `norm`: one example moves it by at most `norm / N`. The second one is, for each entry along `axis`, the average
    square of what is left of clipped rows less the released mean, each example's squares clipped to L2 norm
    `norm ** 2 / (P sqrt(K))`, with K variances of P entries each: the norm that squares have when an example of full
    length spreads evenly. One example moves it by at most that over N. Variances are never below the standard deviation
    of the noise in them. Given both, the layer is an affine map of each example, with the Lipschitz constant
    `1 / sqrt(smallest variance)`. Not covered: `norm`, should it follow from the data; constants set by hand.
    """

    lipschitz_formula = "1 / smallest deviation"
    released = "Mean and variance"
    mechanism = "private_normalization"

    def __init__(
        self,
        norm: float = 1.0,
        noise_multiplier: float = 8.0,
        axis: int | Sequence[int] | None = -1,
        **kwargs: Any,
    ):
        super().__init__(noise_multiplier, **kwargs)
        self.norm = checks.between("norm", norm, 1e-6, 1e6)
        if isinstance(axis, (tuple, list)):
            self.axis: Any = tuple(checks.integer("axis", a, -64) for a in axis)
        else:
            self.axis = checks.integer("axis", axis, -64, optional=True)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        rank, shape = len(input_shape), tuple(input_shape)
        given = () if self.axis is None else (self.axis,) if isinstance(self.axis, int) else self.axis
        kept = sorted({a + rank if a < 0 else a for a in given})
        if any(a < 1 or a >= rank for a in kept):
            raise ValueError(
                "PrivateNormalization has variances along existing axes of one example; axis 0 is the batch. Received: "
                f"axis={self.axis!r}, input shape {shape}."
            )
        self._shape = self.sizes(shape)
        # Of one example.
        self._over = tuple(a - 1 for a in range(1, rank) if a not in kept)
        sizes = tuple(1 if a in self._over else n for a, n in enumerate(self._shape))
        self.mean = self.add_weight(name="mean", shape=self._shape, initializer="zeros", trainable=False)
        self.variance = self.add_weight(name="variance", shape=sizes, initializer="ones", trainable=False)
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        return (inputs - ops.convert_to_tensor(self.mean)) / ops.sqrt(ops.convert_to_tensor(self.variance))

    def export_call(self, stock: Any, inputs: Any) -> Any:
        mean, variance = ops.convert_to_numpy(self.mean), ops.convert_to_numpy(self.variance)
        centered = keras.layers.Rescaling(1.0, offset=(-mean).tolist())(inputs)
        return keras.layers.Rescaling((1.0 / np.sqrt(variance)).tolist())(centered)

    def queries(self) -> tuple[Query, ...]:
        def sum_of(values: Callable[[np.ndarray], np.ndarray]) -> Callable:
            return lambda rows, weights: _weighed(values(rows), weights)

        return (
            Query(self.norm, sum_of(self.clipped), lambda mean, *_: self.set_mean(mean)),
            Query(self.square_norm, sum_of(self.squares), self.set_variance),
        )

    @property
    def square_norm(self) -> float:
        """What the average squares of one example are clipped to, see the guarantee."""
        count = math.prod(self.variance.shape)
        return self.norm**2 / (math.prod(self._shape) / count * math.sqrt(count))

    def clipped(self, rows: np.ndarray) -> np.ndarray:
        """Returns rows `(n, ...)` in float64, clipped to `norm`; what is not finite becomes zero."""
        return _clipped(rows.astype("float64"), self.norm)

    def squares(self, rows: np.ndarray) -> np.ndarray:
        """Returns the average squares of clipped rows less the present mean, clipped to `square_norm`."""
        left = np.square(self.clipped(rows) - np.asarray(ops.convert_to_numpy(self.mean), "float64"))
        averages = left.mean(axis=tuple(a + 1 for a in self._over), keepdims=True) if self._over else left
        return _clipped(averages, self.square_norm)

    def set_mean(self, mean: np.ndarray) -> None:
        """Takes over a released mean."""
        self.mean.assign(mean.astype("float32"))

    def set_variance(self, variance: np.ndarray, deviation: float, num_examples: int) -> None:
        """Takes over released variances with noise of this standard deviation, from so many examples."""
        least = max(deviation, 1e-12 * self.norm**2)
        self.variance.assign(np.maximum(variance, least).astype("float32"))
        self.num_examples.assign(float(num_examples))

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        return float("inf")

    def trained_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        return (_ROUNDING / math.sqrt(float(np.min(ops.convert_to_numpy(self.variance)))),)

    def trained_output_bound(self, input_bounds: tuple[float, ...]) -> float:
        """Returns the largest norm of the output for the present moments."""
        mean = float(np.linalg.norm(np.asarray(ops.convert_to_numpy(self.mean), "float64")))
        return self.trained_lipschitz(input_bounds)[0] * (input_bounds[0] + mean)


def _weighed(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Returns the sum of values `(n, ...)`, each times its weight."""
    if weights is not None:
        values = values * weights.reshape(-1, *[1] * (values.ndim - 1))
    return values.sum(axis=0)


def _clipped(rows: np.ndarray, norm: float) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.square(rows).sum(axis=tuple(range(1, rows.ndim)), keepdims=True))
    finite = np.isfinite(norms)
    factors = np.where(finite, norm / np.maximum(np.where(finite, norms, norm), norm), 0.0)
    return np.where(finite, rows, 0.0) * factors
