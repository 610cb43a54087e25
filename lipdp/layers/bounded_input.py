"""Where a network's norm bounds begin."""

import math
from typing import Any

from keras import ops

from lipdp import _keras, checks
from lipdp._deprecated import renamed_value
from lipdp.layers.base import ShapePreserving, entries
from lipdp.norms import sums

# Files of version 0.1 hold the old spelling.
_OLD_MODES = {"normalise": "normalize"}


@_keras.serializable
class BoundedInput(ShapePreserving):
    """Bounds the L2 norm of each example, by projection on a ball or by normalization.

    Args:
        shape: Shape of one example, without the batch axis, for use as the first layer of a
            `DP_Sequential`. Leave it out in a functional model.
        norm: Radius of the ball, in [1e-6, 1e6]. A public constant: never computed from private data.
        mode: `"clip"` scales examples outside the ball down to its surface and leaves the others as
            they are; `"normalize"` scales every example to norm `norm` (a zero example stays zero).

    Call arguments:
        inputs: Tensor of shape `(batch, ...)`; the norm is taken over all axes but the first.

    Returns:
        A tensor of the same shape; every example has norm at most `norm`.

    Raises:
        ValueError: `norm` is out of range, `mode` is unknown, an inner size of the input is not known, or there are so
            many entries (about 7e9) that rounding would take more than one per cent of the norm.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> y = layers.BoundedInput(norm=1.0)(np.array([[3.0, 4.0]], "float32"))
        >>> [round(float(v), 3) for v in y[0]]
        [0.6, 0.8]

    **Guarantee.** `||output|| <= norm` for every finite input: the computed sum of n squares lies within factors `(1 -
    u)^c` and `(1 + u)^c` of the exact one, u = 2^-24, whatever the order of additions, with c = n up to 2^16 entries
    and about `2 sqrt(n)` above, where blocks are summed first (`norms.sums`). The norm errs by half of that, and the
    radius is reduced by `(c + 8) u`: by 0.4 % at 2^16 entries, 0.1 % at 2^26. Integers are cast first: their squares
    would wrap around. `"clip"` is the projection on a convex ball, hence 1-Lipschitz, so that certificates hold in the
    space of its input. `"normalize"` has no Lipschitz constant (it grows as `1 / ||x||`): a gradient or a certificate
    that has to pass through it is refused. An example with NaN or infinity, or whose squares overflow, becomes zero:
    `fit` refuses such data, but layers upstream can produce it from large numbers; a finite cotangent gives it the
    gradient zero. The gradient is written by hand: for `"clip"` it is `g` inside the ball, and outside of it `g`
    without its part along the output, times `norm / ||x||`. Its norm is at most that of `g`, times `1 + (c u)^2 / 2`
    and a few roundings: what is left along the output is at most `c u ||g||`, and orthogonal to all else. Second
    derivatives are those of this expression; JAX refuses `jvp` (`jax.hessian` is fine).
    """

    def __init__(self, shape: tuple[int, ...] | None = None, norm: float = 1.0, mode: str = "clip", **kwargs: Any):
        super().__init__(**kwargs)
        if shape is not None and not isinstance(shape, (tuple, list)):
            raise ValueError(
                f"`shape` must be the shape of one example, such as (28, 28, 1). Received: shape={shape!r}. The "
                "radius is passed by name: BoundedInput(norm=1.0)."
            )
        self.shape = None if shape is None else tuple(checks.integer("shape", n, 1, optional=True) for n in shape)
        self.norm = checks.between("norm", norm, 1e-6, 1e6)
        self.mode = checks.choice("mode", renamed_value("mode", mode, **_OLD_MODES), ("clip", "normalize"))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self._radius(input_shape)

    def call(self, inputs: Any) -> Any:
        inputs = ops.cast(inputs, self.compute_dtype)
        # Of these inputs, not of those it was built on: a shared layer may read several shapes.
        radius = self._radius(inputs.shape)
        return _bounded(inputs, radius, self._floor(radius))

    def export_call(self, stock: Any, inputs: Any) -> Any:
        inputs = ops.cast(inputs, self.compute_dtype)
        radius = self._radius(inputs.shape)
        squares = sums.sum_of_squares(inputs)
        return ops.divide_no_nan(inputs, _divisors(squares, radius, self._floor(radius)))

    def _floor(self, radius: float) -> float:
        # In the second mode it also covers squares that underflow, as their true norm is far below it.
        return radius if self.mode == "clip" else 1e-12

    def _radius(self, shape) -> float:
        return self.norm * sums.margin(entries(shape, self), name=f"The input of layer '{self.name}'")

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        return (1.0 if self.mode == "clip" else float("inf"),)

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        return min(input_bounds[0], self.norm) if self.mode == "clip" else self.norm

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        mode = config.get("mode", "clip")
        return cls(**{**config, "mode": _OLD_MODES.get(mode, mode)})


def _bounded(inputs, radius, floor):
    """Scales each row down to norm `radius` at most, or up to it from norm `floor` on.

    What autodiff makes of it reads the inputs twice as often, and sends NaN back from rows that are not finite.
    """
    shape = (-1, *inputs.shape[1:])

    @ops.custom_gradient
    def scaled(inputs):
        # Rows of a matrix: TensorFlow scales those in half the time.
        rows = ops.reshape(inputs, (-1, math.prod(shape[1:])))
        squares = ops.reshape(sums.sum_of_squares(inputs), (-1, 1))
        divisors = _divisors(squares, radius, floor)
        outputs = ops.divide_no_nan(rows, divisors)
        # The part of a cotangent along an output of the full length leads out of the sphere.
        along = ops.where(squares > floor * floor, 1.0 / radius**2, 0.0)

        def backward(*args, upstream=None):
            # JAX passes the cotangent by position, TensorFlow also by keyword.
            cotangent = ops.reshape(upstream if upstream is not None else args[0], ops.shape(rows))
            part = along * sums.dot(cotangent, outputs)
            return ops.reshape(ops.divide_no_nan(cotangent - outputs * part, divisors), shape)

        return ops.reshape(outputs, shape), backward

    return scaled(inputs)


def _divisors(squares, radius, floor):
    """Returns what rows of these squared norms are divided by, zero where they are not finite."""
    # The floor is inside the root, whose derivative at zero is infinite.
    divisors = ops.sqrt(ops.maximum(squares, floor * floor)) * (1.0 / radius)
    return ops.where(ops.isfinite(squares), divisors, 0.0)
