"""Small transformers for texts, of stock Keras layers that all have fast rules for gradients per example."""

from typing import Any

import keras
from keras import ops

from lipdp import checks


def text_attention(
    length: int, vocabulary_size: int, num_classes: int, width: int = 64, blocks: int = 1, heads: int = 4
) -> keras.Model:
    """Returns a classifier of texts by attention: unlike `bag_of_tokens` it sees in which order the words stand.

    Embeddings of tokens and of their places; blocks of attention and a dense network, each behind a normalization and
    beside a shortcut; the mean over the places of a text; a dense layer that begins at zero. Padding is left out
    everywhere: the logits of a text do not change with it.

    Args:
        length: Tokens of a text.
        vocabulary_size: Tokens are from 0 to `vocabulary_size - 1`; 0 is padding, behind the text.
        num_classes: Number of classes.
        width: Of the embeddings; a multiple of `heads`.
        blocks: How many blocks.
        heads: Of the attention.

    Returns:
        A functional `keras.Model`; make it private with `lipdp.DP_Model.from_keras`.

    Raises:
        ValueError: a size is not a whole number from 1 on, or the heads do not divide the width.

    Example:
        >>> text_attention(20, 50, 2).output_shape
        (None, 2)
    """
    checks.integer("num_classes", num_classes, 1)
    tokens = keras.Input((length,), dtype="int32", name="tokens")
    there = ops.cast(ops.not_equal(tokens, 0), "float32")
    mask = keras.layers.Reshape((1, length), name="mask")(there)
    x = _blocks(tokens, vocabulary_size, width, blocks, heads, attention_mask=mask)
    kept = keras.layers.Reshape((length, 1), name="there")(there)
    total = ops.sum(keras.layers.Multiply(name="kept")([x, kept]), axis=1)
    mean = ops.divide(total, ops.maximum(ops.sum(kept, axis=1), 1.0))
    logits = keras.layers.Dense(num_classes, kernel_initializer="zeros", name="logits")(mean)
    return keras.Model(tokens, logits, name="text_attention")


def causal_attention(
    length: int, vocabulary_size: int, width: int = 64, blocks: int = 2, heads: int = 4
) -> keras.Model:
    """Returns a language model: at each place the logits of the next token, from the tokens up to there.

    The blocks of `text_attention`, where no place sees a later one. Padding is behind the text, so that no place of the
    text sees it.

    Args:
        length: Tokens of a text.
        vocabulary_size: Tokens are from 0 to `vocabulary_size - 1`; 0 is padding, behind the text.
        width: Of the embeddings; a multiple of `heads`.
        blocks: How many blocks.
        heads: Of the attention.

    Returns:
        A functional `keras.Model`; make it private with `lipdp.DP_Model.from_keras`.

    Raises:
        ValueError: a size is not a whole number from 1 on, or the heads do not divide the width.

    Example:
        >>> causal_attention(20, 50).output_shape
        (None, 20, 50)
    """
    tokens = keras.Input((length,), dtype="int32", name="tokens")
    x = _blocks(tokens, vocabulary_size, width, blocks, heads, use_causal_mask=True)
    logits = keras.layers.Dense(vocabulary_size, kernel_initializer="zeros", name="logits")(x)
    return keras.Model(tokens, logits, name="causal_attention")


def _blocks(tokens: Any, vocabulary_size: int, width: int, blocks: int, heads: int, **how: Any) -> Any:
    """Returns a vector for each place of a text."""
    for name, value in (("vocabulary_size", vocabulary_size), ("width", width), ("blocks", blocks), ("heads", heads)):
        checks.integer(name, value, 1)
    if width % heads:
        raise ValueError(f"The heads must divide the width. Received: width={width}, heads={heads}. Change one.")
    length = checks.integer("length", tokens.shape[1], 1)
    # Counted, as a tensor of the places alone would have no batch; 0 is never looked up by what counts.
    places = ops.cumsum(ops.cast(ops.not_equal(tokens, 0), "int32"), axis=1)
    words = keras.layers.Embedding(vocabulary_size, width, name="words")(tokens)
    x = keras.layers.Add(name="start")([words, keras.layers.Embedding(length + 1, width, name="places")(places)])
    for i in range(blocks):
        seen = keras.layers.LayerNormalization(name=f"norm_{i}_attention")(x)
        attention = keras.layers.MultiHeadAttention(heads, width // heads, name=f"attention_{i}")
        x = keras.layers.Add(name=f"attended_{i}")([x, attention(seen, seen, **how)])
        hidden = keras.layers.LayerNormalization(name=f"norm_{i}_dense")(x)
        hidden = keras.layers.Dense(2 * width, activation="gelu", name=f"hidden_{i}")(hidden)
        x = keras.layers.Add(name=f"block_{i}")([x, keras.layers.Dense(width, name=f"dense_{i}")(hidden)])
    return keras.layers.LayerNormalization(name="norm_end")(x)
