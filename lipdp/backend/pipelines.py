"""The operations of `tf.data` pipelines, which `fit` takes with every backend."""

import math
from typing import Any

import numpy as np
from keras import tree

from lipdp import _keras

# Of made-up batches: how many rows, and sizes that are not known.
_ROWS, _SIZE = 8, 8
# Of rows that are all alike, at most; of a function that returns rows one by one, which takes longer.
_MANY, _MANY_ONE_BY_ONE = 4099, 521


def given_functions(dataset: Any) -> list[Any]:
    """Returns the functions that a data set, and those that it is made of, were given."""
    own = own_functions(dataset)
    return [*own, *(each for source in _keras.dataset_sources(dataset) for each in given_functions(source))]


def own_functions(dataset: Any) -> list[Any]:
    """Returns the functions that a data set itself was given."""
    return [value._func for value in vars(dataset).values() if hasattr(value, "_func")]


def largest_of(dataset: Any) -> Any:
    """Returns of the tensors that a data set of arrays holds the one with the most bytes; None where it shows none."""
    held = [leaf for value in vars(dataset).values() for leaf in tree.flatten(value) if hasattr(leaf, "numpy")]
    return max(held, key=lambda tensor: math.prod(tensor.shape) * tensor.dtype.size, default=None)


def equal(one: Any, other: Any) -> bool:
    """Returns whether two tensors, or None, hold the same numbers or texts."""
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    # Most that differ do so in the first rows.
    return all(np.array_equal(_bytes(a), _bytes(b)) for a, b in ((one[:9], other[:9]), (one, other)))


def _bytes(tensor):
    """Returns what a tensor holds so that NaN is equal to itself; texts as they are."""
    array = np.ascontiguousarray(tensor.numpy())
    return array if array.dtype.hasobject else array.view(np.uint8)


def of_function(function: Any) -> tuple[list, list]:
    """Returns the operations of a function of a pipeline, and those of the data sets from outside that it uses.

    Args:
        function: A concrete function.

    Raises:
        ValueError: it uses what cannot be looked into.
    """
    graph = function.graph.as_graph_def()
    variants = [tensor for tensor in function.captured_inputs if tensor.dtype.name == "variant"]
    return _nodes(graph), [node for variant in variants for node in of_variant(variant)]


def of_variant(variant: Any) -> list:
    """Returns the operations of a data set that only a tensor stands for.

    Raises:
        ValueError: it cannot be looked into.
    """
    import tensorflow as tf

    try:
        # State, such as that of random generators, plays no part in which operations there are.
        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1).numpy()
    except (tf.errors.OpError, ValueError) as error:
        raise ValueError(str(error)) from error
    return _nodes(tf.compat.v1.GraphDef.FromString(graph))


def _nodes(graph: Any) -> list:
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


def mixes_rows(source: Any, function: Any, kind: str = "Map", *, draws: bool) -> bool:
    """Returns whether a function of batches is seen to bring what is in one row into several, on made-up batches.

    A row of NaN shows where it went, whatever is drawn; in numbers that have none, a row that is another one, where
    nothing is drawn. What cannot be run on such batches is not seen.

    Args:
        source: The data set of batches that it is given; of rows for "GroupByWindow".
        function: What the method was given.
        kind: That of the data set that the method makes: "Map", "FlatMap", "Interleave" or "GroupByWindow".
        draws: Whether it draws random numbers.
    """
    import tensorflow as tf

    specs = _specs_of(source, kind)
    if not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.dtype != tf.string for spec in specs):
        return False
    # Not all functions take integers but 0 and 1, and what follows the largest of a batch needs others.
    wide = any(not spec.dtype.is_floating and spec.dtype != tf.bool for spec in specs)
    return any(_mixes(source, specs, function, draws, kind, most) for most in ((1, 5) if wide else (1,)))


def chooses_by_others(source: Any, function: Any, kind: str = "Map") -> bool:
    """Returns whether a function of batches is seen to keep only some of rows that are all alike, on made-up batches.

    Where each row says alone whether it is there, so many equal ones all are, or none is. What cannot be run on such
    batches is not seen.

    Args:
        source, function, kind: As in `mixes_rows`.
    """
    import tensorflow as tf

    specs = _specs_of(source, kind)
    if not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.dtype != tf.string for spec in specs):
        return False
    entries = max(math.prod(size or _SIZE for size in spec.shape[1:]) for spec in specs)
    most = _MANY if kind == "Map" else _MANY_ONE_BY_ONE
    # More than a slice keeps of a batch, if memory allows; functions may insist on a size.
    for number in dict.fromkeys((max(_ROWS, min(most, 2**18 // max(entries, 1))), specs[0].shape[0] or _ROWS)):

        def alike(spec, number=number):
            shape, rng = (_ROWS, 1, *(size or _SIZE for size in spec.shape[1:])), np.random.default_rng(0)
            rows = rng.uniform(-1.0, 1.0, shape) if spec.dtype.is_floating else rng.integers(0, 2, shape)
            return tf.cast(np.repeat(rows, number, axis=1), spec.dtype)

        try:
            tried = tf.nest.pack_sequence_as(source.element_spec, list(map(alike, specs)))
            found = _run(kind, function, tried, number)
        except Exception:
            continue
        counts = [[len(leaf) for leaf in one if leaf.ndim] for one in found]
        return any(one and all(count % number for count in one) for one in counts)
    return False


def _specs_of(source: Any, kind: str) -> list:
    """Returns the specs of the batches that a function gets; None for what has none."""
    import tensorflow as tf

    specs = tf.nest.flatten(source.element_spec)
    if kind != "GroupByWindow":
        return specs
    shaped = (spec if getattr(spec, "shape", None) is not None else None for spec in specs)
    return [spec and tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in shaped]


def _run(kind: str, function: Any, tried: Any, rows: int = _ROWS) -> list[list[np.ndarray]]:
    """Returns what a function makes of each of some batches, as arrays of which each holds all rows of one."""
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices(tried)
    if kind == "Map":
        made = batches.map(function)
        return [[np.asarray(leaf) for leaf in tf.nest.flatten(batch)] for batch in made.as_numpy_iterator()]

    def numbered(number, batch):
        if kind == "GroupByWindow":
            made = function(tf.constant(0, tf.int64), tf.data.Dataset.from_tensor_slices(batch))
        else:
            made = function(*batch) if isinstance(batch, tuple) else function(batch)
        return made.map(lambda *row: (number, row))

    found: dict[int, list] = {}
    for number, row in batches.enumerate().flat_map(numbered).as_numpy_iterator():
        found.setdefault(int(number), []).append([np.asarray(leaf) for leaf in tf.nest.flatten(row)])
    axes, joined = max(leaf.shape.rank for leaf in tf.nest.flatten(tried)) - 1, []
    for _, made_of_one in sorted(found.items()):
        leaves = list(zip(*made_of_one, strict=True))
        # An element with fewer axes than a batch is a row.
        are_rows = len(made_of_one) == rows or max(leaf[0].ndim for leaf in leaves) < axes
        joined.append([np.stack(leaf) if are_rows else np.concatenate(leaf) for leaf in leaves])
    return joined


def _mixes(source, specs: list, function, draws: bool, kind: str, most: int) -> bool:
    """Returns the same for integers from 0 to `most`, of which a row that is another one has the first or the last."""
    import tensorflow as tf

    rng = np.random.default_rng(0)

    def batches(spec):
        """Returns a batch, then three for each of its rows, in which that row is NaN, and two other ones."""
        shape = (_ROWS, *(_SIZE if size is None else size for size in spec.shape[1:]))
        inner = (1, most) if most > 1 and spec.dtype != tf.bool else (0, 2)
        usual = rng.integers(*inner, shape) if not spec.dtype.is_floating else rng.uniform(0.1, 0.9, shape)
        tried = np.repeat(usual[None], 3 * _ROWS + 1, axis=0)
        for row in range(_ROWS):
            if spec.dtype.is_floating:
                tried[1 + row, row] = np.nan
            for block, end in ((1, 0), (2, most)):
                other = tried[1 + block * _ROWS + row]
                other[row] = end if inner[0] else 1 - other[row]
        return tf.cast(tried, spec.dtype)

    try:
        tried = tf.nest.pack_sequence_as(source.element_spec, list(map(batches, specs)))
        found = _run(kind, function, tried)
    except Exception:
        return False
    usual, lost, other = found[0], found[1 : 1 + _ROWS], found[1 + _ROWS :]
    unlike = [_rows_where(np.isnan, usual, one) for one in lost]
    if not draws:
        unlike += [_rows_where(None, usual, one) for one in other]
    # One row alone is the same one, or has been moved.
    return any(len(rows) > 1 for rows in unlike)


def _rows_where(test: Any, usual: list, leaves: list) -> set[int]:
    """Returns the rows of a batch in which something holds that does not in the usual one; None: something else is."""
    found: set[int] = set()
    for before, after in zip(usual, leaves, strict=True):
        if before.shape != after.shape or before.shape[:1] != (_ROWS,) or before.dtype.kind not in "fiub":
            continue
        if test is None:
            unlike = ~np.isclose(before.astype("float64"), after.astype("float64"), 1e-4, 1e-5, equal_nan=True)
        elif before.dtype.kind == "f":
            unlike = test(after) & ~test(before)
        else:
            continue
        found |= set(np.flatnonzero(unlike.reshape(_ROWS, -1).any(axis=1)).tolist())
    return found
