"""One `fit` at a time on one set of variables and layers."""

import contextlib
import threading
from collections.abc import Iterator

import keras

from lipdp import _keras, isolation

_LOCK = threading.Lock()
# Of the variables, layers and operations of a `fit` that runs now, by identity: the name of its model.
_TRAINING: dict[int, str] = {}


@contextlib.contextmanager
def exclusive(model: keras.Model) -> Iterator[None]:
    """Holds a model's variables and layers for one `fit`.

    Layers without weights count: while a step is traced, some run one row at a time, and the first of two models to end
    that would have the other one trace them on whole batches.

    Raises:
        ValueError: a `fit` is running on the model, in this thread or another one, or on a model that shares a
            variable or a layer with it, but for inputs.
    """
    layers = [layer for layer in _keras.walk(model) if not isinstance(layer, keras.layers.InputLayer)]
    operations = [operation for operation, _ in isolation.foreign(model)]
    mine = {id(part): model.name for part in (*model.weights, *layers, *operations)}
    with _LOCK:
        other = next((name for part, name in _TRAINING.items() if part in mine), None)
        if model.run.armed or other is not None:
            raise ValueError(
                f"`fit` is running on model '{other or model.name}', and a second one would change its noise and its "
                f"budget. Received: a `fit` of model '{model.name}' meanwhile. Call it after the first one has ended, "
                "or train a model that shares neither weights nor layers with it."
            )
        model.run.armed = True
        _TRAINING.update(mine)
    try:
        yield
    finally:
        with _LOCK:
            model.run.armed = False
            for part in mine:
                del _TRAINING[part]
