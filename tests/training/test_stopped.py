"""A run that stopped before the end of its plan: what epsilon is when the stop followed from what was released."""

import json

import jsonschema
import keras
import pytest

import lipdp
from lipdp import accounting, privacy
from tests.helpers.models import blobs, mlp

pytestmark = pytest.mark.backend_free

FIT = {"batch_size": 100, "delta": 1e-3, "epochs": 5, "verbose": 0}


class Stop(keras.callbacks.Callback):
    """Ends `fit` after the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


def said(model):
    """What the statement says of the stop: facts, which the text must agree with."""
    jsonschema.validate(json.loads(model.privacy.statement("json")), privacy.schema())
    facts, text = model.privacy.to_dict(()).get("stopped_early"), " ".join(model.privacy.statement().split())
    if facts is None:
        assert "Stopped after" not in text
        return None
    epsilon = accounting.round_up(facts["epsilon_of_whole_plan"])
    assert f"Stopped after {facts['updates']} of {facts['planned_updates']} updates of the plan, unless it" in text
    assert f"epsilon is that with the whole plan: {epsilon:.4g}." in text
    return facts


def test_a_stop_before_the_end_is_stated_until_the_plan_goes_on(tmp_path):
    model = mlp()
    model.fit(*blobs(), **FIT, epsilon=4.0, callbacks=[Stop()])
    found = said(model)
    assert (found["updates"], found["planned_updates"]) == (4, 20)
    assert found["epsilon_of_whole_plan"] == model.run.plan.cost() and 3.9 < found["epsilon_of_whole_plan"] <= 4.0
    assert model.privacy.epsilon() < 3.0
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert said(again) == found
    again.fit(*blobs(), **FIT, epsilon=4.0)
    assert said(again) is None and again.privacy.epsilon() == found["epsilon_of_whole_plan"]


def test_a_plan_without_a_budget_is_stated_too_and_with_all_before_it():
    model = mlp()
    model.fit(*blobs(), **FIT | {"epochs": 1}, noise_multiplier=3.0)
    assert said(model) is None
    model.fit(*blobs(), **FIT, noise_multiplier=2.0, callbacks=[Stop()])
    parts = [accounting.Mechanism(0.25, 3.0, 4), accounting.Mechanism(0.25, 2.0, 20)]
    assert said(model)["epsilon_of_whole_plan"] == pytest.approx(accounting.compose(parts, 1e-3))
    inputs = keras.Input((8,))
    both = lipdp.DP_Model(inputs, model(inputs))
    assert said(both) is None  # it has no plan of its own


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"strategy": "dpis"}, id="dpis", marks=pytest.mark.slow),
        pytest.param({"accountant": "filter"}, id="filter"),
    ],
)
def test_a_whole_budget_that_is_stated_covers_the_stop(arguments):
    model = mlp()
    model.fit(*blobs(), **FIT, **arguments, epsilon=8.0, callbacks=[Stop()])
    assert model.run.updates_left > 0 and said(model) is None and model.privacy.epsilon() > 7.9


def test_a_fit_that_made_no_update_has_not_stopped_early():
    model = mlp()

    class Fails(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(*blobs(), **FIT, epsilon=4.0, callbacks=[Fails()])
    assert said(model) is None and model.privacy.epsilon() == 0.0
