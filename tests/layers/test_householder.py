"""Householder: both ways to compute it give the reflection that its docstring states, forward and backward."""

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import backend, layers


def reference(x, angles):
    a, b = np.split(x, 2, axis=-1)
    kept = a * np.sin(angles / 2) >= b * np.cos(angles / 2)
    first, second = a * np.cos(angles) + b * np.sin(angles), a * np.sin(angles) - b * np.cos(angles)
    return np.concatenate([np.where(kept, a, first), np.where(kept, b, second)], axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [6, 128, 130, 514])
def test_the_reflection(channels):
    rng = np.random.default_rng(channels)
    layer = layers.Householder()
    x = rng.normal(size=(3, 5, channels)).astype("float32")
    layer.build(x.shape)
    layer.angles.assign(rng.uniform(-7.0, 7.0, channels // 2))
    angles = ops.convert_to_numpy(layer.angles).astype("float64")
    y = ops.convert_to_numpy(layer(x))
    np.testing.assert_allclose(y, reference(x.astype("float64"), angles), atol=3e-6)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6)


@pytest.mark.parametrize("channels", [4, 130])
def test_gradients_by_differences(channels):
    rng = np.random.default_rng(0)
    inputs = keras.Input((channels,))
    layer = layers.Householder()
    model = keras.Model(inputs, layer(inputs))
    angles = rng.uniform(0.3, 2.8, channels // 2)
    layer.angles.assign(angles)
    x = rng.normal(size=(7, channels)).astype("float32")
    weights = rng.normal(size=(7, channels)).astype("float32")
    _, (moved,), (got,) = backend.pullback(model)([x], weights)
    step = 1e-6
    wanted = [
        np.sum(weights * (reference(x, angles + step * e) - reference(x, angles - step * e))) / (2.0 * step)
        for e in np.eye(channels // 2)
    ]
    np.testing.assert_allclose(ops.convert_to_numpy(got), wanted, rtol=1e-3, atol=1e-3)
    # An orthogonal Jacobian keeps the norm of the cotangent, row by row.
    norms = np.linalg.norm(ops.convert_to_numpy(moved), axis=1)
    np.testing.assert_allclose(norms, np.linalg.norm(weights, axis=1), rtol=1e-5)
