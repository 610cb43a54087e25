"""Numbers as people read them; private claims are never rounded in their own favour."""

import math

from lipdp.accounting import round_up


def up(value: float | None, digits: int = 4) -> str:
    """Returns `value` with so many significant digits, never below it: a printed epsilon is not too small.

    Args:
        value: at least 0; None and infinity are "infinite".
        digits: how many.

    Returns:
        A string.

    Example:
        >>> up(0.92021), up(2.0), up(None)
        ('0.9203', '2', 'infinite')
    """
    if value is None or math.isinf(value):
        return "infinite"
    return f"{round_up(value, digits):.{digits}g}"


def percent(fraction: float | None) -> str:
    """Returns a fraction in per cent, rounded down: 0.9996 is not 100 %.

    Example:
        >>> percent(0.9996), percent(0.5), percent(None)
        ('99.9 %', '50.0 %', 'not measured')
    """
    if fraction is None:
        return "not measured"
    return f"{math.floor(fraction * 1000 + 1e-9) / 10:.1f} %"


def short(value) -> str:
    """Returns a bound in four digits; None is "unbounded" in a table of bounds."""
    return "unbounded" if value is None else f"{value:.4g}"
