"""Validation data as the devices of a process share them out."""

from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import backend
from lipdp.sampling.columns import columns_of, read


class SourceBatches(keras.utils.PyDataset):
    """Validation data of a source, in the order of their rows."""

    def __init__(self, data: tuple, rows: int, shards: int):
        super().__init__()
        self._data, self._rows, self._shards = data, rows, shards

    def __len__(self) -> int:
        return -(-len(tree.flatten(self._data)[0]) // self._rows)

    def __getitem__(self, number: int) -> tuple:
        length = len(tree.flatten(self._data)[0])
        index = np.arange(number * self._rows, min((number + 1) * self._rows, length))
        return shared_out(tuple(read(self._data, index)), self._shards, self._rows)


class SharedBatches(keras.utils.PyDataset):
    """Batches of a PyDataset, each with rows behind it, so that devices can share them."""

    def __init__(self, data: keras.utils.PyDataset, shards: int):
        super().__init__(data.workers, data.use_multiprocessing, data.max_queue_size)
        self._data, self._shards = data, shards

    @property
    def num_batches(self) -> int | None:
        return self._data.num_batches

    def __getitem__(self, number: int) -> tuple:
        return shared_out(tuple(self._data[number]), self._shards)

    def on_epoch_begin(self) -> None:
        self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._data.on_epoch_end()


def shared_out(
    data: Any,
    shards: int,
    validation_batch_size: int = 1024,
    validation_steps: int | None = None,
    validation_freq: Any = 1,
) -> Any:
    """Returns the share of validation data that this process feeds to its devices.

    Rows of weight -0 stand behind them, so that each device has as many: the means of losses tell these from rows
    that were given the weight 0. Columns of a source become batches. Among several processes batches of data sets are
    Keras' own to share out.

    Raises:
        ValueError: a batch of a `tf.data.Dataset`, among the first `validation_steps`, that the devices cannot share.
    """
    if columns_of(data):
        return SourceBatches(data, validation_batch_size, shards)
    if shards > 1 and backend.processes()[1] == 1:
        if isinstance(data, keras.utils.PyDataset):
            return SharedBatches(data, shards)
        _refuse_uneven(data, shards, validation_steps)
    if shards == 1 or not isinstance(data, (tuple, list)):
        return data
    x, y, *weight = data
    rows = len(tree.flatten(y)[0])
    _, held = backend.row_shards()

    def share(leaf, behind=0.0):
        leaf = np.asarray(leaf)
        leaf = np.concatenate([leaf, np.full((-rows % shards, *leaf.shape[1:]), behind, leaf.dtype)])
        return leaf if len(held) == shards else np.concatenate([leaf[number::shards] for number in held])

    weight = np.ones(rows, "float32") if not weight else np.asarray(weight[0], "float32")
    return (*tree.map_structure(share, (x, y)), share(weight, -0.0))


def _refuse_uneven(data: Any, shards: int, steps: int | None) -> None:
    """Refuses a `tf.data.Dataset` with which Keras would fail when an epoch has been charged."""
    if not hasattr(data, "as_numpy_iterator") or (steps is None and int(data.cardinality()) == -1):
        return
    for batch in (data if steps is None else data.take(steps)).as_numpy_iterator():
        if (rows := len(tree.flatten(batch)[0])) % shards:
            raise ValueError(
                f"Devices take as many rows of a batch each. Received: {shards} of them, and a batch of {rows} rows in "
                "`validation_data`. Pass arrays or a keras.utils.PyDataset, whose batches may have any size, or make "
                f"batches of a multiple of {shards} rows, by .batch(size, drop_remainder=True)."
            )
