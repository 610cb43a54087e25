"""The ledger, the noise state and the budget travel with the weights."""

import contextlib
import copy
import json
import math
import warnings

import h5py
import keras
import numpy as np
import pytest

from lipdp import strategies
from tests.helpers.models import DELTA, blobs, mlp, same, state, state_of_0_1_0, weights

FIT = {"batch_size": 40, "delta": DELTA, "verbose": 0}


def trained(epsilon=2.0, **arguments):
    model = mlp()
    model.fit(*blobs(), epochs=2, epsilon=epsilon, **FIT, **arguments)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A trained model and its file, for tests that change neither."""
    model, path = trained(seed=1), tmp_path_factory.mktemp("saved") / "m.keras"
    model.save(path)
    return model, path


@pytest.mark.slow
def test_keras_file_keeps_everything_bit_for_bit(saved):
    model, path = saved
    loaded = keras.saving.load_model(path)
    assert type(loaded) is type(model)
    assert loaded.run.ledger == model.run.ledger
    assert loaded.run.plan == model.run.plan
    assert loaded.privacy.statement() == model.privacy.statement()
    for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        assert np.array_equal(a.numpy(), b.numpy()), a.path
    names = {v.name for v in loaded.optimizer.variables}
    assert {"noise_key", "noise_std", "budget"} <= names
    x, _ = blobs()
    np.testing.assert_array_equal(model.predict(x, verbose=0), loaded.predict(x, verbose=0))
    assert model.loss.get_config() == loaded.loss.get_config()


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_state_of_a_strategy_goes_on_from_a_file(tmp_path):
    # The augmentation of the file is another object, and says the same.
    strategy = strategies.DPSGD(clip_norm=1.0, quantile=0.9, quantile_noise=30.0, augmentation=Same())
    model = trained(strategy=strategy)
    threshold = model.optimizer.strategy_state[0].numpy()
    assert threshold != 1.0
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(loaded.optimizer.strategy_state[0].numpy())
    )
    loaded.fit(*blobs(), epochs=1, epsilon=3.0, strategy=strategy, callbacks=[note], **FIT)
    assert seen == [threshold]


@keras.saving.register_keras_serializable(package="tests")
class Same:
    def __call__(self, x, key):
        return x

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls()


def test_a_loaded_model_goes_on_from_what_is_spent(saved):
    loaded = keras.saving.load_model(saved[1])
    with pytest.raises(ValueError, match="budget is spent"):
        loaded.fit(*blobs(), epochs=2, epsilon=2.0, **FIT)
    loaded.fit(*blobs(), epochs=2, epsilon=3.0, **FIT)
    assert 0.99 * 3.0 <= loaded.privacy.epsilon() <= 3.0
    assert loaded.run.ledger.updates == 40


@pytest.mark.slow
def test_a_resumed_run_repeats_an_uninterrupted_one(tmp_path):
    whole = mlp()
    whole.fit(*blobs(), epochs=4, epsilon=2.0, seed=9, **FIT)

    part = mlp()
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(part, "stop_training", epoch == 1))
    part.fit(*blobs(), epochs=4, epsilon=2.0, seed=9, callbacks=[stop], **FIT)
    part.save(tmp_path / "m.keras")
    resumed = keras.saving.load_model(tmp_path / "m.keras")
    resumed.fit(*blobs(), epochs=4, epsilon=2.0, seed=9, **FIT)
    assert resumed.run.ledger == whole.run.ledger
    for a, b in zip(weights(whole), weights(resumed), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_compiled_model_is_saved_before_its_first_fit(tmp_path):
    model = mlp()
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert all(np.array_equal(p, q) for p, q in zip(weights(model), weights(loaded), strict=True))
    for each in (model, loaded):
        each.fit(*blobs(), steps_per_epoch=2, noise_multiplier=4.0, seed=1, **FIT)
        assert each.run.ledger.updates == 2
    for p, q in zip(weights(model), weights(loaded), strict=True):
        np.testing.assert_array_equal(p, q)


def test_weight_files_carry_the_ledger(saved, tmp_path):
    model, _ = saved
    model.save_weights(tmp_path / "m.weights.h5")
    fresh = mlp()
    fresh.load_weights(tmp_path / "m.weights.h5")
    assert fresh.run.ledger == model.run.ledger


@pytest.mark.slow
def test_loading_an_earlier_checkpoint_forgets_nothing(tmp_path):
    model = trained()
    model.save_weights(tmp_path / "m.weights.h5")
    model.fit(*blobs(), epochs=1, epsilon=3.0, **FIT)
    spent = model.privacy.epsilon()
    model.load_weights(tmp_path / "m.weights.h5")
    assert model.privacy.epsilon() == spent


@pytest.mark.slow
def test_the_file_of_another_model_does_not_replace_a_ledger(saved, tmp_path):
    model, other = keras.saving.load_model(saved[1]), trained()
    other.save_weights(tmp_path / "m.weights.h5")
    before = state(model)
    with pytest.raises(ValueError, match="releases of its own"):
        model.load_weights(tmp_path / "m.weights.h5")
    assert before[1] == state(model)[1]
    assert all(np.array_equal(a, b) for a, b in zip(before[0], state(model)[0], strict=True))


@pytest.mark.parametrize("skip_mismatch", [False, True])  # with which Keras makes a warning of it
def test_weights_that_keras_takes_from_a_refused_file_bring_their_cost_along(saved, tmp_path, skip_mismatch):
    """It reads the layers inside of a model after it has told that the model itself was not loaded."""
    model, other = keras.saving.load_model(saved[1]), trained()
    spent, cost = model.privacy, other.privacy
    keras.Sequential([keras.Input((8,)), other]).save_weights(tmp_path / "m.weights.h5")
    plain = keras.Sequential([keras.Input((8,)), model])
    with contextlib.suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.load_weights(tmp_path / "m.weights.h5", skip_mismatch=skip_mismatch)
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), weights(other), strict=True))
    assert model.privacy.updates == spent.updates + cost.updates
    assert model.privacy.epsilon() > max(spent.epsilon(), cost.epsilon())
    with pytest.raises(ValueError, match="The budget is spent"):
        model.fit(*blobs(), epochs=1, epsilon=2.0, **FIT)


@pytest.mark.parametrize("why", ["a ledger that cannot be read", "a file of plain Keras"])
@pytest.mark.parametrize("skip_mismatch", [False, True])
def test_weights_that_keras_takes_from_a_file_without_its_ledger_are_not_private(why, skip_mismatch, saved, tmp_path):
    """They counted as free: Keras' own function makes a warning of the refusal, and sets the weights all the same."""
    file, donor, model = tmp_path / "m.weights.h5", keras.saving.load_model(saved[1]), mlp()
    donor.save_weights(file)
    with h5py.File(file, "r+") as opened:
        if why == "a file of plain Keras":
            del opened["vars/lipdp"]
        else:
            opened["vars/lipdp"][9] = 0
    with contextlib.suppress(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keras.saving.load_weights(model, file, skip_mismatch=skip_mismatch)
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), weights(donor), strict=True))
    assert model.privacy.epsilon() == math.inf and "a file whose ledger was not read" in model.privacy.statement()
    with pytest.raises(ValueError, match="The budget is spent: this model has released epsilon=inf"):
        model.fit(*blobs(), epochs=1, epsilon=2.0, **FIT)
    with pytest.raises(ValueError):
        model.load_weights(file)
    assert model.privacy.epsilon() == math.inf


def forks(tmp_path, releases):
    """Two copies of one file, of a model with `releases` updates."""
    model = mlp()
    if releases:
        model.fit(*blobs(), steps_per_epoch=releases, noise_multiplier=4.0, **FIT)
    model.save(tmp_path / "early.keras")
    return keras.saving.load_model(tmp_path / "early.keras"), keras.saving.load_model(tmp_path / "early.keras")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("releases", "noise", "steps"),
    # The last: the same releases, with noise of their own.
    [pytest.param(0, 0.5, 3, marks=pytest.mark.slow), (2, 0.5, 4), (2, 8.0, 3)],
)
def test_copies_that_went_on_by_themselves_do_not_replace_each_other(tmp_path, releases, noise, steps):
    """They share the beginning of their ledgers, or all of them, but not the noise."""
    a, b = forks(tmp_path, releases)
    a.fit(*blobs(), steps_per_epoch=3, noise_multiplier=8.0, **FIT)
    b.fit(*blobs(), steps_per_epoch=steps, noise_multiplier=noise, **FIT)
    for kept, other in ((a, b), (b, a)):
        other.save_weights(tmp_path / "m.weights.h5")
        before, privacy = state(kept), repr(kept.privacy)
        with pytest.raises(ValueError, match="went on by itself.*Load the file into a new model"):
            kept.load_weights(tmp_path / "m.weights.h5")
        assert same(state(kept), before) and repr(kept.privacy) == privacy


@pytest.mark.slow
@pytest.mark.parametrize("releases", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_copies_that_follow_each_other_share_their_files(tmp_path, releases):
    a, b = forks(tmp_path, releases)
    for model, other, noise in ((a, b, 4.0), (b, a, 8.0), (a, b, 8.0)):
        model.fit(*blobs(), steps_per_epoch=2, noise_multiplier=noise, **FIT)
        model.save_weights(tmp_path / "m.weights.h5")
        other.load_weights(tmp_path / "m.weights.h5")
        assert other.run.ledger == model.run.ledger
        assert all(np.array_equal(p, q) for p, q in zip(weights(model), weights(other), strict=True))
    assert a.run.ledger.updates == 6 + releases
    a.load_weights(tmp_path / "early.keras")  # an earlier file of both
    assert a.run.ledger.updates == 6 + releases


@pytest.mark.slow
def test_a_copy_in_memory_has_a_history_of_its_own(tmp_path):
    a = trained()
    b = copy.deepcopy(a)
    for model in (a, b):
        model.fit(*blobs(), steps_per_epoch=2, noise_multiplier=8.0, **FIT)
    a.save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match="went on by itself"):
        b.load_weights(tmp_path / "m.weights.h5")


@pytest.mark.slow
def test_files_of_earlier_versions_name_their_history_once():
    """Copies of such a file have one name, whatever they released: their ledgers tell them apart."""

    def older(model):
        return state_of_0_1_0(model, history="5f" * 16)

    model, other = mlp(), mlp()
    for each, noise in ((model, 4.0), (other, 8.0)):
        each.run.restore(older(mlp()))
        each.fit(*blobs(), steps_per_epoch=2, noise_multiplier=noise, **FIT)
    first = mlp()
    first.run.restore(older(model))
    ledger = first.run.ledger.to_json()
    first.run.restore(older(model))
    with pytest.raises(ValueError, match="releases of its own"):
        first.run.restore(older(other))
    assert first.run.ledger.to_json() == ledger


@pytest.mark.parametrize("field", ["noise_std", "logged", "history", "plan_start", "pass_key", "plan"])
def test_a_state_with_one_corrupt_field_changes_nothing(saved, field):
    model, _ = saved
    content = json.loads(model.run.to_array().tobytes()) | {field: 7.5}
    del content["sha256"]  # as in files of version 0.1.0
    fresh = mlp()
    before = fresh.run.to_array()
    if field == "plan_start":
        content[field] = None
    with pytest.raises(ValueError, match="corrupt|not a plan"):
        fresh.run.restore(np.frombuffer(json.dumps(content).encode(), np.uint8))
    assert np.array_equal(fresh.run.to_array(), before)


def test_a_foreign_weight_file_is_refused(tmp_path):
    plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    plain.save_weights(tmp_path / "m.weights.h5")
    model = mlp()
    before = weights(model)
    for options in ({}, {"skip_mismatch": True}):  # with which Keras makes warnings of errors
        with (
            pytest.raises(ValueError, match="no privacy ledger.*`from_keras` of that trains public weights on"),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            model.load_weights(tmp_path / "m.weights.h5", **options)
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(model), strict=True))


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["m.h5", *(pytest.param(n, marks=pytest.mark.slow) for n in ("m.hdf5", "checkpoint"))])
def test_a_format_without_a_ledger_is_refused(name, tmp_path):
    """Keras reads its old files past `load_own_variables`, and folders of Orbax too."""
    model = trained(strategy="dpsgd")
    if name == "checkpoint":
        (tmp_path / name).mkdir()
    else:
        plain = keras.models.clone_model(keras.Sequential([keras.Input((8,)), *model.layers[1:]]))
        plain.set_weights(model.get_weights())
        plain.save(tmp_path / name)
    fresh = mlp()
    before = weights(fresh)
    for options in ({}, {"skip_mismatch": True}, {"by_name": True}):
        with pytest.raises(ValueError, match="must come from a file with the privacy ledger.*Save the model that made"):
            fresh.load_weights(tmp_path / name, **options)
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(fresh), strict=True))
    assert fresh.run.ledger.releases == 0


@pytest.mark.backend_free
def test_a_path_that_begins_with_a_tilde_is_refused_with_what_to_call():
    for name, call in (("There is no such file", mlp().load_weights), ("no such folder", mlp().save_weights)):
        with pytest.raises(FileNotFoundError, match=rf"{name}.*os\.path\.expanduser"):
            call("~/no-such-folder/m.weights.h5")


def test_a_file_whose_ledger_was_not_read_is_refused(saved, tmp_path):
    saved[0].save_weights(tmp_path / "m.weights.h5")
    fresh = mlp()
    before = weights(fresh)
    with pytest.raises(ValueError, match="no privacy ledger.*did not load the model itself"):
        fresh.load_weights(tmp_path / "m.weights.h5", objects_to_skip=[fresh])
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(fresh), strict=True))


def test_a_corrupt_file_is_refused(saved, tmp_path):
    content = saved[1].read_bytes()
    (tmp_path / "cut.keras").write_bytes(content[: len(content) // 2])
    with pytest.raises(Exception, match=".+"):
        keras.saving.load_model(tmp_path / "cut.keras")


def test_a_corrupt_ledger_is_refused():
    model = mlp()
    for array in (np.zeros(4, np.uint8), np.frombuffer(b'{"ledger": 1}', np.uint8), np.zeros(0, np.uint8)):
        with pytest.raises(ValueError, match="corrupt|not a ledger"):
            model.run.restore(array)
    assert model.run.ledger.updates == 0


@pytest.mark.slow
def test_a_file_gives_no_key_of_later_noise(tmp_path):
    """A checkpoint that is published while training goes on: with the key one could take the noise off."""
    keys = []

    class Checkpoint(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save(tmp_path / f"{epoch}.keras")
            keys.append(keras.saving.load_model(tmp_path / f"{epoch}.keras").optimizer.noise_key.numpy())

    model = trained(callbacks=[Checkpoint()])
    assert not np.any(keys)
    assert model.optimizer.noise_key.numpy().any()


@pytest.mark.slow
def test_a_fit_with_a_seed_does_not_go_on_from_a_key_that_is_not_there(tmp_path):
    model = mlp()
    model.fit(*blobs(), epochs=1, noise_multiplier=1.0, **FIT)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert not loaded.optimizer.noise_key.numpy().any()
    before = weights(loaded)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append(self.model.optimizer.noise_key.numpy())

    loaded.fit(*blobs(), epochs=1, noise_multiplier=1.0, seed=3, callbacks=[Look()], **FIT)
    assert seen[0].any() and not np.array_equal(before, weights(loaded))


@pytest.mark.slow
def test_no_file_is_loaded_while_fit_runs(tmp_path):
    model = mlp()
    x, y = blobs()
    model.fit(x, y, steps_per_epoch=1, noise_multiplier=0.5, **FIT)
    model.save_weights(tmp_path / "a.weights.h5")
    for name in ("a", "none"):  # refused before anything is read
        path = tmp_path / f"{name}.weights.h5"
        load = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_, path=path: model.load_weights(path))
        with pytest.raises(ValueError, match="while `fit` runs"):
            model.fit(x, y, steps_per_epoch=1, noise_multiplier=4.0, **FIT, callbacks=[load])
    model.load_weights(tmp_path / "a.weights.h5")
    assert model.run.ledger.updates == 1


def test_weights_that_keras_takes_from_a_file_while_fit_runs_bring_their_cost_along(saved, tmp_path):
    """A function of Keras is refused as `load_weights` is, but has set the weights of layers by then."""
    saved[0].save_weights(tmp_path / "m.weights.h5")
    model = mlp()
    load = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda *_: keras.saving.load_weights(model, tmp_path / "m.weights.h5")
    )
    with pytest.raises(ValueError, match="could not be loaded"):
        model.fit(*blobs(), epochs=1, epsilon=8.0, **FIT, callbacks=[load])
    assert np.array_equal(weights(model)[0], weights(saved[0])[0])
    assert model.privacy.updates == saved[0].privacy.updates
    assert model.privacy.epsilon() >= saved[0].privacy.epsilon()
