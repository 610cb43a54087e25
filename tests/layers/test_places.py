"""Fixed layers in front of a network: the bits of an image do not follow from its place in the batch."""

import keras
import numpy as np
import pytest

from lipdp import layers
from lipdp.training.outputs import Outputs

IMAGES = {"small": (28, 28, 1), "color": (32, 32, 3)}
LAYERS = {
    "deskew": layers.Deskew2D,
    "few_frequencies": lambda: layers.LowFrequencies2D(5),
    "frequencies": lambda: layers.LowFrequencies2D((12, 14)),
    "scattering": layers.Scattering2D,
    "mirrored": lambda: layers.Scattering2D(mirrored=True),
    "patches": layers.PatchFeatures2D,
    "centered": layers.LayerCentering,
    "bounded": lambda: layers.BoundedInput(norm=3.0),
    "encoder": layers.EncoderFeatures2D,
}


LONG = [
    ("encoder", "color"),
    ("patches", "color"),
    ("patches", "small"),
    ("mirrored", "color"),
    ("scattering", "color"),
    ("mirrored", "small"),
]
CASES = [
    pytest.param(
        make, shape, id=f"{size}-{name}", marks=[pytest.mark.slow if (name, size) in LONG else pytest.mark.backend_free]
    )
    for size, shape in IMAGES.items()
    for name, make in LAYERS.items()
]


# On JAX in the long tests alone: by default programs are compiled there as no user's are.
@pytest.mark.parametrize(("make", "shape"), CASES)
def test_an_image_has_the_same_bits_at_each_place(make, shape):
    """Rows that one row more moves to other places would else cross a kink or a threshold together."""
    if make is layers.EncoderFeatures2D and shape[-1] != 3:
        pytest.skip("images in color only")
    image = np.abs(np.random.default_rng(0).normal(size=(1, *shape))).astype("float32")
    model = keras.Sequential([keras.Input(shape), make(), keras.layers.Flatten()])
    for rows in (13, 80, 256):
        assert len(np.unique(Outputs(model, rows)(np.repeat(image, rows, axis=0)), axis=0)) == 1
