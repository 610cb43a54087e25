"""What a model computes of rows, on as many devices as there are."""

from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import backend


def outputs(model: keras.Model, rows: Any, batch_size: int) -> Any:
    """Returns what `predict` does, for any number of rows, in batches that are all alike.

    Devices that share a batch out need as many rows each. And products are rounded by the number of rows in them: in a
    last batch that is shorter, one row more would change the bits of all others, and whatever counts rows by a
    threshold (`PrivateRescaling`) would see all of them move.

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
