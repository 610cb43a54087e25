"""Products of fixed layers, which round a row in the same way at each place in the batch."""

from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import backend


def product(rows: Any, matrix: np.ndarray) -> Any:
    """Returns rows `(..., k)` times a constant matrix `(k, n)`.

    Rows stand on the left: on the right of a product JAX rounds them by their place in the batch. They become one
    matrix, as `ops.matmul` of Keras before 3.15 has TensorFlow read past the end of the constant one otherwise (its
    issue 117700). An export has the product alone, in layers of Keras.
    """
    constant = np.asarray(matrix, "float32")
    flat = ops.reshape(rows, (-1, rows.shape[-1]))
    exported = isinstance(flat, keras.KerasTensor)
    found = ops.matmul(flat, constant) if exported else backend.in_tiles(lambda part: ops.matmul(part, constant), flat)
    return ops.reshape(found, (-1, *rows.shape[1:-1], constant.shape[-1]))
