"""Tasks of keras_hub: raw rows go through their preprocessor before anything else looks at them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import _keras, backend
from lipdp.sampling.columns import by_name
from lipdp.training import inputs
from lipdp.training.outputs import refuse_processes

# What labels say where the preprocessor gives a position no weight, such as padding.
IGNORED = -1
_AT_ONCE = 4096
# Rows that are made alone and together; and so many times more where they differ.
_COMPARED = 4


class _Held:
    """Hides a model from what Keras tracks and saves."""

    def __init__(self, model: keras.Model):
        self.model = model


class FromTask:
    """What a private model made of a task of keras_hub does beside training."""

    _task: _Held | None = None

    @property
    def preprocessor(self) -> Any:
        """What `fit`, `evaluate` and `predict` send raw rows through: that of the task, or None."""
        return None if self._task is None else getattr(self._task.model, "preprocessor", None)

    def get_config(self) -> dict[str, Any]:
        if self._task is None:
            return super().get_config()  # type: ignore[misc]
        task = keras.saving.serialize_keras_object(self._task.model)
        # A backbone writes what it was made with, and neither what is frozen in it nor what was added.
        inner = [_state(layer) for layer in _keras.walk(self)]
        return {"task": {key: value for key, value in task.items() if key != "compile_config"}, "layers": inner}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        if "task" not in config:
            return super().from_config(config, custom_objects)  # type: ignore[misc]
        task = keras.saving.deserialize_keras_object(config["task"], custom_objects=custom_objects)
        model = cls.from_keras(task)  # type: ignore[attr-defined]
        _set_states(model, config.get("layers", ()))  # files of earlier versions lack them
        return model

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not _keras.inside_fit(kwargs):  # where they went through it before the first epoch
            x, y = by_name(x, y) if isinstance(y, str) else (x, y)
            x, y = preprocessed(self, x, y, private=False)
            x = inputs.named(self, x)
        with backend.weights_kept(self), backend.untuned(), _read_by_keras("evaluate", x):
            return super().evaluate(x, y, *args, **kwargs)  # type: ignore[misc]

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        x = inputs.named(self, preprocessed(self, x, private=False)[0])
        with backend.weights_kept(self), backend.untuned(), _read_by_keras("predict", x):
            return super().predict(x, *args, **kwargs)  # type: ignore[misc]


@contextlib.contextmanager
def _read_by_keras(method: str, x: Any) -> Iterator[None]:
    """Says what to pass in the place of what `fit` reads row by row, and Keras' own methods do not know."""
    try:
        yield
    except ValueError as error:
        if "multi-worker" in str(error):
            refuse_processes(f"`{method}`")
        unread = str(error).startswith("Unrecognized data type")
        objects = str(error).startswith("Invalid dtype: object")
        no_numbers = str(error).startswith(("Invalid dtype: str", "could not convert string to float"))
        if objects or no_numbers or (unread and _are_texts(x)):
            received, alone = ("dtype object", "; pass numbers as x.astype('float32')") if objects else ("texts", "")
            raise ValueError(
                f"`{method}` takes numbers. Received: {received}. Encode texts as those that the model was trained on, "
                "by its tokenizer or its lipdp.data.Table, or by `texts.encode` of what lipdp.data.load_text has "
                f"returned; leave out columns that are no inputs{alone}."
            ) from error
        if not unread:
            raise
        raise ValueError(
            f"`{method}` takes arrays, or what Keras reads in batches. Received: a {type(x).__name__}. Pass arrays of "
            "its rows; where they are too large for memory, a keras.utils.PyDataset or a tf.data.Dataset."
        ) from error


def _are_texts(x: Any) -> bool:
    return isinstance(x, list | tuple) and len(x) > 0 and isinstance(x[0], str)


def of_task(model: Any, task: keras.Model) -> Any:
    """Returns a private model, which keeps the task that it was made of, if it is one."""
    if hasattr(task, "preprocess_samples") and hasattr(task, "backbone"):
        object.__setattr__(model, "_task", _Held(task))
    return model


def _state(layer: keras.layers.Layer) -> list:
    adapted = getattr(layer, "lora_enabled", False)
    return [layer.trainable, *((layer.lora_rank, layer.lora_alpha) if adapted else ())]


def _set_states(model: keras.Model, states: Sequence[list]) -> None:
    """Freezes layers and adds low-rank matrices as they were when the states were taken."""
    layers = _keras.walk(model)
    if len(layers) != len(states):
        return
    for layer, (trainable, *_) in zip(layers, states, strict=True):
        layer.trainable = trainable
    for layer, (_, *low_rank) in zip(layers, states, strict=True):
        if low_rank and not layer.lora_enabled:
            layer.enable_lora(low_rank[0], lora_alpha=low_rank[1])


def preprocessed(model: Any, x: Any, y: Any = None, private: bool = True) -> tuple[Any, Any]:
    """Returns rows and labels as the network takes them.

    Args:
        model: A private model, or a task; without a preprocessor everything is returned as it is.
        x: Rows as the preprocessor takes them: texts or images, as lists, arrays, or tuples and dictionaries of them.
        y: Labels, or None where the preprocessor makes them (language models).
        private: Whether to compare a few rows alone and together, see Guarantee.

    Returns:
        x and y, with `IGNORED` for labels of positions that the preprocessor gives the weight 0.

    Raises:
        ValueError: rows in another form, another number of them, weights other than 0 and 1, or a preprocessor that
            mixes rows.

    **Guarantee.** Private training needs each row to follow from one row of `x` and `y` alone. That is compared on a
    few rows, alone and in one batch, which finds a preprocessor of your own that moves or mixes rows. And these rows
    alone must be as long as all rows together, which finds one that pads to the longest, wherever that stands. Not
    found: what other rows or numbers of rows show only, and a preprocessor that draws at random, whose values are not
    compared.
    """
    task = model._task.model if isinstance(model, FromTask) and model._task is not None else model
    if getattr(task, "preprocessor", None) is None or not hasattr(task, "preprocess_samples") or x is None:
        return x, y
    x, y = _leaves(x), None if y is None else np.asarray(y)
    counts = {len(leaf) for leaf in tree.flatten(x)}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"All inputs must have the same number of rows, at least one. Received: {sorted(counts)}.")
    (count,) = counts
    if y is not None and len(y) != count:
        raise ValueError(f"Inputs and labels must have the same length. Received lengths: {count} and {len(y)}.")
    parts = [_made(task, x, y, slice(start, start + _AT_ONCE)) for start in range(0, count, _AT_ONCE)]
    if private:
        _refuse_mixing(task, x, y, count, parts)
    x, y = tree.map_structure(lambda *leaves: None if leaves[0] is None else np.concatenate(leaves), *parts)
    if any(len(leaf) != count for leaf in tree.flatten((x, y)) if leaf is not None):
        raise ValueError(
            "A preprocessor returns one row for each row it gets. Received: another number of rows. Preprocess the "
            "rows yourself, and pass a task whose `preprocessor` is None."
        )
    return x, y


def _made(task, x, y, rows):
    """Returns some rows as the network takes them, with their labels."""
    taken = tree.map_structure(lambda leaf: _texts(leaf[rows]), x)
    made = task.preprocess_samples(taken, None if y is None else y[rows])
    found, labels, weight = (*made, None, None)[:3] if isinstance(made, tuple) else (made, None, None)
    found, labels, weight = tree.map_structure(_array, (found, labels, weight))
    return found, _ignoring(labels, weight)


def _refuse_mixing(task, x, y, count, parts):
    """Refuses a preprocessor that makes other rows of a few rows together than of each alone, or longer ones of all."""
    rows = np.unique(np.linspace(0, count - 1, _COMPARED).round().astype(int))

    def together():
        made = [leaf for leaf in tree.flatten(_made(task, x, y, rows)) if leaf is not None]
        return [[leaf[i] for leaf in made] for i in range(len(rows))] if _lengths(made) == {len(rows)} else []

    def alone():
        each = (tree.flatten(_made(task, x, y, rows[i : i + 1])) for i in range(len(rows)))
        return [[leaf[0] for leaf in made if leaf is not None] for made in each]

    def same(one, other):
        return all(np.array_equal(a, b) for a, b in zip(tree.flatten(one), tree.flatten(other), strict=False))

    first, second = together(), alone()
    shapes = [[np.shape(leaf)[1:] for leaf in tree.flatten(part) if leaf is not None] for part in parts]
    alike = all(list(map(np.shape, row)) == found for row in second for found in shapes)
    if alike and (not first or same(first, second)):
        return
    # What draws at random is not the same twice.
    if not alike or all(same(first, together()) and same(second, alone()) for _ in range(_COMPARED)):
        raise ValueError(
            f"A preprocessor must make each row of one row alone. Received: {type(task.preprocessor).__name__}, whose "
            "rows in a batch are others than alone: it moves or mixes them, or pads to the longest. Set its "
            "`sequence_length`, or correct its `call`."
        )


def _lengths(leaves):
    return {len(leaf) for leaf in leaves}


def _leaves(x):
    if isinstance(x, tuple):
        return tuple(map(_leaves, x))
    if isinstance(x, dict):
        return {name: _leaves(value) for name, value in x.items()}
    if isinstance(x, (list, np.ndarray)):
        return np.asarray(x)
    raise ValueError(
        "Rows for a preprocessor must be lists or arrays, or tuples and dictionaries of them. Received: "
        f"{type(x).__name__}. Read a dataset into arrays; or set the task's `preprocessor` to None before "
        "`from_keras`, and pass rows as the network takes them."
    )


def _texts(rows):
    """Tokenizers take lists of texts."""
    return rows.tolist() if rows.dtype.kind in "UO" else rows


def _array(tensor):
    return None if tensor is None else np.asarray(tensor)


def _ignoring(labels, weight):
    """Labels in which positions without weight are `IGNORED`."""
    if labels is None or weight is None:
        return labels
    if not np.isin(weight, (0, 1)).all():
        raise ValueError(
            "A preprocessor may give positions the weight 0 or 1. Received: others. Leave `sample_weight` out."
        )
    if weight.ndim == 1:
        weight = weight.reshape(-1, *(1,) * (labels.ndim - 1))
    return np.where(weight != 0, labels, IGNORED)
