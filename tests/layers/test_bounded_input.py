"""The layer where all norm bounds begin: nothing may leave it that is longer than it says."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipdp import backend, layers
from tests.helpers.adversary import norm, starts

XLA = [False, True] if keras.backend.backend() == "tensorflow" else [False]


def output(x, **arguments):
    return keras.ops.convert_to_numpy(layers.BoundedInput(**arguments)(x)).astype("float64")


@pytest.mark.parametrize("mode", ["clip", "normalize"])
@pytest.mark.parametrize("radius", [1e-6, 0.3, 7.0, 1e6])
def test_norm_is_never_exceeded(mode, radius):
    rng = np.random.default_rng(0)
    scales = np.array([1e-30, 1e-15, 1e-6, 0.99, 1.0, 1.0000001, 1.5, 1e3, 1e15, 1e25, 3e38]) * min(radius, 1.0)
    for shape in ((1,), (5,), (28, 28, 1), (64, 64, 3)):
        x = np.concatenate(starts(shape, rng, 1.0))
        x = np.concatenate([np.clip(x * scale, -3e38, 3e38) for scale in scales]).astype("float32")
        y = output(x, norm=radius, mode=mode)
        assert np.isfinite(y).all()
        assert np.linalg.norm(y.reshape(len(y), -1), axis=1).max() <= radius


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=3, max_size=3),
    st.sampled_from(["clip", "normalize"]),
)
def test_any_floats(values, mode):
    assert norm(output(np.array([values], "float32"), norm=2.5, mode=mode)) <= 2.5


def test_clip_keeps_what_is_inside_and_direction():
    x = np.array([[0.3, -0.4], [30.0, -40.0], [0.0, 0.0]], "float32")
    np.testing.assert_allclose(output(x, norm=1.0), [[0.3, -0.4], [0.6, -0.8], [0.0, 0.0]], rtol=2e-6)


def test_normalize_scales_up_and_keeps_zero():
    x = np.array([[0.03, -0.04], [30.0, -40.0], [0.0, 0.0]], "float32")
    expected = [[1.2, -1.6], [1.2, -1.6], [0.0, 0.0]]
    np.testing.assert_allclose(output(x, norm=2.0, mode="normalize"), expected, rtol=2e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float64"])
def test_squares_of_other_types_do_not_wrap_around(dtype):
    """16 * 16 is 0 in uint8: the clip saw norm 0 and let 32 through."""
    for value in (16, 64, 100, 255):
        y = output(np.full((2, 4), value, dtype), norm=1.0)
        assert norm(y[0]) <= 1.0
        np.testing.assert_allclose(y, 0.5, rtol=2e-6)


@pytest.mark.backend_free
def test_bounds_follow_the_mode():
    clip, normalize = (layers.BoundedInput(norm=2.0, mode=mode) for mode in ("clip", "normalize"))
    assert clip.output_bound((0.1,)) == 0.1 and clip.output_bound((9.0,)) == 2.0
    assert normalize.output_bound((0.1,)) == normalize.output_bound((9.0,)) == 2.0  # short inputs grow
    assert clip.input_lipschitz((0.1,)) == (1.0,) and normalize.input_lipschitz((0.1,)) == (np.inf,)


@pytest.mark.backend_free
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "float64"])
def test_layers_compute_in_float32(dtype):
    for make in (layers.BoundedInput, lambda dtype: layers.SpectralDense(3, dtype=dtype), layers.Abs):
        with pytest.raises(ValueError, match="float32"):
            make(dtype=dtype)


def test_the_old_spelling_warns_and_old_files_load():
    with pytest.warns(DeprecationWarning, match="mode='normalize'"):
        layer = layers.BoundedInput(mode="normalise")
    assert layer.mode == layer.get_config()["mode"] == "normalize"
    config = {**layers.BoundedInput(norm=2.0).get_config(), "mode": "normalise"}  # as version 0.1.0 wrote it
    assert layers.BoundedInput.from_config(config).mode == "normalize"
    config.pop("mode")
    assert layers.BoundedInput.from_config(config).mode == "clip"


def test_declares_the_input_of_a_sequential_model():
    import lipdp

    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(2)])
    assert model.input_shape == (None, 4)


@pytest.mark.parametrize("mode", ["clip", "normalize"])
def test_what_overflowed_before_it_leaves_as_zero(mode):
    x = np.array([[np.inf, 1.0], [np.nan, 0.0], [-np.inf, np.inf], [3.0, 4.0]], "float32")
    y = output(x, norm=1.0, mode=mode)
    assert (y[:3] == 0.0).all() and norm(y[3:]) > 0.99


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("mode", ["clip", "normalize"])
def test_rows_that_are_not_finite_send_back_zero(mode, xla):
    """It was NaN, and with it the whole update."""
    inputs = keras.Input((3,))
    pull = backend.pullback(keras.Model(inputs, layers.BoundedInput(norm=1.0, mode=mode)(inputs)), xla)
    x = np.array([[np.inf, 1.0, 2.0], [np.nan, 0.0, 1.0], [-np.inf, np.inf, 0.0], [3e38, 3e38, 0.0], [3.0, 4.0, 0.0]])
    cotangent = np.random.default_rng(0).standard_normal(x.shape).astype("float32")
    gradient = keras.ops.convert_to_numpy(pull([x.astype("float32")], cotangent)[1][0])
    assert (gradient[:4] == 0.0).all()
    alone = keras.ops.convert_to_numpy(pull([x[4:].astype("float32")], cotangent[4:])[1][0])
    np.testing.assert_array_equal(gradient[4:], alone)


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("mode", ["clip", "normalize"])
@pytest.mark.parametrize("shape", [(5,), (3, 4, 2)])
def test_gradient_is_that_of_the_map(mode, shape, xla):
    radius, rng = 2.0, np.random.default_rng(0)
    inputs = keras.Input(shape)
    pull = backend.pullback(keras.Model(inputs, layers.BoundedInput(norm=radius, mode=mode)(inputs)), xla)
    x, g = (rng.standard_normal((6, *shape)).astype("float32") for _ in range(2))
    x *= np.reshape([0.01, 0.1, 0.3, 3.0, 30.0, 1e6], (6, *[1] * len(shape)))
    found = keras.ops.convert_to_numpy(pull([x], g)[1][0]).reshape(6, -1)
    x, g = (v.reshape(6, -1).astype("float64") for v in (x, g))
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    along = x / norms
    scaled = (g - along * np.sum(along * g, axis=1, keepdims=True)) * (radius / norms)
    expected = scaled if mode == "normalize" else np.where(norms > radius, scaled, g)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    if mode == "clip":
        assert (np.linalg.norm(found, axis=1) <= np.linalg.norm(g, axis=1) * (1 + 1e-5)).all()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["clip", "normalize"])
def test_second_derivatives(mode):
    """Those of the written gradient, which autodiff takes, against differences."""
    layer = layers.BoundedInput(norm=1.0, mode=mode)
    direction = np.array([[0.5, -2.0, 1.0]], "float32")

    def loss(x):
        return keras.ops.sum(layer(x) * direction)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def gradient(x):
            x = tf.constant(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = loss(x)
            return tape.gradient(y, x)

        def hessian(x):
            x = tf.constant(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                inner = gradient(x)
            return tape.jacobian(inner, x)
    else:
        import jax

        gradient, hessian = jax.grad(loss), jax.hessian(loss)
    for x in (np.array([[1.0, 2.0, -0.5]], "float32"), np.array([[0.1, 0.2, 0.3]], "float32")):
        found = keras.ops.convert_to_numpy(hessian(x))[0, :, 0]
        step = 1e-3
        for k in range(3):
            moved = [
                keras.ops.convert_to_numpy(gradient(x + s * step * np.eye(3, dtype="float32")[k])) for s in (1, -1)
            ]
            np.testing.assert_allclose(found[:, k], (moved[0] - moved[1])[0] / (2 * step), atol=2e-2)
        assert mode == "normalize" or x[0, 0] == 1.0 or not found.any()


@pytest.mark.parametrize("mode", ["clip", "normalize"])
@pytest.mark.parametrize("entry", [1.0, 0.1])
def test_many_entries_cost_no_accuracy(mode, entry):
    """At 2^21 entries the radius was 12 % too small, from 2^24 on it was negative."""
    for shape in ((2**21 + 5,), (64, 128, 128, 2)):
        assert 0.999 <= norm(output(np.full((1, *shape), entry, "float32"), norm=1.0, mode=mode)) <= 1.0
