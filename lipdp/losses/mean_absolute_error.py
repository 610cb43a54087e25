"""Mean absolute error."""

import math
from typing import Any

from keras import ops

from lipdp import _keras
from lipdp.losses.base import Loss


@_keras.serializable
class MeanAbsoluteError(Loss):
    """Mean over the outputs of the absolute error |z - y|.

    Args:
        clip: optional L2 norm of each example's gradient at the outputs, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if an argument is out of its range.

    Labels: finite numbers of shape `(batch, C)`, or `(batch,)` for one output. Class ids are not turned into
    one-hot rows: use `keras.utils.to_categorical`.

    **Guarantee.** `exact_lipschitz` is 1 / sqrt(C), whatever the size of the labels.
    Proof: the gradient is sign(z - y) / C, C entries of size 1 / C, or 0 where z = y (a subgradient).

    Example:
        >>> from lipdp import losses
        >>> loss = losses.MeanAbsoluteError()
        >>> loss.lipschitz(4)
        0.5
        >>> float(loss([[0.0, 1.0]], [[2.0, 0.0]]))
        1.5
    """

    def value(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return ops.mean(ops.abs(z - y), axis=-1)

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return ops.sign(z - y) / z.shape[-1]

    def exact_lipschitz(self, num_outputs: int) -> float:
        return 1.0 / math.sqrt(self.check_outputs(num_outputs))
