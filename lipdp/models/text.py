"""Default settings of `lipdp train --task text`: a linear model of the words of a text, or attention."""

import dataclasses
import math

import keras
from keras import ops

from lipdp import checks, layers
from lipdp.model import DP_Model
from lipdp.models.attention import text_attention
from lipdp.models.base import METHODS, TrainingRecipe
from lipdp.models.head import head_recipe
from lipdp.models.table import TableRecipe

STYLES = ("linear", "attention", "head")

# Chosen on sentences of public film reviews, 2000 and 8000 of them, at epsilon 1, 2 and 8, and, for fewer, on these,
# on news of four classes and on the documentation of four libraries.
_UPDATES = 60
_RATE, _SIGNAL = 20.0, 16000.0
_LARGEST_BATCH = 8192
# Chosen on synthetic texts whose class is the order of two words, 1000 and 4000 of them, at epsilon 2 and 8.
_ATTENTION_UPDATES, _ATTENTION_RATE, _ATTENTION_SIGNAL, _ATTENTION_BATCH = 120, 0.5, 8000.0, 2048


def bag_of_tokens(length: int, vocabulary_size: int, num_classes: int) -> keras.Model:
    """Returns a linear classifier of texts: each token has a weight for each class, and a text their scaled sum.

    The sum is divided by the root of the number of tokens, so that long texts weigh as much as short ones. All weights
    begin at zero: noise reaches a prediction only through the tokens of its text, however large the vocabulary is.

    Args:
        length: Tokens of a text.
        vocabulary_size: Tokens are from 0 to `vocabulary_size - 1`; 0 is padding, which is left out.
        num_classes: Number of classes.

    Returns:
        A functional `keras.Model`; make it private with `lipdp.DP_Model.from_keras`.

    Example:
        >>> bag_of_tokens(20, 50, 2).count_params()
        102
    """
    tokens = keras.Input((length,), dtype="int32", name="tokens")
    weights = keras.layers.Embedding(vocabulary_size, num_classes, "zeros", name="weights")(tokens)
    there = keras.layers.Reshape((length, 1), name="there")(ops.cast(ops.not_equal(tokens, 0), "float32"))
    total = ops.sum(keras.layers.Multiply(name="kept")([weights, there]), axis=1)
    logits = ops.divide(total, ops.sqrt(ops.add(ops.sum(there, axis=1), 1.0)))
    return keras.Model(tokens, layers.Bias(name="bias")(logits), name="bag_of_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRecipe(TrainingRecipe):
    """The settings of one training run on texts; every one is a public constant.

    Args:
        input_shape: `(length,)`, the tokens of a text.
        num_classes: number of classes.
        vocabulary_size: of the tokenizer.
        style: "linear": `bag_of_tokens`; "attention": `text_attention`.
        batch_size: expected batch size.
        epochs: expected passes over the data.
        learning_rate: of stochastic gradient descent, at the start; it falls linearly to zero.
        momentum: of stochastic gradient descent.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".
        clip_norm: L2 norm that each text's gradient is clipped to.

    Example:
        >>> text_recipe((256,), num_classes=2, num_examples=8000, epsilon=2.0).updates(8000)
        60
        >>> from lipdp.data import ByteTokenizer
        >>> x = ByteTokenizer(length=20)(["what a good film", "what a bad film"] * 100)
        >>> model = text_recipe((20,), 2, 200, epsilon=8.0).fit(x, [1, 0] * 100, epsilon=8.0, delta=1e-4, verbose=0)
        >>> model.privacy.epsilon() <= 8.0
        True
    """

    automatic = True

    input_shape: tuple[int, ...]
    num_classes: int
    vocabulary_size: int
    style: str = "linear"
    batch_size: int
    epochs: int
    learning_rate: float = 40.0
    momentum: float = 0.9
    method: str = "dpsgd"
    clip_norm: float = 1.0

    def build(self, num_examples: int) -> DP_Model:
        """Returns the compiled model.

        Args:
            num_examples: number of training texts, sets the length of the learning-rate schedule.

        Returns:
            A `DP_Model`, compiled, with the metric "accuracy".
        """
        (length,) = self.input_shape
        make = {"linear": bag_of_tokens, "attention": text_attention}[self.style]
        model = DP_Model.from_keras(make(length, self.vocabulary_size, self.num_classes))
        model.compile(
            keras.optimizers.SGD(self.rate(num_examples), momentum=self.momentum),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model


def text_recipe(
    input_shape: tuple[int, ...],
    num_classes: int,
    num_examples: int,
    epsilon: float | None = None,
    *,
    style: str = "linear",
    vocabulary_size: int | None = None,
    method: str = "dpsgd",
) -> TextRecipe | TableRecipe:
    """Returns the default settings for texts of one length.

    They depend on public facts only: length, sizes, the number of examples, the budget; not on any text.

    Args:
        input_shape: `(length,)`, the tokens of a text, or `(features,)` of a head.
        num_classes: number of classes.
        num_examples: number of training texts, or of the persons who wrote them.
        epsilon: the budget; None when the noise is given instead. Larger budgets make larger steps.
        style: "linear": a weight for each token, which learns from few texts. "attention": a small transformer, for
            classes that hang on the order of the words. "head": `models.head_recipe`, for what a frozen network has
            made of the texts.
        vocabulary_size: of the tokenizer; default: that of `data.ByteTokenizer`, or, for attention, of
            `data.HashedWordTokenizer`.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".

    Returns:
        A `TextRecipe`, or, of a head, a `TableRecipe`; change it with `dataclasses.replace`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> text_recipe((256,), num_classes=2, num_examples=8000, epsilon=2.0).batch_size
        2000
    """
    checks.choice("method", method, METHODS)
    checks.choice("style", style, STYLES)
    if len(tuple(input_shape)) != 1:
        raise ValueError(f"A text is a row of tokens. Received: input_shape={input_shape!r}. Pass (length,).")
    length = checks.integer("input_shape", input_shape[0], 1)
    num_examples = checks.integer("num_examples", num_examples, 1)
    epsilon = checks.positive("epsilon", epsilon, optional=True)
    if style == "head":
        return head_recipe((length,), num_classes, num_examples, epsilon, method=method)
    if vocabulary_size is None:
        vocabulary_size = 2**12 + 1 if style == "attention" else 2**15 + 1
    # More texts and a larger budget drown in less noise, so that larger steps pay.
    signal = num_examples * min(max(epsilon or 1.0, 0.25), 8.0)
    share = min(max(signal / _SIGNAL, 0.01), 4.0)
    slower = min(1.0, signal / _ATTENTION_SIGNAL)
    updates, largest, fraction, rate = {
        "linear": (_UPDATES, _LARGEST_BATCH, 4, _RATE * share),
        "attention": (_ATTENTION_UPDATES, _ATTENTION_BATCH, 8, _ATTENTION_RATE * slower),
    }[style]
    batch_size = min(largest, math.ceil(num_examples / fraction))
    return TextRecipe(
        input_shape=(length,),
        num_classes=checks.integer("num_classes", num_classes, 2),
        vocabulary_size=checks.integer("vocabulary_size", vocabulary_size, 2),
        style=style,
        batch_size=batch_size,
        epochs=max(2, round(updates / math.ceil(num_examples / batch_size))),
        learning_rate=rate,
        method=method,
    )
