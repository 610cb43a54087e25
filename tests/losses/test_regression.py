"""Cosine similarity, Huber and mean absolute error against their formulas; the labels they refuse."""

import math

import keras
import numpy as np
import pytest

from lipdp import losses

Z = np.array([[1.0, -2.0, 0.1], [0.3, 0.0, 0.2], [-3.0, 4.0, 0.0]], "float32")
Y = np.array([[0.5, -1.0, 3.0], [0.0, 1.0, 0.0], [2.0, 0.0, -1.0]], "float32")


@pytest.mark.parametrize("floor", [0.1, 1.0, 5.0])
def test_cosine_against_numpy(floor):
    z_norm = np.linalg.norm(Z, axis=-1)
    expected = -(Y * Z).sum(axis=-1) / np.linalg.norm(Y, axis=-1) / np.maximum(z_norm, floor)
    np.testing.assert_allclose(losses.CosineSimilarity(floor).value(Y, Z), expected, rtol=1e-5, atol=1e-7)


def test_cosine_is_that_of_keras_above_the_floor():
    np.testing.assert_allclose(losses.CosineSimilarity(0.01)(Y, Z), keras.losses.CosineSimilarity()(Y, Z), rtol=1e-5)


@pytest.mark.parametrize("floor", [0.1, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("length", [1e-20, 1.0, 7.0, 1e20])
def test_cosine_constant(floor, length):
    """Regression: the reference claims 1/K^2, and a label of norm K or more reaches 1/K."""
    loss = losses.CosineSimilarity(floor)
    assert loss.lipschitz(10) == 1.0 / floor
    y = np.zeros((4, 10), "float32")
    y[:, 3] = length
    z = np.zeros((4, 10), "float32")
    z[1:, 5] = (0.5 * floor, floor, 10 * floor)  # orthogonal to the label: the worst direction
    norms = np.linalg.norm(np.asarray(loss.gradient(y, z)), axis=-1)
    np.testing.assert_allclose(norms, [1 / floor, 1 / floor, 1 / floor, 0.1 / floor], rtol=1e-6)


def test_cosine_takes_class_ids():
    ids = np.array([2, 0, 1])
    loss = losses.CosineSimilarity()
    for y in (ids, ids[:, None]):
        np.testing.assert_array_equal(loss.value(y, Z), loss.value(np.eye(3)[ids], Z))
        loss.check_labels(y, 3)
    with pytest.raises(ValueError, match=r"lie in \[0, 3\)"):
        loss.check_labels(np.array([0, 3]), 3)


def test_cosine_with_one_output_takes_numbers():
    loss = losses.CosineSimilarity()
    np.testing.assert_allclose(loss.value([-3.0, 2.0], [[0.5], [8.0]]), [0.5, -1.0])
    loss.check_labels(np.array([-3.0, 2.0]), 1)


def test_cosine_refuses_labels_without_direction():
    with pytest.raises(ValueError, match="must not be all zeros, but 1 of 2 rows"):
        losses.CosineSimilarity().check_labels(np.array([[0.0, 0.0], [0.0, 2.0]]), 2)


@pytest.mark.parametrize("delta", [0.1, 1.0, 2.5])
def test_huber_is_that_of_keras(delta):
    loss = losses.Huber(delta)
    expected = keras.losses.Huber(delta, reduction="none")(Y, Z)
    np.testing.assert_allclose(loss.value(Y, Z), expected, rtol=1e-5)
    np.testing.assert_allclose(loss.gradient(Y, Z), np.clip(Z - Y, -delta, delta) / 3, rtol=1e-6)
    assert loss.lipschitz(3) == pytest.approx(delta / math.sqrt(3))


def test_mean_absolute_error_is_that_of_keras():
    loss = losses.MeanAbsoluteError()
    np.testing.assert_allclose(loss.value(Y, Z), keras.losses.MeanAbsoluteError(reduction="none")(Y, Z), rtol=1e-6)
    np.testing.assert_allclose(loss.gradient(Y, Z), np.sign(Z - Y) / 3, rtol=1e-6)
    np.testing.assert_array_equal(loss.gradient(Z, Z), np.zeros((3, 3)))
    assert loss.lipschitz(1) == 1.0
    assert loss.lipschitz(4) == 0.5


@pytest.mark.parametrize("loss", [losses.Huber(), losses.MeanAbsoluteError()])
def test_one_output_takes_a_vector_and_does_not_broadcast(loss):
    z = Z[:, :1]
    y = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(loss.call(y, z), loss.call(y[:, None], z))
    assert loss.call(y, z).shape == (3,)
    loss.check_labels(y, 1)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, None])
def test_arguments_out_of_range(bad):
    with pytest.raises(ValueError, match="`floor` must be a finite number above 0"):
        losses.CosineSimilarity(floor=bad)
    with pytest.raises(ValueError, match="`delta` must be a finite number above 0"):
        losses.Huber(delta=bad)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 250000.0])
def test_huber_of_a_scale_is_that_of_scaled_numbers(scale):
    plain, loss = losses.Huber(0.1), losses.Huber(0.1, scale=scale)
    y, z = Y * np.float32(scale), Z * np.float32(scale)
    np.testing.assert_allclose(loss.value(y, z), plain.value(Y, Z), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(loss.gradient(y, z)) * scale, plain.gradient(Y, Z), rtol=1e-5)
    assert loss.exact_lipschitz(3) == pytest.approx(plain.exact_lipschitz(3) / scale)
    far = loss.gradient(y, z + np.float32(1e6 * scale))
    assert np.linalg.norm(far, axis=-1) == pytest.approx(loss.exact_lipschitz(3), rel=1e-5)
    assert losses.Huber.from_config(loss.get_config()).scale == scale


def test_huber_refuses_a_scale_of_nothing():
    with pytest.raises(ValueError, match="scale"):
        losses.Huber(scale=0.0)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e6, 1e30])
def test_huber_gradients_are_bounded_whatever_the_scale(scale):
    """Two quotients that overflow had NaN for their difference."""
    loss = losses.Huber(0.1, scale=scale)
    largest = 3e38
    y = np.array([[largest], [largest], [-largest], [0.0], [1e-30], [scale]], "float32")
    z = np.array([[largest], [-largest], [largest], [0.0], [0.0], [-scale]], "float32")
    found = np.abs(np.asarray(loss.gradient(y, z)))
    assert np.isfinite(found).all() and found.max() <= loss.lipschitz(1) * (1.0 + 1e-6)
    assert found[1] == pytest.approx(loss.lipschitz(1), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-40, 1e40])
def test_huber_scales_that_float32_does_not_hold_are_refused(scale):
    with pytest.raises(ValueError, match="float32 can divide by.*Received: scale="):
        losses.Huber(scale=scale)
