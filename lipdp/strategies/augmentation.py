"""Several random copies of each example (augmentation multiplicity)."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import backend, checks, isolation
from lipdp.backend import threefry
from lipdp.layers.base import require_channels_last


@keras.saving.register_keras_serializable(package="lipdp")
@dataclasses.dataclass(frozen=True)
class RandomShift:
    """Shifts each image by up to some pixels in both directions, filling with zeros; flips it on request.

    Args:
        pixels: Largest shift, an int >= 0.
        flip: Whether to mirror left and right, with probability 1/2.

    **Guarantee.** Row i of the result depends on row i of the images and on `key` only.

    Example:
        >>> import numpy as np
        >>> from lipdp import strategies
        >>> shift = strategies.RandomShift(2)
        >>> shift(np.ones((3, 8, 8, 1), "float32"), np.array([1, 2], "uint32")).shape == (3, 8, 8, 1)
        True
    """

    pixels: int
    flip: bool = False

    def __post_init__(self):
        object.__setattr__(self, "pixels", checks.integer("pixels", self.pixels))
        object.__setattr__(self, "flip", checks.boolean("flip", self.flip))

    def __call__(self, images, key):
        """Returns the images, `(rows, height, width, channels)`, shifted as two uint32 words say."""
        require_channels_last(self)
        images = ops.convert_to_tensor(images)
        if len(images.shape) != 4:
            raise ValueError(f"RandomShift takes (rows, height, width, channels). Received: shape {images.shape}.")
        rows = ops.cast(ops.arange(ops.shape(images)[0], dtype="int32"), "uint32")
        down, right = threefry.threefry((key[0], key[1]), rows, ops.zeros_like(rows))
        images = self._shift(self._shift(images, down, 1), right, 2)
        if self.flip:
            coin, _ = threefry.threefry((key[0], key[1]), rows, ops.ones_like(rows))
            images = ops.where(_column(ops.cast(ops.bitwise_and(coin, _word(1)), "bool")), images, images[:, :, ::-1])
        return images

    def _shift(self, images, words, axis):
        steps = 2 * self.pixels + 1
        # 16 bits are enough to be uniform within 1e-3 of each probability, and stay positive as int32.
        chosen = ops.cast(ops.right_shift(words, _word(16)), "int32") % steps
        padding = [[0, 0] for _ in images.shape]
        padding[axis] = [self.pixels, self.pixels]
        padded, size, result = ops.pad(images, padding), images.shape[axis], None
        for step in range(steps):
            part = padded[:, step : step + size] if axis == 1 else padded[:, :, step : step + size]
            part = ops.where(_column(chosen == step), part, ops.zeros_like(part))
            result = part if result is None else result + part
        return result

    def get_config(self) -> dict:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict) -> "RandomShift":
        return cls(**config)


def get(augmentation: Any) -> Any:
    """Returns an augmentation from itself or its configuration."""
    if isinstance(augmentation, dict):
        augmentation = keras.saving.deserialize_keras_object(augmentation)
    if augmentation is None or (callable(augmentation) and hasattr(augmentation, "get_config")):
        if not isinstance(augmentation, keras.layers.Layer):
            return augmentation
    raise ValueError(
        "`augmentation` must be a serializable object called as augmentation(x, key), such as "
        f"strategies.RandomShift(4). Received: augmentation={augmentation!r}. Layers keep random states that a "
        "compiled step would freeze: put random layers of Keras into the model, where each copy gets a draw of its own."
    )


def serialize(augmentation: Any) -> dict | None:
    """Returns the configuration of an augmentation."""
    return None if augmentation is None else keras.saving.serialize_keras_object(augmentation)


def check(augmentation: Any, input_shape: Any) -> None:
    """Refuses an augmentation whose row i depends on other rows, by trying it on synthetic numbers."""
    if isinstance(input_shape, (list, dict)):
        raise ValueError(f"`augmentation` needs a model with one input. Received: {len(input_shape)} inputs.")
    rng, key = np.random.default_rng(0), np.array([1, 2], "uint32")
    shape = (5, *(8 if size is None else size for size in input_shape[1:]))
    x = rng.uniform(size=shape).astype("float32")
    together = ops.convert_to_numpy(augmentation(x, ops.convert_to_tensor(key)))
    if together.shape != shape:
        raise ValueError(f"`augmentation` must keep the shape. Received: {shape} became {together.shape}.")
    for i in range(len(x)):
        others = rng.uniform(size=shape).astype("float32")
        others[i] = x[i]
        if not np.array_equal(ops.convert_to_numpy(augmentation(others, ops.convert_to_tensor(key)))[i], together[i]):
            raise ValueError(
                "`augmentation` mixes examples: a row of its result depends on other rows. Received: "
                f"augmentation={type(augmentation).__name__}. Transform each row by itself."
            )


def apply(augmentation: Any, x: Any, key: Any) -> Any:
    """Returns `augmentation(x, key)`; one that is not lipdp's sees one row at a time, with a key for each row."""
    kind = type(augmentation)
    if isolation.root(kind) == "lipdp" or isolation.is_declared(kind):
        return augmentation(x, key)
    rows = ops.cast(ops.arange(ops.shape(x)[0], dtype="int32"), "uint32")
    words = threefry.threefry((key[0], key[1]), rows, _word(2) * ops.ones_like(rows))

    def one(x, first, second):
        return augmentation(x, ops.concatenate([first, second]))

    return isolation.alone(one, f"The augmentation {kind.__name__}")(ops.convert_to_tensor(x), *words)


def repeat(data: Any, copies: int) -> Any:
    """Returns the data with each row `copies` times in a row."""
    return tree.map_structure(lambda t: ops.repeat(t, copies, axis=0), data)


def key(secret: Any, index: Any) -> Any:
    """Returns two words for microbatch `index` of the update whose noise comes from `secret`.

    As secret as the noise: copies belong to rows, and one example more moves the rows behind it. With copies
    that nobody knows, and that are independent, this changes nothing in distribution; with known ones it would.
    """
    # Of another domain of the cipher than `backend.ratchet`, which uses this key as well.
    return backend.subkey(secret, index)[:2]


def _word(value):
    return ops.convert_to_tensor(value, dtype="uint32")


def _column(mask):
    return ops.reshape(mask, (-1, 1, 1, 1))
