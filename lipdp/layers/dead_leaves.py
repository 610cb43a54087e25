"""Patches of images that no camera took: shapes of random size and color that cover one another ("dead leaves")."""

import functools

import numpy as np

# Painted at twice the resolution that patches are cut at.
_SIDE = 1024
_LEAVES = 36000
_SMALLEST, _LARGEST = 2.0, 32.0
# Variance below which a patch shows nothing, and what is added to a variance that is divided by: of pixels in [0, 1].
_FLAT = 1e-4
CONTRAST_FLOOR = 10.0 / 255.0**2
# Share of the largest eigenvalue that is added to each one when patches are whitened.
_WHITENING_FLOOR = 0.01


@functools.lru_cache(maxsize=4)
def dictionary(size: int, channels: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a whitening matrix `(d, d)` and whitened patches of length 1, `(count, d)`.

    Entries of a patch are in the order row, column, channel; `d = size ** 2 channels`.
    """
    generator = np.random.default_rng(seed)
    image = _image(channels, generator)
    rows, columns = generator.integers(0, len(image) - size + 1, (2, max(40 * size**2 * channels, 8 * count)))
    windows = np.lib.stride_tricks.sliding_window_view(image, (size, size), axis=(0, 1))[rows, columns]
    patches = windows.transpose(0, 2, 3, 1).reshape(len(rows), -1)
    patches = normalized(patches[patches.var(axis=1) > _FLAT])
    # The mirror image of a random image is as likely.
    both = np.concatenate([patches, mirrored(patches, size)])
    values, vectors = np.linalg.eigh(both.T @ both / len(both))
    whitening = (vectors / np.sqrt(np.maximum(values, 0.0) + _WHITENING_FLOOR * values[-1])) @ vectors.T
    chosen = patches[:count] @ whitening
    chosen /= np.linalg.norm(chosen, axis=1, keepdims=True)
    return whitening.astype("float32"), chosen.astype("float32")


def images(count: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Returns random images `(count, *shape)` in [0, 1]: windows of a large one, repeated beyond its edges.

    Args:
        count: number of images.
        shape: `(height, width, channels)` of one.
        seed: of the large image and of the windows.
    """
    generator = np.random.default_rng(seed)
    image = _image(shape[2], generator)
    rows, columns = (
        (generator.integers(0, len(image), (count, 1)) + np.arange(side)) % len(image) for side in shape[:2]
    )
    return image[rows[:, :, None], columns[:, None, :]].astype("float32")


def normalized(patches: np.ndarray) -> np.ndarray:
    """Returns patches `(n, d)` less their mean, over their contrast."""
    centered = patches - patches.mean(axis=1, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(axis=1, keepdims=True) + CONTRAST_FLOOR)


def mirrored(patches: np.ndarray, size: int) -> np.ndarray:
    """Returns the mirror images, left to right, of patches `(n, d)`."""
    return np.flip(patches.reshape(len(patches), size, size, -1), axis=2).reshape(patches.shape)


def _image(channels: int, generator: np.random.Generator) -> np.ndarray:
    """Returns a square image `(side, side, channels)` in [0, 1]: leaves fall one upon the other."""
    image = np.zeros((_SIDE, _SIDE, channels))
    draws = generator.random((_LEAVES, 8 + channels))
    # The density of radii falls with their third power: about as many edges at every scale.
    radii = (_SMALLEST**-2 + draws[:, 0] * (_LARGEST**-2 - _SMALLEST**-2)) ** -0.5
    colors = 0.5 * (draws[:, 8:] + draws[:, 1:2])
    for radius, color, draw in zip(radii, colors, draws, strict=True):
        middle, turn, flatness = draw[2:4] * _SIDE, np.pi * draw[4], 0.4 + 0.6 * draw[5]
        low = np.maximum(np.floor(middle - 1.5 * radius), 0).astype(int)
        high = np.minimum(np.ceil(middle + 1.5 * radius), _SIDE).astype(int)
        y, x = (np.arange(a, b) - m for a, b, m in zip(low, high, middle, strict=True))
        along = (np.cos(turn) * x + np.sin(turn) * y[:, None]) / radius
        across = (np.cos(turn) * y[:, None] - np.sin(turn) * x) / (radius * flatness)
        inside = (
            np.square(along) + np.square(across) < 1.0 if draw[6] < 0.5 else np.maximum(abs(along), abs(across)) < 1
        )
        shaded = np.clip(color + 0.5 * (draw[7] - 0.5) * along[inside][:, None], 0.0, 1.0)
        image[low[0] : high[0], low[1] : high[1]][inside] = shaded
    return image.reshape(_SIDE // 2, 2, _SIDE // 2, 2, channels).mean(axis=(1, 3))
