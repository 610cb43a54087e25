"""Recipes take training and validation data in each form that `fit` takes."""

import dataclasses
import re
import zipfile

import h5py
import keras
import numpy as np
import pytest

import lipdp
from lipdp import models

pytestmark = pytest.mark.backend_free
SHAPE = (16, 16, 1)


def data(count=60):
    """Rows of both classes, bright above or below."""
    rng, y = np.random.default_rng(count), np.arange(count) % 2
    x = 0.3 * rng.random((count, *SHAPE)).astype("float32")
    x[y == 0, :8] += 0.5
    x[y == 1, 8:] += 0.5
    return x, y


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 20

    def __getitem__(self, i):
        return self.x[20 * i : 20 * i + 20], self.y[20 * i : 20 * i + 20]


class Rows:
    """A source: one array, or several of the same length."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, i):
        return tuple(a[i] for a in self.arrays) if len(self.arrays) > 1 else self.arrays[0][i]


def tensors(x, y):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((x, y))


def stored(x, y):
    file = h5py.File("rows.h5", "w", driver="core", backing_store=False)
    file["x"], file["y"] = x, y
    return file


FORMS = {
    "dictionary": lambda x, y: ({"x": x, "y": y}, "y"),
    "file of h5py": lambda x, y: (stored(x, y), "y"),
    "PyDataset": lambda x, y: (Batches(x, y), None),
    "tf.data of batches": lambda x, y: (tensors(x, y).batch(20), None),
    "tf.data of rows": lambda x, y: (tensors(x, y), None),
    "source": lambda x, y: (Rows(x, y), None),
    "source of labels": lambda x, y: (x, Rows(y)),
    "two sources": lambda x, y: (Rows(x), Rows(y)),
}


def some_slow(names, slow):
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else ()) for name in names]


def features():
    return dataclasses.replace(models.scattered_recipe(SHAPE, 2, 60, 8.0), batch_size=30, epochs=2, patches=0, hidden=4)


def pixels():
    return dataclasses.replace(lipdp.recipe((8, 8, 1), 2, 60, 8.0), batch_size=30, epochs=2)


def trained(recipe, x, y, **kwargs):
    keras.utils.set_random_seed(0)
    return recipe.fit(x, y, epsilon=8.0, delta=1e-3, seed=1, verbose=0, **kwargs)


@pytest.fixture(scope="module")
def expected():
    return trained(features(), *data()).get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("form", some_slow(FORMS, ("tf.data of rows", "source of labels", "two sources")))
def test_fixed_features_of_each_form_are_those_of_arrays(expected, form):
    found = trained(features(), *FORMS[form](*data()))
    for one, other in zip(found.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dictionary", "file of h5py", "PyDataset", "tf.data of batches", "source"])
def test_the_schedule_counts_rows_and_not_batches(form):
    """Nor columns: it ended long before the training."""
    x, y = data()
    model = trained(pixels(), *FORMS[form](x[:, ::2, ::2], y))
    rate = model.optimizer.get_config()["learning_rate"]["config"]
    assert rate["decay_steps"] == model.privacy.updates == 4


def rows_of(shape):
    return lambda count: np.random.default_rng(0).uniform(0, 1, (count, *shape)).astype("float32")


def tokens(count):
    return np.random.default_rng(0).integers(1, 20, (count, 6))


PERSONAL = {
    "table": (lambda: lipdp.recipe((6,), 2, 30, 4.0), rows_of((6,))),
    "clipless": (lambda: lipdp.recipe((6,), 2, 30, 4.0, method="clipless"), rows_of((6,))),
    "classifier": (lambda: lipdp.recipe((8, 8, 1), 2, 30, 4.0), rows_of((8, 8, 1))),
    "scattered": (lambda: dataclasses.replace(features(), batch_size=15), rows_of(SHAPE)),
    "text": (lambda: models.text_recipe((6,), 2, 30, 4.0, vocabulary_size=20), tokens),
    "language": (lambda: dataclasses.replace(models.language_recipe((6,), 20, 30, 4.0), width=8, blocks=1), tokens),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", some_slow(PERSONAL, ("language", "classifier", "text")))
def test_a_file_does_not_tell_how_many_rows_persons_have(tmp_path, name):
    """Before, the schedule of the learning rate counted rows, where only the number of persons is public."""
    make, draw = PERSONAL[name]
    recipe, contents = dataclasses.replace(make(), epochs=2), []
    for more in (0, 200):
        ids = np.concatenate([np.repeat(np.arange(30), 2), np.full(more, 3)])
        x, y = draw(len(ids)), np.arange(len(ids)) % 2
        keras.backend.clear_session()
        model = trained(recipe, x, x if name == "language" else y, person_ids=ids, rows_per_person=2)
        rate = model.optimizer.get_config()["learning_rate"]["config"]
        assert rate["decay_steps"] == model.privacy.updates == recipe.updates(30)
        model.save(tmp_path / "model.keras")
        content = zipfile.ZipFile(tmp_path / "model.keras").read("config.json").decode()
        contents.append(re.sub(r'"shared_object_id": \d+', "", content))
    assert contents[0] == contents[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", some_slow(("table", "clipless", "scattered", "text"), ("clipless", "text")))
def test_a_further_fit_goes_on_with_a_model(tmp_path, name):
    make, draw = PERSONAL[name]
    recipe = dataclasses.replace(make(), epochs=2)
    x, y = draw(30), np.arange(30) % 2
    model = trained(recipe, x, y)
    before, updates = model.get_weights(), model.privacy.updates
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        assert recipe.fit(x, y, epsilon=12.0, delta=1e-3, model=one, seed=1, verbose=0) is one
        assert one.privacy.updates == 2 * updates and 8.0 < one.privacy.epsilon() <= 12.0
        assert int(one.optimizer.iterations) in (0, updates)  # the schedule has begun again
        assert any(np.abs(old - new).max() > 0 for old, new in zip(before, one.get_weights(), strict=True))
    for mine, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="goes on with a model of its own"):
        recipe.fit(x, y, epsilon=20.0, model=keras.Sequential([keras.Input((2,))]), verbose=0)


@pytest.mark.slow
def test_the_schedule_counts_the_persons_that_are_not_held_out():
    x, y = data(200)
    ids = np.array([f"p{i // 4}" for i in range(200)], object)
    held_out = {"validation_split": 0.4}, {"validation_split": 0.4, "validation_data": (x[:20, ::2, ::2], y[:20])}, {}
    for options, fewer in zip(held_out, (True, False, False), strict=True):
        recipe = dataclasses.replace(pixels(), batch_size=5)
        model = trained(recipe, x[:, ::2, ::2], y, person_ids=ids, rows_per_person=1, **options)
        rate = model.optimizer.get_config()["learning_rate"]["config"]
        assert rate["decay_steps"] == model.privacy.updates
        assert (model.privacy.updates < recipe.updates(50)) == fewer


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", some_slow(("PyDataset", "tf.data of batches", "source"), ("PyDataset", "tf.data of batches"))
)
def test_validation_data_of_each_form(form):
    (x, y), held_out = data(), data(40)
    for recipe, part in ((features, slice(None)), (pixels, slice(None, None, 2))):
        x, held_out = x[:, part, part], (held_out[0][:, part, part], held_out[1])
        given = FORMS[form](*held_out)[0]
        found, same = (trained(recipe(), x, y, validation_data=rows).history for rows in (given, held_out))
        assert found.history["val_accuracy"] == pytest.approx(same.history["val_accuracy"])


@pytest.mark.parametrize("recipe", [features, pixels])
@pytest.mark.parametrize(
    "kwargs",
    [{"person_ids": np.arange(60) // 2}, {"sampling": "fixed_order"}, {"sample_weight": np.ones(60)}],
    ids=["persons", "order", "weights"],
)
def test_places_of_rows_that_count_are_not_shuffled(recipe, kwargs):
    x, y = data()
    x = x if recipe is features else x[:, ::2, ::2]
    shuffled = tensors(x, y).shuffle(60).batch(20)
    with pytest.raises(ValueError, match=r"Received: a tf.data.Dataset with `.shuffle\(\)`"):
        trained(recipe(), shuffled, None, **kwargs)


def test_rows_that_are_not_finite_are_refused_as_those_of_arrays():
    x, y = data()
    x[3, 0, 0] = np.nan
    for form in ("PyDataset", "source"):
        with pytest.raises(ValueError, match="NaN or infinity"):
            trained(features(), *FORMS[form](x, y))


def test_what_is_missing_is_named():
    x, y = data()
    with pytest.raises(ValueError, match="`fit` needs labels"):
        features().fit(x, epsilon=8.0)
    with pytest.raises(ValueError, match="Received: 4 elements"):
        features().fit(tensors(x, y).map(lambda a, b: (a, b, 1.0, 1.0)).batch(20), epsilon=8.0)


def test_a_recipe_for_more_examples_says_so():
    x, y = data()
    recipe = lipdp.recipe((8, 8, 1), 2, 600, epsilon=8.0)
    with pytest.raises(ValueError, match=r"Received: batch_size=300 of the recipe, for 60 examples.*num_examples=60 "):
        recipe.fit(x[:, ::2, ::2], y, epsilon=8.0)
    with pytest.raises(ValueError, match="for 30 examples or persons"):
        recipe.fit(x[:, ::2, ::2], y, epsilon=8.0, person_ids=np.arange(60) // 2)
