"""Features of patches: the definition, each image alone, mirror images, where the patches come from, refusals."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify, layers, losses, strategies
from lipdp.layers import dead_leaves
from lipdp.training.model_checks import default_strategy

SHAPE = (11, 13, 2)


def images(count=4, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random((count, *shape)).astype("float32")


# The first entries of the first patch.
GOLDEN = [0.0390, 0.0747, -0.0593, 0.0982]


def layer(**changes):
    return layers.PatchFeatures2D(**{"filters": 6, "kernel_size": 3, "places": 2, **changes})


def of(x, **changes):
    return keras.ops.convert_to_numpy(layer(**changes)(x))


def reference(image, size=3, places=2, filters=6):
    """In float64 and by loops, without mirror images and for windows that fit."""
    whitening, patches = (part.astype("float64") for part in dead_leaves.dictionary(size, image.shape[-1], filters, 0))
    down, across = (side - size + 1 for side in image.shape[:2])
    out = np.zeros((places, places, 2, filters))
    for i, j in np.ndindex(down, across):
        one = image[i : i + size, j : j + size].astype("float64").ravel()
        one = (one - one.mean()) / np.sqrt(one.var() + 10.0 / 255.0**2)
        one = one @ whitening
        z = patches @ one / np.sqrt((one**2).sum() + 1e-6)
        t = 1.55 / np.sqrt(len(one))
        out[i * places // down, j * places // across] += np.stack([np.maximum(z - t, 0), np.maximum(-z - t, 0)])
    gain = 12.0 * np.sqrt(len(one) / (places**2 * filters))
    return gain * out.reshape(places, places, -1) / (down * across / places**2)


@pytest.mark.slow
def test_values_are_those_of_the_definition():
    x = images(3, (10, 12, 2))
    np.testing.assert_allclose(of(x, mirrored=False), [reference(image) for image in x], atol=2e-4)


@pytest.mark.slow
def test_whole_numbers_are_read_as_numbers():
    x = (images() * 255).astype("uint8")
    np.testing.assert_array_equal(of(x), of(x.astype("float32")))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SHAPE, pytest.param((4, 4, 1), marks=pytest.mark.backend_free), (5, 9, 3)], ids=str)
@pytest.mark.parametrize("places", [pytest.param(1, marks=pytest.mark.backend_free), 2])
def test_each_example_alone_equals_together(shape, places):
    x = images(5, shape)
    model = keras.Sequential([keras.Input(shape), layer(places=places)])
    together = of(x, places=places)
    assert together.shape == (5, places, 1, 12) and model.output_shape == (None, *together.shape[1:])
    for i in range(len(x)):
        np.testing.assert_allclose(of(x[i : i + 1], places=places)[0], together[i], atol=1e-5)
    np.testing.assert_allclose(model.predict(x, verbose=0), together, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("places", [2, 3, 4])
def test_an_image_and_its_mirror_image_give_the_same(places):
    x = images(3, (10, 11, 3))
    both = (of(images, places=places) for images in (x, x[:, :, ::-1]))
    np.testing.assert_allclose(*both, atol=1e-5)
    # Without it they do not.
    both = (of(images, places=places, mirrored=False) for images in (x, x[:, :, ::-1]))
    assert np.abs(np.subtract(*both)).max() > 0.05
    # Nor does the image upside down.
    both = (of(images, places=places) for images in (x, x[:, ::-1]))
    assert np.abs(np.subtract(*both)).max() > 0.05


@pytest.mark.backend_free
def test_hard_images_have_finite_values_and_harm_no_other():
    x = images(7)
    x[1], x[2], x[3], x[4] = 0.0, 1.0, 1e-30, 1e18
    good = of(x)
    assert np.isfinite(good).all() and not good[1].any()
    for wrong in (np.nan, np.inf, -np.inf):
        x[6, 4, 4] = wrong
        np.testing.assert_array_equal(of(x)[:6], good[:6])


@pytest.mark.slow
@pytest.mark.backend_free
def test_patches_come_from_the_seed_alone():
    first = dead_leaves.dictionary(3, 2, 5, 0)
    dead_leaves.dictionary.cache_clear()
    np.random.seed(7)
    for one, other in zip(first, dead_leaves.dictionary(3, 2, 5, 0), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(first[1] - dead_leaves.dictionary(3, 2, 5, 1)[1]).max() > 0.1
    np.testing.assert_allclose(np.linalg.norm(first[1], axis=1), 1.0, rtol=1e-5)
    # Files hold the seed, not the patches, and another machine has to draw the same ones.
    np.testing.assert_allclose(first[1][0, :4], GOLDEN, atol=1e-4)


@pytest.mark.slow
@pytest.mark.backend_free
def test_random_images_have_edges_and_flat_parts_and_whitening_evens_their_patches_out():
    image = dead_leaves._image(3, np.random.default_rng(0))
    assert image.min() >= 0.0 and image.max() <= 1.0 and 0.2 < image.std() < 0.3
    steps = np.abs(np.diff(image, axis=0))
    assert (steps < 0.01).mean() > 0.2 and (steps > 0.2).mean() > 0.1
    spread = []
    for whitening in (np.eye(75), dead_leaves.dictionary(5, 3, 8, 0)[0]):
        rows, columns = np.random.default_rng(1).integers(0, 500, (2, 5000))
        parts = np.stack([image[i : i + 5, j : j + 5].ravel() for i, j in zip(rows, columns, strict=True)])
        values = np.linalg.eigvalsh(np.cov((dead_leaves.normalized(parts) @ whitening).T))
        spread.append(values[-1] / values[10])
    assert spread[1] < 0.05 * spread[0]


@pytest.mark.slow
def test_files_and_exports_compute_the_same(tmp_path):
    x = images()
    model = keras.Sequential([keras.Input(SHAPE), layer(name="patches")])
    model.save(tmp_path / "model.keras")
    lipdp.export(model).save(tmp_path / "plain.keras")
    loaded, plain = (keras.saving.load_model(tmp_path / f"{name}.keras") for name in ("model", "plain"))
    assert loaded.layers[-1].name == "patches" and not model.weights
    for other in (loaded, plain):
        np.testing.assert_allclose(other.predict(x, verbose=0), of(x), atol=1e-5)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(other(x[:1])), of(x[:1]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.backend_free
def test_files_of_other_patches_are_refused():
    built = layer()
    built(images())
    config = keras.saving.serialize_keras_object(built)
    again = keras.saving.deserialize_keras_object(config)
    np.testing.assert_allclose(again(images()), built(images()), atol=1e-6)
    config["build_config"]["check"] = layer_of_another_seed()._check()
    with pytest.raises(ValueError, match="drew other patches from seed 0 than when it was saved"):
        keras.saving.deserialize_keras_object(config)


def layer_of_another_seed():
    other = layer(seed=1)
    other.build((None, *SHAPE))
    return other


def stack(*more):
    model = lipdp.DP_Sequential([keras.Input((8, 8, 1)), layer(), *more])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def fit(model, strategy):
    x, y = images(240, (8, 8, 1)), np.arange(240) % 2
    return model.fit(x, y, batch_size=60, epsilon=8.0, delta=1e-3, strategy=strategy, verbose=0)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("strategy", [strategies.DPSGD(clip_norm=1.0), strategies.DPIS(clip_norm=1.0)], ids=str)
def test_strategies_that_clip_take_it(strategy):
    model = stack(keras.layers.Flatten(), keras.layers.Dense(2))
    assert default_strategy(model) == "dpsgd"
    fit(model, strategy)
    assert 0.0 < model.privacy.epsilon() <= 8.0


@pytest.mark.slow
@pytest.mark.backend_free
def test_clipless_training_needs_a_bound_behind_it_and_certificates_are_refused():
    head = layers.Flatten(), layers.SpectralDense(2)
    in_front = keras.Sequential([keras.Input((8, 8, 1)), layers.BoundedInput(norm=2.0), layer(), *head])
    for refused in (stack(*head), lipdp.DP_Model.from_keras(in_front)):
        refused.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
        with pytest.raises(ValueError, match="unbounded norm.*Put lipdp.layers.BoundedInput"):
            fit(refused, "clipless")
    model = stack(layers.BoundedInput(norm=2.0), layers.Flatten(), layers.SpectralDense(2))
    fit(model, "clipless")
    assert 0.0 < model.privacy.epsilon() <= 8.0
    x, y = images(3, (8, 8, 1)), np.zeros(3, int)
    for ask in (
        lambda: certify.lipschitz(model),
        lambda: certify.radii(model, x),
        lambda: certify.certified_accuracy(model, x, y),
    ):
        with pytest.raises(ValueError, match="PatchFeatures2D has no Lipschitz constant.*--recipe robust"):
            ask()


@pytest.mark.slow
@pytest.mark.backend_free
def test_bad_arguments_and_inputs_are_named():
    for shape in ((None, 8, 1), (8, 8)):
        with pytest.raises(ValueError, match="needs images of a known size"):
            keras.Sequential([keras.Input(shape), layer()])
    with pytest.raises(ValueError, match="sides of `kernel_size \\+ places - 1 = 4` pixels or more"):
        keras.Sequential([keras.Input((3, 8, 1)), layer()])
    with pytest.raises(ValueError, match="up to 1024 numbers. Received: kernel_size=3.*patches of 1152"):
        keras.Sequential([keras.Input((8, 8, 128)), layer()])
    with pytest.raises(ValueError, match="expected shape=\\(None, 11, 13, 2\\)"):
        built = layer()
        built(images())
        built(images(shape=(13, 11, 2)))
    for wrong in (
        {"filters": 0},
        {"kernel_size": 1},
        {"places": 33},
        {"places": 0},
        {"seed": -1},
        {"mirrored": 2},
        {"filters": 2.5},
    ):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            layer(**wrong)
    with pytest.raises(ValueError, match="Pass an even number"):
        layer(filters=5)
    assert of(images(), filters=5, mirrored=False).shape == (4, 2, 2, 10)
    keras.config.set_image_data_format("channels_first")
    try:
        with pytest.raises(ValueError, match="channels-last"):
            layer()
    finally:
        keras.config.set_image_data_format("channels_last")


@pytest.mark.slow
@pytest.mark.backend_free
def test_random_images_follow_from_their_seed_alone():
    found = dead_leaves.images(3, (16, 20, 3), seed=1)
    assert found.shape == (3, 16, 20, 3) and found.dtype == "float32" and 0.0 <= found.min() < found.max() <= 1.0
    np.testing.assert_array_equal(found, dead_leaves.images(3, (16, 20, 3), seed=1))
    assert np.abs(found - dead_leaves.images(3, (16, 20, 3), seed=2)).max() > 0.1
    # Larger ones than the image they come from go on at its other edge.
    large = dead_leaves.images(1, (513, 4, 1), seed=1)[0]
    np.testing.assert_array_equal(large[0], large[512])
