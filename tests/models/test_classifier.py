"""Default settings: public facts in, a private model out."""

import dataclasses

import numpy as np
import pytest

from lipdp import bounds, certify
from lipdp.models import classifier


@pytest.mark.backend_free
@pytest.mark.parametrize(("epsilon", "updates"), [(0.5, 105), (1.0, 150), (2.0, 210), (4.0, 300)])
def test_the_recipe_for_mnist(epsilon, updates):
    recipe = classifier.classifier_recipe(
        (28, 28, 1), num_classes=10, num_examples=60000, epsilon=epsilon, method="clipless"
    )
    assert (recipe.batch_size, recipe.updates(60000)) == (4096, updates)
    assert (recipe.input_norm, recipe.inner_norm, recipe.temperature) == pytest.approx((7.0, 2.3, 17.0))
    assert (recipe.learning_rate, recipe.clip, recipe.noise) == (2.0, 0.2, "per_layer")


@pytest.mark.backend_free
@pytest.mark.parametrize("style", ["accurate", "robust"])  # "wrn" has no bounds
@pytest.mark.parametrize(
    ("shape", "classes", "examples"),
    [((28, 28, 1), 10, 60000), ((32, 32, 3), 10, 50000), ((8, 8, 1), 10, 1437), ((5,), 2, 300), ((1,), 3, 2)],
)
def test_every_recipe_builds_a_model_with_bounds(shape, classes, examples, style):
    recipe = classifier.classifier_recipe(shape, classes, examples, epsilon=2.0, style=style, method="clipless")
    assert 1 <= recipe.batch_size <= examples
    model = recipe.build(examples)
    assert model.output_shape == (None, classes)
    assert certify.lipschitz(model) <= 1.0 + 1e-3
    propagated = bounds.propagate(model, model.loss.lipschitz(classes))
    assert all(np.isfinite(propagated.gradient(v)) for v in model.trainable_variables)
    assert recipe.method != "clipless" or recipe.strategy().noise == recipe.noise
    assert float(model.optimizer.learning_rate) == pytest.approx(recipe.learning_rate)


@pytest.mark.backend_free
def test_the_robust_recipe_aims_at_a_radius():
    shape = (28, 28, 1), 10, 60000, 2.0, "robust"
    near, far = (classifier.classifier_recipe(*shape, radius=r) for r in (0.1, 1.0))
    assert near.temperature > far.temperature > 0.0
    assert classifier.classifier_recipe(*shape) == classifier.classifier_recipe(*shape, radius=0.5)
    recipe = classifier.classifier_recipe(*shape)
    assert (recipe.method, recipe.strategy().clipping, recipe.updates(60000)) == ("dpsgd", "automatic", 400)
    assert classifier.classifier_recipe(*shape, method="clipless").strategy().name == "clipless"
    model = recipe.build(60000)
    assert [layer.name for layer in model.layers][1:4] == ["low_frequencies", "bounded_input", "flatten"]
    assert model.get_layer("hidden").kernel.shape == (144, 128)
    # Few images have more noise in an update.
    rates = [
        classifier.classifier_recipe((28, 28, 1), 10, n, 2.0, "robust").learning_rate for n in (1000, 25000, 60000)
    ]
    assert rates == pytest.approx([rates[2] / 50, rates[2] / 2, 2.5])
    # Small images, and tables: clipless.
    assert classifier.classifier_recipe((8, 8, 1), 10, 1437, 2.0, "robust").method == "clipless"
    for wrong in ({"style": "accurate"}, {"input_shape": (5,)}, {"front_end": "robust"}, {"radius": 2.0}):
        arguments = {"input_shape": (28, 28, 1), "style": "robust", "radius": 0.5, **wrong}
        with pytest.raises(ValueError, match="radius"):
            classifier.classifier_recipe(num_classes=10, num_examples=60000, **arguments)
    for examples in (1000, 60000):
        with pytest.raises(ValueError, match="style='robust'. Pass front_end='robust', or no front end"):
            classifier.classifier_recipe((28, 28, 1), 10, examples, 2.0, "robust", front_end="accurate")


def test_a_recipe_is_changed_by_replacing():
    recipe = classifier.classifier_recipe((8, 8, 1), 10, 1437, 4.0)
    changed = dataclasses.replace(recipe, batch_size=100, epochs=3)
    assert changed.updates(1437) == 45
    with pytest.raises(dataclasses.FrozenInstanceError):
        changed.epochs = 4


def test_old_names_warn_and_work():
    with pytest.warns(DeprecationWarning, match="classifier_recipe"):
        assert classifier.recipe is classifier.classifier_recipe
    with pytest.warns(DeprecationWarning, match="ClassifierRecipe"):
        assert classifier.Recipe is classifier.ClassifierRecipe
    recipe = classifier.classifier_recipe((8, 8, 1), np.int64(10), np.int64(1437), np.float32(4.0))
    settings = dataclasses.asdict(recipe)
    settings["centred"] = not settings.pop("centered")
    with pytest.warns(DeprecationWarning, match="`centred=`"):
        changed = classifier.ClassifierRecipe(**settings)
    with pytest.warns(DeprecationWarning, match="`centered`"):
        assert changed.centred is changed.centered is False


@pytest.mark.parametrize("name, value", [("num_classes", True), ("num_examples", 0), ("epsilon", -1.0)])
def test_bad_arguments_are_named(name, value):
    arguments = {"num_classes": 10, "num_examples": 1437, name: value}
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        classifier.classifier_recipe((8, 8, 1), **arguments)


def test_an_unknown_style_is_refused():
    with pytest.raises(ValueError, match="style='fast'"):
        classifier.classifier_recipe((8, 8, 1), 10, 1437, 4.0, style="fast")


@pytest.mark.backend_free
@pytest.mark.parametrize("front_end", ["accurate", "robust"])
def test_a_front_end_is_a_first_layer_with_bounds(front_end):
    recipe = classifier.classifier_recipe((16, 16, 1), 10, 1000, 2.0, front_end=front_end)
    model = recipe.build(1000)
    assert model.layers[0].name == "scattering" and model.output_shape == (None, 10)
    propagated = bounds.propagate(model, model.loss.lipschitz(10))
    assert all(np.isfinite(propagated.gradient(v)) for v in model.trainable_variables)


@pytest.mark.backend_free
def test_methods_and_row_norms():
    clipless = classifier.classifier_recipe((6,), 2, 300, 2.0, row_norm=1.5, method="clipless")
    assert clipless.input_norm == 1.5 and clipless.strategy().name == "clipless"
    more = classifier.classifier_recipe((6,), 2, 8000, 2.0, row_norm=1.5, method="clipless")
    assert clipless.learning_rate == pytest.approx(more.learning_rate * 300 / 4000)
    for method in classifier.METHODS[1:]:
        recipe = classifier.classifier_recipe((6,), 2, 300, 2.0, method=method)
        assert recipe.strategy().name == method and recipe.strategy().clip_norm == recipe.clip_norm
    for wrong in ({"method": "sgd"}, {"front_end": "robust"}, {"row_norm": 0.0}, {"front_end": "wide"}):
        with pytest.raises(ValueError, match="Received"):
            classifier.classifier_recipe((6,), 2, 300, 2.0, **wrong)
