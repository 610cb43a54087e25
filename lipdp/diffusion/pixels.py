"""The range of images: denoisers and samplers are made for entries in [-1, 1]."""

import warnings
from typing import Any

import numpy as np

from lipdp import checks

# What rounding may add.
_SLACK = 1e-3


def warn_of_range(images: Any, shape: tuple) -> None:
    """Says where images are not in [-1, 1], or have no entry below 0, as images in [0, 1] have none.

    Args:
        images: array of examples; sources, which are not read here, are let through.
        shape: of one example. Examples that are no images may have other ranges.
    """
    if len(shape) != 3 or not isinstance(images, np.ndarray) or not images.size:
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
