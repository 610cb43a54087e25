"""Argument checks shared by the accounting, the plan and the ledger."""

import math
import numbers


def real(name: str, value, hint: str = "Pass a finite number.") -> float:
    """Returns `value` as a float.

    Args:
        name: name of the argument, used in the message.
        value: what the caller passed.
        hint: what to do instead.

    Returns:
        A finite float.

    Raises:
        ValueError: when it is not a real number, NaN or infinite.

    Example:
        >>> real("delta", 1e-5)
        1e-05
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name} is not a finite number. Received: {name}={value!r}. {hint}")
    return float(value)


def positive(name: str, value, hint: str = "Pass a number above 0.") -> float:
    """Returns `value` as a float above 0; ValueError otherwise."""
    value = real(name, value, hint)
    if value <= 0.0:
        raise ValueError(f"{name} is not positive. Received: {name}={value!r}. {hint}")
    return value


def not_negative(name: str, value, hint: str = "Pass 0 or a number above 0.") -> float:
    """Returns `value` as a float of at least 0; ValueError otherwise."""
    value = real(name, value, hint)
    if value < 0.0:
        raise ValueError(f"{name} is negative. Received: {name}={value!r}. {hint}")
    return value


def probability(name: str, value) -> float:
    """Returns `value` as a float in (0, 1]; ValueError otherwise."""
    hint = "Pass a number in (0, 1]: the expected batch size divided by the number of examples."
    value = real(name, value, hint)
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is outside (0, 1]. Received: {name}={value!r}. {hint}")
    return value


def delta(value, name: str = "delta") -> float:
    """Returns `value` as a float in (0, 1); ValueError otherwise."""
    hint = "Pass a number in (0, 1), well below 1 / number of examples (1e-5, say)."
    value = real(name, value, hint)
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} is outside (0, 1). Received: {name}={value!r}. {hint}")
    return value


def integer(name: str, value, minimum: int = 0) -> int:
    """Returns `value` as an int of at least `minimum`; ValueError otherwise."""
    hint = f"Pass a whole number (int) of at least {minimum}."
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} is not an integer. Received: {name}={value!r}. {hint}")
    if value < minimum:
        raise ValueError(f"{name} is too small. Received: {name}={value!r}. {hint}")
    return int(value)


def choice(name: str, value, allowed) -> str:
    """Returns `value` when it is one of `allowed`; ValueError otherwise."""
    allowed = tuple(allowed)
    if not isinstance(value, str) or value not in allowed:
        known = ", ".join(repr(a) for a in allowed)
        raise ValueError(f"{name} is not known. Received: {name}={value!r}. Use one of {known}.")
    return value
