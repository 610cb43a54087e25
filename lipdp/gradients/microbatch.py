"""How many rows of an update a CPU should take at once."""

import math

from keras import tree

from lipdp import backend

# Copies count as rows. Smaller chunks cost more in calls than their activations save in the cache.
_LEAST = 16


def default_rows(model, views: int = 1) -> int | None:
    """Rows of a chunk whose activations stay near the cache; None where a whole update at once is no slower.

    One backward pass that keeps every layer's inputs and cotangents is bound by memory: on a CPU, chunks of this
    size take less time than a whole update, and far less memory.

    Args:
        model: A functional or Sequential model.
        views: Copies of each row.
    """
    budget = backend.chunk_bytes(model)
    nodes = [node for layer in model._flatten_layers(include_self=False) for node in layer._inbound_nodes]
    shapes = [tuple(tensor.shape[1:]) for node in nodes for tensor in tree.flatten(node.output_tensors)]
    if budget is None or not shapes or any(None in shape for shape in shapes):
        return None
    rows = max(_LEAST, budget // (4 * sum(math.prod(shape) for shape in shapes)))
    return max(1, rows // views)
