"""Which models have passed their trials as they stand: a further `fit` does not repeat them."""

import hashlib
import json
import types
import warnings
import weakref
from collections.abc import Callable

import keras

from lipdp import _keras, isolation
from lipdp.bounds.settings import settings
from lipdp.gradients.leaves import leaves

# Texts, not the objects that they tell of: a function may hold its model, which would then never be given back.
_passed: weakref.WeakKeyDictionary[keras.Model, dict[str, str]] = weakref.WeakKeyDictionary()
_PLAIN = (bool, int, float, str, bytes, type(None))


def once(trial: Callable[[keras.Model], None], model: keras.Model) -> None:
    """Runs a trial of a model on synthetic rows, unless the model has passed it as it stands now.

    For trials that are a help beside what holds without them: they follow what a model computes, not its weights, and
    what nobody sees change (such as a global that a layer reads) changes no compiled step either.

    Args:
        trial: Raises ValueError where the model fails.
        model: A built model.
    """
    found = _described(model)
    if _passed.get(model, {}).get(trial.__qualname__) == found:
        return
    trial(model)
    # Layers that build something when they first run are not what they were.
    _passed.setdefault(model, {})[trial.__qualname__] = _described(model)


def _described(model: keras.Model) -> str:
    """Returns a digest of what a model computes, as far as it can be seen without running it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a lambda is hard to load: nothing is saved here
        parts: list = [settings(model), bool(getattr(model, "run_eagerly", False)), isolation.used(model)]
    parts += [(id(operation), id(rule)) for operation, rule in leaves(model)]
    parts += [id(operation) for operation, _ in isolation.foreign(model)]
    for layer in _keras.walk(model, include_self=True):
        parts.append((id(layer), [_value(v) for v in vars(type(layer)).values()] if _own(layer) else None))
        parts += [(name, _value(value)) for name, value in vars(layer).items() if not _written(layer, name, value)]
        parts += [(id(v), v.trainable, v.dtype, tuple(v.shape)) for v in _keras.own_variables(layer)]
    return hashlib.sha256(json.dumps(parts, default=repr).encode()).hexdigest()


def _own(layer: keras.layers.Layer) -> bool:
    return isolation.root(type(layer)) not in ("keras", "lipdp")


def _written(layer: keras.layers.Layer, name: str, value: object) -> bool:
    """Whether an attribute is one that `compile` and `fit` write, and no `call` reads."""
    if isinstance(layer, keras.Model):
        return name.startswith("_") or name == "stop_training" or value is None or not isinstance(value, _PLAIN)
    return name.startswith("_lipdp")


def _value(value: object) -> object:
    """Returns a value itself where it is a plain one, where functions are found, and the kind of all others."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, types.FunctionType):
        return (id(value), id(value.__code__))
    if isinstance(value, (tuple, list)):
        return [_value(each) for each in value]
    if isinstance(value, dict):
        return [(repr(key), _value(each)) for key, each in value.items()]
    return id(value) if callable(value) else type(value).__name__
