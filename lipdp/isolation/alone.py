"""Functions of a batch, and whole models, run one row at a time."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import _keras, backend
from lipdp.backend import threefry
from lipdp.backend.unread import MetricError
from lipdp.isolation.known import _defined_by_user, advice, at_once, foreign, root, suspects, used

_WAYS = (
    "It is neither Keras' nor lipdp's, so while a model trains it sees one row at a time, as a batch of one. Write it "
    "with layers of Keras or lipdp, or declare it with lipdp.row_wise if it treats each row alone, which the privacy "
    "statement will say."
)


class _Refusal(ValueError):
    """An error that names what it is about already."""


class Arguments:
    """The arguments of one call: tensors that have a row for each row of the batch, and all else.

    Args:
        args, kwargs: What a function was called with.
        constants: Identities of the tensors that belong to all rows.
        number: Number of rows, by which other tensors that belong to all rows are known; None where there are none.
        places: Tensors that belong to all rows by their paths in `(args, kwargs)`, which stand in for what is there.

    Attributes:
        rows: Tensors with an axis of rows first, and then their masks.
        constants: All other tensors.
    """

    def __init__(
        self,
        args: tuple,
        kwargs: dict,
        constants: frozenset = frozenset(),
        number: int | None = None,
        places: Mapping | None = None,
    ):
        self._structure = (args, kwargs)
        flat = tree.flatten(self._structure)
        self._kinds = [_kind(leaf, constants, number) for leaf in flat]
        for k, (path, leaf) in enumerate(tree.flatten_with_path(self._structure) if places else ()):
            if path in places and ops.is_tensor(leaf):
                flat[k], self._kinds[k] = ops.convert_to_tensor(places[path], leaf.dtype), "constant"
        tensors = [leaf for leaf, kind in zip(flat, self._kinds, strict=True) if kind == "row"]
        masks = [_keras.mask(t) for t in tensors]
        self._masked = [mask is not None for mask in masks]
        self.rows = [*tensors, *(mask for mask in masks if mask is not None)]
        self.constants = [leaf for leaf, kind in zip(flat, self._kinds, strict=True) if kind == "constant"]
        self._others = [leaf for leaf, kind in zip(flat, self._kinds, strict=True) if kind == "other"]

    def packed(self, rows: Sequence, constants: Sequence) -> tuple[tuple, dict]:
        """Returns arguments with other tensors in the places of `rows` and `constants`."""
        tensors, masks = rows[: len(self._masked)], iter(rows[len(self._masked) :])
        for tensor, masked in zip(tensors, self._masked, strict=True):
            if masked:
                _keras.set_mask(tensor, next(masks))
        left = {"row": iter(tensors), "constant": iter(constants), "other": iter(self._others)}
        return tree.pack_sequence_as(self._structure, [next(left[kind]) for kind in self._kinds])


def _kind(leaf, constants, number) -> str:
    if not ops.is_tensor(leaf):
        return "other"
    shared = not len(leaf.shape) or id(leaf) in constants
    return "constant" if shared or number is not None and leaf.shape[0] not in (None, number) else "row"


def seeds_of(operation: keras.Operation) -> list[keras.random.SeedGenerator]:
    """Returns what a layer of the user's, and the layers inside of it, draw random numbers from.

    Keras' own that are not known to keep rows apart, such as `MixUp`, mean to mix them: alone they would do nothing.
    """
    own = isinstance(operation, keras.Layer) and root(type(operation)) != "keras"
    inside = _keras.walk(operation, include_self=True) if own else []
    found = [seeds for layer in inside for seeds in _keras.seed_generators(layer)]
    return [seeds for seeds in found if type(seeds) is keras.random.SeedGenerator]


def row_states(state: Any, number: Any) -> Any:
    """Returns a random state for each of `number` rows, `(number, 2)`, from that of a generator.

    **Guarantee.** The state of row i is the block i of a cipher whose key is `state`: it depends on no data, and who
    does not know `state` cannot tell it from a random one, beyond what a cipher with a key of 64 bits allows.
    """
    key = ops.cast(state, "uint32")
    rows = ops.cast(ops.arange(number, dtype="int32"), "uint32")
    words = threefry.threefry((key[0], key[1]), rows, ops.zeros_like(rows))
    return ops.cast(ops.stack(words, axis=1), keras.backend.standardize_dtype(state.dtype))


def alone(
    function: Callable,
    name: str,
    variables: Sequence = (),
    constants: frozenset = frozenset(),
    seeds: Sequence = (),
    places: Mapping | None = None,
) -> Callable:
    """Returns a function that calls another one for each row of its tensors, as a batch of one row.

    Args:
        function: Takes and returns nests of tensors with an axis of rows first.
        name: What errors call it.
        variables: The Keras variables that it reads; it must change none.
        constants: Identities of tensor arguments that belong to all rows.
        seeds: Generators that it draws from: each row gets a state of its own (`row_states`), and each call goes on to
            the next.
        places: Tensors that belong to all rows by their paths in `(args, kwargs)`.

    **Guarantee.** Row i of each output, and its derivatives, are those of `function` for row i of the arguments: no
    other row is there when it is computed. Refused: a function that returns another number of rows than one, that
    changes a variable (as a random seed does that is none of `seeds`), adds a loss, cannot run under a vectorized map,
    or calls what such a map of JAX can hand whole batches (callbacks, `custom_vmap`, foreign functions). Not covered:
    code that keeps what it has seen outside of tensors and variables, such as the Python state of a debugging callback,
    and batching rules of primitives that it brings for itself.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments, seen = Arguments(args, kwargs, constants, places=places), {}  # type: ignore[var-annotated]
        rows = {t.shape[0] for t in arguments.rows}
        if not rows or len(rows - {None}) > 1:
            raise _Refusal(
                f"{name} is called on tensors that have not one row per example. Received: shapes "
                f"{[tuple(t.shape) for t in arguments.rows]}. {_WAYS}"
            )

        drawn = [row_states(s.state.value, ops.shape(arguments.rows[0])[0]) for s in seeds]
        states = [s.state for s in seeds]
        random = set(map(id, states))
        # TensorFlow calls the function again for its gradient, where nothing surrounds it.
        told = _keras.told_training()

        def called(args, kwargs):
            if not (seeds or told[1]):
                return function(*args, **kwargs)
            return _keras.telling_training(lambda: function(*args, **kwargs), told)

        def one(values, row):
            row, own = row[: len(arguments.rows)], [t[0] for t in row[len(arguments.rows) :]]
            mapping = [*zip(variables, values, strict=True), *zip(states, own, strict=True)]
            with keras.StatelessScope(mapping, collect_losses=True) as scope:
                before = dict(scope.state_mapping)
                args, kwargs = arguments.packed(row, arguments.constants)
                outputs = called(args, kwargs)
            after = scope.state_mapping
            if scope.losses:
                raise _Refusal(
                    f"Additional losses have no sensitivity bound. Received: {name} adds one in its forward pass. "
                    "Return what it is computed from as an output with a loss of its own (docs/training.md)."
                )
            if len(after) != len(before) or any(after[key] is not before[key] for key in set(before) - random):
                raise _Refusal(
                    f"{name} changes a variable in its forward pass: what it keeps of the examples "
                    "would be released without noise. Random numbers count: draw them from a "
                    "keras.random.SeedGenerator that is an attribute of the layer, and leave out all else."
                )
            flat = tree.flatten(outputs)
            seen["flat"], seen["structure"] = flat, outputs
            seen["tensors"] = [k for k, t in enumerate(flat) if ops.is_tensor(t)]
            tensors = [flat[k] for k in seen["tensors"]]
            masks = [_keras.mask(t) for t in tensors]
            seen["masked"] = [k for k, mask in zip(seen["tensors"], masks, strict=True) if mask is not None]
            tensors += [mask for mask in masks if mask is not None]
            for tensor in tensors:
                if not len(tensor.shape) or tensor.shape[0] not in (1, None):
                    raise _Refusal(
                        f"{name} does not return one row for each row it gets. Received: shape {tuple(tensor.shape)} "
                        f"for one row. Keep the first axis of its input. {_WAYS}"
                    )
            return tensors or [ops.zeros((1,))]

        try:
            results = backend.row_by_row(one, [v.value for v in variables], [*arguments.rows, *drawn])
        except (_Refusal, MetricError):
            raise
        except Exception as error:
            raise ValueError(f"{name} cannot be run one row at a time. Received: {error}. {_WAYS}") from error
        for generator in seeds:
            generator.next()
        flat, number = list(seen["flat"]), len(seen["tensors"])
        for k, tensor in zip(seen["tensors"], results, strict=False):
            flat[k] = tensor
        for k, mask in zip(seen["masked"], results[number:], strict=True) if number else ():
            _keras.set_mask(flat[k], mask)
        return tree.pack_sequence_as(seen["structure"], flat)

    run.alone, run.places = True, places  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def isolated(model: keras.Model, drawing: bool = False) -> Iterator[None]:
    """Has the operations of a model that are not known to keep rows apart run one row at a time.

    For the time in which a step is traced, or runs eagerly; within it, only one thread may use the model.

    Args:
        model: The model.
        drawing: Whether to take only those that draw random numbers, whose rows get others than in a whole batch.

    **Guarantee.** Row i of every tensor in the graph of `model`, and of every cotangent, is a function of row i of its
    inputs: operations that are listed as keeping rows apart do, and all others see one row only (`alone`). What was
    declared (`row_wise`) is trusted.
    """
    replaced = []
    try:
        for operation, nodes in foreign(model):
            if not (is_alone(vars(operation).get("call")) or drawing and not seeds_of(operation)):
                replaced.append((operation, vars(operation).get("call")))
                vars(operation).update(_replacements(operation, nodes))
        yield
    finally:
        for operation, before in replaced:
            _restore(operation, before)


@contextlib.contextmanager
def together(operation: keras.Operation) -> Iterator[None]:
    """Has an operation run as it is, within `isolated`; for batches of one row."""
    own = vars(operation)
    held = {name: own.pop(name) for name in ("call", "compute_mask") if is_alone(own.get(name))}
    try:
        yield
    finally:
        own.update(held)


def is_alone(function: Any) -> bool:
    """Whether a function is one that runs one row at a time."""
    return getattr(function, "alone", False)


def synthetic(graph: keras.Function) -> tuple:
    """Returns the nest of a graph's inputs and as one of 11 rows, the last of which is an outlier."""
    rng = np.random.default_rng(0)
    structure, _ = _keras.structures(graph)
    read = tokens(graph)

    def made_up(tensor):
        shape = (11, *(8 if size is None else size for size in tensor.shape[1:]))
        if id(tensor) in read or not keras.backend.is_float_dtype(tensor.dtype):
            return ops.convert_to_tensor(rng.integers(0, 2, shape).astype(tensor.dtype))
        rows = rng.uniform(0.1, 1.9, shape)
        rows[-1] *= 1e6
        return ops.convert_to_tensor(rows.astype(tensor.dtype))

    return structure, tree.map_structure(made_up, structure)


def tokens(graph: keras.Function) -> set[int]:
    """Returns the identities of the tensors of a graph that an embedding may read, some of which may be floats.

    TensorFlow stops at tokens that an embedding does not have. It may be inside of a layer, and tokens may be reshaped
    before they reach it: from outputs to inputs.
    """
    found: set[int] = set()
    for node in reversed(_keras.nodes(graph)):
        if _embeds(node.operation) or not found.isdisjoint(map(id, node.output_tensors)):
            found.update(map(id, node.input_tensors))
    return found


def _embeds(operation: keras.Operation) -> bool:
    """Whether an operation is an embedding, or a layer or model with one inside of it."""
    inside = _keras.walk(operation, include_self=True) if isinstance(operation, keras.layers.Layer) else []
    return any(isinstance(layer, keras.layers.Embedding) for layer in inside)


def refuse_mixing(model: keras.Model) -> None:
    """Tries a model on synthetic rows, an outlier among them, and refuses it if rows of one batch see each other.

    A help only: what is not found here runs one row at a time, and does something else than in a whole batch.

    Raises:
        ValueError: rows depend on each other, or an operation cannot be run one row at a time.
    """
    graph = _keras.graph(model)
    if graph is None or not foreign(model):
        return
    names = suspects(model)
    structure, x = synthetic(graph)
    before = [ops.copy(v.value) for v in model.non_trainable_variables]

    def outputs(context):
        def run(*flat):
            with context(model):
                return tree.flatten(backend.Forward(model)(tree.pack_sequence_as(structure, flat))[0])

        try:
            return [ops.convert_to_numpy(t) for t in backend.compiled(run, model.variables)(*tree.flatten(x))]
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"Model '{model.name}' does not run on random inputs. Received: {names}, of which each must return one "
                f"row for each row it gets; {error}"
            ) from error
        finally:
            for variable, value in zip(model.non_trainable_variables, before, strict=True):
                variable.assign(value)

    separate, whole = outputs(isolated), outputs(functools.partial(isolated, drawing=True))
    for a, b in zip(separate, whole, strict=True):
        if a.shape != b.shape or not np.allclose(a[:-1], b[:-1], rtol=1e-3, atol=1e-5, equal_nan=True):
            raise ValueError(
                "The output for one example depends on the other examples of the batch: a layer mixes examples or "
                f"reorders the rows of the batch. Received: model '{model.name}', where it can be {names}. Use layers "
                "that treat each row alone."
            )


def refuse_keeping(model: keras.Model) -> None:
    """Tries a model with declared parts on synthetic rows, and refuses it if its forward pass changes a weight.

    All other layers of the user's run one row at a time, where that is refused.

    Raises:
        ValueError: a weight is changed.
    """
    graph = _keras.graph(model)
    if graph is None or not used(model):
        return
    try:
        with isolated(model), keras.StatelessScope() as scope:
            model(synthetic(graph)[1], training=True)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"Model '{model.name}' does not run on random inputs, on which its declared layers are tried. Received: "
            f"{error}. Have these layers take any numbers of their inputs' shapes."
        ) from error
    seeds = {id(s.state) for layer in _keras.walk(model, include_self=True) for s in _keras.seed_generators(layer)}
    for variable in model.variables:
        if id(variable) not in seeds and scope.get_current_value(variable) is not None:
            raise ValueError(
                f"Weight '{variable.path}' is changed by the forward pass of its layer: what it keeps of the examples "
                "would be released without noise. Use a layer that changes no weights in `call`."
            )


def _replacements(operation, nodes) -> dict:
    name = f"Layer '{operation.name}' ({type(operation).__name__})"
    if advice(operation):
        raise _Refusal(advice(operation))
    inside = _keras.walk(operation, include_self=True) if isinstance(operation, keras.Layer) else []
    if refused := next(filter(None, map(at_once, inside)), ""):
        raise _Refusal(refused)
    if _defined_by_user(operation, "__call__") or getattr(operation, "quantization_mode", None) is not None:
        raise _Refusal(
            f"{name} has a `__call__` of its own or is quantized, so that it cannot be run one row at a time. Put what "
            f"`__call__` does into `call`; leave that of Keras' classes as it was. {_WAYS}"
        )
    layer = isinstance(operation, keras.layers.Layer)
    if layer and root(type(operation.dtype_policy)) != "keras":
        raise _Refusal(
            f"{name} has a dtype policy of its own, which sees whole batches before `call` does. Received: "
            f"{type(operation.dtype_policy).__name__}. Pass one of Keras', such as dtype='float32'."
        )
    held = [_arrays(node) for node in nodes]
    arrays = [array for found in held for array in found.values()]
    # Keras converts what a layer is called on, so these are known by their places.
    several = any({p: id(a) for p, a in found.items()} != {p: id(a) for p, a in held[0].items()} for found in held)
    if layer and several:
        raise _Refusal(
            f"{name} is called on a constant, and elsewhere on another one. Received: shape {np.shape(arrays[0])}. "
            f"Give the layer an attribute that holds it. {_WAYS}"
        )
    constants, places = frozenset(map(id, arrays)), held[0] if layer and arrays else None
    variables = tuple(operation.variables) if layer else ()
    replacements = {"call": alone(operation.call, name, variables, constants, seeds_of(operation), places)}
    if layer and (_defined_by_user(operation, "compute_mask") or callable(getattr(operation, "mask", None))):
        replacements["compute_mask"] = alone(operation.compute_mask, f"The mask of {name}", variables)
    return replacements


def _arrays(node) -> dict:
    """Returns the arrays among the arguments of a call, by their paths."""
    leaves = tree.flatten_with_path((node.arguments.args, node.arguments.kwargs))
    return {path: leaf for path, leaf in leaves if not isinstance(leaf, keras.KerasTensor) and len(np.shape(leaf)) > 0}


def _restore(operation, before) -> None:
    vars(operation).pop("compute_mask", None)
    vars(operation).pop("call", None)
    if before is not None:
        vars(operation)["call"] = before
