"""Threads that read drawn rows into batches, ahead of the updates that use them."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from keras import tree

from lipdp.sampling.arrays import widened
from lipdp.sampling.columns import Column
from lipdp.sampling.source import Source, Unlike


def take_rows(leaf: np.ndarray, index: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Returns `out`, with rows `index` of an array and zeros behind them; each example is copied once."""
    count = len(index)
    # The clip mode writes straight into the array; all indices are in range.
    np.take(leaf, index, axis=0, out=out[:count], mode="clip")
    out[count:] = 0
    return out


class Reader:
    """Reads rows of sources by threads.

    Args:
        data: Tree of arrays and `Column`s.
        allowed: Raises ValueError for labels, the last leaf, of which one is not allowed; None: all are.

    Attributes:
        failure: Why reading has failed, if it has.

    **Guarantee.**
    Bound: rows are read for the indices that were given, and no others. What a row contributes depends on this row
    alone: one that is not finite, or whose label is not allowed or no int32, is zero, and is told apart as one that
    does not count.
    """

    def __init__(self, data: Any, allowed: Callable[[np.ndarray], Any] | None = None):
        self._allowed = allowed
        self.failure: Exception | None = None
        self._cause: Exception | None = None
        leaves = tree.flatten(data)
        self._last = len(leaves) - 1
        self._columns: dict[Source, list[tuple[int, Column]]] = {}
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, Column):
                self._columns.setdefault(leaf.source, []).append((number, leaf))
        self._pools = {
            source: concurrent.futures.ThreadPoolExecutor(source.readers, thread_name_prefix="lipdp reader")
            for source in self._columns
        }
        for source in self._columns:
            source.prepare()

    def __bool__(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._columns)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Within it, what a framework makes of an error in the source becomes that error again."""
        try:
            yield
        except Exception:
            if self.failure is None:
                raise
            # Keras takes the cause off what it lets through.
            raise self.failure from self._cause

    def begin(self, index: np.ndarray, places: np.ndarray, out: Sequence[np.ndarray]) -> list:
        """Begins to read rows, and returns what `end` waits for.

        Args:
            index: Which rows.
            places: Where they come to lie in `out`.
            out: The arrays of one batch; those that are no columns stay as they are.
        """
        jobs: list = []
        order = np.argsort(index, kind="stable")
        for source, columns in list(self._columns.items()):
            for part in np.array_split(order, min(source.readers, len(order)) or 1):
                try:
                    job = self._pools[source].submit(self._read, source, columns, index[part], places[part], out)
                except (KeyError, RuntimeError) as error:  # closed by another thread
                    raise concurrent.futures.CancelledError from error
                jobs.append(job)
        return jobs

    def end(self, jobs: list, out: Sequence[np.ndarray], weight: np.ndarray) -> None:
        """Waits until rows are there, and gives those that do not count the weight zero.

        Raises:
            Unlike: the rows are not what the source promised.
            RuntimeError: the source has failed, with its error as the cause.
        """
        try:
            # All of them before any is zeroed: others may still write.
            bad = np.concatenate([np.zeros(0, int), *(job.result() for job in jobs)])
        except Unlike as error:
            self.failure = error
            raise
        except Exception as error:
            self._cause = error
            self.failure = RuntimeError(
                f"The source of the training data has failed, and training has ended. Received: "
                f"{type(error).__name__}: {error}. What was charged stays charged. Repair the source, and call the "
                "same `fit` again to go on."
            )
            raise self.failure from error
        for leaf in (*out, weight):
            leaf[bad] = 0

    def rows(self, data: Any, index: np.ndarray, weight: np.ndarray) -> Any:
        """Returns rows of the data in float32, with zeros behind them, and sets the weight of some to zero, see `end`.

        Args:
            data: What this reads from.
            index: Which rows.
            weight: One number for each row of the result.
        """
        leaves, out = tree.flatten(data), []
        for leaf in leaves:
            rows = np.empty((len(weight), *leaf.shape[1:]), leaf.dtype)
            rows[len(index) :] = 0
            out.append(rows if isinstance(leaf, Column) else take_rows(leaf, index, rows))
        if self:
            self.end(self.begin(index, np.arange(len(index)), out), out, weight)
        return tree.pack_sequence_as(data, list(map(widened, out)))

    def close(self) -> None:
        """Ends the threads; what they are reading is read to its end."""
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        for source in self._columns:
            source.release()
        # Whoever holds this, as frameworks do, holds no data.
        self._columns, self._pools = {}, {}

    def _read(self, source, columns, index, places, out) -> np.ndarray:
        """Reads rows into `out`; returns the places of those that do not count."""
        source.check_length()
        found, bad = source.read(index), np.zeros(len(index), bool)
        for number, column in columns:
            rows, counts = column.counted(found[column.number])
            bad |= ~counts
            if number == self._last and self._allowed is not None:
                bad |= self._refused(rows, ~bad)
            out[number][places] = rows
        return places[bad]

    def _refused(self, labels, candidates) -> np.ndarray:
        refused = np.zeros(len(labels), bool)
        if candidates.any() and not self._allows(labels[candidates]):
            for i in np.flatnonzero(candidates):
                refused[i] = not self._allows(labels[i : i + 1])
        return refused

    def _allows(self, labels) -> bool:
        try:
            self._allowed(labels)  # type: ignore[misc]
        except ValueError:
            return False
        return True
