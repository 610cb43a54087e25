"""States that no honest run has: a ledger that lacks updates, a plan of another ledger."""

import json

import keras
import numpy as np
import pytest

from tests.helpers.models import DELTA, blobs, mlp, state_of_0_1_0, weights

FIT = {"batch_size": 40, "steps_per_epoch": 4, "noise_multiplier": 1.5, "delta": DELTA, "verbose": 0}


@pytest.fixture(scope="module")
def model():
    model = mlp()
    model.fit(*blobs(), **FIT)
    return model


def entries(model, **values):
    ledger = json.loads(model.run.ledger.to_json())
    ledger["entries"][0] |= values
    return {"ledger": ledger}


@pytest.mark.backend_free
def test_a_state_without_a_checksum_is_that_of_version_0_1_0(model):
    fresh = mlp()
    fresh.run.restore(state_of_0_1_0(model))
    assert fresh.run.ledger == model.run.ledger


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "values",
    [{"noise_multiplier": 9.5}, {"sampler": "shuffle", "sampling_probability": 1.0}, {"batch_size": 20}],
)
def test_a_plan_of_another_ledger_is_refused(model, values):
    if "batch_size" in values:
        values = values | {"sampling_probability": 0.05}
    fresh = mlp()
    with pytest.raises(ValueError, match="Plan and ledger in the file disagree|not a ledger"):
        fresh.run.restore(state_of_0_1_0(model, **entries(model, **values)))
    assert fresh.run.ledger.updates == 0


@pytest.mark.backend_free
def test_a_plan_that_began_after_the_ledger_is_refused(model):
    with pytest.raises(ValueError, match="Plan and ledger in the file disagree: the plan began after 5 updates"):
        mlp().run.restore(state_of_0_1_0(model, plan_start=5))


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["sha256", "unknown"])
def test_a_wrong_checksum_and_unknown_fields_are_refused(model, name):
    content = state_of_0_1_0(model, **{name: "0" * 64})
    with pytest.raises(ValueError, match="corrupt: it is not what was written"):
        mlp().run.restore(content)


def test_a_ledger_that_lacks_updates_of_the_optimizer_is_refused(model, tmp_path, monkeypatch):
    """A file of which somebody, or a bit, has made the ledger shorter."""
    shorter = state_of_0_1_0(model, **entries(model, count=2))
    monkeypatch.setattr(model.run, "to_array", lambda: shorter)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    with pytest.raises(ValueError, match="lacks updates that its optimizer has made. Received: 2"):
        loaded.privacy.epsilon()
    with pytest.raises(ValueError, match="lacks updates"):
        loaded.fit(*blobs(), **FIT)
    fresh = mlp()
    before = weights(fresh)
    with pytest.raises(ValueError, match="lacks updates"):
        fresh.load_weights(tmp_path / "m.weights.h5")
    assert fresh.privacy.updates == 0
    assert all(np.array_equal(a, b) for a, b in zip(weights(fresh), before, strict=True))


@pytest.mark.backend_free
def test_an_optimizer_that_is_compiled_anew_counts_from_zero(tmp_path):
    model = mlp()
    model.fit(*blobs(), **FIT)
    model.compile("sgd", loss=model.loss)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.privacy.updates == 4
    loaded.fit(*blobs(), **FIT)
    assert loaded.privacy.updates == 8


def test_the_old_format_for_whole_models_is_refused(model, tmp_path):
    """It would lose the ledger."""
    with pytest.raises(ValueError, match="no place for the privacy ledger"):
        model.save(tmp_path / "m.h5")
    assert not list(tmp_path.iterdir())
