"""Default settings for the accuracy of tables: a small network on normalized columns."""

import dataclasses
import math

import keras
import numpy as np

from lipdp import checks, layers
from lipdp.model import DP_Sequential
from lipdp.models.base import LARGEST_BATCH, METHODS, NormalizedRecipe

# With fewer rows the noise of an update, which is as much larger, takes a lower rate.
ROWS_OF_RATE = 8000
# With more rows the noise is smaller, which leaves room for a higher rate and more updates: twice as many at most.
_MANY_ROWS = 40000
# Rows for each standard deviation of the noise in a count of `layers.PrivateRescaling`: with fewer, columns that happen
# to be of one size lose more than others gain.
_ROWS_OF_NOISE = 60
# Chosen by `benchmarks/unseen_tables.py --inner`, on tables of which most have a rare class.
_CONSTANT_UNIT = 5.0
_NUMBERS = "Pass task='regression' and target_range=(low, high) to predict a number: docs/howto/regression.md."


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRecipe(NormalizedRecipe):
    """The settings of one training run on the rows of a table; every one is a public constant.

    Columns in unknown units are mapped to [-1, 1] by private ranges (`layers.PrivateRescaling`), features of a frozen
    network standardized row by row. Rows are clipped to a norm and normalized by private moments
    (`layers.PrivateNormalization`); then come a hidden layer with ReLU and a layer of logits. A model of `build` is
    trained with `fit(strategy=recipe.strategy())`.

    Args:
        input_shape: shape of one row, `(columns,)`.
        num_classes: number of classes.
        batch_size: expected batch size.
        epochs: expected passes over the data.
        input_norm: norm that rows are clipped to.
        rescaled: whether the range of each column is released first, with noise (`layers.PrivateRescaling`).
        standardized: whether each row is first brought to mean 0 and deviation 1, by its own numbers alone.
        moments_noise: noise multiplier of the two releases of moments, and of the three of ranges.
        hidden: width of the hidden layer; 0 for none.
        constant_unit: value at which one hidden unit starts, the same for every row; 0 for a unit like the others.
            Through it the logits learn within a few updates how often each class occurs, and rows of a rare class are
            heard after that. About 5 where a class may be rare, 0 where classes are of one size.
        learning_rate: of stochastic gradient descent, at the start; it falls linearly to zero.
        momentum: of stochastic gradient descent.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".
        clip_norm: L2 norm that the gradient of each example is clipped to.

    Example:
        >>> table_recipe((20,), num_classes=2, num_examples=30000, epsilon=1.0).updates(30000)
        152
    """

    input_norm: float
    rescaled: bool = False
    standardized: bool = False
    hidden: int = 64
    constant_unit: float = 0.0

    @property
    def num_releases(self) -> int:
        return 5 if self.rescaled else 2

    def build(self, num_examples: int) -> DP_Sequential:
        """Returns the compiled model.

        Args:
            num_examples: number of training examples, sets the length of the learning-rate schedule.

        Returns:
            A `DP_Sequential`, compiled, with the metric "accuracy".
        """
        stack = [
            keras.Input(self.input_shape, name="input"),
            *([layers.PrivateRescaling(self.moments_noise, name="rescaling")] if self.rescaled else []),
            *([_standardization()] if self.standardized else []),
            layers.BoundedInput(norm=self.input_norm, name="bounded_input"),
            layers.PrivateNormalization(self.input_norm, self.moments_noise, name="normalization"),
        ]
        if self.hidden:
            stack.append(keras.layers.Dense(self.hidden, activation="relu", name="hidden"))
        model = DP_Sequential([*stack, *self._ending()], name="lipdp")
        if self.hidden and self.constant_unit:
            hidden, first = model.get_layer("hidden"), np.arange(self.hidden) == 0
            kernel, bias = hidden.get_weights()
            hidden.set_weights([np.where(first, 0.0, kernel), np.where(first, self.constant_unit, bias)])
        return self._compiled(model, num_examples)

    def _ending(self) -> list[keras.Layer]:
        return [keras.layers.Dense(self.num_classes, kernel_initializer="zeros", name="logits")]


def rescales(num_columns: int, num_examples: int, noise_multiplier: float) -> bool:
    """Returns whether a table has rows enough for private ranges."""
    return num_examples >= _ROWS_OF_NOISE * noise_multiplier * math.sqrt(num_columns)


def table_recipe(
    input_shape: tuple[int, ...],
    num_classes: int,
    num_examples: int,
    epsilon: float | None = None,
    *,
    method: str = "dpsgd",
    row_norm: float | None = None,
    rescaled: bool = False,
) -> TableRecipe:
    """Returns the settings that reach the highest accuracy here on tables.

    They depend on public facts only: shapes, the number of examples, the budget; not on any value. Columns should be of
    order one, as `data.Table` and `data.scale` make them; where some are much larger than the others, those alone are
    seen, unless the recipe is `rescaled`.

    Args:
        input_shape: shape of one row, `(columns,)`.
        num_classes: number of classes.
        num_examples: number of training examples; fewer than 8000 train at a lower rate, more than 40000 at a higher
            rate and for longer.
        epsilon: the budget; None when the noise is given instead. Larger budgets train for longer.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".
        row_norm: a public bound on the L2 norm of a row, such as `data.Table.norm`. Default: the square root of the
            number of columns.
        rescaled: whether the columns are in units of which no ranges are publicly known: these are released first, with
            noise, which costs a few percent more noise in the updates.

    Returns:
        A `TableRecipe`; change it with `dataclasses.replace`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> table_recipe((16,), num_classes=2, num_examples=30000, epsilon=1.0).input_norm
        4.0
    """
    checks.choice("method", method, METHODS)
    if len(tuple(input_shape)) != 1:
        raise ValueError(f"Rows have one size. Received: input_shape={input_shape!r}. Pass (columns,).")
    num_classes = checks.integer("num_classes", num_classes, 2, hint=_NUMBERS)
    num_examples = checks.integer("num_examples", num_examples, 1)
    if checks.boolean("rescaled", rescaled) and row_norm is not None:
        raise ValueError(
            f"Rescaled rows have a norm of their own. Received: row_norm={row_norm!r} with rescaled=True. Leave one of "
            "them out: no range is released where a bound is publicly known."
        )
    if row_norm is not None:
        row_norm = checks.between("row_norm", row_norm, 1e-6, 1e6)
    batch_size = max(1, min(LARGEST_BATCH, num_examples // 2))
    # Chosen on a part of the training rows of tables of ADBench, of some of them too: `benchmarks/tabular.py --inner`.
    many = min(max(1.0, num_examples / _MANY_ROWS), 2.0)
    rate = many * min(1.0, num_examples / ROWS_OF_RATE)
    budget, shared = TableRecipe.by_budget(num_examples, epsilon, batch_size, many)
    return TableRecipe(
        input_shape=tuple(input_shape),
        num_classes=num_classes,
        input_norm=math.sqrt(input_shape[0]) if row_norm is None else row_norm,
        rescaled=rescaled,
        constant_unit=_CONSTANT_UNIT,
        learning_rate=math.sqrt(budget) * rate,
        method=method,
        **shared,
    )


def _standardization() -> keras.layers.Layer:
    return keras.layers.LayerNormalization(epsilon=1e-6, center=False, scale=False, name="standardization")
