"""Negative cosine similarity, made Lipschitz by a floor under the norm of the outputs."""

from typing import Any

import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.losses import labels
from lipdp.losses.base import Loss, row_norm


@_keras.serializable
class CosineSimilarity(Loss):
    """Minus the cosine between outputs and labels, where the norm of the outputs counts as at least `floor`.

    The value is `-<y / |y|, z> / max(floor, |z|)`, the K-cosine of the literature with K = `floor`: minus
    the cosine for outputs of norm at least `floor`, linear below. Without a floor the cosine is not
    Lipschitz around zero.

    Args:
        floor: K, above 0, in units of the outputs. The constant is its inverse.
        clip: optional L2 norm of each example's gradient at the outputs, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if an argument is out of its range.

    Labels: vectors of shape `(batch, C)` that are not zero (one-hot or any other; only their direction
    counts), or, for C >= 2, class ids of shape `(batch,)` or `(batch, 1)`.

    **Guarantee.** `exact_lipschitz` is 1 / floor, for every number of outputs and whatever the norm of the
    labels.
    Proof: let u = y / |y|. Where |z| <= K the gradient is -u / K, of norm 1 / K. Where |z| > K it is -(u -
    <u, v> v) / |z| with v = z / |z|: a projection of u, of norm at most 1 / |z| < 1 / K. (The reference
    implementation divides y by max(K, |y|) instead, which gives min(1, |y| / K) / K, and claims 1 / K^2: too
    small by K for labels of norm K > 1 and more.)

    Example:
        >>> from lipdp import losses
        >>> loss = losses.CosineSimilarity(floor=0.5)
        >>> loss.lipschitz(10)
        2.0
        >>> round(float(loss([[0.0, 1.0]], [[3.0, 4.0]])), 4)
        -0.8
    """

    def __init__(self, floor: float = 1.0, clip: float | None = None, **kwargs: Any):
        super().__init__(clip=clip, **kwargs)
        self.floor = checks.positive("floor", floor)

    def value(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        return -ops.sum(_direction(y) * (z / ops.maximum(row_norm(z), self.floor)), axis=-1)

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        u = _direction(y)
        norm = row_norm(z)
        length = ops.maximum(norm, self.floor)
        v = z / length
        # Inside the ball the value is linear in z: nothing to project out.
        along = ops.where(norm > self.floor, ops.sum(u * v, axis=-1, keepdims=True), ops.zeros_like(norm))
        return (along * v - u) / length

    def exact_lipschitz(self, num_outputs: int) -> float:
        self.check_outputs(num_outputs)
        return 1.0 / self.floor

    def targets(self, y_true: Any, num_outputs: int) -> Any:
        # One output: `(batch,)` and `(batch, 1)` are vectors, there are no classes.
        accepted = labels.class_targets if num_outputs > 1 else labels.dense_targets
        return accepted(type(self).__name__, y_true, num_outputs)

    def check_labels(self, y_true: np.ndarray, num_outputs: int) -> None:
        shape = np.shape(y_true)
        ids = self.check_outputs(num_outputs) > 1 and (len(shape) == 1 or shape[1:] == (1,))
        accepted = labels.check_ids if ids else labels.check_nonzero
        accepted(type(self).__name__, y_true, num_outputs)


def _direction(y):
    """Returns each row of `y` divided by its norm, and rows of zeros (padding) as they are."""
    norm = row_norm(y)
    return y / ops.where(norm > 0.0, norm, ops.ones_like(norm))
