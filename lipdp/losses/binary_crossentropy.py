"""Cross-entropy of sigmoids, for one or several independent yes/no outputs."""

import math
from typing import Any

from keras import ops

from lipdp import _keras, checks
from lipdp.losses import labels
from lipdp.losses.base import Loss


@_keras.serializable
class BinaryCrossentropy(Loss):
    """Sigmoid cross-entropy from logits, averaged over the outputs, with a temperature.

    The value is `mean_j [log(1 + exp(temperature * z_j)) - y_j * temperature * z_j] / temperature`. It takes
    logits: the model has no sigmoid at its end.

    Args:
        temperature: factor on the logits, above 0; does not change the Lipschitz constant.
        clip: optional L2 norm of each example's gradient at the logits, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if an argument is out of its range.

    Labels: numbers in `[0, 1]`, shape `(batch, k)`, or `(batch,)` for k = 1. Labels in {-1, 1} are refused:
    they would double the gradient.

    **Guarantee.** `exact_lipschitz` is 1 / sqrt(k) for k outputs.
    Proof: the gradient is `(sigmoid(temperature * z) - y) / k`; each of its k entries is below 1 / k in
    absolute value and comes as close to it as one wants (logits of large norm, on the wrong side). For
    labels outside `[0, 1]` the constant does not hold (`check_labels` refuses them; `call` stays within the
    bound all the same).

    Example:
        >>> from lipdp import losses
        >>> loss = losses.BinaryCrossentropy()
        >>> loss.lipschitz(4)
        0.5
        >>> round(float(loss([1.0], [[0.0]])), 4)  # log(2)
        0.6931
    """

    accepts = (labels.dense_targets, labels.check_unit_interval)

    def __init__(self, temperature: float = 1.0, clip: float | None = None, **kwargs: Any):
        super().__init__(clip=clip, **kwargs)
        self.temperature = checks.positive("temperature", temperature)

    def value(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        x = self.temperature * z
        # Grouped so that no term cancels another one at large logits.
        terms = ops.relu(x) - x * y + ops.log1p(ops.exp(-ops.abs(x)))
        return ops.mean(terms, axis=-1) / self.temperature

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return (ops.sigmoid(self.temperature * z) - y) / z.shape[-1]

    def exact_lipschitz(self, num_outputs: int) -> float:
        return 1.0 / math.sqrt(self.check_outputs(num_outputs))
