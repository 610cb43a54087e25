"""Weight standardization in the forward pass: what a filter is, and gradients through it."""

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import backend, gradients, layers, strategies
from tests.helpers.reference import compare, squared_error, state

SHAPE = (6, 5, 4)


def built(**options):
    layer = layers.StandardizedConv2D(6, 3, **{"padding": "same", **options})
    layer.build((None, *SHAPE))
    return layer


def filters(kernel):
    return ops.convert_to_numpy(kernel).reshape(-1, kernel.shape[-1]).astype("float64")


def images(rows=3, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, *SHAPE)).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.1, 1.0, 1e6])
def test_filters_have_mean_zero_and_the_norm_of_their_gain(scale):
    layer, rng = built(), np.random.default_rng(0)
    gain = rng.uniform(0.5, 2.0, 6).astype("float32")
    layer.gain.assign(gain)
    given = scale * (rng.normal(size=layer.kernel.shape).astype("float32") + 0.5)
    found, centered = filters(layer.standardized(given)), filters(given) - filters(given).mean(axis=0)
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(found, gain * centered / np.linalg.norm(centered, axis=0), atol=1e-5)


def test_mean_and_size_of_a_kernel_do_not_matter():
    layer, x = built(), images()
    before = ops.convert_to_numpy(layer(x))
    layer.kernel.assign(7.0 * layer.kernel + 0.3)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), before, atol=1e-5)


@pytest.mark.slow
def test_it_is_the_convolution_of_keras_with_that_kernel():
    for options in (
        {"activation": "tanh"},
        {"strides": 2, "groups": 2, "use_bias": False},
        {"dilation_rate": 2, "padding": "valid", "activation": "relu"},
    ):
        layer, x = built(**options), images()
        for v in layer.weights:
            v.assign(v + np.random.default_rng(1).normal(size=v.shape).astype("float32"))
        plain = keras.layers.Conv2D(6, 3, **{"padding": "same", **options})
        plain.build((None, *SHAPE))
        plain.kernel.assign(layer.standardized(ops.convert_to_tensor(layer.kernel)))
        if layer.bias is not None:
            plain.bias.assign(layer.bias)
        np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), ops.convert_to_numpy(plain(x)), atol=1e-6)


@pytest.mark.slow
def test_equal_weights_stand_for_nothing_and_stay_finite():
    """Also their gradients, which are those of a division by a constant."""
    model = keras.Sequential([keras.Input(SHAPE), built()])
    layer = model.layers[0]
    kernel = ops.convert_to_numpy(layer.kernel).copy()
    kernel[..., 0] = 0.3
    kernel[..., 1] = 0.3 + 1e-4 * kernel[..., 1]  # its norm is below the floor
    layer.kernel.assign(kernel)
    found = filters(layer.standardized(ops.convert_to_tensor(layer.kernel)))
    assert np.linalg.norm(found[:, 0]) < 1e-4 and 0.0 < np.linalg.norm(found[:, 1]) < 0.1
    assert np.linalg.norm(found[:, 2]) == pytest.approx(1.0, abs=1e-5)
    compare(model, images())


@pytest.mark.slow
def test_gradients_turn_a_filter_and_do_not_stretch_it():
    """None along the kernel, none along ones; twice the kernel has half the gradient."""
    model = keras.Sequential([keras.Input(SHAPE), built(), keras.layers.GlobalAveragePooling2D()])
    layer, x, y = model.layers[0], images(1), np.array([1])

    def found():
        forward, weight = backend.Forward(model, **state(model)), np.ones(1, "float32")
        record = gradients.capture(forward, x, y, weight, loss_values=squared_error)
        return ops.convert_to_numpy(record.weighted_sum(ops.ones(1))[0])

    once, kernel = found(), ops.convert_to_numpy(layer.kernel)
    scale = np.abs(once).sum(axis=(0, 1, 2))
    assert (scale > 0).all() and (np.abs(once.sum(axis=(0, 1, 2))) < 1e-5 * scale).all()
    along = (once * (kernel - kernel.mean(axis=(0, 1, 2)))).sum(axis=(0, 1, 2))
    assert (np.abs(along) < 1e-5 * scale).all()
    layer.kernel.assign(2.0 * kernel)
    np.testing.assert_allclose(found(), once / 2.0, atol=1e-5 * np.abs(once).max())


def network(dtype=None):
    inputs = keras.Input(SHAPE)
    h = layers.StandardizedConv2D(8, 3, padding="same", use_bias=False, dtype=dtype)(inputs)
    h = keras.layers.Activation("relu", dtype=dtype)(keras.layers.GroupNormalization(4, dtype=dtype)(h))
    h = keras.layers.Flatten()(layers.StandardizedConv2D(4, 3, strides=2, dtype=dtype)(h))
    return keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(h))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_it_trains_privately_and_learns(dtype):
    keras.utils.set_random_seed(0)
    x = images(400)
    y = (x[:, 1:4, 1:4, 0].sum(axis=(1, 2)) > 0).astype("int32")
    model = lipdp.DP_Model.from_keras(network(dtype))
    model.compile(
        keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    before = [ops.convert_to_numpy(v) for v in model.trainable_variables]
    strategy = strategies.DPSGD(clip_norm=1.0)
    model.fit(x, y, batch_size=100, epochs=15, epsilon=20.0, delta=1e-5, strategy=strategy, seed=0, verbose=0)
    assert model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] > 0.75
    assert all((ops.convert_to_numpy(v) != b).any() for v, b in zip(model.trainable_variables, before, strict=True))


@pytest.mark.slow
def test_low_rank_additions_count_as_part_of_the_kernel():
    layer = built(use_bias=False)
    model = keras.Sequential([keras.Input(SHAPE), layer])
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.random.default_rng(3).normal(size=layer.lora_kernel_b.shape))
    np.testing.assert_allclose(np.linalg.norm(filters(layer.standardized(layer.kernel)), axis=0), 1.0, atol=1e-5)
    compare(model, images())


@pytest.mark.backend_free
def test_files_and_exports(tmp_path):
    model, x = network(), images()
    for v in model.weights:
        v.assign(v + 0.1 * np.random.default_rng(1).normal(size=v.shape).astype("float32"))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6)
    plain = lipdp.export(model)
    assert "lipdp>" in model.to_json() and "lipdp>" not in plain.to_json()
    np.testing.assert_allclose(plain.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5)


@pytest.mark.backend_free
def test_clipless_training_and_certificates_name_the_way_out():
    model = keras.Sequential([keras.Input(SHAPE), layers.BoundedInput(), built(), keras.layers.Flatten()])
    with pytest.raises(ValueError, match="SpectralConv2D"):
        lipdp.bounds.propagate(model, 1.0)
    with pytest.raises(ValueError, match="SpectralConv2D"):
        lipdp.certify.lipschitz(model)
    # Frozen, in front of what trains, it is as good as any other.
    frozen = built()
    frozen.trainable = False
    behind = [keras.layers.Flatten(), layers.BoundedInput(), layers.SpectralDense(2)]
    bounds = lipdp.bounds.propagate(keras.Sequential([keras.Input(SHAPE), frozen, *behind]), 1.0)
    assert bounds is not None


@pytest.mark.backend_free
def test_bad_arguments_are_those_of_keras():
    with pytest.raises(ValueError, match="filters"):
        layers.StandardizedConv2D(0, 3)
