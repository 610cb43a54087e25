"""The range of images: denoisers and samplers are made for entries in [-1, 1], recipes take images in [0, 1]."""

import contextlib
import contextvars
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lipdp import checks

# What rounding may add.
_SLACK = 1e-3
_SCALED = contextvars.ContextVar("scaled", default=False)


def warn_of_range(images: Any, shape: tuple) -> None:
    """Says where images are not in [-1, 1], or have no entry below 0, as images in [0, 1] have none.

    Args:
        images: array of examples; sources, which are not read here, are let through.
        shape: of one example. Examples that are no images may have other ranges.
    """
    if len(shape) != 3 or not isinstance(images, np.ndarray) or not images.size or _SCALED.get():
        return
    if images.shape[1:] != tuple(shape):  # refused later
        return
    low, high = float(images.min()), float(images.max())
    beyond = low < -1.0 - _SLACK or high > 1.0 + _SLACK
    if beyond or low >= 0.0:
        received = "entries beyond" if beyond else "no entry below 0, as in images in [0, 1]"
        scaled = "2.0 * x / 255.0 - 1.0 of bytes" if high > 2.0 else "2.0 * x - 1.0 of images in [0, 1]"
        warnings.warn(
            "Images of a diffusion model should have entries in [-1, 1], as those that it draws have. Received: "
            f"{received}. Pass {scaled}.",
            stacklevel=checks.users_line(),
        )


def of_unit_range(images: Any, scale: Callable[[Any], np.ndarray]) -> np.ndarray:
    """Returns what a recipe makes of images; says where they are not in [0, 1].

    Args:
        images: what the user has passed.
        scale: maps them to [-1, 1].
    """
    if isinstance(images, np.ndarray) and images.size:
        low, high = float(images.min()), float(images.max())
        if low < -_SLACK or high > 1.0 + _SLACK:
            way = "x / 255.0 of bytes" if high > 2.0 else "(x + 1.0) / 2.0 of images in [-1, 1]"
            warnings.warn(
                "A recipe of a diffusion model takes images in [0, 1], and maps them to [-1, 1] by itself. Received: "
                f"entries beyond. Pass {way}.",
                stacklevel=checks.users_line(),
            )
    return scale(images)


@contextlib.contextmanager
def scaled() -> Iterator[None]:
    """Within it a recipe trains its model on images that it has scaled, and has warned of by itself."""
    token = _SCALED.set(True)
    try:
        yield
    finally:
        _SCALED.reset(token)
