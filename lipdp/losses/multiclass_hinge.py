"""Hinge loss over classes, each class against the rest."""

import math
from typing import Any

from keras import ops

from lipdp import _keras, checks
from lipdp.losses import labels
from lipdp.losses.base import Loss


@_keras.serializable
class MulticlassHinge(Loss):
    """Hinge loss that pushes the true output above `margin / 2` and the others below `-margin / 2`.

    For true class y among C, with [a]+ = max(a, 0), the average over the classes of the two hinges of each
    wrong class j against y:

        (1/C) sum_{j != y} ([margin/2 - z_y]+ + [margin/2 + z_j]+)

    so the true class weighs (C-1)/C and each wrong one 1/C (deel-lip's `MulticlassHinge`).

    Args:
        margin: distance asked between the true output and the others, above 0, in units of the logits.
        clip: optional L2 norm of each example's gradient at the logits, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if an argument is out of its range.

    Labels: one-hot rows of shape `(batch, C)`, or class ids of shape `(batch,)` or `(batch, 1)`; C >= 2.

    **Guarantee.** `exact_lipschitz` is sqrt((C-1)/C).
    Proof: the entries of the gradient are -(C-1)/C or 0 at y and 1/C or 0 elsewhere. All are non-zero at z =
    0, where the squared norm is ((C-1)^2 + (C-1)) / C^2 = (C-1)/C. At a kink the gradient is taken as 0, a
    subgradient.

    Example:
        >>> from lipdp import losses
        >>> loss = losses.MulticlassHinge(margin=1.0)
        >>> round(loss.lipschitz(10), 4)
        0.9487
        >>> float(loss([1], [[0.0, 0.0]]))
        0.5
    """

    min_outputs = 2
    accepts = (labels.class_targets, labels.check_classes)

    def __init__(self, margin: float = 1.0, clip: float | None = None, **kwargs: Any):
        super().__init__(clip=clip, **kwargs)
        self.margin = checks.positive("margin", margin)

    def value(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return hinge_value(y, z, self.margin)

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return hinge_gradient(y, z, self.margin)

    def exact_lipschitz(self, num_outputs: int) -> float:
        num_classes = self.check_outputs(num_outputs)
        return math.sqrt((num_classes - 1) / num_classes)


def hinge_value(y: Any, z: Any, margin: float) -> Any:
    """Returns the hinge loss of each row, shape `(batch,)`, for one-hot `y`, logits `z`."""
    half = margin / 2
    others = z.shape[-1] - 1
    return ops.mean(y * others * ops.relu(half - z) + (1.0 - y) * ops.relu(half + z), axis=-1)


def hinge_gradient(y: Any, z: Any, margin: float) -> Any:
    """Returns the gradient of `hinge_value` with respect to `z`, shape `(batch, C)`; 0 at the kinks."""
    half = margin / 2
    num_classes = z.shape[-1]
    too_low, too_high = ops.cast(z < half, z.dtype), ops.cast(z > -half, z.dtype)
    return ((1.0 - y) * too_high - y * (num_classes - 1) * too_low) / num_classes
