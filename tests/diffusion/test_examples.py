"""A diffusion model is evaluated on clean examples."""

import h5py
import keras
import numpy as np
import pytest

from lipdp import diffusion
from lipdp.diffusion import examples, toy
from lipdp.privacy import statement

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


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return X[16 * i : 16 * i + 16], LABELS[16 * i : 16 * i + 16]


class Each:
    """A source: it is no array."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i]


@pytest.fixture
def stored(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = X, LABELS
        yield file


ASKED = {"noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0, "steps_per_epoch": 1}
# What `fit` takes, of (x, y) and of a file of h5py of both.
FORMS = {
    "file": lambda file: (file, "y"),
    "data sets": lambda file: (file["x"], file["y"]),
    "dictionary": lambda file: ({"x": X, "y": LABELS}, "y"),
    "dictionary of one": lambda file: ({"x": X}, LABELS),
    "PyDataset": lambda file: (Rows(), None),
    "tf.data": lambda file: (_pipeline(), None),
    "column": lambda file: (X, LABELS[:, None]),
    "source": lambda file: (Each(), LABELS),
}


def _pipeline():
    return pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices((X, LABELS)).batch(16)


@pytest.fixture(scope="module")
def shared():
    return labelled()


def _stop(model):
    return keras.callbacks.LambdaCallback(on_train_begin=lambda logs: setattr(model, "stop_training", True))


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[pytest.mark.slow] * (number % 4 > 0)) for number, form in enumerate(FORMS)]
)
def test_forms_of_examples_are_those_of_every_private_model(shared, stored, form):
    """Those of files, dictionaries and datasets failed within NumPy."""
    x, y = FORMS[form](stored)
    (images, labels), nothing = shared._data(x, y)
    assert len(nothing) == len(X)
    np.testing.assert_array_equal(labels, LABELS)
    if form not in ("source", "data sets", "file"):
        np.testing.assert_array_equal(images, X)
    # Sources to validate on failed after an epoch.
    held_out = x if y is None else (x, y)
    asked = {**ASKED, "batch_size": None if form == "PyDataset" else 24}
    history = shared.fit(x, y, validation_data=held_out, **asked)
    assert np.isfinite(history.history["val_loss"]).all()
    assert shared.run.plan.sampling.batch_size == (16 if form == "PyDataset" else 24)


@pytest.mark.backend_free
@pytest.mark.slow
def test_validation_on_training_examples_is_stated():
    model, same = labelled(), Rows()
    model.fit(same, validation_data=same, batch_size=24, **ASKED)
    assert statement.VALIDATED in model.run.ledger.logged
    model = labelled()
    model.fit(Rows(), validation_data=Rows(), batch_size=24, **ASKED)
    assert statement.VALIDATED not in model.run.ledger.logged


@pytest.mark.backend_free
@pytest.mark.slow
def test_examples_alone_come_as_a_dataset_too():
    class Alone(Rows):
        def __getitem__(self, i):
            return super().__getitem__(i)[0]

    model = plain()
    assert "val_loss" in model.fit(Alone(), validation_data=X, **ASKED).history
    assert model.evaluate(Alone(), verbose=0) == model.evaluate(X, verbose=0)


REFUSED = {
    "none": (None, LABELS, "x=None"),
    "several": ({"a": X, "b": X}, LABELS, "one array of examples.*'a', 'b'"),
    "no column": ({"a": X, "b": X}, "c", "names the column"),
    "name of a source": (Each(), "y", "one array of examples.*y='y'"),
    "twice": (Rows(), LABELS, "its own labels"),
    "path": ("images.npz", LABELS, "hold the training data"),
    "stream": (iter([(X, LABELS)]), None, "stream of batches"),
    "text": (np.full((48, 2), "a"), LABELS, "hold numbers"),
    "shape": (X[:, :1], LABELS, r"do not fit the network. Received: shape \(1,\)"),
    "rank": (X[:, :, None], LABELS, "do not fit the network"),
}


@pytest.mark.backend_free
@pytest.mark.parametrize("name", REFUSED)
def test_examples_that_do_not_fit_are_refused_in_words(shared, name):
    x, y, words = REFUSED[name]
    charged = shared.run.ledger.to_json()
    with pytest.raises(ValueError, match=words):
        shared.fit(x, y, **ASKED)
    if name != "stream":
        with pytest.raises(ValueError, match="arrays of clean examples" if isinstance(x, Each) else words):
            shared.evaluate(x, y, verbose=0)
        with pytest.raises(ValueError, match=f"`validation_data` does not fit.*{words}"):
            shared.fit(X, LABELS, validation_data=(x, y), **ASKED)
    assert shared.run.ledger.to_json() == charged


@pytest.mark.backend_free
def test_validation_data_have_two_parts(shared):
    with pytest.raises(ValueError, match="the loss has no weights. Received: 3 parts"):
        shared.fit(X, LABELS, validation_data=(X, LABELS, np.ones(48)), **ASKED)
    with pytest.raises(ValueError, match="`validation_data` does not fit. Labels"):
        shared.fit(X, LABELS, validation_data=(X,), **ASKED)


@pytest.mark.backend_free
def test_a_dataset_that_is_shuffled_has_no_places():
    model, asked = labelled(), {**ASKED, "batch_size": 24}
    shuffled = _pipeline().unbatch().shuffle(48).batch(16)
    for way in ({"person_ids": np.arange(48)}, {"sampling": "shuffle"}):
        with pytest.raises(ValueError, match="go by the places"):
            model.fit(shuffled, **asked, **way)


@pytest.mark.backend_free
def test_a_recipe_takes_the_same_forms():
    images = np.random.default_rng(0).random((48, 4, 4, 1), dtype="float32")

    def scale(x):
        return 2.0 * x - 1.0

    class Both(Rows):
        def __getitem__(self, i):
            return images[16 * i : 16 * i + 16], LABELS[16 * i : 16 * i + 16]

    for x, y in ((images, LABELS), (Both(), None), ({"x": images, "y": LABELS}, "y")):
        held_out = Both() if y is None else (x, y)
        found, labels, arguments = examples.of_recipe(x, y, {"validation_data": held_out}, scale)
        np.testing.assert_array_equal(found, scale(images))
        np.testing.assert_array_equal(labels, LABELS)
        np.testing.assert_array_equal(arguments["validation_data"][0], scale(images))
        np.testing.assert_array_equal(arguments["validation_data"][1], LABELS)
    with pytest.raises(ValueError, match="reads all images into memory. Received: a Each"):
        examples.of_recipe(Each(), LABELS, {}, scale)
    with pytest.raises(ValueError, match="go by the places"):
        examples.of_recipe(_pipeline().shuffle(3), None, {"person_ids": LABELS}, scale)
