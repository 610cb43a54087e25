"""Normalization by private moments: what it computes, its constant, and what it refuses."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify, layers


def adapted(layer, shape, seed=0):
    """The layer with moments as a `fit` may leave them."""
    rng = np.random.default_rng(seed)
    layer.build((None, *shape))
    layer.set_mean(rng.normal(size=shape))
    layer.set_variance(rng.uniform(0.01, 4.0, layer.variance.shape), 1e-6, 100)
    return layer


@pytest.mark.parametrize(
    "axis, shape, sizes",
    [(-1, (4, 3), (1, 3)), (1, (4, 3), (4, 1)), (None, (4, 3), (1, 1)), ((1, 2), (4, 3), (4, 3)), (-1, (5,), (5,))],
)
def test_normalizes_as_keras_does_for_the_same_moments(axis, shape, sizes):
    layer = adapted(layers.PrivateNormalization(2.0, axis=axis), shape)
    assert tuple(layer.variance.shape) == sizes
    x = np.random.default_rng(1).normal(size=(6, *shape)).astype("float32")
    expected = (x - layer.mean.numpy()) / np.sqrt(layer.variance.numpy())
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.backend_free
def test_before_a_fit_inputs_pass_as_they_are():
    layer = layers.PrivateNormalization()
    x = np.arange(6.0, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(x)), x)
    assert not layer.adapted


def test_the_certificate_is_that_of_the_affine_map():
    layer = adapted(layers.PrivateNormalization(2.0), (6,))
    model = keras.Sequential([keras.Input((6,)), layer])
    largest = 1.0 / np.sqrt(layer.variance.numpy().min())
    assert largest <= certify.lipschitz(model) <= largest * (1.0 + 1e-4)
    # The bound of the output holds for the worst input of norm 1, along and against the mean.
    mean, scale = layer.mean.numpy().astype("float64"), 1.0 / np.sqrt(layer.variance.numpy())
    worst = -mean * scale**2 / np.linalg.norm(mean * scale**2)
    reached = np.linalg.norm((worst - mean) * scale)
    assert 0.5 * layer.trained_output_bound((1.0,)) < reached <= layer.trained_output_bound((1.0,))


@pytest.mark.backend_free
def test_variances_stay_above_their_noise():
    layer = layers.PrivateNormalization(2.0)
    layer.build((None, 3))
    layer.set_variance(np.array([-1.0, 0.0, 5.0]), 0.25, 10)
    np.testing.assert_allclose(layer.variance.numpy(), [0.25, 0.25, 5.0])


@pytest.mark.parametrize("shape, axis", [((7,), -1), ((3, 4, 2), -1), ((5,), None), ((3, 2), (1, 2))])
@pytest.mark.backend_free
def test_no_row_moves_the_sums_further_than_its_share(shape, axis):
    layer = adapted(layers.PrivateNormalization(1.5, axis=axis), shape)
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=shape) * 10.0**power for power in (-3, 0, 1, 5, 30, 200)]
    one = np.zeros(shape)
    one.flat[0] = 1e6  # all in one entry
    rows += [one, -layer.mean.numpy() * 1e6, np.full(shape, np.nan), np.full(shape, np.inf), np.full(shape, -1e308)]
    clipped = layer.clipped(np.stack(rows))
    squares = layer.squares(np.stack(rows))
    sides = [np.sqrt(np.square(part).reshape(len(rows), -1).sum(axis=1)) for part in (clipped, squares)]
    assert np.isfinite(sides).all()
    assert sides[0].max() == pytest.approx(1.5, rel=1e-12)
    assert sides[1].max() <= layer.square_norm * (1.0 + 1e-12)
    assert not clipped[8].any() and not clipped[9].any()


@pytest.mark.backend_free
def test_squares_of_an_even_example_are_not_clipped():
    layer = layers.PrivateNormalization(3.0)
    layer.build((None, 4, 4, 9))
    even = np.full((1, 4, 4, 9), 3.0 / 12.0)
    assert layer.square_norm == pytest.approx(9.0 / 48.0)
    np.testing.assert_allclose(layer.squares(even), np.full((1, 1, 1, 9), 1.0 / 16.0), rtol=1e-12)


@pytest.mark.backend_free
def test_an_export_is_stock_keras():
    layer = adapted(layers.PrivateNormalization(2.0), (4, 3))
    model = lipdp.DP_Sequential([keras.Input((4, 3)), layer, layers.BoundedInput(norm=9.0)])
    exported = lipdp.export(model)
    x = np.random.default_rng(1).normal(size=(6, 4, 3)).astype("float32")
    np.testing.assert_allclose(exported.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    assert all(type(inner).__module__.startswith("keras.") for inner in exported.layers)


@pytest.mark.parametrize(
    "arguments, shape, match",
    [
        ({"axis": 0}, (3,), "axis 0 is the batch"),
        ({"axis": 3}, (4, 3), "existing axes"),
        ({"axis": -3}, (4, 3), "existing axes"),
        ({}, (None, 3), "known size"),
    ],
)
@pytest.mark.backend_free
def test_refuses_shapes_without_moments(arguments, shape, match):
    with pytest.raises(ValueError, match=match):
        layers.PrivateNormalization(1.0, **arguments).build((None, *shape))


@pytest.mark.parametrize("arguments", [{"norm": 0.0}, {"norm": -1.0}, {"noise_multiplier": 0.0}, {"axis": "last"}])
@pytest.mark.backend_free
def test_refuses_arguments(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        layers.PrivateNormalization(**arguments)


@pytest.mark.backend_free
def test_adapt_names_fit():
    with pytest.raises(ValueError, match="`fit` reads it"):
        layers.PrivateNormalization().adapt(np.zeros((3, 2)))
