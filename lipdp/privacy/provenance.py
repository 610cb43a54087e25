"""Which ledgers the weights of a model were charged to.

A ledger belongs to the variables that its releases changed and to the layers that hold them, not only to the model that
made them: layers are shared by models that know nothing of each other, and `quantize` gives a layer other variables.
A layer may hold others where Keras does not track them: in the function of a `Lambda`, or past `__setattr__`. And what
`fit` is given may: a source or data set whose rows a model makes, or an augmentation.
What comes in by value (arrays, files of plain Keras models) cannot be followed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dis
import functools
import itertools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lipdp.privacy.ledger import Ledger

if TYPE_CHECKING:
    import keras

ATTRIBUTE = "_lipdp_ledgers"
# Of the standard library, names that a user's own package may well have.
_COMMON = {"code", "profile", "test", "token", "trace"}
# What functions and objects of these hold is not the user's.
LIBRARIES = {*sys.stdlib_module_names, *"h5py jax jaxlib keras keras_hub lipdp numpy pandas tensorflow torch".split()}
LIBRARIES -= _COMMON
# Of the standard library, what only holds values.
HOLDERS = (types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList)
_PLAIN = (str, bytes, int, float, complex, type(None))
# How many objects one search looks at, beside some for each layer, and how many of one container: it must end, and what
# holds a layer is not far from one.
_MOST, _MOST_OF_LAYER, _MOST_INSIDE = 20_000, 200, 1000


def ledgers_of(*things: Any) -> tuple[Ledger, ...]:
    """Returns the ledgers that hold releases behind the weights of a model, or of all that things hold, each once.

    Example:
        >>> import keras
        >>> model, ledger = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), Ledger()
        >>> attribute(model, [ledger])
        >>> ledgers_of(model)  # nothing was released yet
        ()
    """
    found = {id(ledger): ledger for holder in _holders(*things) for ledger in getattr(holder, ATTRIBUTE, ())}
    return tuple(ledger for ledger in found.values() if ledger.releases)


def layers_of(*things: Any) -> list[Any]:
    """Returns the layers that things hold, such as a model, or a data set whose functions call some, each once."""
    import keras  # only here, as below

    return [holder for holder in _holders(*things) if isinstance(holder, keras.Layer)]


def attribute(model: keras.Model, ledgers: Iterable[Ledger], variables: Iterable[Any] | None = None) -> None:
    """Adds `ledgers` to those that a model, some of its variables, or all, and the layers that hold them stand for."""
    from lipdp import _keras

    variables, ledgers = list(model.weights if variables is None else variables), tuple(ledgers)
    changed = {id(variable) for variable in variables}
    layers = [layer for layer in _keras.walk(model) if changed & set(map(id, _keras.all_own_variables(layer)))]
    for holder in (model, *layers, *variables):
        before = getattr(holder, ATTRIBUTE, ())
        known = set(map(id, before))
        # Past Keras' attribute tracking, which is closed once a layer is built.
        object.__setattr__(holder, ATTRIBUTE, (*before, *(ledger for ledger in ledgers if id(ledger) not in known)))


@contextlib.contextmanager
def beside(model: keras.Model, *things: Any) -> Iterator[None]:
    """Inside, what models that things hold have cost counts for a model; afterwards where it was trained meanwhile."""
    before = getattr(model, ATTRIBUTE, ())
    attribute(model, ledgers_of(*things), ())
    try:
        yield
    finally:
        behind = (ledger for variable in model.weights for ledger in getattr(variable, ATTRIBUTE, ()))
        kept = {id(ledger) for ledger in (*before, *behind)}
        object.__setattr__(model, ATTRIBUTE, tuple(one for one in getattr(model, ATTRIBUTE) if id(one) in kept))


def distinct(own: Ledger, others: Iterable[Ledger]) -> tuple[Ledger, ...]:
    """Returns `own` and what others hold beyond it: of two moments of one history the later."""
    kept = [own]
    for ledger in sorted(others, key=lambda each: -each.releases):
        if not any(one is ledger or one.covers(ledger) for one in kept):
            kept.append(ledger)
    return tuple(kept)


def _holders(*things: Any) -> list[Any]:
    """Returns a model, its layers and variables, and those that they use though Keras does not track them, each once.

    Of other things those that they hold.

    Found are those in attributes, containers and objects of the user's classes, and in functions: in closures, defaults
    and what the global names stand for that their code loads. One that stands in several models counts for each.
    """
    import keras  # only here: the rest of this package needs no Keras

    from lipdp import _keras

    found: dict[int, Any] = {}
    seen: dict[tuple, Any] = {}  # with the objects: once one is gone, another may have its id
    # With each of them the names of those of its attributes that are used; None for all.
    waiting: collections.deque[tuple[Any, frozenset | None]] = collections.deque((thing, None) for thing in things)
    while waiting and len(seen) < _MOST + _MOST_OF_LAYER * len(found):
        value, names = waiting.popleft()
        key = id(value), None if isinstance(value, types.FunctionType) else names
        if isinstance(value, _PLAIN) or key in seen:
            continue
        seen[key] = value
        if isinstance(value, keras.Variable):
            found[id(value)] = value
        elif isinstance(value, keras.Layer):
            for layer in _keras.walk(value, include_self=True) if id(value) not in found else ():
                found[id(layer)] = layer
                own = (vars(cls) for cls in type(layer).__mro__ if not _is_library(cls))
                waiting += [(each, None) for held in (vars(layer), *own) for each in held.values()]
            found |= {id(variable): variable for variable in value.weights}
        elif isinstance(value, keras.Function):
            waiting += [(operation, None) for operation in value.operations]
        else:
            waiting += _inside(value, names)
    return list(found.values())


def _inside(value: Any, names: frozenset | None) -> list[tuple[Any, frozenset | None]]:
    """Returns what an object that is no layer holds and uses, each with the names that are used of it."""
    if isinstance(value, types.FunctionType):
        return [] if _is_library(value) else _used(value)
    if isinstance(value, dict | list | tuple | set | frozenset | collections.deque):
        items = value.values() if isinstance(value, dict) else value
        return [(each, names) for each in tuple(itertools.islice(items, _MOST_INSIDE))]
    if isinstance(value, types.MethodType):
        return [(value.__func__, None), (value.__self__, frozenset({value.__func__.__name__}))]
    if isinstance(value, functools.partial):
        return [(each, None) for each in (value.func, value.args, value.keywords)]
    if isinstance(value, property | staticmethod | classmethod):
        return [(value.fget if isinstance(value, property) else value.__func__, None)]
    if isinstance(value, types.ModuleType):
        library = value.__name__.split(".")[0] in LIBRARIES
        return [] if library else [(vars(value).get(name), names) for name in names or ()]
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, HOLDERS):
        return [(each, names) for each in vars(value).values()]
    if _is_library(kind):
        return [(each, None) for each in _kept_by_library(value)]
    classes = [vars(cls) for cls in reversed(kind.__mro__) if not _is_library(cls)]
    own = {name: each for attributes in classes for name, each in attributes.items()}
    used = None if names is None else _grown(names | {"__call__"}, own)
    held = own if kind is value else own | getattr(value, "__dict__", {})
    kept = [] if kind is value else slots(value).values()
    return [
        *((each, names) for each in kept),
        *((each, used) for name, each in held.items() if used is None or name in used),
    ]


def _kept_by_library(value: Any) -> list[Any]:
    """Returns what an object of a library has of the user's."""
    if hasattr(value, "as_numpy_iterator") and not isinstance(value, type):
        from lipdp.backend import pipelines  # only here, as above

        return pipelines.given_functions(value)
    if type(value).__module__.partition(".")[0] != "lipdp":
        # `tf.function` and `jax.jit` keep the function that they were given.
        names = ("python_function", "__wrapped__") if callable(value) else ()
        return [getattr(value, name, None) for name in names]
    kept = [getattr(value, name, None) for name in ("rows", "augmentation", "losses")]
    kept = [each for each in kept if not isinstance(each, types.MethodType)]
    if hasattr(value, "update_step"):  # an optimizer is made of the class that the user gave, and of a schedule
        from lipdp import _keras

        kept += [_keras.learning_rate(value), *(cls for cls in type(value).__mro__ if not _is_library(cls))]
    return kept


def slots(value: Any) -> dict[str, Any]:
    """Returns what an object holds in `__slots__`, by name."""
    found = {}
    for cls in type(value).__mro__:
        names = vars(cls).get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            with contextlib.suppress(Exception):  # not set
                found[name] = getattr(value, name)
    return found


def _used(function: types.FunctionType) -> list[tuple[Any, frozenset | None]]:
    loaded, names = _names(function.__code__)
    found = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a cell that is still empty
            found.append(cell.cell_contents)
    return [(each, names) for each in (*found, *(function.__globals__.get(name) for name in loaded))]


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[frozenset, frozenset]:
    """Returns the global names that code loads, and the names of attributes."""
    loaded, attributes = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(step.argval)
    for inner in (each for each in code.co_consts if isinstance(each, types.CodeType)):
        more = _names(inner)
        loaded, attributes = loaded | more[0], attributes | more[1]
    return frozenset(loaded), frozenset(attributes)


def _grown(names: frozenset, own: Mapping[str, Any]) -> frozenset:
    """Returns names of attributes with those that methods among them use."""
    methods = [own[name] for name in names if isinstance(own.get(name), types.FunctionType)]
    grown = names.union(*(_names(method.__code__)[1] for method in methods))
    return grown if grown == names else _grown(grown, own)


def _is_library(thing: Any) -> bool:
    return str(getattr(thing, "__module__", None)).split(".")[0] in LIBRARIES
