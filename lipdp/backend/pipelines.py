"""The operations of `tf.data` pipelines, which `fit` takes with every backend."""

import math
from typing import Any

import numpy as np
from keras import tree

from lipdp import _keras


def given_functions(dataset: Any) -> list[Any]:
    """Returns the functions that a data set, and those that it is made of, were given."""
    own = [getattr(value, "_func", None) for value in vars(dataset).values()]
    return [*own, *(each for source in _keras.dataset_sources(dataset) for each in given_functions(source))]


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
