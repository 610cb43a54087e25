"""Checks of the arguments of strategies."""

import math


def positive(name: str, value, optional: bool = False):
    """The value as a float, or an error that names it."""
    if value is None and optional:
        return None
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    if not good:
        raise ValueError(f"`{name}` must be a finite number above 0. Received: {name}={value!r}.")
    return float(value)
