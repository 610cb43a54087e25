"""The recipe for a number of a table: in the unit of the target, with a gradient that no row makes large."""

import dataclasses

import keras
import numpy as np
import pytest

import lipdp
from lipdp import losses
from lipdp.models import regression_recipe

RANGE = (100.0, 900.0)


def rows(count=3000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (count, 3)).astype("float32")
    return x, (400.0 + 200.0 * x[:, 0] - 100.0 * np.abs(x[:, 1])).astype("float32")


def test_it_starts_at_the_middle_of_the_range():
    x, _ = rows(5)
    model = regression_recipe((3,), 3000, RANGE, 2.0).build(3000)
    np.testing.assert_allclose(model.predict(x, verbose=0), 500.0)


def test_it_learns_in_the_unit_of_the_target(tmp_path):
    x, y = rows()
    recipe = lipdp.recipe((3,), 1, 3000, 8.0, task="regression", target_range=RANGE)
    keras.utils.set_random_seed(0)
    held_out = rows(500, seed=1)
    model = recipe.fit(x, y, epsilon=8.0, delta=1e-5, seed=3, verbose=0, validation_data=held_out)
    off = np.abs(recipe.clipped(model.predict(held_out[0], verbose=0)) - held_out[1]).mean()
    assert off < 0.6 * np.abs(held_out[1] - held_out[1].mean()).mean()
    assert model.history.history["val_mean_absolute_error"][-1] == pytest.approx(off, rel=0.05)  # which is not clipped
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(x[:9], verbose=0), model.predict(x[:9], verbose=0))
    assert again.loss.scale == 800.0


def test_predictions_are_clipped_to_the_range():
    recipe = regression_recipe((3,), 3000, RANGE)
    assert recipe.clipped([[-1e9], [250.0], [1e9]]).tolist() == [100.0, 250.0, 900.0]


def test_a_target_far_beyond_the_range_moves_no_more_than_others():
    recipe = regression_recipe((3,), 3000, RANGE)
    loss = recipe._loss(None)
    assert isinstance(loss, losses.Huber)
    near, far = (np.asarray(loss.gradient([[y]], [[500.0]])) for y in (600.0, 1e30))
    np.testing.assert_array_equal(near, far)


def test_settings_are_those_of_tables_but_for_the_target():
    recipe = regression_recipe((3,), 20000, RANGE, 1.0, rescaled=True)
    assert recipe.rescaled and recipe.num_releases == 5 and recipe.num_classes == 1
    assert dataclasses.replace(recipe, huber=0.3)._loss(None).delta == 0.3


@pytest.mark.parametrize("wrong", [(1.0, 1.0), (5, 2), (0, float("inf")), None])
def test_a_range_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="A range must be two numbers.*target_range"):
        regression_recipe((3,), 3000, wrong)


def test_classes_are_refused():
    with pytest.raises(ValueError, match="one output. Received: num_classes=3. Pass 1"):
        lipdp.recipe((3,), 3, 3000, task="regression", target_range=RANGE)
