"""The Fourier bound against exact operators: never below, and close for kernels of real use."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipdp.norms import conv_fourier_bound, conv_multiplicity, conv_operator_norm, fourier, spectral_norm

pytestmark = pytest.mark.backend_free


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99)
)
def test_never_below_the_operator_in_one_dimension(kernel, size, strides, dilation, channels, seed):
    weights = np.random.default_rng(seed).standard_normal((kernel, channels, 2))
    bound = conv_fourier_bound(weights, strides, dilation)
    for padding in ("same", "valid"):
        if padding == "same" or size > dilation * (kernel - 1):
            assert conv_operator_norm(weights, (size,), strides, padding, dilation) <= bound * (1 + 1e-12)


GEOMETRIES = list(itertools.product(((3, 3), (2, 3), (5, 5)), ((1, 1), (2, 2), (1, 2), (3, 2)), ("same", "valid")))


@pytest.mark.parametrize("size, strides, padding", GEOMETRIES, ids=str)
def test_never_below_the_operator_in_two_dimensions(size, strides, padding):
    rng = np.random.default_rng(0)
    for weights in (
        rng.standard_normal((*size, 2, 3)),
        np.ones((*size, 1, 1)),
        np.eye(math.prod(size)).reshape(*size, 1, -1),
    ):
        exact = conv_operator_norm(weights, (7, 6), strides, padding)
        assert exact <= conv_fourier_bound(weights, strides) * (1 + 1e-12)


def test_three_dimensions_and_dilation():
    weights = np.random.default_rng(0).standard_normal((2, 3, 2, 2, 2))
    for strides, dilation in ((1, 1), ((2, 1, 2), 1), (1, 2)):
        exact = conv_operator_norm(weights, (4, 5, 4), strides, "same", dilation)
        assert exact <= conv_fourier_bound(weights, strides, dilation) * (1 + 1e-12)


def test_alternating_kernel_needs_the_factor_of_the_grid():
    """Its symbol peaks at half the sampling frequency, which an odd grid does not hold."""
    weights = np.array([1.0, -1.0, 1.0, -1.0, 1.0])[:, None, None]
    exact = conv_operator_norm(weights, (60,), padding="same")
    assert max(abs(np.fft.fft(weights[:, 0, 0], 9))) < 0.95 * exact
    assert exact <= conv_fourier_bound(weights, grid=9)


@pytest.mark.parametrize("shape, image", [((3, 3, 4, 8), 16), ((5, 5, 2, 4), 12), ((3, 3, 3, 16), 14)])
def test_tighter_than_the_unfold_bound_on_gaussian_kernels(shape, image):
    """Section 12 of the audit: the unfold bound is 1.7 to 2.9 times the norm, the Fourier bound within 15 %."""
    weights = np.random.default_rng(0).standard_normal(shape)
    exact = conv_operator_norm(weights, (image, image))
    fourier = conv_fourier_bound(weights)
    unfold = math.sqrt(conv_multiplicity(shape[:2])) * spectral_norm(weights)
    assert exact <= fourier <= 1.15 * exact
    assert unfold >= 1.5 * exact


def test_scale_and_degenerate_kernels():
    weights = np.random.default_rng(1).standard_normal((3, 3, 2, 2))
    bound = conv_fourier_bound(weights)
    for exponent in (-900, -30, 40, 900):
        assert conv_fourier_bound(np.ldexp(weights, exponent)) == pytest.approx(math.ldexp(bound, exponent), rel=1e-9)
    assert conv_fourier_bound(np.zeros((3, 3, 2, 2))) == 0.0
    assert conv_fourier_bound(np.full((1, 1, 1, 1), 2.0)) == pytest.approx(2.0, rel=1e-9)
    with pytest.raises(ValueError, match="1 entries not finite"):
        conv_fourier_bound(np.array([np.nan, 1.0]).reshape(2, 1, 1))


def test_many_channels_end_on_the_cheap_bound_and_stay_above():
    weights = np.linalg.qr(np.random.default_rng(0).standard_normal((288, 64)))[0].reshape(3, 3, 32, 64)
    assert conv_operator_norm(weights, (12, 12), iterations=50) <= conv_fourier_bound(weights, grid=24)


@pytest.mark.parametrize("strides", [1, 2, (3, 1)])
def test_a_kernel_of_one_place_is_one_matrix(strides):
    matrix = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    bound = conv_fourier_bound(matrix[None, None], strides)
    assert conv_operator_norm(matrix[None, None], (7, 6), strides, "valid") <= bound * (1 + 1e-12)
    assert bound == pytest.approx(np.linalg.norm(matrix.astype("float64"), 2), rel=1e-9)


def test_a_large_matrix_is_factorized_once(monkeypatch):
    """`lipdp predict` of the default recipe took minutes for the scales of its features, at each of 544 frequencies."""
    sizes = []
    monkeypatch.setattr(fourier, "spectral_norm", lambda matrix: sizes.append(matrix.shape) or spectral_norm(matrix))
    conv_fourier_bound(np.random.default_rng(1).normal(size=(1, 1, 200, 200)))
    assert sizes == [(200, 200)]
