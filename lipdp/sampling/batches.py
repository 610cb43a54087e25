"""From drawn indices to padded batches with 0/1 weights."""

import math
import sys

import numpy as np
from keras import tree

# Sizes are rounded up to this, so that few shapes occur.
_STEP = 8
# Where each shape costs a compilation only three occur: B plus so many standard deviations of a draw. A draw
# fits into the first with 84 % chance, into the second with 99.4 %, and almost never exceeds the last.
_LEVELS = (1.0, 2.5, 6.0)


class Layout:
    """Number of rows of a padded batch.

    Args:
        expected: Expected batch size B.
        chunk: Rows of one physical chunk, or None when a whole update fits at once.
        static: Whether each shape costs a compilation: pad to one of `B + (1, 2.5, 6) sqrt(B)` rows, or to
            the last of them when there are chunks, of which the empty ones are skipped. Otherwise only to
            the next small multiple.
        largest: Largest batch that can occur, to which static shapes are padded; None for Poisson sampling.

    A draw above the last level gets more rows, in rare cases at the price of a compilation: nothing is
    ever dropped.
    """

    def __init__(self, expected: int, chunk: int | None, static: bool, largest: int | None = None):
        self.chunk = chunk
        self._step = chunk or _STEP
        levels = [expected + level * math.sqrt(expected) for level in (_LEVELS[-1:] if chunk else _LEVELS)]
        levels = levels if largest is None else [largest]
        self._levels = [self._round(level) for level in levels] if static else []

    def _round(self, rows: float) -> int:
        return max(1, math.ceil(rows / self._step)) * self._step

    def rows(self, drawn: int) -> int:
        """Rows of the batch that holds `drawn` examples; a positive multiple of the chunk."""
        return next((level for level in self._levels if level >= drawn), self._round(drawn))


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
