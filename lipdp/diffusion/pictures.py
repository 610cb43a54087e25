"""Pictures of samples: image grids, and each sample beside its nearest training examples."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from lipdp import checks


def nearest_neighbors(
    synthetic: np.ndarray,
    real: np.ndarray,
    k: int = 5,
    features: Callable[[np.ndarray], np.ndarray] | None = None,
    batch_size: int = 256,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the k nearest real examples of each synthetic one, in the L2 norm.

    Args:
        synthetic: examples `(N, ...)`.
        real: examples `(M, ...)`, M at least k.
        k: how many neighbors.
        features: function from a batch of examples to `(batch, d)`, in whose space to measure; None: the examples
            themselves.
        batch_size: synthetic examples at once.

    Returns:
        `(indices, distances)`, both `(N, k)`, the nearest first. They show private examples: not for release.

    Raises:
        ValueError: when there are fewer than k real examples.

    Example:
        >>> import numpy as np
        >>> from lipdp import diffusion
        >>> indices, distances = diffusion.nearest_neighbors(np.array([[1.0]]), np.array([[5.0], [0.0], [3.0]]), k=2)
        >>> indices.tolist(), distances.tolist()
        ([[1, 2]], [[1.0, 2.0]])
    """
    if checks.integer("k", k, minimum=1) > len(real):
        raise ValueError(f"`k` must be at most the number of real examples. Received: k={k} of {len(real)}.")
    a, b = (applied(features, np.asarray(images), batch_size) for images in (synthetic, real))
    a, b = (rows.reshape(len(rows), -1).astype(float) for rows in (a, b))
    squares = np.sum(b * b, axis=1)
    indices, distances = [], []
    for start in range(0, len(a), batch_size):
        part = a[start : start + batch_size]
        scores = squares - 2.0 * part @ b.T
        nearest = np.argpartition(scores, k - 1, axis=1)[:, :k]
        # Exact distances of the few: the scores cancel.
        exact = np.linalg.norm(part[:, None] - b[nearest], axis=2)
        order = np.argsort(exact, axis=1, kind="stable")
        indices.append(np.take_along_axis(nearest, order, axis=1))
        distances.append(np.take_along_axis(exact, order, axis=1))
    return np.concatenate(indices), np.concatenate(distances)


def image_grid(
    images: ArrayLike,
    path: str | pathlib.Path,
    columns: int = 10,
    titles: Sequence[str] | None = None,
    scale: float = 0.6,
) -> pathlib.Path:
    """Writes images as one picture.

    Args:
        images: `(N, height, width, channels)` in [-1, 1], 1 or 3 channels.
        path: file to write; its extension sets the format.
        columns: images per row.
        titles: optional heading of each column.
        scale: size of one image, in inches.

    Returns:
        The path.

    Raises:
        ValueError: when the shape is another one.
    """
    from matplotlib.figure import Figure

    images = np.asarray(images)
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or not len(images):
        raise ValueError(
            f"Images must be (N, height, width, 1 or 3), N at least 1. Received: an array of shape {images.shape}."
        )
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    # A Figure of its own, not pyplot: no window system and no global state.
    figure = Figure(figsize=(scale * columns, scale * rows + (0.3 if titles else 0.0)), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    pixels = np.clip(images * 0.5 + 0.5, 0.0, 1.0)
    for axis, image in zip(axes.flat, pixels, strict=False):
        axis.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0.0, vmax=1.0)
    for axis, title in zip(axes[0], titles or (), strict=False):
        axis.set_title(title, fontsize=7)
    path = pathlib.Path(path)
    figure.savefig(path, dpi=150)
    return path


def neighbor_panel(
    synthetic: np.ndarray,
    real: np.ndarray,
    path: str | pathlib.Path,
    k: int = 5,
    features: Callable[[np.ndarray], np.ndarray] | None = None,
) -> pathlib.Path:
    """Writes each synthetic image beside its k nearest real ones: a model that copies shows at a glance.

    Args:
        synthetic: a few images, see `image_grid`.
        real: the training images. The picture shows them: it is not private, and not for release.
        path: file to write.
        k: neighbors per image.
        features: see `nearest_neighbors`.

    Returns:
        The path.
    """
    synthetic, real = np.asarray(synthetic), np.asarray(real)
    indices, _ = nearest_neighbors(synthetic, real, k, features)
    rows = np.concatenate([synthetic[:, None], real[indices]], axis=1)
    titles = ["sample", *(f"nearest {i + 1}" for i in range(k))]
    return image_grid(rows.reshape(-1, *synthetic.shape[1:]), path, columns=k + 1, titles=titles)


def applied(features: Callable | None, images: np.ndarray, batch_size: int) -> np.ndarray:
    """Returns the features of images, computed batch by batch; the images themselves without a function."""
    if features is None:
        return images
    return np.concatenate([np.asarray(features(images[i : i + batch_size])) for i in range(0, len(images), batch_size)])
