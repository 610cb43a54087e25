"""Default settings of De et al. 2022 for images: a wide residual network by DP-SGD, made for a GPU."""

import dataclasses
import math
from typing import Any

import keras

from lipdp import checks, strategies
from lipdp.layers import StandardizedConv2D
from lipdp.layers.base import require_channels_last
from lipdp.model import DP_Model
from lipdp.models.base import TrainingRecipe
from lipdp.models.scattered import is_mirrored

_GROUPS = 16
# Updates at epsilon 1, of the size of those that are published; they grow with the root of the budget.
_UPDATES, _LARGEST_BATCH, _SHARE = 875.0, 4096, 12
# Pixels in memory at once for each of 16 views of a network of width 4: 128 images of 32 x 32.
_PIXELS = 2**17
# Averages reach back over about this part of the updates, with this momentum at most.
_WINDOW, _MOMENTUM = 0.1, 0.999
_SMALLEST_SIDE = 8


def wide_resnet(
    input_shape: tuple[int, ...], num_classes: int, depth: int = 16, width: int = 4, *, standardized: bool = True
) -> keras.Model:
    """Returns a wide residual network for images in [0, 1], WRN-`depth`-`width`, with group normalization.

    Three groups of preactivated blocks: two 3 x 3 convolutions without biases, each behind group normalization (16
    groups) and ReLU. Images are scaled to [-2, 2] first, by constants.

    Args:
        input_shape: Shape of one image, `(height, width, channels)`, with sides from 8 pixels on.
        num_classes: Number of classes, at least 2.
        depth: Number of convolutions on the longest way but those of skips, and the last layer: 10, 16, 22, 28, 34 or
            40, and so on.
        width: Filters of the first group over 16. Memory and time grow with it, and the noise with the weights.
        standardized: Whether convolutions are `layers.StandardizedConv2D`, as those of De et al. 2022, or Keras' own.

    Returns:
        A functional `keras.Model` of logits; make it private with `lipdp.DP_Model.from_keras`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> wide_resnet((32, 32, 3), num_classes=10).count_params()
        2751146
    """
    require_channels_last("wide_resnet")
    input_shape = _checked_shape(input_shape)
    num_classes = checks.integer("num_classes", num_classes, 2)
    blocks, width = _blocks(depth), checks.integer("width", width, 1)
    standardized = checks.boolean("standardized", standardized)
    inputs = keras.Input(input_shape, name="input")
    h = keras.layers.Rescaling(4.0, offset=-2.0, name="rescaling")(inputs)
    h = _convolution(h, 16, 3, 1, standardized, "stem")
    for group, filters in enumerate((16 * width, 32 * width, 64 * width), 1):
        for block in range(1, blocks + 1):
            name = f"group_{group}_block_{block}"
            strides = 2 if group > 1 and block == 1 else 1
            ready = _activated(h, f"{name}_first")
            skip = h if block > 1 else _convolution(ready, filters, 1, strides, standardized, f"{name}_skip")
            h = _convolution(ready, filters, 3, strides, standardized, f"{name}_first")
            h = _convolution(_activated(h, f"{name}_second"), filters, 3, 1, standardized, f"{name}_second")
            h = keras.layers.Add(name=f"{name}_sum")([skip, h])
    h = keras.layers.GlobalAveragePooling2D(name="pooling")(_activated(h, "last"))
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(h), name="wide_resnet")


def _activated(h: Any, name: str) -> Any:
    normal = keras.layers.GroupNormalization(_GROUPS, epsilon=1e-5, name=f"{name}_normalization")(h)
    return keras.layers.Activation("relu", name=f"{name}_relu")(normal)


def _convolution(h: Any, filters: int, size: int, strides: int, standardized: bool, name: str) -> Any:
    return (StandardizedConv2D if standardized else keras.layers.Conv2D)(
        filters,
        size,
        strides=strides,
        padding="same",
        use_bias=False,
        kernel_initializer="lecun_uniform",
        name=f"{name}_convolution",
    )(h)


def _checked_shape(input_shape: Any) -> tuple[int, ...]:
    shape = tuple(input_shape)
    if len(shape) != 3 or min(shape[:2]) < _SMALLEST_SIDE:
        raise ValueError(
            f"A wide residual network takes images with sides from {_SMALLEST_SIDE} pixels on. Received: input_shape="
            f"{shape}. Pass (height, width, channels); for everything else leave the recipe out: the default knows "
            "tables and small images."
        )
    return shape


def _blocks(depth: Any) -> int:
    """Returns the number of blocks in each of the three groups."""
    depth = checks.integer("depth", depth, 10)
    if depth % 6 != 4:
        raise ValueError(
            f"`depth` must be 4 more than a multiple of 6, for blocks of two in three groups. Received: depth={depth}. "
            "Pass 16, for example."
        )
    return (depth - 4) // 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideResNetRecipe(TrainingRecipe):
    """The settings of one training run of a wide residual network; every one is a public constant.

    After De et al. 2022: DP-SGD on `wide_resnet`, whose gradients are averaged over several views of each image, moved
    and mirrored at random, before they are clipped. Stochastic gradient descent has no momentum and a constant rate;
    the weights that `fit` returns are an average over its last updates (Keras' `use_ema`). While training goes on, what
    is evaluated are the weights of the last update. Nothing is computed from the data but gradients: no statistics of
    images, no layer that is fixed. Made for a GPU. There are no certificates.

    Args:
        input_shape: shape of one image, `(height, width, channels)`; images are in [0, 1].
        num_classes: number of classes.
        batch_size: expected batch size.
        epochs: expected passes over the data.
        depth: of the network, 4 more than a multiple of 6.
        width: of the network.
        standardized: whether convolutions are `layers.StandardizedConv2D`.
        augmentation_multiplicity: views of each image in an update; 1 and more. An update takes as many times as long.
        shift: views are moved by up to so many pixels, in each direction.
        mirrored: whether views are mirrored, each with probability 1/2: left and right must mean the same.
        ema_momentum: of the average of the weights, in [0, 1). Default: by the number of updates, so that the average
            is over about the last tenth of them.
        learning_rate: of stochastic gradient descent, constant.
        method: "dpsgd".
        clip_norm: L2 norm that the gradient of each image is clipped to.
        microbatch_size: images in memory at once at most, with all their views; a CPU takes fewer where that is faster,
            and `fit(microbatch_size=...)` comes first. Only time and memory depend on it.

    Raises:
        ValueError: a setting is out of range, or the method is another one.

    Example:
        >>> import dataclasses
        >>> recipe = wide_resnet_recipe((32, 32, 3), num_classes=10, num_examples=50000, epsilon=8.0)
        >>> recipe.updates(50000), dataclasses.replace(recipe, epochs=20).updates(50000)
        (2470, 260)
    """

    bounded = False

    input_shape: tuple[int, ...]
    num_classes: int
    batch_size: int
    epochs: int
    depth: int = 16
    width: int = 4
    standardized: bool = True
    augmentation_multiplicity: int = 16
    shift: int = 4
    mirrored: bool = False
    ema_momentum: float | None = None
    learning_rate: float = 2.0
    method: str = "dpsgd"
    clip_norm: float = 1.0
    microbatch_size: int | None = 128

    def __post_init__(self):
        _checked_shape(self.input_shape)
        _blocks(self.depth)
        _check_method(self.method)
        for name in ("width", "augmentation_multiplicity"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("microbatch_size", self.microbatch_size, 1, optional=True)
        checks.integer("shift", self.shift)
        checks.boolean("mirrored", self.mirrored)
        checks.boolean("standardized", self.standardized)
        if self.ema_momentum is not None:
            checks.below_one("ema_momentum", self.ema_momentum)

    def strategy(self) -> strategies.DPSGD:
        """Returns the strategy for `fit`."""
        moved = strategies.RandomShift(self.shift, flip=self.mirrored)
        return strategies.DPSGD(
            clip_norm=self.clip_norm,
            augmentation_multiplicity=self.augmentation_multiplicity,
            augmentation=moved if self.shift or self.mirrored else None,
        )

    def rate(self, num_examples: int) -> Any:
        """Returns the learning rate, which is constant."""
        return self.learning_rate

    def momentum_of_averages(self, num_examples: int) -> float:
        """Returns the momentum of the average of the weights."""
        if self.ema_momentum is not None:
            return self.ema_momentum
        return max(0.0, min(_MOMENTUM, 1.0 - 1.0 / (_WINDOW * self.updates(num_examples))))

    def build(self, num_examples: int) -> DP_Model:
        """Returns the compiled model.

        Args:
            num_examples: number of training examples, sets how far the average of the weights reaches back.

        Returns:
            A `DP_Model`, compiled, with the metric "accuracy".
        """
        network = wide_resnet(
            self.input_shape, self.num_classes, self.depth, self.width, standardized=self.standardized
        )
        model = DP_Model.from_keras(network)
        model.compile(
            keras.optimizers.SGD(
                self.rate(num_examples), use_ema=True, ema_momentum=self.momentum_of_averages(num_examples)
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model


def _check_method(method: Any) -> None:
    if method != "dpsgd":
        raise ValueError(
            "A wide residual network averages views of each image before it clips, at settings that are those of "
            f"DP-SGD. Received: method={method!r}. Pass method='dpsgd' (--strategy dpsgd), or leave style='wrn' "
            "(--recipe wrn) out: other recipes train by other strategies."
        )


def wide_resnet_recipe(
    input_shape: tuple[int, ...],
    num_classes: int,
    num_examples: int,
    epsilon: float | None = None,
    *,
    method: str = "dpsgd",
    handwritten: bool = False,
) -> WideResNetRecipe:
    """Returns settings after De et al. 2022 for images of one shape; no accuracy of them has been measured.

    They depend on public facts only: shapes, the number of examples, the budget; not on any value. On 50,000 images
    they are a batch of 4096, and about 875 updates at epsilon 1 and 2470 at epsilon 8; smaller sets have as many
    updates of smaller batches. `lipdp.recipe(style="wrn")` takes these settings.

    Args:
        input_shape: shape of one image, `(height, width, channels)`, with sides from 8 pixels on.
        num_classes: number of classes.
        num_examples: number of training examples.
        epsilon: the budget; None when the noise is given instead. Larger budgets train for longer.
        method: "dpsgd"; nothing else is known here.
        handwritten: whether each image is known to be a character written by hand, which is not mirrored.

    Returns:
        A `WideResNetRecipe`; change it with `dataclasses.replace`. Images in color are mirrored, gray ones are not.

    Raises:
        ValueError: an argument is out of range, or the method is another one.

    Example:
        >>> recipe = wide_resnet_recipe((32, 32, 3), num_classes=10, num_examples=50000, epsilon=1.0)
        >>> recipe.updates(50000), recipe.batch_size, recipe.mirrored
        (871, 4096, True)
    """
    _check_method(method)
    shape = _checked_shape(input_shape)
    num_examples = checks.integer("num_examples", num_examples, 1)
    epsilon = checks.positive("epsilon", epsilon, optional=True) or 1.0
    batch_size = min(_LARGEST_BATCH, math.ceil(num_examples / _SHARE))
    updates = _UPDATES * math.sqrt(min(max(epsilon, 0.25), 8.0))
    return WideResNetRecipe(
        input_shape=shape,
        num_classes=checks.integer("num_classes", num_classes, 2),
        batch_size=batch_size,
        epochs=max(1, round(updates / math.ceil(num_examples / batch_size))),
        shift=round(min(shape[:2]) / 8),
        mirrored=is_mirrored(shape, checks.boolean("handwritten", handwritten)),
        microbatch_size=max(1, min(batch_size, _PIXELS // math.prod(shape[:2]))),
    )
