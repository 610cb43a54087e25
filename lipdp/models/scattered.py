"""Default settings for the accuracy of images: a small network on fixed features."""

import dataclasses
import functools
import math
from typing import Any

import keras
import numpy as np

from lipdp import backend, checks, layers, losses, strategies
from lipdp.layers import dead_leaves, encoder_features
from lipdp.model import DP_Model, DP_Sequential
from lipdp.models.base import LARGEST_BATCH, METHODS, NormalizedRecipe, share_run
from lipdp.models.features import features

# Chosen on held-out training images of CIFAR-10 and Fashion-MNIST, see `benchmarks/scattered.py`.
_MEMORY = 2**31
# Images that the fixed layers see at once, and on a CPU with one and two threads, as measured there: with few of them
# maps stay in the cache, and threads that share out an operation need more.
_AT_ONCE, _OF_THREADS = 256, {1: 32, 2: 64}
# Rounding by a thousandth is far below the noise.
_DTYPE = "float16"
# Norm of most features of an image with as many numbers; those of "accurate" scattering vary slowly with the image.
_NORM, _ENTRIES = 2.8, 3072
# Patches that images are compared with, as many again for mirror images, and windows along a side that the features
# are averaged over.
_PATCHES, _PLACES, _SMALLEST_COMPARED = 256, 4, 16
# With fewer images the learning rate is lower, in proportion; gray ones that are no characters bear more of it.
_IMAGES_OF_RATE, _GRAY_IMAGES_OF_RATE = 50000, 16384
# Smaller images have to be enlarged too far for the encoder.
_SMALLEST_ENCODED, _ENCODED = 24, math.prod(encoder_features.OUTPUT_SHAPE)
# Below the norm of most normalized rows, in units of the root of their size: what is longer is cut to it.
_SHORT = 0.65
# Of random images, the more the smaller they are; what is added to each variance there, and to that along a direction
# of all channels, as a share of their mean; and the power of the deviations that directions are divided by.
_RANDOM_PIXELS, _LEAST, _LEAST_ALONG, _POWER = 2**18, 1e-6, 0.1, 0.3
# Norm of most features with this many numbers, once they are scaled, on photographs.
_SCALED_NORM = 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScatteredRecipe(NormalizedRecipe):
    """The settings of one training run on fixed features of images; every one is a public constant.

    The features of `layers.Scattering2D`, beside those of `layers.PatchFeatures2D` where there are `patches`, and of
    `layers.EncoderFeatures2D` where they are `encoded`, are normalized by private moments
    (`layers.PrivateNormalization`). Then comes a dense layer that reads all of them; on
    wavelet features alone, before it a dense layer that reads each place alone, and tanh. Clipless training has no such
    hidden layer, and no bias: it cuts the normalized features to one norm and the gradient at the logits, so that the
    gradient of an example has norm `clip_norm` at most.

    Args:
        input_shape: shape of one image, `(height, width, channels)`.
        num_classes: number of classes.
        batch_size: expected batch size.
        epochs: expected passes over the data.
        mirrored: whether an image and its mirror image give the same features, but for those of the encoder.
        deskewed: whether images are moved to their middle and sheared upright first (`layers.Deskew2D`), for
            characters written by hand.
        feature_norm: norm that features are clipped to while their moments are released.
        moments_noise: noise multiplier of these two releases.
        patches: how many patches the images are compared with; 0 for none.
        scaled: whether the channels of each kind of features are centered, scaled and in part decorrelated by what they
            are on random images first, which are public: the noise of the moments then is small beside each deviation,
            and updates reach directions in which features vary less. For photographs, with `patches`.
        encoded: whether the features of an encoder that has seen random images alone stand beside the others. For
            images in color, with `patches`.
        hidden: width of the hidden layer at each place; 0 for none. Without `patches`, and not "clipless".
        learning_rate: of stochastic gradient descent, at the start; it falls linearly to zero.
        momentum: of stochastic gradient descent.
        method: name of the strategy: "dpsgd", "adaclip", "dpis" or "clipless".
        clip_norm: L2 norm that the gradient of each example is clipped to, or bounded by.

    Example:
        >>> scattered_recipe((32, 32, 3), num_classes=10, num_examples=50000, epsilon=2.0).updates(50000)
        196
    """

    mirrored: bool = False
    deskewed: bool = False
    feature_norm: float = _NORM
    patches: int = 0
    scaled: bool = False
    encoded: bool = False
    hidden: int = 128

    def __post_init__(self):
        if self.patches and self.hidden:
            raise ValueError(
                "The features of `patches` have no places in common with the others, and a hidden layer reads each "
                f"place. Received: patches={self.patches}, hidden={self.hidden}. Set one of them to 0."
            )
        if self.encoded and not self.patches:
            raise ValueError(
                "The features of an encoder stand beside those of `patches`. Received: encoded=True, patches=0. Set "
                "encoded=False."
            )
        if self.hidden and self.method == "clipless":
            raise ValueError(
                "Clipless training of this recipe has one layer, whose gradient is bounded as it is. Received: "
                f"method='clipless', hidden={self.hidden}. Set hidden=0."
            )

    def strategy(self) -> strategies.Strategy:
        """Returns the strategy for `fit`."""
        return strategies.Clipless() if self.method == "clipless" else super().strategy()

    def build(self, num_examples: int) -> DP_Model | DP_Sequential:
        """Returns the compiled model, fixed layers included.

        Args:
            num_examples: number of training examples, sets the length of the learning-rate schedule.

        Returns:
            A `DP_Sequential`, or a `DP_Model` where two kinds of features meet, with the metric "accuracy".
        """
        return self._compiled(self._joined(), num_examples)

    def trained(self, num_examples: int) -> DP_Sequential:
        shape = self._front().output_shape[1:]
        stack = [keras.Input(shape, name="features"), *self._head(shape)]
        return self._compiled(DP_Sequential(stack, name="lipdp"), num_examples)

    def prepare(self, x: Any, verbose: str | int = "auto") -> np.ndarray:
        return features(self._front(), x, batch_size=images_at_once(), dtype=_DTYPE, verbose=verbose)

    def whole(self, model: Any) -> DP_Model | DP_Sequential:
        whole = self._joined(model.layers)
        whole.compile(
            model.optimizer.__class__.from_config(model.optimizer.get_config()), model.loss, metrics=["accuracy"]
        )
        share_run(model, whole)
        return whole

    def part(self, model: Any, num_examples: int) -> DP_Sequential:
        whole = super().part(model, num_examples)
        head = whole.layers[_num_fixed(whole) :]
        stack = [keras.Input(head[0].input.shape[1:], name="features"), *head]
        part = self._compiled(DP_Sequential(stack, name="lipdp"), num_examples)
        share_run(whole, part)
        return part

    def _is_alike(self, model: Any, fresh: Any) -> bool:
        if not super()._is_alike(model, fresh):
            return False
        fixed = zip(model.layers[: _num_fixed(fresh)], fresh.layers, strict=False)
        return all(one.get_config() == other.get_config() and _same_weights(one, other) for one, other in fixed)

    def _front(self) -> keras.Model:
        """Returns the fixed layers."""
        if not self.patches:
            first = [*self._deskewing(), *_kinds(0, self.mirrored)]
            return keras.Sequential([keras.Input(self.input_shape, name="input"), *first])
        shown = images = keras.Input(self.input_shape, name="input")
        for layer in self._deskewing():
            shown = layer(shown)
        flat = []
        for kind in _kinds(self.patches, self.mirrored, self.encoded):
            found = kind(shown)
            if self.scaled:
                found = self._scaled(kind.name, found)
            flat.append(keras.layers.Flatten(name=f"flat_{kind.name}")(found))
        return keras.Model(images, keras.layers.Concatenate(name="features")(flat))

    def _scaled(self, kind: str, found: Any) -> Any:
        kernel, bias = _on_random_images(self.input_shape, self.patches, self.mirrored, self.encoded)[kind]
        # `Dense` with Keras before 3.15 has TensorFlow read past the end of a matrix.
        layer = keras.layers.Conv2D(len(bias), 1, kernel_initializer="zeros", trainable=False, name=f"scaled_{kind}")
        found = layer(found)
        layer.set_weights([kernel[None, None], bias])
        return found

    def _deskewing(self) -> list:
        return [layers.Deskew2D(name="deskewing")] if self.deskewed else []

    def _joined(self, head: list | None = None) -> DP_Model | DP_Sequential:
        """Returns the fixed layers and those that train, new ones by default, as one model."""
        front = self._front()
        head = self._head(front.output_shape[1:]) if head is None else head
        if isinstance(front, keras.Sequential):
            return DP_Sequential([keras.Input(self.input_shape, name="input"), *front.layers, *head], name="lipdp")
        outputs = front.output
        for layer in head:
            outputs = layer(outputs)
        return DP_Model(front.input, outputs, name="lipdp")

    def _head(self, shape: tuple[int, ...]) -> list:
        stack: list = [layers.PrivateNormalization(self.feature_norm, self.moments_noise, name="normalization")]
        if self.method == "clipless":
            stack.append(layers.BoundedInput(norm=_SHORT * math.sqrt(math.prod(shape)), name="bounded_input"))
            stack += [] if self.patches else [keras.layers.Flatten(name="flatten")]
            logits = layers.SpectralDense(self.num_classes, kernel_initializer="zeros", projected=False, name="logits")
            return [*stack, logits]
        if self.hidden:
            stack.append(keras.layers.Dense(self.hidden, activation="tanh", name="hidden"))
        last = keras.layers.Dense(self.num_classes, kernel_initializer="zeros", name="logits")
        return [*stack, last] if self.patches else [*stack, keras.layers.Flatten(name="flatten"), last]

    def _loss(self, model: Any) -> losses.Loss:
        if self.method != "clipless":
            return super()._loss(model)
        return losses.SparseCategoricalCrossentropy(clip=self.clip_norm / model.get_layer("bounded_input").norm)


def images_at_once() -> int:
    """Returns how many images the fixed layers see at once."""
    return _OF_THREADS.get(backend.cpu_threads(), _AT_ONCE)


def fits(
    input_shape: tuple[int, ...], num_examples: int, mirrored: bool, patches: int = 0, encoded: bool = False
) -> bool:
    """Returns whether the features of so many images fit into memory, up to 2 GiB."""
    return np.dtype(_DTYPE).itemsize * num_examples * _entries(input_shape, mirrored, patches, encoded) <= _MEMORY


def _num_fixed(model: Any) -> int:
    """Returns how many layers make the features."""
    return next(i for i, layer in enumerate(model.layers) if isinstance(layer, layers.PrivateNormalization))


def _same_weights(one: keras.Layer, other: keras.Layer) -> bool:
    """Whether two layers have the same weights, but for what another number of threads or processor rounds."""
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return all(np.abs(mine - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max()) for mine, theirs in pairs)


def _entries(input_shape: tuple[int, ...], mirrored: bool, patches: int, encoded: bool) -> int:
    """Returns the number of features of one image."""
    rows, columns = (-(-side // 4) for side in input_shape[:2])
    windows = _PLACES**2
    if mirrored:
        columns, windows = -(-columns // 2), windows // 2
    return rows * columns * 81 * input_shape[-1] + windows * 2 * patches + encoded * _ENCODED


def _kinds(patches: int, mirrored: bool, encoded: bool = False) -> list:
    """Returns fresh fixed layers, one for each kind of features."""
    found: list = [layers.Scattering2D("accurate", mirrored=mirrored, name="scattering")]
    if patches:
        found.append(layers.PatchFeatures2D(patches, places=_PLACES, mirrored=mirrored, name="patches"))
    return [*found, layers.EncoderFeatures2D(name="encoder")] if encoded else found


@functools.lru_cache(maxsize=4)
def _on_random_images(
    input_shape: tuple[int, ...], patches: int, mirrored: bool, encoded: bool
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns kernel and bias of a map of the channels, for each kind of features.

    On random images it gives each channel mean 0 and deviation 1, which those of the encoder have already, then divides
    each direction of all channels by its deviation to a power.
    """
    count = max(16, _RANDOM_PIXELS // math.prod(input_shape[:2]))
    images = dead_leaves.images(count, input_shape, seed=1)
    known = {}
    for kind in _kinds(patches, mirrored, encoded):
        found = features(
            keras.Sequential([keras.Input(input_shape), kind]), images, batch_size=min(256, count), verbose=0
        )
        found = found.reshape(-1, found.shape[-1]).astype("float64")
        mean, variance = found.mean(axis=0), found.var(axis=0)
        # A channel that is nearly constant there may be none on photographs.
        scale = np.ones_like(mean) if kind.name == "encoder" else 1.0 / np.sqrt(variance + _LEAST * variance.mean())
        found = (found - mean) * scale
        variances, directions = np.linalg.eigh(found.T @ found / len(found))
        variances = np.maximum(variances, 0.0) + _LEAST_ALONG * variances.mean()
        kernel = scale[:, None] * ((directions * variances ** (-_POWER / 2)) @ directions.T)
        known[kind.name] = kernel.astype("float32"), (-mean @ kernel).astype("float32")
    return known


def is_mirrored(input_shape: tuple[int, ...], deskewed: bool) -> bool:
    """Returns whether an image counts as its mirror image by default: that of a character is another one, or none."""
    return input_shape[-1] == 3 and not deskewed


def scattered_recipe(
    input_shape: tuple[int, ...],
    num_classes: int,
    num_examples: int,
    epsilon: float | None = None,
    *,
    method: str = "dpsgd",
    mirrored: bool | None = None,
    deskewed: bool = False,
) -> ScatteredRecipe:
    """Returns the settings that reach the highest accuracy here on images.

    They depend on public facts only: shapes, the number of examples, the budget; not on any value. Images with sides
    from 16 pixels on are also compared with patches (`layers.PatchFeatures2D`), if all features fit into 2 GiB: up to
    67,000 of 32 x 32 in color, 88,000 of 28 x 28 in gray. Those in color with sides from 24 pixels on, up to 61,000 of
    32 x 32, are also shown to an encoder that has learned from random images (`layers.EncoderFeatures2D`). Deskewed
    ones are for clipless training only. With patches, and with `deskewed`, there are no certificates; those of the
    other networks are valid, and far too small to be of use. `lipdp.recipe` takes these settings for images with sides
    from 16 pixels on, whose wavelet features take up no more than 2 GiB; `method="clipless"` by
    `front_end="accurate"`, for at least 16,384 of them.

    Args:
        input_shape: shape of one image, `(height, width, channels)`.
        num_classes: number of classes.
        num_examples: number of training examples.
        epsilon: the budget; None when the noise is given instead. Larger budgets train for longer.
        method: name of the strategy: "dpsgd", "adaclip", "dpis" or "clipless".
        mirrored: whether the class of an image is also that of its mirror image. Default: for images in color, where it
            usually is; not for gray ones, such as digits.
        deskewed: whether images are characters written by hand, bright on a ground of 0, whose slant and place say
            nothing of the class.

    Returns:
        A `ScatteredRecipe`; change it with `dataclasses.replace`. Learning rate and norm are those of the features it
        has: without `patches`, they are others.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> scattered_recipe((28, 28, 1), num_classes=10, num_examples=60000, epsilon=2.0).mirrored
        False
    """
    checks.choice("method", method, (*METHODS, "clipless"))
    if len(tuple(input_shape)) != 3:
        raise ValueError(
            f"Images have three sizes. Received: input_shape={input_shape!r}. Pass (height, width, channels)."
        )
    num_classes = checks.integer("num_classes", num_classes, 2)
    num_examples = checks.integer("num_examples", num_examples, 1)
    deskewed = checks.boolean("deskewed", deskewed)
    mirrored = is_mirrored(input_shape, deskewed) if mirrored is None else checks.boolean("mirrored", mirrored)
    batch_size = min(LARGEST_BATCH, math.ceil(num_examples / 6))
    budget, shared = ScatteredRecipe.by_budget(num_examples, epsilon, batch_size)
    patches = 2 * _PATCHES if mirrored else _PATCHES
    # Characters that stand upright gain nothing from patches beyond what a hidden layer gives them.
    asked = min(input_shape[:2]) >= _SMALLEST_COMPARED and (not deskewed or method == "clipless")
    compared = asked and fits(input_shape, num_examples, mirrored, patches)
    norm = _NORM * math.sqrt(math.prod(input_shape) / _ENTRIES)
    # Random images are like photographs, not like dark ones of clothes or characters.
    scaled = compared and input_shape[-1] == 3 and not deskewed
    shown = scaled and min(input_shape[:2]) >= _SMALLEST_ENCODED
    encoded = shown and fits(input_shape, num_examples, mirrored, patches, encoded=True)
    norm = math.hypot(norm, _NORM) if compared else norm
    # More noise asks for smaller steps, and for fewer; digits that stand upright bear larger ones.
    rate = 0.3 * budget**0.45 if compared else 0.7 * budget**0.35 if deskewed else 0.35 * budget**0.85
    # Few images have more noise in an update. Chosen on held-out training images, see `benchmarks/few_images.py`.
    rate *= min(1.0, num_examples / (_IMAGES_OF_RATE if deskewed or scaled else _GRAY_IMAGES_OF_RATE))
    if method == "clipless":
        # Rows are cut to one norm already, so that the gradient at the logits may keep more of what tells them apart.
        shared |= {"clip_norm": 6.0}
        rate = 0.06 * budget**0.45
    if scaled:
        norm = _SCALED_NORM * math.sqrt(_entries(input_shape, mirrored, patches, encoded))
        rate = rate if method == "clipless" else 0.6 * rate
    return ScatteredRecipe(
        input_shape=tuple(input_shape),
        num_classes=num_classes,
        mirrored=mirrored,
        deskewed=deskewed,
        feature_norm=norm,
        patches=patches if compared else 0,
        scaled=scaled,
        encoded=encoded,
        hidden=0 if compared or method == "clipless" else 128,
        learning_rate=rate,
        method=method,
        **shared,
    )
