"""Memory of large arrays is kept while `fit` runs, and given back in the end."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp.training import memory

LARGE = 1 << 28
pytestmark = pytest.mark.skipif(memory._glibc() is None, reason="Another allocator, or one that the user has set.")


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def use_and_free():
    array = np.ones(LARGE, "uint8")
    del array


@pytest.mark.backend_free
def test_freed_memory_is_kept_and_given_back_at_the_end():
    before = resident()
    use_and_free()
    assert resident() - before < LARGE / 4  # what this test is about
    with memory.kept():
        with memory.kept():  # of another model
            use_and_free()
        use_and_free()
        assert resident() - before > LARGE / 2
    assert resident() - before < LARGE / 4
    use_and_free()
    assert resident() - before < LARGE / 4


@pytest.mark.backend_free
def test_an_error_gives_it_back_as_well():
    before = resident()
    with pytest.raises(KeyError), memory.kept():
        use_and_free()
        raise KeyError
    assert resident() - before < LARGE / 4


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "setting", [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072")]
)
def test_settings_of_the_user_stay(monkeypatch, setting):
    monkeypatch.setenv(*setting)
    before = resident()
    with memory.kept():
        use_and_free()
        assert resident() - before < LARGE / 4


def test_fit_keeps_it_from_one_update_to_the_next():
    found = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            before = resident()
            use_and_free()
            found.append((before, resident()))

    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", loss="mse")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")
    model.fit(
        x, y, batch_size=8, strategy="dpsgd", noise_multiplier=1.0, delta=0.1, callbacks=[Look()], epochs=2, verbose=0
    )
    (first, kept), (again, end) = found[0], found[-1]
    assert kept - first > LARGE / 2  # taken, and kept
    assert end - again < LARGE / 4  # taken from there
    assert end - resident() > LARGE / 2  # given back
