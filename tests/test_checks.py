"""Argument checks: what is a number, what is not, and one form of message."""

import math
from fractions import Fraction

import numpy as np
import pytest

from lipdp import checks

pytestmark = pytest.mark.backend_free

NUMBERS = (1, 1.0, np.float16(1), np.float32(1), np.float64(1), np.int8(1), np.int64(1), np.uint16(1), Fraction(1))
NO_NUMBERS = (True, False, np.True_, np.False_, "1", b"1", [1.0], (1,), 1j, np.ones(1), np.ones(2), object(), {})
NOT_FINITE = (math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf"), 10**400)
REAL = {
    "real": checks.real,
    "positive": checks.positive,
    "not_negative": checks.not_negative,
    "probability": checks.probability,
    "between": lambda name, value: checks.between(name, value, 1e-6, 1e6),
}


@pytest.mark.parametrize("check", REAL.values(), ids=REAL)
def test_every_number_is_a_number(check):
    for value in NUMBERS:
        assert check("x", value) == 1.0 and type(check("x", value)) is float
    for value in (*NO_NUMBERS, *NOT_FINITE, None):
        with pytest.raises(ValueError, match=r"^`x` must be .*\. Received: x="):
            check("x", value)


def test_ranges():
    bad = [
        (checks.positive, (0, 0.0, -0.0, -1, np.float32(-1e-30)), "a finite number above 0"),
        (checks.not_negative, (-1, -1e-300), "a finite number of at least 0"),
        (checks.probability, (0.0, -0.1, 1.0000001), r"a number in \(0, 1\]"),
        (checks.fraction, (0.0, 1.0, 1, -0.5, 2), r"a number in \(0, 1\)"),
        (lambda name, value: checks.between(name, value, 1e-6, 1e6), (0.0, 9e-7, 1.1e6), r"a number in \[1e-6, 1e6\]"),
        (lambda name, value: checks.delta(value, name), (0.0, 1.0, 1, math.nan, True), r"a number in \(0, 1\)"),
    ]  # fmt: skip
    for check, values, expected in bad:
        for value in values:
            with pytest.raises(ValueError, match=rf"^`x` must be {expected}\. Received: x="):
                check("x", value)
    assert checks.not_negative("x", 0) == 0.0 and checks.probability("x", 1) == 1.0 and checks.delta(1e-5) == 1e-5
    assert checks.between("x", 1e6, 1e-6, 1e6) == 1e6 and checks.fraction("x", np.float32(0.5)) == 0.5


def test_integers():
    for value in (3, np.int8(3), np.int64(3), np.uint32(3)):
        assert checks.integer("n", value) == 3 and type(checks.integer("n", value)) is int
    for value in (*NO_NUMBERS, *NOT_FINITE[:-1], 3.0, np.float64(3), Fraction(3), -1, None):
        with pytest.raises(ValueError, match="^`n` must be a non-negative integer. Received: n="):
            checks.integer("n", value)
    with pytest.raises(ValueError, match="^`n` must be a positive integer. Received: n=0.$"):
        checks.integer("n", 0, minimum=1)
    with pytest.raises(ValueError, match="^`n` must be an integer of at least 2 or None. Received: n=1. Use two.$"):
        checks.integer("n", 1, minimum=2, optional=True, hint="Use two.")


def test_none_where_it_is_optional():
    for check in (checks.real, checks.positive, checks.not_negative, checks.fraction, checks.integer):
        assert check("x", None, optional=True) is None
        with pytest.raises(ValueError, match="^`x` must be .* or None. Received: x='a'.$"):
            check("x", "a", optional=True)


def test_choices_and_booleans():
    assert checks.choice("color", "red", ("red", "blue")) == "red"
    for value in ("green", None, 1, ["red"]):
        with pytest.raises(ValueError, match="^`color` must be one of 'red', 'blue'. Received: color="):
            checks.choice("color", value, iter(("red", "blue")))
    assert checks.boolean("flag", np.True_) is True and checks.boolean("flag", False) is False
    for value in (0, 1, 1.0, "True", None, np.int64(1)):
        with pytest.raises(ValueError, match="^`flag` must be True or False. Received: flag="):
            checks.boolean("flag", value)


def test_values_as_words():
    assert [checks.either(values) for values in (["a"], ("a", "b"), [1, 2, 3])] == ["a", "a or b", "1, 2 or 3"]
