"""Variables that keep their values."""

import keras
import numpy as np
from keras import ops

from lipdp.backend.kept import kept


def test_values_come_back_behind_what_writes_to_variables():
    variables = [keras.Variable(np.ones(3, "float32")), keras.Variable(np.arange(2, dtype="uint32"))]
    with kept(variables[:1]):
        for variable in variables:
            variable.assign(ops.zeros(variable.shape, variable.dtype))
    assert [variable.numpy().tolist() for variable in variables] == [[1.0, 1.0, 1.0], [0, 0]]
