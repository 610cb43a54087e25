"""How many rows of an update a CPU should take at once."""

import math
from collections.abc import Iterable

import keras

from lipdp import _keras, backend, isolation
from lipdp.gradients import rules
from lipdp.gradients.leaves import leaves

# Copies count as rows. Operations of TensorFlow are calls of their own, and cost more than few rows save in the cache.
_LEAST = 32
# A row with more bytes of activations is heavy: a few are work enough for a call, and many would fill the memory.
_HEAVY, _LEAST_HEAVY, _LEAST_HEAVY_CONVOLVED = 4 * 2**20, 4, 16
# A compiled loop is one call, but threads share out an operation only where it is large.
_LEAST_COMPILED = 8
# What layers inside of a user's layer make of a row is not seen: each so many arrays of the size of its output.
_UNSEEN = 2
# Each microbatch adds gradients of the size of the weights: with less than this many times their bytes of activations
# that takes longer than what stays in the cache saves. Activations of more are not worth it.
_TIMES_WEIGHTS, _MOST = 4, 20 * 2**20
# Layers without a rule hold a gradient of the size of their weights for each row. It is written, and read three times.
_WHOLE, _LEAST_WHOLE, _LEAST_WHOLE_COMPILED = 12 * 2**20, 8, 4


def default_microbatch(
    model: keras.Model, copies: int = 1, clips: bool = True, inputs: Iterable[tuple[int, ...]] = ()
) -> int | None:
    """Returns the examples of a microbatch whose activations stay near the cache; None for a whole update at once.

    One backward pass that keeps every layer's inputs and cotangents is bound by memory: on a CPU, microbatches of this
    size take less time than a whole update, and far less memory.

    Args:
        model: A functional or Sequential model.
        copies: Copies of each example.
        clips: Whether the gradients of examples are clipped.
        inputs: Shapes of one example of the data, where the model leaves sizes open.
    """
    inputs = list(inputs)
    budget, row = backend.microbatch_bytes(model, clips), row_bytes(model, inputs)
    if budget is None or row is None:
        return None
    if backend.compiles(model):
        weights = 4 * sum(math.prod(v.shape) for v in model.trainable_variables)
        budget = max(budget, min(_TIMES_WEIGHTS * weights, _MOST))
        least = _LEAST_HEAVY if row > _HEAVY else _LEAST_COMPILED
        row += _recurrent_bytes(model, inputs) + _unseen_bytes(model, inputs)
    elif row <= _HEAVY:
        least = _LEAST
    else:
        convolved = any(hasattr(layer, "kernel_size") for layer in _keras.walk(model))
        least = _LEAST_HEAVY_CONVOLVED if convolved else _LEAST_HEAVY
    rows, held = max(least, budget // row) // copies, _held_bytes(model) if clips else 0
    if held:
        rows = min(rows, max(_LEAST_WHOLE_COMPILED if backend.compiles(model) else _LEAST_WHOLE, _WHOLE // held))
    return max(1, rows)


def at_most(model: keras.Model, rows: int | None, copies: int = 1) -> int | None:
    """Returns what `fit` is to take for a microbatch so that it has no more examples than `rows`.

    Args:
        model: A functional or Sequential model.
        rows: Examples that fit into memory; None for any number.
        copies: Copies of each example.

    Returns:
        None where `default_microbatch`, which `fit` takes then, is not more.
    """
    suited = default_microbatch(model, copies)
    return None if suited is not None and rows is not None and suited <= rows else rows


def of_one_size(model: keras.Model, full_precision: bool) -> int:
    """Returns whether all microbatches have to have the same number of rows: of what that has to be a multiple, or 0.

    Products of less than float32 may round a row otherwise among another number of rows, and where it stands on a
    processor that takes several at once: one that joins would change what the others give.

    Args:
        model: A functional or Sequential model.
        full_precision: Whether products of float32 are computed in float32 where the backend leaves a choice.
    """
    chosen = not full_precision and backend.mixed_products() and backend.cpu_threads() is None
    return backend.rows_alike() if low_precision(model) or chosen else 0


def low_precision(model: keras.Model) -> bool:
    """Returns whether a model computes in bfloat16 or float16 somewhere."""
    return not floats(model).isdisjoint(("bfloat16", "float16"))


def floats(model: keras.Model) -> set[str]:
    """Returns the types of floats that a model computes in, as far as its layers and graphs tell."""
    layers = _keras.walk(model, include_self=True)
    nodes = [node for graph in filter(None, map(_keras.graph, layers)) for node in _keras.nodes(graph)]
    found = {keras.backend.standardize_dtype(tensor.dtype) for node in nodes for tensor in node.output_tensors}
    found |= {layer.compute_dtype for layer in layers}
    # In which a table is read backwards is not the type of the symbolic tensor.
    found |= {getattr(layer, "reverse_dtype", None) or layer.compute_dtype for layer in layers}
    return {dtype for dtype in found if keras.backend.is_float_dtype(dtype)}


def row_bytes(model: keras.Model, inputs: Iterable[tuple[int, ...]] = ()) -> int | None:
    """Returns the bytes of what the layers make of one row; None where sizes are not known, from `inputs` either.

    A size that is left open is taken for that of the inputs along the same axis: layers that stride make less.
    """
    uses = [use for layer in _keras.walk(model) for use in _keras.uses(layer)]
    shapes = [_closed(shape[1:], inputs) for use in uses for shape in use.outputs]
    if not shapes or any(None in shape for shape in shapes):
        return None
    return 4 * sum(math.prod(shape) for shape in shapes)


def _closed(shape: tuple, inputs: Iterable[tuple[int, ...]]) -> tuple:
    return tuple(
        max((given[axis] for given in inputs if len(given) > axis), default=None) if size is None else size
        for axis, size in enumerate(shape)
    )


def _recurrent_bytes(model: keras.Model, inputs: Iterable[tuple[int, ...]]) -> int:
    """Returns about how many bytes the steps of recurrent layers make of one row, beside their outputs."""
    total = 0
    for layer in _keras.walk(model):
        turns = isinstance(layer, keras.layers.Bidirectional)
        both = (layer.forward_layer, layer.backward_layer) if turns else (layer,)
        columns = [math.prod(w.shape[-1:]) for one in both if isinstance(one, keras.layers.RNN) for w in one.weights]
        if columns:
            steps = [_closed(use.inputs[0][1:2], inputs)[0] for use in _keras.uses(layer)]
            total += 4 * sum(columns) * sum(step or 0 for step in steps)
    return total


def _unseen_bytes(model: keras.Model, inputs: Iterable[tuple[int, ...]]) -> int:
    """Returns about how many bytes the layers inside of a user's own layers make of one row."""
    total = 0
    for layer in {id(operation): operation for operation, _ in isolation.foreign(model)}.values():
        if isinstance(layer, keras.layers.Layer):
            made = [_closed(shape[1:], inputs) for use in _keras.uses(layer) for shape in use.outputs]
            total += len(_keras.walk(layer)) * sum(math.prod(size or 1 for size in shape) for shape in made)
    return 4 * _UNSEEN * total


def _held_bytes(model: keras.Model) -> int:
    """Returns the bytes of the gradients of one example that are held whole, as no rule tells what they are made of."""
    layers = [layer for layer, rule in leaves(model) if rule is rules.fallback]
    return 4 * sum(math.prod(v.shape) for layer in layers for v in layer.trainable_variables)


def heavy(model: keras.Model) -> bool:
    """Returns whether a row has so many activations that a few rows are work enough for a call."""
    return (row_bytes(model) or 0) > _HEAVY
