"""The U-Net: its sizes, its conditioning, and that examples of a batch do not meet."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from lipdp import diffusion
from lipdp.diffusion.unet import PRESETS, SinusoidalEmbedding, _from_patches, _to_patches

SMALL = {"channels": 8, "multipliers": (1, 2), "blocks": 1}


def trained(network, seed=0):
    """The network with random weights everywhere, also where it begins at zero."""
    rng = np.random.default_rng(seed)
    network.set_weights([w + 0.2 * rng.normal(size=w.shape) for w in network.get_weights()])
    return network


def batch(shape, size=3, num_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, *shape)).astype("float32")
    return [x, rng.normal(size=size).astype("float32"), rng.integers(0, num_classes, size).astype("int32")]


def call(network, inputs):
    return network.predict_on_batch(inputs)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("name", "millions", "exactly"),
    [("dpdm-28", 1.75, 1753345), ("dpdm-32", 1.8, 1754499), ("cpu-28", 0.063, 60884), ("cpu-14", 0.063, 60884)],
)
def test_presets_have_the_sizes_they_name(name, millions, exactly):
    network = diffusion.preset(name)
    assert network.count_params() == exactly == pytest.approx(1e6 * millions, rel=0.05)
    assert network.output_shape[1:] == tuple(network.inputs[0].shape[1:]) == PRESETS[name]["image_shape"]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((8, 8, 1), {"attention": (4, 8)}),
        ((7, 10, 2), {"patch_size": 2, "slim": True, "attention": (2,)}),
        ((5, 6, 1), {"num_classes": None, "multipliers": (1,)}),
    ],
)
def test_examples_of_a_batch_do_not_meet(shape, options):
    network = trained(diffusion.unet(shape, **{"num_classes": 4, **SMALL, **options}))
    inputs = batch(shape)[: len(network.inputs)]
    whole = call(network, inputs)
    assert whole.shape == inputs[0].shape and np.std(whole) > 0.01
    # Two rows become other examples: the first notices nothing.
    others = [np.concatenate([v[:1], w[1:]]) for v, w in zip(inputs, batch(shape, seed=1), strict=False)]
    changed = call(network, others)
    np.testing.assert_allclose(changed[0], whole[0], rtol=1e-4, atol=1e-5)
    assert np.abs(changed[1:] - whole[1:]).max() > 0.01


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_output_begins_at_zero():
    inputs = batch((8, 8, 1))
    assert np.all(call(diffusion.unet((8, 8, 1), num_classes=4, **SMALL), inputs) == 0)


@pytest.mark.backend_free
def test_noise_level_and_label_matter():
    network = trained(diffusion.unet((8, 8, 1), num_classes=4, slim=True, **SMALL))
    inputs = batch((8, 8, 1))
    before = call(network, inputs)
    for which in (1, 2):
        changed = [v + np.ones_like(v) if i == which else v for i, v in enumerate(inputs)]
        assert np.abs(call(network, changed) - before).max() > 1e-3


@pytest.mark.slow
@pytest.mark.backend_free
def test_every_layer_is_one_of_keras_own():
    network = diffusion.unet((8, 8, 1), num_classes=4, attention=(4,), **SMALL)
    own = [layer for layer in network.layers if not type(layer).__module__.startswith("keras.")]
    assert [type(layer) for layer in own] == [SinusoidalEmbedding] and not own[0].weights
    with_weights = {type(layer) for layer in network.layers if layer.weights}
    assert with_weights == {layers.Dense, layers.Conv2D, layers.GroupNormalization, layers.Embedding}
    kinds = {type(layer) for layer in network.layers}
    assert not kinds & {layers.BatchNormalization, layers.Dropout}
    assert layers.Dropout in {type(a) for a in diffusion.unet((8, 8, 1), dropout=0.1, **SMALL).layers}


@pytest.mark.slow
@pytest.mark.backend_free
def test_saving(tmp_path):
    network = trained(diffusion.unet((6, 6, 1), num_classes=4, patch_size=2, attention=(2,), slim=True, **SMALL))
    network.save(tmp_path / "network.keras")
    inputs = batch((6, 6, 1))
    again = keras.saving.load_model(tmp_path / "network.keras")
    np.testing.assert_array_equal(call(again, inputs), call(network, inputs))


def test_patches_come_back():
    x = keras.Input((4, 6, 3))
    there = keras.Model(x, _to_patches(x, 2))
    back = keras.Model(x, _from_patches(there(x), 2))
    images = np.arange(2 * 72, dtype="float32").reshape(2, 4, 6, 3)
    assert there.output_shape == (None, 2, 3, 12)
    np.testing.assert_array_equal(np.sort(there(images)[0, 0, 0]), np.sort(images[0, :2, :2].ravel()))
    np.testing.assert_array_equal(back(images), images)


def test_sinusoids():
    found = ops.convert_to_numpy(SinusoidalEmbedding(4)(np.array([0.0, 2.0], "float32")))
    np.testing.assert_allclose(found, [[0, 0, 1, 1], [np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4)]], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_shape": (8, 8)}, r"must be \(height, width, channels\)"),
        ({"num_classes": 0}, "`num_classes` must be a positive integer or None"),
        ({"channels": 6}, "`channels` must be a multiple of 4"),
        ({"multipliers": ()}, "`multipliers` must hold"),
        ({"patch_size": 0}, "`patch_size` must be a positive integer"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        diffusion.unet(**{"image_shape": (8, 8, 1), **options})
    with pytest.raises(ValueError, match="`name` must be one of .* Received: name='huge'. Call `unet`"):
        diffusion.preset("huge")
