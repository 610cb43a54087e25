"""What a model computes of rows, on as many devices as there are."""

from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import backend


def outputs(model: keras.Model, rows: Any, batch_size: int) -> Any:
    """Returns what `predict` does, for any number of rows, in batches that are all alike.

    Devices that share a batch out need as many rows each. And products are rounded by the number of rows in them: in a
    last batch that is shorter, one row more would change the bits of all others. What counts rows by a threshold needs
    `OneByOne` beside that.

    Args:
        model: A model.
        rows: A nest of arrays with at least one row.
        batch_size: Rows at once.
    """
    shards, _ = backend.row_shards()
    count, whole = len(tree.flatten(rows)[0]), -(-batch_size // shards) * shards
    missing = -count % whole
    if missing:
        rows = tree.map_structure(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], missing, axis=0)]), rows)
    made = keras.Model.predict(model, rows, batch_size=whole, verbose=0)
    return tree.map_structure(lambda leaf: leaf[:count], made)


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
