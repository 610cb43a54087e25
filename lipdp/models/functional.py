"""Copies of Keras models in which layers of a user's own become functional models of what they are made of."""

import contextlib
import re
import sys

import keras
import numpy as np
from keras import ops, tree

from lipdp import _keras, backend, isolation
from lipdp.bounds import registry
from lipdp.exporting import GraphCopy
from lipdp.isolation.rules import is_array
from lipdp.layers import LipschitzLayer, Weight
from lipdp.losses import penalties
from lipdp.model import DP_Model, DP_Sequential
from lipdp.models.steps import Stays, Steps, for_each_row
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
        copies: train one of them, and both have learned it. Weights of your layer's own become those of a `Dense`,
        `EinsumDense`, `Embedding` or `lipdp.layers.Weight`; a file holds twice what two of your layers share, such as a
        table, and these are two weights once it is loaded. A layer stays as it is, and runs one row at a time as
        before, where its own weights are kept in lists, have constraints or regularizers, or do not all train, where it
        draws random numbers itself, gets masks, states bounds of its own, changes what it holds, calls layers that are
        none of its attributes, does something else in training than to hand `training` on, or where its `call` cannot
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
        except Stays as reason:
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
    """Returns the graph of what a layer calls, with one flat list of inputs; raises `Stays` where there is none."""
    if any(name in vars(kind) for kind in _own_classes(layer) for name in ("__call__", "compute_mask")):
        raise Stays("it has a `__call__` or a `compute_mask` of its own")
    if isinstance(layer, LipschitzLayer) or registry.is_registered(layer):
        raise Stays("it states bounds of its own")
    if _keras.seed_generators(layer):
        raise Stays("it draws random numbers itself")
    if penalties.others(layer, layer.losses) or layer.activity_regularizer is not None:
        raise Stays("it adds losses")
    calls = [(node.arguments.args, node.arguments.kwargs) for node in nodes]
    if any(_described(call) != _described(calls[0]) for call in calls[1:]):
        raise Stays("it is called in several ways")
    for tensor in _symbols(calls[0]):
        if _keras.mask(tensor) is not None:
            raise Stays("its inputs have masks")
    # A layer converts what it is given to the type that it computes in, and so do the inputs of a model.
    floats = keras.backend.is_float_dtype
    inputs = [
        keras.Input(batch_shape=t.shape, dtype=layer.compute_dtype if floats(t.dtype) else t.dtype)
        for t in _symbols(calls[0])
    ]
    graph = _traced(layer, inputs, calls[0])
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
    steps, held = Steps(layer), dict(vars(layer))
    given = {**held, **steps.stand_ins}
    try:
        vars(layer).update(given)
        with keras.StatelessScope() as scope, _constants_for_each_row(layer, inputs[0]):
            outputs = _called(layer.call, inputs, call)
        graph = keras.Model(inputs, steps.again(inputs, outputs), name=layer.name)
    except Stays:
        raise
    except Exception as error:
        raise Stays(f"its `call` cannot be read without numbers ({type(error).__name__})") from error
    finally:
        changed = {key for key in {*given, *vars(layer)} if vars(layer).get(key) is not given.get(key)}
        vars(layer).clear()
        vars(layer).update(held)
    if changed or scope.state_mapping or penalties.others(layer, layer.losses):
        raise Stays("its `call` changes what it holds, or draws random numbers")
    if not all(isinstance(value, keras.KerasTensor) for value in tree.flatten(outputs)):
        raise Stays("it returns something else than tensors")
    found = [v for inner in _keras.walk(layer, include_self=True) for v in _keras.all_own_variables(inner)]
    if not {id(v) for v in found} <= {id(v) for v in graph.variables}:
        raise Stays("it has weights that what was read of its `call` does not use")
    if not {id(v) for v in graph.variables} <= {id(v) for v in layer.variables}:
        raise Stays("it calls a layer that is none of its attributes, whose weights would train where they did not")
    return graph


@contextlib.contextmanager
def _constants_for_each_row(layer, tensor):
    """Has the layers inside of one that are called on constants alone, such as positions, take them for each row.

    Called on numbers, a layer gives numbers, which would be all that is left of its weights.
    """

    def given(inner, call):
        def run(*args, **kwargs):
            if _keras.in_symbolic_scope() or not any(map(is_array, tree.flatten((args, kwargs)))):
                return call(*args, **kwargs)
            args, kwargs = tree.map_structure(lambda v: for_each_row(v, tensor) if is_array(v) else v, (args, kwargs))
            return inner(*args, **kwargs)

        return run

    replaced = [(vars(inner), vars(inner).get("call")) for inner in _keras.walk(layer)]
    try:
        for inner in _keras.walk(layer):
            vars(inner)["call"] = given(inner, inner.call)
        yield
    finally:
        for attributes, before in replaced:
            attributes.pop("call")
            attributes.update({} if before is None else {"call": before})


def _refuse_steps(graph) -> None:
    """Leaves a layer alone whose graph has weights of others as constants, or goes along all copies of its own."""
    foreign, of_weights = {id(operation) for operation, _ in isolation.foreign(graph)}, set()
    for node in _keras.nodes(graph):
        for value in tree.flatten((node.arguments.args, node.arguments.kwargs)):
            if isinstance(value, keras.Variable):
                raise Stays(f"it calls '{node.operation.name}' on a weight")
        inputs = {id(tensor) for tensor in node.input_tensors}
        if isinstance(node.operation, Weight) or (inputs and inputs <= of_weights):
            of_weights.update(map(id, node.output_tensors))
            if id(node.operation) in foreign:
                raise Stays(f"it calls '{node.operation.name}' on a weight, which each row has a copy of")


def _reason(error: Exception) -> str:
    """What a refusal of this package says first, also where Keras has put a frame around it; else the error's name."""
    if isolation.root(type(error)) != "lipdp":
        return type(error).__name__
    said = next(part for part in str(error).split("\n\n") if not part.startswith("Exception encountered"))
    return re.sub("\x1b\\[[0-9]+m", "", said).split(" Received:")[0].rstrip(".")


def _compare(layer, one, other) -> None:
    """Runs a layer and its graph on random rows, with weights moved at random: what was read as a constant shows.

    The graph runs as it predicts, and as it trains, where operations that are not known to keep rows apart run one row
    at a time. Layers inside draw the same numbers each time.
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
            whole = contextlib.nullcontext()
            for model, context in ((one, whole), (other, _steps_alone(other)), (other, whole)):
                with context, backend.full_precision(), keras.StatelessScope(moved):
                    flat = tree.flatten(model(x, training=training))
                    # As numbers: truth values have no difference.
                    outputs.append([ops.convert_to_numpy(t).astype("float64") for t in flat])
        except Exception as error:
            raise Stays(f"it does not run on random rows ({_reason(error)})") from error
        for a, *read in zip(*outputs, strict=True):
            limit = _TOLERANCE * max(1.0, float(np.max(np.abs(a), initial=0.0)))
            if not all(a.shape == b.shape and np.max(np.abs(a - b), initial=0.0) <= limit for b in read):
                also = " in training" if training else ""
                raise Stays(f"what was read of its `call` computes something else{also} on random rows")


@contextlib.contextmanager
def _steps_alone(graph):
    """Has the operations of a graph run as when it trains, and layers of a user's own as they are."""
    with isolation.isolated(graph), contextlib.ExitStack() as stack:
        for operation, _ in isolation.foreign(graph):
            if _own(operation):
                stack.enter_context(isolation.together(operation))
        yield
