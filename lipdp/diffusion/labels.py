"""Labels of drawn images: a small private classifier that knows them better than the model that drew them."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import keras
import numpy as np

from lipdp import _keras, layers
from lipdp.accounting import Filter, Mechanism, Sampling, calibrate, compose
from lipdp.accounting.schemes import REPLACE
from lipdp.model import DP_Model
from lipdp.models.table import TableRecipe, table_recipe
from lipdp.privacy import provenance
from lipdp.sampling import schemes
from lipdp.training import model_checks

# How many of the frequencies along each side the classifier sees: 12 of 28.
_FREQUENCIES = 0.43


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRecipe(TableRecipe):
    """The settings of a classifier of images in [-1, 1], a small network on their low frequencies.

    What a barely trained generator gets wrong is mostly above them. Train it with `fit(x, y, delta=...,
    noise_multiplier=recipe.noise_multiplier)`.

    Args:
        input_shape: `(height, width, channels)`.
        frequencies: low frequencies that are kept along height and width.
        epsilon: its budget alone, moments and updates.
        noise_multiplier: of the updates.

    The other arguments are those of `models.TableRecipe`.
    """

    frequencies: tuple[int, int]
    epsilon: float
    noise_multiplier: float = 1.0

    def front(self) -> list[keras.layers.Layer]:
        return [
            keras.layers.Rescaling(0.5, 0.5, name="pixels"),
            layers.LowFrequencies2D(self.frequencies, name="low_frequencies"),
            keras.layers.Flatten(name="flatten"),
        ]

    def first_releases(self, sampling: Sampling) -> tuple[Mechanism, ...]:
        """Returns the cost of all of it, moments and updates, for data that are sampled like this."""
        count, own = int(sampling.num_examples or 1), self.sampling(sampling)
        updates = Mechanism.of_updates(None, self.noise_multiplier, self.updates(count), own)
        return (*super().first_releases(sampling), updates)

    def for_sampling(self, sampling: Sampling, delta: float = 1e-5) -> LabelRecipe:
        """Returns the recipe with the noise that its budget needs for data that are sampled like this.

        Args:
            sampling: that of the generator, bound to the data.
            delta: of the budget.
        """
        count, own = int(sampling.num_examples or 1), self.sampling(sampling)
        quiet = dataclasses.replace(self, moments_noise=self.moments_noise * largest_change(sampling))
        noise = calibrate(
            sampler=own,
            updates=self.updates(count),
            epsilon=self.epsilon,
            # The noise is a setting: what it costs is charged, whatever delta `fit` gets.
            delta=min(delta, 0.5 / count),
            spent=TableRecipe.first_releases(quiet, sampling),
        )
        return dataclasses.replace(quiet, noise_multiplier=float(f"{noise:.4g}"))

    def sampling(self, generator: Sampling) -> Sampling:
        """Returns how batches are drawn when those of the generator are drawn like this."""
        count = int(generator.num_examples or 1)
        unbound = Sampling(generator.name, relation=generator.relation)
        return unbound.bind(count, min(self.batch_size, count), generator.group_size)


def largest_change(sampling: Sampling) -> int:
    """Returns by how many examples sums over all data can differ."""
    return sampling.group_size * (2 if sampling.relation == REPLACE else 1)


def label_recipe(image_shape: tuple[int, int, int], num_classes: int, num_examples: int, epsilon: float) -> LabelRecipe:
    """Returns the settings of a classifier that costs `epsilon` alone; they depend on public facts only.

    Args:
        image_shape: `(height, width, channels)`.
        num_classes: number of classes, at least 2.
        num_examples: number of training images.
        epsilon: its budget, at delta = 1e-5.
    """
    height, width, channels = image_shape
    kept = max(1, round(_FREQUENCIES * height)), max(1, round(_FREQUENCIES * width))
    table = table_recipe((math.prod(kept) * channels,), num_classes, num_examples, epsilon)
    settings: dict[str, Any] = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
    settings |= {"input_shape": tuple(image_shape), "frequencies": kept, "epsilon": epsilon}
    # Chosen on held-out training images of Fashion-MNIST, at 0.5 and 5.
    settings |= {"hidden": 256, "epochs": round(1.5 * table.epochs)}
    recipe = LabelRecipe(**settings)
    return recipe.for_sampling(Sampling("poisson").bind(num_examples, recipe.batch_size))


def bound(
    batch_size: int,
    count: int,
    sampling: Any = "poisson",
    examples_per_person: int = 1,
    person_ids: Any = None,
    **others: Any,
) -> Sampling:
    """Returns how `fit` will sample, from its arguments."""
    count = count if person_ids is None else len(np.unique(person_ids))
    return schemes.get(sampling).bind(count, min(batch_size, count), examples_per_person)


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuses arguments that `fit` does not know, before anything is trained."""
    known = inspect.signature(DP_Model.fit).parameters
    unknown = {name: value for name, value in arguments.items() if name not in known}
    model_checks.refuse_unsupported(DP_Model.fit, unknown, shuffle=None, class_weight=None, sample_weight=None)


def check_first(
    first: tuple[Mechanism, ...], epsilon: float | None, delta: float = 1e-5, accountant: Any = "pld"
) -> None:
    """Refuses a budget that does not hold what is released before the first update, and leave some.

    Raises:
        ValueError: it does not, or is that of a filter, which has to begin before any release.
    """
    ways_out = "make the recipe for this epsilon, or use dataclasses.replace(recipe, classifier=None)"
    if first and (accountant == "filter" or isinstance(accountant, Filter)):
        raise ValueError(
            "A filter must begin before the first release, and this recipe releases moments or a classifier before "
            f"`fit`. Received: accountant={accountant!r}. Leave it out."
        )
    cost = compose(first, delta, "pld") if first and epsilon is not None else 0.0
    if epsilon is not None and cost >= epsilon:
        raise ValueError(
            f"What this recipe releases before the first update, moments and a classifier, costs epsilon={cost:.4g} "
            f"alone. Received: epsilon={epsilon!r}, delta={delta!r}. Pass a larger epsilon, {ways_out}."
        )


def class_ids(y: Any, count: int, num_classes: int) -> np.ndarray:
    """Returns labels as an array, or refuses what is not one class id for each example."""
    y = np.asarray(() if y is None else y)
    fits = y.shape == (count,) and y.dtype.kind in "iu"
    if not fits or (y.size and not 0 <= y.min() <= y.max() < num_classes):
        raise ValueError(
            f"Labels must be class ids from 0 to {num_classes - 1}, one per example. Received: shape "
            f"{y.shape} and dtype {y.dtype} for {count} examples. Pass them as y."
        )
    return y


def frozen(classifier: keras.Model, image_shape: tuple[int, ...], num_classes: int | None) -> keras.Model:
    """Returns a copy of a classifier that does not train, and carries the ledgers of the original.

    Raises:
        ValueError: it does not take such images, or has not one logit for each class.
    """
    if not isinstance(classifier, _keras.Functional | keras.Sequential) or not classifier.built:
        raise ValueError(
            "A classifier must be a Sequential or functional model that is built: it is copied. Received: classifier="
            f"{classifier!r}."
        )
    fits = len(classifier.inputs) == 1 and tuple(classifier.inputs[0].shape[1:]) == tuple(image_shape)
    if num_classes is None or not fits or classifier.output_shape != (None, num_classes):
        raise ValueError(
            "The classifier must take the images of the network, and return one logit for each class of the model. "
            f"Received: one of {[tuple(tensor.shape[1:]) for tensor in classifier.inputs]} to "
            f"{classifier.output_shape} for images of shape {tuple(image_shape)}, num_classes={num_classes!r}."
        )
    # Of the same layers a plain network, which has no ledger of its own.
    copy = _keras.copied(keras.Model(classifier.inputs, classifier.outputs, name="classifier"))
    copy.trainable = False
    provenance.attribute(copy, provenance.ledgers_of(classifier))
    return copy


def check_trained(classifier: keras.Model) -> None:
    """Refuses a classifier whose normalization knows no moments yet."""
    for layer in _keras.walk(classifier):
        if isinstance(layer, layers.PrivateNormalization) and not layer.adapted:
            raise ValueError(
                f"The classifier of this model was not trained. Received: layer '{layer.name}' without moments. Train "
                "it before it is passed to DiffusionModel, or use `Recipe.fit`."
            )
