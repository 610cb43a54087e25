"""Norms never understate: squares that underflow count."""

import numpy as np
import pytest
from keras import ops

from lipdp.gradients.factors import Layout, Outer


@pytest.mark.parametrize("positions,inputs,outputs", [(1, 1, 1), (1, 5, 3), (2, 9, 8), (3, 2, 2)])
@pytest.mark.parametrize("large", ["a", "g"])
@pytest.mark.parametrize("exponent", [0, 5, 12, 18])
def test_squares_that_underflow_are_not_lost(positions, inputs, outputs, large, exponent):
    rng = np.random.default_rng(positions)
    a = rng.uniform(0.5, 1.5, (4, positions, inputs)).astype("float32")
    g = rng.uniform(0.5, 1.5, (4, positions, outputs)).astype("float32")
    scale = np.float32(10.0**exponent)
    a, g = (a * scale, g / scale / 100) if large == "a" else (a / scale / 100, g * scale)
    exact = np.einsum("bpi,bpo->bio", a.astype("float64"), g.astype("float64"))
    outer = Outer(ops.convert_to_tensor(a), ops.convert_to_tensor(g), Layout((inputs, outputs)))
    norms = ops.convert_to_numpy(outer.squared_norm())
    assert np.all(norms >= np.sum(exact**2, axis=(1, 2)) * (1.0 - 1e-6))
    assert exponent > 12 or np.all(norms <= np.sum(exact**2, axis=(1, 2)) * (1.0 + 1e-5))
    one = ops.ones((inputs, outputs))
    scaled = ops.convert_to_numpy(outer.scaled_squared_norm(0.0 * one, one))
    assert np.all(scaled >= np.sum(exact**2, axis=(1, 2)) * (1.0 - 1e-6))
