"""The nine modes: drawn as they should be, learned, and sampled with the exact denoiser."""

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import diffusion
from lipdp.diffusion import toy


def exact(x, sigma, labels):
    """The posterior mean of the mixture."""
    variance, modes = toy.MODE_STD**2, ops.convert_to_tensor(toy.MODES, "float32")
    total = variance + ops.expand_dims(sigma, 1) ** 2
    weights = ops.softmax(-ops.sum((x[:, None] - modes) ** 2, axis=2) / (2 * total), axis=1)
    means = (modes * ops.expand_dims(sigma, (1, 2)) ** 2 + variance * x[:, None]) / total[:, None]
    return ops.sum(weights[:, :, None] * means, axis=1)


def test_the_mixture_is_nine_disjoint_normal_laws():
    points = toy.nine_modes(30000)
    counts = toy.mode_counts(points)
    assert counts.sum() / 30000 == pytest.approx(1 - np.exp(-8.0), abs=2e-4)
    np.testing.assert_allclose(counts, 30000 / 9, rtol=0.06)
    distances = np.linalg.norm(toy.MODES[:, None] - toy.MODES, axis=2) + 9 * np.eye(9)
    assert distances.min() == pytest.approx(0.5) and distances.min() > 8 * toy.MODE_STD
    assert np.abs(points).max() <= 1.0


@pytest.mark.parametrize(
    ("sampler", "fraction"), [(diffusion.DDIM(50), 0.99), (diffusion.DDIM(100, eta=1.0), 0.999), ("churn", 0.999)]
)
def test_samplers_with_the_exact_denoiser(sampler, fraction):
    counts = toy.mode_counts(diffusion.sample(exact, (2,), 4000, sampler, batch_size=4000, seed=0))
    assert counts.sum() / 4000 >= fraction
    np.testing.assert_allclose(counts, 4000 / 9, rtol=0.25)


def train(steps, width, batch_size):
    keras.utils.set_random_seed(0)
    denoiser = diffusion.EDM(p_mean=-1.8)
    network = toy.point_network(width=width)
    batches = diffusion.NoisyBatches(toy.nine_modes(30000), denoiser=denoiser, batch_size=batch_size, seed=0)
    rate = keras.optimizers.schedules.CosineDecay(4e-3, steps)
    network.compile(keras.optimizers.Adam(rate), "mse")
    network.fit(batches, epochs=-(-steps // len(batches)), verbose=0)
    return network, denoiser


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_short_training_finds_all_modes():
    network, denoiser = train(steps=500, width=64, batch_size=512)
    points = diffusion.generate(network, 2000, denoiser, diffusion.DDIM(50, eta=1.0), batch_size=2000, seed=0)
    counts = toy.mode_counts(points)
    assert counts.sum() / 2000 > 0.9 and counts.min() > 2000 / 9 / 2


@pytest.mark.slow
def test_at_least_99_percent_of_the_samples_lie_within_4_deviations_of_a_mode():
    network, denoiser = train(steps=3000, width=96, batch_size=1024)
    for sampler in (diffusion.DDIM(100, eta=1.0), diffusion.Churn(80, s_churn=33.0, s_min=0.02, s_max=2.0)):
        counts = toy.mode_counts(diffusion.generate(network, 4000, denoiser, sampler, batch_size=4000, seed=0))
        assert counts.sum() / 4000 >= 0.99 and counts.min() > 4000 / 9 / 2
