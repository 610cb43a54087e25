"""Recipes: public settings, images as the network takes them, what is refused."""

import numpy as np
import pytest

from lipdp import diffusion


def test_defaults_follow_from_shapes_and_numbers():
    found = diffusion.recipe((28, 28, 1), 10, 60000)
    assert (found.network, found.image_shape, found.batch_size, found.updates) == ("cpu-28", (28, 28, 1), 2048, 300)
    much = diffusion.recipe((28, 28, 1), 10, 60000, epsilon=10.0)
    assert much.moments_noise < found.moments_noise and much.updates > found.updates
    assert diffusion.recipe((28, 28, 1), 10, 60000, updates=7).updates == 7
    assert diffusion.recipe((28, 28, 1), 10, 60000, "cpu-14").updates == 3000
    assert diffusion.recipe((28, 28, 1), 10, 60000, "dpdm-28").updates == 4395
    assert diffusion.recipe((28, 28, 1), 10, 60000, epochs=3).updates == 3 * 30
    small = diffusion.recipe((8, 8, 1), 10, 1000, learning_rate=None, clip_norm=0.5)
    assert (small.network, small.batch_size, small.updates, small.clip_norm) == ("small", 250, 400, 0.5)
    paper = diffusion.recipe((28, 28, 1), 10, 60000, "dpdm-28", batch_size=512)
    assert (paper.multiplicity, paper.image_shape, paper.batch_size) == (32, (28, 28, 1), 512)


def test_images_are_scaled_and_halved_one_by_one():
    recipe = diffusion.recipe((28, 28, 1), 10, 60000, "cpu-14")
    x = np.random.default_rng(0).random((3, 28, 28, 1), dtype="float32")
    found = recipe.images(x)
    assert found.shape == (3, 14, 14, 1) and found.dtype == np.float32
    np.testing.assert_allclose(found[1, 2, 3], 2 * x[1, 4:6, 6:8].mean((0, 1)) - 1, rtol=1e-5)
    same = diffusion.recipe((28, 28, 1), 10, 60000, "cpu-28")
    np.testing.assert_allclose(same.images(x), 2 * x - 1, rtol=1e-6)
    with pytest.raises(ValueError, match="do not fit the network"):
        recipe.images(x[:, :20])


@pytest.mark.backend_free
def test_the_model_is_compiled_and_of_the_images_shape():
    model = diffusion.recipe((4, 6, 3), 2, 100, updates=1).build()
    assert model.compiled and model.network.output_shape == (None, 4, 6, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: diffusion.recipe((4,), 2, 100), "draw images"),
        (lambda: diffusion.recipe((4, 4, 1), 2, 100, "big"), "`network` must be one of"),
        (lambda: diffusion.make_sampler("best"), "`name` must be one of"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
