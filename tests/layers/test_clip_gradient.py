"""Clipping on the way back: what it does to cotangents, to bounds and in `fit`."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import bounds, layers, losses
from tests.helpers.adversary import Probe, norm

XLA = [False, True] if keras.backend.backend() == "tensorflow" else [False]


def armed(value, shape, scale=1.0):
    layer = layers.ClipGradient(value)
    layer.build((None, *shape))
    layer.scale.assign(scale)
    return layer


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-3, 0.499, 0.5, 1.0, 1e4, 1e30])
def test_each_example_is_clipped_on_its_own(size, xla):
    probe = Probe(armed(1.0, (3, 2), scale=0.5), (3, 2), xla=xla)
    rng = np.random.default_rng(0)
    g = rng.standard_normal((4, 3, 2))
    g *= size / np.linalg.norm(g.reshape(4, -1), axis=1)[:, None, None]
    g[2] *= 0.01
    x = rng.standard_normal((4, 3, 2))
    y, (received,), _ = probe.pull([x], g)
    np.testing.assert_array_equal(y, x.astype("float32"))
    for sent, found in zip(g, received, strict=True):
        assert np.isfinite(found).all()
        assert norm(found) <= 0.5
        np.testing.assert_allclose(found, sent * min(1.0, 0.5 / max(norm(sent), 1e-300)), rtol=1e-5)


def test_a_huge_example_does_not_hide_the_others():
    """Beside it their squares would underflow, and they would pass as they are."""
    probe = Probe(armed(1.0, (3,), scale=0.5), (3,))
    g = np.ones((4, 3)) * np.array([[1e30], [1.0], [0.3], [1e-3]]) / np.sqrt(3.0)
    received = probe.pull([np.ones((4, 3))], g)[1][0]
    np.testing.assert_allclose(np.linalg.norm(received, axis=1), [0.5, 0.5, 0.3, 1e-3], rtol=1e-4)


def test_before_fit_nothing_passes():
    probe = Probe(layers.ClipGradient(1.0), (3,))
    assert not probe.pull([np.ones((1, 3))], np.ones((1, 3)))[1][0].any()


def test_bounds_in_front_of_it_shrink_and_those_behind_stay():
    inputs = keras.Input((4,))
    x = layers.SpectralDense(4, name="front")(layers.BoundedInput(norm=2.0)(inputs))
    x = layers.ClipGradient(0.1)(x)
    model = keras.Model(inputs, layers.SpectralDense(3, name="back")(x))
    found = bounds.propagate(model, 1.0)
    assert found.gradient(model.get_layer("front").kernel) == pytest.approx(0.2, rel=1e-3)
    assert found.gradient(model.get_layer("back").kernel) == pytest.approx(2.0, rel=1e-3)
    # The forward pass is the identity: no certificate gets larger.
    assert found.lipschitz == pytest.approx(1.0)
    assert lipdp.certify.lipschitz(model) == pytest.approx(1.0, rel=1e-3)


def test_fan_out_is_clipped_once_and_shared_use_each_time():
    inputs = keras.Input((4,))
    x = layers.SpectralDense(4, name="front")(layers.BoundedInput(norm=1.0)(inputs))
    clip = layers.ClipGradient(0.3)
    y = clip(x)
    once = keras.Model(inputs, layers.Add()([layers.Abs()(y), y]))
    twice = keras.Model(inputs, layers.Add()([layers.Abs()(y), clip(x)]))
    clip.scale.assign(1.0)
    for model, expected in ((once, 0.3), (twice, 0.6)):
        kernel = model.get_layer("front").kernel
        bound = bounds.propagate(model, 1.0).gradient(kernel)
        assert bound == pytest.approx(expected, rel=1e-3)
        probe = Probe(model)
        kernel.assign(np.eye(4))
        x = np.full((1, 4), 0.5)
        found = norm(probe.pull([x], x)[2][0])
        assert 0.99 * expected <= found <= bound


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 8])
def test_in_fit_gradients_obey_the_bound_of_the_batch(chunk):
    """One step of plain SGD without noise moves a kernel by the clipped sum over the batch, and by no more."""
    model = lipdp.DP_Sequential(
        [layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(4, projected=False), layers.ClipGradient(0.01)]
        + [layers.BoundedInput(norm=2.0), layers.SpectralDense(2)]
    )
    model.compile(keras.optimizers.SGD(1.0), loss=losses.SparseCategoricalCrossentropy(temperature=1.0))
    x, y = np.eye(4, dtype="float32")[np.zeros(16, int)], np.zeros(16, "int32")
    kernel = model.layers[1].kernel
    before = keras.ops.convert_to_numpy(kernel)
    model.fit(x, y, batch_size=16, noise_multiplier=1e-6, delta=1e-3, microbatch_size=chunk, seed=0, verbose=0)
    step = norm(keras.ops.convert_to_numpy(kernel) - before)
    # 16 equal examples, each drawn with probability 1.
    assert 0.0095 <= step <= 0.0101
    assert float(model.layers[2].scale) == pytest.approx(1 / 16)
    assert bounds.propagate(model, 1.0).gradient(kernel) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("xla", XLA)
def test_many_entries_cost_no_accuracy(xla):
    """At 2^21 entries a quarter of the norm was lost, from 2^23 on the limit was negative."""
    probe = Probe(armed(1.0, (2**21 + 5,)), (2**21 + 5,), xla=xla)
    for entry in (1.0, 0.1):
        g = np.full((1, 2**21 + 5), entry, "float32")
        assert 0.999 <= norm(probe.pull([g], g)[1][0]) <= 1.0


def test_sizes_that_the_model_leaves_open_are_those_of_the_data():
    layer = layers.ClipGradient(1.0)
    model = keras.Sequential([keras.Input((None, 2)), layer])
    layer.scale.assign(1.0)
    g = np.full((1, 50, 2), 3.0, "float32")
    assert 0.999 <= norm(Probe(model, (50, 2)).pull([g], g)[1][0]) <= 1.0
