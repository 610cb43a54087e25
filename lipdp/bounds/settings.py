"""What the layers of a model are set to: bounds read it anew each time, and compiled programs keep what it was."""

import json
from collections.abc import Sequence
from typing import Any

import keras

from lipdp import _keras


def settings(model: keras.Model, more: Sequence[Any] = ()) -> str:
    """Returns a text that changes with a setting of a layer, such as a scale or an activation.

    Args:
        model: The model.
        more: Values that count as well.
    """
    parts = list(more)
    with _keras.not_importing_tensorflow():
        for layer in _keras.walk(model):
            try:
                parts.append(layer.get_config())
            except Exception:  # a layer without one, or with one that fails
                parts.append(id(layer))
    return json.dumps(parts, default=repr)
