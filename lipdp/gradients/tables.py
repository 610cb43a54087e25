"""Forms in which the gradients of a table of vectors are held, of which an example touches a few rows."""

from keras import ops

from lipdp import backend
from lipdp.gradients.factors import (
    TINY,
    MatrixLayout,
    Outer,
    Whole,
    matmul,
    pair_sums,
    rounding,
    row_sums,
    squared_length,
    sum_of_squares,
    together,
    weighted,
    zeroed,
)
from lipdp.norms import sums


def known_rows(indices, rows: int):
    """Returns the rows of a table that indices stand for, and which of them exist.

    Keras counts negative ones from the end. One that does not exist counts for none, least of all for one of another
    example.
    """
    indices = ops.cast(indices, "int32")
    indices = ops.where(indices < 0, indices + rows, indices)
    known = ops.logical_and(indices >= 0, indices < rows)
    return ops.where(known, indices, 0), known


class Lookup:
    """Cotangents `(batch, positions, o)` that go to the rows `indices (batch, positions)` of a table."""

    def __init__(self, indices, g, shape):
        self.indices, known = known_rows(indices, shape[0])
        self.g, self._shape = ops.where(known[..., None], g, ops.zeros_like(g)), tuple(shape)

    @property
    def _positions(self):
        return self.indices.shape[1]

    @property
    def _single(self):
        return self._positions in (0, 1)

    @property
    def _few_rows(self):
        """Whether the whole gradient of an example is not much larger than what it looked up."""
        return self._positions is None or self._shape[0] <= 2 * self._positions

    def whole(self):
        return backend.segment_sums(self.g, self.indices, self._shape[0])

    def _rows_apart(self):
        """Numbers the rows that an example looked up, equal ones alike.

        Returns:
            The number of each position, how many numbers there may be, and the row of each, `(batch, numbers)`.
        """
        rows, positions = self._shape[0], self._positions
        if self._few_rows:
            return self.indices, rows, None
        if rows * positions < 2**31:
            # One sort of numbers that hold both is faster than one of pairs.
            both = ops.sort(self.indices * positions + ops.arange(positions, dtype="int32"), axis=1)
            found = both // positions
            order = both - found * positions
        else:
            order = ops.cast(ops.argsort(self.indices, axis=1), "int32")
            found = ops.take_along_axis(self.indices, order, axis=1)
        new = ops.cast(found[:, 1:] != found[:, :-1], "int32")
        numbers = ops.cumsum(ops.pad(new, [[0, 0], [1, 0]]), axis=1)
        places = backend.segment_sums(numbers[..., None], order, positions)[..., 0]
        first = found * ops.pad(new, [[0, 0], [1, 0]], constant_values=1)
        return places, positions, backend.segment_sums(first[..., None], numbers, positions)[..., 0]

    def _sums(self, g):
        """Returns at least the squared norm of the sums of `g` row by row, and the squares of how long they can be.

        The second is `sum_rows (sum_p |g_p|)^2` over the positions of a row: its part by which the first is wrong.
        """
        places, count, _ = self._rows_apart()
        lengths = ops.sqrt(squared_length(g))[..., None]
        of_rows, longest = (backend.segment_sums(t, places, count) for t in (g, lengths))
        return sum_of_squares(of_rows), sum_of_squares(longest)

    def _rounding(self):
        known = self._positions is not None
        positions = self._positions if known else ops.cast(ops.shape(self.indices)[1], "float32")
        # Sums of as many terms in the norm and in `weighted_sum`, which a GPU adds up in another order; each counts
        # twice in the square.
        return rounding(4 * positions)

    def squared_norm(self):
        if self._single:
            return sum_of_squares(self.g)
        total, longest = self._sums(self.g)
        return total + self._rounding() * longest

    def cost(self):
        positions, (rows, width) = self._positions, self._shape
        if self._single:
            return "product of two norms", 0, width
        if self._few_rows:
            return "whole gradients", rows * width, rows * width
        return "sums by row", positions * (width + 5), positions * width

    def scaled_squared_norm(self, center, inverse_scale):
        # Rows that an example does not touch hold -center: |s c|^2, corrected where it does.
        center, scale = (ops.broadcast_to(t, self._shape) for t in (center, inverse_scale))
        scaled = ops.take(scale, self.indices, axis=0) * self.g
        first, longest = self._sums(scaled)
        center = scale * center
        cross = row_sums(scaled * ops.take(center, self.indices, axis=0))
        last = ops.reshape(sums.sum_of_squares(center, per_row=False), ())
        # |cross| <= sum over rows of (sum_p |s g_p|) |s c|, and |s c|^2 is `last`.
        margin = (
            2.0 * (self._rounding() + rounding(self._shape[1])) * (longest + ops.sqrt(longest) * ops.sqrt(last) + last)
        )
        return ops.maximum(first - 2.0 * cross + last + margin, 0.0)

    def weighted_sum(self, coefficients):
        if self._single:
            sums, rows = self.g, self.indices
        else:
            # Row by row within an example first: a sum of all positions of all examples would round the last ones by
            # parts of a percent, all in one direction where they are alike.
            places, count, rows = self._rows_apart()
            sums = backend.segment_sums(self.g, places, count)
            if rows is None:
                return weighted(coefficients, sums)
        sums = ops.reshape(sums * coefficients[:, None, None], (-1, self._shape[1]))
        return ops.segment_sum(sums, ops.reshape(rows, (-1,)), num_segments=self._shape[0])

    def masked(self, keep):
        return Lookup(self.indices, zeroed(self.g, keep), self._shape)

    def merged(self, other):
        if isinstance(other, Outer) and other.layout == MatrixLayout(self._shape) and len(other.a.shape) == 3:
            return Tied(self, other)
        if not isinstance(other, Lookup):
            return None
        indices = ops.concatenate([self.indices, other.indices], 1)
        return Lookup(indices, ops.concatenate([self.g, other.g], 1), self._shape)


class Tied:
    """The sum of rows that were looked up and of products with the same table, as a language model has that reads and
    writes by one table: no gradient of the size of the table is built.

    Args:
        lookup: A `Lookup`.
        outer: An `Outer` with inputs `(batch, positions, rows of the table)`.
    """

    def __init__(self, lookup, outer):
        self._lookup, self._outer = lookup, outer

    def whole(self):
        return self._lookup.whole() + self._outer.whole()

    def squared_norm(self):
        g, a = self._lookup.g, self._outer.a
        # Entry (q, p): what position q of the product has in the row that position p looked up.
        shared = ops.take_along_axis(a, self._lookup.indices[:, None, :], axis=2)
        cross = row_sums(pair_sums(shared * matmul(self._outer.g, ops.transpose(g, (0, 2, 1)))))
        # Both norms hold margins of their own. Where the two cancel, the sum that is added rounds by its parts.
        parts = self._lookup.squared_norm() + self._outer.squared_norm()
        one, other = (ops.sqrt(squared_length(t)) for t in (self._outer.g, g))
        lengths = row_sums(ops.abs(shared) * one[:, :, None] * other[:, None, :])
        width, pairs = g.shape[-1], self._pairs()
        margin = 2.0 * rounding(width + pairs) * lengths + 4.0 * rounding(0) * parts
        tiny = TINY * (2.0 * width * row_sums(ops.abs(shared)) + 2.0 * pairs)
        return ops.maximum(parts + 2.0 * cross + margin + tiny, 0.0)

    def cost(self):
        a, g = self._outer.a, self._lookup.g
        pairs = a.shape[1] * g.shape[1]
        return together(
            [self._lookup.cost(), self._outer.cost(), ("pairs of positions", 2 * pairs, pairs * g.shape[2])]
        )

    def _pairs(self):
        sizes = [(t.shape[1], ops.shape(t)[1]) for t in (self._lookup.g, self._outer.a)]
        if None not in (sizes[0][0], sizes[1][0]):
            return sizes[0][0] + sizes[1][0]
        return ops.cast(sizes[0][1] + sizes[1][1], "float32")

    def scaled_squared_norm(self, center, inverse_scale):
        return Whole(self.whole()).scaled_squared_norm(center, inverse_scale)

    def weighted_sum(self, coefficients):
        return self._lookup.weighted_sum(coefficients) + self._outer.weighted_sum(coefficients)

    def masked(self, keep):
        return Tied(self._lookup.masked(keep), self._outer.masked(keep))

    def merged(self, other):
        if isinstance(other, Lookup):
            return Tied(self._lookup.merged(other), self._outer)
        outer = self._outer.merged(other)
        return None if outer is None else Tied(self._lookup, outer)


class Slice:
    """Gradients `(batch, length, o)` of the rows `start`, `start + 1`, ... of a table."""

    def __init__(self, gradients, start: int, shape):
        self._part = Whole(gradients)
        self._start, self._shape = start, tuple(shape)

    def _padded(self, rows):
        """Returns `(..., length, o)` with zeros for the other rows."""
        after = self._shape[0] - self._start - rows.shape[-2]
        return ops.pad(rows, [(0, 0)] * (len(rows.shape) - 2) + [(self._start, after), (0, 0)])

    def whole(self):
        return self._padded(self._part.whole())

    def squared_norm(self):
        return self._part.squared_norm()

    def scaled_squared_norm(self, center, inverse_scale):
        return Whole(self.whole()).scaled_squared_norm(center, inverse_scale)

    def weighted_sum(self, coefficients):
        return self._padded(self._part.weighted_sum(coefficients))

    def cost(self):
        return self._part.cost()

    def masked(self, keep):
        part = self._part.masked(keep)
        return Slice(part.whole(), self._start, self._shape)
