"""A diffusion model is evaluated on clean examples."""

import keras
import numpy as np
import pytest

from lipdp import diffusion
from lipdp.diffusion import toy

X, LABELS = np.random.default_rng(0).normal(size=(48, 2)).astype("float32"), np.arange(48) % 3


def plain():
    model = diffusion.DiffusionModel(toy.point_network(width=8, depth=1))
    model.compile("sgd")
    return model


def labelled():
    x, c_noise, label = keras.Input((2,)), keras.Input(()), keras.Input((), dtype="int32")
    seen = keras.layers.Concatenate()([x, keras.layers.Embedding(4, 3)(label), keras.layers.Reshape((1,))(c_noise)])
    model = diffusion.DiffusionModel(keras.Model([x, c_noise, label], keras.layers.Dense(2)(seen)), num_classes=3)
    model.compile("sgd")
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("make", "data"), [(plain, (X,)), (labelled, (X, LABELS))])
def test_the_loss_is_the_same_each_time_and_the_noise_of_the_run_stays(make, data):
    """Before, Keras said that it had missed the labels."""
    model = make()
    before = model.noising.seeds.state.numpy()
    first, second = (model.evaluate(*(*data, None)[:2], 16, verbose=0) for _ in range(2))
    assert np.isfinite(first) and first == second > 0.0
    np.testing.assert_array_equal(model.noising.seeds.state.numpy(), before)
    asked = {"batch_size": 16, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0, "steps_per_epoch": 1}
    history = model.fit(*data, validation_data=data, epochs=1, **asked)
    assert np.isfinite(history.history["val_loss"][0])
    assert model.evaluate(*data, batch_size=16, verbose=0, return_dict=True)["loss"] != first


@pytest.mark.backend_free
def test_what_is_not_evaluated_is_refused():
    with pytest.raises(ValueError, match="class ids from 0 to 2"):
        labelled().evaluate(X, verbose=0)
    with pytest.raises(ValueError, match="no classes"):
        plain().evaluate(X, LABELS, verbose=0)
    with pytest.raises(ValueError, match="arrays of clean examples.*a generator.*validation_data="):
        plain().evaluate((row for row in X), verbose=0)
