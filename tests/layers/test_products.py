"""Products of fixed layers: their values, and what becomes of the last rows."""

import keras
import numpy as np
import pytest

from lipdp import backend
from lipdp.layers.products import product


def test_the_last_rows_of_a_product_are_filled_up():
    """Whatever the processor of the test: without AVX-512, TensorFlow rounds one or two rows that are left over
    otherwise."""
    taken = []

    def doubled(rows):
        taken.append(int(rows.shape[0]))
        return 2.0 * rows

    x = keras.ops.convert_to_tensor(np.arange(14, dtype="float32").reshape(7, 2))
    found = keras.ops.convert_to_numpy(backend.in_tiles(doubled, x, 6))
    np.testing.assert_array_equal(found, 2.0 * keras.ops.convert_to_numpy(x))
    assert taken == [12 if keras.backend.backend() == "tensorflow" else 7]


@pytest.mark.parametrize("shape", [(1, 4), (3, 5, 4), (0, 2, 4)])
def test_products_are_those_of_the_definition(shape):
    rng = np.random.default_rng(0)
    rows, matrix = rng.normal(size=shape), rng.normal(size=(4, 3))
    found = keras.ops.convert_to_numpy(product(keras.ops.convert_to_tensor(rows.astype("float32")), matrix))
    np.testing.assert_allclose(found, rows @ matrix, atol=1e-5)
