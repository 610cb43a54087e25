"""Hinge-regularized Kantorovich-Rubinstein loss over classes, with declared class priors."""

from collections.abc import Sequence
from typing import Any

from lipdp import _keras, checks
from lipdp.losses.multiclass_hinge import hinge_gradient, hinge_value
from lipdp.losses.multiclass_kr import MulticlassKR, largest_class_norm


@_keras.serializable
class MulticlassHKR(MulticlassKR):
    """`MulticlassKR` plus `alpha` times `MulticlassHinge`.

    Args:
        alpha: weight of the hinge, above 0 (for 0 use `MulticlassKR`).
        margin: margin of the hinge, above 0, in units of the logits.
        class_priors: public class probabilities, see `MulticlassKR`; `None` for uniform.
        clip: optional L2 norm of each example's gradient at the logits, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if an argument is out of its range.

    Labels: one-hot rows of shape `(batch, C)`, or class ids of shape `(batch,)` or `(batch, 1)`; C >= 2.

    **Guarantee.** `exact_lipschitz` is
    max_c (1/C) sqrt((1/p_c + alpha (C-1))^2 + sum_{j != c} (1/(1-p_j) + alpha)^2); with uniform priors
    sqrt(C/(C-1)) (1 + alpha (C-1)/C). It is per example: rows do not see each other.
    Proof: both parts have the same signs (negative at the true class, positive elsewhere), so every entry is
    largest in absolute value with all hinges active, which is the case at z = 0; there the gradient of class
    c has that norm. At a kink the gradient of the hinge is taken as 0, a subgradient.

    Example:
        >>> from lipdp import losses
        >>> loss = losses.MulticlassHKR(alpha=10.0)
        >>> round(loss.lipschitz(10), 4)
        10.5409
        >>> losses.MulticlassHKR(alpha=10.0, clip=1.0).lipschitz(10)
        1.0
    """

    def __init__(
        self,
        alpha: float = 10.0,
        margin: float = 1.0,
        class_priors: Sequence[float] | None = None,
        clip: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(class_priors=class_priors, clip=clip, **kwargs)
        self.alpha = checks.positive("alpha", alpha)
        self.margin = checks.positive("margin", margin)

    def value(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return super().value(y, z) + self.alpha * hinge_value(y, z, self.margin)

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return super().gradient(y, z) + self.alpha * hinge_gradient(y, z, self.margin)

    def exact_lipschitz(self, num_outputs: int) -> float:
        num_classes = self.check_outputs(num_outputs)
        inside, outside = self.class_weights(num_classes)
        hinge = self.alpha / num_classes
        return largest_class_norm(inside + hinge * (num_classes - 1), outside + hinge)
