"""Kantorovich-Rubinstein loss over classes, with declared class priors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from lipdp import _keras
from lipdp.losses import labels
from lipdp.losses.base import Loss


@_keras.serializable
class MulticlassKR(Loss):
    """Kantorovich-Rubinstein loss: minus the estimated Wasserstein distance of each class to the rest.

    For true class y among C with declared priors p:

        -(1/C) (z_y / p_y - sum_{j != y} z_j / (1 - p_j))

    If p is the distribution of the classes, its expectation is minus the mean over c of E[z_c | c] - E[z_c |
    not c]. Usual implementations put the class counts of the *batch* in the place of p. One example then
    changes the weight of the others, without a bound: 181 times the claimed sensitivity was measured. Hence
    constants here.

    Args:
        class_priors: one public probability per class, all above 0, with sum 1; `None` for uniform. They
            must not be computed from the private data (or be a release that is accounted for). A rare class
            raises the constant.
        clip: optional L2 norm of each example's gradient at the logits, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if the priors are not such probabilities, or not as many as the model has outputs.

    Labels: one-hot rows of shape `(batch, C)`, or class ids of shape `(batch,)` or `(batch, 1)`; C >= 2.

    **Guarantee.** `exact_lipschitz` is max_c (1/C) sqrt(1/p_c^2 + sum_{j != c} 1/(1-p_j)^2); with uniform
    priors sqrt(C/(C-1)). It is per example: rows do not see each other.
    Proof: the loss is linear in z, so for class c the gradient is constant and has that norm. Uniform priors:
    (1/C) sqrt(C^2 + (C-1) C^2/(C-1)^2) = sqrt(1 + 1/(C-1)).

    Example:
        >>> from lipdp import losses
        >>> round(losses.MulticlassKR().lipschitz(10), 4)
        1.0541
        >>> round(losses.MulticlassKR(class_priors=[0.1, 0.9]).lipschitz(2), 4)
        7.0711
    """

    min_outputs = 2
    accepts = (labels.class_targets, labels.check_classes)

    def __init__(self, class_priors: Sequence[float] | None = None, clip: float | None = None, **kwargs: Any):
        super().__init__(clip=clip, **kwargs)
        self.class_priors = _priors(class_priors)

    def value(self, y_true: Any, y_pred: Any) -> Any:
        _, z = self.standardize(y_true, y_pred)
        # Not `self.gradient`, which `MulticlassHKR` overrides.
        return ops.sum(MulticlassKR.gradient(self, y_true, y_pred) * z, axis=-1)

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        y, _ = self.standardize(y_true, y_pred)
        inside, outside = (ops.convert_to_tensor(w, dtype=y.dtype) for w in self.class_weights(y.shape[-1]))
        return (1.0 - y) * outside - y * inside

    def exact_lipschitz(self, num_outputs: int) -> float:
        num_classes = self.check_outputs(num_outputs)
        inside, outside = self.class_weights(num_classes)
        return largest_class_norm(inside, outside)

    def class_weights(self, num_outputs: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sizes of entry j of the gradient if j is the true class, and if not: two arrays."""
        p = np.full(num_outputs, 1.0 / num_outputs) if self.class_priors is None else np.array(self.class_priors)
        return 1.0 / (num_outputs * p), 1.0 / (num_outputs * (1.0 - p))

    def check_outputs(self, num_outputs: int) -> int:
        num_outputs = super().check_outputs(num_outputs)
        if self.class_priors is not None and len(self.class_priors) != num_outputs:
            raise ValueError(
                f"{type(self).__name__} needs one class prior per output of the model. "
                f"Received: {len(self.class_priors)} priors and num_outputs={num_outputs}."
            )
        return num_outputs

    def get_config(self) -> dict:
        class_priors = None if self.class_priors is None else list(self.class_priors)
        return {**super().get_config(), "class_priors": class_priors}


def largest_class_norm(inside: np.ndarray, outside: np.ndarray) -> float:
    """Returns max over c of the norm of the vector with `inside[c]` at c and `outside[j]` at every other j."""
    # The sum over j != c. What it loses to cancellation is tiny beside the maximum, which is at least the
    # largest outside[j], since there are two classes or more.
    rest = math.fsum(outside**2) - outside**2
    return float(np.sqrt(np.max(inside**2 + rest)))


def _priors(value) -> tuple[float, ...] | None:
    """Returns class probabilities divided by their sum, which must be 1 within 1e-6; `None` stays `None`."""
    if value is None:
        return None
    try:
        probabilities = tuple(float(p) for p in value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`class_priors` must be a sequence of probabilities or None. Received: class_priors={value!r}."
        ) from error
    # `not (p > 0)` rather than `p <= 0`: NaN must fail too.
    if len(probabilities) < 2 or any(not p > 0.0 for p in probabilities):
        raise ValueError(
            "`class_priors` must hold one probability above 0 per class (at least two). Received: "
            f"class_priors={value!r}."
        )
    total = math.fsum(probabilities)
    if not abs(total - 1.0) <= 1e-6:
        raise ValueError(f"`class_priors` must sum to 1. Received: class_priors={value!r}, which sum to {total!r}.")
    return tuple(p / total for p in probabilities)
