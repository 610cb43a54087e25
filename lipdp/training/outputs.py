"""What a model computes of rows, on as many devices as there are."""

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import backend, gradients


def refuse_processes(method: str) -> None:
    """Refuses to compute outputs on devices of several processes, each of which would have its own rows only."""
    _, count = backend.processes()
    if count > 1 and keras.distribution.distribution() is not None:
        raise ValueError(
            f"{method} needs the outputs of all rows, and a process has those of its own devices. Received: {count} "
            "processes that train together. Save the model, and load it in one process without a distribution."
        )


class Outputs:
    """What a model computes of any number of rows, in batches that are all alike.

    Devices that share a batch out need as many rows each. And products are rounded by the number of rows in them: in a
    last batch that is shorter, one row more would change the bits of all others. What counts rows by a threshold needs
    `OneByOne` beside that.

    Args:
        model: A model, whose weights may change between calls.
        batch_size: Rows at once; more of them in low precision where that decides about rounding.
        shared: Whether two threads may take half of a batch each: on a CPU with several, the parts of a network that
            one thread computes alone do not keep the others waiting. Call it in the default precision.
    """

    def __init__(self, model: keras.Model, batch_size: int, shared: bool = False):
        self._model = model
        self._distributed = keras.distribution.distribution() is not None
        shards, _ = backend.row_shards()
        several = shared and not self._distributed and batch_size > 1 and (backend.cpu_threads() or 1) > 1
        self._threads = 2 if several else 1
        # In low precision a row must not be rounded by its place: one that joins gives others another one.
        alike = gradients.of_one_size(model, full_precision=True) or 1
        self._size = -(-batch_size // (shards * self._threads * alike)) * alike * shards
        # `predict` would make a new data set for each call.
        self._compute = functools.partial(model, training=False)
        if not model.run_eagerly:
            self._compute = backend.compiled(self._compute, model.variables)

    def __call__(self, rows: Any) -> Any:
        """Returns the outputs of rows, a nest of arrays with at least one row, as `predict` does."""
        count = len(tree.flatten(rows)[0])
        missing = -count % self._size
        if missing:
            rows = tree.map_structure(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], missing, axis=0)]), rows)
        if self._distributed:
            made = keras.Model.predict(self._model, rows, batch_size=self._size, verbose=0)
        else:
            made = tree.map_structure(lambda *parts: np.concatenate(parts), *self._of(rows, count + missing))
        return tree.map_structure(lambda leaf: leaf[:count], made)

    def _of(self, rows: Any, count: int) -> Iterator[Any]:
        batches = (
            tree.map_structure(lambda leaf, s=start: leaf[s : s + self._size], rows)
            for start in range(0, count, self._size)
        )
        # Here, as the first batch of all compiles.
        yield self._batch(next(batches))
        if self._threads == 1:
            yield from map(self._batch, batches)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            yield from pool.map(self._batch, batches)

    def _batch(self, rows: Any) -> Any:
        return tree.map_structure(ops.convert_to_numpy, self._compute(tree.map_structure(ops.convert_to_tensor, rows)))


class OneByOne(keras.Model):
    """A model that computes each of its rows as a batch of one, one after the other, by the same program.

    Sums and products may be rounded by the place of a row in its batch, and one row more in front of the others gives
    each of them another place: what counts rows by a threshold would see many of them move.

    Args:
        model: What to compute.

    **Guarantee.** Bound: the bits of a row in the output follow from that row alone. Not covered: a layer that draws,
    or reads anything but its inputs and weights.
    """

    def __init__(self, model: keras.Model):
        super().__init__()
        self._rows_of = model

    def call(self, rows: Any) -> Any:
        return ops.map(self._one, rows)

    def _one(self, row: Any) -> Any:
        made = self._rows_of(tree.map_structure(lambda leaf: leaf[None], row))
        return tree.map_structure(lambda leaf: leaf[0], made)
