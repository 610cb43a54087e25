"""Low-rank additions in files: Keras adds them to the kernel and starts them again at zero, where nothing trains."""

import functools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from lipdp import _keras

PREFIX = "low_rank_"


def values(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns, by name, the matrices of all low-rank additions and what they are added to."""
    return {name: np.asarray(variable.numpy()) for _, name, variable in _matrices(model)}


def restore(model: keras.Model, store: Mapping[str, Any]) -> None:
    """Has the layers of a model that loads a file end with the matrices in `store`, once their turn comes.

    Keras loads a model before the layers in it. A file without them is loaded as Keras does.
    """
    found: dict[int, tuple[Any, list]] = {}
    if any(name.startswith(PREFIX) for name in store.keys()) and not any(_matrices(model)):
        warnings.warn(
            f"The file holds low-rank additions, and model '{model.name}' was built without: they were added to the "
            "kernels. To train additions again call `enable_lora` and `compile`; to go on as before, build the model "
            "as it was built then, and call `load_weights`.",
            stacklevel=2,
        )
    for layer, name, variable in _matrices(model):
        vars(layer).pop("load_own_variables", None)  # of a load that did not come to its end
        if name in store.keys() and store[name].shape == tuple(variable.shape):
            found.setdefault(id(layer), (layer, []))[1].append((variable, store[name][...]))
    for layer, pairs in found.values():
        vars(layer)["load_own_variables"] = functools.partial(_load, layer, pairs)


def _load(layer, pairs, store) -> None:
    vars(layer).pop("load_own_variables", None)
    layer.load_own_variables(store)
    for variable, value in pairs:
        variable.assign(value)


def _matrices(model) -> Iterator[tuple[Any, str, keras.Variable]]:
    adapted = [layer for layer in _keras.walk(model) if getattr(layer, "lora_enabled", False)]
    for number, layer in enumerate(adapted):
        kind = "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"
        yield layer, f"{PREFIX}{number}", _keras.own_matrix(layer, kind)
        for part in "ab":
            yield layer, f"{PREFIX}{number}_{part}", getattr(layer, f"lora_{kind}_{part}")
