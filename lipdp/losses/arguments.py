"""Checks of constructor arguments, shared by the losses."""

import math
from numbers import Integral, Real
from typing import Any


def positive(name: str, value: float) -> float:
    """Return `value` as a float if it is a finite number above zero.

    Args:
        name: the argument's name, for the message.
        value: what the user gave.

    Returns:
        The value as a Python float.

    Raises:
        ValueError: if it is not a finite number above zero.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not (0.0 < value < math.inf):
        raise ValueError(f"`{name}` must be a finite number above 0. Received: {name}={value!r}")
    return float(value)


def count(name: str, value: int, minimum: int = 1) -> int:
    """Return `value` as an int if it is an integer of at least `minimum`.

    Args:
        name: the argument's name, for the message.
        value: what the caller gave.
        minimum: the smallest accepted value.

    Returns:
        The value as a Python int.

    Raises:
        ValueError: if it is not an integer, or below `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(f"`{name}` must be an integer of at least {minimum}. Received: {name}={value!r}")
    return int(value)


def priors(name: str, value: Any) -> tuple[float, ...] | None:
    """Return `value` as a tuple of class probabilities, or `None` for uniform ones.

    Args:
        name: the argument's name, for the message.
        value: `None`, or at least two probabilities strictly between 0 and 1 that sum to 1 (within 1e-6).

    Returns:
        `None`, or the probabilities divided by their sum.

    Raises:
        ValueError: if they are not such probabilities.
    """
    if value is None:
        return None
    try:
        probabilities = tuple(float(p) for p in value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be a sequence of probabilities or None. Received: {name}={value!r}") from error
    # `not (p > 0)` rather than `p <= 0`: NaN must fail too.
    if len(probabilities) < 2 or any(not p > 0.0 for p in probabilities):
        raise ValueError(
            f"`{name}` must hold one probability above 0 per class (at least two). Received: {name}={value!r}"
        )
    total = math.fsum(probabilities)
    if not abs(total - 1.0) <= 1e-6:
        raise ValueError(f"`{name}` must sum to 1. Received: {name}={value!r}, which sums to {total!r}")
    return tuple(p / total for p in probabilities)
