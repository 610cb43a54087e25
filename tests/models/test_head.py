"""The recipe of a head on what a frozen network makes of images or texts."""

import numpy as np
import pytest

import lipdp
from lipdp import models


def features(count, seed=0, unit=1.0):
    """Rows of three classes that hang together, as features do; `unit` and a shift of a row say nothing."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.normal(size=(count, 20)) + 2.5 * np.eye(20)[y]
    mixed = x @ np.random.default_rng(7).normal(size=(20, 20)) + 5.0 * rng.normal(size=(count, 1))
    return (unit * mixed).astype("float32"), y


@pytest.mark.slow  # `tests/cli/test_backbone.py` trains one
@pytest.mark.backend_free
@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e4])
def test_it_learns_in_any_unit(unit):
    recipe = lipdp.recipe((20,), 3, 600, 8.0, style="head")
    model = recipe.fit(*features(600, unit=unit), epsilon=8.0, delta=1e-4, verbose=0, seed=0)
    found = model.evaluate(*features(1000, 1, unit), verbose=0, return_dict=True)
    assert found["accuracy"] > 0.7 and found["loss"] < 1.5
    assert [entry.kind for entry in model.run.ledger.entries] == ["moments", "gradient"]


@pytest.mark.backend_free
def test_settings_follow_the_number_of_rows():
    few, many = (lipdp.recipe((64,), 5, count, 1.0, style="head") for count in (2000, 40000))
    assert few == models.head_recipe((64,), 5, 2000, 1.0) and isinstance(few, models.TableRecipe)
    assert (few.hidden, many.hidden) == (0, 64) and few.learning_rate == pytest.approx(many.learning_rate / 4.0)
    assert models.head_recipe((64,), 5, 4000, 4.0).hidden == 64 and models.head_recipe((64,), 5, 4000).hidden == 0
    assert not few.bounded and few.input_norm == 8.0
    assert few.build(2000).layers[0].name == "standardization"


@pytest.mark.backend_free
def test_what_it_does_not_take():
    with pytest.raises(ValueError, match="GlobalAveragePooling2D"):
        models.head_recipe((4, 4, 64), 5, 2000)
    with pytest.raises(ValueError, match="method.*dpsgd"):
        lipdp.recipe((64,), 5, 2000, style="head", method="clipless")
    for wrong in ({"rescaled": True}, {"row_norm": 2.0}, {"front_end": "robust"}):
        with pytest.raises(ValueError, match="A head reads features.*Leave one of them out"):
            lipdp.recipe((64,), 5, 2000, style="head", **wrong)
