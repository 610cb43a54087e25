"""Removes means inside one example."""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import ShapePreserving
from lipdp.norms import sums

_MAX_RANK = 64
# Up to so many entries their mean is one sum.
_AT_ONCE = 2**7


@_keras.serializable
class LayerCentering(ShapePreserving):
    """Subtracts from each example its mean over the given axes.

    Args:
        axis: Axis or axes of the input, never the batch axis 0. Default: all axes but the batch and the
            last one (per channel); for inputs of shape `(batch, features)` the last one.

    Raises:
        ValueError: the batch axis is named, or an axis does not exist.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> [float(v) for v in layers.LayerCentering()(np.array([[1.0, 3.0]], "float32"))[0]]
        [-1.0, 1.0]

    **Guarantee.** An orthogonal projection: 1-Lipschitz and `||y|| <= ||x||`. From 128 entries on they are summed by
    blocks, so that the rounding of a mean grows with the root of their number (`norms.sums`). It never reads another
    example of the batch; centering over the batch would, and is refused.
    """

    def __init__(self, axis: int | Sequence[int] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if isinstance(axis, (tuple, list)):
            self.axis = tuple(checks.integer("axis", a, -_MAX_RANK) for a in axis)
        else:
            self.axis = checks.integer("axis", axis, -_MAX_RANK, optional=True)
        if self.axis is not None and 0 in _as_tuple(self.axis):
            raise ValueError(_batch_axis_message(self.axis))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        rank = len(input_shape)
        axes = tuple(range(1, rank - 1)) or (1,) if self.axis is None else _as_tuple(self.axis)
        axes = tuple(a + rank if a < 0 else a for a in axes)
        if any(a < 1 or a >= rank for a in axes):
            raise ValueError(f"{_batch_axis_message(self.axis)} Input shape: {tuple(input_shape)}.")
        self._axes = axes

    def call(self, inputs: Any) -> Any:
        terms = self._terms(inputs.shape)
        if terms is None or terms <= _AT_ONCE:
            return inputs - ops.mean(inputs, axis=self._axes, keepdims=True)
        # The mean of entries that are alike is not to be off by more than the slack of a layer.
        others = [a for a in range(1, len(inputs.shape)) if a not in self._axes]
        rows = ops.transpose(inputs, (0, *self._axes, *others))
        total = sums.sum_per_row(ops.reshape(rows, (-1, terms, math.prod(inputs.shape[a] for a in others))), _AT_ONCE)
        shape = [1 if a in self._axes else inputs.shape[a] for a in range(1, len(inputs.shape))]
        return inputs - ops.reshape(total * (1.0 / terms), (-1, *shape))

    def _terms(self, shape: tuple[int | None, ...]) -> int | None:
        """Returns how many entries a mean is of; None where an inner size is not known."""
        return None if None in tuple(shape)[1:] else math.prod(shape[a] for a in self._axes)

    def output_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int | None:
        terms = self._terms(output_shape)
        return None if terms is None else sums.chain(terms, _AT_ONCE)


def _as_tuple(axis) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else axis


def _batch_axis_message(axis) -> str:
    return (
        "LayerCentering works on existing axes of one example; axis 0 is the batch, and mixing examples "
        f"would void every bound. Received: axis={axis!r}."
    )
