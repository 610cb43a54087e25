"""Default settings of a head: a small classifier of what a frozen network has made of images or texts."""

import math

from lipdp import checks
from lipdp.models.base import LARGEST_BATCH, METHODS
from lipdp.models.table import ROWS_OF_RATE, TableRecipe

# Features hang together more than the columns of a table, and ask for smaller steps.
_RATE = 0.5
# A hidden layer pays from this product of rows and budget on; below it has more noise than use.
_SIGNAL_OF_HIDDEN, _HIDDEN = 16000.0, 64


def head_recipe(
    input_shape: tuple[int, ...],
    num_classes: int,
    num_examples: int,
    epsilon: float | None = None,
    *,
    method: str = "dpsgd",
) -> TableRecipe:
    """Returns the settings that reach the highest accuracy here on the features of a frozen network.

    They depend on public facts only: sizes, the number of examples, the budget; not on any value. The network must come
    from public data: the budget covers the head alone.

    Args:
        input_shape: `(features,)`, of what `lipdp.features` returns, in any unit: each row is standardized by its own
            mean and deviation.
        num_classes: number of classes.
        num_examples: number of training examples; fewer than 8000 train at a lower rate.
        epsilon: the budget; None when the noise is given instead. Larger budgets train for longer.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".

    Returns:
        A `TableRecipe`, without a hidden layer where rows are few; change it with `dataclasses.replace`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> head_recipe((512,), num_classes=10, num_examples=2000, epsilon=2.0).hidden
        0
    """
    checks.choice("method", method, METHODS)
    if len(tuple(input_shape)) != 1:
        raise ValueError(
            f"A head takes rows of features. Received: input_shape={input_shape!r}. Pass (features,); average over "
            "places first, as keras.layers.GlobalAveragePooling2D does."
        )
    features = checks.integer("input_shape", input_shape[0], 2)
    num_classes = checks.integer("num_classes", num_classes, 2)
    num_examples = checks.integer("num_examples", num_examples, 1)
    batch_size = max(1, min(LARGEST_BATCH, num_examples // 2))
    budget, shared = TableRecipe.by_budget(num_examples, epsilon, batch_size)
    # Chosen on held-out training images, see `benchmarks/heads.py`.
    return TableRecipe(
        input_shape=(features,),
        num_classes=num_classes,
        input_norm=math.sqrt(features),
        standardized=True,
        hidden=_HIDDEN if num_examples * budget >= _SIGNAL_OF_HIDDEN else 0,
        learning_rate=_RATE * math.sqrt(budget) * min(1.0, num_examples / ROWS_OF_RATE),
        method=method,
        **shared,
    )
