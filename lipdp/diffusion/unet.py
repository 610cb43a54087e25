"""The network of image diffusion: a DDPM++ style U-Net of stock Keras layers."""

import math
from typing import Any

import keras
from keras import layers, ops

from lipdp import _keras, checks
from lipdp.layers.base import require_channels_last

_ROOT_HALF = math.sqrt(0.5)

CPU_SIZES: dict[str, Any] = {"channels": 16, "multipliers": (1, 2), "blocks": 1, "patch_size": 2, "slim": True}

# Settings of `unet` by name. The two of Dockhorn et al. 2023, and smaller ones for a CPU.
PRESETS: dict[str, dict[str, Any]] = {
    "dpdm-28": {"image_shape": (28, 28, 1), "attention": (7,)},
    "dpdm-32": {"image_shape": (32, 32, 3), "attention": (16,)},
    "cpu-28": {"image_shape": (28, 28, 1), **CPU_SIZES},
    "cpu-14": {"image_shape": (14, 14, 1), **CPU_SIZES},
}


def preset(name: str, num_classes: int | None = 10) -> keras.Model:
    """Returns a U-Net of one of the known sizes, with fresh weights.

    Args:
        name: `"dpdm-28"` or `"dpdm-32"`, the sizes of Dockhorn et al. 2023 for 28 x 28 x 1 and 32 x 32 x 3 (1.75 and
            1.8 million parameters), or `"cpu-28"` or `"cpu-14"`, for 28 x 28 x 1 and 14 x 14 x 1 on a CPU (61000
            parameters, on patches of 2 x 2 pixels).
        num_classes: see `unet`.

    Returns:
        A `keras.Model`, see `unet`.

    Raises:
        ValueError: when the name is unknown.
    """
    checks.choice("name", name, sorted(PRESETS), hint="Call `unet` for other sizes.")
    return unet(**PRESETS[name], num_classes=num_classes, name=name.replace("-", "_"))


def unet(
    image_shape: tuple[int, int, int],
    num_classes: int | None = None,
    channels: int = 32,
    multipliers: tuple[int, ...] = (1, 2, 2),
    blocks: int = 2,
    attention: tuple[int, ...] = (),
    patch_size: int = 1,
    slim: bool = False,
    dropout: float = 0.0,
    name: str = "unet",
) -> keras.Model:
    """Returns a U-Net F(x, c_noise, label) with residual blocks, GroupNorm and attention.

    No layer mixes examples of a batch, so per-example gradients exist; apart from the parameter-free
    `SinusoidalEmbedding` all layers are Keras' own. Residual branches, attention and the output begin at zero.

    Args:
        image_shape: `(height, width, channels)`; sides that cannot be halved often enough are padded with zeros
            inside.
        num_classes: number of classes C; the label C stands for "no label". None: a network without labels.
        channels: channels at full resolution.
        multipliers: channels of each resolution, in units of `channels`; each entry after the first halves the
            sides.
        blocks: residual blocks per resolution on the way down; unless slim, one more on the way up.
        attention: heights at which attention follows each block, counted inside the network (after padding and
            patches). Unless slim, the lowest resolution has attention in the middle in any case.
        patch_size: side of square patches that are turned into channels first; 2 costs a quarter of the time.
        slim: leave out what DDPM++ has beyond one skip per resolution and `blocks` residual blocks each way: the
            middle, residual resampling and the extra blocks on the way up.
        dropout: rate inside of residual blocks. Under privacy the noise regularizes already.
        name: name of the model.

    Returns:
        A model of the inputs `[x, c_noise]` or `[x, c_noise, label]`, shapes `(batch, height, width, channels)`,
        `(batch,)` and `(batch,)`, and an output of the shape of x.

    Raises:
        ValueError: when an argument is out of its range.

    Source: Song et al. 2021, DDPM++; sizes of Dockhorn et al. 2023.

    Example:
        >>> from lipdp import diffusion
        >>> network = diffusion.unet((8, 8, 1), num_classes=10, channels=8, multipliers=(1, 2), blocks=1)
        >>> network.output_shape
        (None, 8, 8, 1)
    """
    require_channels_last("unet")
    _check(image_shape, num_classes, channels, multipliers, blocks, patch_size)
    height, width, depth = image_shape
    image = keras.Input(image_shape, name="x")
    c_noise = keras.Input((), name="c_noise")
    inputs = [image, c_noise]
    embedding = SinusoidalEmbedding(channels)(c_noise)
    if num_classes is not None:
        inputs.append(keras.Input((), dtype="int32", name="label"))
        # Of the size of the sinusoids: Keras' default is twenty times weaker, and the labels come late.
        table = layers.Embedding(
            num_classes + 1, channels, embeddings_initializer=keras.initializers.RandomNormal(0, 1)
        )
        embedding = layers.Add()([embedding, table(inputs[-1])])
    embedding = layers.Dense(4 * channels, activation="silu")(embedding)
    # Each block applies its own affine map to the activation of this.
    embedding = layers.Dense(4 * channels, activation="silu")(embedding)

    multiple = patch_size * 2 ** (len(multipliers) - 1)
    below, right = -height % multiple, -width % multiple
    margins = ((below // 2, below - below // 2), (right // 2, right - right // 2))
    x = layers.ZeroPadding2D(margins)(image) if below or right else image
    if patch_size > 1:
        x = _to_patches(x, patch_size)

    x = layers.Conv2D(channels, 3, padding="same")(x)
    widths = [channels * multiplier for multiplier in multipliers]
    x = (_slim if slim else _ddpm)(x, embedding, widths, blocks, attention, dropout)
    x = layers.Activation("silu")(_normalize(x))
    x = layers.Conv2D(depth * patch_size**2, 3, padding="same", kernel_initializer="zeros")(x)

    if patch_size > 1:
        x = _from_patches(x, patch_size)
    if below or right:
        x = layers.Cropping2D(margins)(x)
    return keras.Model(inputs, x, name=name)


@_keras.serializable
class SinusoidalEmbedding(layers.Layer):
    """Sines and cosines of a scalar at `dimension / 2` frequencies from 1 down to 1e-4.

    Args:
        dimension: even number of outputs, at least 4.

    Example:
        >>> import numpy as np
        >>> SinusoidalEmbedding(4)(np.zeros(2, "float32")).shape == (2, 4)
        True
    """

    def __init__(self, dimension: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.dimension = checks.integer("dimension", dimension, minimum=4)
        if dimension % 2:
            raise ValueError(f"`dimension` must be even. Received: dimension={dimension!r}.")

    def call(self, inputs: Any) -> Any:
        half = self.dimension // 2
        frequencies = [10000.0 ** (-i / (half - 1)) for i in range(half)]
        angles = ops.expand_dims(inputs, -1) * ops.convert_to_tensor(frequencies, inputs.dtype)
        return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape, self.dimension)


def _ddpm(x, embedding, widths, blocks, attention, dropout):
    """The way down, the middle and the way up: each block of the way down is a skip."""
    skips = [x]
    for level, width in enumerate(widths):
        for _ in range(blocks):
            x = _residual(x, embedding, width, dropout)
            x = _attend(x) if x.shape[1] in attention else x
            skips.append(x)
        if level < len(widths) - 1:
            x = _residual(x, embedding, width, dropout, resample=layers.AveragePooling2D)
            skips.append(x)
    x = _residual(x, embedding, widths[-1], dropout)
    x = _attend(x)
    x = _residual(x, embedding, widths[-1], dropout)
    for level, width in reversed(list(enumerate(widths))):
        for _ in range(blocks + 1):
            x = _residual(layers.Concatenate()([x, skips.pop()]), embedding, width, dropout)
        x = _attend(x) if x.shape[1] in attention else x
        if level > 0:
            x = _residual(x, embedding, width, dropout, resample=layers.UpSampling2D)
    return x


def _slim(x, embedding, widths, blocks, attention, dropout):
    """One skip per resolution, plain resampling, no middle."""
    skips = []
    for level, width in enumerate(widths):
        if level > 0:
            skips.append(x)
            x = layers.AveragePooling2D(2)(x)
        for _ in range(blocks):
            x = _residual(x, embedding, width, dropout)
            x = _attend(x) if x.shape[1] in attention else x
    for level, width in reversed(list(enumerate(widths))):
        for _ in range(blocks):
            x = _residual(x, embedding, width, dropout)
            x = _attend(x) if x.shape[1] in attention else x
        if level > 0:
            x = layers.Concatenate()([layers.UpSampling2D(2)(x), skips.pop()])
    return x


def _residual(x, embedding, channels, dropout, resample=None):
    """GroupNorm, SiLU, convolution, plus embedding, GroupNorm, SiLU, convolution; added to the shortcut."""
    h = layers.Activation("silu")(_normalize(x))
    if resample is not None:
        x, h = resample(2)(x), resample(2)(h)
    h = layers.Conv2D(channels, 3, padding="same")(h)
    shift = layers.Reshape((1, 1, channels))(layers.Dense(channels)(embedding))
    h = layers.Activation("silu")(_normalize(layers.Add()([h, shift])))
    if dropout:
        h = layers.Dropout(dropout)(h)
    h = layers.Conv2D(channels, 3, padding="same", kernel_initializer="zeros")(h)
    if resample is not None or x.shape[-1] != channels:
        x = layers.Conv2D(channels, 1)(x)
    return _sum(x, h)


def _attend(x):
    """Single-head attention between the positions of an image, added to it."""
    height, width, channels = x.shape[1:]
    h = layers.Reshape((height * width, channels))(_normalize(x))
    query, key, value = (layers.Dense(channels)(h) for _ in range(3))
    h = layers.Attention()([layers.Rescaling(channels**-0.5)(query), value, key])
    # Not `MultiHeadAttention`: there all maps begin at zero or none.
    h = layers.Dense(channels, kernel_initializer="zeros")(h)
    return _sum(x, layers.Reshape((height, width, channels))(h))


def _normalize(x):
    return layers.GroupNormalization(_groups(x.shape[-1]), epsilon=1e-6)(x)


def _groups(channels: int) -> int:
    """The largest divisor of the channels that leaves groups of four or more, at most 32."""
    return max(g for g in range(1, 33) if channels % g == 0 and (g == 1 or channels // g >= 4))


def _sum(x, h):
    """Keeps the variance."""
    return layers.Rescaling(_ROOT_HALF)(layers.Add()([x, h]))


def _to_patches(x, size):
    height, width, depth = x.shape[1:]
    x = layers.Reshape((height // size, size, width // size, size, depth))(x)
    return layers.Reshape((height // size, width // size, size * size * depth))(layers.Permute((1, 3, 2, 4, 5))(x))


def _from_patches(x, size):
    height, width, depth = x.shape[1:]
    x = layers.Reshape((height, width, size, size, depth // size**2))(x)
    return layers.Reshape((height * size, width * size, depth // size**2))(layers.Permute((1, 3, 2, 4, 5))(x))


def _check(image_shape, num_classes, channels, multipliers, blocks, patch_size):
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise ValueError(f"`image_shape` must be (height, width, channels). Received: image_shape={image_shape!r}.")
    checks.integer("num_classes", num_classes, minimum=1, optional=True)
    if checks.integer("channels", channels, minimum=4) % 4:
        raise ValueError(f"`channels` must be a multiple of 4. Received: channels={channels!r}.")
    if not multipliers:
        raise ValueError(f"`multipliers` must hold one number per level. Received: multipliers={multipliers!r}.")
    for multiplier in multipliers:
        checks.integer("multipliers", multiplier, minimum=1)
    for name, value in (("blocks", blocks), ("patch_size", patch_size)):
        checks.integer(name, value, minimum=1)
