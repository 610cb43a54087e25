"""Huber loss: squared error near the label, absolute error away from it."""

import math
from typing import Any

from keras import ops

from lipdp import _keras, checks
from lipdp.losses.base import Loss

_LEAST, _MOST = 1e-30, 1e30


@_keras.serializable
class Huber(Loss):
    """Mean over the outputs of r^2 / 2 for |r| <= delta, else delta (|r| - delta / 2), with r = (z - y) / scale.

    The Lipschitz replacement of the mean squared error, whose gradient grows with the error.

    Args:
        delta: residual at which the loss turns from squared to absolute, above 0, in units of `scale`.
        scale: what labels and outputs are divided by first, above 0: a public size, such as the width of the range of
            the target, where both are in a unit of their own.
        clip: optional L2 norm of each example's gradient at the outputs, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if an argument is out of its range.

    Labels: finite numbers of shape `(batch, C)`, or `(batch,)` for one output. Class ids are not turned into
    one-hot rows: use `keras.utils.to_categorical`.

    **Guarantee.** `exact_lipschitz` is delta / (scale sqrt(C)), whatever the size of the labels.
    Proof: the gradient is r clipped to [-delta, delta], divided by C and scale, entry by entry; its norm is largest
    when all C residuals reach delta: sqrt(C) delta / (C scale).

    Example:
        >>> from lipdp import losses
        >>> loss = losses.Huber(delta=0.5)
        >>> loss.lipschitz(4)
        0.25
        >>> float(loss([[0.0]], [[2.0]]))  # 0.5 * (2 - 0.25)
        0.875
    """

    def __init__(self, delta: float = 1.0, clip: float | None = None, *, scale: float = 1.0, **kwargs: Any):
        super().__init__(clip=clip, **kwargs)
        self.delta = checks.positive("delta", delta)
        self.scale = checks.positive("scale", scale)
        if not _LEAST <= self.scale <= _MOST:
            raise ValueError(
                f"`scale` must be a number that float32 can divide by. Received: scale={scale!r}. Pass one from "
                f"{_LEAST:g} to {_MOST:g}, or write labels in another unit."
            )

    def value(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        size = ops.abs(z - y) / self.scale
        near = ops.minimum(size, self.delta)
        return ops.mean(near * (size - near / 2), axis=-1)

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        y, z = self.standardize(y_true, y_pred)
        # The difference first: of two quotients that float32 cannot hold it would be NaN, which nothing bounds.
        return ops.clip((z - y) / self.scale, -self.delta, self.delta) / z.shape[-1] / self.scale

    def exact_lipschitz(self, num_outputs: int) -> float:
        return self.delta / math.sqrt(self.check_outputs(num_outputs)) / self.scale

    def get_config(self) -> dict[str, Any]:
        scale = {} if self.scale == 1.0 else {"scale": self.scale}  # as earlier versions wrote it
        return {**super().get_config(), "delta": self.delta, **scale}
