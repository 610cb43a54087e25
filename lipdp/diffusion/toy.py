"""The two-dimensional toy of Dockhorn et al. 2023, appendix D: a mixture of nine narrow modes."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers
from numpy.typing import ArrayLike

from lipdp.diffusion.unet import SinusoidalEmbedding

_HALF = 0.5**0.5 / 2
MODES = np.array([((i + j) * _HALF, (j - i) * _HALF) for i in (-1, 0, 1) for j in (-1, 0, 1)])
MODE_STD = 1.0 / 25.0


def nine_modes(num_examples: int, seed: int = 0) -> np.ndarray:
    """Returns points of the mixture: nine normal laws of standard deviation 1/25, a square grid on its corner.

    Args:
        num_examples: how many.
        seed: non-negative integer.

    Returns:
        Float32 array `(num_examples, 2)`.

    Example:
        >>> from lipdp.diffusion import toy
        >>> toy.nine_modes(5).shape
        (5, 2)
    """
    rng = np.random.default_rng(seed)
    points = MODES[rng.integers(0, len(MODES), num_examples)] + MODE_STD * rng.normal(size=(num_examples, 2))
    return points.astype("float32")


def mode_counts(points: ArrayLike, deviations: float = 4.0) -> np.ndarray:
    """Returns how many points lie within some standard deviations of each mode.

    Args:
        points: `(N, 2)`.
        deviations: radius, in standard deviations of a mode.

    Returns:
        Integer array of nine counts; their sum over N is the fraction of good points, as the balls are disjoint.
    """
    distances = np.linalg.norm(np.asarray(points)[:, None] - MODES, axis=2)
    return np.sum(distances <= deviations * MODE_STD, axis=0)


def point_network(dimension: int = 2, width: int = 128, depth: int = 3) -> keras.Model:
    """Returns a network for points: residual dense layers that see the noise level.

    Args:
        dimension: coordinates of a point.
        width: hidden units, a multiple of 2 and at least 4.
        depth: residual layers.

    Returns:
        A model of `[x, c_noise]`, shapes `(batch, dimension)` and `(batch,)`, to `(batch, dimension)`.
    """
    x, c_noise = keras.Input((dimension,), name="x"), keras.Input((), name="c_noise")
    # The levels of interest span a few units of c_noise: stretched, the sinusoids tell them apart.
    level = SinusoidalEmbedding(width)(layers.Rescaling(8.0)(c_noise))
    # Waves of the position as well: the modes are narrow against their distances.
    waves = layers.Flatten()(SinusoidalEmbedding(16)(layers.Rescaling(16.0)(x)))
    h = layers.Dense(width)(layers.Concatenate()([x, waves]))
    for _ in range(depth):
        inside = layers.Add()([layers.Dense(width)(h), layers.Dense(width)(level)])
        h = layers.Add()([h, layers.Dense(width)(layers.Activation("silu")(inside))])
    return keras.Model([x, c_noise], layers.Dense(dimension)(layers.Activation("silu")(h)), name="points")
