"""Denoisers against the closed forms of Dockhorn et al. 2023, table 7."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import diffusion
from lipdp.diffusion import denoisers

pytestmark = pytest.mark.backend_free

ALL = list(denoisers.DENOISERS)
SIGMAS = np.array([0.003, 0.02, 0.3, 1.0, 7.0, 60.0])
DATA = 1.0 / 3.0  # sigma_data squared
BETA_D, BETA_MIN = 19.9, 0.1


def vp_time(s):
    return (math.sqrt(BETA_MIN**2 + 2 * BETA_D * math.log(1 + s * s)) - BETA_MIN) / BETA_D


# c_skip, c_out, c_in, c_noise, weight as printed in the table.
TABLE = {
    "vp": lambda s: (1, -s, 1 / math.sqrt(s * s + 1), 999 * vp_time(s), 1 / s**2),
    "ve": lambda s: (1, s, 1, math.log(s / 2), 1 / s**2),
    "v": lambda s: (
        1 / (s * s + 1),
        s / math.sqrt(1 + s * s),
        1 / math.sqrt(s * s + 1),
        2 / math.pi * math.acos(1 / math.sqrt(s * s + 1)),
        (s * s + 1) / s**2,
    ),
    "edm": lambda s: (
        DATA / (s * s + DATA),
        s * math.sqrt(DATA) / math.sqrt(s * s + DATA),
        1 / math.sqrt(s * s + DATA),
        math.log(s) / 4,
        (s * s + DATA) / (s * s * DATA),
    ),
}


def numpy(x):
    return ops.convert_to_numpy(x)


@pytest.mark.parametrize("name", ALL)
def test_scalings_and_weight_are_those_of_the_table(name):
    denoiser = denoisers.get(name)
    sigma = ops.convert_to_tensor(SIGMAS, "float32")
    found = np.stack([numpy(v) for v in (*denoiser.scalings(sigma), denoiser.weight(sigma))], axis=1)
    np.testing.assert_allclose(found, [TABLE[name](s) for s in SIGMAS], rtol=2e-5)


def test_noise_levels_at_golden_quantiles():
    u = ops.convert_to_tensor([0.0, 0.5, 0.8413447, 1.0], "float32")
    edm, v, vp, ve = (numpy(denoisers.get(name).sigma(u)) for name in ALL)
    np.testing.assert_allclose(edm[1:3], np.exp([-1.2, 0.0]), rtol=1e-5)
    # Bounds of the times: 2/pi arccos(1/sqrt(1 + e^-13)) and 2/pi arccos(1/sqrt(1 + e^9)).
    np.testing.assert_allclose(v[[0, 3]], np.exp([-6.5, 4.5]), rtol=1e-4)
    config = diffusion.VPrediction()
    assert config.eps_min == pytest.approx(2 / math.pi * math.acos(1 / math.sqrt(1 + math.exp(-13))), rel=1e-6)
    assert config.eps_max == pytest.approx(2 / math.pi * math.acos(1 / math.sqrt(1 + math.exp(9))), rel=1e-6)
    # Times 1e-5, 1/2 and 1: exponents 9.95 t^2 + t / 10.
    expected = [math.sqrt(math.expm1(e)) for e in (1.000995e-6, 2.5375, 10.05)]
    np.testing.assert_allclose(vp[[0, 1, 3]], expected, rtol=1e-4)
    np.testing.assert_allclose(ve[[0, 1, 3]], [0.002, 0.4, 80.0], rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_the_extreme_uniforms_give_finite_levels(name):
    for u in (0.0, 1.0 - 2.0**-24):
        sigma = denoisers.get(name).sigma(ops.convert_to_tensor([u], "float32"))
        assert 0 < float(sigma[0]) < 1e4
        assert all(np.isfinite(numpy(v)).all() for v in denoisers.get(name).scalings(sigma))


@pytest.mark.parametrize("name", ALL)
def test_the_density_is_that_of_the_levels(name):
    denoiser = denoisers.get(name)
    u = np.linspace(0.02, 0.98, 9)
    log_sigma = np.log(numpy(denoiser.sigma(ops.convert_to_tensor(u, "float32"))).astype(float))
    for i in range(len(u) - 1):
        grid = np.linspace(log_sigma[i], log_sigma[i + 1], 2001)
        assert np.trapezoid(denoiser.density(np.exp(grid)), grid) == pytest.approx(u[i + 1] - u[i], abs=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_the_regression_is_the_weighted_denoising_loss(name):
    denoiser = denoisers.get(name)
    rng = np.random.default_rng(0)
    x, noise = rng.uniform(-1, 1, (6, 3, 2)), rng.normal(size=(6, 3, 2))
    network_output = rng.normal(size=x.shape)
    u = np.linspace(0.05, 0.95, 6).astype("float32")
    inputs, c_noise, target = denoiser.training_pair(*(ops.convert_to_tensor(a, "float32") for a in (x, noise, u)))
    sigma = numpy(denoiser.sigma(ops.convert_to_tensor(u))).astype(float)
    c_skip, c_out, c_in, time, weight = (
        np.array(v)[:, None, None] for v in zip(*(TABLE[name](s) for s in sigma), strict=True)
    )
    noisy = x + sigma[:, None, None] * noise
    np.testing.assert_allclose(numpy(inputs), c_in * noisy, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(numpy(c_noise), time[:, 0, 0], rtol=2e-5)
    by_table = weight * (c_skip * noisy + c_out * network_output - x) ** 2
    np.testing.assert_allclose((network_output - numpy(target)) ** 2, by_table, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_denoising_inverts_the_target(name):
    denoiser = denoisers.get(name)
    rng = np.random.default_rng(1)
    x, noise = (ops.convert_to_tensor(rng.normal(size=(6, 4)), "float32") for _ in range(2))
    sigma = ops.convert_to_tensor(SIGMAS[:6], "float32")
    answer = denoiser.target(x, noise, sigma[:, None])
    found = denoiser.denoise(lambda inputs: answer, x + sigma[:, None] * noise, sigma)
    np.testing.assert_allclose(numpy(found), numpy(x), atol=2e-5)


def test_guidance_moves_away_from_the_unlabelled_prediction():
    def network(inputs):
        return ops.cast(inputs[2], "float32")[:, None] * ops.ones_like(inputs[0])

    x, sigma, labels = np.zeros((3, 2), "float32"), np.ones(3, "float32"), np.array([0, 1, 2], "int32")
    found = diffusion.VE().denoise(network, x, sigma, labels, guidance=0.5, no_label=10)
    np.testing.assert_allclose(numpy(found)[:, 0], 1.5 * labels - 0.5 * 10, rtol=1e-6)
    with pytest.raises(ValueError, match="no_label"):
        diffusion.VE().denoise(network, x, sigma, labels, guidance=0.5)


@pytest.mark.parametrize("name", ALL)
def test_serialisation(name):
    denoiser = denoisers.get(name)
    config = denoiser.get_config()
    changed = type(denoiser)(**{key: 0.9 * value if value < 100 else value for key, value in config.items()})
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(changed))
    assert type(again) is type(denoiser) and again.get_config() == changed.get_config() != denoiser.get_config()


def test_importance_of_the_reference_is_its_density():
    sigma = np.geomspace(0.01, 50, 7)
    np.testing.assert_allclose(diffusion.noise_level_importance(diffusion.EDM(), sigma), diffusion.EDM().density(sigma))
    flat = diffusion.noise_level_importance(diffusion.VE(), sigma) * np.log(80 / 0.002)
    np.testing.assert_allclose(flat, DATA / (sigma**2 + DATA), rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: denoisers.get("ddpm"), "Unknown denoiser. Received: 'ddpm'"),
        (lambda: diffusion.EDM(sigma_data=0), "`sigma_data` must be a finite number above 0. Received: sigma_data=0"),
        (lambda: diffusion.VE(sigma_min=2, sigma_max=1), "`sigma_min` must be below"),
        (lambda: diffusion.VPrediction(log_snr_min=3, log_snr_max=1), "`log_snr_min` must be below"),
        (lambda: diffusion.VP(epsilon=1.0), r"`epsilon` must be a number in \(0, 1\)"),
        (lambda: diffusion.VP(num_steps=1), "`num_steps` must be an integer of at least 2"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
