"""One `fit` at a time on one set of variables."""

import contextlib
import threading
from collections.abc import Iterator

import keras

_LOCK = threading.Lock()
# Of the variables that a `fit` is training now, by identity: the name of its model.
_TRAINING: dict[int, str] = {}


@contextlib.contextmanager
def exclusive(model: keras.Model) -> Iterator[None]:
    """Holds a model's variables for one `fit`.

    Raises:
        ValueError: a `fit` is running on the model, in this thread or another one, or on a model that shares a
            variable with it.
    """
    mine = {id(variable): model.name for variable in model.weights}
    with _LOCK:
        other = next((name for variable, name in _TRAINING.items() if variable in mine), None)
        if model.run.armed or other is not None:
            raise ValueError(
                f"`fit` is running on model '{other or model.name}', and a second one would change its noise and its "
                f"budget. Received: a `fit` of model '{model.name}' meanwhile. Call it after the first one has ended, "
                "or train a model that shares no weights with it."
            )
        model.run.armed = True
        _TRAINING.update(mine)
    try:
        yield
    finally:
        with _LOCK:
            model.run.armed = False
            for variable in mine:
                del _TRAINING[variable]
