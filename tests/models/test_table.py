"""The recipe for the accuracy of tables: private moments of the columns, one hidden layer."""

import dataclasses

import keras
import numpy as np
import pytest

import lipdp
from lipdp import models
from lipdp.accounting import Sampling
from lipdp.accounting.composition import compose


def rows(count=3000, seed=0):
    """A rare column and one of another scale decide; the others say nothing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype("float32") * np.array([1, 0.02, 1, 1, 1, 1], "float32")
    x[:, 0] = rng.random(count) < 0.1
    return x, ((x[:, 0] > 0.5) ^ (x[:, 1] > 0.0)).astype("int32")


@pytest.mark.slow  # `tests/cli/test_tables.py` trains one
def test_it_learns_whatever_the_scale_of_a_column():
    keras.utils.set_random_seed(0)
    (x, y), held_out = rows(), rows(1000, 1)
    model = lipdp.recipe((6,), 2, len(x), 4.0).fit(x, y, epsilon=4.0, delta=1e-4, verbose=0, seed=0)
    assert model.evaluate(*held_out, verbose=0, return_dict=True)["accuracy"] > 0.8
    assert [(entry.kind, entry.count) for entry in model.run.ledger.entries] == [("moments", 2), ("gradient", 262)]
    assert 3.9 < model.privacy.epsilon() <= 4.0


@pytest.mark.backend_free
def test_tables_take_it_unless_certificates_are_asked_for():
    recipe = lipdp.recipe((6,), 2, 3000, 1.0)
    assert isinstance(recipe, models.TableRecipe) and recipe == models.table_recipe((6,), 2, 3000, 1.0)
    assert (recipe.method, recipe.batch_size, recipe.updates(3000)) == ("dpsgd", 1500, 150)
    # Few rows have more noise in an update.
    rates = [lipdp.recipe((6,), 2, n, 1.0).learning_rate for n in (800, 4000, 8000, 40000, 60000, 10**6)]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 1.0, 1.5, 2.0])
    # Many rows have less, and take more updates.
    assert [lipdp.recipe((6,), 2, n, 1.0).updates(n) for n in (40000, 80000)] == [150, 300]
    assert [lipdp.recipe((6,), 2, n, 1.0).epochs for n in (10**6, 10**7)] == [2, 2]
    assert not recipe.bounded and recipe.input_norm == pytest.approx(6**0.5)
    for own in ({"method": "clipless"}, {"style": "robust"}):
        assert isinstance(lipdp.recipe((6,), 2, 3000, 1.0, **own), models.ClassifierRecipe)
    assert lipdp.recipe((6,), 2, 3000, 1.0, row_norm=2.0).input_norm == 2.0
    assert lipdp.recipe((6,), 2, 10**6, 1.0).batch_size == 8192


@pytest.mark.backend_free
def test_the_network_and_what_it_releases_first():
    recipe = dataclasses.replace(models.table_recipe((6,), 3, 100, 2.0), hidden=5)
    layers = recipe.build(100).layers
    assert [layer.name for layer in layers] == ["bounded_input", "normalization", "hidden", "logits"]
    assert layers[0].norm == layers[1].norm == recipe.input_norm and layers[2].units == 5
    assert [layer.name for layer in dataclasses.replace(recipe, hidden=0).build(100).layers][-1] == "logits"
    (found,) = recipe.first_releases(Sampling("poisson").bind(100, 50))
    assert (found.noise_multiplier, found.count) == (12.0, 2)
    # A row of any length changes the logits no more than one of the norm.
    layers[1].set_mean(np.full(6, 0.5))
    model, row = recipe.build(100), np.ones((1, 6), "float32")
    assert np.allclose(model.predict(1e6 * row, verbose=0), model.predict(10.0 * row, verbose=0), atol=1e-4)


@pytest.mark.backend_free
def test_one_hidden_unit_is_constant_at_the_start():
    recipe = models.table_recipe((6,), 2, 100, 2.0)
    kernel, bias = recipe.build(100).get_layer("hidden").get_weights()
    assert bias[0] == recipe.constant_unit == 5.0 and not kernel[:, 0].any()
    assert kernel[:, 1:].any(axis=0).all() and not bias[1:].any()
    own = dataclasses.replace(recipe, constant_unit=0.0).build(100).get_layer("hidden").get_weights()
    assert own[0].any(axis=0).all() and not own[1].any()
    assert models.head_recipe((6,), 2, 50000, 8.0).constant_unit == 0.0


@pytest.mark.slow
def test_columns_in_any_units_are_learned_within_the_same_budget():
    (x, y), (x_test, y_test) = rows(), rows(1000, 1)
    units = np.array([1e-4, 1e5, 1.0, 30.0, 1e3, 1e-2], "float32")
    shift = np.array([1e-3, -4e5, 7.0, 90.0, 0.0, 0.3], "float32")
    found = []
    for settings in ({}, {"rescaled": True}):
        keras.utils.set_random_seed(0)
        model = lipdp.recipe((6,), 2, len(x), 4.0, **settings).fit(
            x * units + shift, y, epsilon=4.0, delta=1e-4, verbose=0, seed=0
        )
        found.append(model.evaluate(x_test * units + shift, y_test, verbose=0, return_dict=True)["accuracy"])
        assert 3.9 < model.privacy.epsilon() <= 4.0
    # What was released is what was planned for.
    first = sum(entry.count for entry in model.run.ledger.entries if entry.kind == "moments")
    assert first == lipdp.recipe((6,), 2, len(x), 4.0, rescaled=True).num_releases
    assert model.layers[0].name == "rescaling" and model.layers[0].noise_multiplier == 8.0
    assert found[1] > 0.78 and found[1] > found[0] + 0.05, found


@pytest.mark.backend_free
def test_ranges_are_part_of_what_a_recipe_plans_for():
    recipe = models.table_recipe((6,), 2, 3000, 2.0, rescaled=True)
    found = recipe.first_releases(Sampling("poisson").bind(3000, 1500))
    assert [(one.noise_multiplier, one.count) for one in found] == [(12.0, 5)]


@pytest.mark.backend_free
@pytest.mark.parametrize("epsilon", [0.03, 0.25, 1.0, 8.0])
def test_moments_leave_most_of_every_budget(epsilon):
    recipe = models.table_recipe((6,), 2, 3000, epsilon)
    sampling = Sampling("poisson").bind(3000, recipe.batch_size)
    assert compose(recipe.first_releases(sampling), 1e-5, "pld") < 0.35 * epsilon


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "wrong",
    [
        {"input_shape": (2, 2)},
        {"num_classes": 1},
        {"method": "clipless"},
        {"row_norm": 1e7},
        {"row_norm": 2.0, "rescaled": True},
        {"rescaled": "yes"},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="Received"):
        models.table_recipe(**{"input_shape": (6,), "num_classes": 2, "num_examples": 100, **wrong})


@pytest.mark.backend_free
def test_who_wants_to_predict_a_number_is_told_where():
    with pytest.raises(ValueError, match="num_classes=1. .* docs/howto/regression.md"):
        lipdp.recipe((6,), num_classes=1, num_examples=100, epsilon=1.0)


@pytest.mark.backend_free
@pytest.mark.parametrize("own", [{"method": "clipless"}, {"style": "robust"}, {"input_shape": (8, 8, 1)}])
def test_ranges_are_released_for_accurate_tables_only(own):
    with pytest.raises(ValueError, match="rescaled=True"):
        lipdp.recipe(**{"input_shape": (6,), "num_classes": 2, "num_examples": 3000, "rescaled": True} | own)
