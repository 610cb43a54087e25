"""One door to the settings that need no choice: a network and how it is trained, from shapes and sizes."""

import operator
from typing import Any

from lipdp import checks, diffusion
from lipdp.models.classifier import ClassifierRecipe, classifier_recipe
from lipdp.models.language import LanguageRecipe, language_recipe
from lipdp.models.regression import RegressionRecipe, regression_recipe
from lipdp.models.scattered import ScatteredRecipe
from lipdp.models.table import TableRecipe
from lipdp.models.text import TextRecipe, text_recipe
from lipdp.models.wide_resnet import WideResNetRecipe

TASKS = ("classifier", "diffusion", "language", "regression", "text")


def recipe(
    input_shape: tuple[int, ...],
    num_classes: int,
    num_examples: int,
    epsilon: float | None = None,
    *,
    task: str = "classifier",
    **settings: Any,
) -> (
    ClassifierRecipe
    | ScatteredRecipe
    | TableRecipe
    | WideResNetRecipe
    | diffusion.Recipe
    | LanguageRecipe
    | RegressionRecipe
    | TextRecipe
):
    """Returns settings that learn, for data of one shape and size: network, loss, rate, norms, batch size, epochs.

    They depend on public facts only: shapes, the number of examples, the budget; not on any value. They are those of
    `lipdp train`.

    Args:
        input_shape: Shape of one example: `(height, width, channels)` of an image, `(columns,)` of a table, or
            `(length,)` of a text as a tokenizer makes it.
        num_classes: Number of classes; of a language model, of the numbers that a token may be; 1 of a number to
            predict.
        num_examples: Number of training examples.
        epsilon: The budget; None when the noise is given instead. Larger budgets train for longer.
        task: `"classifier"`: for tables and larger sets of images the most accurate network by DP-SGD, else, and with
            `method="clipless"`, a clipless network with certificates; with `style="wrn"` a wide residual network,
            made for a GPU. `"diffusion"`: a model that draws images of each class, trained by DP-SGD. `"text"`: a
            classifier of texts, linear or by attention, trained by DP-SGD. `"language"`: a small transformer that
            learns each next byte of texts, and writes others. `"regression"`: a number of a table, by DP-SGD.
        **settings: For a classifier see `models.classifier_recipe`; for diffusion see `diffusion.recipe`; for
            texts `style` and `vocabulary_size`, see `models.text_recipe`; see `models.language_recipe`; for a number
            `target_range`, its public range, see `models.regression_recipe`.

    Returns:
        A recipe. `recipe.fit(x, y, epsilon=..., delta=...)` trains and returns the model; `dataclasses.replace`
        changes a setting.

    Raises:
        ValueError: an argument is out of range, or images are asked for of what is none.

    Example:
        >>> recipe((28, 28, 1), num_classes=10, num_examples=60000, epsilon=1.0).batch_size
        8192
        >>> recipe((28, 28, 1), 10, 60000, 10.0, task="diffusion").network
        'cpu-28'
    """
    _check_shape(input_shape)
    if checks.choice("task", task, TASKS) == "diffusion":
        shape: Any = input_shape
        return diffusion.recipe(shape, num_classes, num_examples, epsilon=epsilon, **settings)
    if task == "regression":
        if num_classes != 1:
            raise ValueError(f"A number to predict is one output. Received: num_classes={num_classes!r}. Pass 1.")
        return regression_recipe(input_shape, num_examples, epsilon=epsilon, **settings)
    if task == "language":
        return language_recipe(input_shape, num_classes, num_examples, epsilon, **settings)
    if task == "text":
        return text_recipe(input_shape, num_classes, num_examples, epsilon, **settings)
    return classifier_recipe(input_shape, num_classes, num_examples, epsilon, **settings)


def _check_shape(input_shape: Any) -> None:
    """Refuses what is no shape, such as the examples themselves, of which no number may be in a message."""
    try:
        sizes = [operator.index(size) for size in input_shape]
    except TypeError:
        sizes = []
    if not sizes or min(sizes) < 1:
        shown = isinstance(input_shape, int) or (
            isinstance(input_shape, tuple) and all(size is None or isinstance(size, int) for size in input_shape)
        )
        received = repr(input_shape) if shown else f"a {type(input_shape).__name__}"
        raise ValueError(
            "`input_shape` must be the shape of one example, such as (28, 28, 1) or (10,). Received: "
            f"{received}. Pass x.shape[1:]."
        )
