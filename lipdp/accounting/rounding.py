"""Rounding that never flatters: no noise multiplier and no printed epsilon is too small, no radius too large."""

import math
import operator
from collections.abc import Callable


def round_up(value: float, digits: int = 4) -> float:
    """Returns `value` with so many significant digits, never below it.

    Args:
        value: at least 0; infinity stays.
        digits: how many significant digits.

    Returns:
        A float.

    Example:
        >>> round_up(0.92021), round_up(2.0), round_up(0.0)
        (0.9203, 2.0, 0.0)
    """
    return _moved(value, digits, 0.5, operator.ge)


def round_down(value: float, digits: int = 4) -> float:
    """Returns `value` with so many significant digits, never above it.

    Args:
        value: at least 0; infinity stays.
        digits: how many significant digits.

    Returns:
        A float.

    Example:
        >>> round_down(0.92029), round_down(2.0), round_down(0.0)
        (0.9202, 2.0, 0.0)
    """
    return _moved(value, digits, -0.5, operator.le)


def _moved(value: float, digits: int, by: float, fits: Callable[[float, float], bool]) -> float:
    """Returns the nearest number of so many digits; where it does not fit, that of `value` moved by part of a digit."""
    rounded = float(f"{value:.{digits - 1}e}")
    if fits(rounded, value) or math.isnan(value):
        return rounded
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
    return float(f"{value + by * unit:.{digits - 1}e}")
