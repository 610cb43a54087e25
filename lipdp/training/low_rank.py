"""Low-rank additions in files: Keras adds them to the kernel and starts them again at zero, where nothing trains."""

import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from lipdp import _keras, checks

PREFIX = "low_rank_"
# What products of float32 may differ by on other hardware (TF32), and the sum of kernel and product by its rounding.
_OF_PRODUCT, _OF_SUM = 4e-3, 1e-5


def values(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns, by name, the matrices of all low-rank additions, what they are added to, and their factor."""
    found = {}
    for number, layer in enumerate(_adapted(model)):
        for part, variable in zip(_PARTS, _matrices(layer), strict=True):
            found[f"{PREFIX}{number}{part}"] = np.asarray(variable.numpy())
        found[f"{PREFIX}{number}_scale"] = np.float64(_scale(layer))
    return found


def restore(model: keras.Model, store: Mapping[str, Any]) -> None:
    """Has the layers of a model that loads a file end with the matrices in `store`, once their turn comes.

    Keras loads a model before the layers in it. A file without them is loaded as Keras does.
    """
    kept = []
    for number in itertools.count():
        if f"{PREFIX}{number}" not in store.keys():
            break
        # Files of earlier versions hold no factor.
        scale = float(store[f"{PREFIX}{number}_scale"][()]) if f"{PREFIX}{number}_scale" in store.keys() else None
        kept.append(([store[f"{PREFIX}{number}{part}"][...] for part in _PARTS], scale))
    layers = list(_adapted(model))
    if len(kept) > len(layers):
        warnings.warn(
            f"The file holds low-rank additions of {len(kept)} layers, and model '{model.name}' was built with "
            f"{len(layers) or 'none'}: the others were added to the kernels. To train additions again call "
            "`enable_lora` and `compile`; to go on as before, build the model as it was built then, and call "
            "`load_weights`.",
            stacklevel=checks.users_line(),
        )
    for number, layer in enumerate(layers):
        # The ones with its own number first: two layers can hold the same values.
        vars(layer)["load_own_variables"] = functools.partial(_load, layer, kept[number:] + kept[:number])


def _load(layer, kept, store) -> None:
    vars(layer).pop("load_own_variables", None)
    matrix, first, second = _matrices(layer)
    start = first.numpy()
    layer.load_own_variables(store)
    merged = matrix.numpy()
    shapes = [tuple(variable.shape) for variable in (matrix, first, second)]
    for found, scale in kept:
        fits = shapes == [value.shape for value in found] and scale in (None, _scale(layer))
        if fits and _adds_up(merged, _scale(layer), *found):
            for variable, value in zip((matrix, first, second), found, strict=True):
                variable.assign(value)
            return
    # What the file added up is the kernel now. Additions with one matrix at zero change nothing, and can be trained.
    first.assign(start)
    if kept:
        warnings.warn(
            f"The file holds no low-rank additions of this rank and `lora_alpha` for layer '{layer.name}': its kernel "
            "has all that it held then, and additions start again. To go on as before, call `enable_lora` as then.",
            stacklevel=checks.users_line(),
        )


def _adds_up(merged, scale, matrix, first, second) -> bool:
    """Whether a matrix with its additions is what the file holds for a layer, so that they are of this layer."""
    product, most = first @ second, np.abs(first) @ np.abs(second)
    allowed = _OF_PRODUCT * abs(scale) * most + _OF_SUM * (np.abs(matrix) + np.abs(merged))
    return bool(np.all(np.abs(matrix + scale * product - merged) <= allowed))


# Behind the names in a file: what is added to, and the two matrices.
_PARTS = ("", "_a", "_b")


def _adapted(model) -> Iterator[Any]:
    """Layers whose values in a file are their matrix and what is added to it: those of quantized ones are rounded."""
    for layer in _keras.walk(model):
        vars(layer).pop("load_own_variables", None)  # of a load that did not come to its end
        if getattr(layer, "lora_enabled", False) and getattr(layer, "quantization_mode", None) is None:
            yield layer


def _matrices(layer) -> tuple[Any, Any, Any]:
    kind = "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"
    return _keras.own_matrix(layer, kind), *(getattr(layer, f"lora_{kind}_{part}") for part in "ab")


def _scale(layer) -> float:
    return float(layer.lora_alpha / layer.lora_rank)
