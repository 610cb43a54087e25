"""The projections against singular value decompositions, with inputs chosen to break the certificate."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from lipdp.bounds.propagate import SLACK
from lipdp.norms import L2Ball, SpectralBall, project, spectral_norm
from lipdp.norms.projection import _gram, squared_norm_bounds

SHAPES = [(1, 1), (1, 9), (9, 1), (16, 9), (9, 16), (144, 32), (70, 65), (65, 130)]


def run(function, value):
    return ops.convert_to_numpy(function(ops.convert_to_tensor(value)))


def compiled(function):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return [tf.function(function), tf.function(function, jit_compile=True)]
    import jax

    return [jax.jit(function)]


# Compiled once per shape: JAX compiles the branches of `ops.cond` again at each eager call.
PROJECT = compiled(project)[0]


def singular_values(matrix):
    return np.linalg.svd(np.asarray(matrix, "float64"), compute_uv=False)


def with_spectrum(shape, spectrum, seed=0):
    rng = np.random.default_rng(seed)
    left, _, right = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    return ((left * spectrum) @ right).astype("float32")


def spectra(n):
    """Spectra that are hard for the bounds or next to a threshold."""
    ones, spike = np.ones(n), np.eye(1, n)[0]
    yield "orthogonal", ones
    for top in (1.25, 1.4, 1.5999, 1.6, 1.6001, 1.9, 1.9999, 2.0, 2.0001, 2.2361, 3.0):
        yield f"all {top}", top * ones
        yield f"spike {top} over ones", ones + (top - 1) * spike
        yield f"rank one {top}", top * spike
        yield f"cluster {top}", np.where(np.arange(n) < max(1, n // 10), top, 1.0)
    yield "condition 1e6", np.geomspace(1.0, 1e-6, n)
    yield "condition 1e6, large", np.geomspace(1e4, 1e-2, n)
    yield "half rank", np.where(np.arange(n) < n // 2, 1.3, 0.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_hard_spectra(shape):
    for name, spectrum in spectra(min(shape)):
        top = singular_values(run(PROJECT, with_spectrum(shape, spectrum)))[0]
        assert top <= 1 + 1e-6, name


@pytest.mark.parametrize("scale", [1.5999, 1.6, 1.7, 2.5, 1e3, 1e20])
@pytest.mark.parametrize("shape", [(8, 8), (70, 65), (65, 130)])
def test_one_large_matrix_of_a_batch(shape, scale):
    """The cheap branch is for all or none."""
    batch = np.stack([with_spectrum(shape, np.ones(min(shape)), seed) for seed in range(3)])
    batch[1] *= scale
    results = run(PROJECT, batch)
    for result in results:
        assert 1e-3 < singular_values(result)[0] <= 1 + 1e-6
    for k in (0, 2) if scale < 1e10 else ():  # where one overflows, all are scaled by their largest entries
        np.testing.assert_allclose(results[k], run(PROJECT, batch[k]), atol=3e-6)


@given(
    shape=st.sampled_from(SHAPES),
    exponent=st.floats(-30, 38),
    spread=st.floats(0, 8),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=80, deadline=None)
def test_any_scale_and_any_mixture_of_scales(shape, exponent, spread, seed):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(shape) * np.exp(spread * rng.standard_normal(shape))
    weights = (weights / np.max(np.abs(weights)) * 10.0**exponent).astype("float32")
    result = run(PROJECT, weights)
    assert np.all(np.isfinite(result))
    assert singular_values(result)[0] <= 1 + 1e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 1e9, 1e18, 1e19, 1e30, 3.4e38])
def test_constant_matrices(shape, value):
    result = run(PROJECT, np.full(shape, value, "float32"))
    assert singular_values(result)[0] <= 1 + 1e-6


@pytest.mark.slow
def test_large_matrices_of_equal_entries():
    """Their rounding errors are equal too and add up: more than is kept free, and less than bounds charge."""
    for way in compiled(project):
        for norm in (0.9985, 1.0, 1.0002307):
            result = run(way, np.full((640, 640), norm / 640, "float32"))
            assert 0.99 < spectral_norm(result) <= (1 + SLACK) ** 2


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("function", [project, SpectralBall()])
def test_not_finite_gives_nan_everywhere(function, bad):
    weights = np.ones((70, 66), "float32")
    weights[3, 4] = bad
    for way in (function, *compiled(function)):
        assert np.all(np.isnan(run(way, weights)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(9, 16), (144, 32), (70, 100)])
@pytest.mark.parametrize("scale", [1.0, 1.3, 5.0, 1e25])
def test_same_result_however_it_is_compiled(shape, scale):
    weights = (with_spectrum(shape, np.linspace(0.5, 1, min(shape))) * scale).astype("float32")
    reference = run(project, weights)
    for way in compiled(project):
        np.testing.assert_allclose(run(way, weights), reference, atol=3e-6)


@pytest.mark.parametrize("shape", [(9, 16), (144, 32), (70, 100), (160, 128), (257, 301), (301, 257)])
def test_repeated_projection_converges_to_an_orthogonal_matrix(shape):
    weights = np.random.default_rng(0).standard_normal(shape).astype("float32")
    for _ in range(40):
        weights = run(PROJECT, weights)
    values = singular_values(weights)
    assert 1 - 3e-6 <= values[-1] and values[0] <= 1 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(300, 257), (257, 300), (256, 256)])
def test_blocked_gram_matrix(shape):
    matrix = np.random.default_rng(0).standard_normal(shape).astype("float32")
    exact = matrix.T @ matrix if shape[0] >= shape[1] else matrix @ matrix.T
    gram = run(_gram, matrix)
    np.testing.assert_allclose(gram, exact, atol=1e-3)
    np.testing.assert_array_equal(gram[:100, 200:], gram[200:, :100].T)


@pytest.mark.parametrize("shape", SHAPES)
def test_both_bounds_are_upper_bounds_and_ordered(shape):
    for name, spectrum in spectra(min(shape)):
        weights = with_spectrum(shape, spectrum)
        gram = weights.T @ weights if shape[0] >= shape[1] else weights @ weights.T
        cheap, tight = squared_norm_bounds(ops.convert_to_tensor(gram), max(shape))
        cheap, tight = float(cheap), float(tight())
        assert singular_values(weights)[0] ** 2 <= tight * (1 + 1e-6), name
        assert tight <= cheap, name


@pytest.mark.parametrize(("n", "inner"), [(1, 2**20), (8, 50000), (64, 2**15)])
def test_bounds_hold_for_a_gram_matrix_that_was_rounded_down(n, inner):
    """As far down as sums over `inner` terms in float32 can come out, along the direction that counts."""
    top = np.zeros((n, n))
    top[0, 0] = 1.0
    for exact in (np.eye(n), top, top + 0.5 * np.eye(n)):
        computed = exact - inner * 2.0**-24 * np.trace(exact) * top
        cheap, tight = squared_norm_bounds(ops.convert_to_tensor(computed.astype("float32")), inner)
        assert float(cheap) >= np.linalg.norm(exact, 2)
        assert float(tight()) >= np.linalg.norm(exact, 2)


@pytest.mark.parametrize("small", [0.0, 1e-22, 1e-40, 1.0])
def test_a_huge_matrix_leaves_the_others_of_a_batch_finite(small):
    matrix = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")
    found = ops.convert_to_numpy(project(np.stack([small * matrix, 1e12 * matrix]).astype("float32")))
    assert np.isfinite(found).all()
    assert all(np.linalg.norm(part, 2) <= 1.0 + 1e-6 for part in found)
    assert np.linalg.norm(found[1], 2) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 3])
def test_the_parts_of_a_grouped_kernel_are_projected_each_on_its_own(groups):
    kernel = 3.0 * np.random.default_rng(0).normal(size=(3, 3, 4, 6)).astype("float32")
    ball = SpectralBall(groups=groups)
    found = ops.convert_to_numpy(ball(kernel))
    for part, expected in zip(np.split(found, groups, -1), np.split(kernel, groups, -1), strict=True):
        whole = ops.convert_to_numpy(SpectralBall()(expected))
        np.testing.assert_allclose(part, whole, atol=1e-6)
        assert np.linalg.norm(part.reshape(36, -1), 2) <= 1.0 + 1e-5
    assert np.linalg.norm(found.reshape(36, 6), 2) > 1.0  # all of it is no part
    assert ball.holds(found) and not SpectralBall().holds(found)


@pytest.mark.parametrize("shape, noise, lowest", [((144, 32), 0.1, 0.9), ((160, 128), 0.1, 0.9), ((144, 32), 1.0, 0.3)])
def test_noisy_training(shape, noise, lowest):
    """200 updates by Gaussian noise of the given spectral norm and a drift."""
    rng = np.random.default_rng(0)
    weights = with_spectrum(shape, np.ones(min(shape)))
    std = noise / (shape[0] ** 0.5 + shape[1] ** 0.5)
    drift = 0.05 * np.outer(*(v / np.linalg.norm(v) for v in map(rng.standard_normal, shape)))
    highest = 0.0
    for update in range(200):
        weights = run(PROJECT, (weights + drift + std * rng.standard_normal(shape)).astype("float32"))
        if update % 10 < 9:
            continue
        values = singular_values(weights)
        highest = max(highest, values[0])
        assert values[-1] >= lowest
    assert highest <= 1 + 1e-6


def test_constraint_on_kernels():
    kernel = np.random.default_rng(0).standard_normal((3, 3, 4, 8)).astype("float32")
    constraint = SpectralBall()
    result = run(constraint, kernel)
    np.testing.assert_array_equal(result.reshape(36, 8), run(project, kernel.reshape(36, 8)))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(constraint))
    assert isinstance(again, SpectralBall)
    with pytest.raises(ValueError, match="two axes"):
        constraint(np.ones(3, "float32"))


@given(
    size=st.sampled_from([1, 2, 7, 100, 600]),
    exponent=st.floats(-40, 38.4),
    max_norm=st.sampled_from([0.0, 1e-12, 0.1, 1.0, 7.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_ball_never_exceeds_its_radius(size, exponent, max_norm, seed):
    vector = np.random.default_rng(seed).uniform(-1, 1, size)
    vector = (vector / np.max(np.abs(vector)) * 10.0**exponent).astype("float32")
    result = run(L2Ball(max_norm), vector).astype("float64")
    norm = np.linalg.norm(vector.astype("float64"))
    assert np.linalg.norm(result) <= max_norm
    assert np.linalg.norm(result) >= 0.9998 * min(norm, max_norm) - 1e-35
    if 1e-30 < norm < 0.999 * max_norm:
        np.testing.assert_allclose(result, vector, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("max_norm", [0.0, 1.0])
def test_ball_of_what_is_not_finite(max_norm):
    for way in (L2Ball(max_norm), *compiled(L2Ball(max_norm))):
        assert np.all(np.isnan(run(way, np.array([1.0, np.nan, 2.0], "float32"))))
        assert np.linalg.norm(run(way, np.array([1.0, np.inf, -np.inf], "float32"))) <= max_norm


@pytest.mark.parametrize("max_norm", [-1.0, 1e-13, 1e16, np.inf, np.nan])
def test_ball_refuses(max_norm):
    with pytest.raises(ValueError, match="`max_norm` must be"):
        L2Ball(max_norm)


def test_ball_round_trip():
    ball = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(L2Ball(0.5)))
    assert ball.max_norm == 0.5


def test_holds_tells_what_is_inside():
    kernel = np.random.default_rng(0).standard_normal((3, 3, 4, 8)).astype("float32")
    assert not SpectralBall().holds(kernel) and SpectralBall().holds(run(SpectralBall(), kernel))
    vector = np.ones(100, "float32")
    assert not L2Ball(2.0).holds(vector) and L2Ball(2.0).holds(run(L2Ball(2.0), vector))
    assert not L2Ball(2.0).holds(np.array([np.nan], "float32"))
