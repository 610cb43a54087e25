"""Which process feeds which rows of a batch."""

import types

import keras
import numpy as np
import pytest

from lipdp import backend

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow trains on one device")


@pytest.mark.parametrize(
    ("mesh", "uneven"),
    [
        ([0, 0, 1, 1], False),
        ([0, 1, 0, 1], False),
        ([0, 0, 1], True),
        ([0, 1, 1], True),
        ([[0, 0], [1, 1]], False),
        ([[0, 1], [0, 1]], False),  # both feed all rows
        ([[0, 0], [0, 1]], True),
        ([[0, 1], [1, 2], [2, 0]], True),  # two groups each, and none the same
        ([[0, 1], [0, 1], [2, 3], [2, 3]], False),
    ],
)
def test_processes_that_do_not_feed_as_many_rows_are_found(monkeypatch, mesh, uneven):
    devices = np.vectorize(lambda index: types.SimpleNamespace(process_index=index))(np.array(mesh))
    names = ("batch", "model")[: devices.ndim]
    known = types.SimpleNamespace(backend_mesh=types.SimpleNamespace(devices=devices, axis_names=names))
    one = types.SimpleNamespace(batch_dim_name="batch", device_mesh=known)
    monkeypatch.setattr(keras.distribution, "distribution", lambda: one)
    assert backend.uneven() is uneven
    monkeypatch.setattr(keras.distribution, "distribution", lambda: None)
    assert not backend.uneven()
