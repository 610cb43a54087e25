"""Cross-entropy of a softmax, for one-hot labels or probabilities."""

import math
from typing import Any

from keras import ops

from lipdp import _keras, checks
from lipdp.losses import labels
from lipdp.losses.base import Loss


@_keras.serializable
class CategoricalCrossentropy(Loss):
    """Softmax cross-entropy from logits, with a temperature that does not change its Lipschitz constant.

    The value is `-sum_j y_j log softmax(temperature * z)_j / temperature`. A Lipschitz network has small
    logits; a temperature above 1 sharpens the softmax, at no cost in noise since the loss is divided by it.

    Args:
        temperature: factor on the logits, above 0.
        clip: optional L2 norm of each example's gradient at the logits, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if an argument is out of its range.

    Labels: shape `(batch, C)`, C >= 2, each row non-negative with sum 1.

    **Guarantee.** `exact_lipschitz` is sqrt(2) for every C >= 2 and every temperature.
    Proof: the gradient is `p - y` with p = softmax(temperature * z). Both lie in the simplex, whose diameter
    is sqrt(2), between two corners; p comes as close to a corner as one wants, y can be another one. Rows
    outside the simplex are outside the constant (`check_labels` refuses them; `call` stays within the bound
    all the same).

    Example:
        >>> from lipdp import losses
        >>> loss = losses.CategoricalCrossentropy(temperature=8.0, clip=0.2)
        >>> loss.lipschitz(10)
        0.2
        >>> round(float(loss([[0.0, 1.0]], [[0.0, 0.0]])), 4)  # log(2) / 8
        0.0866
    """

    min_outputs = 2
    accepts = (labels.dense_targets, labels.check_simplex)

    def __init__(self, temperature: float = 1.0, clip: float | None = None, **kwargs: Any):
        super().__init__(clip=clip, **kwargs)
        self.temperature = checks.positive("temperature", temperature)

    def value(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return -ops.sum(y * ops.log_softmax(self.temperature * z, axis=-1), axis=-1) / self.temperature

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        # The sum is 1, except in rows of padding, where the value is constant.
        return ops.sum(y, axis=-1, keepdims=True) * ops.softmax(self.temperature * z, axis=-1) - y

    def exact_lipschitz(self, num_outputs: int) -> float:
        self.check_outputs(num_outputs)
        return math.sqrt(2.0)
