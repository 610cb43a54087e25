"""What `fit` reads its batches from."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import _keras, backend

EXAMPLE = (np.zeros((9, 2), "float32"), np.zeros((9, 3, 1), "int32")), np.zeros(9, "int32"), np.zeros(9, "float32")


def batches():
    for rows in (2, 5, 3):
        x = np.full((rows, 2), rows, "float32"), np.full((rows, 3, 1), rows, "int32")
        yield x, np.arange(rows, dtype="int32"), np.ones(rows, "float32")


def test_batches_arrive_as_they_are():
    for fed, given in zip(backend.feed(batches(), EXAMPLE), batches(), strict=True):
        for a, b in zip(keras.tree.flatten(fed), keras.tree.flatten(given), strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(a), b)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a matter of tf.data")
def test_nobody_waits_for_the_end_of_the_iterator():
    """With tuning at run time, `fit` slept for up to a minute after its last epoch."""
    assert backend.feed(batches(), EXAMPLE).options().autotune.enabled is False


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a matter of tf.data")
@pytest.mark.parametrize("method", ["evaluate", "predict", "fit"])
def test_nor_for_that_of_keras_in_its_own_methods(method):
    """With tuning, `predict` of 4096 images waited for 15 seconds after 26 of computing."""
    found = []

    def tuned(*_):
        dataset = _keras.ArrayDataAdapter(np.zeros((4, 2), "float32")).get_tf_dataset()
        found.append(dataset.options().autotune.enabled)

    model = lipdp.DP_Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", lipdp.losses.MeanAbsoluteError())
    seen = keras.callbacks.LambdaCallback()
    rows = np.zeros((4, 2), "float32"), np.zeros((4, 1), "float32")
    if method == "fit":  # whose `evaluate` reads what `fit` has made of the rows
        seen.on_epoch_begin = lambda *_: (model.predict(rows[0], verbose=0), tuned())
        model.fit(*rows, batch_size=2, noise_multiplier=1.0, validation_data=rows, verbose=0, callbacks=[seen])
    else:
        seen.on_test_begin = seen.on_predict_begin = tuned
        getattr(model, method)(*rows[: 1 + (method == "evaluate")], verbose=0, callbacks=[seen])
    tuned()
    assert found == [False, None]
