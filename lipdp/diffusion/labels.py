"""Labels of drawn images: a small private classifier that knows them better than the model that drew them."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import keras
import numpy as np

from lipdp import _keras, layers, losses, strategies
from lipdp.accounting import Filter, Mechanism, Sampling, calibrate, compose, round_up
from lipdp.accounting.schemes import REPLACE
from lipdp.diffusion.copies import copied
from lipdp.layers.released import ReleasedConstants
from lipdp.model import DP_Model, DP_Sequential
from lipdp.privacy import provenance
from lipdp.sampling import schemes
from lipdp.training import model_checks

# How many of the frequencies along each side the classifier sees: 12 of 28.
_FREQUENCIES = 0.43


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRecipe:
    """The settings of a classifier of images in [-1, 1], a small network on their low frequencies, by DP-SGD.

    What a barely trained generator gets wrong is mostly above them. All settings are public constants.

    Args:
        input_shape: `(height, width, channels)`.
        num_classes: number of classes.
        batch_size: expected batch size.
        epochs: expected passes over the data.
        epsilon: its budget alone, moments and updates.
        frequencies: low frequencies that are kept along height and width.
        input_norm: norm that they are clipped to, of images in [0, 1].
        moments_noise: noise multiplier of the two releases of their moments.
        noise_multiplier: of the updates.
        hidden: width of the hidden layer.
        learning_rate: of stochastic gradient descent, at the start; it falls linearly to zero.
        momentum: of stochastic gradient descent.
        clip_norm: L2 norm that the gradient of each example is clipped to.
    """

    input_shape: tuple[int, int, int]
    num_classes: int
    batch_size: int
    epochs: int
    epsilon: float
    frequencies: tuple[int, int]
    input_norm: float
    moments_noise: float
    noise_multiplier: float = 1.0
    # Chosen with the number of epochs on held-out training images of Fashion-MNIST, at 0.5 and 5.
    hidden: int = 256
    learning_rate: float = 1.0
    momentum: float = 0.9
    clip_norm: float = 1.0

    def updates(self, num_examples: int) -> int:
        """Returns the number of updates on `num_examples` examples, as `fit` counts them."""
        return self.epochs * math.ceil(num_examples / self.batch_size)

    def build(self, num_examples: int) -> DP_Sequential:
        """Returns the compiled model; the length of its schedule follows from the number of examples."""
        model = DP_Sequential(
            [
                keras.Input(self.input_shape, name="input"),
                keras.layers.Rescaling(0.5, 0.5, name="pixels"),
                layers.LowFrequencies2D(self.frequencies, name="low_frequencies"),
                keras.layers.Flatten(name="flatten"),
                layers.BoundedInput(norm=self.input_norm, name="bounded_input"),
                layers.PrivateNormalization(self.input_norm, self.moments_noise, name="normalization"),
                keras.layers.Dense(self.hidden, activation="relu", name="hidden"),
                keras.layers.Dense(self.num_classes, kernel_initializer="zeros", name="logits"),
            ],
            name="classifier",
        )
        rate = keras.optimizers.schedules.PolynomialDecay(
            self.learning_rate, self.updates(num_examples), end_learning_rate=0.0
        )
        optimizer = keras.optimizers.SGD(rate, momentum=self.momentum)
        model.compile(optimizer, losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
        return model

    def fit(self, x: np.ndarray, y: np.ndarray, **kwargs: Any) -> DP_Sequential:
        """Returns the trained model.

        Args:
            x: images in [-1, 1].
            y: their class ids.
            **kwargs: other arguments of `DP_Model.fit`.
        """
        owners = kwargs.get("person_ids")
        model = self.build(len(x) if owners is None else len(np.unique(owners)))
        own: dict[str, Any] = {"batch_size": self.batch_size, "epochs": self.epochs}
        own |= {"noise_multiplier": self.noise_multiplier, "strategy": strategies.DPSGD(self.clip_norm)}
        model.fit(x, y, **own, **kwargs)
        return model

    def first_releases(self, sampling: Sampling) -> tuple[Mechanism, ...]:
        """Returns the cost of all of it, moments and updates, for data that are sampled like this."""
        count, own = int(sampling.num_examples or 1), self.sampling(sampling)
        updates = Mechanism.of_updates(None, self.noise_multiplier, self.updates(count), own)
        return self._moments(sampling), updates

    def _moments(self, sampling: Sampling) -> Mechanism:
        whole = Sampling("poisson", relation=sampling.relation).bind(sampling.num_examples, sampling.num_examples)
        return Mechanism.of_updates(None, self.moments_noise, 2, whole.for_group(sampling.group_size))

    def for_sampling(self, sampling: Sampling, delta: float = 1e-5) -> LabelRecipe:
        """Returns the recipe with the noise that its budget needs for data that are sampled like this; apply it once.

        Args:
            sampling: that of the generator, bound to the data.
            delta: of the budget.
        """
        count, own = int(sampling.num_examples or 1), self.sampling(sampling)
        noisy = dataclasses.replace(self, moments_noise=self.moments_noise * largest_change(sampling))
        noise = calibrate(
            sampler=own,
            updates=self.updates(count),
            epsilon=self.epsilon,
            # The noise is a setting: what it costs is charged, whatever delta `fit` gets.
            delta=min(delta, 0.5 / count),
            spent=[noisy._moments(sampling)],
        )
        return dataclasses.replace(noisy, noise_multiplier=round_up(noise))

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
    budget = min(max(epsilon, 0.25), 8.0)
    batch_size = max(1, min(8192, num_examples // 2))
    recipe = LabelRecipe(
        input_shape=(height, width, channels),
        num_classes=num_classes,
        batch_size=batch_size,
        epochs=max(2, round(225.0 * budget**0.4 / math.ceil(num_examples / batch_size))),
        epsilon=epsilon,
        frequencies=kept,
        input_norm=math.sqrt(math.prod(kept) * channels),
        # Two releases take as large a part of a small budget as of a large one.
        moments_noise=max(8.0, 24.0 / epsilon),
        learning_rate=math.sqrt(budget),
    )
    return recipe.for_sampling(Sampling("poisson").bind(num_examples, batch_size))


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
    model_checks.refuse_unsupported(DP_Model.fit, unknown, shuffle=None)
    refuse_weights(arguments)
    given = [arguments.get(name) for name in ("epsilon", "noise_multiplier", "risk")]
    if given == [None] * 3 and not isinstance(arguments.get("accountant"), Filter):  # which has one of its own
        raise ValueError(
            "No privacy budget given. Received: epsilon=None, noise_multiplier=None. Pass `fit(epsilon=1.0, ...)`."
        )


def refuse_weights(arguments: dict[str, Any]) -> None:
    """Refuses weights of classes and examples, which the loss of a diffusion model knows nothing of."""
    for name in ("class_weight", "sample_weight"):
        if arguments.get(name) is not None:
            raise ValueError(
                "A diffusion model learns to remove noise, not classes: its loss has no weights. Received: "
                f"{name}. Leave it out, and draw as many images of each class as you want."
            )


def check_first(
    first: tuple[Mechanism, ...], epsilon: float | None, delta: float = 1e-5, accountant: Any = "pld"
) -> None:
    """Refuses a budget of which what is released before the first update leaves nothing.

    Raises:
        ValueError: nothing is left, or the budget is that of a filter, which has to begin before any release.
    """
    if first and (accountant == "filter" or isinstance(accountant, Filter)):
        raise ValueError(
            "A filter must begin before the first release, and this recipe releases moments or a classifier before "
            f"`fit`. Received: accountant={accountant!r}. Leave it out."
        )
    cost = compose(first, delta, "pld") if first and epsilon is not None else 0.0
    if epsilon is not None and cost >= epsilon:
        raise ValueError(
            "What this recipe releases before the first update, moments and a classifier, costs "
            f"epsilon={round_up(cost):.4g} alone. Received: epsilon={epsilon!r}, delta={delta!r}. Pass a larger "
            "epsilon, make the recipe for this one, or use dataclasses.replace(recipe, classifier=None)."
        )


def class_ids(y: Any, count: int, num_classes: int) -> np.ndarray:
    """Returns labels as an array, or refuses what is not one class id for each example."""
    wanted = f"Labels must be class ids from 0 to {num_classes - 1}, one per example. Received:"
    if y is None:
        raise ValueError(f"{wanted} none. Pass them as y; a model and a network without `num_classes` take none.")
    y = np.asarray(y)
    y = y[:, 0] if y.shape == (count, 1) else y  # as keras.datasets.cifar10 has them
    if y.shape != (count,) or y.dtype.kind not in "iu":
        raise ValueError(f"{wanted} shape {y.shape} and dtype {y.dtype} for {count} examples. Pass whole numbers as y.")
    wrong = y[(y < 0) | (y >= num_classes)]
    if len(wrong):
        raise ValueError(f"{wanted} {wrong[0]}, in {len(wrong)} of {count} labels. Number the classes from 0.")
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
    ledgers = provenance.ledgers_of(classifier)
    if any(ledger.adaptive for ledger in ledgers):
        raise ValueError(
            "Beside weights that DPIS has trained no other strategy trains, as a diffusion model would. Received: a "
            "classifier trained with DPIS. Train it with DPSGD."
        )
    # Of the same layers a plain network, which has no ledger of its own.
    copy = copied(keras.Model(classifier.inputs, classifier.outputs, name="classifier"))
    copy.trainable = False
    provenance.attribute(copy, ledgers)
    return copy


def check_trained(classifier: keras.Model) -> None:
    """Refuses a classifier with constants of the data that no `fit` has released yet."""
    for layer in _keras.walk(classifier):
        if isinstance(layer, ReleasedConstants) and not layer.adapted:
            raise ValueError(
                f"The classifier of this model was not trained. Received: layer '{layer.name}', whose constants no fit "
                "has released. Train it before it is passed to DiffusionModel, or use `Recipe.fit`."
            )
