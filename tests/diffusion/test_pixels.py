"""Images are in [-1, 1]: others are taken with a warning."""

import warnings

import numpy as np
import pytest

from lipdp import diffusion
from lipdp.diffusion import pixels

IMAGES = np.random.default_rng(0).uniform(-1, 1, (64, 8, 8, 1)).astype("float32")


def model():
    network = diffusion.unet((8, 8, 1), channels=8, multipliers=(1,), blocks=1, slim=True)
    found = diffusion.DiffusionModel(network)
    found.compile("adam")
    return found


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras and NumPy
def test_fit_warns_of_images_in_0_1_and_names_the_line_of_the_user():
    with pytest.warns(UserWarning, match="no entry below 0.*2.0 \\* x - 1.0") as found:
        model().fit(
            (IMAGES + 1) / 2, epochs=1, batch_size=32, noise_multiplier=1.0, delta=1e-3, steps_per_epoch=1, verbose=0
        )
    assert [w.filename for w in found if "Images of a diffusion" in str(w.message)] == [__file__]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras and NumPy
def test_validation_and_moments_warn_as_well():
    arguments = {"epochs": 1, "batch_size": 32, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}
    with pytest.warns(UserWarning, match="no entry below 0"):
        model().fit(IMAGES, validation_data=((IMAGES + 1) / 2,), steps_per_epoch=1, **arguments)
    with pytest.warns(UserWarning, match="entries beyond.*255"):
        model().learn_moments(127.5 * (IMAGES + 1), frequencies=2, num_images=32, batch_size=16, epochs=1, verbose=0)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (IMAGES, (8, 8, 1)),
        (1.0005 * np.sign(IMAGES), (8, 8, 1)),  # rounding
        (40.0 * IMAGES[:, 0, :2, 0], (2,)),  # no images
        (IMAGES[:0], (8, 8, 1)),
        ([1.0], (8, 8, 1)),  # a source
        (np.zeros((3, 6, 6, 1)), (8, 8, 1)),  # refused later
    ],
)
def test_others_are_taken_in_silence(images, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels.warn_of_range(images, shape)


LIGHT = {"updates": 1, "batch_size": 16, "microbatch_size": 16}


def of_recipe(images, **arguments):
    found = diffusion.recipe((8, 8, 1), 2, len(IMAGES), **LIGHT)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found.fit(images, np.arange(len(images)) % 2, noise_multiplier=2.0, delta=1e-3, verbose=0, **arguments)
    return [(str(w.message), w.filename) for w in said if "diffusion" in str(w.message)]


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_recipe_warns_of_images_as_its_caller_passes_them():
    """Before, images in [-1, 1] were asked for in the way in which they had been made."""
    ((words, file),) = of_recipe(IMAGES)
    assert r"takes images in [0, 1]" in words and "Pass (x + 1.0) / 2.0 of images in [-1, 1]" in words
    assert file == __file__
    ((words, _),) = of_recipe((127.5 * (IMAGES + 1)).astype("uint8"))
    assert "Pass x / 255.0 of bytes" in words


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_recipe_scales_images_to_validate_on():
    unit, labels = (IMAGES + 1) / 2, np.arange(len(IMAGES)) % 2
    assert of_recipe(unit, validation_data=(unit, labels)) == []
    ((words, _),) = of_recipe(unit, validation_data=(IMAGES, labels))
    assert "(x + 1.0) / 2.0" in words
