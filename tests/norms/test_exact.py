"""The float64 norms against singular value decompositions, dense operators and brute force."""

import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lipdp.norms import conv_multiplicity, conv_operator_norm, spectral_norm

finite = st.floats(-1e150, 1e150, allow_nan=False)


@pytest.mark.backend_free
@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=4, max_side=8), elements=finite))
@settings(max_examples=100, deadline=None)
def test_spectral_norm_is_a_tight_upper_bound(weights):
    exact = np.linalg.norm(weights.reshape(-1, weights.shape[-1]), 2)
    bound = spectral_norm(weights)
    assert exact * (1 - 1e-14) <= bound <= exact * (1 + 1e-6) + 1e-300


@pytest.mark.backend_free
@pytest.mark.parametrize("shape", [(784, 512), (512, 784), (300, 300), (1, 1000), (1000, 1)])
@pytest.mark.parametrize("kind", ["gaussian", "orthogonal", "rank one"])
def test_spectral_norm_of_large_matrices(shape, kind):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(shape)
    if kind == "orthogonal":
        left, _, right = np.linalg.svd(weights, full_matrices=False)
        weights = left @ right
    elif kind == "rank one":
        weights = np.outer(weights[:, 0], weights[0])
    exact = np.linalg.norm(weights, 2)
    assert exact * (1 - 1e-13) <= spectral_norm(weights) <= exact * (1 + 1e-6)


@pytest.mark.backend_free
@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-200, 1.0, 1e200, 1e300])
def test_spectral_norm_at_any_scale(scale):
    weights = np.full((3, 4), scale)
    # scale * sqrt(12), compared after an exact division.
    assert spectral_norm(weights) / scale >= 12**0.5 * (1 - 1e-15)
    assert spectral_norm(np.zeros((3, 4))) == 0.0


@pytest.mark.backend_free
@pytest.mark.parametrize("weights", [np.array([[1.0, np.nan]]), np.array([np.inf]), np.float64(3.0)])
def test_spectral_norm_refuses(weights):
    with pytest.raises(ValueError, match="spectral norm needs"):
        spectral_norm(weights)


@pytest.mark.backend_free
def test_multiplicity_is_the_true_count():
    for k, s, d in itertools.product(range(1, 8), range(1, 6), range(1, 5)):
        reads = np.zeros(400, int)
        for output, tap in itertools.product(range(60), range(k)):
            if s * output + d * tap < 400:
                reads[s * output + d * tap] += 1
        # Positions that later outputs would also read are not counted to the end.
        assert conv_multiplicity(k, s, d) == reads[: 60 * s].max(), (k, s, d)


@pytest.mark.backend_free
def test_multiplicity_multiplies_over_axes():
    assert conv_multiplicity((3, 5), (2, 1), (1, 2)) == conv_multiplicity(3, 2) * conv_multiplicity(5, 1, 2) == 10
    assert conv_multiplicity((3, 3), 2) == 4


@pytest.mark.backend_free
@pytest.mark.parametrize("arguments", [(0,), ((3, 3), (1, 1, 1)), ((3, -1),), (3, 0)])
def test_multiplicity_refuses(arguments):
    with pytest.raises(ValueError, match="positive integer"):
        conv_multiplicity(*arguments)


@pytest.mark.slow
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    strides=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.sampled_from(["same", "valid"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_operator_is_keras_convolution_and_obeys_the_bound(kernel, channels, strides, dilation, padding, seed):
    strides = 1 if dilation > 1 else strides  # Keras has not both
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((*kernel, *channels)).astype("float32")
    shape = (6, 7)
    images = np.eye(42 * channels[0], dtype="float32").reshape(-1, *shape, channels[0])
    outputs = np.asarray(keras.ops.conv(images, weights, strides, padding, dilation_rate=dilation))
    dense = np.linalg.norm(outputs.reshape(len(images), -1), 2)
    norm = conv_operator_norm(weights, shape, strides, padding, dilation)
    assert norm == pytest.approx(dense, rel=1e-5)
    assert norm <= conv_multiplicity(kernel, strides, dilation) ** 0.5 * spectral_norm(weights) * (1 + 1e-12)


def test_power_iteration_finds_the_norm(monkeypatch):
    kernel = np.random.default_rng(0).standard_normal((3, 3, 2, 4))
    exact = conv_operator_norm(kernel, (9, 8), 2)
    monkeypatch.setattr("lipdp.norms.exact._DENSE_LIMIT", 0)
    estimate = conv_operator_norm(kernel, (9, 8), 2)
    assert exact * (1 - 1e-6) <= estimate <= exact * (1 + 1e-12)


def test_multiplicity_is_attained_by_a_wide_orthogonal_kernel():
    kernel = np.eye(9).reshape(3, 3, 1, 9)
    assert conv_operator_norm(kernel, (8, 8)) == pytest.approx(3.0, rel=1e-9)


def test_operator_norm_refuses():
    with pytest.raises(ValueError, match="padding"):
        conv_operator_norm(np.ones((1, 1, 1, 1)), (4, 4), padding="causal")
    with pytest.raises(ValueError, match="larger than its input"):
        conv_operator_norm(np.ones((5, 5, 1, 1)), (4, 4), padding="valid")
