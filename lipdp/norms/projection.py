"""Certified, stateless projections onto norm balls, run by the optimizer after each update."""

import itertools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.norms import sums
from lipdp.norms.exact import spectral_norm

_UNIT = 2.0**-24  # unit roundoff of float32
# A Bjorck step needs a norm of at most 2. Stopping short of it leaves 56% on the squared norm for rounding,
# and keeps the step from folding the largest singular values: 1.4 goes to 0.73, 1.6 to 0.35, but 1.9 to
# -0.58.
_LIMIT = 1.6
_SCALED = 1.4
# Singular values end at 1 - 2^-20, not at 1, so that independent rounding in the last product stays below 1.
_TARGET = 1.0 - 2.0**-20
_OVERFLOW = 2.0**60  # squared norms above this are computed again, from a matrix divided by its largest entry
_HUGE, _SMALLEST = 1e15, 1e-12  # range of the radius of an L2 ball
_BLOCKED, _BLOCKS = 256, 4  # from this size on, leaving out 3/8 of the Gram matrix pays for the copies


def squared_norm_bounds(gram: Any, inner: Any) -> Any:
    """Bounds the squared spectral norm of W from above, given its smaller Gram matrix.

    Args:
        gram: W'W or WW' as computed in float32, of shape (n, n), or a batch of them.
        inner: The other dimension of W, over which the products were summed.

    Returns:
        A cheap bound, and a function without arguments for a tighter one that costs one more product: it
        exceeds the true value by a factor of order n^(1/4) instead of n^(1/2).

    **Guarantee.** With exact G = W'W, mean = tr G / n and D = G - mean I, |W|^2 = |G|_2 <= mean + |D|_2, and |D|_2 <=
    |D|_F, |D|_2 <= |D D|_F^(1/2); also |W|^2 <= max_j sum_i |G_ij|. Rounding, with u = 2^-24 and m = `inner`: the
    computed G is off by at most m u / (1 - m u) |W|_F^2 in Frobenius norm and D D by n u / (1 - n u) |D|_F^2 (Higham,
    "Accuracy and stability of numerical algorithms", section 3.5); both are added. What sums over n entries lose is
    relative, below 1% for n <= 40000, and covered by the limit of `project`. Not covered: matrix products in TF32 or
    bfloat16.
    """
    n = gram.shape[-1]
    identity = ops.eye(n, dtype="float32")
    mean = ops.mean(ops.diagonal(gram, axis1=-2, axis2=-1), axis=-1)
    rounding = (2.0 * (inner + n + 8) * _UNIT) * (n * mean)
    centered = gram - mean[..., None, None] * identity
    # Summed axis by axis: rounding grows with n, not with n^2.
    frobenius = ops.sum(ops.sum(ops.square(centered), axis=-2), axis=-1)
    rows = ops.max(ops.sum(ops.abs(gram), axis=-2), axis=-1)
    cheap = ops.minimum(mean + ops.sqrt(frobenius), rows) + rounding

    def tight():
        product = ops.matmul(centered, centered)
        fourth = ops.sqrt(ops.sum(ops.sum(ops.square(product), axis=-2), axis=-1))
        fourth = fourth + 2.0 * (n + 8) * _UNIT * frobenius
        return ops.minimum(cheap, mean + ops.sqrt(fourth) + rounding)

    return cheap, tight


def project(weights: Any) -> Any:
    """Maps a matrix into the unit ball of the spectral norm, close to the nearest orthogonal matrix.

    One Bjorck step W <- W (1.5 I - 0.5 W'W), after scaling the certified norm of W down to 1.4 if it is above
    1.6. Two matrix products; a third one, of the small side, only when the cheap bound does not suffice (for any
    matrix of a batch).

    Args:
        weights: Float32 matrix, or a batch of them of shape (count, rows, columns), each projected on its own;
            of the two Gram matrices the smaller is used.

    Returns:
        A tensor of the same shape.

    **Guarantee.** Every singular value of the result is at most 1, for every finite input: in exact arithmetic it is
    (1 - 2^-20) |f(s)| with f(s) = 1.5 s - 0.5 s^3 and s the scaled singular value, at most 2; |f| <= 1 on [0, 2],
    with f(1) = 1 and f(2) = -1 (the only extrema). s <= 2 holds in float32 too: the computed bound is at most 1.6
    after scaling, and the computed squared bound, which carries its rounding terms, is at least |W|^2 / 1.56
    (`squared_norm_bounds`). The two products round once more. Their rounding, modeled as independent errors (Higham
    and Mary, SIAM J. Sci. Comput. 41, 2019), moves singular values by a few 2^-24, below the 2^-20 kept free. Equal
    entries have equal errors: a search found 1 + 1.2e-5, at 640 x 640. So what bounds rest on is <= 1 + 2e-5, which
    the slack of a layer covers, see `bounds.propagate`. The deterministic worst case, all errors aligned, is (m + n)
    2^-24 |W|_F^2 (3 % at 784x512) and is not covered: nothing known comes near it, and `spectral_norm` certifies the
    figure of any weights at hand.
    NaN or infinity in the input gives NaN in every entry, never a finite matrix of norm above 1. Not covered: products
    in TF32 or bfloat16, see `backend.full_precision`.

    Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from lipdp.norms import project
        >>> weights = project(ops.convert_to_tensor(np.diag([5.0, 1.0]).astype("float32")))
        >>> bool(np.linalg.norm(ops.convert_to_numpy(weights), 2) <= 1.0)
        True
    """
    gram = _gram(weights)
    cheap, tight = squared_norm_bounds(gram, max(weights.shape[-2:]))

    def rescaled():
        # Shrunk first: XLA multiplies by the reciprocal of the divisor, which has to be a normal number.
        shrunk = weights * 2.0**-64
        largest = ops.max(ops.abs(shrunk), axis=(-2, -1), keepdims=True)
        # A matrix of a batch may be zero, or become so; NaN stays NaN.
        unit = shrunk / ops.where(ops.equal(largest, 0.0), 1.0, largest)
        gram = _gram(unit)
        return _scaled_step(unit, gram, squared_norm_bounds(gram, max(unit.shape[-2:]))[1]())

    def otherwise():
        # False for NaN as well, hence the other branch; there NaN divides into every entry.
        usable = ops.all(ops.trace(gram, axis1=-2, axis2=-1) < _OVERFLOW)
        return ops.cond(usable, lambda: _scaled_step(weights, gram, tight()), rescaled)

    # Nearly every update ends in the first branch, which is to be as bare as can be; NaN goes to the second.
    return ops.cond(ops.all(cheap <= _LIMIT**2), lambda: _step(weights, gram), otherwise)


def _wide(matrix):
    return matrix.shape[-1] > matrix.shape[-2]


def _gram(matrix):
    wide = _wide(matrix)
    n = min(matrix.shape[-2:])
    if n < _BLOCKED or len(matrix.shape) > 2:
        transposed = ops.swapaxes(matrix, -1, -2)
        return ops.matmul(matrix, transposed) if wide else ops.matmul(transposed, matrix)
    # The Gram matrix is symmetric: what is left of the diagonal blocks need not be computed.
    edges = [round(i * n / _BLOCKS) for i in range(_BLOCKS + 1)]
    strips, rows = [], []
    for begin, end in itertools.pairwise(edges):
        if wide:
            strips.append(ops.matmul(matrix[begin:end], ops.transpose(matrix[begin:])))
        else:
            strips.append(ops.matmul(ops.transpose(matrix[:, begin:end]), matrix[:, begin:]))
        left = [
            ops.transpose(strip[:, begin - first : end - first])
            for strip, first in zip(strips[:-1], edges, strict=False)
        ]
        rows.append(ops.concatenate([*left, strips[-1]], 1) if left else strips[-1])
    return ops.concatenate(rows, 0)


def _scaled_step(matrix, gram, bound):
    # Not maximum: a NaN bound has to reach the result.
    scale = ops.where(bound <= _LIMIT**2, ops.ones_like(bound), _SCALED / ops.sqrt(bound))[..., None, None]
    return _step(matrix, gram, scale)


def _step(matrix, gram, scale=1.0):
    # The scaling is inside the small factor: the large matrix is read by the products only.
    linear, cubic = 1.5 * _TARGET * scale, -0.5 * _TARGET * scale * scale * scale
    factor = cubic * gram + linear * ops.eye(gram.shape[-1], dtype="float32")
    return ops.matmul(factor, matrix) if _wide(matrix) else ops.matmul(matrix, factor)


@_keras.serializable
class SpectralBall(keras.constraints.Constraint):
    """Keeps a kernel, reshaped to (-1, last axis), in the unit ball of the spectral norm.

    Stateless: a constraint that owns state is silently frozen on JAX.

    Args:
        groups: Number of equal parts of the last axis, each of which is a matrix of its own: the filters of a
            grouped convolution.
        steps: Bjorck steps per call. One keeps the norm; each further one brings the other singular values
            closer to 1 (0.5, 0.69, 0.87, 0.98, 0.999).

    Raises:
        ValueError: when called on a tensor with fewer than two axes, or on one that cannot be parted.

    **Guarantee.** That of `project`, for each group.

    Example:
        >>> from keras import layers
        >>> from lipdp.norms import SpectralBall
        >>> layer = layers.Dense(8, kernel_constraint=SpectralBall())
    """

    def __init__(self, groups: int = 1, steps: int = 1):
        self.groups = checks.integer("groups", groups, minimum=1)
        self.steps = checks.integer("steps", steps, minimum=1)

    def __call__(self, value):
        value = ops.convert_to_tensor(value)
        shape = tuple(value.shape)
        matrices = ops.reshape(value, self._parted(shape))
        if self.groups > 1:
            matrices = ops.transpose(matrices, (1, 0, 2))
        for _ in range(self.steps):
            matrices = project(matrices)
        if self.groups > 1:
            matrices = ops.transpose(matrices, (1, 0, 2))
        return ops.reshape(matrices, shape)

    def start(self, value: np.ndarray) -> np.ndarray:
        """Returns a NumPy array brought into the ball, in float64: quicker than `__call__` operation by operation."""
        value = np.asarray(value, "float64")
        parts = self.matrices(value)
        for _ in range(self.steps):
            norms = np.array([spectral_norm(part) for part in parts])
            parts = parts * np.where(norms > _LIMIT, _SCALED / np.maximum(norms, _LIMIT), 1.0)[:, None, None]
            wide = parts.shape[1] > parts.shape[2]
            flipped = np.swapaxes(parts, 1, 2)
            cube = (parts @ flipped) @ parts if wide else parts @ (flipped @ parts)
            parts = _TARGET * (1.5 * parts - 0.5 * cube)
        return np.swapaxes(parts, 0, 1).reshape(value.shape)

    def matrices(self, value: Any) -> np.ndarray:
        """Returns the matrices that a numpy kernel consists of, of shape (groups, rows, columns)."""
        value = np.asarray(value, "float64")
        return np.swapaxes(value.reshape(-1, self.groups, self._parted(value.shape)[-1]), 0, 1)

    def holds(self, value: Any) -> bool:
        """Whether a numpy array already lies in the ball, up to the rounding that bounds allow for."""
        return all(spectral_norm(part) <= 1.0 + 1e-5 for part in self.matrices(value))

    def _parted(self, shape):
        if len(shape) < 2 or shape[-1] % self.groups:
            raise ValueError(
                f"SpectralBall needs at least two axes, the last one divisible by its number of groups. Received: "
                f"shape {tuple(shape)}, groups={self.groups}."
            )
        columns = shape[-1] // self.groups
        return (-1, columns) if self.groups == 1 else (-1, self.groups, columns)


@_keras.serializable
class L2Ball(keras.constraints.Constraint):
    """Keeps a variable, all its entries taken together, in the L2 ball of radius `max_norm`.

    Args:
        max_norm: Radius: 0, or between 1e-12 and 1e15.

    Raises:
        ValueError: `max_norm` is something else; when called, so many entries (about 1.7e9) that rounding would take
            more than one per cent of the norm.

    **Guarantee.** The result has norm at most `max_norm` for every input of n entries without NaN: entries beyond 1e15
    are clipped, the computed norm is within (c + 8) 2^-24 of the true one, relatively, with c = n up to 2^16 entries
    and about 2 sqrt(n) above (`norms.sums`), and the radius is reduced by twice that. What lies inside the reduced ball
    is not changed, but for values below 1e-37, which become zero. NaN in the input gives NaN in every entry.

    Example:
        >>> import numpy as np
        >>> from lipdp.norms import L2Ball
        >>> round(float(np.linalg.norm(L2Ball(2.0)(np.ones(100, "float32")))), 3)
        2.0
    """

    def __init__(self, max_norm: float = 1.0):
        self.max_norm = checks.real("max_norm", max_norm)
        if self.max_norm:
            checks.between(
                "max_norm", max_norm, _SMALLEST, _HUGE, hint="Float32 squares are accurate there, and for 0."
            )

    def __call__(self, value):
        value = ops.convert_to_tensor(value)
        # Clipped so that no square overflows. No division by the largest entry: XLA multiplies by its
        # reciprocal instead, which is flushed to zero above 8e37.
        value = ops.clip(value, -_HUGE, _HUGE)
        radius = self.max_norm * sums.margin(math.prod(value.shape), times=2.0, name="A variable in an L2Ball")
        norm = ops.sqrt(sums.sum_of_squares(value, per_row=False))
        return value * (radius / ops.maximum(norm, max(radius, 0.1 * _SMALLEST)))

    def holds(self, value: Any) -> bool:
        """Whether a numpy array already lies in the ball, up to the rounding that bounds allow for."""
        return float(np.linalg.norm(value.astype("float64"))) <= self.max_norm * (1.0 + 1e-5)


@_keras.serializable
class RowBall(keras.constraints.Constraint):
    """Keeps each row of a matrix in the L2 ball of radius `max_norm`.

    Args:
        max_norm: Radius, between 1e-12 and 1e15.

    Raises:
        ValueError: `max_norm` is something else; when called, too long rows, as for `L2Ball`.

    **Guarantee.** That of `L2Ball`, for each row.

    Example:
        >>> import numpy as np
        >>> from lipdp.norms import RowBall
        >>> rows = RowBall(2.0)(np.array([[3.0, 4.0], [1.0, 0.0]], "float32"))
        >>> [round(float(v), 3) for v in np.linalg.norm(rows, axis=1)]
        [2.0, 1.0]
    """

    def __init__(self, max_norm: float = 1.0):
        self.max_norm = checks.between(
            "max_norm", max_norm, _SMALLEST, _HUGE, hint="Float32 squares are accurate there."
        )

    def __call__(self, value):
        value = ops.clip(ops.convert_to_tensor(value), -_HUGE, _HUGE)
        radius = self.max_norm * sums.margin(value.shape[-1], times=2.0, name="A row in a RowBall")
        rows = ops.reshape(value, (-1, value.shape[-1]))
        norm = ops.reshape(ops.sqrt(sums.sum_of_squares(rows)), (*value.shape[:-1], 1))
        return value * (radius / ops.maximum(norm, radius))

    def holds(self, value: Any) -> bool:
        """Whether a numpy array already lies in the ball, up to the rounding that bounds allow for."""
        norms = np.linalg.norm(np.asarray(value, "float64"), axis=-1)
        return bool(np.max(norms, initial=0.0) <= self.max_norm * (1.0 + 1e-5))
