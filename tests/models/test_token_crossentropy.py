"""The loss of a language model: of a text alone, over its own tokens."""

import keras
import numpy as np
import pytest

from lipdp import models
from lipdp.losses.per_example import check_per_example, example_values

LABELS = np.array([[3, 1, 0, 0], [2, 3, 4, 1], [0, 0, 0, 0]])
LOGITS = np.random.default_rng(0).normal(size=(3, 4, 6)).astype("float32")


def values(labels, logits):
    return keras.ops.convert_to_numpy(example_values(models.TokenCrossentropy(), labels, logits))


@pytest.mark.slow
def test_the_average_is_over_the_tokens_of_a_text():
    shares = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    chosen = -np.log(np.take_along_axis(shares, LABELS[..., None], -1)[..., 0])
    expected = [chosen[0, :2].mean(), chosen[1].mean(), 0.0]
    assert np.allclose(values(LABELS, LOGITS), expected, atol=1e-5)
    whole = models.TokenCrossentropy()(LABELS, LOGITS)
    assert float(whole) == pytest.approx(np.mean(expected), abs=1e-5)


@pytest.mark.slow
def test_padding_and_other_texts_are_nothing_to_it():
    other = np.where(LABELS[..., None] == 0, LOGITS + 9.0, LOGITS)
    assert np.allclose(values(LABELS, other), values(LABELS, LOGITS), atol=1e-5)
    more = np.pad(LABELS, [(0, 0), (0, 3)]), np.pad(LOGITS, [(0, 0), (0, 3), (0, 0)])
    assert np.allclose(values(*more), values(LABELS, LOGITS), atol=1e-5)
    alone = [values(LABELS[i : i + 1], LOGITS[i : i + 1])[0] for i in range(3)]
    assert np.allclose(alone, values(LABELS, LOGITS), atol=1e-5)


@pytest.mark.backend_free
def test_labels_are_checked_and_files_hold_it():
    loss = models.TokenCrossentropy()
    check_per_example(loss, LABELS, (None, 4, 6))
    with pytest.raises(ValueError, match="class ids from 0 to 5"):
        check_per_example(loss, LABELS + 4, (None, 4, 6))
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is models.TokenCrossentropy and again.ignore_class == 0
