"""Features of the encoder: its network in stock layers, each image alone, files and exports, what is refused."""

import json

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify, layers, losses, strategies
from lipdp.layers import dead_leaves, encoder_features
from lipdp.training.model_checks import default_strategy

SHAPE = (32, 32, 3)
# Of the first images of random shapes: the first features of the first two.
GOLDEN = [[0.0440, -0.6029, -0.9236, -0.3980], [0.1563, -0.6221, 1.1639, 0.7238]]


def images(count=3, shape=SHAPE):
    return dead_leaves.images(count, shape, seed=3)


def of(x):
    return keras.ops.convert_to_numpy(layers.EncoderFeatures2D()(x))


@pytest.mark.slow
def test_values_are_those_of_stock_layers_and_those_of_before():
    x = images(2)
    network, used = encoder_features.network()
    *values, mean, deviation = encoder_features.stored()
    for variable, value in zip(used, values, strict=True):
        variable.assign(value)
    middle, last = network.predict(x, verbose=0)
    groups = middle.reshape(2, 16 * 16, 16, -1)
    groups = groups - groups.mean((1, 3), keepdims=True)
    middle = np.maximum(groups / np.sqrt((groups**2).mean((1, 3), keepdims=True) + 1e-5), 0).reshape(middle.shape)
    read = [h.reshape(2, 2, h.shape[1] // 2, 2, -1, h.shape[-1]).mean((2, 4)) for h in (middle, last)]
    found = of(x)
    np.testing.assert_allclose(found, (np.concatenate(read, -1) - mean) / deviation, atol=1e-3)
    np.testing.assert_allclose(found[:, 0, 0, :4], GOLDEN, atol=1e-3)


@pytest.mark.slow
@pytest.mark.backend_free
def test_channels_are_scaled_by_what_they_are_on_random_images():
    found = of(images(256))
    assert abs(found.mean()) < 0.1 and 0.5 < found.std() < 1.0


@pytest.mark.slow
def test_each_example_alone_equals_together():
    x = images(4)
    model = keras.Sequential([keras.Input(SHAPE), layers.EncoderFeatures2D()])
    together = of(x)
    assert together.shape == (4, 2, 2, 384) and model.output_shape == (None, 2, 2, 384)
    for i in range(len(x)):
        np.testing.assert_allclose(of(x[i : i + 1])[0], together[i], atol=1e-3)
    np.testing.assert_allclose(model.predict(x, verbose=0), together, atol=1e-3)


@pytest.mark.slow
def test_hard_images_have_finite_values_and_harm_no_other():
    x = images(6).copy()
    x[1], x[2], x[3] = 0.0, 1.0, 1e12
    good = of(x)
    assert np.isfinite(good).all()
    for wrong in (np.nan, np.inf, -np.inf):
        x[5, 4, 4] = wrong
        np.testing.assert_array_equal(of(x)[:5], good[:5])


@pytest.mark.slow
@pytest.mark.backend_free
def test_whole_numbers_are_read_as_numbers_and_other_sizes_are_resized():
    x = (images(2) * 255).astype("uint8")
    np.testing.assert_array_equal(of(x), of(x.astype("float32")))
    large = np.repeat(np.repeat(images(2), 3, axis=1), 3, axis=2)
    small, resized = of(images(2)), of(large)
    # The same pictures with more pixels, a little smoother: other ones are further away.
    assert np.linalg.norm(resized - small) < 0.9 * np.linalg.norm(small[::-1] - small)
    assert of(images(2, (20, 40, 3))).shape == (2, 2, 2, 384)


@pytest.mark.slow
def test_nothing_trains_it_and_files_hold_its_weights(tmp_path):
    model = keras.Sequential([keras.Input((40, 36, 3)), layers.EncoderFeatures2D(name="encoder")])
    x = images(2, (40, 36, 3))
    model.trainable = True
    assert not model.trainable_variables and model.count_params() == 2603040 + 2 * 384
    # A model goes on with the weights that it was trained with, whatever later versions bring.
    changed = [value + 0.01 for value in model.get_weights()]
    model.set_weights(changed)
    model.save(tmp_path / "model.keras")
    lipdp.export(model).save(tmp_path / "plain.keras")
    loaded, plain = (keras.saving.load_model(tmp_path / f"{name}.keras") for name in ("model", "plain"))
    assert np.abs(model.predict(x, verbose=0) - of(x)).max() > 0.01
    for other in (loaded, plain):
        np.testing.assert_allclose(other.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-3)
    config = json.dumps(plain.get_config(), default=str)
    assert "lipdp" not in config


def stack(*more):
    model = lipdp.DP_Sequential([keras.Input(SHAPE), layers.EncoderFeatures2D(), *more])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def fit(model, strategy):
    x, y = images(48), np.arange(48) % 2
    return model.fit(x, y, batch_size=16, epsilon=8.0, delta=1e-3, strategy=strategy, verbose=0)


@pytest.mark.slow
def test_strategies_that_clip_take_it_and_leave_it_as_it_is():
    model = stack(keras.layers.Flatten(), keras.layers.Dense(2))
    before = [np.array(value) for value in model.layers[0].get_weights()]
    assert default_strategy(model) == "dpsgd"
    fit(model, strategies.DPSGD(clip_norm=1.0))
    assert 0.0 < model.privacy.epsilon() <= 8.0
    for one, other in zip(before, model.layers[0].get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.backend_free
def test_clipless_training_needs_a_bound_behind_it_and_certificates_are_refused():
    refused = stack(layers.Flatten(), layers.SpectralDense(2))
    with pytest.raises(ValueError, match="unbounded norm.*Put lipdp.layers.BoundedInput"):
        fit(refused, "clipless")
    model = stack(layers.BoundedInput(norm=2.0), layers.Flatten(), layers.SpectralDense(2))
    fit(model, "clipless")
    assert 0.0 < model.privacy.epsilon() <= 8.0
    with pytest.raises(ValueError, match="EncoderFeatures2D has no Lipschitz constant.*--recipe robust"):
        certify.radii(model, images(3))


@pytest.mark.backend_free
def test_bad_inputs_are_named():
    for shape in ((None, 32, 3), (32, 32), (32, 32, 1)):
        with pytest.raises(ValueError, match="needs images in color of a known size"):
            keras.Sequential([keras.Input(shape), layers.EncoderFeatures2D()])
    keras.config.set_image_data_format("channels_first")
    try:
        with pytest.raises(ValueError, match="channels-last"):
            layers.EncoderFeatures2D()
    finally:
        keras.config.set_image_data_format("channels_last")
