"""Which process feeds which rows of a batch, and what one does without the others."""

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


@pytest.mark.parametrize("own", [False, True])
def test_a_variable_is_set_without_asking_other_processes(monkeypatch, own):
    """JAX compares what all processes put on their devices: one that had failed waited for the others for ever."""
    import jax

    made, put = [], jax.make_array_from_callback
    monkeypatch.setattr(jax, "make_array_from_callback", lambda *given: made.append(given) or put(*given))
    with keras.distribution.DataParallel().scope():
        # Keras 3.12 keeps JAX's own layout in all variables, later ones in those that were given it.
        layout = jax.sharding.NamedSharding(jax.make_mesh((1,), ("batch",)), jax.sharding.PartitionSpec())
        variable = keras.Variable(np.int32(3), dtype="int32", **({"layout": layout} if own else {}))
        assert not backend.parted(variable)
        for count in (1, 2):
            monkeypatch.setattr(jax, "process_count", lambda count=count: count)
            backend.set_here(variable, count)
            assert int(variable.value) == count and variable.value.dtype == "int32"
            assert len(made) == count - 1  # JAX asks where the value lies on no device yet
