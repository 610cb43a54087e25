"""Categorical, sparse categorical and binary cross-entropy against their formulas; the labels they refuse."""

import math

import numpy as np
import pytest

from lipdp import losses

Z = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [-3.0, 4.0, 1.0]], "float32")
IDS = np.array([2, 0, 1])
ONE_HOT = np.eye(3, dtype="float32")[IDS]


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 8.0])
def test_categorical_against_numpy(temperature):
    p = softmax(temperature * Z.astype("float64"))
    value = -np.log(p[np.arange(3), IDS]) / temperature
    dense = losses.CategoricalCrossentropy(temperature)
    sparse = losses.SparseCategoricalCrossentropy(temperature)
    for loss, y in ((dense, ONE_HOT), (sparse, IDS), (sparse, IDS[:, None])):
        np.testing.assert_allclose(loss.value(y, Z), value, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(loss.gradient(y, Z), p - ONE_HOT, atol=1e-6)
        np.testing.assert_allclose(loss(y, Z), value.mean(), rtol=1e-5)
        assert loss.lipschitz(3) == math.sqrt(2.0)


def test_categorical_golden_values():
    loss = losses.CategoricalCrossentropy()
    np.testing.assert_allclose(loss.value([[0.0, 1.0]], [[0.0, 0.0]]), [0.693147], rtol=1e-6)
    np.testing.assert_allclose(loss.value([[0.0, 1.0]], [[2.0, 1.0]]), [1.313262], rtol=1e-6)
    np.testing.assert_allclose(loss.gradient([[0.0, 1.0]], [[2.0, 1.0]]), [[0.731059, -0.731059]], rtol=1e-5)


def test_soft_labels():
    y = np.array([[0.2, 0.5, 0.3]] * 3)
    loss = losses.CategoricalCrossentropy()
    np.testing.assert_allclose(loss.gradient(y, Z), softmax(Z) - y, atol=1e-6)
    loss.check_labels(y, 3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 8.0])
def test_binary_against_numpy(temperature):
    y = np.array([[1.0, 0.0, 1.0], [0.0, 0.5, 1.0], [0.25, 1.0, 0.0]])
    p = 1 / (1 + np.exp(-temperature * Z.astype("float64")))
    value = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(axis=-1) / temperature
    loss = losses.BinaryCrossentropy(temperature)
    np.testing.assert_allclose(loss.value(y, Z), value, rtol=1e-5)
    np.testing.assert_allclose(loss.gradient(y, Z), (p - y) / 3, atol=1e-6)
    assert loss.lipschitz(1) == 1.0
    assert loss.lipschitz(4) == 0.5


def test_binary_takes_a_vector_of_labels_for_one_output():
    loss = losses.BinaryCrossentropy()
    z = Z[:, :1]
    np.testing.assert_array_equal(loss.call([1, 0, 1], z), loss.call([[1], [0], [1]], z))
    loss.check_labels(np.array([True, False, True]), 1)


def test_extreme_logits_stay_finite():
    z = np.array([[1e6, -1e6], [1e30, -1e30]], "float32")
    y = np.array([[0.0, 1.0], [0.0, 1.0]])
    for loss in (losses.CategoricalCrossentropy(20.0), losses.BinaryCrossentropy(20.0)):
        assert np.isfinite(loss.value(y, z)).all()
        np.testing.assert_allclose(np.abs(np.asarray(loss.gradient(y, z))).max(axis=-1), loss.lipschitz(2) / 2**0.5)


@pytest.mark.slow
def test_signs_are_refused_by_binary_crossentropy(autodiff):
    """Regression: the reference takes y = -1, which doubles the gradient beyond its claimed bound."""
    loss = losses.BinaryCrossentropy()
    y = np.array([[1.0], [-1.0]])
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 1\], but 1 of 2 rows.*at row 1.*\(y \+ 1\) / 2"):
        loss.check_labels(y, 1)
    z = np.array([[30.0], [30.0]], "float32")
    np.testing.assert_allclose(loss.gradient(y, z)[1], [2.0])
    assert np.abs(autodiff(lambda x: loss.call(y, x), z)).max() <= loss.lipschitz(1)


@pytest.mark.parametrize("y", [[[0.5, 1.5]], [[2.0, 0.0]]])
def test_binary_refuses_labels_outside_the_unit_interval(y):
    with pytest.raises(ValueError, match=r"in \[0, 1\].*Pass 0/1 labels or probabilities"):
        losses.BinaryCrossentropy().check_labels(np.array(y), 2)


@pytest.mark.parametrize("row", [[0.5, 0.4], [1.5, -0.5], [0.0, 0.0], [1.0, 1.0]])
def test_categorical_refuses_rows_outside_the_simplex(row):
    y = np.array([[1.0, 0.0], row])
    with pytest.raises(ValueError, match=r"non-negative and sum to 1, but 1 of 2 rows.*at row 1"):
        losses.CategoricalCrossentropy().check_labels(y, 2)


@pytest.mark.parametrize("bad, message", [(3, r"lie in \[0, 3\)"), (-1, r"lie in \[0, 3\)"), (1.5, "whole")])
def test_sparse_refuses_what_is_not_a_class_id(bad, message):
    y = np.array([0.0, 1.0, bad, 2.0])
    with pytest.raises(ValueError, match=message + rf".*1 of 4 rows.*Received: {bad}.*at row 2"):
        losses.SparseCategoricalCrossentropy().check_labels(y, 3)


@pytest.mark.parametrize("name", ["CategoricalCrossentropy", "SparseCategoricalCrossentropy"])
def test_one_output_is_refused(name):
    loss = getattr(losses, name)()
    with pytest.raises(ValueError, match="at least 2 outputs.*num_outputs=1.*BinaryCrossentropy"):
        loss.lipschitz(1)
    with pytest.raises(ValueError, match="BinaryCrossentropy"):
        loss(np.zeros((4, 1)), np.zeros((4, 1)))


@pytest.mark.parametrize("name", ["CategoricalCrossentropy", "SparseCategoricalCrossentropy", "BinaryCrossentropy"])
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan, None])
def test_temperature_out_of_range(name, temperature):
    with pytest.raises(ValueError, match="`temperature` must be a finite number above 0. Received: temperature="):
        getattr(losses, name)(temperature=temperature)
