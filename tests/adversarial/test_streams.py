"""Noise that goes on after a file, in several updates at once; passes in which each row has one turn."""

from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import strategies
from lipdp.sampling import randomness
from tests.adversarial.attack import watched

SIZE = 3000
FIT = {"batch_size": 20, "noise_multiplier": 1.5, "delta": 1e-3, "accountant": "rdp", "verbose": 0}


def _silent(steps=1, momentum=0.0):
    """A model whose gradients are zero: an update is nothing but noise."""
    inputs = keras.Input((4,))
    model = lipdp.DP_Model.from_keras(keras.Model(inputs, keras.layers.Dense(SIZE, use_bias=False)(inputs)))
    optimizer = watched(keras.optimizers.SGD)(1.0, momentum=momentum)
    model.compile(optimizer, loss=keras.losses.MeanSquaredError(), steps_per_execution=steps)
    return model, np.zeros((100, 4), "float32"), np.zeros((100, SIZE), "float32")


def _kernel(model):
    getattr(model, "jax_state_sync", lambda: None)()
    return np.array(ops.convert_to_numpy(model.trainable_variables[0]), "float64").ravel()


class _Steps(keras.callbacks.Callback):
    """Keeps the weights after each execution; stops after some."""

    def __init__(self, model, stop=None):
        super().__init__()
        self.kept, self.found, self.stop = model, [_kernel(model)], stop

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(_kernel(self.kept))
        self.kept.stop_training = self.stop is not None and self.kept.run.ledger.updates >= self.stop

    def noise(self):
        return np.diff(self.found, axis=0)


def _independent(noise, stddev):
    """All updates have noise of this standard deviation, and no two of them have it in common."""
    noise = np.asarray(noise)
    np.testing.assert_allclose(noise.std(axis=1), stddev, rtol=0.05)
    correlation = np.corrcoef(noise)
    assert np.abs(correlation - np.eye(len(noise))).max() < 5.0 / np.sqrt(noise.shape[1])


@pytest.mark.parametrize("kind", ["m.keras", pytest.param("m.weights.h5", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [None, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", ["dpsgd", strategies.DPSGD(quantile=0.5, quantile_rate=1e-9)])
def test_noise_after_a_file_is_whole_and_new(tmp_path, kind, seed, strategy):
    model, x, y = _silent()
    first = _Steps(model, stop=3)
    arguments = {**FIT, "seed": seed, "strategy": strategy, "steps_per_epoch": 6}
    model.fit(x, y, callbacks=[first], **arguments)
    model.run.driver = None
    if kind.endswith("h5"):
        model.save_weights(tmp_path / kind)
        loaded, _, _ = _silent()
        loaded.load_weights(tmp_path / kind)
    else:
        model.save(tmp_path / kind)
        optimizer = type(model.optimizer)
        loaded = keras.saving.load_model(tmp_path / kind, custom_objects={optimizer.__name__: optimizer})
    second = _Steps(loaded)
    loaded.fit(x, y, **arguments | {"steps_per_epoch": 3}, callbacks=[second])
    assert loaded.run.ledger.updates == 6 and int(loaded.optimizer.iterations.numpy()) == 6
    _independent([*first.noise(), *second.noise()], loaded.run.noise_std[0])


@pytest.mark.parametrize("steps", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_each_update_of_an_execution_has_noise_of_its_own(steps):
    model, x, y = _silent(steps)
    seen = _Steps(model)
    model.fit(x, y, epochs=2, steps_per_epoch=2 * steps, strategy="dpsgd", callbacks=[seen], **FIT)
    assert model.run.ledger.updates == 4 * steps
    # The sum of so many draws.
    _independent(seen.noise(), model.run.noise_std[0] * np.sqrt(steps))


@pytest.mark.parametrize("sampling", ["shuffle", "fixed_order"])
def test_a_row_has_one_turn_in_each_pass(sampling):
    """Of two data sets that differ in one row, one update of each pass differs, by what is charged at most."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 6)).astype("float32"), rng.integers(0, 3, 50)
    hostile = x.copy()
    hostile[17] = 1e6
    found = []
    for data in (x, hostile):
        keras.utils.set_random_seed(0)
        model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Weights that stay: only the batches differ from update to update.
        model.compile(watched(keras.optimizers.SGD)(0.0), loss=loss)
        released = []

        class Keep(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None, model=model, released=released):
                getattr(model, "jax_state_sync", lambda: None)()
                seen = [ops.convert_to_numpy(v.value).astype("float64").ravel() for v in model.optimizer.seen]
                released.append(np.concatenate(seen))

        with mock.patch.object(randomness, "fresh", lambda: b"1" * 32):
            model.fit(data, y, epochs=3, sampling=sampling, strategy="dpsgd", callbacks=[Keep()], **FIT)
        found.append(np.array(released))
    release = model.run.ledger.entries[-1]
    moved = np.linalg.norm(found[0] - found[1], axis=1) / release.sensitivity
    assert moved.shape == (9,)
    turns = (moved > 1e-3).reshape(3, 3)
    assert (turns.sum(axis=1) == 1).all()
    # One row leaves and another comes: twice what either may add.
    assert 0.5 < moved.max() <= 2.0 + 1e-3
