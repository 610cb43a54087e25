"""How many rows of an update a CPU should take at once."""

import math

import keras

from lipdp import _keras, backend

# Copies count as rows. Smaller microbatches cost more in calls than their activations save in the cache.
_LEAST = 16
# A row with more bytes of activations is heavy: a few are work enough for a call, and many would fill the memory.
_HEAVY, _LEAST_HEAVY = 4 * 2**20, 4


def default_microbatch(model: keras.Model, copies: int = 1) -> int | None:
    """Returns the examples of a microbatch whose activations stay near the cache; None for a whole update at once.

    One backward pass that keeps every layer's inputs and cotangents is bound by memory: on a CPU, microbatches of this
    size take less time than a whole update, and far less memory. Where each shape costs a compilation they are for
    heavy rows only: there they save more, as microbatches of padding are skipped, than their calls cost. Few rows are
    not for convolutions: XLA computes these several times slower in a loop, and TensorFlow needs more rows at once.

    Args:
        model: A functional or Sequential model.
        copies: Copies of each example.
    """
    budget, row = backend.microbatch_bytes(model), row_bytes(model)
    if budget is None or row is None:
        return None
    few = heavy(model) and not any(hasattr(layer, "kernel_size") for layer in _keras.walk(model))
    if backend.compiles(model) and not few:
        return None
    rows = max(_LEAST_HEAVY if few else _LEAST, budget // row)
    return max(1, rows // copies)


def row_bytes(model: keras.Model) -> int | None:
    """Returns the bytes of what the layers make of one row; None where sizes are not known."""
    shapes = [shape[1:] for layer in _keras.walk(model) for use in _keras.uses(layer) for shape in use.outputs]
    if not shapes or any(None in shape for shape in shapes):
        return None
    return 4 * sum(math.prod(shape) for shape in shapes)


def heavy(model: keras.Model) -> bool:
    """Returns whether a row has so many activations that a few rows are work enough for a call."""
    return (row_bytes(model) or 0) > _HEAVY
