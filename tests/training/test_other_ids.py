"""Fits of one model, or of models that share weights, whose persons go by several ids."""

import json
import warnings

import jsonschema
import keras
import numpy as np
import pytest

import lipdp
from lipdp import privacy
from tests.helpers.models import blobs, mlp

pytestmark = pytest.mark.backend_free

ROWS = np.arange(400)
FIT = {"batch_size": 5, "noise_multiplier": 1.0, "delta": 1e-3, "steps_per_epoch": 2, "verbose": 0}
LINE = "Fits were given other ids or other numbers of persons."


def train(model, ids, **arguments):
    """Trains, and returns whether `fit` warned of other ids."""
    x, y = blobs(400)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x[: len(ids)], y[: len(ids)], person_ids=ids, **FIT, **arguments)
    found = [str(each.message) for each in caught if "by other ids" in str(each.message)]
    assert all("person, with all rows, by the ids of all fits" in text for text in found)
    return bool(found)


def said(model):
    """Whether the statement, text and facts, says that ids differ."""
    jsonschema.validate(json.loads(model.privacy.statement("json")), privacy.schema())
    facts = model.privacy.to_dict(()).get("ids_of_persons_differ", False)
    assert facts == (LINE in " ".join(model.privacy.statement().split()))
    return facts


class _Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


OTHERS = {
    "coarser": ROWS // 8,
    "other persons": np.random.default_rng(0).permutation(ROWS // 4),
    "more rows": ROWS // 4,
}


@pytest.mark.parametrize("seed", [None, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "other persons")) for name in OTHERS]
)
def test_other_ids_are_said(name, seed, tmp_path):
    """Visits and then patients: what one fit says of a visit says nothing of a patient."""
    model, second = mlp(), OTHERS[name]
    assert not train(model, ROWS[:200] // 4 if name == "more rows" else ROWS // 4, seed=seed) and not said(model)
    model.save(tmp_path / "first.keras")
    assert train(model, second, seed=seed) and said(model)
    model.save(tmp_path / "both.keras")
    assert said(keras.saving.load_model(tmp_path / "both.keras"))
    loaded = keras.saving.load_model(tmp_path / "first.keras")
    # Without a seed a file tells no ids, but how many persons there were.
    known = seed is not None or name != "other persons"
    assert train(loaded, second, seed=seed, epochs=3) == known == said(loaded)


def test_the_same_ids_are_not_said():
    model = mlp()
    assert not train(model, ROWS // 4) and not train(model, ROWS // 4, epochs=2) and not said(model)


def test_the_rest_of_a_plan_is_no_plan_of_other_persons():
    model = mlp()
    train(model, ROWS // 4, epochs=2, callbacks=[_Stop()])
    assert model.run.updates_left == 3
    assert train(model, OTHERS["other persons"], epochs=2) and said(model)
    assert model.run.ledger.updates == 1 + 4


def test_a_fit_that_released_nothing_names_no_ids():
    model = mlp()

    class Fails(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model, ROWS // 8, callbacks=[Fails()])
    assert not train(model, ROWS // 4) and not said(model)


def test_a_file_of_the_model_itself_does_not_forget_ids(tmp_path):
    model = mlp()
    train(model, ROWS // 4)
    model.save_weights(tmp_path / "m.weights.h5")
    model.load_weights(tmp_path / "m.weights.h5")
    assert train(model, OTHERS["other persons"]) and said(model)


@pytest.mark.parametrize(
    "name", ["coarser", *(pytest.param(name, marks=pytest.mark.slow) for name in list(OTHERS)[1:])]
)
def test_an_ensemble_of_persons_by_several_ids_says_so(name, tmp_path):
    parts = [mlp(), mlp()]
    train(parts[0], ROWS[:200] // 4 if name == "more rows" else ROWS // 4)
    train(parts[1], OTHERS[name])
    inputs = keras.Input((8,))
    both = lipdp.DP_Model(inputs, keras.layers.Average()([part(inputs) for part in parts]))
    assert said(both) and not any(map(said, parts))
    both.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert train(both, OTHERS[name], strategy="dpsgd")


def test_files_hold_no_digest_of_ids(tmp_path):
    model = mlp()
    train(model, ROWS // 4)
    train(model, ROWS // 8)
    (one, other), text = model.run.ledger.ids, model.run.to_array().tobytes().decode()
    assert one not in text and other not in text
    train(model, ROWS // 4, seed=3)
    held = json.loads(model.run.to_array().tobytes())
    assert {one, other} & set(json.dumps(held).split('"')) == {held["request"]["persons"]}
