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


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Keras and NumPy
def test_fit_warns_of_images_in_0_1_and_names_the_line_of_the_user():
    with pytest.warns(UserWarning, match="no entry below 0.*2.0 \\* x - 1.0") as found:
        model().fit(
            (IMAGES + 1) / 2, epochs=1, batch_size=32, noise_multiplier=1.0, delta=1e-3, steps_per_epoch=1, verbose=0
        )
    assert [w.filename for w in found if "Images of a diffusion" in str(w.message)] == [__file__]


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
