"""Language models: they learn what follows, and write it."""

import dataclasses

import numpy as np
import pytest

import lipdp
from lipdp import data, models

LENGTH = 16
TOKENIZER = data.RawByteTokenizer(LENGTH)


def said(rows, seed):
    rng = np.random.default_rng(seed)
    texts = [f"{rng.choice(['we', 'you'])} {rng.choice(['run', 'sing', 'eat'])} now" for _ in range(rows)]
    y = TOKENIZER(texts)
    return np.concatenate([np.ones((rows, 1), "int32"), y[:, :-1]], axis=1), y


@pytest.fixture(scope="module")
def model():
    x, y = said(512, 0)
    recipe = lipdp.recipe((LENGTH,), 258, 512, 100.0, task="language")
    recipe = dataclasses.replace(recipe, width=32, blocks=1, epochs=9, learning_rate=0.5)
    return recipe.fit(x, y, epsilon=100.0, delta=1e-4, verbose=0, seed=0)


@pytest.mark.slow
@pytest.mark.backend_free
def test_it_learns_more_than_how_often_bytes_are(model):
    x, y = said(200, 1)
    shares = np.bincount(y[y > 0], minlength=258) / np.count_nonzero(y)
    unigram = -np.mean(np.log2(shares[y[y > 0]]))
    assert models.bits_per_token(model, x, y) < unigram - 0.5 < 8.0
    assert models.bits_per_token(model, x, y, batch_size=7) == pytest.approx(models.bits_per_token(model, x, y), 1e-4)
    assert model.privacy.epsilon() <= 100.0


@pytest.mark.slow
@pytest.mark.backend_free
def test_it_writes(model):
    texts = models.write(model, TOKENIZER, 3, "we s", seed=1)
    assert len(texts) == 3 and all(text.startswith("we s") and len(text.encode()) <= LENGTH * 3 for text in texts)
    assert texts == models.write(model, TOKENIZER, 3, "we s", seed=1)
    assert len(set(models.write(model, TOKENIZER, 2, temperature=0))) == 1
    assert models.write(model, TOKENIZER, 1, "we sing now, oh", temperature=0)[0].startswith("we sing now, oh")
    with pytest.raises(ValueError, match="fills the whole text. Received: 16 bytes"):
        models.write(model, TOKENIZER, 1, "x" * LENGTH)
    with pytest.raises(ValueError, match="temperature"):
        models.write(model, TOKENIZER, 1, temperature=-1.0)
    with pytest.raises(ValueError, match="does not write what the tokenizer reads"):
        models.write(models.causal_attention(LENGTH, 9), TOKENIZER)
    with pytest.raises(ValueError, match="does not write what the tokenizer reads"):
        models.write(models.bag_of_tokens(LENGTH, 258, 258), TOKENIZER)


@pytest.mark.slow
def test_a_byte_that_ends_a_text_is_the_last_one():
    model = models.causal_attention(LENGTH, 258, width=8, blocks=1, heads=2)
    bias = np.zeros(258, "float32")
    bias[1] = 50.0
    model.get_layer("logits").bias.assign(bias)
    assert models.write(model, TOKENIZER, 2, "hi", seed=0) == ["hi", "hi"]
    bias[:] = 0.0
    bias[0] = 50.0  # padding is never written
    model.get_layer("logits").bias.assign(bias)
    x, y = said(2, 0)
    assert len(models.write(model, TOKENIZER, 1, seed=0)[0]) > 0 and models.bits_per_token(model, x, y) > 8.0


@pytest.mark.backend_free
def test_the_settings_follow_from_public_facts():
    recipe = models.language_recipe((64,), num_examples=8000)
    assert recipe == lipdp.recipe((64,), 258, 8000, task="language") and recipe.updates(8000) == 200
    assert recipe.learning_rate > models.language_recipe((64,), num_examples=800).learning_rate
    with pytest.raises(ValueError, match="row of tokens"):
        models.language_recipe((64, 2))
    with pytest.raises(ValueError, match="method"):
        models.language_recipe((64,), method="clipless")
    with pytest.raises(ValueError, match="without a token"):
        models.bits_per_token(models.causal_attention(4, 9), np.zeros((1, 4)), np.zeros((1, 4), "int32"))
