"""Several private models on the same rows in one process: `fit` says once that nobody adds them up."""

import warnings

import keras
import numpy as np
import pytest

import lipdp
from lipdp import audit
from lipdp.privacy import Ledger
from lipdp.training import same_rows

ROWS = 64
WARNING = "Another private model in this process was trained on the same rows"
TERMS = {"batch_size": 16, "epochs": 1, "epsilon": 8.0, "delta": 1e-3, "verbose": 0}


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    monkeypatch.setattr(same_rows, "_SEEN", same_rows._Seen())


def data():
    rng = np.random.default_rng(0)
    return rng.random((ROWS, 8)).astype("float32"), (np.arange(ROWS) % 2).astype("int32")


def model_of(layers=None, rate=0.1):
    model = lipdp.DP_Sequential([keras.Input((8,)), *(layers or [keras.layers.Dense(2)])])
    model.compile(keras.optimizers.SGD(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def trained(x, y=None, model=None, **terms):
    model = model or model_of()
    model.fit(x, y, **TERMS | terms)
    return model


def said(act):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in found if WARNING in str(one.message)]


def test_a_search_over_rates_is_told_once_what_it_costs():
    x, y = data()
    models = [trained(x, y, model_of(rate=0.1))]
    (told,) = said(lambda: models.append(trained(x, y, model_of(rate=0.2))))
    assert "Ledger.joined(" in told and "search_epsilon" in told and told.endswith("This is said once.")
    assert not said(lambda: models.append(trained(x, y, model_of(rate=0.4))))
    joined = Ledger.joined([model.privacy.ledger for model in models])
    assert joined.updates == sum(model.privacy.updates for model in models)
    assert joined.epsilon(1e-3) > 1.5 * models[0].privacy.epsilon()


def as_views(x, y):
    return [(x, y), (x.reshape(ROWS, 8), y)]


def as_parts(x, y):
    return [(x, y), (x[: ROWS // 2], y[: ROWS // 2])]


def as_dataset(x, y):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    return [(rows, None), (rows, None)]


@pytest.mark.parametrize("calls", [as_views, as_parts, pytest.param(as_dataset, marks=pytest.mark.slow)])
def test_the_same_rows_in_another_form_are_seen(calls):
    first, second = calls(*data())
    trained(*first)
    assert said(lambda: trained(*second))


def test_other_rows_are_none_of_these():
    x, y = data()
    trained(x[: ROWS // 2], y[: ROWS // 2])
    assert not said(lambda: trained(x[ROWS // 2 :], y[ROWS // 2 :]))
    trained(*data())
    assert not said(lambda: trained(*data()))  # memory that is free again holds other rows


def test_models_whose_cost_is_counted_are_no_others(tmp_path):
    x, y = data()
    trunk = keras.layers.Dense(4)
    first = trained(x, y, model_of([trunk, keras.layers.Dense(2)]))
    first.save(tmp_path / "model.keras")
    assert not said(lambda: trained(x, y, first, epsilon=9.0))
    assert not said(lambda: trained(x, y, model_of([trunk, keras.layers.Dense(2)]), epsilon=12.0))
    again = keras.saving.load_model(tmp_path / "model.keras")
    same_rows._SEEN = same_rows._Seen()
    trained(x, y, first, epsilon=20.0)
    assert said(lambda: trained(x, y, again, epsilon=9.0))  # two branches of one history
    same_rows._SEEN = same_rows._Seen()
    with pytest.raises(ValueError, match="budget is spent"):
        trained(x, y, first, epsilon=1.0)
    assert not said(lambda: trained(x, y))  # the one before has released nothing on these rows since


@pytest.mark.slow
def test_a_recipe_is_seen_by_the_rows_that_it_was_given():
    x, y = data()
    recipe = lipdp.recipe((8,), 2, ROWS, epsilon=8.0)

    def fit():
        recipe.fit(x, y, epsilon=8.0, delta=1e-3, verbose=0)

    fit()
    assert said(fit)


@pytest.mark.slow
def test_audits_train_many_models_without_a_word():
    x, y = data()
    settings = {"epsilon": 8.0, "delta": 1e-3, "epochs": 1, "batch_size": 16, "strategy": "dpsgd"}
    assert not said(lambda: audit.lira(model_of, x, y, fit=settings, shadow_models=4))
