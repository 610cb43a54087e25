"""Default settings for a number of a table: the network of tables, with one output in the unit of the target."""

import dataclasses
from typing import Any

import keras
import numpy as np

from lipdp import checks, losses
from lipdp.models.table import TableRecipe, table_recipe

# Name of the last layer, which brings the output into the unit of the target.
UNITS = "units"
# Chosen on held-out rows: `benchmarks/regression.py --inner`. Errors are parts of a range, so gradients are small.
_CLIP_NORM, _RATE, _CONSTANT_UNIT = 0.3, 0.25, 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionRecipe(TableRecipe):
    """The settings of one training run that learns a number from the rows of a table.

    The network is that of `models.TableRecipe`, with one output. It begins at the middle of the range of the target,
    and its last layer, which is fixed, brings it into the unit of the target: `fit`, `evaluate` and `predict` take and
    return numbers in this unit. The loss is Huber's, on errors in parts of the width of the range, so that no row has
    a large gradient however far its target lies.

    Args:
        target_range: `(low, high)` of the target: what follows from its meaning, not the ends of private rows.
        huber: error, in parts of the width of the range, from which on the loss is absolute.
        **kwargs: see `models.TableRecipe`.

    Example:
        >>> regression_recipe((8,), num_examples=20000, target_range=(0, 500000), epsilon=1.0).target_range
        (0.0, 500000.0)
    """

    target_range: tuple[float, float]
    huber: float = 0.1

    def clipped(self, outputs: Any) -> np.ndarray:
        """Returns what a model of this recipe predicts, shape `(N,)`, clipped to the range of the target."""
        return np.clip(np.asarray(outputs, "float64").reshape(-1), *self.target_range)

    def _ending(self) -> list[keras.Layer]:
        low, high = self.target_range
        middle = keras.initializers.Constant(0.5)
        return [
            keras.layers.Dense(1, kernel_initializer="zeros", bias_initializer=middle, name="part_of_range"),
            keras.layers.Rescaling(high - low, low, name=UNITS),
        ]

    def _metrics(self) -> list[str]:
        return ["mean_absolute_error"]

    def _loss(self, model: Any) -> losses.Loss:
        low, high = self.target_range
        return losses.Huber(self.huber, scale=high - low)


def regression_recipe(
    input_shape: tuple[int, ...],
    num_examples: int,
    target_range: tuple[float, float],
    epsilon: float | None = None,
    *,
    method: str = "dpsgd",
    row_norm: float | None = None,
    rescaled: bool = False,
) -> RegressionRecipe:
    """Returns the settings that come closest here to the numbers of a table.

    They depend on public facts only: shapes, the number of examples, the range of the target, the budget.

    Args:
        input_shape: shape of one row, `(columns,)`.
        num_examples: number of training examples.
        target_range: `(low, high)` of the target, in its unit: what follows from its meaning, such as (0, 120) for an
            age, not the ends of private rows. Predictions are clipped to it; a target beyond counts as it is.
        epsilon: the budget; None when the noise is given instead.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".
        row_norm: see `models.table_recipe`.
        rescaled: see `models.table_recipe`.

    Returns:
        A `RegressionRecipe`; change it with `dataclasses.replace`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1.0, 1.0, (4000, 3)).astype("float32")
        >>> recipe = regression_recipe((3,), 4000, target_range=(0, 100), epsilon=4.0)
        >>> model = recipe.fit(x, 50.0 + 40.0 * x[:, 0], epsilon=4.0, delta=1e-5, verbose=0)
        >>> bool(np.abs(recipe.clipped(model.predict(x, verbose=0)) - 50.0 - 40.0 * x[:, 0]).mean() < 10.0)
        True
    """
    low_high = checks.as_range(target_range, " It is `target_range`.")
    shared = table_recipe(input_shape, 2, num_examples, epsilon, method=method, row_norm=row_norm, rescaled=rescaled)
    settings = {field.name: getattr(shared, field.name) for field in dataclasses.fields(shared)}
    settings |= {"num_classes": 1, "target_range": low_high, "clip_norm": _CLIP_NORM, "constant_unit": _CONSTANT_UNIT}
    return RegressionRecipe(**settings | {"learning_rate": shared.learning_rate * _RATE / _CLIP_NORM})
