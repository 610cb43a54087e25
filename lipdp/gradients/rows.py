"""How the rows of a tensor belong to examples."""

import math

from keras import ops


class Rows:
    """`views` consecutive rows of a tensor belong to one example.

    Attributes:
        batch: Number of examples, an integer or a scalar tensor.
        views: Rows per example; None where it is not known before the step runs.
    """

    def __init__(self, batch, views: int | None):
        self.batch, self.views = batch, views

    def examples(self, tensor):
        """Returns `(rows, ...)` as `(batch, rows of one example, ...)`."""
        return ops.reshape(tensor, (self.batch, -1, *ops.shape(tensor)[1:]))

    def positions(self, tensor, inner: int = 1):
        """Returns all but the last `inner` axes as `(batch, positions)`: views, time and place are one axis."""
        cut = len(tensor.shape) - inner
        place, rest = tensor.shape[1:cut], tensor.shape[cut:]
        if None in rest:
            rest = ops.shape(tensor)[cut:]
        if self.views is None or any(size is None for size in place):
            return ops.reshape(tensor, (self.batch, -1, *rest))
        # A tensor whose first axis is not the rows of the batch does not fit this shape: frameworks only say that.
        rows = tensor.shape[0]
        if isinstance(self.batch, int) and rows not in (None, self.batch * self.views):
            raise ValueError(
                "A layer with weights is called on a tensor whose first axis is not that of the examples. Received: "
                f"shape {tuple(tensor.shape)} for {self.batch * self.views} rows. Keep the rows in front; what is the "
                "same for all of them, such as the positions in a text, repeat for each: "
                "ops.broadcast_to(ops.arange(length), ops.shape(inputs))."
            )
        return ops.reshape(tensor, (self.batch, self.views * math.prod(place), *rest))

    def summed(self, tensor, shape):
        """Sums `(rows, ...)` down to `(batch, *shape)`, where `shape` was broadcast against a row."""
        rank = len(tensor.shape)
        target = (1,) * (rank - 1 - len(shape)) + tuple(shape)
        axes = tuple(k + 1 for k, size in enumerate(target) if size == 1)
        if axes:
            tensor = ops.sum(tensor, axis=axes)
        if self.views == 1:
            return ops.reshape(tensor, (self.batch, *shape))
        return ops.sum(ops.reshape(tensor, (self.batch, -1 if self.views is None else self.views, *shape)), axis=1)

    def times(self, steps) -> "Rows":
        """For tensors in which each row became `steps` rows (None: not known)."""
        return Rows(self.batch, None if steps is None or self.views is None else self.views * steps)
