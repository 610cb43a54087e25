"""Forms in which the gradients of one variable, one per example, are held.

Each form answers the same questions: `squared_norm()`, `scaled_squared_norm(center, inverse_scale)` and
`weighted_sum(coefficients)`; `masked(keep)` is the same form with zeros in place of examples that are not kept;
`whole()` is the way out, all gradients at full size; `cost()` is what the norm of one example takes: the name of the
way, the numbers that are held for it beside what the passes leave, and the multiplications.
"""

import functools
import math

import keras
from keras import ops

from lipdp import backend
from lipdp.norms import sums

_UNIT = 2.0**-24
# A square below the smallest normal float32 may be flushed to zero. Where it is multiplied by something that may be
# as large as the largest float32, this much is added for each: a norm of 1 must not read as 0.
TINY = 1.2e-38
# With more squares, blocks are summed first: whatever the order of additions, a norm of a million entries, or the
# product of two of a thousand, is within 6.2e-5 of the exact one, which the margin of clipping covers.
_AT_ONCE = 2**10


def rounding(terms):
    """Returns the bound on the float32 rounding of a sum of products, relative to the sum of their absolute values.

    It holds for any order of summation (Higham 2002, section 3.1) and covers a few operations more. Where terms
    cancel it is added, so that a norm is not understated and what is clipped does not exceed the clip norm.
    """
    part = (terms + 8) * _UNIT
    # Below one half, hence for up to 8 million terms, this is at least part / (1 - part).
    return part + 2.0 * part * part


def exactly(function):
    """Makes the products inside of `function` in float32, whatever the precision of the step.

    Norms and sums must agree on what is added. What makes the gradients themselves needs no such care: they are what
    they are, and norm and sum are taken of the same numbers.
    """

    @functools.wraps(function)
    def run(*args):
        with backend.full_precision():
            return function(*args)

    return run


class Whole:
    """Per-example gradients as they are, `(batch, *shape)`."""

    def __init__(self, gradients):
        self._gradients = backend.made_once(gradients)

    def whole(self):
        return self._gradients

    def squared_norm(self):
        return sum_of_squares(self._gradients)

    def scaled_squared_norm(self, center, inverse_scale):
        return sum_of_squares(inverse_scale * (self._gradients - center))

    def weighted_sum(self, coefficients):
        return weighted(coefficients, self._gradients)

    def masked(self, keep):
        return Whole(zeroed(self._gradients, keep))

    def cost(self):
        size = math.prod(self._gradients.shape[1:])
        return "whole gradients", size, size


class Zero:
    """A variable that the loss does not depend on."""

    def __init__(self, rows, shape):
        self._rows, self._shape = rows, tuple(shape)

    def whole(self):
        return ops.zeros((self._rows.batch, *self._shape))

    def squared_norm(self):
        return ops.zeros((self._rows.batch,))

    def scaled_squared_norm(self, center, inverse_scale):
        scaled = inverse_scale * (center + ops.zeros(self._shape))
        return self.squared_norm() + ops.reshape(sums.sum_of_squares(scaled, per_row=False), (-1,))

    def weighted_sum(self, coefficients):
        return ops.zeros(self._shape)

    def masked(self, keep):
        return self

    def cost(self):
        return "not used", 0, 0


class MatrixLayout:
    """How the matrix `(*groups, inputs, outputs)` of a factor lies in a variable.

    Args:
        shape: Shape of the variable.
        axes: For each axis of the split matrix, the axis of the variable it is; None where they agree.
        matrix: Shape of the matrix; None for `(all but the last axis, last axis)`.
    """

    def __init__(self, shape, axes=None, matrix=None):
        self.shape, self.axes = tuple(shape), None if axes is None else tuple(axes)
        self.matrix = (math.prod(self.shape[:-1]), self.shape[-1]) if matrix is None else tuple(matrix)

    def to_variable(self, matrix, leading=()):
        """Turns `(*leading, *matrix)` into `(*leading, *shape)`."""
        n = len(leading)
        if self.axes is None:
            return ops.reshape(matrix, (*leading, *self.shape))
        split = ops.reshape(matrix, (*leading, *(self.shape[a] for a in self.axes)))
        back = [n + self.axes.index(a) for a in range(len(self.shape))]
        return ops.transpose(split, (*range(n), *back))

    def to_matrix(self, variable):
        if self.axes is not None:
            variable = ops.transpose(variable, self.axes)
        return ops.reshape(variable, self.matrix)

    def __eq__(self, other):
        return (self.shape, self.axes, self.matrix) == (other.shape, other.axes, other.matrix)

    __hash__ = None


class Outer:
    """`sum_p a_p g_p^T`: inputs `(batch, *groups, positions, i)`, cotangents `(batch, *groups, positions, o)`.

    With one position the norm is a product. With more, the cheaper of two: the products of all pairs of positions,
    `positions^2 (i + o)` operations, or the gradients themselves, `positions i o`.
    """

    def __init__(self, a, g, layout: MatrixLayout):
        # Squares of integers overflow in silence, and a norm that is too small clips too little.
        self.a, self.g = (t if keras.backend.is_float_dtype(t.dtype) else ops.cast(t, "float32") for t in (a, g))
        self.layout = layout
        self._matrix = None

    @property
    def _positions(self):
        return self.a.shape[-2]

    @property
    def _pairs(self) -> bool:
        inputs, outputs = self.a.shape[-1], self.g.shape[-1]
        return self._positions is not None and self._positions * (inputs + outputs) < inputs * outputs

    def _gradients(self):
        if self._matrix is None:
            self._matrix = backend.made_once(backend.contract(self.a, self.g))
        return self._matrix

    def whole(self):
        return self.layout.to_variable(self._gradients(), (ops.shape(self.a)[0],))

    def squared_norm(self):
        if self._positions == 1:
            return row_sums(squared_length(self.a) * squared_length(self.g))
        if not self._pairs:
            return sum_of_squares(self._gradients())
        product = pair_sums(_gram(self.a) * _gram(self.g))
        a, g = ops.sqrt(squared_length(self.a)), ops.sqrt(squared_length(self.g))
        groups = math.prod(self.a.shape[1:-2])
        terms = self.a.shape[-1] + self.g.shape[-1] + (1 + groups) * self._positions
        margin = rounding(terms) * ops.square(ops.sum(a * g, axis=-1))
        for lengths, other in ((a, self.g), (g, self.a)):
            margin = margin + other.shape[-1] * TINY * ops.square(ops.sum(lengths, axis=-1))
        return ops.maximum(row_sums(product) + row_sums(margin), 0.0)

    def scaled_squared_norm(self, center, inverse_scale):
        center = self.layout.to_matrix(ops.broadcast_to(center, self.layout.shape))
        scale = self.layout.to_matrix(ops.broadcast_to(inverse_scale, self.layout.shape))
        if self._positions != 1 or len(self.a.shape) != 3:
            return sum_of_squares(scale * (self._gradients() - center))
        # |s (a g^T - c)|^2 = sum s^2 a^2 g^2 - 2 sum s^2 c a g + |s c|^2, without the matrix of each example.
        a, g, square = self.a[:, 0], self.g[:, 0], ops.square(scale)
        rows = matmul(ops.square(a), square) + TINY * ops.sum(square, axis=0)
        first = ops.sum(rows * (ops.square(g) + TINY), axis=-1)
        cross = ops.sum(matmul(a, square * center) * g, axis=-1)
        last = ops.sum(square * ops.square(center))
        margin = 2.0 * rounding(self.a.shape[-1] + self.g.shape[-1]) * (first + last)
        return ops.maximum(first - 2.0 * cross + last + margin, 0.0)

    def weighted_sum(self, coefficients):
        if self._positions != 1 and (not self._pairs or self._matrix is not None):
            matrix = weighted(coefficients, self._gradients())
        elif len(self.a.shape) == 3:
            matrix = self._summed(coefficients)
        else:
            matrix = self._summed_groups(coefficients)
        return self.layout.to_variable(matrix)

    @exactly
    def _summed(self, coefficients):
        g = self.g * ops.reshape(coefficients, (-1, 1, 1))
        return backend.contract(*(ops.reshape(t, (-1, t.shape[-1])) for t in (self.a, g)))

    @exactly
    def _summed_groups(self, coefficients):
        g = self.g * ops.reshape(coefficients, (-1, *(1 for _ in self.g.shape[1:])))
        return ops.einsum("bspi,bspo->sio", self.a, g)

    def masked(self, keep):
        kept = Outer(zeroed(self.a, keep), zeroed(self.g, keep), self.layout)
        # The gradients that were measured, not the same product again.
        kept._matrix = None if self._matrix is None else zeroed(self._matrix, keep)
        return kept

    def cost(self):
        positions, inputs, outputs = self._positions, self.a.shape[-1], self.g.shape[-1]
        groups = math.prod(self.a.shape[1:-2])
        if positions == 1:
            return "product of two norms", 0, groups * (inputs + outputs)
        if self._pairs:
            return "pairs of positions", 2 * groups * positions**2, groups * positions**2 * (inputs + outputs)
        return "whole gradients", groups * inputs * outputs, groups * positions * inputs * outputs

    def merged(self, other):
        """Returns the sum with another of the same layout, as more positions; None where that is not possible."""
        if not isinstance(other, Outer) or self.layout != other.layout or len(self.a.shape) != len(other.a.shape):
            return None
        return Outer(ops.concatenate([self.a, other.a], -2), ops.concatenate([self.g, other.g], -2), self.layout)


class Blocks:
    """Parts of one variable, side by side on its last axis, each a factor of its own."""

    def __init__(self, parts, widths):
        self._parts, self._widths = parts, widths
        self._ends = [sum(widths[: k + 1]) for k in range(len(widths))]
        self._starts = [0, *self._ends[:-1]]

    def whole(self):
        return ops.concatenate([part.whole() for part in self._parts], axis=-1)

    def squared_norm(self):
        return sum(part.squared_norm() for part in self._parts)

    def scaled_squared_norm(self, center, inverse_scale):
        def cut(value, start, end):
            return value[..., start:end] if len(getattr(value, "shape", ())) else value

        return sum(
            part.scaled_squared_norm(cut(center, i, j), cut(inverse_scale, i, j))
            for part, i, j in zip(self._parts, self._starts, self._ends, strict=True)
        )

    def weighted_sum(self, coefficients):
        return ops.concatenate([part.weighted_sum(coefficients) for part in self._parts], axis=-1)

    def masked(self, keep):
        return Blocks([part.masked(keep) for part in self._parts], self._widths)

    def cost(self):
        return together([part.cost() for part in self._parts])


def merge(factors):
    """Returns the per-example sum of several factors of one variable: a layer that is used more than once."""
    total = factors[0]
    for factor in factors[1:]:
        merged = next((m for one, other in ((total, factor), (factor, total)) if (m := _merged(one, other))), None)
        total = Whole(total.whole() + factor.whole()) if merged is None else merged
    return total


def _merged(one, other):
    return one.merged(other) if hasattr(one, "merged") else None


def together(costs):
    """Returns the cost of several norms."""
    names, held, products = zip(*costs, strict=True)
    return " + ".join(dict.fromkeys(names)), sum(held), sum(products)


def weighted(coefficients, gradients):
    """Returns `sum_i c_i G_i` for `(batch, ...)`."""
    return ops.reshape(flat_sum(ops.expand_dims(coefficients, 0), gradients), gradients.shape[1:])


def flat_sum(coefficients, gradients):
    """Returns `sum_i c_i G_i` as `(1, entries)`, from coefficients `(1, batch)`."""
    if len(gradients.shape) != 2:
        gradients = ops.reshape(gradients, (-1, math.prod(gradients.shape[1:])))
    return matmul(coefficients, gradients)


def zeroed(values, keep):
    """Returns `(batch, ...)` with zeros for examples that are not in `keep`, whatever they held."""
    return ops.where(ops.reshape(keep, (-1, *(1 for _ in values.shape[1:]))), values, ops.zeros_like(values))


def row_sums(values):
    axes = tuple(range(1, len(values.shape)))
    return ops.sum(values, axis=axes) if axes else values


def pair_sums(products):
    """Sums `(..., positions, positions)` over the last axis, by a product: short sums round less than long ones."""
    return matmul(products, ops.ones((ops.shape(products)[-1], 1), products.dtype))


matmul, _gram = exactly(ops.matmul), exactly(backend.gram)


def squared_length(vectors):
    """At least the squared norm along the last axis, whatever underflows."""
    width = vectors.shape[-1]
    if width <= _AT_ONCE:
        return ops.sum(ops.square(vectors), axis=-1) + width * TINY
    squares = sums.sum_of_squares(ops.reshape(vectors, (-1, width)), at_once=_AT_ONCE)
    return ops.reshape(squares, ops.shape(vectors)[:-1]) + width * TINY


def sum_of_squares(*parts):
    """At least the squared norm of each example, but for the rounding of the sum, whatever underflows."""
    total, terms = None, 0
    for part in parts:
        size = math.prod(part.shape[1:])
        if size <= _AT_ONCE:
            squares = row_sums(ops.square(part))
        else:
            squares = ops.reshape(sums.sum_of_squares(part, at_once=_AT_ONCE), (-1,))
        total, terms = squares if total is None else total + squares, terms + size
    return total + terms * TINY
