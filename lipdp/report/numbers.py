"""Numbers as text; claims are never rounded in their own favor."""

import math

import numpy as np

from lipdp.accounting import round_down, round_up


def epsilon(value: float | None, digits: int = 4) -> str:
    """Returns an epsilon in four significant digits, or so many, rounded up; None and infinity are "infinite".

    Example:
        >>> epsilon(0.92021), epsilon(2.0), epsilon(None)
        ('0.9203', '2', 'infinite')
    """
    if value is None or math.isinf(value):
        return "infinite"
    return f"{round_up(value, digits):.{digits}g}"


def deltas(privacy: dict) -> list[tuple[float, float]]:
    """Returns pairs of epsilon and delta that hold at once, the stated pair among them."""
    stated, at = privacy["epsilon"], privacy["delta"]
    # Both bounds hold; those of the trade-off curve are those of a grid, and a little larger.
    return [
        (e if stated is None or delta != at else min(e, stated), delta)
        for e, delta in privacy.get("risk", {}).get("deltas", [])
    ]


def percent(fraction: float | None) -> str:
    """Returns a fraction in percent, rounded down: 0.9996 is not 100 %.

    Example:
        >>> percent(0.9996), percent(0.5), percent(None)
        ('99.9 %', '50.0 %', 'not measured')
    """
    if fraction is None:
        return "not measured"
    return f"{math.floor(fraction * 1000 + 1e-9) / 10:.1f} %"


def area(value: float) -> str:
    """Returns an area under a curve, rounded down: 0.9996 is not 1.

    Example:
        >>> area(0.9996), area(0.58)
        ('0.999', '0.580')
    """
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def r_squared(value: float) -> str:
    """Returns the explained share of a variance, rounded down: 0.9996 is not 1.

    Example:
        >>> r_squared(0.9996), r_squared(-0.58)
        ('0.999', '-0.580')
    """
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def short(value: float | None) -> str:
    """Returns a bound in four significant digits, without what it charges for rounding; None is "unbounded".

    Example:
        >>> short(0.92021), short(1.00001), short(None)
        ('0.9202', '1', 'unbounded')
    """
    return "unbounded" if value is None else f"{value:.4g}"


def plain(value: float, digits: int = 4) -> str:
    """Returns a number in so many significant digits, without an exponent: the unit is that of the target.

    Example:
        >>> plain(432123.4), plain(0.01234567), plain(-3.0)
        ('432100', '0.01235', '-3')
    """
    return np.format_float_positional(float(f"{value:.{digits}g}"), trim="-")


def radius(value: float, digits: int = 4) -> str:
    """Returns a certified radius in four significant digits, or so many, rounded down.

    Example:
        >>> radius(0.29999), radius(0.5), radius(0.0)
        ('0.2999', '0.5', '0')
    """
    return f"{round_down(value, digits):.{digits}g}"
