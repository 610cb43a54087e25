"""The loss of a language model: what a text costs on average over its own tokens."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("lipdp")
class TokenCrossentropy(keras.losses.SparseCategoricalCrossentropy):
    """Cross-entropy of the next token, from logits, averaged over the tokens of each text; padding is left out.

    `keras.losses.SparseCategoricalCrossentropy(ignore_class=0)`, called by itself, averages over the tokens of all.

    Args:
        name: Of the loss.

    Example:
        >>> import numpy as np
        >>> loss = TokenCrossentropy()
        >>> value = loss(np.array([[3, 1, 0, 0]]), np.zeros((1, 4, 8), "float32"))
        >>> round(float(value), 3)  # ln 8 for each of the two
        2.079

    **Guarantee.**
    Conditions: none.
    Bound: the value of a text, and its gradient, depend on that text alone, and not on the padding behind it.
    Not covered: there is no Lipschitz constant: train with a strategy that clips.
    """

    def __init__(self, name: str = "token_crossentropy", **kwargs: Any):
        kwargs.setdefault("from_logits", True)
        kwargs.setdefault("ignore_class", 0)
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each text, `(batch,)`.

        Args:
            y_true: The tokens `(batch, length)`, 0 behind the end of a text.
            y_pred: Logits `(batch, length, tokens)`.
        """
        values = super().call(y_true, y_pred)
        there = ops.cast(ops.not_equal(y_true, self.ignore_class), values.dtype)
        return ops.sum(values * there, axis=-1) / ops.maximum(ops.sum(there, axis=-1), 1.0)
