"""Many trainings: the final model only, and likelihood ratios."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import audit
from lipdp.audit import retrained

SIZE = 24


def wide():
    inputs = keras.Input((SIZE,))
    model = lipdp.DP_Model(inputs, keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")(inputs))
    model.compile(keras.optimizers.SGD(4.0), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.run_eagerly = True  # a compilation would take longer than a training
    return model


X, Y = 20.0 * np.eye(SIZE, dtype="float32"), np.arange(SIZE) % 2


@pytest.mark.backend_free
@pytest.mark.slow
@pytest.mark.skipif("keras.backend.backend() != 'tensorflow'", reason="eager training is TensorFlow's")
def test_the_final_model_tells_of_a_canary_that_it_has_learned():
    rows, canary = (X[:4], Y[:4]), (X[-1:], Y[-1:])
    settings = {"noise_multiplier": 0.05, "batch_size": 4, "epochs": 2, "strategy": "dpsgd", "delta": 1e-3}
    found = audit.final_model(wide, *rows, fit=settings, canary=canary, runs=40, seed=0)
    assert 0.3 < found.bounds["rates"] <= found.epsilon_lower <= found.epsilon
    assert found.details["trials"] == [15, 15] or sum(found.details["trials"]) == 30
    assert found.details["hits"] > found.details["false_alarms"]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.skipif("keras.backend.backend() != 'tensorflow'", reason="eager training is TensorFlow's")
@pytest.mark.parametrize("function", [pytest.param(audit.final_model, marks=pytest.mark.slow), audit.lira])
def test_the_plan_does_not_tell_whether_a_row_was_there(function):
    """One row more would be one update more here."""
    plans = []

    class Model(lipdp.DP_Model):
        def fit(self, *args, **kwargs):
            super().fit(*args, **kwargs)
            plans.append((self.run.ledger.updates, self.run.plan.sampling))

    def make():
        inputs = keras.Input((SIZE,))
        model = Model(inputs, keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")(inputs))
        model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
        return model

    settings = {"noise_multiplier": 1.0, "batch_size": 8, "epochs": 1, "strategy": "dpsgd", "delta": 1e-3}
    options = {"runs": 16} if function is audit.final_model else {"shadow_models": 3}
    found = function(make, X[:8], Y[:8], fit=settings, seed=0, **options)
    assert len(plans) == options.get("runs", 4) and len(set(plans)) == 1
    assert found.epsilon_lower <= found.epsilon


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.skipif("keras.backend.backend() != 'tensorflow'", reason="eager training is TensorFlow's")
def test_lira_finds_members_of_a_model_without_much_noise():
    settings = {"noise_multiplier": 0.1, "batch_size": 8, "epochs": 2, "strategy": "dpsgd", "delta": 1e-3}
    found = audit.lira(wide, X, Y, fit=settings, shadow_models=6, seed=0)
    assert found.details["area_under_curve"] > 0.8
    assert 0.0 < found.epsilon_lower <= found.epsilon
    assert [rate for rate, _ in found.details["attack"]] == [0.001, 0.01, 0.1]


@pytest.mark.backend_free
def test_likelihood_ratios_of_normal_logits():
    rng = np.random.default_rng(0)
    there = rng.random((2000, 3)) < 0.5
    shadows = np.where(there, [2.0, 0.0, 1.0], [0.0, 0.0, -1.0]) + rng.standard_normal((2000, 3))
    found = retrained.likelihood_ratios(shadows, there, np.array([1.5, 1.5, 0.0]))
    # log N(x; a, 1) - log N(x; b, 1) = (a - b)(x - (a + b) / 2)
    assert found == pytest.approx([2.0 * 0.5, 0.0, 0.0], abs=0.2)


@pytest.mark.backend_free
def test_rows_that_are_in_all_shadow_models_get_a_finite_score():
    there = np.array([[True, False], [True, True]])
    found = retrained.likelihood_ratios(np.array([[1.0, 2.0], [3.0, 4.0]]), there, np.array([0.0, 0.0]))
    assert np.isfinite(found).all()


@pytest.mark.backend_free
def test_logits_of_losses():
    losses = -np.log([0.5, 0.9, 0.1])
    assert retrained._logits(losses) == pytest.approx([0.0, np.log(9.0), -np.log(9.0)])
    assert np.isfinite(retrained._logits(np.array([0.0, 1e9]))).all()
    assert retrained._logits(np.array([-2.0, 1.0])).tolist() == [2.0, -1.0]


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("function", "change", "message"),
    [
        (audit.final_model, {"runs": 8}, "runs"),
        (audit.final_model, {"canary": (X, Y)}, "one row"),
        (audit.final_model, {"score": "gradient"}, "score"),
        # 40 trainings with one seed stated epsilon 15.5 of a model whose epsilon is 0.2.
        (audit.final_model, {"fit": {"epsilon": 1.0, "seed": 1}}, "same noise.*seed=1.*Pass seed="),
        (audit.final_model, {"fit": {"epsilon": 1.0, "person_ids": np.arange(SIZE)}}, "rows of nobody"),
        (audit.final_model, {"fit": {"epsilon": 1.0, "sample_weight": np.ones(SIZE)}}, "have no weights"),
        (audit.lira, {"shadow_models": 1}, "shadow_models"),
        (audit.lira, {"fit": {"epsilon": 1.0, "sampling": "shuffle"}}, "adding or removing"),
    ],
)
def test_bad_input(function, change, message):
    with pytest.raises(ValueError, match=message):
        function(**({"make_model": wide, "x": X, "y": Y, "fit": {"epsilon": 1.0}} | change))
