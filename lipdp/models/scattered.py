"""Default settings for the accuracy of images: a small network on fixed features."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from lipdp import checks, layers
from lipdp.model import DP_Model, DP_Sequential
from lipdp.models.base import LARGEST_BATCH, METHODS, NormalizedRecipe
from lipdp.models.features import features

# Chosen on held-out training images of CIFAR-10 and Fashion-MNIST, see `benchmarks/scattered.py`.
_MEMORY = 2**32
# Norm of most features of an image with as many numbers; those of "accurate" scattering vary slowly with the image.
_NORM, _ENTRIES = 2.8, 3072
# Patches that images in color are compared with, and windows along a side that the features are averaged over.
_PATCHES, _PLACES, _SMALLEST_COMPARED = 512, 4, 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScatteredRecipe(NormalizedRecipe):
    """The settings of one training run on fixed features of images; every one is a public constant.

    The features of `layers.Scattering2D`, for images in color beside those of `layers.PatchFeatures2D`, are normalized
    by private moments (`layers.PrivateNormalization`). Then comes a dense layer that reads all of them; on wavelet
    features alone, before it a dense layer that reads each place alone, and tanh.

    Args:
        input_shape: shape of one image, `(height, width, channels)`.
        num_classes: number of classes.
        batch_size: expected batch size.
        epochs: expected passes over the data.
        mirrored: whether an image and its mirror image give the same features.
        deskewed: whether images are moved to their middle and sheared upright first (`layers.Deskew2D`), for
            characters written by hand.
        feature_norm: norm that features are clipped to while their moments are released.
        moments_noise: noise multiplier of these two releases.
        patches: how many patches the images are compared with; 0 for none.
        hidden: width of the hidden layer at each place; 0 for none. Without `patches` only.
        learning_rate: of stochastic gradient descent, at the start; it falls linearly to zero.
        momentum: of stochastic gradient descent.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".
        clip_norm: L2 norm that the gradient of each example is clipped to.

    Example:
        >>> scattered_recipe((32, 32, 3), num_classes=10, num_examples=50000, epsilon=2.0).updates(50000)
        196
    """

    mirrored: bool = False
    deskewed: bool = False
    feature_norm: float = _NORM
    patches: int = 0
    hidden: int = 128

    def __post_init__(self):
        if self.patches and self.hidden:
            raise ValueError(
                "The features of `patches` have no places in common with the others, and a hidden layer reads each "
                f"place. Received: patches={self.patches}, hidden={self.hidden}. Set one of them to 0."
            )

    def build(self, num_examples: int) -> DP_Model | DP_Sequential:
        """Returns the compiled model, fixed layers included.

        Args:
            num_examples: number of training examples, sets the length of the learning-rate schedule.

        Returns:
            A `DP_Sequential`, or a `DP_Model` where two kinds of features meet, with the metric "accuracy".
        """
        return self._compiled(self._joined(self._head()), num_examples)

    def trained(self, num_examples: int) -> DP_Sequential:
        shape = self._front().output_shape[1:]
        stack = [keras.Input(shape, name="features"), *self._head()]
        return self._compiled(DP_Sequential(stack, name="lipdp"), num_examples)

    def prepare(self, x: Any) -> np.ndarray:
        return features(self._front(), x)

    def whole(self, model: Any) -> DP_Model | DP_Sequential:
        whole = self._joined(model.layers)
        whole.compile(model.optimizer.__class__.from_config(model.optimizer.get_config()), model.loss, ["accuracy"])
        # As if it had been loaded from the file of the part that was trained; what either releases later is in both.
        whole.run.restore(model.run.to_array())
        whole.run.ledger = model.run.ledger
        return whole

    def _front(self) -> keras.Model:
        """Returns the fixed layers."""
        if not self.patches:
            return keras.Sequential([keras.Input(self.input_shape, name="input"), *self._fixed()])
        *first, last = self._fixed()
        images = keras.Input(self.input_shape, name="input")
        shown = images
        for layer in first:
            shown = layer(shown)
        compared = layers.PatchFeatures2D(self.patches, places=_PLACES, mirrored=self.mirrored, name="patches")
        flat = [keras.layers.Flatten(name=f"flat_{kind.name}")(kind(shown)) for kind in (last, compared)]
        return keras.Model(images, keras.layers.Concatenate(name="features")(flat))

    def _fixed(self) -> list:
        deskewing = [layers.Deskew2D(name="deskewing")] if self.deskewed else []
        return [*deskewing, layers.Scattering2D("accurate", mirrored=self.mirrored, name="scattering")]

    def _joined(self, head: list) -> DP_Model | DP_Sequential:
        """Returns the fixed layers and those that train as one model."""
        front = self._front()
        if isinstance(front, keras.Sequential):
            return DP_Sequential([keras.Input(self.input_shape, name="input"), *front.layers, *head], name="lipdp")
        outputs = front.output
        for layer in head:
            outputs = layer(outputs)
        return DP_Model(front.input, outputs, name="lipdp")

    def _head(self) -> list:
        stack = [layers.PrivateNormalization(self.feature_norm, self.moments_noise, name="normalization")]
        if self.hidden:
            stack.append(keras.layers.Dense(self.hidden, activation="tanh", name="hidden"))
        last = keras.layers.Dense(self.num_classes, kernel_initializer="zeros", name="logits")
        return [*stack, last] if self.patches else [*stack, keras.layers.Flatten(name="flatten"), last]


def fits(input_shape: tuple[int, ...], num_examples: int, deskewed: bool = False, patches: int = 0) -> bool:
    """Returns whether the features of so many images fit into memory, up to 4 GiB; color is mirrored."""
    rows, columns = (-(-side // 4) for side in input_shape[:2])
    windows = _PLACES**2
    if _in_color(input_shape) and not deskewed:
        columns, windows = -(-columns // 2), windows // 2
    entries = rows * columns * 81 * input_shape[-1] + windows * 2 * patches
    return 4 * num_examples * entries <= _MEMORY


def _in_color(input_shape: tuple[int, ...]) -> bool:
    return input_shape[-1] == 3


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
    """Returns the settings that reach the highest accuracy here on many images.

    They depend on public facts only: shapes, the number of examples, the budget; not on any value. Images in color with
    sides from 16 pixels on are also compared with patches (`layers.PatchFeatures2D`), if they are mirrored, not
    deskewed, and all features fit into 4 GiB: up to 67,000 of 32 x 32. With patches, and with `deskewed`, there are no
    certificates; those of the other networks are valid, and far too small to be of use. `lipdp.recipe` takes these
    settings for at least 16,384 images with sides from 16 pixels on, whose wavelet features take up no more than 4 GiB.

    Args:
        input_shape: shape of one image, `(height, width, channels)`.
        num_classes: number of classes.
        num_examples: number of training examples.
        epsilon: the budget; None when the noise is given instead. Larger budgets train for longer.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".
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
    checks.choice("method", method, METHODS)
    if len(tuple(input_shape)) != 3:
        raise ValueError(
            f"Images have three sizes. Received: input_shape={input_shape!r}. Pass (height, width, channels)."
        )
    num_classes = checks.integer("num_classes", num_classes, 2)
    num_examples = checks.integer("num_examples", num_examples, 1)
    deskewed = checks.boolean("deskewed", deskewed)
    # The mirror image of a character is another one, or none.
    mirrored = (_in_color(input_shape) and not deskewed) if mirrored is None else checks.boolean("mirrored", mirrored)
    batch_size = min(LARGEST_BATCH, math.ceil(num_examples / 6))
    budget, shared = ScatteredRecipe.by_budget(num_examples, epsilon, batch_size)
    in_color = _in_color(input_shape) and mirrored and not deskewed and min(input_shape[:2]) >= _SMALLEST_COMPARED
    compared = in_color and fits(input_shape, num_examples, patches=_PATCHES)
    norm = _NORM * math.sqrt(math.prod(input_shape) / _ENTRIES)
    return ScatteredRecipe(
        input_shape=tuple(input_shape),
        num_classes=num_classes,
        mirrored=mirrored,
        deskewed=deskewed,
        feature_norm=math.hypot(norm, _NORM) if compared else norm,
        patches=_PATCHES if compared else 0,
        hidden=0 if compared else 128,
        # More noise asks for smaller steps, and for fewer; digits that stand upright bear larger ones.
        learning_rate=0.3 * budget**0.45 if compared else 0.7 * budget**0.35 if deskewed else 0.35 * budget**0.85,
        method=method,
        **shared,
    )
