"""The forms in which gradients are held: cancellation, and that each form gives what its full size gives."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from lipdp import backend
from lipdp.gradients.factors import MatrixLayout, Outer, Whole, Zero, merge, rounding
from lipdp.gradients.rows import Rows
from lipdp.gradients.tables import Lookup, Slice, Tied


def array(tensor):
    return np.asarray(ops.convert_to_numpy(tensor), "float64")


@pytest.mark.backend_free
@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 6),
    st.integers(16, 40),
    st.floats(-6, 0),
    st.integers(0, 1000),
)
def test_cancelling_positions_never_understate_the_norm(positions, width, distance, seed):
    """Positions whose products almost cancel: the norm from pairs may only err upwards."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(4, positions, width)).astype("float32")
    g = rng.normal(size=(4, positions, width)).astype("float32")
    # The last position takes back the first, up to a small part.
    a[:, -1] = a[:, 0] * (1 + 10.0**distance * rng.normal(size=(4, width)).astype("float32"))
    g[:, -1] = -g[:, 0]
    if positions == 2:
        a, g = np.concatenate([a, a], 1), np.concatenate([g, g], 1)
    factor = Outer(ops.convert_to_tensor(a), ops.convert_to_tensor(g), MatrixLayout((width, width)))
    assert factor._pairs
    exact = np.square(np.einsum("bpi,bpo->bio", a.astype("float64"), g.astype("float64"))).sum((1, 2))
    found = array(factor.squared_norm())
    scale = np.square(np.sqrt((a.astype("float64") ** 2).sum(-1) * (g.astype("float64") ** 2).sum(-1)).sum(-1))
    assert (found >= exact * (1 - 2e-6)).all()
    assert (found <= exact * (1 + 1e-5) + 2 * rounding(2 * (positions + width)) * scale).all()


@pytest.mark.backend_free
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(2, 12), st.integers(0, 1000))
def test_lookups_of_repeated_rows_never_understate_the_norm(positions, size, seed):
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, size, (3, positions)).astype("int32")
    g = rng.normal(size=(3, positions, 5)).astype("float32")
    g[:, -1] = -g[:, 0]
    if positions > 1:
        indices[:, -1] = indices[:, 0]
    factor = Lookup(ops.convert_to_tensor(indices), ops.convert_to_tensor(g), (size, 5))
    table = np.zeros((3, size, 5))
    for b in range(3):
        np.add.at(table[b], indices[b], g[b].astype("float64"))
    exact = np.square(table).sum((1, 2))
    found, scale = array(factor.squared_norm()), np.square(np.linalg.norm(g, axis=-1).sum(-1))
    assert (found >= exact * (1 - 2e-6)).all()
    assert (found <= exact * (1 + 1e-5) + 2 * rounding(5 + 2 * positions) * scale).all()
    c = rng.normal(size=3).astype("float32")
    np.testing.assert_allclose(
        array(factor.weighted_sum(ops.convert_to_tensor(c))), np.tensordot(c, table, 1), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(array(factor.whole()), table, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [3, 60, 2**29])
def test_norms_of_lookups_are_those_of_sums_by_row(size):
    """Few rows, many, and more than numbers of 32 bits can hold beside the positions."""
    rng = np.random.default_rng(0)
    indices = rng.integers(0, min(size, 7), (4, 20)).astype("int32")
    indices[1], indices[2] = size - 1, np.arange(20) % size
    indices[3, 5:] += size - min(size, 7)
    g = rng.normal(size=(4, 20, 6)).astype("float32")
    found = array(Lookup(ops.convert_to_tensor(indices), ops.convert_to_tensor(g), (size, 6)).squared_norm())
    exact = [sum(np.square(v[row == r].sum(0)).sum() for r in set(row)) for row, v in zip(indices, g, strict=True)]
    np.testing.assert_allclose(found, exact, rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "positions", "width"),
    [(4000, 1300, 8), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1000, 1300, 8), (1000, 3001, 4)))],
)
def test_texts_of_one_word_each_add_no_more_than_the_clip_norm_to_the_sum_of_a_batch(size, positions, width):
    """A sum over all positions of all texts rounds the last ones in one direction, by up to 1 %."""
    indices = ops.zeros((256, positions), "int32")
    g = ops.full((256, positions, width), np.float32(1.01 / positions / width**0.5))
    factor = Lookup(indices, g, (size, width))
    coefficients = ((1.0 - 1e-4) / np.sqrt(array(factor.squared_norm()))).astype("float32")
    without = np.where(np.arange(256) == 255, 0.0, coefficients).astype("float32")
    with_it, without_it = (array(factor.weighted_sum(ops.convert_to_tensor(c))) for c in (coefficients, without))
    assert np.linalg.norm(with_it.astype("float64") - without_it) <= 1.0


def test_no_positions_have_no_gradient():
    factor = Lookup(ops.zeros((2, 0), "int32"), ops.zeros((2, 0, 3)), (9, 3))
    assert array(factor.squared_norm()).tolist() == [0.0, 0.0]
    assert not array(factor.weighted_sum(ops.ones(2))).any()


def test_a_long_text_is_not_taken_for_longer_than_it_is():
    """Rounding is that of the positions of a row, not of the text: 1000 unlike words have the norm they have."""
    g = np.random.default_rng(0).normal(size=(2, 1000, 8)).astype("float32")
    factor = Lookup(
        ops.convert_to_tensor(np.arange(2000, dtype="int32").reshape(2, -1)), ops.convert_to_tensor(g), (4000, 8)
    )
    np.testing.assert_allclose(array(factor.squared_norm()), np.square(g.astype("float64")).sum((1, 2)), rtol=5e-4)


@pytest.mark.parametrize("positions", [1, 2, 30])
def test_a_centre_at_the_gradient_gives_almost_zero_and_never_less(positions):
    """`|s (g - a)|^2` with a = g: everything cancels."""
    rng = np.random.default_rng(0)
    a = ops.convert_to_tensor(rng.normal(size=(1, positions, 6)).astype("float32"))
    g = ops.convert_to_tensor(rng.normal(size=(1, positions, 5)).astype("float32"))
    factor = Outer(a, g, MatrixLayout((6, 5)))
    scale = ops.convert_to_tensor(rng.uniform(0.5, 100, (6, 5)).astype("float32"))
    centre = factor.whole()[0]
    found = array(factor.scaled_squared_norm(centre, scale))
    size = np.square(array(scale) * array(centre)).sum()
    assert 0 <= found[0] <= 1e-5 * size


@pytest.mark.slow
def test_unlike_forms_of_one_variable_are_added_at_full_size():
    rng = np.random.default_rng(0)
    a, g = (ops.convert_to_tensor(rng.normal(size=(2, 3, n)).astype("float32")) for n in (4, 5))
    whole = ops.convert_to_tensor(rng.normal(size=(2, 4, 5)).astype("float32"))
    indices = ops.convert_to_tensor(rng.integers(0, 4, (2, 3)).astype("int32"))
    parts = [
        Outer(a, g, MatrixLayout((4, 5))),
        Whole(whole),
        Lookup(indices, g, (4, 5)),
        Outer(a, g, MatrixLayout((4, 5))),
    ]
    merged = merge(parts)
    expected = sum(array(part.whole()) for part in parts)
    np.testing.assert_allclose(array(merged.whole()), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(array(merged.squared_norm()), np.square(expected).sum((1, 2)), rtol=1e-5)


@pytest.mark.parametrize("positions,inputs,outputs", [(1, 1, 1), (1, 5, 3), (2, 9, 8), (3, 2, 2)])
@pytest.mark.parametrize("large", ["a", "g"])
@pytest.mark.parametrize("exponent", [0, 5, 12, 18])
def test_squares_that_underflow_are_not_lost(positions, inputs, outputs, large, exponent):
    rng = np.random.default_rng(positions)
    a = rng.uniform(0.5, 1.5, (4, positions, inputs)).astype("float32")
    g = rng.uniform(0.5, 1.5, (4, positions, outputs)).astype("float32")
    scale = np.float32(10.0**exponent)
    a, g = (a * scale, g / scale / 100) if large == "a" else (a / scale / 100, g * scale)
    exact = np.einsum("bpi,bpo->bio", a.astype("float64"), g.astype("float64"))
    outer = Outer(ops.convert_to_tensor(a), ops.convert_to_tensor(g), MatrixLayout((inputs, outputs)))
    norms = ops.convert_to_numpy(outer.squared_norm())
    assert np.all(norms >= np.sum(exact**2, axis=(1, 2)) * (1.0 - 1e-6))
    assert exponent > 12 or np.all(norms <= np.sum(exact**2, axis=(1, 2)) * (1.0 + 1e-5))
    one = ops.ones((inputs, outputs))
    scaled = ops.convert_to_numpy(outer.scaled_squared_norm(0.0 * one, one))
    assert np.all(scaled >= np.sum(exact**2, axis=(1, 2)) * (1.0 - 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("positions,size", [(7, 5), (4, 50)])
def test_rows_that_do_not_exist_are_nobodys(positions, size):
    """A lookup beside the table counts for no row, least of all for one of the next example; -1 is the last row."""
    rng = np.random.default_rng(0)
    indices = rng.integers(-size - 2, size + 2, (3, positions)).astype("int32")
    g = rng.normal(size=(3, positions, 3)).astype("float32")
    table = np.zeros((3, size, 3))
    for b in range(3):
        inside = (indices[b] >= -size) & (indices[b] < size)
        np.add.at(table[b], indices[b][inside], g[b][inside].astype("float64"))
    factor = Lookup(ops.convert_to_tensor(indices), ops.convert_to_tensor(g), (size, 3))
    np.testing.assert_allclose(array(factor.whole()), table, atol=1e-6)
    assert (array(factor.squared_norm()) >= np.square(table).sum((1, 2)) * (1 - 2e-6)).all()
    np.testing.assert_allclose(array(factor.weighted_sum(ops.ones(3))), table.sum(0), atol=1e-5)
    centre = rng.normal(size=(size, 3)).astype("float32")
    scaled = array(factor.scaled_squared_norm(ops.convert_to_tensor(centre), ops.ones((size, 3))))
    np.testing.assert_allclose(scaled, np.square(table - centre).sum((1, 2)), rtol=1e-4)


@pytest.mark.parametrize("width", [256, 1024])
def test_positions_that_nearly_cancel_are_not_understated(width):
    """Equal entries round alike: products of pairs are wrong by more than the gradient is long."""
    rng = np.random.default_rng(0)
    v = np.exp(rng.uniform(0.0, 1.4, 256)).astype("float32")
    w = (v * (1.0 + 10.0 ** rng.uniform(-4.5, -2.7, 256))).astype("float32")
    true = np.abs(v.astype("float64") - w) * np.sqrt(width)
    a = np.repeat(np.stack([v, -w], axis=1)[..., None], width, axis=2)
    g = np.zeros((256, 2, 10), "float32")
    g[..., 0] = 1.0
    table = np.zeros((256, 2), "int32")
    a, g = ops.convert_to_tensor(a), ops.convert_to_tensor(g)
    for factor in (Outer(a, g, MatrixLayout((width, 10))), Lookup(ops.convert_to_tensor(table), a, (5000, width))):
        norms = np.sqrt(array(factor.squared_norm()))
        assert (norms >= true * (1.0 - 1e-6)).all()


@pytest.mark.slow
def test_parts_that_cancel_in_one_order_only():
    """What is added up with coefficients rounds differently from what its norm was taken of."""
    rng = np.random.default_rng(0)
    g = rng.integers(1, 2**23, (64, 3, 4)).astype("float32") * 2.0**20
    g[:, 2] = -(g[:, 0] + g[:, 1])
    factor = Lookup(ops.zeros((64, 3), "int32"), ops.convert_to_tensor(g), (2, 4))
    coefficients = 1.0 / np.maximum(np.sqrt(array(factor.squared_norm())), 1.0)
    for i in range(64):
        alone = np.where(np.arange(64) == i, coefficients, 0.0).astype("float32")
        assert np.linalg.norm(array(factor.weighted_sum(ops.convert_to_tensor(alone)))) <= 1.0 + 1e-4


def tied(indices, g, a, h):
    """Rows that were looked up and products with the same table, and the sum of both at full size, in float64."""
    size = a.shape[-1]
    whole = np.einsum("bqv,bqd->bvd", a.astype("float64"), h.astype("float64"))
    for b, row in enumerate(indices):
        np.add.at(whole[b], row, g[b].astype("float64"))
    indices, g, a, h = map(ops.convert_to_tensor, (indices, g, a, h))
    return merge([Lookup(indices, g, whole.shape[1:]), Outer(a, h, MatrixLayout((size, g.shape[-1])))]), whole


@pytest.mark.slow
def test_one_table_that_reads_and_writes_needs_no_gradient_of_its_size():
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 6, (3, 5)).astype("int32")
    g, a, h = (rng.normal(size=(3, *shape)).astype("float32") for shape in ((5, 4), (7, 6), (7, 4)))
    factor, whole = tied(indices, g, a, h)
    assert isinstance(factor, Tied) and isinstance(merge([factor, factor]), Whole)
    again = merge([factor, Lookup(ops.convert_to_tensor(indices), ops.convert_to_tensor(g), (6, 4))])
    assert isinstance(again, Tied)
    np.testing.assert_allclose(array(factor.whole()), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(array(factor.squared_norm()), np.square(whole).sum((1, 2)), rtol=1e-4)
    coefficients = np.array([1.0, 0.5, -2.0], "float32")
    expected = np.tensordot(coefficients, whole, 1)
    np.testing.assert_allclose(array(factor.weighted_sum(ops.convert_to_tensor(coefficients))), expected, atol=1e-4)
    kept = factor.masked(ops.convert_to_tensor(np.array([True, False, True])))
    assert not array(kept.whole())[1].any() and array(kept.squared_norm())[1] < 1e-30
    center = rng.normal(size=(6, 4)).astype("float32")
    scaled = array(factor.scaled_squared_norm(ops.convert_to_tensor(center), 2.0 * ops.ones((6, 4))))
    np.testing.assert_allclose(scaled, 4.0 * np.square(whole - center).sum((1, 2)), rtol=1e-4)


@pytest.mark.parametrize("width", [8, 256, 1024])
def test_reading_and_writing_that_nearly_cancel_are_not_understated(width):
    rng = np.random.default_rng(0)
    g = rng.uniform(1.0, 4.0, (128, 1, width)).astype("float32")
    h = (g * (1.0 + 10.0 ** rng.uniform(-6.5, -2.7, (128, 1, 1)))).astype("float32")
    a = np.zeros((128, 1, 9), "float32")
    a[:, 0, 4] = -1.0
    factor, whole = tied(np.full((128, 1), 4, "int32"), g, a, h)
    norms, true = np.sqrt(array(factor.squared_norm())), np.sqrt(np.square(whole).sum((1, 2)))
    assert (norms >= true * (1.0 - 1e-6)).all()
    coefficients = 1.0 / norms
    for i in range(0, 128, 8):
        alone = np.where(np.arange(128) == i, coefficients, 0.0).astype("float32")
        assert np.linalg.norm(array(factor.weighted_sum(ops.convert_to_tensor(alone)))) <= 1.0 + 1e-4


@pytest.mark.parametrize("start", [0, 2])
def test_a_slice_of_a_table_is_its_rows(start):
    rng = np.random.default_rng(0)
    part = rng.normal(size=(3, 4, 5)).astype("float32")
    whole = np.zeros((3, 7, 5))
    whole[:, start : start + 4] = part
    factor = Slice(ops.convert_to_tensor(part), start, (7, 5))
    np.testing.assert_allclose(array(factor.whole()), whole)
    np.testing.assert_allclose(array(factor.squared_norm()), np.square(whole).sum((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(array(factor.weighted_sum(ops.ones(3))), whole.sum(0), atol=1e-5)
    center = rng.normal(size=(7, 5)).astype("float32")
    scaled = array(factor.scaled_squared_norm(ops.convert_to_tensor(center), ops.ones((7, 5))))
    np.testing.assert_allclose(scaled, np.square(whole - center).sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(array(factor.masked(ops.zeros(3, "bool")).whole()), 0.0 * whole)


@pytest.mark.parametrize("size", [3, 1600, 5000])
@pytest.mark.parametrize("entry", [1e-15, 1e-19, 1e-21, 1e-30])
def test_squares_that_underflow_never_understate_a_norm(size, entry):
    """Entries of 1e-20 have squares that float32 flushes to zero: 1600 of them read as a norm of 0."""
    exact = entry * size**0.5
    row = ops.convert_to_tensor(np.full((1, size), entry, "float32"))
    one = ops.ones((1, 1, 1))
    factors = [
        Whole(row),
        Outer(ops.reshape(row, (1, 1, size)), one, MatrixLayout((size, 1))),
        Outer(ops.reshape(row, (1, size, 1)), ops.ones((1, size, 1)), MatrixLayout((1, 1))),
        Lookup(ops.convert_to_tensor(np.zeros((1, 1), "int32")), ops.reshape(row, (1, 1, size)), (9, size)),
        Lookup(
            ops.convert_to_tensor(np.arange(4)[None]), ops.reshape(row[:, :1] + ops.zeros((4, 1)), (1, 4, 1)), (99, 1)
        ),
    ]
    sizes = [exact, exact, entry * size, exact, 2.0 * entry]
    for factor, norm in zip(factors, sizes, strict=True):
        # What the margin of clipping covers: the order of additions is that of the machine.
        assert array(factor.squared_norm())[0] ** 0.5 >= norm * (1 - 6.2e-5)


@pytest.mark.parametrize("size", [2048, 2049, 60_000, 1_000_003])
def test_norms_of_long_gradients_err_less_than_the_margin_of_clipping(size):
    for entry in (1.0, 0.1, 0.7):
        row = np.full((1, size), entry, "float32")
        found = array(Whole(ops.convert_to_tensor(row)).squared_norm())[0] ** 0.5
        assert found == pytest.approx(float(np.float32(entry)) * size**0.5, rel=6.2e-5)


def test_what_the_loss_does_not_depend_on_still_has_a_center():
    """AdaCliP's transform of a gradient of zero is `(0 - a) / b`."""
    zero = Zero(Rows(3, 1), (2, 2))
    center, inverse = ops.convert_to_tensor([[1.0, 2.0], [0.0, -2.0]]), ops.convert_to_tensor([[2.0, 1.0], [9.0, 0.5]])
    assert array(zero.squared_norm()).tolist() == [0.0, 0.0, 0.0]
    assert array(zero.scaled_squared_norm(center, inverse)).tolist() == [9.0, 9.0, 9.0]


def test_squares_of_long_gradients_are_not_added_up_one_by_one():
    """Compiled, a sum of four million equal terms in float32 errs by a ten-thousandth."""
    value = np.full((1, 2**22), np.float32(1.0 / 3.0))
    function = lambda t: Whole(t).squared_norm()  # noqa: E731
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        compiled = tf.function(function, jit_compile=True, autograph=False)
    else:
        compiled = backend.compiled(function, [])
    exact = 2**22 * float(np.float32(1.0 / 3.0)) ** 2
    np.testing.assert_allclose(array(compiled(ops.convert_to_tensor(value))), exact, rtol=2e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
@pytest.mark.parametrize("positions", [1, 3, 60])
def test_integers_are_measured_as_numbers(dtype, positions):
    """Squares of bytes were taken modulo 256 on JAX, so that a gradient of 36 times the clip norm was not clipped."""
    rng = np.random.default_rng(0)
    whole = (
        rng.integers(50_000, 60_000, (4, positions, 20))
        if dtype == "int32"
        else rng.integers(0, 256, (4, positions, 20))
    )
    whole = (whole % 2 if dtype == "bool" else whole).astype(dtype)
    g = ops.convert_to_tensor(rng.normal(size=(4, positions, 30)).astype("float32"))
    found, same = (Outer(ops.convert_to_tensor(a), g, MatrixLayout((20, 30))) for a in (whole, whole.astype("float32")))
    for ask in (
        lambda factor: factor.squared_norm(),
        lambda factor: factor.scaled_squared_norm(0.5, 2.0),
        lambda factor: factor.weighted_sum(ops.ones((4,))),
    ):
        np.testing.assert_allclose(array(ask(found)), array(ask(same)), rtol=1e-6)
