"""Argument checks of the whole library: NumPy scalars are numbers everywhere, `True` is a number nowhere."""

import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def real(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a finite number as a float.

    Args:
        name: name of the argument, used in the message.
        value: what the caller passed.
        optional: whether `None` is accepted, and returned.
        hint: a sentence on what to pass instead, appended to the message.

    Returns:
        A finite Python float, or `None`.

    Raises:
        ValueError: when `value` is not a real number, or NaN, or infinite.

    Example:
        >>> import numpy as np
        >>> real("rate", np.float32(0.5))
        0.5
    """
    return _number(name, value, "a finite number", math.isfinite, optional, hint)


def positive(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a finite number above 0 as a float; ValueError otherwise."""
    return _number(name, value, "a finite number above 0", lambda v: 0.0 < v < math.inf, optional, hint)


def not_negative(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a finite number of at least 0 as a float; ValueError otherwise."""
    return _number(name, value, "a finite number of at least 0", lambda v: 0.0 <= v < math.inf, optional, hint)


def between(name: str, value: Any, low: float, high: float, optional: bool = False, hint: str = "") -> Any:
    """Returns a number in [low, high] as a float; ValueError otherwise."""
    interval = f"[{low:g}, {high:g}]".replace("e-0", "e-").replace("e+0", "e")
    return _number(name, value, f"a number in {interval}", lambda v: low <= v <= high, optional, hint)


def fraction(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a number in (0, 1) as a float; ValueError otherwise."""
    return _number(name, value, "a number in (0, 1)", lambda v: 0.0 < v < 1.0, optional, hint)


def below_one(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a number in [0, 1) as a float; ValueError otherwise."""
    return _number(name, value, "a number in [0, 1)", lambda v: 0.0 <= v < 1.0, optional, hint)


def probability(name: str, value: Any) -> float:
    """Returns a sampling probability in (0, 1] as a float; ValueError otherwise."""
    hint = "Pass the expected batch size divided by the number of examples."
    return _number(name, value, "a number in (0, 1]", lambda v: 0.0 < v <= 1.0, False, hint)


def delta(value: Any, name: str = "delta") -> float:
    """Returns the delta of a privacy guarantee, in (0, 1), as a float; ValueError otherwise."""
    return fraction(name, value, hint="Pass a value well below 1 / number of examples, such as 1e-5.")


def integer(name: str, value: Any, minimum: int = 0, optional: bool = False, hint: str = "") -> Any:
    """Returns an integer of at least `minimum` as an int; ValueError otherwise, for 2.0 too."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        expected = {0: "a non-negative integer", 1: "a positive integer"}.get(
            minimum, f"an integer of at least {minimum}"
        )
        raise _refusal(name, value, expected, optional, hint)
    return int(value)


def choice(name: str, value: Any, allowed: Iterable[str], hint: str = "") -> str:
    """Returns one of the `allowed` strings; ValueError otherwise."""
    allowed = tuple(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise _refusal(name, value, f"one of {', '.join(map(repr, allowed))}", False, hint)
    return value


def boolean(name: str, value: Any, hint: str = "") -> bool:
    """Returns `True` or `False`, Python's or NumPy's, as a bool; ValueError otherwise."""
    if not isinstance(value, (bool, np.bool_)):
        raise _refusal(name, value, "True or False", False, hint)
    return bool(value)


def _number(name: str, value, expected: str, accepts: Callable[[float], bool], optional: bool, hint: str):
    if value is None and optional:
        return None
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:  # an integer beyond the largest float
            number = math.inf
        if accepts(number):
            return number
    raise _refusal(name, value, expected, optional, hint)


def _refusal(name: str, value, expected: str, optional: bool, hint: str) -> ValueError:
    expected = f"{expected} or None" if optional else expected
    return ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}.{hint and ' ' + hint}")
