"""Copies of Keras models in which layers of a user's own become functional models of what they are made of."""

import sys

import keras
import numpy as np
from keras import ops, tree

from lipdp import _keras, backend, isolation
from lipdp.bounds import registry
from lipdp.exporting import GraphCopy
from lipdp.layers import LipschitzLayer
from lipdp.model import DP_Model, DP_Sequential
from lipdp.privacy import provenance

# Largest difference between the outputs of a layer and of what it became, relative to outputs above 1.
_TOLERANCE = 1e-4
# Sizes that a layer leaves open when it is tried, and rows.
_SIZE, _ROWS = 8, 32


def to_functional(model: keras.Model, verbose: bool = True) -> keras.Model:
    """Returns a model of the same layers in which layers of your own are functional models of what they call.

    Layers of your own run one row at a time when a model trains privately, as nobody knows what their `call` does. That
    takes several times as long. Where `call` does nothing but call layers of Keras and `keras.ops`, these can be
    written down once, and train as they do in a functional model.

    Args:
        model: A functional or Sequential model. A subclassed one first becomes `keras.Model(inputs, model(inputs))`.
        verbose: Whether to write to standard output what each layer of your own became, or why it stays.

    Returns:
        A functional model, not compiled; a `DP_Model` of a private one. Layers and weights are those of `model`, not
        copies: train one of them, and both have learned it. A layer stays as it is, and runs one row at a time as
        before, where it has weights of its own, draws random numbers itself, gets masks, states bounds of its own,
        changes what it holds, does something else in training than to hand `training` on, or where its `call` cannot
        be read or computes something else on random rows.

    Raises:
        ValueError: a subclassed or unbuilt model.

    Example:
        >>> import keras
        >>> import lipdp
        >>> class Block(keras.layers.Layer):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.inner, self.outer = keras.layers.Dense(8, "relu"), keras.layers.Dense(4)
        ...     def call(self, inputs):
        ...         return inputs + self.outer(self.inner(inputs))
        >>> network = keras.Sequential([keras.Input((4,)), Block(), keras.layers.Dense(2)])
        >>> model = lipdp.DP_Model.from_keras(lipdp.to_functional(network, verbose=False))
        >>> model.count_params() == network.count_params()
        True

    **Guarantee.** What a private `fit` of the copy executes and accounts for is its graph: bounds do not depend on
    whether that is what `call` does. Each layer was run on random rows, its weights moved at random, and gave the
    outputs of what it became, within 1e-4. Not covered: a `call` that does something else for other values or numbers
    of rows, or after the copy was made, which is not followed.
    """
    if not isinstance(model, keras.Model) or _keras.graph(model) is None or _keras.has_own_call(model):
        name = f"'{model.name}' of {type(model).__name__}" if isinstance(model, keras.Model) else type(model).__name__
        raise ValueError(
            f"`to_functional` needs a graph of layers. Received: {name}. Give a Sequential model a keras.Input(shape); "
            "of a subclassed one take keras.Model(inputs, model(inputs)), with inputs = keras.Input(shape)."
        )
    opener = _Opener()
    copy = opener.model(model)
    if isinstance(model, (DP_Model, DP_Sequential)):
        copy = DP_Model(*_keras.structures(copy), name=model.name)
    provenance.attribute(copy, provenance.ledgers_of(model))
    if verbose:
        lines = list(opener.lines.values()) or [f"Model '{model.name}': it has no layers of your own."]
        sys.stdout.write("\n".join(lines) + "\n")
    return copy


class _Stays(Exception):
    """Why a layer is left as it is."""


class _Opener(GraphCopy):
    def __init__(self):
        super().__init__()
        self.lines: dict[int, str] = {}
        self._calls: dict[int, list] = {}
        self._opened: set[int] = set()

    def model(self, model):
        foreign = {id(operation) for operation, _ in isolation.foreign(model)}
        for node in _calls(model):
            if id(node.operation) in foreign:
                self._calls.setdefault(id(node.operation), []).append(node)
        return super().model(model)

    def copy(self, operation):
        if isinstance(operation, keras.Model) and _keras.graph(operation) is not None:
            if not _keras.has_own_call(operation):
                return (self.model(operation) if _has_own(operation) else operation), []
        if not _own(operation) or id(operation) not in self._calls:  # or of a family of layers that is known
            return operation, []
        name = f"Layer '{operation.name}' ({type(operation).__name__})"
        try:
            inner = _opened(operation, self._calls[id(operation)])
        except _Stays as reason:
            self.lines[id(operation)] = f"{name} stays, and runs one row at a time: {reason}."
            return operation, []
        self._opened.add(id(operation))
        count = len({id(node.operation) for node in _keras.nodes(inner) if isinstance(node.operation, keras.Layer)})
        of = f"{count} layer{'s' * (count != 1)}" if count else "operations alone"
        self.lines[id(operation)] = f"{name} became a functional model of {of}."
        return self.model(inner), []

    def outputs(self, operation, copy, args, kwargs):
        if id(operation) not in self._opened:
            return super().outputs(operation, copy, args, kwargs)
        return copy([value for value in tree.flatten((args, kwargs)) if isinstance(value, keras.KerasTensor)])


class _AnyRows(GraphCopy):
    """Has what `call` reshapes by its number of rows, which is None for symbols, take any number of them."""

    def copy(self, operation):
        return (type(operation)((-1, *operation.newshape[1:])) if _by_rows(operation) else operation), []


def _by_rows(operation) -> bool:
    shape = getattr(operation, "newshape", None)
    return _keras.operation_name(operation) == "Reshape" and isinstance(shape, (list, tuple)) and [*shape[:1]] == [None]


def _own(operation) -> bool:
    """Whether an operation is a layer, or a subclassed model, of the user's own."""
    return isinstance(operation, keras.Layer) and isolation.root(type(operation)) not in ("keras", "lipdp")


def _has_own(model) -> bool:
    return any(_own(operation) for operation, _ in isolation.foreign(model))


def _calls(model) -> list:
    """Returns the calls in a graph, and in the graphs inside of it."""
    found = []
    for node in _keras.nodes(_keras.graph(model)):
        inside = isinstance(node.operation, keras.Model) and not _own(node.operation)
        found += _calls(node.operation) if inside and _keras.graph(node.operation) is not None else [node]
    return found


def _opened(layer, nodes) -> keras.Model:
    """Returns the graph of what a layer calls, with one flat list of inputs; raises `_Stays` where there is none."""
    if any(name in vars(kind) for kind in _own_classes(layer) for name in ("__call__", "compute_mask")):
        raise _Stays("it has a `__call__` or a `compute_mask` of its own")
    if isinstance(layer, LipschitzLayer) or registry.is_registered(layer):
        raise _Stays("it states bounds of its own")
    if _keras.all_own_variables(layer):
        raise _Stays("it has weights of its own")
    if _keras.seed_generators(layer):
        raise _Stays("it draws random numbers itself")
    if layer.losses or layer.activity_regularizer is not None:
        raise _Stays("it adds losses")
    calls = [(node.arguments.args, node.arguments.kwargs) for node in nodes]
    if any(_described(call) != _described(calls[0]) for call in calls[1:]):
        raise _Stays("it is called in several ways")
    for tensor in _symbols(calls[0]):
        if _keras.mask(tensor) is not None:
            raise _Stays("its inputs have masks")
        if keras.backend.is_float_dtype(tensor.dtype) and tensor.dtype != layer.compute_dtype:
            raise _Stays(f"it converts its inputs to {layer.compute_dtype}")
    inputs = [keras.Input(batch_shape=t.shape, dtype=t.dtype) for t in _symbols(calls[0])]
    graph = _traced(layer, inputs, calls[0])
    if any(map(_by_rows, (node.operation for node in _keras.nodes(graph)))):
        graph = _AnyRows().model(graph)
    _refuse_steps(graph)
    _compare(layer, keras.Model(inputs, _called(layer, inputs, calls[0])), graph)
    return graph


def _own_classes(layer) -> list:
    return [kind for kind in type(layer).__mro__ if isolation.root(kind) not in ("keras", "lipdp", "builtins")]


def _symbols(nest) -> list:
    return [value for value in tree.flatten(nest) if isinstance(value, keras.KerasTensor)]


def _described(nest) -> list:
    """Returns a call in a form in which calls can be compared."""
    parts = tree.flatten_with_path(nest)
    symbols = [(path, tuple(v.shape), v.dtype) for path, v in parts if isinstance(v, keras.KerasTensor)]
    return [*symbols, *((path, _plain(v)) for path, v in parts if not isinstance(v, keras.KerasTensor))]


def _plain(value):
    return id(value) if np.ndim(value) else repr(value)


def _called(function, inputs, call):
    """Calls a function as a layer was, on other tensors."""
    given = iter(inputs)
    args, kwargs = tree.map_structure(lambda v: next(given) if isinstance(v, keras.KerasTensor) else v, call)
    return function(*args, **kwargs)


def _traced(layer, inputs, call) -> keras.Model:
    """Returns the graph of what `call` does with symbols."""
    held = dict(vars(layer))
    try:
        with keras.StatelessScope() as scope:
            outputs = _called(layer.call, inputs, call)
        graph = keras.Model(inputs, outputs, name=layer.name)
    except Exception as error:
        raise _Stays(f"its `call` cannot be read without numbers ({type(error).__name__})") from error
    finally:
        changed = {key for key in {*held, *vars(layer)} if vars(layer).get(key) is not held.get(key)}
        vars(layer).clear()
        vars(layer).update(held)
    if changed or scope.state_mapping or layer.losses:
        raise _Stays("its `call` changes what it holds, or draws random numbers")
    if not all(isinstance(value, keras.KerasTensor) for value in tree.flatten(outputs)):
        raise _Stays("it returns something else than tensors")
    weights = [v for inner in _keras.walk(layer) for v in _keras.all_own_variables(inner)]
    if not {id(v) for v in weights} <= {id(v) for v in graph.variables}:
        raise _Stays("it calls layers on what does not follow from its inputs, such as positions")
    return graph


def _refuse_steps(graph) -> None:
    """Leaves a layer alone that trains as it is and whose graph may not."""
    for node in _keras.nodes(graph):
        operation = node.operation
        for value in tree.flatten((node.arguments.args, node.arguments.kwargs)):
            array = (
                isinstance(operation, keras.layers.Layer)
                and not isinstance(value, keras.KerasTensor)
                and np.ndim(value)
            )
            if isinstance(value, keras.Variable) or array:
                raise _Stays(f"it calls '{operation.name}' on a weight or a constant")
    foreign = [operation for operation, _ in isolation.foreign(graph) if not _own(operation)]
    if foreign:
        raise _Stays(f"it calls '{foreign[0].name}', which is not known to keep rows apart")


def _compare(layer, one, other) -> None:
    """Runs a layer and its graph on random rows, with weights moved at random: what was read as a constant shows.

    Layers inside draw the same numbers in both.
    """
    rng = np.random.default_rng(0)

    def drawn(tensor):
        shape = (_ROWS, *(_SIZE if size is None else size for size in tensor.shape[1:]))
        floats = keras.backend.is_float_dtype(tensor.dtype)
        rows = rng.uniform(0.1, 1.9, shape) if floats else rng.integers(0, 2, shape)
        return ops.convert_to_tensor(rows.astype(tensor.dtype))

    x = [drawn(tensor) for tensor in other.inputs]
    moved = [
        (v, ops.convert_to_tensor(v) + ops.convert_to_tensor(0.1 * rng.normal(size=v.shape).astype(v.dtype)))
        for v in layer.variables
        if keras.backend.is_float_dtype(v.dtype)
    ]
    for training in (False, True):
        outputs = []
        try:
            for model in (one, other):
                with backend.full_precision(), keras.StatelessScope(moved):
                    outputs.append([ops.convert_to_numpy(t) for t in tree.flatten(model(x, training=training))])
        except Exception as error:
            raise _Stays(f"it does not run on random rows ({type(error).__name__})") from error
        for a, b in zip(*outputs, strict=True):
            limit = _TOLERANCE * max(1.0, float(np.max(np.abs(a), initial=0.0)))
            if a.shape != b.shape or not np.max(np.abs(a - b), initial=0.0) <= limit:
                also = " in training" if training else ""
                raise _Stays(f"what was read of its `call` computes something else{also} on random rows")
