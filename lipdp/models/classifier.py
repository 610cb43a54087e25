"""Default settings of `lipdp train`: model, loss, optimizer, batch size, epochs."""

import dataclasses
import math
from typing import Any

import keras

from lipdp import checks, layers, losses, strategies
from lipdp._deprecated import renamed_arguments, renamed_attributes, renamed_property
from lipdp.model import DP_Sequential
from lipdp.models.base import TrainingRecipe
from lipdp.models.head import head_recipe
from lipdp.models.scattered import ScatteredRecipe, fits, is_mirrored, scattered_recipe
from lipdp.models.table import TableRecipe, table_recipe
from lipdp.models.wide_resnet import WideResNetRecipe, wide_resnet_recipe

STYLES = ("accurate", "robust", "wrn", "head")
METHODS = ("clipless", "dpsgd", "adaclip", "dpis")

# The constants below were chosen on images of this size and norm: a held-out part of MNIST's training set.
_REFERENCE_SIZE = 784
_REFERENCE_NORM = 7.0
# Images this small have no empty border (chosen on digits).
_SMALL_NORM_PER_PIXEL = 0.375
# Below this number of examples noise dominates: larger batches, smaller steps.
_SMALL = 16384
# With fewer images, or rows of a table, the learning rate is lower, in proportion.
_IMAGES_OF_RATE, _IMAGES_OF_ROBUST_RATE, _ROWS_OF_RATE = 8000, 50000, 4000
# Images with a side below this one have nothing to pool.
_SMALLEST_SIDE = 16
# Part of the frequencies that the robust style keeps: 12 of 28.
_FREQUENCIES, _RADIUS = 0.43, 0.5


__getattr__ = renamed_attributes(__name__, Recipe="ClassifierRecipe", recipe="classifier_recipe")


@renamed_arguments(centred="centered")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierRecipe(TrainingRecipe):
    """The settings of one training run; every one is a public constant.

    Args:
        input_shape: shape of one example.
        num_classes: number of classes.
        batch_size: expected batch size.
        epochs: expected passes over the data.
        input_norm: radius of the ball that examples are clipped to.
        centered: whether the mean of each example (of each channel of an image) is removed from it first.
        frequencies: low frequencies that are kept of an image, (along height, along width), see
            `layers.LowFrequencies2D`; None for all pixels.
        filters: 5 x 5 filters of a first, strided convolution; 0 for none.
        inner_norm: radius of the ball that the pooled feature maps are clipped to; smaller means less noise
            in the layers after it, and smaller certified radii. Only with `filters`.
        hidden: width of the hidden layer; 0 for none.
        centered_hidden: whether the mean of the hidden layer is removed as well, example by example.
        biased: whether biases are trained. Centered images do without; tables do not.
        temperature: of the cross-entropy.
        clip: largest norm of one example's gradient at the logits; None for that of the loss itself.
        learning_rate: of stochastic gradient descent, at the start; it falls linearly to zero.
        momentum: of stochastic gradient descent.
        noise: how the noise is shared between layers, see `strategies.Clipless`.
        method: name of the strategy, of `METHODS`.
        clip_norm: of the strategies that clip.
        stability: of the automatic clipping of `"dpsgd"`: gradients well below it count less.
        front_end: weights of a first `layers.Scattering2D`, "accurate" or "robust"; None for none.

    Example:
        >>> shape = (28, 28, 1)
        >>> classifier_recipe(shape, num_classes=10, num_examples=60000, epsilon=1.0, method="clipless").updates(60000)
        150
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.uniform(size=(200, 8, 8, 1)), np.arange(200) % 10
        >>> model = classifier_recipe((8, 8, 1), 10, 200, epsilon=8.0).fit(x, y, epsilon=8.0, delta=1e-4, verbose=0)
        >>> model.privacy.epsilon() <= 8.0
        True
    """

    input_shape: tuple[int, ...]
    num_classes: int
    batch_size: int
    epochs: int
    input_norm: float
    centered: bool = True
    frequencies: tuple[int, int] | None = None
    filters: int = 0
    inner_norm: float | None = None
    hidden: int = 128
    centered_hidden: bool = False
    biased: bool = False
    temperature: float
    clip: float | None = 0.2
    learning_rate: float = 0.7
    momentum: float = 0.9
    noise: str = "global"
    method: str = "clipless"
    clip_norm: float = 1.0
    stability: float = 0.01
    front_end: str | None = None

    centred = renamed_property("centred", "centered")

    def strategy(self) -> strategies.Strategy:
        """Returns the strategy for `fit`."""
        if self.method == "clipless":
            return strategies.Clipless(noise=self.noise)
        if self.method == "dpsgd":  # automatic: its learning rate does not hang on the norm
            return strategies.DPSGD(clip_norm=self.clip_norm, clipping="automatic", stability=self.stability)
        return super().strategy()

    def build(self, num_examples: int) -> DP_Sequential:
        """Returns the compiled model.

        Args:
            num_examples: number of training examples, sets the length of the learning-rate schedule.

        Returns:
            A `DP_Sequential`, compiled, with the metric "accuracy".
        """
        model = DP_Sequential(self._layers(), name="lipdp")
        model.compile(
            keras.optimizers.SGD(self.rate(num_examples), momentum=self.momentum),
            loss=losses.SparseCategoricalCrossentropy(temperature=self.temperature, clip=self.clip),
            metrics=["accuracy"],
        )
        return model

    def _layers(self) -> list:
        # Named, so that tables and files read the same in every process.
        stack = [keras.Input(self.input_shape, name="input")]
        if self.front_end is not None:
            stack.append(layers.Scattering2D(self.front_end, name="scattering"))
        if self.centered:
            stack.append(layers.LayerCentering(name="centering"))
        if self.frequencies is not None:
            stack.append(layers.LowFrequencies2D(self.frequencies, name="low_frequencies"))
        stack.append(layers.BoundedInput(norm=self.input_norm, name="bounded_input"))
        if self.filters:
            stack += [
                layers.SpectralConv2D(self.filters, 5, strides=2, padding="same", name="filters"),
                layers.Abs(name="filters_abs"),
                layers.MaxPooling2D(2, name="pooling"),
            ]
            if self.inner_norm is not None:
                stack.append(layers.BoundedInput(norm=self.inner_norm, name="bounded_features"))
        if len(self.input_shape) > 1:
            stack.append(layers.Flatten(name="flatten"))
        if self.hidden:
            stack.append(layers.SpectralDense(self.hidden, name="hidden"))
            if self.biased:
                stack.append(layers.Bias(name="hidden_bias"))
            stack.append(layers.Abs(name="hidden_abs"))
            if self.centered_hidden:
                stack.append(layers.LayerCentering(name="hidden_centering"))
        # Nothing in front of it is trained: the kernel may grow.
        free = not self.hidden and self.front_end == "accurate"
        start: dict[str, Any] = {"kernel_initializer": "zeros", "projected": False} if free else {}
        stack.append(layers.SpectralDense(self.num_classes, name="logits", **start))
        if self.biased:
            stack.append(layers.Bias(name="logits_bias"))
        return stack


def classifier_recipe(
    input_shape: tuple[int, ...],
    num_classes: int,
    num_examples: int,
    epsilon: float | None = None,
    style: str = "accurate",
    *,
    method: str | None = None,
    front_end: str | None = None,
    row_norm: float | None = None,
    rescaled: bool = False,
    radius: float | None = None,
    handwritten: bool = False,
) -> ClassifierRecipe | ScatteredRecipe | TableRecipe | WideResNetRecipe:
    """Returns the default settings for data of one shape and size.

    They depend on public facts only: shapes, the number of examples, the budget; not on any value.

    Args:
        input_shape: shape of one example: `(height, width, channels)` or `(columns,)`.
        num_classes: number of classes.
        num_examples: number of training examples.
        epsilon: the budget; None when the noise is given instead.
        style: "accurate", or "robust": larger certified radii for some accuracy. Unless `method="clipless"` is asked
            for, the accurate style is `models.scattered_recipe` on images with sides from 16 pixels on and
            `models.table_recipe` on tables, whose certificates, if any, are small. "wrn", for images:
            `models.wide_resnet_recipe`, made for a GPU, by DP-SGD and without certificates. "head", for rows of
            `lipdp.features`: `models.head_recipe`, likewise.
        method: name of the strategy, of `METHODS`. Default: "clipless" for small images, in the robust style of tables,
            and behind a front end; else "dpsgd", whose automatic clipping in the robust style of images asks every
            example for a margin.
        front_end: for images, weights of a first `layers.Scattering2D`: "accurate" or "robust"; None for none. On
            larger sets "accurate" is `models.scattered_recipe` with `method="clipless"`: accuracy, no certificates.
        row_norm: for tables, a public bound on the L2 norm of a row, such as `data.Table.norm`; None when there is
            none.
        rescaled: for tables in the accurate style: whether their columns are in units of which no ranges are publicly
            known. These are released first, with noise, and charged (`layers.PrivateRescaling`).
        radius: of the robust style for images: the L2 radius that certificates should reach, in pixels of [0, 1]; from
            0 (accuracy) to 1. Default: 0.5.
        handwritten: whether each image is known to be a character written by hand, bright on a ground of 0: the
            accurate style deskews those with sides from 16 pixels on (`layers.Deskew2D`), and has no certificates then.

    Returns:
        A `ClassifierRecipe`, `ScatteredRecipe`, `TableRecipe` or `WideResNetRecipe`; change it with
        `dataclasses.replace`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> classifier_recipe((8, 8, 1), num_classes=10, num_examples=1437, epsilon=4.0).batch_size
        718
    """
    checks.choice("style", style, STYLES)
    checks.warn_of_channels_first(input_shape)
    if method is not None:
        checks.choice("method", method, METHODS)
    if radius is not None and (style != "robust" or front_end is not None or len(input_shape) == 1):
        rows = len(input_shape) == 1
        todo = "Leave it out: recipes of rows aim at none." if rows else "Pass style='robust' and no front end."
        raise ValueError(
            f"A radius is for the robust style of images. Received: radius={radius!r} with style={style!r}, "
            f"input_shape={tuple(input_shape)}, front_end={front_end!r}. {todo}"
        )
    radius = _RADIUS if radius is None else checks.between("radius", radius, 0.0, 1.0)
    handwritten = checks.boolean("handwritten", handwritten)
    if handwritten and len(input_shape) != 3:
        raise ValueError(
            f"Handwriting is for images. Received: handwritten=True, input_shape={tuple(input_shape)}. Leave it out."
        )
    row_norm = checks.positive("row_norm", row_norm, optional=True)
    if front_end is not None:
        checks.choice("front_end", front_end, tuple(layers.scattering.PRESETS))
    if front_end == "accurate" and style == "robust":
        raise ValueError(
            "The front end 'accurate' is made for accuracy; what it certifies is small, or nothing. Received: "
            "front_end='accurate' with style='robust'. Pass front_end='robust', or no front end."
        )
    num_classes = checks.integer("num_classes", num_classes, 1)
    num_examples = checks.integer("num_examples", num_examples, 1)
    epsilon = checks.positive("epsilon", epsilon, optional=True)
    if style in ("wrn", "head"):
        others = {"front_end": front_end, "row_norm": row_norm, "rescaled": rescaled or None}
        for name, value in others.items():
            if value is not None:
                reads = "wide residual network reads the pixels of images" if style == "wrn" else "head reads features"
                raise ValueError(f"A {reads}. Received: {name}={value!r} with style={style!r}. Leave one of them out.")
        facts_of_both = (tuple(input_shape), num_classes, num_examples, epsilon)
        if style == "head":
            return head_recipe(*facts_of_both, method=method or "dpsgd")
        return wide_resnet_recipe(*facts_of_both, method=method or "dpsgd", handwritten=handwritten)
    if style == "robust" and front_end is None and _is_large(input_shape):
        return _robust(tuple(input_shape), num_classes, num_examples, epsilon, method or "dpsgd", radius)
    facts: tuple = (tuple(input_shape), num_classes, num_examples, epsilon)
    certified = style == "robust" or (method == "clipless" and front_end is None)
    if len(input_shape) == 1 and front_end is None and not certified:
        return table_recipe(*facts, method=method or "dpsgd", row_norm=row_norm, rescaled=rescaled)
    if rescaled:
        raise ValueError(
            "Ranges are released for tables in the accurate style. Received: rescaled=True with "
            f"input_shape={tuple(input_shape)}, style={style!r}, method={method!r}. Leave it out, or pass "
            "method='dpsgd'."
        )
    behind = front_end is None or (front_end == "accurate" and num_examples >= _SMALL)
    if behind and _is_large(input_shape) and not certified:
        if fits(input_shape, num_examples, is_mirrored(input_shape, handwritten)):
            usual = "dpsgd" if front_end is None else "clipless"
            return scattered_recipe(*facts, method=method or usual, deskewed=handwritten)
    method = method or "clipless"
    batch_size = max(1, num_examples // 2 if num_examples < _SMALL else min(4096, num_examples // 8))
    length = (150.0 if num_examples >= _SMALL else 60.0) * math.sqrt(min(max(epsilon or 1.0, 0.25), 8.0))
    shared: dict[str, Any] = {
        "input_shape": tuple(input_shape),
        "num_classes": num_classes,
        "batch_size": batch_size,
        "epochs": max(1, round(length / math.ceil(num_examples / batch_size))),
        "clip": 0.2 if num_examples >= _SMALL else 0.1,
        "method": method,
    }
    if len(input_shape) == 1 and front_end is not None:
        raise ValueError(f"A front end is for images. Received: front_end={front_end!r} for a table. Leave it out.")
    if len(input_shape) == 1:
        found = _table(shared, row_norm, num_examples)
    elif front_end is not None:
        found = _front_end(shared, front_end, num_examples)
    else:
        found = _images(shared, style, num_examples)
    if method == "clipless":
        return found
    # Chosen on held-out training images of MNIST (`benchmarks/recipes.py`); smaller rates were worse.
    return dataclasses.replace(found, clip_norm=1.0 if method == "dpsgd" else 0.5)


def _is_large(input_shape: tuple[int, ...]) -> bool:
    return len(input_shape) == 3 and min(input_shape[:2]) >= _SMALLEST_SIDE


def _robust(
    input_shape: tuple[int, ...], num_classes: int, num_examples: int, epsilon: float | None, method: str, radius: float
) -> ClassifierRecipe:
    """Returns what certified most in `benchmarks/certified.py`: few weights behind a low-pass, and large margins."""
    scale = math.sqrt(math.prod(input_shape) / _REFERENCE_SIZE)
    batch_size = min(8192, math.ceil(num_examples / 6))
    # More noise asks for smaller steps; larger ones than these did not help.
    rate = min(2.5 * (min(epsilon or 1.0, 8.0) / 2.0) ** 0.3, 3.0) * min(1.0, num_examples / _IMAGES_OF_ROBUST_RATE)
    temperature = (6.0 - 2.0 * radius) / scale
    own: dict[str, Any]
    if method == "clipless":
        own = {"input_norm": 7.0 * scale, "temperature": 0.8 * temperature, "learning_rate": 0.8 * rate, "clip": 0.05}
    else:
        own = {"input_norm": 10.0 * scale, "temperature": temperature, "learning_rate": rate, "clip": None}
    return ClassifierRecipe(
        input_shape=input_shape,
        num_classes=num_classes,
        batch_size=batch_size,
        epochs=max(1, round(400.0 / math.ceil(num_examples / batch_size))),
        frequencies=(round(_FREQUENCIES * input_shape[0]), round(_FREQUENCIES * input_shape[1])),
        centered_hidden=True,
        method=method,
        clip_norm=1.0 if method in ("clipless", "dpsgd") else 0.5,
        stability=0.002,
        **own,
    )


def _images(shared: dict, style: str, num_examples: int) -> ClassifierRecipe:
    input_shape = shared["input_shape"]
    if min(input_shape[:2]) < _SMALLEST_SIDE:
        norm = _SMALL_NORM_PER_PIXEL * math.sqrt(math.prod(input_shape))
        # The product of temperature and norm sets the largest logit: a small one asks for large margins.
        return ClassifierRecipe(**shared, input_norm=norm, temperature=(30.0 if style == "accurate" else 15.0) / norm)
    norm = _REFERENCE_NORM * math.sqrt(math.prod(input_shape) / _REFERENCE_SIZE)
    if style == "accurate" and num_examples >= _SMALL:
        # The ball inside divides the noise of the dense layers by three.
        return ClassifierRecipe(
            **shared,
            input_norm=norm,
            filters=16,
            inner_norm=norm * 2.3 / _REFERENCE_NORM,
            hidden=64,
            temperature=17.0 * _REFERENCE_NORM / norm,
            learning_rate=2.0 * _REFERENCE_NORM / norm,
            noise="per_layer",
        )
    rate = ClassifierRecipe.learning_rate * min(1.0, num_examples / _IMAGES_OF_RATE)
    return ClassifierRecipe(**shared, input_norm=norm, temperature=40.0 / norm, learning_rate=rate)


def _front_end(shared: dict, preset: str, num_examples: int) -> ClassifierRecipe:
    """Returns what `benchmarks/frontend.py` found on images of the reference size, for others in proportion."""
    scale = math.sqrt(math.prod(shared["input_shape"]) / _REFERENCE_SIZE)
    rate = min(1.0, num_examples / _SMALL)
    own = {"input_norm": 8.0 * scale, "temperature": 4.0 / scale, "clip": 0.1, "learning_rate": rate}
    if preset == "accurate":
        own = {"input_norm": scale, "temperature": 100.0 / scale, "clip": 0.2, "learning_rate": 3.0 * rate / scale}
    return ClassifierRecipe(**shared | own, front_end=preset, centered=preset == "accurate", hidden=0)


def _table(shared: dict, row_norm: float | None, num_examples: int) -> ClassifierRecipe:
    # Columns of order one have a norm of the square root of their number.
    norm = math.sqrt(shared["input_shape"][0]) if row_norm is None else row_norm
    rate = ClassifierRecipe.learning_rate * min(1.0, num_examples / _ROWS_OF_RATE)
    own: dict[str, Any] = {"input_norm": norm, "temperature": 40.0 / max(norm, 2.0), "learning_rate": rate}
    return ClassifierRecipe(**shared, **own, centered=False, hidden=64, biased=True)
