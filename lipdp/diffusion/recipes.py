"""What `lipdp train --task diffusion` and the benchmark do when they are not told otherwise."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from lipdp import checks, gradients, strategies
from lipdp._deprecated import renamed_arguments, renamed_property
from lipdp.accounting import Mechanism, Sampling
from lipdp.diffusion import class_moments, denoisers, labels, pixels, samplers
from lipdp.diffusion.class_mixture import ClassMixture
from lipdp.diffusion.examples import of_recipe
from lipdp.diffusion.labels import LabelRecipe, label_recipe, largest_change
from lipdp.diffusion.model import DiffusionModel
from lipdp.diffusion.unet import CPU_SIZES, PRESETS, preset, unet
from lipdp.sampling import schemes
from lipdp.training.validation import computed_from

# What `fit` and `DiffusionModel.learn_moments` both take.
_OF_MOMENTS = ("sampling", "examples_per_person", "person_ids", "rows_per_person", "seed", "verbose")
_OF_CLASSIFIER = (*_OF_MOMENTS, "delta", "noise_generator")
SAMPLERS = ("ddim", "stochastic", "churn")
# Settings know no smaller budget, and below it there is no classifier.
_LEAST = 0.25
# Part of the budget that the classifier costs alone.
_OF_LABELS = 0.5
# Sides from here on are looked at in patches of 2 x 2 pixels.
_SMALL_SIDE = 16


@renamed_arguments(physical_batch_size="microbatch_size")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one private diffusion model; every one is a public constant.

    Args:
        image_shape: `(height, width, channels)` of what the model draws.
        num_classes: number of classes.
        network: a name of `diffusion.preset`, or "small": about the size of "cpu-14", for any image.
        batch_size: expected batch size.
        updates: noisy updates.
        microbatch_size: examples at once at most, with their K copies; a CPU takes fewer where that is faster. Only
            time and memory depend on it.
        multiplicity: noises per example and update, K.
        learning_rate: of Adam, at its highest.
        warmup: updates in which the rate rises from near 0.
        final_rate: what is left of the rate at the end of a cosine, as a fraction.
        p_mean: mean of the logarithm of the noise levels, see `EDM`.
        p_std: its standard deviation.
        clip_norm: L2 norm that each example's gradient is clipped to.
        label_scale: factor of the initial label embedding.
        label_dropout: probability that a label is hidden.
        average: momentum of the moving average of the weights.
        sampler: "ddim", "stochastic" (DDIM with fresh noise) or "churn".
        steps: noise levels of the sampler.
        guidance: scale of classifier-free guidance.
        moments_noise: noise multiplier of each query for moments of the classes, which the network knows first, see
            `DiffusionModel.learn_moments`; None: it knows none. `fit` gives groups of k examples k times as much, and
            twice as much where one example replaces another.
        moments_components: normal distributions for each class of a `ClassMixture` that takes them; 0: the network
            has none, and learns from images that are drawn from one.
        moments_rounds: queries that find the means of several components.
        moments_frequencies: low frequencies along each side that moments are taken of.
        moments_floor: what a `ClassMixture` takes for noise.
        moments_images: how many images are drawn to learn from.
        moments_epochs: passes over these.
        classifier: settings of the classifier that labels drawn images, which is trained first; None for none.

    Example:
        >>> recipe((28, 28, 1), num_classes=10, num_examples=60000, network="cpu-14").image_shape
        (14, 14, 1)
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    network: str = "small"
    batch_size: int = 2048
    updates: int = 3000
    # Not a divisor of the batch: a Poisson sample of 2048 mostly fits into 8 microbatches.
    microbatch_size: int = 264
    multiplicity: int = 1
    learning_rate: float = 6e-3
    warmup: int = 50
    final_rate: float = 0.1
    p_mean: float = 0.0
    p_std: float = 1.2
    clip_norm: float = 1.0
    label_scale: float = 4.0
    label_dropout: float = 0.1
    average: float = 0.999
    sampler: str = "ddim"
    steps: int = 50
    guidance: float = 0.0
    moments_noise: float | None = None
    moments_components: int = 0
    moments_rounds: int = 2
    moments_frequencies: int = 12
    moments_floor: float = 0.1
    moments_images: int = 20000
    moments_epochs: int = 20
    classifier: LabelRecipe | None = None
    physical_batch_size = renamed_property("physical_batch_size", "microbatch_size")

    def __post_init__(self):
        checks.integer("moments_components", self.moments_components)
        checks.integer("moments_rounds", self.moments_rounds, minimum=1)
        if self.moments_components and self.moments_noise is None:
            raise ValueError(
                "Without moments a mixture knows nothing. Received: moments_components="
                f"{self.moments_components!r}, moments_noise=None. Set `moments_noise`."
            )
        if self.guidance and not self.label_dropout:
            raise ValueError(
                "Guidance needs a network that has learned from images without labels. Received: guidance="
                f"{self.guidance!r}, label_dropout={self.label_dropout!r}. Set label_dropout=0.1."
            )

    def images(self, x: np.ndarray) -> np.ndarray:
        """Returns images in [0, 1] as the model takes them: in [-1, 1], of half the side where it is half.

        Each depends on its own image only.

        Args:
            x: `(N, height, width, channels)`.

        Raises:
            ValueError: when the sides are neither those of the model nor twice as long.
        """
        height, width, depth = self.image_shape
        if x.shape[1:] == (2 * height, 2 * width, depth):
            x = x.reshape(len(x), height, 2, width, 2, depth).mean((2, 4))
        elif x.shape[1:] != self.image_shape:
            raise ValueError(
                f"The images do not fit the network. Received: shape {x.shape[1:]} for a network of "
                f"{self.image_shape}. Take another preset, or 'small', which fits any."
            )
        return (2.0 * x - 1.0).astype("float32")

    def build(self, classifier: keras.Model | None = None) -> DiffusionModel:
        """Returns the compiled model, with fresh weights.

        Args:
            classifier: what `train_classifier` has returned; None for an untrained one, where there is one.
        """
        if classifier is None and self.classifier is not None:
            classifier = self.classifier.build(self.batch_size)
        if self.network == "small":
            patch = 2 if min(self.image_shape[:2]) >= _SMALL_SIDE else 1
            network = unet(self.image_shape, self.num_classes, name="small", **{**CPU_SIZES, "patch_size": patch})
        else:
            network = preset(self.network, self.num_classes)
        for layer in network.layers:
            if isinstance(layer, keras.layers.Embedding):
                layer.embeddings.assign(layer.embeddings * self.label_scale)
        denoiser = denoisers.EDM(p_mean=self.p_mean, p_std=self.p_std)
        if self.moments_components:
            mixture = ClassMixture(
                self.num_classes,
                self.moments_components,
                self.moments_frequencies,
                floor=self.moments_floor,
                denoiser=denoiser,
            )
            output = keras.layers.Add()([network.output, mixture(network.inputs)])
            network = keras.Model(network.inputs, output, name=network.name)
        model = DiffusionModel(
            network,
            denoiser,
            num_classes=self.num_classes,
            noise_multiplicity=self.multiplicity,
            label_dropout=self.label_dropout,
            average=self.average,
            classifier=classifier,
        )
        warmup = min(self.warmup, self.updates - 1)
        rate = keras.optimizers.schedules.CosineDecay(
            initial_learning_rate=self.learning_rate / (warmup + 1),
            decay_steps=self.updates - warmup,
            alpha=self.final_rate,
            warmup_target=self.learning_rate if warmup else None,
            warmup_steps=warmup,
        )
        model.compile(keras.optimizers.Adam(rate))
        return model

    def fit(self, x: Any, y: Any = None, *, epsilon: float | None = None, **kwargs: Any) -> DiffusionModel:
        """Builds a model and trains it with the settings of this recipe.

        Args:
            x: Training images in [0, 1], `(N, height, width, channels)`; see `images`. `validation_data` has such, too.
            y: Their class ids, `(N,)`. Both in the forms that `DiffusionModel.fit` takes; they are read into memory.
            epsilon: The privacy budget.
            **kwargs: Everything else that `DiffusionModel.fit` takes, such as `delta`.

        Returns:
            The trained `DiffusionModel`; `model.sample` draws from it.

        Raises:
            TypeError: An argument that the recipe sets.
            ValueError: See `DiffusionModel.fit`; images that do not fit the network.
        """
        own: dict[str, Any] = {"batch_size": self.batch_size, "strategy": self.strategy(), "epochs": 1}
        own |= {"steps_per_epoch": self.updates, "microbatch_size": None}
        checks.not_twice(own, kwargs)
        labels.check_arguments({"epsilon": epsilon, **kwargs})
        if self.moments_noise is not None or self.classifier is not None:
            class_moments.refuse_split(kwargs.get("validation_split"))
        given = x, kwargs.get("validation_data")
        x, y, kwargs = of_recipe(x, y, kwargs, self.images)
        y = labels.class_ids(y, len(x), self.num_classes)
        sampling = labels.bound(self.batch_size, len(x), **kwargs)
        public = {name: kwargs[name] for name in ("delta", "accountant") if kwargs.get(name) is not None}
        suited = self.for_sampling(sampling, public.get("delta", 1e-5))
        labels.check_first(suited.first_releases(sampling), epsilon, **public)
        with pixels.scaled(), computed_from(*given):
            model = suited.build(suited.train_classifier(x, y, **kwargs))
            suited.learn_moments(model, x, y, **kwargs)
            own["microbatch_size"] = self.microbatch(model)
            model.fit(x, y, epsilon=epsilon, **{"training_metrics": False, **kwargs}, **own)
        return model

    def train_classifier(self, x: np.ndarray, y: np.ndarray, **kwargs: Any) -> keras.Model | None:
        """Returns the classifier that labels drawn images, trained with its part of the budget; None without one.

        Args:
            x: Images as `images` returns them.
            y: Their class ids.
            **kwargs: The arguments of `fit`; those that the classifier needs are taken.
        """
        if self.classifier is None:
            return None
        known = {name: kwargs[name] for name in _OF_CLASSIFIER if kwargs.get(name) is not None}
        # Its batches have another size, and so another capacity.
        known["sampling"] = schemes.get(kwargs.get("sampling") or "poisson").name
        return self.classifier.fit(x, y, training_metrics=False, **known)

    def learn_moments(self, model: DiffusionModel, x: np.ndarray, y: np.ndarray, **kwargs: Any) -> None:
        """Trains a fresh model on noisy moments, before `fit`, if this recipe does.

        Args:
            model: What `build` has returned.
            x: Images as `images` returns them.
            y: Their class ids.
            **kwargs: The arguments of `fit`; those that `DiffusionModel.learn_moments` knows are taken.
        """
        if self.moments_noise is not None:
            known = {name: kwargs[name] for name in _OF_MOMENTS if kwargs.get(name) is not None}
            own = {"num_images": self.moments_images, "epochs": self.moments_epochs, "rounds": self.moments_rounds}
            own |= {"frequencies": self.moments_frequencies, "batch_size": min(128, self.moments_images)}
            model.learn_moments(x, y, noise_multiplier=self.moments_noise, **own, **known)

    def first_releases(self, sampling: Sampling) -> tuple[Mechanism, ...]:
        """Returns the cost of what is released before the first update, for data that are sampled like this."""
        first = () if self.classifier is None else self.classifier.first_releases(sampling)
        if self.moments_noise is None:
            return first
        whole = Sampling("poisson", relation=sampling.relation).bind(sampling.num_examples, sampling.num_examples)
        queries = class_moments.queries(self.moments_components, self.moments_rounds)
        return (*first, Mechanism.of_updates(None, self.moments_noise, queries, whole.for_group(sampling.group_size)))

    def for_sampling(self, sampling: Sampling, delta: float = 1e-5) -> "Recipe":
        """Returns the recipe with the noise that suits data sampled like this, before the first update.

        `fit` does this by itself; apply it once.

        Args:
            sampling: of the updates, bound to the data and to how many examples a person has.
            delta: of the budget.
        """
        noise = self.moments_noise
        return dataclasses.replace(
            self,
            moments_noise=None if noise is None else noise * largest_change(sampling),
            classifier=None if self.classifier is None else self.classifier.for_sampling(sampling, delta),
        )

    def microbatch(self, model: DiffusionModel) -> int | None:
        """Returns `microbatch_size` for `fit` of a model of this recipe; None where a CPU is faster with fewer."""
        return gradients.at_most(model, self.microbatch_size, self.multiplicity)

    def strategy(self) -> strategies.Strategy:
        """Returns the strategy for `fit`."""
        return strategies.DPSGD(self.clip_norm)

    def make_sampler(self) -> samplers.Sampler:
        """Returns the sampler."""
        return make_sampler(self.sampler, self.steps)


def recipe(
    image_shape: tuple[int, int, int],
    num_classes: int,
    num_examples: int,
    network: str | None = None,
    epochs: int | None = None,
    *,
    epsilon: float | None = None,
    handwritten: bool = False,
    **changes: Any,
) -> Recipe:
    """Returns the default settings for images of one shape.

    They depend on public facts only: shapes and the number of examples, not on any value.

    Args:
        image_shape: shape of one image of the data.
        num_classes: number of classes.
        num_examples: number of training images.
        network: see `Recipe`; default: "cpu-28" for 28 x 28 x 1, which knows moments first and has a classifier, else
            "small".
        epochs: expected passes over the data, in place of a number of updates.
        epsilon: the budget, by which "cpu-28" has its updates, its classifier and the noise of its moments. None when
            the noise is given instead.
        handwritten: whether each image is known to be a character written by hand: "cpu-28" has no classifier then,
            whose labels were worse there than those that images are drawn for.
        **changes: other settings of `Recipe`.

    Returns:
        A `Recipe`.

    Raises:
        ValueError: when the network is unknown, or `image_shape` is not that of an image.
    """
    image_shape = tuple(image_shape)
    if len(image_shape) != 3:
        raise ValueError(
            f"Diffusion models here draw images. Received: examples of shape {image_shape}. Pass images of shape "
            "(height, width, channels)."
        )
    checks.warn_of_channels_first(image_shape)
    if network is None:
        network = "cpu-28" if image_shape == (28, 28, 1) else "small"
    if checks.choice("network", network, ("small", *sorted(PRESETS))) != "small":
        image_shape = PRESETS[network]["image_shape"]
    own = _knowing_moments(epsilon) if network == "cpu-28" else _OWN.get(network, {})
    settings: dict[str, Any] = {"batch_size": max(1, min(2048, num_examples // 4)), **own}
    given = {name: value for name, value in changes.items() if value is not None}
    settings |= given
    affordable = (epsilon or 1.0) >= _LEAST and num_classes > 1
    if network == "cpu-28" and affordable and not handwritten and "classifier" not in changes:
        settings["classifier"] = label_recipe(image_shape, num_classes, num_examples, _OF_LABELS * _within(epsilon))
    if "moments_noise" in own and "moments_noise" not in given:
        rounds = settings.get("moments_rounds", Recipe.moments_rounds)
        asked = class_moments.queries(settings.get("moments_components", 0), rounds)
        settings["moments_noise"] = round(class_moments.noise(_within(epsilon), asked), 2)
    if settings.get("guidance") and "label_dropout" not in given:
        settings["label_dropout"] = Recipe.label_dropout
    per_epoch = math.ceil(num_examples / settings["batch_size"])
    if epochs is not None:
        settings["updates"] = epochs * per_epoch
    elif changes.get("updates") is None and own is not _PAPER:
        # Few examples: the noise of that many updates would drown them.
        settings["updates"] = max(1, min(settings.get("updates", Recipe.updates), 100 * per_epoch))
    return Recipe(image_shape=image_shape, num_classes=num_classes, network=network, **settings)


def _within(epsilon: float | None) -> float:
    """Returns the budget that settings go by."""
    return min(max(epsilon or 1.0, _LEAST), 16.0)


def _knowing_moments(epsilon: float | None) -> dict[str, Any]:
    """Returns what suits a budget where moments are known first: chosen at 1 and 10, on held-out images of MNIST."""
    budget = _within(epsilon)
    # Below 2 the means of several components would be noise.
    several = {"moments_components": round(3.2 * budget), "label_dropout": 0.0} if budget >= 2.0 else {}
    return {
        "moments_noise": round(class_moments.noise(budget), 2),
        "updates": round(300 * budget**0.4),
        "learning_rate": round(1e-3 * budget**0.3, 5),
        **several,
    }


# After Dockhorn et al. 2023: K = 32, 300 epochs of MNIST.
_PAPER: dict[str, Any] = {"batch_size": 4096, "updates": 4395, "microbatch_size": 66, "multiplicity": 32}
_PAPER |= {"learning_rate": 3e-4, "warmup": 0, "final_rate": 1.0, "p_mean": -1.2, "sampler": "churn", "steps": 100}
_OWN = {"dpdm-28": _PAPER, "dpdm-32": _PAPER}


def make_sampler(name: str, steps: int = 50) -> samplers.Sampler:
    """Returns a sampler from its name.

    Args:
        name: "ddim", "stochastic" (DDIM with fresh noise) or "churn".
        steps: noise levels.

    Raises:
        ValueError: when the name is unknown.

    Example:
        >>> make_sampler("stochastic", 20).eta
        1.0
    """
    if checks.choice("name", name, SAMPLERS) == "churn":
        return samplers.Churn(steps)
    return samplers.DDIM(steps, eta=1.0 if name == "stochastic" else 0.0)
