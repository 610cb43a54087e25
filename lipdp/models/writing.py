"""Texts that a language model writes."""

from typing import Any

import keras
import numpy as np

from lipdp import checks


def write(
    model: keras.Model,
    tokenizer: Any,
    num: int = 1,
    prompt: str = "",
    temperature: float = 1.0,
    seed: int | None = None,
) -> list[str]:
    """Returns texts that a language model writes, token by token, each drawn from what the model expects.

    Args:
        model: A language model as `lipdp.recipe(..., task="language")` trains it.
        tokenizer: `data.RawByteTokenizer`, of any length: `dataset.texts.tokenizer`.
        num: How many texts, at least 1.
        prompt: What each of them begins with.
        temperature: Divides the logits: below 1 the texts are more alike, at 0 each token is the likeliest one.
        seed: Repeatable; it costs no privacy.

    Returns:
        The texts, the prompt included; of bytes, what is no UTF-8 becomes the replacement character.

    Raises:
        ValueError: an argument is out of range, the prompt fills the whole length, or the model does not write what
            the tokenizer reads.

    Example:
        >>> from lipdp.data import RawByteTokenizer
        >>> from lipdp.models import causal_attention
        >>> [text[:3] for text in write(causal_attention(12, 258), RawByteTokenizer(12), 2, "I am", seed=0)]
        ['I a', 'I a']

    **Guarantee.** Texts follow from the weights alone: any number of them costs no further privacy.
    """
    checks.integer("num", num, 1)
    checks.not_negative("temperature", temperature)
    if seed is not None:
        checks.integer("seed", seed, 0)
    shapes = getattr(model, "input_shape", None), getattr(model, "output_shape", None)
    size = tokenizer.vocabulary_size
    if not all(isinstance(s, tuple) for s in shapes) or shapes[1] != (None, shapes[0][-1], size):
        raise ValueError(
            f"The model does not write what the tokenizer reads. Received: inputs of shape {shapes[0]}, outputs of "
            f"shape {shapes[1]}, {size} tokens. Pass a model that lipdp.recipe(..., task='language') trained."
        )
    length, rng = shapes[0][-1], np.random.default_rng(seed)
    begun = tokenizer.tokens(prompt)[:-1]
    if len(begun) >= length:
        raise ValueError(
            f"The prompt fills the whole text. Received: {len(begun)} {tokenizer.unit}, the model writes {length}. "
            "Shorten it."
        )
    written = np.zeros((num, length + 1), "int32")
    written[:, 0] = tokenizer.end
    written[:, 1 : 1 + len(begun)] = begun
    open_ = np.ones(num, bool)
    for place in range(len(begun), length):
        if not open_.any():
            break
        logits = np.asarray(model.predict_on_batch(written[:, :-1]))[:, place].astype("float64")
        logits[:, 0] = -np.inf  # padding is nothing that can be written
        drawn = _draw(logits, temperature, rng)
        written[:, place + 1] = np.where(open_, drawn, 0)
        open_ &= drawn != tokenizer.end
    return [tokenizer.text(row[1:]) for row in written]


def _draw(logits: np.ndarray, temperature: float, rng: np.random.Generator) -> np.ndarray:
    """Returns a token for each row, by Gumbel's trick."""
    if temperature == 0:
        return logits.argmax(axis=1)
    return (logits / temperature + rng.gumbel(size=logits.shape)).argmax(axis=1)
