"""Float32 sums whose rounding grows with the root of the number of terms, in every compiler."""

import math
from typing import Any

from keras import ops

_UNIT = 2.0**-24  # unit roundoff of float32
# Up to this many squares one sum does; with more, blocks of about the root of their number are summed first.
AT_ONCE = 2**16
# Between the two stages, see `sum_of_squares`.
_SMALLEST, _LARGEST = 1.2e-38, 3.0e38
# What is left of a norm at least, for what a projection may take away to cover rounding.
_LEAST = 0.99


def chain(terms: int, at_once: int = AT_ONCE) -> int:
    """Returns the most float32 roundings that one of `terms` products meets until all are added up in here.

    **Guarantee.** It holds for every order of additions within a stage. In a sum of n terms each meets at most n - 1
    additions, and one rounding more made it. Above `at_once` terms there are two stages, of `rows + 1` blocks of at
    most `block` terms, and a term meets at most `block - 1` additions and then `rows`.
    """
    if terms <= at_once:
        return terms
    rows, block = _blocks(terms)
    return rows + block


def margin(terms: int, more: int = 8, times: float = 1.0, name: str = "A norm") -> float:
    """Returns the factor by which a radius is reduced, so that rounding in the norm of `terms` entries is covered.

    Args:
        terms: Number of entries that `sum_of_squares` adds up.
        more: Roundings of the operations around the sum.
        times: Factor on the whole.
        name: What needs the norm, for messages.

    Returns:
        `1 - times (chain + more) 2^-24`, between 0.99 and 1.

    Raises:
        ValueError: so many entries that it would be below 0.99.
    """
    left = 1.0 - times * (chain(terms) + more) * _UNIT
    if left < _LEAST:
        raise ValueError(
            f"{name} has too many entries for a sum in float32: more than one per cent would have to be given up to "
            f"rounding. Received: {terms} entries. Split them, or bound smaller parts."
        )
    return left


def sum_of_squares(values: Any, per_row: bool = True, at_once: int = AT_ONCE) -> Any:
    """Returns the sum of squares over all axes, or all but the first, which stay as axes of size one.

    Args:
        values: Tensor whose summed axes have known sizes.
        per_row: Whether the first axis is kept.
        at_once: Up to so many squares one sum does.

    Returns:
        Tensor of as many axes, infinite or NaN where a square is.

    **Guarantee.** The result is within factors `(1 - u)^c` and `(1 + u)^c` of the exact sum, u = 2^-24 and c =
    `chain(number of entries, at_once)`, but for underflow: each term is in it with a factor `1 + d`, `|d| <= u`, per
    rounding that it met (Higham 2002, section 3.1), and no term is negative. A norm, the root of it, errs by half of
    that. A square below 1.2e-38 may be lost; in two stages every block counts for at least 1.2e-38. No compiler may
    merge the two stages into one sum, as XLA does with sums of sums: the maximum between them changes small values, so
    it is no identity that could be removed, and sums cannot be exchanged with it.
    """
    shape = tuple(values.shape)
    first = 1 if per_row else 0
    terms = math.prod(shape[first:])
    squares = ops.square(values)
    if terms <= at_once:
        return ops.sum(squares, axis=tuple(range(first, len(shape))), keepdims=True)
    parts = _block_sums(ops.reshape(squares, (-1, terms, 1)))
    total = ops.sum(ops.maximum(parts, _SMALLEST), axis=(1, 2))
    return ops.reshape(total, (-1, *(1 for _ in shape[1:])))


def dot(one: Any, other: Any, at_once: int = AT_ONCE) -> Any:
    """Returns the inner products `(batch, 1)` of the rows of two tensors `(batch, terms)`.

    **Guarantee.** The error is at most `(1 + u)^c - 1` times the product of the two norms, c = `chain(terms, at_once)`,
    as for `sum_over_positions`.
    """
    return sum_per_row((one * other)[..., None], at_once)


def sum_per_row(values: Any, at_once: int) -> Any:
    """Returns the sums `(batch, features)` of `(batch, terms, features)`.

    **Guarantee.** That of `sum_over_positions`, for each row.
    """
    if values.shape[1] <= at_once:
        return ops.sum(values, axis=1)
    return ops.sum(ops.clip(_block_sums(values), -_LARGEST, _LARGEST), axis=1)


def sum_over_positions(values: Any, at_once: int) -> Any:
    """Returns the sums `(features,)` of `(batch, ..., features)` with known inner sizes.

    **Guarantee.** For one example the error is at most `(1 + u)^c - 1` times the sum of absolute values, c =
    `chain(positions, at_once)`. What stands between the two stages changes values beyond 3e38, for the reason that
    `sum_of_squares` gives.
    """
    shape = tuple(values.shape)
    terms = math.prod(shape[1:-1])
    if terms <= at_once:
        return ops.sum(values, axis=tuple(range(len(shape) - 1)))
    parts = _block_sums(ops.reshape(values, (-1, terms, shape[-1])))
    return ops.sum(ops.clip(parts, -_LARGEST, _LARGEST), axis=(0, 1))


def _blocks(terms):
    block = math.isqrt(terms)
    return terms // block, block


def _block_sums(values):
    """Sums `(batch, terms, features)` to `(batch, blocks, features)`; what is left over is a block of its own."""
    (rows, block), features = _blocks(values.shape[1]), values.shape[2]
    whole = ops.reshape(values[:, : rows * block], (-1, rows, block, features))
    sums = ops.sum(whole, axis=2)
    if rows * block == values.shape[1]:
        return sums
    rest = ops.sum(values[:, rows * block :], axis=1, keepdims=True)
    return ops.concatenate([sums, rest], axis=1)
