"""What a model computes of rows, on as many devices as there are."""

from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import backend


def outputs(model: keras.Model, rows: Any, batch_size: int) -> Any:
    """Returns what `predict` does, for any number of rows: devices that share them out need as many each.

    Args:
        model: A model.
        rows: A nest of arrays with at least one row.
        batch_size: Rows at once.
    """
    shards, _ = backend.row_shards()
    count = len(tree.flatten(rows)[0])
    missing = -count % shards
    if missing:
        rows = tree.map_structure(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], missing, axis=0)]), rows)
    made = keras.Model.predict(model, rows, batch_size=-(-batch_size // shards) * shards, verbose=0)
    return tree.map_structure(lambda leaf: leaf[:count], made)
