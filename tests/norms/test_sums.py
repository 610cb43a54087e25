"""Long sums in float32: what they are charged for, and that no compiler makes one sum of two."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import layers
from lipdp.norms import L2Ball, RowBall, sums
from tests.norms.test_projection import compiled

pytestmark = pytest.mark.backend_free

UNIT = 2.0**-24
LARGE = 2**20 + 17


def ways(function):
    return [function, *compiled(function)]


def number(tensor):
    return np.asarray(ops.convert_to_numpy(tensor), "float64")


@pytest.mark.parametrize("entry", [1.0, 0.1, 0.7, 1 / 3])
@pytest.mark.parametrize("size", [2**16, 2**16 + 1, LARGE])
def test_squares_of_equal_entries_are_within_the_bound(size, entry):
    row = np.full((2, size), entry, "float32")
    exact = np.square(row.astype("float64")).sum(axis=1)
    for way in ways(lambda x: sums.sum_of_squares(x)):
        error = np.abs(number(way(ops.convert_to_tensor(row)))[:, 0] / exact - 1.0)
        assert error.max() <= np.expm1(sums.chain(size) * UNIT)


@pytest.mark.parametrize("features", [1, 3])
def test_sums_over_positions_are_within_the_bound(features):
    values = np.random.default_rng(0).normal(1.0, 1.0, (1, 211, 307, features)).astype("float32")
    exact, total = (values.astype("float64").sum((0, 1, 2)), np.abs(values).astype("float64").sum((0, 1, 2)))
    for at_once in (2**10, 2**20):
        for way in ways(lambda x, at_once=at_once: sums.sum_over_positions(x, at_once)):
            error = np.abs(number(way(ops.convert_to_tensor(values))) - exact)
            assert (error <= np.expm1(sums.chain(211 * 307, at_once) * UNIT) * total).all()


@pytest.mark.parametrize("size", [100, 2**16 + 3, LARGE])
def test_inner_products_are_within_the_bound(size):
    rng = np.random.default_rng(0)
    for one, other in ((np.full((1, size), 0.7), np.full((1, size), 0.7)), rng.normal(1.0, 1.0, (2, 1, size))):
        one, other = one.astype("float32"), other.astype("float32")
        exact = (one.astype("float64") * other).sum()
        limit = np.expm1(sums.chain(size) * UNIT) * np.linalg.norm(one.astype("float64")) * np.linalg.norm(other)
        for way in ways(lambda pair: sums.dot(pair[0], pair[1])):
            found = number(way(ops.convert_to_tensor(np.stack([one, other]))))
            assert found.shape == (1, 1) and abs(found[0, 0] - exact) <= limit


def test_compilers_leave_the_two_stages_apart():
    """XLA turns a plain sum of sums into one sum, whose rounding grows with the number of all terms."""

    def merged(x):
        return ops.sum(ops.sum(ops.reshape(x, (-1, 1024, 1024)), axis=2), axis=1)

    def reductions(function):
        x = ops.ones((2, 2**20))
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            text = tf.function(function, jit_compile=True).experimental_get_compiler_ir(x)(stage="optimized_hlo")
        else:
            import jax

            text = jax.jit(function).lower(x).compile().as_text()
        return len(re.findall(r"= \S+ reduce\(", text))

    assert reductions(merged) == 1  # the danger is real
    assert reductions(lambda x: sums.sum_of_squares(x)) == 2
    assert reductions(lambda x: sums.sum_over_positions(ops.reshape(x, (-1, 2**20, 1)), 4096)) == 2
    assert reductions(lambda x: sums.dot(x, x + 1.0)) == 2


def test_the_chain_of_roundings_grows_with_the_root():
    assert sums.chain(2**16) == 2**16 and sums.chain(100, at_once=10) == 20
    for size in (2**16 + 1, LARGE, 10**9):
        assert sums.chain(size) <= 2 * size**0.5 + 2
        assert 0.99 <= sums.margin(size) < 1.0


@pytest.mark.slow
def test_what_is_not_finite_shows():
    for bad in (np.nan, np.inf, 3e38):
        row = np.ones((2, LARGE), "float32")
        row[0, 5] = bad
        for way in ways(lambda x: sums.sum_of_squares(x)):
            found = number(way(ops.convert_to_tensor(row)))[:, 0]
            assert not np.isfinite(found[0]) and found[1] == pytest.approx(LARGE)


@pytest.mark.parametrize(
    "way",
    [
        lambda n: layers.BoundedInput().build((None, n)),
        lambda n: layers.ClipGradient(1.0).build((None, n, 1)),
        lambda n: sums.margin(n, times=2.0),
    ],
)
def test_more_entries_than_float32_can_add_up_are_refused(way):
    way(2**30)
    with pytest.raises(ValueError, match=r"too many entries.*Received: 17179869184 entries"):
        way(2**34)


@pytest.mark.parametrize("ball", [L2Ball(1.0), RowBall(1.0)], ids=["ball", "rows"])
def test_balls_of_many_entries_lose_no_accuracy(ball):
    """At 2^20 entries the radius was 12 % too small; beyond 2^23 it was negative."""
    for entry in (1.0, 0.1):
        rows = np.full((1, LARGE), entry, "float32")
        for way in ways(ball):
            assert 0.999 <= np.linalg.norm(number(way(ops.convert_to_tensor(rows)))) <= 1.0
