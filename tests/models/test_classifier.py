"""Default settings: public facts in, a private model out."""

import dataclasses

import numpy as np
import pytest

from lipdp import bounds, certify
from lipdp.models import classifier


@pytest.mark.parametrize(("epsilon", "updates"), [(0.5, 105), (1.0, 150), (2.0, 210), (4.0, 300)])
def test_the_recipe_for_mnist(epsilon, updates):
    made = classifier.recipe((28, 28, 1), num_classes=10, num_examples=60000, epsilon=epsilon)
    assert (made.batch_size, made.updates(60000)) == (4096, updates)
    assert (made.input_norm, made.inner_norm, made.temperature) == pytest.approx((7.0, 2.3, 17.0))
    assert (made.learning_rate, made.clip, made.noise) == (2.0, 0.2, "per_layer")


@pytest.mark.parametrize("style", classifier.STYLES)
@pytest.mark.parametrize(
    ("shape", "classes", "examples"),
    [((28, 28, 1), 10, 60000), ((32, 32, 3), 10, 50000), ((8, 8, 1), 10, 1437), ((5,), 2, 300), ((1,), 3, 2)],
)
def test_every_recipe_builds_a_model_with_bounds(shape, classes, examples, style):
    made = classifier.recipe(shape, classes, examples, epsilon=2.0, style=style)
    assert 1 <= made.batch_size <= examples
    model = made.build(examples)
    assert model.output_shape == (None, classes)
    assert certify.lipschitz(model) <= 1.0 + 1e-3
    found = bounds.propagate(model, model.loss.lipschitz(classes))
    assert all(np.isfinite(found.gradient(v)) for v in model.trainable_variables)
    assert made.strategy().noise == made.noise
    assert float(model.optimizer.learning_rate) == pytest.approx(made.learning_rate)


def test_a_recipe_is_changed_by_replacing():
    made = classifier.recipe((8, 8, 1), 10, 1437, 4.0)
    changed = dataclasses.replace(made, batch_size=100, epochs=3)
    assert changed.updates(1437) == 45
    with pytest.raises(dataclasses.FrozenInstanceError):
        changed.epochs = 4


def test_an_unknown_style_is_refused():
    with pytest.raises(ValueError, match="style='fast'"):
        classifier.recipe((8, 8, 1), 10, 1437, 4.0, style="fast")
