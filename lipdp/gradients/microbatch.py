"""How many rows of an update a CPU should take at once."""

import math

import keras

from lipdp import _keras, backend

# Copies count as rows. Smaller microbatches cost more in calls than their activations save in the cache.
_LEAST = 16


def default_microbatch(model: keras.Model, copies: int = 1) -> int | None:
    """Returns the examples of a microbatch whose activations stay near the cache; None for a whole update at once.

    One backward pass that keeps every layer's inputs and cotangents is bound by memory: on a CPU, microbatches of this
    size take less time than a whole update, and far less memory.

    Args:
        model: A functional or Sequential model.
        copies: Copies of each example.
    """
    budget = backend.microbatch_bytes(model)
    shapes = [shape[1:] for layer in _keras.walk(model) for use in _keras.uses(layer) for shape in use.outputs]
    if budget is None or not shapes or any(None in shape for shape in shapes):
        return None
    rows = max(_LEAST, budget // (4 * sum(math.prod(shape) for shape in shapes)))
    return max(1, rows // copies)
