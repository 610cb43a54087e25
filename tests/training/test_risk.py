"""`fit(risk=...)`: the noise follows from what attacks may reach, as it does from a budget."""

import keras
import numpy as np
import pytest

from lipdp import accounting
from tests.helpers.models import DELTA, blobs, mlp, same, state

FIT = {"batch_size": 40, "delta": DELTA, "verbose": 0}


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [{"advantage": 0.3}, {"tpr": 0.05, "fpr": 0.01}])
def test_the_noise_follows_from_the_risk(wanted, capsys):
    model = mlp()
    model.fit(*blobs(), epochs=2, risk=wanted, **FIT | {"verbose": 2})
    noise = accounting.calibrate(sampling_probability=0.1, updates=20, **wanted)
    assert model.run.plan.noise_multiplier == noise and model.run.plan.epsilon is None
    found = model.privacy.risk()
    reached = found.advantage if "advantage" in wanted else found.true_positive_rate(0.01)
    bound = wanted.get("advantage", wanted.get("tpr"))
    assert 0.99 * bound <= reached <= bound
    said = capsys.readouterr().out
    assert ("at most 0.3" if "advantage" in wanted else "at most 5 % of the examples found at 1 %") in said


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_bound_covers_everything_the_model_releases(tmp_path):
    x, y = blobs()
    model = mlp()
    model.fit(x, y, epochs=1, risk={"advantage": 0.2}, **FIT)
    before = state(model)
    with pytest.raises(ValueError, match="used up"):
        model.fit(x, y, epochs=1, risk={"advantage": 0.2}, **FIT)
    assert same(before, state(model))
    model.fit(x, y, epochs=1, risk={"advantage": 0.3}, **FIT)
    assert 0.99 * 0.3 <= model.privacy.risk().advantage <= 0.3


@pytest.mark.slow
@pytest.mark.backend_free
def test_an_interrupted_plan_goes_on(tmp_path):
    x, y = blobs()
    model, arguments = mlp(), {"epochs": 2, "risk": {"advantage": 0.3}, **FIT}

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            model.stop_training = model.stop_training or model.run.ledger.updates == 7

    model.fit(x, y, callbacks=[Stop()], **arguments)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    loaded.fit(x, y, **arguments)
    assert loaded.run.ledger.updates == 20 and loaded.privacy.risk().advantage <= 0.3


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_risk_of_a_person_is_that_of_all_their_rows():
    model = mlp()
    model.fit(*blobs(), examples_per_person=3, risk={"advantage": 0.3}, **FIT)
    assert 0.99 * 0.3 <= model.privacy.risk().advantage <= 0.3
    assert model.privacy.risk(group_size=1).advantage < 0.2
    persons = mlp()
    persons.fit(*blobs(), person_ids=np.arange(400) // 4, risk={"advantage": 0.3}, **FIT)
    assert persons.run.plan.noise_multiplier < model.run.plan.noise_multiplier * 3
    assert 0.99 * 0.3 <= persons.privacy.risk().advantage <= 0.3


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"risk": {"advantage": 0.1}, "epsilon": 1.0}, "Pass one"),
        ({"risk": {"advantage": 0.1}, "noise_multiplier": 1.0}, "Pass one"),
        ({"risk": 0.1}, "A bound on risk is"),
        ({"risk": {"epsilon": 0.1}}, "A bound on risk is"),
        ({"risk": {"advantage": 0.1}, "accountant": "filter"}, "needs a budget"),
        ({"risk": {"advantage": 0.1}, "strategy": "dpis"}, "DPIS chooses its noise"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    model = mlp()
    model.build()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        model.fit(*blobs(), **FIT, **arguments)
    assert same(before, state(model))
