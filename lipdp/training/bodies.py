"""What code of the user's a `fit` runs: functions and classes, of which configurations tell the names alone."""

import collections
import datetime
import decimal
import fractions
import functools
import hashlib
import inspect
import json
import pathlib
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, losses
from lipdp.optimizer import private
from lipdp.privacy import provenance

# Values of the standard library.
_VALUES = (range, slice, decimal.Decimal, fractions.Fraction, datetime.date, datetime.timedelta, pathlib.PurePath)
_DEEPEST = 12
_NUMBERED = ("name", "keras_history", "input_layers", "output_layers", "build_config", "shared_object_id")
# What of Keras' callbacks says how they steer training, beside functions.
_STEERING = {
    keras.callbacks.LearningRateScheduler: ("schedule",),
    keras.callbacks.ReduceLROnPlateau: ("monitor", "factor", "patience", "mode", "min_delta", "cooldown", "min_lr"),
}


def note(model: Any, request: Any, callbacks: Iterable, validation_data: Any = None) -> None:
    """Has the run of a model remember the digest for a `fit` with a seed."""
    wanted = request.seed is not None and model.compiled and model.built
    course = request.initial_epoch, request.steps_per_epoch, validation_data
    model.run.bodies = digest(model, request.strategy, callbacks, course) if wanted else None


def digest(model: keras.Model, strategy: Any, callbacks: Iterable, course: Any = ()) -> str | None:
    """Returns a digest of the code of the user's that decides what a `fit` releases; None where there is none.

    Args:
        model: A compiled model.
        strategy: The strategy of `fit`.
        callbacks: The callbacks of `fit`.
        course: What Keras' schedules follow: numbers of epochs, and validation data.

    **Guarantee.** It differs where one of these differs: the code of functions and methods in model, loss, optimizer,
    strategy and augmentation, and of what they call by name outside of known libraries, in modules of the user's too;
    their defaults, closures and globals, and the attributes of the user's objects, as far as they are numbers, texts,
    arrays, layers, variables, functions or nests of these; the schedule of Keras' `LearningRateScheduler` and the
    settings of its `ReduceLROnPlateau`, and the `course` beside these.
    Not covered: other callbacks; validation data other than arrays; files and state outside of these that code reads
    while it runs; attributes that are found by a text or made on access; code in other languages; what lies more than
    12 objects deep.
    """
    parts = [*_keras.walk(model), *losses.parts(model.loss), model.optimizer, strategy]
    parts.append(getattr(strategy, "augmentation", None))
    own = {id(held) for held in (*_keras.walk(model, include_self=True), *model.weights)}
    found = [_inside(part, _Seen(own)) for part in parts]
    found += [_of_subclass(part, _Seen(own)) for part in (model, model.optimizer)]
    for callback in callbacks:
        names = next((names for kind, names in _STEERING.items() if isinstance(callback, kind)), ())
        found.append({name: _described(getattr(callback, name, None), _Seen(own)) for name in names} or None)
        found += [_described(course, _Seen(own))] if names else []
    found = [part for part in found if part]
    if not found:
        return None
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


class _Seen:
    """The objects on the way, so that nothing is described twice; `own` are the layers and variables of the model."""

    def __init__(self, own: set[int]):
        self.own = own
        self.places: dict[int, int] = {}
        self.kept: list = []  # no other object may get the identity of one of these meanwhile
        self.depth = 0


def _known(value: Any) -> bool:
    return str(getattr(value, "__module__", None) or "builtins").split(".")[0] in provenance.LIBRARIES


def _wrapped(value: Any) -> Any:
    """Returns the function that `tf.function`, `jax.jit` or `functools.cache` was given, or None."""
    if not callable(value) or isinstance(value, type):
        return None
    return getattr(value, "python_function", None) or getattr(value, "__wrapped__", None)


def _inside(part: Any, seen: _Seen) -> Any:
    """Returns what there is of the user's in a layer, loss, optimizer or strategy; None for one of a library."""
    if part is None:
        return None
    if isinstance(part, (types.FunctionType, types.MethodType, functools.partial)) or _wrapped(part) is not None:
        return _described(part, seen) if _is_foreign(part) else None
    if not _known(type(part)):
        return _object(part, seen)
    held = {name: value for name, value in vars(part).items() if name not in _of_every_layer()}
    found = {name: _described(value, seen) for name, value in held.items() if _is_foreign(value)}
    return found or None


def _of_subclass(part: Any, seen: _Seen) -> Any:
    """Returns the user's classes that a model or a private optimizer is of, and what it holds beside its variables.

    Those are looked at with the weights, and some are not there before the first `fit`.
    """
    if all(map(_known, type(part).__mro__)):
        return None
    kind = next(filter(_known, type(part).__mro__))
    stock = _of_every_optimizer() if isinstance(part, keras.optimizers.Optimizer) else _of_every_model(kind)
    held = {name: value for name, value in vars(part).items() if name not in stock and not _has_variables(value)}
    return [_class(type(part), seen), {name: _described(value, seen) for name, value in held.items()}]


def _has_variables(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return any(map(_has_variables, value.values() if isinstance(value, dict) else value))
    return isinstance(value, keras.Variable)


@functools.cache
def _of_every_optimizer() -> frozenset[str]:
    """Names of what Keras and lipdp keep in optimizers."""
    optimizer = private(keras.optimizers.SGD)()
    optimizer.exclude_from_weight_decay(var_names=[])  # what has no decay is looked at by itself
    optimizer.build([keras.Variable(np.zeros(1, "float32"))])
    return frozenset({*vars(optimizer), "_exclude_from_weight_decay_cache"})


@functools.cache
def _of_every_model(kind: type) -> frozenset[str]:
    """Names of what Keras and lipdp keep in models of a class, before and after a `fit`."""
    inputs = keras.Input((1,))
    model = kind([inputs]) if issubclass(kind, keras.Sequential) else kind(inputs, keras.layers.Identity()(inputs))
    model.compile("sgd", keras.losses.MeanSquaredError())
    later = ("history", "stop_training", "_eval_epoch_iterator", "_jax_state", "_run", provenance.ATTRIBUTE)
    return frozenset((*vars(model), *later))


def _is_foreign(value: Any, deep: bool = True) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return deep and any(_is_foreign(v, False) for v in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, functools.partial):
        return _is_foreign(value.func)
    if isinstance(value, types.FunctionType):
        return not _known(value)
    if _wrapped(value) is not None:
        return _is_foreign(_wrapped(value))
    return not _known(type(value)) and not isinstance(value, (keras.Layer, keras.Variable))


@functools.cache
def _of_every_layer() -> frozenset[str]:
    """Names of what Keras itself keeps in layers."""
    layer, distribution = keras.layers.Dense(1), keras.distribution.distribution()
    try:
        keras.distribution.set_distribution(None)  # a layout of all kernels may part what has one column
        layer(keras.KerasTensor((None, 1)))
    finally:
        keras.distribution.set_distribution(distribution)
    return frozenset({*vars(layer), "build"} - {"activation"})


def _described(value: Any, seen: _Seen) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**63 else hex(value)
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, (bytes, complex, *_VALUES, re.Pattern)):
        return repr(value)
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biuf" else repr(value)
    if id(value) in seen.places:
        return f"...{seen.places[id(value)]}"
    if seen.depth > _DEEPEST:
        return "..."
    seen.places[id(value)] = len(seen.places)
    seen.kept.append(value)
    seen.depth += 1
    try:
        return _nested(value, seen)
    except Exception:  # whatever objects of the user's do when somebody looks at them
        return f"unreadable {_named(type(value))}"
    finally:
        seen.depth -= 1


def _nested(value: Any, seen: _Seen) -> Any:
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, (keras.Layer, keras.Variable)) and id(value) in seen.own:
        return type(value).__name__  # looked at by itself, and its weights are
    if isinstance(value, keras.Variable):
        return _array(value.value)
    if isinstance(value, keras.Layer):
        return [_named(type(value)), _array_list(value.weights), _config(value, seen), _inside(value, seen)]
    if isinstance(value, (list, tuple, collections.deque)):
        return [_described(v, seen) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_described(v, seen), sort_keys=True) for v in value)
    if isinstance(value, dict):
        return [[_described(k, seen), _described(v, seen)] for k, v in value.items()]
    if isinstance(value, types.MethodType):
        return [_described(value.__func__, seen), _described(value.__self__, seen)]
    if isinstance(value, functools.partial):
        return ["partial", *(_described(v, seen) for v in (value.func, value.args, value.keywords))]
    if isinstance(value, types.FunctionType):
        return _named(value) if _known(value) else _function(value, seen)
    if isinstance(value, type):
        return _named(value) if _known(value) else _class(value, seen)
    if isinstance(value, provenance.HOLDERS):
        return [_named(type(value)), _described(vars(value), seen)]
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [_described(v, seen) for v in value.ravel()[:1000]]
    if isinstance(value, np.ndarray) or ops.is_tensor(value):
        return _array(value)
    if _wrapped(value) is not None:
        return [_named(type(value)), _described(_wrapped(value), seen)]
    if _known(type(value)):
        return _named(type(value))
    return _object(value, seen)


def _object(value: Any, seen: _Seen) -> Any:
    own = provenance.slots(value) | getattr(value, "__dict__", {})
    kept = {name: _described(v, seen) for name, v in own.items() if name not in _of_every_layer()}
    return [_described(type(value), seen), kept]


def _config(layer: keras.Layer, seen: _Seen) -> Any:
    try:
        return _described(_nameless(layer.get_config()), seen)
    except Exception:  # one that cannot be written
        return None


def _nameless(config: Any) -> Any:
    """Returns a configuration without what Keras numbers all through a process."""
    if isinstance(config, dict):
        return {k: _nameless(v) for k, v in config.items() if k not in _NUMBERED}
    return [_nameless(v) for v in config] if isinstance(config, (list, tuple)) else config


def _array_list(variables: list) -> list:
    return [_array(variable.value) for variable in variables]


def _array(value: Any) -> Any:
    try:
        array = np.ascontiguousarray(ops.convert_to_numpy(value))
    except Exception:  # a symbol, while something is traced
        return "tensor"
    return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def _function(function: Callable, seen: _Seen) -> Any:
    function = inspect.unwrap(function)
    code: Any = getattr(function, "__code__", None)
    if code is None:
        return _named(function)
    cells = []
    for cell in function.__closure__ or ():  # type: ignore[attr-defined]
        try:
            cells.append(_used(cell.cell_contents, code, seen))
        except ValueError:  # not filled yet
            cells.append(None)
    names = function.__globals__  # type: ignore[attr-defined]
    used = {name: _used(names[name], code, seen) for name in sorted(_names(code)) if name in names}
    defaults = _described([function.__defaults__, function.__kwdefaults__], seen)  # type: ignore[attr-defined]
    return [function.__qualname__, _code(code), defaults, cells, used]


def _used(value: Any, code: types.CodeType, seen: _Seen) -> Any:
    """Returns what a function uses of a value: of a module of the user's, what its code names."""
    if not isinstance(value, types.ModuleType) or value.__name__.split(".")[0] in provenance.LIBRARIES:
        return _described(value, seen)
    if seen.depth > _DEEPEST:
        return "..."
    seen.depth += 1
    held = vars(value)
    found = {name: _used(held[name], code, seen) for name in sorted(_names(code)) if name in held}
    seen.depth -= 1
    return [value.__name__, found]


def _class(cls: type, seen: _Seen) -> Any:
    """Methods and constants of a class and of those it comes from, up to those of libraries."""
    found = []
    for one in cls.__mro__:
        if _known(one):
            continue
        held = {}
        for name, value in vars(one).items():
            value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            if isinstance(value, types.FunctionType) or (not name.startswith("__") and not callable(value)):
                held[name] = _described(value, seen)
        found.append([one.__qualname__, held])
    return found


def _code(code: types.CodeType) -> Any:
    constants = [_code(c) if isinstance(c, types.CodeType) else _constant(c) for c in code.co_consts]
    body = hashlib.sha256(code.co_code).hexdigest()
    return [body, constants, list(code.co_names), list(code.co_varnames), list(code.co_freevars)]


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*inner)


def _named(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
