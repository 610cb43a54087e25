"""From drawn indices to padded batches with 0/1 weights."""

import math
import sys

import numpy as np
from keras import tree

# Sizes are rounded up to these, so that few shapes occur.
_STATIC_STEP = 64
_DYNAMIC_STEP = 8


class Layout:
    """Number of rows of a padded batch.

    Args:
        expected: Expected batch size B.
        chunk: Rows of one physical chunk, or None when a whole update fits at once.
        static: Compiled steps need one shape: pad to the capacity. Otherwise only to the next small multiple.
        largest: Largest batch that can occur; None for Poisson sampling, which gets `B + 6 sqrt(B)`.

    A draw above the capacity gets more rows, in rare cases at the price of a compilation: nothing is
    ever dropped.
    """

    def __init__(self, expected: int, chunk: int | None, static: bool, largest: int | None = None):
        self.chunk = chunk
        self._step = chunk or (_STATIC_STEP if static else _DYNAMIC_STEP)
        most = expected + 6.0 * math.sqrt(expected) if largest is None else largest
        capacity = most if static else 1
        self._least = math.ceil(capacity / self._step) * self._step

    def rows(self, drawn: int) -> int:
        """Rows of the batch that holds `drawn` examples; a positive multiple of the chunk."""
        return max(self._least, math.ceil(drawn / self._step) * self._step)


class _Buffers:
    """Arrays that are written again once nobody else holds them.

    Frameworks may alias the memory of a numpy array instead of copying it; they then hold a reference,
    which shows in its count.
    """

    def __init__(self):
        self._arrays: list[np.ndarray] = []

    def take(self, shape, dtype) -> np.ndarray:
        for i in range(len(self._arrays)):
            # Two references: the list's and the argument of getrefcount.
            if self._arrays[i].shape == shape and sys.getrefcount(self._arrays[i]) == 2:
                return self._arrays[i]
        if len(self._arrays) >= 8:
            self._arrays.pop(0)
        self._arrays.append(np.empty(shape, dtype))
        return self._arrays[-1]


def poisson_batches(sampler, x, y, layout: Layout, start: int):
    """Yields `(x, y, weight)` of updates `start`, `start + 1`, ... without end.

    Args:
        sampler: Object with `draw(update) -> indices`.
        x: Tree of arrays of shape `(N, ...)`.
        y: Array of shape `(N, ...)`.
        layout: How many rows to pad to.
        start: Number of the first update.

    The weight of a drawn row is 1, of a padding row 0; padding rows are zero.
    """
    leaves = tree.flatten((x, y))
    pools = [_Buffers() for _ in leaves]
    weights = _Buffers()
    update = start
    while True:
        drawn = sampler.draw(update)
        rows, k = layout.rows(len(drawn)), len(drawn)
        filled = []
        for leaf, pool in zip(leaves, pools, strict=True):
            buffer = pool.take((rows, *leaf.shape[1:]), leaf.dtype)
            # The clip mode writes straight into the buffer; all indices are in range.
            np.take(leaf, drawn, axis=0, out=buffer[:k], mode="clip")
            buffer[k:] = 0
            filled.append(buffer)
            del buffer
        weight = weights.take((rows,), np.dtype("float32"))
        weight[:k] = 1.0
        weight[k:] = 0.0
        yield (*tree.pack_sequence_as((x, y), filled), weight)
        # Keep no reference, so that the buffers can be found free.
        del filled, weight
        update += 1
