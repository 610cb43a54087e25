"""Deskewing: where ink comes to stand, one image at a time, and what is refused behind it."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import bounds, certify, layers, losses, strategies
from lipdp.training.model_checks import default_strategy

SIDE = 28


def bar(slope=0.0, down=0, right=0, channels=1):
    """A smooth upright bar, sheared and moved."""
    rows, columns = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    rows, columns = rows - down, columns - right
    ink = np.exp(-(((columns - slope * rows) / 2.0) ** 2) - (rows / 5.0) ** 4)
    return np.repeat(ink[None, :, :, None], channels, axis=-1).astype("float32")


def deskewed(x):
    return keras.ops.convert_to_numpy(layers.Deskew2D()(x))


def noise(count=5, shape=(9, 12, 2), seed=0):
    return np.random.default_rng(seed).random((count, *shape)).astype("float32")


def reference(image):
    """In float64 and by loops."""
    height, width, channels = image.shape
    ink, image = np.maximum(image.mean(-1), 0.0).astype("float64"), image.astype("float64")
    rows, columns = np.mgrid[:height, :width].astype("float64")
    row, column = (ink * rows).sum() / ink.sum(), (ink * columns).sum() / ink.sum()
    shear = (ink * (columns - column) * (rows - row)).sum() / (ink * (rows - row) ** 2).sum()
    out = np.zeros_like(image)
    for i, j in np.ndindex(height, width):
        y = i + row - (height - 1) / 2
        x = j + column - (width - 1) / 2 + shear * (i - (height - 1) / 2)
        for a, b in ((int(np.floor(y)) + da, int(np.floor(x)) + db) for da in (0, 1) for db in (0, 1)):
            if 0 <= a < height and 0 <= b < width:
                out[i, j] += (1 - abs(y - a)) * (1 - abs(x - b)) * image[a, b]
    return out


@pytest.mark.parametrize("moved", [{"slope": 0.4}, {"slope": -0.6, "down": 2, "right": -3}, {"right": 6}], ids=str)
def test_a_sheared_character_comes_back_upright(moved):
    before, after = bar(**moved), deskewed(bar(**moved))
    assert np.abs(before - bar()).max() > 0.4
    assert np.abs(after - bar()).max() < 0.12
    # What is upright and in the middle stays as it is.
    np.testing.assert_allclose(deskewed(bar()), bar(), atol=1e-5)


def test_whole_numbers_are_read_as_numbers():
    x = (255 * bar(slope=0.5, right=2)).astype("uint8")
    np.testing.assert_array_equal(deskewed(x), deskewed(x.astype("float32")))


@pytest.mark.slow
def test_values_are_those_of_the_definition():
    x = np.concatenate([noise(), -0.2 + noise(seed=1)])
    np.testing.assert_allclose(deskewed(x), [reference(image) for image in x], atol=2e-5)


THIN = [pytest.param(shape, marks=pytest.mark.backend_free) for shape in [(7, 1, 1), (1, 1, 3), (2, 2, 1)]]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(9, 12, 2), (1, 7, 1), *THIN], ids=str)
def test_each_example_alone_equals_together(shape):
    x = noise(4, shape)
    model = keras.Sequential([keras.Input(shape), layers.Deskew2D()])
    together, compiled = deskewed(x), model.predict(x, verbose=0)
    assert together.shape == x.shape and model.output_shape == (None, *shape)
    for i in range(len(x)):
        np.testing.assert_allclose(deskewed(x[i : i + 1])[0], together[i], atol=1e-5)
    np.testing.assert_allclose(compiled, together, atol=1e-5)


def test_channels_move_together():
    x = bar(slope=0.5, channels=3) * np.array([1.0, 0.5, 0.0], "float32")
    after = deskewed(x)
    np.testing.assert_allclose(after[..., 1], 0.5 * after[..., 0], atol=1e-6)
    np.testing.assert_allclose(after[..., :1], deskewed(bar(slope=0.5)), atol=1e-4)


@pytest.mark.slow
def test_hard_images_have_finite_values_and_harm_no_other():
    x = np.zeros((9, SIDE, SIDE, 1), "float32")
    x[1] = bar(slope=0.5)[0]
    x[2, 0, 0] = 1.0  # a dot in the corner
    x[3, 5] = 1.0  # no height
    x[4, 3, 0], x[4, 4, SIDE - 1] = 1.0, 1.0  # nearly none
    x[5] = 1e-30
    x[6] = 1e30
    x[7] = -1.0
    good = deskewed(x)
    assert np.isfinite(good).all() and not good[0].any()
    np.testing.assert_allclose(good[2, 13:15, 13:15, 0], 0.25, atol=1e-5)
    for wrong in (np.nan, np.inf, -np.inf):
        x[8, 4, 4] = wrong
        np.testing.assert_array_equal(deskewed(x)[:8], good[:8])
        in_step = keras.Sequential([keras.Input(x.shape[1:]), layers.Deskew2D()]).predict(x, verbose=0)
        np.testing.assert_allclose(in_step[:8], good[:8], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_files_and_exports_compute_the_same(tmp_path):
    x = np.concatenate([bar(slope=0.3), bar(down=4)])
    model = keras.Sequential([keras.Input((SIDE, SIDE, 1)), layers.Deskew2D(name="upright")])
    model.save(tmp_path / "model.keras")
    lipdp.export(model).save(tmp_path / "plain.keras")
    loaded, plain = (keras.saving.load_model(tmp_path / f"{name}.keras") for name in ("model", "plain"))
    assert loaded.layers[-1].name == "upright" and not model.weights
    for other in (loaded, plain):
        # One by one too: a batch of one must not be taken for another shape.
        np.testing.assert_allclose(other.predict(x, verbose=0), deskewed(x), atol=1e-5)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(other(x[:1])), deskewed(x[:1]), atol=1e-5)


def stack(*more):
    front = [keras.Input((8, 8, 1)), layers.Deskew2D()]
    model = lipdp.DP_Sequential([*front, *more])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def fit(model, strategy):
    x, y = noise(240, (8, 8, 1)), np.arange(240) % 2
    return model.fit(x, y, batch_size=60, epsilon=8.0, delta=1e-3, strategy=strategy, verbose=0)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "strategy",
    [strategies.DPSGD(clip_norm=1.0), strategies.AdaCliP(clip_norm=1.0), strategies.DPIS(clip_norm=1.0)],
    ids=lambda strategy: strategy.name,
)
def test_strategies_that_clip_take_it(strategy):
    model = stack(keras.layers.Flatten(), keras.layers.Dense(2))
    assert default_strategy(model) == "dpsgd"
    fit(model, strategy)
    assert 0.0 < model.privacy.epsilon() <= 8.0


@pytest.mark.backend_free
def test_clipless_training_needs_a_bound_behind_it():
    head = layers.Flatten(), layers.SpectralDense(2)
    in_front = keras.Sequential([keras.Input((8, 8, 1)), layers.BoundedInput(norm=2.0), layers.Deskew2D(), *head])
    for refused in (stack(*head), lipdp.DP_Model.from_keras(in_front)):
        refused.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
        with pytest.raises(ValueError, match="unbounded norm.*Put lipdp.layers.BoundedInput"):
            fit(refused, "clipless")
    model = stack(layers.BoundedInput(norm=2.0), layers.Flatten(), layers.SpectralDense(2))
    fit(model, "clipless")
    assert 0.0 < model.privacy.epsilon() <= 8.0
    trained = keras.Sequential([keras.Input((8, 8, 1)), layers.BoundedInput(), layers.SpectralConv2D(1, 3)])
    trained.add(layers.Deskew2D())
    with pytest.raises(ValueError, match="passes a layer without a Lipschitz constant"):
        bounds.propagate(trained, 1.0)


@pytest.mark.slow
@pytest.mark.backend_free
def test_certificates_are_refused_with_the_way_out():
    model = stack(layers.BoundedInput(norm=2.0), layers.Flatten(), layers.SpectralDense(2))
    x, y = noise(3, (8, 8, 1)), np.zeros(3, int)
    for ask in (
        lambda: certify.lipschitz(model),
        lambda: certify.radii(model, x),
        lambda: certify.certified_accuracy(model, x, y),
    ):
        with pytest.raises(ValueError, match="Deskew2D has no Lipschitz constant.*--strategy clipless"):
            ask()
    behind = keras.Sequential([keras.Input((8, 8, 1)), *model.layers[1:]])
    assert np.isfinite(certify.radii(behind, deskewed(x))).all()


@pytest.mark.backend_free
def test_bad_arguments_and_inputs_are_named():
    for shape in ((None, 8, 1), (8, 8)):
        with pytest.raises(ValueError, match="needs images of a known size"):
            keras.Sequential([keras.Input(shape), layers.Deskew2D()])
    with pytest.raises(TypeError, match="axis"):
        layers.Deskew2D(axis=1)
    keras.config.set_image_data_format("channels_first")
    try:
        with pytest.raises(ValueError, match="channels-last"):
            layers.Deskew2D()
    finally:
        keras.config.set_image_data_format("channels_last")
