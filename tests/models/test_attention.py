"""Small transformers: padding is nothing, order is something, and no layer is slow."""

import keras
import numpy as np
import pytest

from lipdp import isolation, models
from lipdp.gradients import rules
from lipdp.gradients.leaves import leaves
from tests.gradients.test_lora import moved
from tests.helpers.reference import compare

TEXTS = np.array([[3, 5, 2, 0, 0, 0], [5, 3, 2, 0, 0, 0], [4, 4, 1, 6, 2, 5], [0, 0, 0, 0, 0, 0]], "int32")


@pytest.mark.slow
def test_padding_is_nothing_to_a_text():
    model = moved(models.text_attention(6, 8, 3, width=8, blocks=2, heads=2))
    before = model.predict_on_batch(TEXTS)
    words = model.get_layer("words").embeddings
    words.assign(keras.ops.concatenate([1e3 + 0.0 * words[:1], words[1:]]))
    assert np.allclose(model.predict_on_batch(TEXTS), before, atol=1e-5) and np.isfinite(before).all()
    longer = models.text_attention(11, 8, 3, width=8, blocks=2, heads=2)
    for old, new in zip(model.weights, longer.weights, strict=True):
        value = keras.ops.convert_to_numpy(old)
        new.assign(np.pad(value, [(0, n - o) for o, n in zip(value.shape, new.shape, strict=True)]))
    padded = np.pad(TEXTS, [(0, 0), (0, 5)])
    assert np.allclose(longer.predict_on_batch(padded), before, atol=1e-5)


def test_the_order_of_words_counts():
    first, second, *_ = moved(models.text_attention(6, 8, 3, width=8, heads=2)).predict_on_batch(TEXTS)
    assert np.abs(first - second).max() > 1e-3


def test_no_place_sees_a_later_one():
    model = moved(models.causal_attention(6, 8, width=8, heads=2))
    other = TEXTS.copy()
    other[:, 3:] = 7
    before, after = model.predict_on_batch(TEXTS), model.predict_on_batch(other)
    assert np.allclose(before[:, :3], after[:, :3], atol=1e-5) and np.abs(before[:, 3] - after[:, 3]).max() > 1e-3


@pytest.mark.backend_free
@pytest.mark.parametrize("make", [lambda: models.text_attention(6, 8, 3), lambda: models.causal_attention(6, 8)])
def test_each_layer_has_a_rule_and_keeps_rows_apart(make):
    model = make()
    assert not isolation.foreign(model)
    assert rules.fallback not in [rule for _, rule in leaves(model)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [pytest.param(models.text_attention, marks=pytest.mark.backend_free), models.causal_attention]
)
def test_gradients_per_example_are_those_of_each_text_alone(make):
    own = (3,) if make is models.text_attention else ()
    compare(moved(make(6, 8, *own, width=8, blocks=1, heads=2)), TEXTS[:3], tolerance=3e-5)


@pytest.mark.backend_free
def test_sizes():
    for wrong in ({"width": 0}, {"blocks": 0}, {"heads": 0}, {"width": 6}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            models.text_attention(6, 8, 3, **wrong)
    with pytest.raises(ValueError, match="length"):
        models.causal_attention(0, 8)
