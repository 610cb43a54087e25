"""How much the parts of an image look like patches of random images: features that cost no privacy."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.layers import dead_leaves
from lipdp.layers.base import integer_between, require_channels_last
from lipdp.layers.unbounded import Unbounded

# What is taken off the modulus of a response, times the root of the size of a patch: about the fifth part is more.
_THRESHOLD = 1.55
# Sets the norm of most features of a photograph to that of `Scattering2D("accurate")`, for any number of them.
_GAIN = 12.0
# Largest patch: whitening takes the third power of its size.
_ENTRIES = 1024
# Floor of the squared length of a whitened patch.
_FLOOR = 1e-6


@_keras.serializable
class PatchFeatures2D(Unbounded):
    """Compares all patches of an image with a fixed set of patches, and averages what they have in common over windows.

    Patches are set to one contrast, whitened and scaled to length 1; the features are the means over a window of
    `max(z - t, 0)` and `max(-z - t, 0)` for the products z with each patch of the set. The set comes from random
    images, shapes that cover one another ("dead leaves"), drawn from `seed`. It uses no data, so these features cost
    no privacy and may be computed once, before `fit`. In the default recipe for images in color they stand beside those
    of `Scattering2D`. Not for certificates, see below.

    Args:
        filters: Number of patches in the set, 1 to 4096; an even number with `mirrored`. The recipe takes 512.
        kernel_size: Side of a patch in pixels, 2 to 16.
        places: Number of windows along height and along width, 1 to 32.
        mirrored: Whether an image and its mirror image give the same features, where the class does not depend on it
            (objects, but not digits). The set then has each patch and its mirror image, and only the left half of the
            windows is kept, as in `Scattering2D`.
        seed: Seed of the random images, an integer >= 0. It is public.

    Call arguments:
        inputs: Images `(batch, height, width, channels)` with values in [0, 1] and known inner sizes, both sides at
            least `kernel_size + places - 1`.

    Returns:
        Tensor `(batch, places, places, 2 * filters)`; with `mirrored` only the first `ceil(places / 2)` windows of each
        row.

    Raises:
        ValueError: an argument is out of range, the image is too small, a patch has more than 1024 numbers, a size is
            unknown, or the image format is channels first.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> x = np.random.default_rng(0).random((2, 32, 32, 3)).astype("float32")
        >>> tuple(layers.PatchFeatures2D(filters=16)(x).shape)
        (2, 4, 2, 32)

    **Guarantee.** Each row of the output is a function of the same row of the input and of public constants. There is
    no Lipschitz constant of use: where a patch has little contrast, a small change of it turns all of its responses.
    Certificates through this layer are refused, and so is clipless training through it, unless a `ClipGradient` bounds
    what comes back. Its output counts as unbounded: for clipless training a `BoundedInput` follows; strategies that
    clip take it as it is. Source: Coates, Ng & Lee 2011, section 3, with random images in place of training images.
    """

    lipschitz_formula = "none: follows the contrast"
    unbounded_because = " of use: where a patch has little contrast, a small change turns it altogether"
    unbounded_way_out = (
        "Train a network without it, such as lipdp.recipe(..., style='robust') or lipdp train --recipe robust."
    )

    def __init__(
        self,
        filters: int = 512,
        kernel_size: int = 5,
        places: int = 4,
        mirrored: bool = True,
        seed: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        require_channels_last(self)
        self.filters = integer_between("filters", filters, 1, 4096)
        self.kernel_size = integer_between("kernel_size", kernel_size, 2, 16)
        self.places = integer_between("places", places, 1, 32)
        self.mirrored = checks.boolean("mirrored", mirrored)
        self.seed = checks.integer("seed", seed, 0)
        if self.mirrored and self.filters % 2:
            raise ValueError(
                f"With `mirrored`, each patch comes with its mirror image. Received: filters={self.filters}. Pass an "
                "even number."
            )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = tuple(input_shape)
        if len(shape) != 4 or None in shape[1:]:
            raise ValueError(
                f"Layer '{self.name}' needs images of a known size (height, width, channels). Received: input shape "
                f"{shape}. Give the input a full shape; add an axis to images without channels."
            )
        least = self.kernel_size + self.places - 1
        if min(shape[1:3]) < least:
            raise ValueError(
                f"Layer '{self.name}' needs sides of `kernel_size + places - 1 = {least}` pixels or more. Received: "
                f"input shape {shape}. Use larger images, or smaller patches or fewer `places`."
            )
        self.input_spec = keras.layers.InputSpec(shape=(None, *shape[1:]))
        height, width, channels = (int(n) for n in shape[1:])
        entries = self.kernel_size**2 * channels
        if entries > _ENTRIES:
            raise ValueError(
                f"Layer '{self.name}' whitens patches of up to {_ENTRIES} numbers. Received: kernel_size="
                f"{self.kernel_size} and input shape {shape}, patches of {entries}. Use smaller patches of an image."
            )
        drawn = self.filters // 2 if self.mirrored else self.filters
        self._whitening, patches = dead_leaves.dictionary(self.kernel_size, channels, drawn, self.seed)
        if self.mirrored:
            patches = np.concatenate([patches, dead_leaves.mirrored(patches, self.kernel_size)])
        self._patches = patches.T
        rows, columns = (_windows(side - self.kernel_size + 1, self.places) for side in (height, width))
        gain = _GAIN * math.sqrt(patches.shape[1] / (self.places**2 * self.filters))
        self._average = (gain * np.einsum("as,bt->abst", rows, columns)).reshape(self.places**2, -1).astype("float32")

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()
        return {**config, "check": self._check()} if config else config

    def build_from_config(self, config: dict[str, Any]) -> None:
        super().build_from_config(config)
        if "check" in config and not np.allclose(self._check(), config["check"], rtol=0.0, atol=1e-3):
            raise ValueError(
                f"Layer '{self.name}' drew other patches from seed {self.seed} than when it was saved: the random "
                "numbers of NumPy have changed, and the weights behind it belong to the former patches. Received: "
                f"NumPy {np.__version__}. Load it with the version it was saved with."
            )

    def _check(self) -> list[float]:
        """Returns numbers that change with any patch, or with their order: files hold the seed alone."""
        weights = np.linspace(0.5, 1.0, self._patches.shape[1])
        return [float(value) for value in np.concatenate([self._patches @ weights, self._whitening.sum(axis=1)])[::7]]

    def call(self, inputs: Any) -> Any:
        # One image at a time: its responses fit into the cache of a processor.
        return self._arranged(ops.map(self._averages, ops.cast(inputs, self.compute_dtype)))

    def export_call(self, stock: Any, inputs: Any) -> Any:
        return self._arranged(self._averages(ops.cast(inputs, self.compute_dtype)))

    def _arranged(self, found: Any) -> Any:
        """Returns averages `(batch, places ** 2, 2 * filters)` in the places that are kept."""
        shape = (-1, self.places, self.places, 2, *((2, self.filters // 2) if self.mirrored else (self.filters,)))
        found = ops.reshape(found, shape)
        if self.mirrored:
            found = 0.5 * (found + ops.flip(ops.flip(found, axis=2), axis=4))[:, :, : -(-self.places // 2)]
        return ops.reshape(found, (-1, *found.shape[1:3], 2 * self.filters))

    def _averages(self, images: Any) -> Any:
        """Returns the averages `(..., places ** 2, 2 * filters)` of the responses of images `(..., h, w, channels)`."""
        down, across = (side - self.kernel_size + 1 for side in images.shape[-3:-1])
        offsets = [(i, j) for i in range(self.kernel_size) for j in range(self.kernel_size)]
        patches = ops.concatenate([images[..., i : i + down, j : j + across, :] for i, j in offsets], axis=-1)
        batch = (-1,) if images.ndim > 3 else ()
        patches = ops.reshape(patches, (*batch, down * across, patches.shape[-1]))
        patches = patches - ops.mean(patches, axis=-1, keepdims=True)
        contrast = ops.mean(ops.square(patches), axis=-1, keepdims=True) + dead_leaves.CONTRAST_FLOOR
        patches = ops.matmul(patches / ops.sqrt(contrast), self._whitening)
        length = ops.sum(ops.square(patches), axis=-1, keepdims=True) + _FLOOR
        responses = ops.matmul(patches / ops.sqrt(length), self._patches)
        threshold = _THRESHOLD / math.sqrt(len(self._patches))
        parts = (ops.relu(responses - threshold), ops.relu(-responses - threshold))
        return ops.concatenate([ops.matmul(self._average, part) for part in parts], axis=-1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        across = -(-self.places // 2) if self.mirrored else self.places
        return (input_shape[0], self.places, across, 2 * self.filters)


def _windows(count: int, places: int) -> np.ndarray:
    """Returns averages `(places, count)` over windows of equal size, whose edges may cut what they average."""
    edges = np.arange(places + 1) * count / places
    starts = np.arange(count)
    overlap = np.minimum(edges[1:, None], starts + 1) - np.maximum(edges[:-1, None], starts)
    return np.maximum(overlap, 0.0) * places / count
