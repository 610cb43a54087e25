"""`fit` on data that are read row by row, when rows are drawn."""

import threading

import keras
import numpy as np
import pytest

import lipdp
from lipdp import layers, losses
from lipdp.callbacks import Checkpoint
from lipdp.sampling import PoissonSampler, Source
from lipdp.sampling.arrays import SMALL
from lipdp.training import importance
from tests.helpers.models import blobs, mlp, same, state, weights
from tests.helpers.streams import of_the_seed_alone
from tests.sampling.test_reading import Failing, readers
from tests.sampling.test_source import Named, Rows, mapped

WAYS = {
    "clipless": {},
    "clipless in microbatches": {"microbatch_size": 16},
    "dpsgd": {"strategy": "dpsgd"},
    "dpsgd in microbatches": {"strategy": "dpsgd", "microbatch_size": 16},
    "adaclip": {"strategy": "adaclip"},
    "dpis": {"strategy": "dpis", "noise_multiplier": None, "epsilon": 4.0},
    "shuffle": {"sampling": "shuffle"},
    "fixed size": {"sampling": "fixed_size"},
}


# Of each kind one in the default suite.
SOME = [way if way == "dpsgd in microbatches" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]


def trained(x, y=None, model=None, **arguments):
    model = model or mlp()
    with of_the_seed_alone():
        model.fit(x, y, **{"batch_size": 40, "noise_multiplier": 1.0, "seed": 3, "verbose": 0} | arguments)
    return model


def small(kind):
    x, y = blobs()
    return (np.clip(40.0 * x + 128.0, 0.0, 255.0) if kind == "uint8" else x).astype(kind), y


@pytest.mark.slow
@pytest.mark.parametrize("way", SOME)
def test_weights_are_those_of_arrays_bit_by_bit(way, tmp_path):
    x, y = blobs()
    expected = weights(trained(x, y, **WAYS[way]))
    for data in ((mapped(tmp_path, x), y), (Rows(x.astype("float64"), y),)):
        for one, other in zip(weights(trained(*data, **WAYS[way])), expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("way", [way if way == "dpis" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_small_numbers_train_as_those_of_float32(way, kind, tmp_path):
    x, y = small(kind)
    expected = weights(trained(x.astype("float32"), y, **WAYS[way]))
    for data in (x, mapped(tmp_path, x)):
        for one, other in zip(weights(trained(data, y, **WAYS[way])), expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
def test_a_seed_repeats_what_it_gave_for_the_same_numbers_in_float32(kind):
    x, y = small(kind)
    models = []
    for data in (x, x.astype("float32")):
        models.append(mlp())
        models[-1].fit(data, y, batch_size=40, noise_multiplier=1.0, seed=3, verbose=0, validation_split=0.2)
    assert same((weights(models[0]), ""), (weights(models[1]), ""))
    assert models[0].history.history["val_loss"] == models[1].history.history["val_loss"]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("kind", SMALL)
def test_one_model_trains_on_small_numbers_and_then_on_float32(kind):
    x, y = small(kind)
    one, other = mlp(), mlp()
    for data in (x, x.astype("float32")):
        trained(data, y, one)
        trained(x.astype("float32"), y, other)
    assert same((weights(one), ""), (weights(other), ""))


@pytest.mark.slow
def test_only_the_sample_and_drawn_rows_are_read():
    x, y = blobs(2000)
    rows = Rows(x, y)
    sample = Rows(x, y)
    lipdp.sampling.as_rows(sample, None, 2)
    drawn, draw = [], PoissonSampler.draw

    def noted(self, update):
        drawn.append(draw(self, update).tolist())
        return np.array(drawn[-1], "int64")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PoissonSampler, "draw", noted)
        trained(rows, batch_size=20, steps_per_epoch=5, epochs=2)
    assert len(set(rows.seen)) < 700
    assert set(rows.seen) <= set(sample.seen) | {i for each in drawn for i in each}


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("clipless", marks=pytest.mark.slow), "dpsgd in microbatches", "dpis"])
def test_a_row_that_is_not_finite_counts_as_one_that_is_not_allowed_and_changes_no_other(way):
    """With microbatches a count of the rows that count would leave out the last ones that were drawn."""
    x, y = blobs()
    looked_at = Rows(x, y)
    lipdp.sampling.as_rows(looked_at, None, 2)
    bad = [i for i in range(400) if i not in looked_at.seen][::5]
    broken, labels = x.copy(), y.copy()
    broken[bad, 3], labels[bad] = np.nan, 7
    models = [trained(Rows(broken, y), **WAYS[way]), trained(Rows(x, labels), **WAYS[way])]
    assert same(*((weights(model), "") for model in models))
    assert np.isfinite(np.concatenate([w.ravel() for w in weights(models[0])])).all()
    if way != "clipless in microbatches":
        return
    whole = weights(trained(Rows(broken, y), **WAYS["clipless"]))
    for one, other in zip(weights(models[0]), whole, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
@pytest.mark.backend_free
def test_labels_for_which_the_bound_of_the_loss_does_not_hold_count_as_zero():
    x, ids = blobs()
    y = np.eye(3, dtype="float32")[ids]
    looked_at = Rows(x, y)
    lipdp.sampling.as_rows(looked_at, None, 2)
    bad = [i for i in range(400) if i not in looked_at.seen][::5]
    broken, labels = x.copy(), y.copy()
    broken[bad, 3], labels[bad] = np.nan, 50.0
    found = []
    for data in ((broken, y), (x, labels)):
        model = mlp()
        model.compile("sgd", loss=losses.CategoricalCrossentropy(temperature=4.0))
        found.append(weights(trained(Rows(*data), None, model)))
    assert same((found[0], ""), (found[1], ""))


@pytest.mark.slow
def test_several_inputs_by_name_and_a_column_of_labels():
    x, y = blobs()
    inputs = {name: keras.Input((4,), name=name) for name in ("left", "right")}
    joined = layers.BoundedInput(norm=3.0)(keras.layers.Concatenate()(list(inputs.values())))
    model = lipdp.DP_Model(inputs, layers.SpectralDense(3)(joined))
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    rows = Named(label=y, left=x[:, :4], more=x, right=x[:, 4:])
    trained(rows, "label", model, strategy="dpsgd")
    assert model.privacy.updates == 10


@pytest.mark.slow
@pytest.mark.backend_free
def test_validation_data_may_be_a_source():
    x, y = blobs()
    expected = trained(x, y, validation_data=(x[:90], y[:90])).history.history
    for held in ((Rows(x[:90]), y[:90]), Rows(x[:90], y[:90])):
        found = trained(x, y, validation_data=held, validation_batch_size=32).history.history
        np.testing.assert_allclose(found["val_loss"], expected["val_loss"], rtol=1e-5)
        np.testing.assert_allclose(found["val_accuracy"], expected["val_accuracy"], rtol=1e-5)
    with pytest.raises(ValueError, match="`validation_data` does not fit.*class ids must lie in"):
        trained(x, y, validation_data=Rows(x, y + 5))


class Shrinking(Rows):
    def __len__(self):
        self.shrunk = getattr(self, "shrunk", 401) - 1
        return self.shrunk


class Short(Rows):
    """Rows of which `len` counts more than there are."""

    def __getitem__(self, index):
        if index >= 300:
            raise IndexError(f"index {index} is out of bounds")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("x", "y", "more", "message"),
    [
        (Short(*blobs()), None, {}, "cannot be read. Received: IndexError: index 30. is out of bounds from a Short of"),
        (Rows(blobs()[0]), None, {}, "needs labels"),
        (Rows(blobs()[0][:, :5]), blobs()[1], {}, "do not fit the model's inputs"),
        (Rows(*blobs()), None, {"validation_split": 0.2}, "validation_split.*all of a source"),
        (Rows(blobs()[0], blobs()[1] + 3), None, {}, "class ids must lie in"),
        (Shrinking(*blobs()), None, {}, "length of a source must not change"),
        (Rows(blobs()[0].astype(str), blobs()[1]), None, {}, "must hold numbers"),
    ],
)
def test_bad_sources_are_refused_before_anything_is_charged(x, y, more, message):
    model = mlp()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        model.fit(x, y, batch_size=40, noise_multiplier=1.0, verbose=0, **more)
    assert same(before, state(model)) and not readers()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["clipless", pytest.param("dpsgd", marks=pytest.mark.slow), "dpis"])
def test_a_source_that_fails_ends_training_in_order(way):
    x, y = blobs()
    rows, model = Failing(x, y), mlp()
    lipdp.sampling.as_rows(rows, None, 2)
    # DPIS reads all rows for their norms before it reads drawn ones.
    rows.after = 2 * len(rows.seen) + 200 + (400 if way == "dpis" else 0)
    with pytest.raises(RuntimeError, match="source of the training data has failed.*the disk is gone") as error:
        trained(rows, None, model, epochs=3, **WAYS[way])
    assert isinstance(error.value.__cause__, OSError)
    made, charged = int(model.optimizer.iterations.numpy()), model.privacy.updates
    # The update whose rows did not come may have been charged.
    assert 0 < made <= charged <= made + 1
    assert not readers() and not model.run.armed
    rows.after = None
    trained(rows, None, model, epochs=3, **WAYS[way])
    assert model.privacy.updates > charged and not readers()


def test_a_source_that_fails_at_once_costs_one_update_at_most():
    """TensorFlow may have drawn noise while it waited for rows: then that update stays charged."""
    x, y = blobs()
    rows, model = Failing(x, y), mlp()
    lipdp.sampling.as_rows(rows, None, 2)
    rows.after = 2 * len(rows.seen)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        trained(rows, None, model)
    assert model.privacy.updates == int(model.optimizer.iterations.numpy()) <= 1 and not readers()
    if keras.backend.backend() == "jax":
        assert model.privacy.updates == 0


@pytest.mark.parametrize("way", ["clipless", pytest.param("dpis", marks=pytest.mark.slow)])
def test_an_interruption_leaves_no_thread_and_what_was_charged(way):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                raise KeyboardInterrupt

    before = set(threading.enumerate())
    model = mlp()
    with pytest.raises(KeyboardInterrupt):
        trained(Rows(*blobs()), None, model, callbacks=[Stop()], **WAYS[way])
    assert model.privacy.updates == 4 and not readers()
    assert not [thread for thread in set(threading.enumerate()) - before if not thread.daemon]


@pytest.mark.slow
def test_the_statement_says_that_a_key_came_from_a_sample_and_files_keep_it(tmp_path):
    x, y = blobs()
    sentence = "rows, evenly spread from the first to the last, not from all rows"

    def says(model):
        facts = model.privacy.to_dict()
        found = sentence in " ".join(model.privacy.statement().split())
        assert facts.get("key_from_a_sample_of_rows", False) is found
        return found

    model = mlp()
    model.fit(x, y, batch_size=40, noise_multiplier=1.0, seed=1, verbose=0)
    model.fit(Rows(x, y), batch_size=40, noise_multiplier=1.0, verbose=0)
    assert not says(model)
    model.fit(Rows(x, y), batch_size=40, noise_multiplier=1.0, seed=1, verbose=0)
    assert says(model)
    model.save(tmp_path / "model.keras")
    assert says(keras.saving.load_model(tmp_path / "model.keras"))


@pytest.mark.slow
def test_a_seed_gives_other_noise_for_another_sample_length_or_type():
    x, y = blobs()
    other = x.copy()
    other[0] += 1.0
    found = []
    for data in ((x, y), (other, y), (x[:-1], y[:-1]), (x.astype("uint8"), y)):
        model = mlp()
        model.fit(Rows(*data), batch_size=40, noise_multiplier=1.0, seed=1, verbose=0, steps_per_epoch=1)
        found.append(model.optimizer.noise_key.numpy().tobytes())
    assert len(set(found)) == len(found)


@pytest.mark.slow
def test_a_seed_gives_other_noise_where_a_source_that_is_kept_has_other_rows():
    """The key came from the rows that the source had when it was made."""
    x, y = blobs()
    rows = Rows(x, y)
    kept, keys = Source(rows), []
    for numbers in (x, -x, x):
        rows.arrays, model = (numbers, y), mlp()
        model.fit(kept, batch_size=40, steps_per_epoch=1, noise_multiplier=1.0, delta=1e-3, seed=1, verbose=0)
        keys.append(model.optimizer.noise_key.numpy())
    assert np.array_equal(keys[0], keys[2]) and not np.array_equal(keys[0], keys[1])


@pytest.mark.backend_free
def test_updates_lost_after_a_crash_are_charged_again_as_the_source_may_have_changed(tmp_path, monkeypatch):
    """Other rows under the same noise would cost more than the updates that were lost."""
    settled = []
    settle = Checkpoint.settle

    def noted(self, model, replay, **more):
        settled.append(replay)
        return settle(self, model, replay, **more)

    monkeypatch.setattr(Checkpoint, "settle", noted)
    x, y = blobs()
    for data in ((x, y), (Rows(x, y),)):
        model = mlp()
        path = tmp_path / f"{len(settled)}.weights.h5"
        model.fit(*data, batch_size=40, noise_multiplier=1.0, seed=1, verbose=0, callbacks=[Checkpoint(path)])
    assert settled[0] is not None and settled[1] is None


def test_importance_sampling_says_up_to_how_many_examples_it_is_meant(monkeypatch):
    monkeypatch.setattr(importance, "_MOST_EXAMPLES", 399)
    model = mlp()
    with pytest.raises(ValueError, match="up to 1e8 examples.*strategy='dpsgd'"):
        trained(Rows(*blobs()), None, model, **WAYS["dpis"])
    assert model.privacy.updates == 0


@pytest.mark.slow
def test_a_diffusion_model_trains_on_a_source():
    from lipdp import diffusion

    x = np.random.default_rng(0).normal(size=(120, 8, 8, 1)).astype("float32")
    y = np.arange(120) % 2
    network = diffusion.unet((8, 8, 1), num_classes=2, channels=8, multipliers=(1,), blocks=1, slim=True)
    model = diffusion.DiffusionModel(network, num_classes=2)
    model.compile("adam")
    model.fit(Rows(x), y, batch_size=20, noise_multiplier=1.0, verbose=0, steps_per_epoch=2)
    assert model.privacy.updates == 2


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("way", ["clipless", pytest.param("dpsgd in microbatches", marks=pytest.mark.slow)])
def test_updates_that_draw_no_row(way):
    """With two rows expected one update in seven draws none."""
    x, y = blobs()
    expected = weights(trained(x, y, **WAYS[way] | {"batch_size": 2, "microbatch_size": None, "steps_per_epoch": 30}))
    found = weights(
        trained(Rows(x, y), **WAYS[way] | {"batch_size": 2, "microbatch_size": None, "steps_per_epoch": 30})
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
