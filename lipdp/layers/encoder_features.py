"""Features of a network that has seen images of random processes only: they cost no privacy."""

import functools
import importlib.resources
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, backend
from lipdp.layers.base import require_channels_last
from lipdp.layers.unbounded import Unbounded

# Of the images that the network was trained on.
SIDE = 32
# Groups of channels that are normalized together, and what is added to their variance.
GROUPS, EPSILON = 16, 1e-5
# Widths, and numbers of blocks, from the full resolution to a quarter of it.
_FIRST, _STAGES = 32, ((1, 32), (2, 128), (2, 256))
# Block whose sum is read beside the last one.
_MIDDLE, _WINDOWS = 2, 2
OUTPUT_SHAPE = (_WINDOWS, _WINDOWS, _STAGES[1][1] + _STAGES[2][1])


def maps(h: Any, convolved: Callable, normalized: Callable) -> tuple[Any, Any]:
    """Returns two maps of features of images, by a wide residual network.

    Args:
        h: images in [-2, 2].
        convolved: takes a map, filters, kernel size and strides.
        normalized: takes a map; normalizes groups of its channels, scales and shifts each channel, cuts it off at 0.

    Returns:
        The sum of a block in the middle, and the normalized last one.
    """
    h = convolved(h, _FIRST, 3, 1)
    sums = []
    for stage, (blocks, filters) in enumerate(_STAGES):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            ready = normalized(h)
            skip = h if h.shape[-1] == filters else convolved(ready, filters, 1, strides)
            inner = normalized(convolved(ready, filters, 3, strides))
            h = ops.add(skip, convolved(inner, filters, 3, 1))
            sums.append(h)
    return sums[_MIDDLE], normalized(h)


def read(middle: Any, last: Any) -> Any:
    """Returns what the features are made of: both maps, averaged over quarters of the image."""
    middle = ops.relu(standardized(middle))
    sides = (middle.shape[1] // _WINDOWS, last.shape[1] // _WINDOWS)
    # With the strides left out, this operation fails on JAX in Keras 3.15.
    pooled = (ops.average_pool(h, side, side) for h, side in zip((middle, last), sides, strict=True))
    return ops.concatenate(list(pooled), axis=-1)


def standardized(h: Any) -> Any:
    """Returns a map whose groups of channels have mean 0 and variance 1 in each image."""
    shape = (-1, *h.shape[1:-1], GROUPS, h.shape[-1] // GROUPS)
    groups = ops.reshape(h, shape)
    mean = ops.mean(groups, axis=(1, 2, 4), keepdims=True)
    groups = groups - mean
    variance = ops.mean(ops.square(groups), axis=(1, 2, 4), keepdims=True)
    return ops.reshape(groups * ops.rsqrt(variance + EPSILON), (-1, *h.shape[1:]))


def network() -> tuple[keras.Model, list[keras.Variable]]:
    """Returns the network in stock layers, from images in [0, 1] to both maps, and its weights in the order of use."""
    layers = keras.layers
    inputs, used = keras.Input((SIDE, SIDE, 3)), []

    def convolved(h, filters, size, strides):
        layer = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)
        outputs = layer(h)
        used.append(layer.kernel)
        return outputs

    def normalized(h):
        layer = layers.GroupNormalization(GROUPS, epsilon=EPSILON)
        outputs = layer(h)
        used.extend([layer.gamma, layer.beta])
        return layers.Activation("relu")(outputs)

    outputs = maps(layers.Rescaling(4.0, -2.0)(inputs), convolved, normalized)
    return keras.Model(inputs, outputs, name="encoder"), used


@functools.lru_cache(maxsize=1)
def _constants() -> dict[str, np.ndarray]:
    """Returns the arrays of the file: kernels in 8 bits with scales, the rest in half precision."""
    with importlib.resources.files("lipdp.layers").joinpath("encoder.npz").open("rb") as file, np.load(file) as found:
        return {name: found[name] for name in found.files}


def stored() -> list[np.ndarray]:
    """Returns the weights of the network in the order of their use, then mean and deviation of the features."""
    found, values = _constants(), []
    for i in range(sum(not name.startswith("scale") for name in found)):
        if f"kernel_{i}" in found:
            values.append(found[f"kernel_{i}"].astype("float32") * found[f"scale_{i}"].astype("float32"))
        else:
            values.append(found[f"vector_{i}"].astype("float32"))
    return values


@_keras.serializable
class EncoderFeatures2D(Unbounded):
    """Features of a residual network that has learned from random images alone, averaged over quarters of an image.

    The network has 2.6 million weights, which come with the library and never change. It has learned, without labels,
    that two views of one image belong together, on images of random networks and of shapes that cover one another. It
    has seen no data, so these features cost no privacy and may be computed once, before `fit`. In the default recipe
    for images in color they stand beside those of `Scattering2D` and `PatchFeatures2D`. Each of them is centered and
    scaled by what it is on random images. Not for certificates, see below.

    Call arguments:
        inputs: Images in color, `(batch, height, width, 3)`, with values in [0, 1] and known inner sizes. Those that
            are not 32 x 32 are resized to it.

    Returns:
        Tensor `(batch, 2, 2, 384)`.

    Raises:
        ValueError: the input is not a batch of images in color of known size, or the image format is channels first.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> x = np.random.default_rng(0).random((2, 32, 32, 3)).astype("float32")
        >>> tuple(layers.EncoderFeatures2D()(x).shape)
        (2, 2, 2, 384)

    **Guarantee.** Each row of the output is a function of the same row of the input and of public constants: nothing
    trains them. There is no Lipschitz constant of use, as maps are divided by their deviation. Certificates through
    this layer are refused, and so is clipless training through it, unless a `ClipGradient` bounds what comes back. Its
    output counts as unbounded: for clipless training a `BoundedInput` follows; strategies that clip take it as it is.
    Source: after Tang et al. 2023 (DP-RandP), section 3; trained by `benchmarks/encoder.py`.
    """

    lipschitz_formula = "none: divides by deviations"
    unbounded_because = ": its maps are divided by their deviation"
    unbounded_way_out = (
        "Train a network without it, such as lipdp.recipe(..., style='robust') or lipdp train --recipe robust."
    )

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        require_channels_last(self)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = tuple(input_shape)
        if len(shape) != 4 or None in shape[1:] or shape[-1] != 3:
            raise ValueError(
                f"Layer '{self.name}' needs images in color of a known size (height, width, 3). Received: input shape "
                f"{shape}. Give the input a full shape; repeat the channel of gray images three times."
            )
        self.input_spec = keras.layers.InputSpec(shape=(None, *shape[1:]))
        # Weights of the layer, so that a saved model holds those that it was trained on.
        self._values = [
            self.add_weight(value.shape, keras.initializers.Constant(value), trainable=False, name=f"fixed_{i}")
            for i, value in enumerate(stored())
        ]

    def call(self, inputs: Any) -> Any:
        *values, mean, deviation = self._values
        rest = iter(values)

        def convolved(h, filters, size, strides):
            return ops.conv(h, next(rest), strides, "same")

        def normalized(h):
            return ops.relu(standardized(h) * next(rest) + next(rest))

        def features(images):
            return read(*maps(4.0 * images - 2.0, convolved, normalized))

        # Of three images, the last map has 3 x 8 x 8 places, and all others have more.
        return (backend.in_tiles(features, self._resized(inputs), 3) - mean) / deviation

    def _resized(self, inputs: Any) -> Any:
        images = ops.cast(inputs, self.compute_dtype)
        if images.shape[1:3] == (SIDE, SIDE):
            return images
        return ops.image.resize(images, (SIDE, SIDE), antialias=True)

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        stock, used = network()
        for variable, value in zip(used, self._values[:-2], strict=True):
            variable.assign(ops.convert_to_numpy(value))  # on JAX two weights of one array are deleted together
        return stock, []

    def export_call(self, stock: Any, inputs: Any) -> Any:
        mean, deviation = (ops.convert_to_numpy(value) for value in self._values[-2:])
        return (read(*stock(self._resized(inputs))) - mean) / deviation

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], *OUTPUT_SHAPE)
