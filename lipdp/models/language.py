"""Default settings of `lipdp train --task language`: a small transformer over the bytes of texts."""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from lipdp import checks
from lipdp.model import DP_Model
from lipdp.models.attention import causal_attention
from lipdp.models.base import METHODS, TrainingRecipe
from lipdp.models.token_crossentropy import TokenCrossentropy

# Chosen on synthetic sentences, 300, 1000 and 4000 of them, at epsilon 2 and 8.
_UPDATES, _LARGEST_BATCH = 200, 2048
_LEAST_RATE, _RATE, _SIGNAL = 0.01, 0.5, 30000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageRecipe(TrainingRecipe):
    """The settings of one training run of a language model; every one is a public constant.

    `fit` takes texts as `data.load_language` makes them: `x_train` and `y_train`.

    Args:
        input_shape: `(length,)`, the tokens of a text.
        vocabulary_size: of the tokenizer.
        width: of the embeddings of `causal_attention`.
        blocks: of `causal_attention`.
        batch_size: expected batch size.
        epochs: expected passes over the data.
        learning_rate: of stochastic gradient descent, at the start; it falls linearly to zero.
        momentum: of stochastic gradient descent.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".
        clip_norm: L2 norm that each text's gradient is clipped to.

    Example:
        >>> language_recipe((64,), num_examples=8000, epsilon=8.0).updates(8000)
        200
    """

    automatic = True

    input_shape: tuple[int, ...]
    vocabulary_size: int
    width: int = 64
    blocks: int = 2
    batch_size: int
    epochs: int
    learning_rate: float = _RATE
    momentum: float = 0.9
    method: str = "dpsgd"
    clip_norm: float = 1.0

    def build(self, num_examples: int) -> DP_Model:
        """Returns the compiled model.

        Args:
            num_examples: number of training texts, sets the length of the learning-rate schedule.

        Returns:
            A `DP_Model`, compiled with `TokenCrossentropy`.
        """
        (length,) = self.input_shape
        model = DP_Model.from_keras(causal_attention(length, self.vocabulary_size, self.width, self.blocks))
        model.compile(
            keras.optimizers.SGD(self.rate(num_examples), momentum=self.momentum),
            loss=TokenCrossentropy(),
        )
        return model


def language_recipe(
    input_shape: tuple[int, ...],
    vocabulary_size: int = 258,
    num_examples: int = 1,
    epsilon: float | None = None,
    *,
    method: str = "dpsgd",
) -> LanguageRecipe:
    """Returns the default settings for texts of one length.

    They depend on public facts only: length, sizes, the number of examples, the budget; not on any text.

    Args:
        input_shape: `(length,)`, the tokens of a text.
        vocabulary_size: of the tokenizer; default: that of `data.RawByteTokenizer`.
        num_examples: number of training texts, or of the persons who wrote them.
        epsilon: the budget; None when the noise is given instead. Larger budgets make larger steps.
        method: name of the strategy: "dpsgd", "adaclip" or "dpis".

    Returns:
        A `LanguageRecipe`; change it with `dataclasses.replace`.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> language_recipe((64,), num_examples=8000, epsilon=8.0).batch_size
        1000
    """
    checks.choice("method", method, METHODS)
    if len(tuple(input_shape)) != 1:
        raise ValueError(f"A text is a row of tokens. Received: input_shape={input_shape!r}. Pass (length,).")
    num_examples = checks.integer("num_examples", num_examples, 1)
    epsilon = checks.positive("epsilon", epsilon, optional=True)
    # More texts and a larger budget drown in less noise, so that larger steps pay.
    signal = num_examples * min(max(epsilon or 1.0, 0.25), 8.0)
    batch_size = min(_LARGEST_BATCH, math.ceil(num_examples / 8))
    return LanguageRecipe(
        input_shape=(checks.integer("input_shape", input_shape[0], 1),),
        vocabulary_size=checks.integer("vocabulary_size", vocabulary_size, 2),
        batch_size=batch_size,
        epochs=max(2, round(_UPDATES / math.ceil(num_examples / batch_size))),
        learning_rate=max(_LEAST_RATE, _RATE * min(1.0, signal / _SIGNAL)),
        method=method,
    )


def bits_per_token(model: keras.Model, x: np.ndarray, y: np.ndarray, batch_size: int = 64) -> float:
    """Returns how many bits a language model needs on average for each token of texts: the fewer, the better.

    Of texts as `data.load_language` makes them these are bits per byte, where the end of a text counts as a byte. Who
    knows nothing needs 8 of them.

    Args:
        model: a language model.
        x: texts, `(N, length)`, each one place later than `y`.
        y: their tokens, `(N, length)`, 0 behind their ends.
        batch_size: texts at once, at least 1.

    Returns:
        The negative logarithm, to base 2, of the probability of all texts, over the number of their tokens.

    Raises:
        ValueError: there is no token.

    Example:
        >>> import numpy as np
        >>> from lipdp.models import causal_attention
        >>> round(bits_per_token(causal_attention(4, 16), np.array([[1, 2, 3, 0]]), np.array([[2, 3, 1, 0]])), 3)
        4.0
    """
    checks.integer("batch_size", batch_size, 1)
    total, count = 0.0, int(np.count_nonzero(y))
    if not count:
        raise ValueError("There is nothing to measure on. Received: texts without a token. Pass other texts.")
    for start in range(0, len(y), batch_size):
        rows = slice(start, start + batch_size)
        logits = ops.convert_to_tensor(model.predict_on_batch(x[rows]))
        labels = np.asarray(y[rows])
        chosen = ops.take_along_axis(ops.log_softmax(logits), ops.convert_to_tensor(labels[..., None]), axis=-1)
        total -= float(ops.convert_to_numpy(chosen)[..., 0][labels != 0].astype("float64").sum())
    return total / count / math.log(2.0)
