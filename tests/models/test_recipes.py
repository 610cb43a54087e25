"""One line from data to a trained model."""

import dataclasses

import numpy as np
import pytest

import lipdp
from lipdp import data, diffusion, models

pytestmark = pytest.mark.backend_free


@pytest.mark.slow
def test_a_classifier_that_learns():
    digits = data.load("digits")
    recipe = lipdp.recipe(digits.input_shape, digits.num_classes, digits.num_examples, epsilon=8.0)
    model = recipe.fit(digits.x_train, digits.y_train, epsilon=8.0, delta=1e-4, verbose=0, seed=0)
    assert model.privacy.epsilon() == pytest.approx(8.0, abs=1e-3)
    assert model.evaluate(digits.x_test, digits.y_test, verbose=0, return_dict=True)["accuracy"] > 0.9


@pytest.mark.slow  # `tests/cli/test_diffusion.py` trains one
def test_a_diffusion_model():
    digits = data.load("digits")
    recipe = lipdp.recipe((8, 8, 1), 10, 64, task="diffusion", updates=2, batch_size=16)
    model = recipe.fit(digits.x_train[:64], digits.y_train[:64], epsilon=8.0, delta=1e-3, verbose=0)
    assert isinstance(model, diffusion.DiffusionModel) and model.privacy.updates == 2
    assert model.sample(2, np.array([1, 2])).shape == (2, 8, 8, 1)


def test_it_is_the_recipe_of_its_task():
    same = {"input_shape": (8,), "num_classes": 3, "num_examples": 500, "epsilon": 2.0}
    assert lipdp.recipe(**same) == models.classifier_recipe(**same)
    robust = lipdp.recipe((8, 8, 1), 3, 500, style="robust")
    assert robust == models.classifier_recipe((8, 8, 1), 3, 500, style="robust")
    assert lipdp.recipe((8, 8, 1), 3, 500, task="diffusion") == diffusion.recipe((8, 8, 1), 3, 500)


@pytest.mark.parametrize("task", ["classifier", "diffusion"])
def test_channels_that_seem_to_come_first_are_warned_of(task, recwarn):
    with pytest.warns(UserWarning, match=r"channels last here.*\(3, 32, 32\).*numpy\.moveaxis\(x, 1, -1\)"):
        lipdp.recipe((3, 32, 32), 3, 500, task=task)
    for shape in ((32, 32, 3), (3, 32, 3), (1, 28, 64), (4, 4, 4), (3, 3, 3)):
        lipdp.recipe(shape, 3, 500, task=task)
    assert not recwarn


def test_what_the_recipe_sets_is_not_passed_again():
    recipe = dataclasses.replace(lipdp.recipe((8,), 3, 500, 2.0), epochs=2)
    with pytest.raises(TypeError, match="batch_size=3.*dataclasses.replace"):
        recipe.fit(np.zeros((9, 8)), np.zeros(9), epsilon=1.0, batch_size=3)
    with pytest.raises(TypeError, match="epochs=3"):
        lipdp.recipe((8, 8, 1), 3, 500, task="diffusion").fit(np.zeros((9, 8, 8, 1)), np.zeros(9), epsilon=1, epochs=3)
    with pytest.raises(ValueError, match="task.*classifier.*diffusion"):
        lipdp.recipe((8,), 3, 500, task="segmentation")


@pytest.mark.slow
def test_texts_that_learn():
    rng = np.random.default_rng(0)
    words, y = np.array("good bad of the and it day film".split()), rng.integers(0, 2, 1000)
    texts = [" ".join([*rng.choice(words[2:], 12), words[1 - kind]]) for kind in y]
    x = data.ByteTokenizer(64)(texts)
    recipe = lipdp.recipe((64,), 2, 800, epsilon=8.0, task="text")
    assert recipe == models.text_recipe((64,), 2, 800, 8.0)
    model = recipe.fit(x[:800], y[:800], epsilon=8.0, delta=1e-4, verbose=0, seed=0)
    assert model.evaluate(x[800:], y[800:], verbose=0, return_dict=True)["accuracy"] > 0.9
    assert lipdp.recipe((64,), 2, 10**6, 1.0, task="text").batch_size == 8192
    with pytest.raises(ValueError, match="row of tokens"):
        lipdp.recipe((8, 8, 1), 2, 500, task="text")


@pytest.mark.parametrize("task", ["classifier", "diffusion", "text", "language"])
@pytest.mark.parametrize("shape", [10, (), (8, 0), ("8",), np.full((3, 8), 0.25), (np.full(3, 0.25), 1)])
def test_what_is_no_shape_is_refused_without_its_numbers(task, shape):
    with pytest.raises(ValueError, match=r"shape of one example.*Pass x.shape\[1:\]") as error:
        lipdp.recipe(shape, 3, 300, 1.0, task=task)
    assert "0.25" not in str(error.value)
