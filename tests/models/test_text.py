"""Recipes of texts: what each of them can learn, and what it cannot."""

import dataclasses

import numpy as np
import pytest

import lipdp
from lipdp import models


def ordered(rows, seed, length=8):
    """Texts in which two words stand in an order that is their class; nothing else differs."""
    rng = np.random.default_rng(seed)
    x, y = np.zeros((rows, length), "int32"), rng.integers(0, 2, rows)
    for row, kind in zip(x, y, strict=True):
        size = rng.integers(5, length + 1)
        row[:size] = rng.integers(3, 12, size)
        row[np.sort(rng.choice(size, 2, replace=False))] = (1, 2) if kind else (2, 1)
    return x, y


@pytest.mark.slow
@pytest.mark.backend_free
def test_attention_learns_an_order_and_a_bag_does_not():
    (x, y), (x_test, y_test) = ordered(600, 0), ordered(400, 1)
    reached = {}
    for style in ("linear", "attention"):
        recipe = lipdp.recipe((8,), 2, 600, 50.0, task="text", style=style, vocabulary_size=12)
        recipe = dataclasses.replace(recipe, epochs=9)
        model = recipe.fit(x, y, epsilon=50.0, delta=1e-4, verbose=0, seed=0)
        reached[style] = model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
    assert reached["attention"] > 0.9 and reached["linear"] < 0.6


@pytest.mark.backend_free
def test_a_head_is_that_of_any_features():
    found = lipdp.recipe((20,), 3, 600, 8.0, task="text", style="head", method="adaclip")
    assert found == models.head_recipe((20,), 3, 600, 8.0, method="adaclip")


@pytest.mark.backend_free
def test_the_settings_follow_from_public_facts():
    attention = models.text_recipe((128,), 2, 8000, style="attention")
    assert attention.vocabulary_size == 4097 and attention.updates(8000) == 120
    assert models.text_recipe((128,), 2, 8000).vocabulary_size == 32769
    rates = [models.text_recipe((128,), 2, count, epsilon).learning_rate for count, epsilon in ((500, 1), (9000, 8))]
    assert rates == pytest.approx([0.625, 80.0])
    assert models.text_recipe((128,), 2, 500, 1.0, style="attention").learning_rate < attention.learning_rate
    with pytest.raises(ValueError, match="style.*linear.*attention"):
        models.text_recipe((128,), 2, 8000, style="recurrent")
