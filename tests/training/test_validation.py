"""What would fail when the first epoch ends is refused before anything is charged."""

import types

import keras
import numpy as np
import pytest

import lipdp
from lipdp import layers, sampling, strategies
from lipdp.training import validation
from tests.helpers.models import DELTA, blobs, mlp, same, state
from tests.sampling.test_source import Named, Rows

X, Y = blobs()
FIT = {"batch_size": 40, "noise_multiplier": 4.0, "delta": DELTA, "verbose": 0}


class Batches(keras.utils.PyDataset):
    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return 1

    def __getitem__(self, i):
        return self.arrays


NAN = X.copy()
NAN[3, 2] = np.nan
DATA = {
    "shape": ((X[:, :-1], Y), "do not fit the model's inputs"),
    "labels above": ((X, Y + 1), "(?i)class"),
    "labels of another shape": ((X, np.eye(3, dtype="float32")[Y]), "."),
    "lengths": ((X, Y[:-1]), "same length"),
    "NaN": ((X, Y + np.nan), "NaN"),
    "NaN in x": ((NAN, Y), "NaN"),
    "empty": ((X[:0], Y[:0]), "no example"),
    "no labels": ((X,), "inputs, labels"),
    "labels None": ((X, None), "labels"),
    "weights": ((X, Y, np.ones(3)), "one weight per example"),
    "weights in columns": ((X, Y, np.ones((len(Y), 2))), r"one weight per example. Received: \(\d+, 2\)"),
    "weights as text": ((X, Y, ["a"] * len(Y)), "must be numbers"),
    "list": ([X[:, :-1], Y], "do not fit"),
    "dataset": (Batches(X[:, :-1], Y), "do not fit"),
    "file": (types.MappingProxyType({"image": X, "label": Y}), r"validation_data=\(data, 'label'\)"),
    "rows by name": (Named(image=X, label=Y), r"image, label.*validation_data=\(data, 'label'\)"),
}


@pytest.fixture(scope="module")
def model():
    return mlp()


@pytest.mark.parametrize("name", DATA)
def test_validation_data_that_do_not_fit_cost_nothing(model, name):
    """They burned the budget of an epoch."""
    data, message = DATA[name]
    before = state(model)
    with pytest.raises(ValueError, match="`validation_data` does not fit") as error:
        model.fit(X, Y, validation_data=data, **FIT)
    assert error.match(message) and same(before, state(model))


@pytest.mark.backend_free
def test_a_loss_that_mixes_rows_is_not_laid_to_validation_data():
    model = lipdp.DP_Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", loss=lambda truth, output: keras.ops.mean(output))
    with pytest.raises(ValueError, match="^A loss that mixes examples"):
        model.fit(X, Y, validation_data=(X.copy(), Y), strategy="dpsgd", **FIT)


@pytest.mark.backend_free
def test_what_to_do_with_a_dataset_without_batches(model):
    """`fit` takes single rows for training; Keras' validation does not."""
    tf = pytest.importorskip("tensorflow")
    held_out = tf.data.Dataset.from_tensor_slices((X.copy(), Y))
    with pytest.raises(ValueError, match=r"does not fit.*without batches.*validation_data=dataset\.batch\(256\)"):
        model.fit(X, Y, validation_data=held_out, **FIT)
    model.fit(X, Y, validation_data=held_out.batch(50), **FIT)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
@pytest.mark.parametrize("rows", [Rows(X, Y), Named(image=X), types.MappingProxyType({"image": X})])
def test_what_keras_cannot_read_is_said_in_other_words(model, method, rows):
    """Only `fit` reads sources; Keras says no more than "Unrecognized data type"."""
    with pytest.raises(ValueError, match=f"`{method}` takes arrays.*Received: a {type(rows).__name__}.*PyDataset"):
        getattr(model, method)(rows, verbose=0)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
@pytest.mark.parametrize("texts", [["a b", "c"], np.array([["a"] * 4]), np.array([["a"] * 4], object)])
def test_texts_are_sent_to_a_tokenizer(model, method, texts):
    with pytest.raises(
        ValueError, match=f"`{method}` takes numbers. Received: (texts|dtype object). .* tokenizer.*no inputs"
    ):
        getattr(model, method)(texts, verbose=0)


OPTIONS = {
    "callback class": ({"callbacks": [keras.callbacks.History]}, "followed by"),
    "callback function": ({"callbacks": lambda epoch, logs: None}, "keras.callbacks.Callback objects"),
    "callback None": ({"callbacks": [None]}, "keras.callbacks.Callback objects"),
    "backup": ({"callbacks": [keras.callbacks.BackupAndRestore("never")]}, "BackupAndRestore.*callbacks.Checkpoint"),
    "steps": ({"validation_steps": 0}, "validation_steps"),
    "batch": ({"validation_batch_size": -1}, "validation_batch_size"),
    "frequency": ({"validation_freq": 0}, "validation_freq"),
    "frequency as text": ({"validation_freq": "1"}, "validation_freq"),
    "frequency as dict": ({"validation_freq": {1: 2}}, "validation_freq.*list of the epochs"),
    "frequencies as text": ({"validation_freq": ["1"]}, "validation_freq"),
    "frequency from 0": ({"validation_freq": [0, 1]}, "validation_freq"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_fail_after_an_epoch_cost_nothing(model, name):
    options, message = OPTIONS[name]
    before = state(model)
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y, validation_data=(X, Y), **options, **FIT)
    assert same(before, state(model))


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "frequency", [np.int64(2), (2,), [2], {2}, range(2, 3), np.array([2])], ids=lambda given: type(given).__name__
)
def test_frequencies_of_any_kind_are_those_of_keras(frequency):
    """Other numbers than int, and others than a list of them, failed after an epoch that was charged."""
    found = validation.check_options(np.int64(1), np.int32(5), frequency)
    expected = 2 if isinstance(frequency, np.int64) else [2]
    assert found == {"validation_steps": 1, "validation_batch_size": 5, "validation_freq": expected}
    assert type(found["validation_freq"]) in (int, list) and type(found["validation_batch_size"]) is int


@pytest.mark.slow
def test_a_frequency_is_heard(model):
    history = model.fit(X, Y, validation_data=(X, Y), epochs=2, validation_freq=(2,), **FIT)
    assert len(history.history["val_loss"]) == 1


WEIGHTS = {
    "list": (np.arange(len(Y)) % 3).tolist(),
    "none": None,
    "negative": 1.0 - np.arange(len(Y)) % 3,
    "minus zero": -0.0 * np.ones(len(Y)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_validation_data_are_those_of_keras(model, name):
    """A list of them failed after an epoch that was charged, and None was refused."""
    weights = WEIGHTS[name]
    found = validation.check_data(model, (X, Y, weights))
    assert len(found) == (2 if weights is None else 3)
    if weights is None:
        return
    expected = model.evaluate(X, Y, verbose=0, sample_weight=np.asarray(weights, "float32") + np.float32(0.0))
    assert not np.signbit(found[2][np.asarray(weights) == 0]).any()
    np.testing.assert_allclose(model.evaluate(*found[:2], verbose=0, sample_weight=found[2]), expected, rtol=1e-6)


def test_batches_of_validation_data_may_have_no_weights(model):
    before = Batches(X, Y, None)
    assert validation.check_data(model, before) is before


class Failing(keras.metrics.SparseCategoricalAccuracy):
    """Raises where it is told to."""

    where = "update_state"

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.where == "update_state":
            raise RuntimeError("not today")
        if self.where == "validation" and len(y_true.shape) > 1:
            raise RuntimeError("not today")
        return super().update_state(y_true, y_pred, sample_weight)

    def result(self):
        if self.where == "result":
            raise RuntimeError("not today")
        return super().result()


@pytest.mark.parametrize("training_metrics", [True, False])
@pytest.mark.parametrize("where", ["update_state", "result"])
def test_a_metric_that_raises_costs_nothing(where, training_metrics):
    metric = Failing()
    metric.where = where
    model = mlp(metrics=[metric])
    with pytest.raises(Exception, match="not today"):
        model.fit(X, Y, validation_data=(X, Y), training_metrics=training_metrics, **FIT)
    assert model.run.ledger.releases == 0


def test_a_metric_that_raises_for_validation_data_only_costs_nothing():
    metric = Failing()
    metric.where = "validation"
    model = mlp(metrics=[metric])
    with pytest.raises(ValueError, match="fail on `validation_data`.*not today"):
        model.fit(X, Y, validation_data=(X, Y[:, None]), **FIT)
    assert model.run.ledger.releases == 0


def mean_accuracy(y, y_pred):
    return keras.ops.mean(keras.metrics.sparse_categorical_accuracy(y, y_pred))


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"validation_data": (X, Y)}, {}])
def test_a_metric_function_that_averages_rows_is_told_not_to(more):
    """Keras takes it where rows have no weights; what it said of them named no way out, and JAX kept the weights."""
    model = mlp(metrics=[mean_accuracy])
    with pytest.raises(ValueError, match="of `compile` fail on .*one value for each row: leave out the mean"):
        model.fit(X, Y, **FIT, **more)
    assert model.run.ledger.releases == 0
    model.fit(X, Y, training_metrics=False, **FIT)


class Right(keras.metrics.Metric):
    """The share of right answers, as it is often written: without weights."""

    def __init__(self, name="right", **kwargs):
        super().__init__(name=name, **kwargs)
        self.found = self.add_weight(name="found", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        right = keras.ops.cast(keras.ops.argmax(y_pred, -1) == keras.ops.cast(y_true, "int32"), "float32")
        self.add(right, keras.ops.ones_like(right))

    def add(self, right, weight):
        self.found.assign_add(keras.ops.sum(right * weight))
        self.count.assign_add(keras.ops.sum(weight))

    def result(self):
        return self.found / self.count


class Weighted(Right):
    def update_state(self, y_true, y_pred, sample_weight=None):
        right = keras.ops.cast(keras.ops.argmax(y_pred, -1) == keras.ops.cast(y_true, "int32"), "float32")
        self.add(right, keras.ops.ones_like(right) if sample_weight is None else sample_weight)


class Unweighted(Right):
    def update_state(self, y_true, y_pred):
        super().update_state(y_true, y_pred)


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("more", [{"validation_data": (X, Y)}, pytest.param({}, marks=pytest.mark.slow)])
def test_a_metric_that_leaves_out_weights_is_named(more):
    """It counted the rows that fill up an update, and was wrong by several percent without a word."""
    model = mlp(metrics=["accuracy", Right()])
    with pytest.warns(UserWarning, match="Received: right. Multiply what `update_state` counts by sample_weight"):
        model.fit(X, Y, **FIT, **more)
    mlp(metrics=[Right()]).fit(X, Y, training_metrics=False, **FIT, **more)


def test_a_metric_with_weights_counts_as_those_of_keras():
    model = mlp(metrics=["accuracy", Weighted()])
    history = model.fit(X, Y, **FIT).history
    assert history["right"] == pytest.approx(history["accuracy"], abs=1e-6)


def test_a_metric_that_takes_no_weights_is_told_what_they_are():
    model = mlp(metrics=[Unweighted()])
    with pytest.raises(ValueError, match="Received: metric 'right', .*takes sample_weight, which is 0 for rows"):
        model.fit(X, Y, **FIT)
    assert model.run.ledger.releases == 0


@pytest.mark.parametrize("more", [{"validation_data": (X, Y)}, {}])
def test_a_metric_that_does_not_fit_the_labels_costs_nothing(more):
    """Each `fit` without validation data was charged an update that was not made, with an error that named nothing."""
    model = mlp(metrics=["accuracy", keras.metrics.AUC(name="area")])
    words = (
        "of `compile` fail on .*Received: metric 'area', shapes.*labels of the shape of the outputs, as one-hot ones"
    )
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y, **FIT, **more)
    assert model.run.ledger.releases == 0


@pytest.mark.parametrize("metric", [keras.metrics.F1Score(name="score"), "f1_score"])
def test_a_metric_that_cannot_be_built_for_the_labels_is_named(metric):
    """Keras refuses shapes that nobody has passed, of a metric that it does not name."""
    model = mlp(metrics=["accuracy", "ce", metric])
    words = r"fail on a row of the training data\. Received: metric '(f1_)?score', shapes.*as one-hot ones"
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y, **FIT)
    assert model.run.ledger.releases == 0


@pytest.mark.slow
@pytest.mark.backend_free
def test_what_fits_is_evaluated_as_before():
    weighted = (X[:50], Y[:50], np.ones(50))
    for data in ((X[:50], Y[:50]), [X[:50], Y[:50]], weighted, Batches(X[:50], Y[:50])):
        model = mlp()
        stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
        history = model.fit(X, Y, validation_data=data, callbacks=stop, seed=0, **FIT).history
        found = model.evaluate(X[:50], Y[:50], verbose=0, return_dict=True)
        assert history["val_accuracy"][-1] == pytest.approx(found["accuracy"])


@pytest.mark.backend_free
def test_a_layer_cannot_be_changed_by_a_callback():
    entry = None

    def loosen(batch, logs=None):
        with pytest.raises(AttributeError, match="fixed once the layer is built"):
            entry.norm = 1000.0
        seen.append(entry.norm)

    model, seen = mlp(run_eagerly=True), []
    entry = model.layers[0]
    assert isinstance(entry, layers.BoundedInput)
    model.fit(X, Y, steps_per_epoch=2, callbacks=keras.callbacks.LambdaCallback(on_train_batch_end=loosen), **FIT)
    assert seen == [3.0, 3.0]


@pytest.mark.backend_free
def test_checkpoints_that_hold_the_key_of_the_noise_are_refused():
    """Keras' `get_state_tree`, which it writes, has the variables of the optimizer as they are."""
    orbax = type("OrbaxCheckpoint", (keras.callbacks.Callback,), {})
    for kind in (orbax, type("Mine", (orbax,), {})):
        model = mlp()
        with pytest.raises(ValueError, match="with the key of the noise and without the ledger"):
            model.fit(*blobs(), batch_size=40, epsilon=1.0, delta=1e-4, callbacks=[kind()], verbose=0)
        assert model.privacy.updates == 0
    # By the name that Keras gives it; 3.12 has none.
    assert getattr(keras.callbacks, "OrbaxCheckpoint", orbax).__name__ == "OrbaxCheckpoint"


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("make", "named"),
    [
        pytest.param(lambda: (X, (X, Y)), True, marks=pytest.mark.slow),
        (lambda: (X, (X[3:9], Y[3:9])), True),
        (lambda: (X[::2], (X[1::2], Y[1::2])), False),
        pytest.param(lambda: (X[:-9], (X[-9:], Y[-9:])), False, marks=pytest.mark.slow),
        pytest.param(lambda: (X, (X.copy(), Y)), False, marks=pytest.mark.slow),
    ],
    ids=["the same", "a part", "every other", "the rest", "a copy"],
)
def test_metrics_on_training_rows_are_named_whatever_they_are_called(make, named):
    x, validation_data = make()
    model = mlp()
    model.fit(x, Y[: len(x)], validation_data=validation_data, training_metrics=False, epochs=1, **FIT)
    logged = model.privacy.to_dict()["training_metrics_outside_the_guarantee"]
    assert logged == (["validation metrics (validation_data are among the training data)"] if named else [])
    assert ("none were logged" in model.privacy.statement()) is not named
    # Those of training come beside them.
    model.fit(x, Y[: len(x)], epochs=1, **FIT)
    assert {"loss", "accuracy"} <= set(model.privacy.to_dict()["training_metrics_outside_the_guarantee"])


@pytest.mark.backend_free
def test_lists_share_rows_only_as_a_whole():
    words = ["good", "bad"] * 50_000
    assert validation.are_training_rows(words, (words, None))
    assert not validation.are_training_rows(words, (["good", "bad"] * 1000, None))
    assert not validation.are_training_rows([[1, 2], [3, 4]], ([[1, 2]], [0]))
    batches = Batches(X, Y)
    assert validation.are_training_rows(batches, batches)
    assert validation.are_training_rows({"a": X, "b": Y}, ({"a": X.copy(), "b": Y[2:5]}, Y))


@pytest.mark.backend_free
def test_a_source_has_the_rows_of_what_it_reads():
    class Rows:
        def __len__(self):
            return len(X)

        def __getitem__(self, index):
            return X[index]

    rows = Rows()
    assert validation.are_training_rows(sampling.Source(X), (X[3:9], Y[3:9]))
    assert validation.are_training_rows({"a": X}, ({"a": sampling.Source(X)}, Y))
    assert validation.are_training_rows(sampling.Source(rows), (sampling.Source(rows), Y))
    assert validation.are_training_rows(rows, (sampling.Source(rows), Y))
    assert not validation.are_training_rows(sampling.Source(rows), (sampling.Source(Rows()), Y))


@pytest.mark.backend_free
def test_a_data_set_that_is_made_of_the_one_that_trains_has_its_rows():
    tf = pytest.importorskip("tensorflow")
    rows, others = (tf.data.Dataset.from_tensor_slices((X, Y)) for _ in range(2))
    for trains in (rows, rows.batch(8), rows.shuffle(9).map(lambda x, y: (2.0 * x, y))):
        for held_out in (rows.batch(4), rows.take(5).batch(4), rows.skip(5), trains, trains.prefetch(1)):
            assert validation.are_training_rows(trains, held_out)
        assert not validation.are_training_rows(trains, others.batch(4))
    # A part that may be the other one, and numbers of rows that are read from elsewhere.
    assert not validation.are_training_rows(rows.skip(5).batch(4), rows.take(5).batch(4))
    numbers = tf.data.Dataset.range(9)
    assert not validation.are_training_rows(numbers.map(lambda i: (i, i)), numbers.map(lambda i: (-i, i)))


@pytest.mark.backend_free
def test_data_sets_of_one_file_are_the_same_rows(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"], file["y"], file["other"] = X, Y, X
        assert file["x"] is not file["x"]
        assert validation.are_training_rows(file["x"], (file["x"], file["y"]))
        assert not validation.are_training_rows(file["x"], (file["other"], file["y"]))
    with h5py.File(tmp_path / "rows.h5") as file, h5py.File(tmp_path / "rows.h5") as again:
        assert validation.are_training_rows(file, (again, "y"))
        assert validation.are_training_rows(file["x"], (again["x"], file["y"]))


@pytest.mark.backend_free
def test_a_file_that_is_mapped_twice_holds_the_same_rows(tmp_path):
    """Only arrays of one mapping were seen to be."""
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "other.npy", X)
    rows, again, other = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("x", "x", "other"))
    assert validation.are_training_rows(rows, (again, Y))
    assert validation.are_training_rows(rows[10:], (again[5:11], Y[5:11]))
    assert validation.are_training_rows({"a": sampling.Source(rows)}, ({"a": again[3::2]}, Y[3::2]))
    raw = np.memmap(tmp_path / "x.npy", X.dtype, "r", offset=rows.offset + X[0].nbytes, shape=X[1:].shape)
    assert validation.are_training_rows(raw, (again[1:2], Y[1:2]))
    assert not validation.are_training_rows(raw, (again[:1], Y[:1]))
    assert not validation.are_training_rows(rows[10:], (again[:10], Y[:10]))
    assert not validation.are_training_rows(rows[::2], (again[1::2], Y[1::2]))
    assert not validation.are_training_rows(rows, (other, Y))
    assert not validation.are_training_rows(rows, (again + 1, Y))


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("trains", [False, True], ids=["without training metrics", "with training metrics"])
def test_callbacks_that_follow_metrics_on_training_rows_are_refused_whatever_they_are_called(trains):
    model, held_out = mlp(), (X.copy(), Y)
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=9)
    arguments = {"callbacks": [stop], "training_metrics": trains, "epochs": 1, **FIT}
    with pytest.raises(ValueError, match="among the training data.*EarlyStopping .val_loss.*validation_split="):
        model.fit(X, Y, validation_data=(X, Y), **arguments)
    if trains:  # then the validation data have no part in it
        follows = {**arguments, "callbacks": [keras.callbacks.EarlyStopping(monitor="loss"), stop]}
        with pytest.raises(ValueError, match=r"training data may not steer.*Received: EarlyStopping \(loss\)\."):
            model.fit(X, Y, validation_data=(X, Y), **follows)
    assert model.privacy.updates == 0
    model.fit(X, Y, validation_data=held_out, **arguments)
    assert model.privacy.to_dict()["steered_by_training_metrics"] == []
    model.fit(X, Y, validation_data=(X, Y), allow_private_monitor=True, **arguments | {"epochs": 2})
    assert model.privacy.to_dict()["steered_by_training_metrics"] == ["EarlyStopping (val_loss)"]
    assert "TRAINING FOLLOWED METRICS ON THE TRAINING DATA" in model.privacy.statement()


@pytest.mark.slow
def test_the_statement_says_that_held_out_rows_are_not_covered():
    model = mlp()
    model.fit(X, Y, validation_split=0.2, epochs=1, **FIT)
    assert "Rows that were held out" in " ".join(model.privacy.statement().split())


def segmenting(*metrics, kind="metrics"):
    model = lipdp.DP_Sequential(
        [keras.Input((4, 4, 1)), keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")]
    )
    model.compile("sgd", "binary_crossentropy", **{kind: list(metrics)})
    rng = np.random.default_rng(0)
    return model, rng.normal(size=(80, 4, 4, 1)).astype("float32"), rng.integers(0, 2, (80, 4, 4, 1))


def bright(y, y_pred):
    return keras.ops.mean(y_pred, axis=(1, 2, 3))


@pytest.mark.backend_free
def test_a_metric_that_counts_places_beside_one_of_rows_costs_nothing():
    model, x, y = segmenting(keras.metrics.AUC(), bright)
    with pytest.raises(ValueError, match="One that counts places.* leave it out of `compile`"):
        model.fit(x, y, strategy="dpsgd", training_metrics=True, **FIT)
    assert model.run.ledger.updates == 0
    model, x, y = segmenting("accuracy", bright)
    assert {"accuracy", "bright"} <= set(model.fit(x, y, strategy="dpsgd", training_metrics=True, **FIT).history)


@pytest.mark.filterwarnings("ignore:You are passing weight as `float`", "ignore:Explicitly requested dtype int64")
@pytest.mark.slow
def test_metrics_that_count_places_are_those_of_keras():
    """They take weights of places only: padding rows have none of these."""
    made = (keras.metrics.BinaryIoU, keras.metrics.AUC, keras.metrics.Precision, keras.metrics.BinaryAccuracy)
    model, x, y = segmenting(*(metric(name=metric.__name__) for metric in made), kind="weighted_metrics")
    model.optimizer.learning_rate = 0.0
    history = model.fit(
        *(x, y), strategy="dpsgd", training_metrics=True, steps_per_epoch=1, validation_data=(x[:30], y[:30]), **FIT
    ).history
    assert model.evaluate(x[:30], y[:30], verbose=0, return_dict=True).keys() >= {"AUC"}
    for metric in made:
        for weight in (None, np.r_[np.ones(30), np.zeros(50)]):
            kept = slice(None) if weight is None else slice(30)
            alone = metric()
            alone.update_state(y[kept], model.predict(x[kept], verbose=0))
            found = model.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)[metric.__name__]
            assert found == pytest.approx(float(alone.result()), abs=1e-5)
        assert history[f"val_{metric.__name__}"][0] == pytest.approx(found, abs=1e-5)


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # Keras' own, under JAX
def test_whole_numbers_do_not_count_parts_of_a_person():
    persons = {"person_ids": np.arange(80) // 2, "rows_per_person": 2, "strategy": "dpsgd", "training_metrics": True}
    model, x, y = segmenting(keras.metrics.BinaryIoU())
    with pytest.raises(ValueError, match="Give it dtype='float32'"):
        model.fit(x, y, **persons, **{**FIT, "batch_size": 20})
    assert model.run.ledger.updates == 0
    model, x, y = segmenting(keras.metrics.BinaryIoU(dtype="float32", name="iou"))
    assert 0 < model.fit(x, y, **persons, **{**FIT, "batch_size": 20}).history["iou"][0] < 1


def test_rows_behind_the_data_have_no_say_in_a_loss():
    """They have weight -0; rows to which the user gives the weight 0 count, as in Keras."""
    model = mlp()
    model.fit(X, Y, **FIT)
    expected = model.evaluate(X[:7], Y[:7], verbose=0)
    weight = np.r_[np.ones(7), -0.0 * np.ones(3)].astype("float32")
    found = model.evaluate(X[:10], Y[:10], sample_weight=weight, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    zero = model.evaluate(X[:10], Y[:10], sample_weight=np.abs(weight), verbose=0)
    np.testing.assert_allclose(zero[0] if isinstance(zero, list) else zero, np.atleast_1d(expected)[0] * 0.7, rtol=1e-5)


@pytest.mark.parametrize("fails", ["labels", "a callback"])
def test_an_evaluation_that_fails_leaves_the_weights(fails):
    """Under JAX Keras takes them off the model until it has ended."""
    model = lipdp.DP_Sequential([layers.BoundedInput((X.shape[1],)), layers.SpectralDense(3)])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    before = [np.asarray(v) for v in model.weights]
    y = Y if fails == "a callback" else np.zeros((len(X), 2))
    stops = keras.callbacks.LambdaCallback()
    if fails == "a callback":
        stops.on_test_batch_end = lambda *_: 1 / 0
    with pytest.raises(Exception):  # noqa: B017 - of Keras, TensorFlow or JAX
        model.evaluate(X, y, batch_size=40, verbose=0, callbacks=[stops])
    assert all(np.array_equal(v, b) for v, b in zip(model.weights, before, strict=True))
    assert np.isfinite(model.evaluate(X, Y, verbose=0))
    assert model.predict(X, verbose=0).shape == (len(X), 3)


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # Keras' own, under JAX
@pytest.mark.parametrize(
    "strategy", [pytest.param("dpis", marks=pytest.mark.slow), strategies.DPSGD(augmentation_multiplicity=2)]
)
def test_metrics_of_whole_numbers_are_refused_where_a_row_counts_for_a_part(strategy):
    """Keras rounds the weights of such a metric to 0, and it would read 0 after each epoch."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype("float32"), rng.integers(0, 3, 60)
    fit = {"epsilon": 4.0, "delta": 1e-3, "batch_size": 20, "strategy": strategy, "verbose": 0}

    def trained(dtype, **arguments):
        model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
        metric = keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou", dtype=dtype)
        model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[metric])
        return model, lambda: model.fit(x, y, **fit, **arguments).history

    model, fitting = trained("int")
    with pytest.raises(ValueError, match="counts for a part.*iou.*dtype='float32'"):
        fitting()
    assert model.privacy.epsilon() == 0.0
    assert trained("float32")[1]()["iou"][-1] > 0.0
    assert "iou" not in trained("int", training_metrics=False)[1]()
