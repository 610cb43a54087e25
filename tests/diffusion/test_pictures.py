"""Pictures: the right neighbours, and files that show the right pixels."""

import numpy as np
import pytest
from matplotlib.image import imread

from lipdp import diffusion

pytestmark = pytest.mark.backend_free


def test_nearest_neighbors_against_all_distances():
    rng = np.random.default_rng(0)
    synthetic, real = rng.normal(size=(11, 3, 2)), rng.normal(size=(40, 3, 2))
    everything = np.linalg.norm(synthetic.reshape(11, 1, 6) - real.reshape(1, 40, 6), axis=2)
    indices, distances = diffusion.nearest_neighbors(synthetic, real, k=4, batch_size=4)
    np.testing.assert_array_equal(indices, np.argsort(everything, axis=1)[:, :4])
    np.testing.assert_allclose(distances, np.sort(everything, axis=1)[:, :4])


def test_a_copy_is_found_at_distance_zero():
    real = 1e4 + np.random.default_rng(0).normal(size=(50, 8))
    indices, distances = diffusion.nearest_neighbors(real[[7]], real, k=1)
    assert indices[0, 0] == 7 and distances[0, 0] == 0.0


def test_neighbours_in_the_space_of_features():
    synthetic, real = np.array([[0.0, 9.0]]), np.array([[5.0, 9.0], [0.1, 0.0]])
    assert diffusion.nearest_neighbors(synthetic, real, 1)[0][0, 0] == 0
    assert diffusion.nearest_neighbors(synthetic, real, 1, features=lambda x: x[:, :1])[0][0, 0] == 1


def test_grid(tmp_path):
    images = np.full((5, 4, 4, 1), -1.0)
    images[1] = 1.0
    images[2] = 30.0  # out of range: white
    path = diffusion.image_grid(images, tmp_path / "grid.png", columns=3)
    pixels = imread(path)[..., 0]
    height, width = pixels.shape
    centres = pixels[height // 4, [width // 6, width // 2, 5 * width // 6]]
    np.testing.assert_array_equal(centres, [0.0, 1.0, 1.0])
    assert pixels[3 * height // 4, 5 * width // 6] == 1.0, "there is no sixth image"


def test_panel(tmp_path):
    real = np.random.default_rng(0).uniform(-1, 1, (20, 5, 5, 3))
    path = diffusion.neighbor_panel(real[:2], real, tmp_path / "panel.png", k=3)
    height, width = imread(path).shape[:2]
    assert width == 4 * 90 and height == 2 * 90 + 45


@pytest.mark.parametrize("shape", [(3, 4, 4), (3, 4, 4, 2), (0, 4, 4, 1)])
def test_bad_images(tmp_path, shape):
    with pytest.raises(ValueError, match="Images must be"):
        diffusion.image_grid(np.zeros(shape), tmp_path / "grid.png")
    with pytest.raises(ValueError, match="`k` must be at most"):
        diffusion.nearest_neighbors(np.zeros((2, 3)), np.zeros((2, 3)), k=3)
