"""From drawn indices to padded batches with 0/1 weights."""

import collections
import concurrent.futures
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import tree

from lipdp.sampling.columns import Column
from lipdp.sampling.persons import Chooser
from lipdp.sampling.reading import Reader, take_rows

# Sizes are rounded up to this, so that few shapes occur; of microbatches whose shapes cost nothing, to at most a part.
_STEP, _PART = 8, 1 / 32
# Where each shape costs a compilation only three occur: B plus so many standard deviations of a draw. A draw
# fits into the first with 84 % chance, into the second with 99.4 %, and almost never exceeds the last.
_LEVELS = (1.0, 2.5, 6.0)
# So many updates are being read while one is made.
_AHEAD = 2
# Frameworks take memory as it is that begins at a multiple of so many bytes, and copy all other.
_ALIGNMENT = 64


class PaddedSize:
    """Number of rows of a padded batch.

    Args:
        expected: Expected batch size B.
        microbatch: Rows of one microbatch, or None when a whole update fits at once.
        static: Whether each shape costs a compilation: pad to one of `B + (1, 2.5, 6) sqrt(B)` rows, or to
            the last of them when there are microbatches, of which the empty ones are skipped. Otherwise only to
            the next small multiple.
        largest: Largest batch that can occur, to which static shapes are padded; None for Poisson sampling.
        shards: Devices among which the rows are shared: each gets as many. Divides `microbatch`.
        deviation: Standard deviation of a draw; default: sqrt(B), that of Poisson sampling.
        full: Whether the last microbatch is filled up where shapes are not static either: products in bfloat16 round
            a row otherwise among other numbers of rows.

    A draw above the last level gets more rows, in rare cases at the price of a compilation: nothing is
    ever dropped.
    """

    def __init__(
        self,
        expected: float,
        microbatch: int | None,
        static: bool,
        largest: int | None = None,
        shards: int = 1,
        deviation: float | None = None,
        full: bool = False,
    ):
        self.microbatch, self.shards = microbatch, shards
        # Compiled microbatches all have the same shape.
        step = _STEP if static or not microbatch else min(_STEP, max(1, int(_PART * expected)))
        self._step = microbatch if microbatch and (static or full) else math.lcm(step, shards)
        deviation = math.sqrt(expected) if deviation is None else deviation
        levels = [expected + level * deviation for level in (_LEVELS[-1:] if microbatch else _LEVELS)]
        levels = levels if largest is None else [largest]
        self._levels = [self._round(level) for level in levels] if static else []

    def _round(self, rows: float) -> int:
        return max(1, math.ceil(rows / self._step)) * self._step

    def rows(self, drawn: int) -> int:
        """Rows of the batch that holds `drawn` examples; where shapes are static, a multiple of the microbatch."""
        return next((level for level in self._levels if level >= drawn), self._round(drawn))


class _Buffers:
    """Arrays that are written again once nobody else holds them.

    Frameworks may alias the memory of a numpy array instead of copying it; they then hold a view of ours,
    which shows in its count of references.
    """

    def __init__(self):
        self._arrays: list[np.ndarray] = []

    def take(self, shape, dtype) -> np.ndarray:
        rows = shape[0]
        for i in range(len(self._arrays)):
            # Views refer to the memory itself. Two references: that of the array and the argument of getrefcount.
            if len(self._arrays[i]) >= rows and sys.getrefcount(self._arrays[i].base) == 2:
                return self._arrays[i][:rows]
        if len(self._arrays) >= 8:
            self._arrays.pop(0)
        # With room for the larger of the draws to come.
        self._arrays.append(_aligned((rows + rows // 8, *shape[1:]), np.dtype(dtype)))
        return self._arrays[-1][:rows]


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, "uint8")
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class Batches:
    """The padded batches of updates `start`, `start + 1`, ... without end.

    Args:
        sampler: Object with `draw(update) -> indices`.
        x: Tree of arrays, or `Column`s of sources, of shape `(N, ...)`.
        y: Array or column of shape `(N, ...)`.
        size: How many rows to pad to.
        start: Number of the first update.
        held: The shares of the rows that this process feeds; None: all.
        allowed: Which labels of a source count, see `Reader`.
        choose: Where persons are drawn, which rows are theirs, see `persons.Chooser`; None: what is drawn are rows.

    Iterating yields `(x, y, weight)`. The weight of a drawn row is 1, or its share in the average of its person, and 0
    of a padding row; padding rows are zero, and so are drawn rows of a source that do not count. The rows of one share
    lie together, drawn ones first; the shares are equal, and so are, up to one, their drawn rows. Of sources drawn rows
    are read, ahead of the update that uses them. Frameworks may keep the iterator for as long as the process lives:
    `close` lets go of the arrays.
    """

    def __init__(
        self,
        sampler: Any,
        x: Any,
        y: Any,
        size: PaddedSize,
        start: int,
        held: tuple[int, ...] | None = None,
        allowed: Callable[[np.ndarray], Any] | None = None,
        choose: Chooser | None = None,
    ):
        self.sampler, self.size, self.start = sampler, size, start
        self._choose, self._width = choose or _all_rows, 1 if choose is None else choose.width
        self.held = tuple(range(size.shards)) if held is None else held
        self.reader = Reader((x, y), allowed)
        self._held: tuple | None = ((x, y), [_Buffers() for _ in tree.flatten((x, y))], _Buffers())

    def __iter__(self):
        update, ahead = self.start, collections.deque()
        while self._held is not None:
            # No reference to what is yielded or held stays in this frame: the buffers can be found free.
            try:
                yield self._next(update, ahead)
            except _Closed:
                return
            update += 1

    def close(self) -> None:
        """Ends the iteration and the threads, and frees the memory."""
        self._held = None
        self.reader.close()

    def _next(self, update: int, ahead: collections.deque) -> tuple:
        try:
            while len(ahead) <= (_AHEAD if self.reader else 0):
                ahead.append(self._begin(update + len(ahead)))
            jobs, filled, weight = ahead.popleft()
            self.reader.end(jobs, filled, weight)
        except concurrent.futures.CancelledError as error:
            raise _Closed from error
        if self._held is None:
            raise _Closed
        return (*tree.pack_sequence_as(self._held[0], filled), weight)

    def _begin(self, update: int) -> tuple[list, list[np.ndarray], np.ndarray]:
        """Returns a batch and what is still being read into it."""
        if self._held is None:
            raise _Closed
        data, pools, weights = self._held
        index, counts = self._choose(update, self.sampler.draw(update))
        # Dealt out like cards: microbatches that hold a drawn row of any share come before all that hold none.
        dealt = [slice(share, None, self.size.shards) for share in self.held]
        shares, counts = ([part[cards].reshape(-1) for cards in dealt] for part in (index, counts))
        each = self.size.rows(len(index)) // self.size.shards * self._width
        rows, filled = each * len(shares), []
        for leaf, pool in zip(tree.flatten(data), pools, strict=True):
            buffer = pool.take((rows, *leaf.shape[1:]), leaf.dtype)
            for i, share in enumerate(shares):
                part = buffer[i * each : (i + 1) * each]
                if isinstance(leaf, Column):
                    part[len(share) :] = 0
                else:
                    take_rows(leaf, share, part)
                if not counts[i].all():
                    part[: len(share)][counts[i] == 0.0] = 0
            filled.append(buffer)
        weight = weights.take((rows,), np.dtype("float32"))
        for i, share in enumerate(shares):
            weight[i * each : i * each + len(share)] = counts[i]
            weight[i * each + len(share) : (i + 1) * each] = 0.0
        jobs = []
        if self.reader:
            places = [i * each + np.flatnonzero(count) for i, count in enumerate(counts)]
            used = [share[count > 0.0] for share, count in zip(shares, counts, strict=True)]
            jobs = self.reader.begin(np.concatenate(used), np.concatenate(places), filled)
        return jobs, filled, weight


def _all_rows(update: int, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns what is drawn, rows, each counting in full."""
    return drawn[:, None], np.ones((len(drawn), 1), "float32")


class _Closed(Exception):
    """The batches were closed while the next one was made, in another thread."""
