"""Rounding that never flatters: no noise multiplier and no printed epsilon is too small, no radius too large."""

import math


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
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded >= value or math.isnan(value):
        return rounded
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
    return float(f"{value + 0.5 * unit:.{digits - 1}e}")


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
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded <= value or math.isnan(value):
        return rounded
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
    return float(f"{value - 0.5 * unit:.{digits - 1}e}")
