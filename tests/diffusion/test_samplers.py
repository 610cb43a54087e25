"""Samplers on a Gaussian law, whose exact denoiser and whose flow are known in closed form."""

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import diffusion
from lipdp.diffusion import samplers
from tests.helpers.models import zero

MEAN = np.array([0.3, -0.5])
VARIANCES = np.array([0.09, 0.5])
TURN = np.array([[0.8, -0.6], [0.6, 0.8]])
COVARIANCE = TURN @ np.diag(VARIANCES) @ TURN.T
TOP = 80.0


def gaussian(x, sigma, labels):
    """E[clean | x] = mean + C (C + s^2 I)^-1 (x - mean); along the axes of C it is a product of numbers."""
    turn, mean = (ops.convert_to_tensor(a, "float32") for a in (TURN, MEAN))
    shrink = ops.convert_to_tensor(VARIANCES, "float32") / (ops.convert_to_tensor(VARIANCES, "float32") + sigma[0] ** 2)
    return mean + ops.matmul(ops.matmul(x - mean, turn) * shrink, ops.transpose(turn))


def start(num_samples, seed):
    """The noise that a draw begins with: it stays where it is when the denoiser calls everything clean."""
    return diffusion.sample(lambda x, sigma, labels: x, (2,), num_samples, batch_size=num_samples, seed=seed)


def flow(x):
    """Where the probability flow takes x from noise level TOP to 0, exactly."""
    return MEAN + ((x - MEAN) @ TURN * np.sqrt(VARIANCES / (VARIANCES + TOP**2))) @ TURN.T


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        diffusion.DDIM(200),
        diffusion.DDIM(600, eta=1.0),
        diffusion.DDIM(300, eta=0.5),
        diffusion.Churn(40),
        diffusion.Churn(80, s_churn=20.0, s_min=0.05, s_max=50.0),
    ],
    ids=["ddim", "stochastic ddim", "half stochastic", "heun", "churn"],
)
def test_mean_and_covariance_of_a_gaussian_law(sampler):
    n = 40000
    found = diffusion.sample(gaussian, (2,), n, sampler, batch_size=n, seed=1).astype(float)
    # Four standard errors of the mean, and 4 % for variances: 0.7 % standard error, 1.3 % of steps.
    np.testing.assert_array_less(np.abs(found.mean(0) - MEAN), 4 * np.sqrt(np.diag(COVARIANCE) / n) + 0.003)
    rotated = np.cov((found - MEAN) @ TURN, rowvar=False)
    np.testing.assert_allclose(np.diag(rotated), VARIANCES, rtol=0.04)
    assert abs(rotated[0, 1]) < 4 * np.sqrt(VARIANCES.prod() / n)


@pytest.mark.parametrize(("kind", "order"), [(diffusion.DDIM, 1), (diffusion.Churn, 2)])
def test_deterministic_samplers_converge_to_the_flow_at_their_order(kind, order):
    exact = flow(start(500, seed=3))
    errors = []
    for steps in (24, 48, 96):
        # The last step, to level 0, is of first order in the lowest level.
        found = diffusion.sample(gaussian, (2,), 500, kind(steps, sigma_min=1e-3), batch_size=500, seed=3)
        errors.append(np.abs(found - exact).mean())
    rates = np.log2(np.divide(errors[:-1], errors[1:]))
    assert np.all(rates > order - 0.25), errors
    assert errors[-1] < {1: 0.02, 2: 1e-3}[order]


def test_ancestral_steps_keep_the_law_of_a_point():
    # For data at 0 every level is a normal law of that level, whatever the number of steps.
    s = diffusion.DDIM(6, eta=1.0)
    level, rows = 80.0, s.coefficients()
    for row, t in zip(rows[:-1], s.levels()[1:], strict=True):
        level = np.sqrt((row[1] * level) ** 2 + row[2] ** 2)
        assert level == pytest.approx(t, rel=1e-9)


def test_the_schedule():
    levels = diffusion.DDIM(steps=18).levels()
    assert levels[0] == pytest.approx(80.0) and levels[-1] == pytest.approx(0.002) and np.all(np.diff(levels) < 0)
    assert levels[1] == pytest.approx(57.586, rel=1e-4) and levels[9] == pytest.approx(1.9233, rel=1e-3)
    np.testing.assert_allclose(np.diff(diffusion.Churn(5, rho=1.0).levels()), -(80 - 0.002) / 4)


def test_churn_raises_the_noise_only_between_its_bounds():
    sampler = diffusion.Churn(20, s_churn=4.0, s_min=0.1, s_max=10.0, s_noise=1.1)
    levels, (raised, _, noise) = sampler.levels(), sampler.coefficients().T
    inside = (levels >= 0.1) & (levels <= 10.0)
    np.testing.assert_allclose(raised / levels, np.where(inside, 1.2, 1.0))
    np.testing.assert_allclose(noise, 1.1 * np.sqrt(raised**2 - levels**2))
    limited = diffusion.Churn(20, s_churn=1e3)
    np.testing.assert_allclose(limited.coefficients()[:, 0], np.sqrt(2) * limited.levels())


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [diffusion.DDIM(5, eta=1.0), diffusion.Churn(5, s_churn=2.0)])
def test_seeds_batches_and_labels(sampler):
    def denoise(x, sigma, labels):
        return ops.cast(labels, "float32")[:, None] + 0.5 * x

    labels = np.array([0, 100, 200, 300, 400])
    draw = [diffusion.sample(denoise, (3,), 5, sampler, labels, batch_size=2, seed=s) for s in (0, 0, 1)]
    assert draw[0].shape == (5, 3) and draw[0].dtype == np.float32
    np.testing.assert_array_equal(draw[0], draw[1])
    assert np.all(draw[0] != draw[2])
    # Each label arrives at its own row, also in the padded last batch, and no two batches share noise.
    assert np.all(np.diff(draw[0].mean(1)) > 0)
    alone = [diffusion.sample(denoise, (3,), 2, sampler, 0 * labels[:2], batch_size=1, seed=0) for _ in range(2)]
    assert np.all(alone[0][0] != alone[0][1])


def small_network():
    x, c_noise, label = keras.Input((4,)), keras.Input(()), keras.Input((), dtype="int32")
    moved = keras.layers.Dense(4)(x)
    shift = keras.layers.Embedding(4, 4)(label)
    return keras.Model([x, c_noise, label], keras.layers.Add()([moved, shift, zero(c_noise)]))


def test_networks_are_sampled_with_their_present_weights():
    network = small_network()
    sampler = diffusion.DDIM(4)
    first = diffusion.generate(network, 6, sampler=sampler, num_classes=3, seed=0)
    assert first.shape == (6, 4)
    given = diffusion.generate(network, 6, sampler=sampler, num_classes=3, seed=0, labels=[0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(given, first)
    network.set_weights([w + 1.0 for w in network.get_weights()])
    assert np.all(diffusion.generate(network, 6, sampler=sampler, num_classes=3, seed=0) != first)


def test_guidance_changes_the_draw_and_no_guidance_does_not():
    network = small_network()
    draw = [diffusion.generate(network, 3, sampler="churn", num_classes=3, seed=0, guidance=g) for g in (0.0, 0.0, 2.0)]
    np.testing.assert_array_equal(draw[0], draw[1])
    assert np.abs(draw[0] - draw[2]).max() > 1e-4


@pytest.mark.parametrize("sampler", [diffusion.DDIM(7, eta=0.3), diffusion.Churn(9, s_churn=3.0, s_noise=1.003)])
def test_serialisation(sampler):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(sampler))
    assert type(again) is type(sampler) and again.get_config() == sampler.get_config()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: diffusion.DDIM(1), "`steps` must be an integer of at least 2"),
        (lambda: diffusion.DDIM(5, eta=1.5), r"`eta` must be a number in \[0, 1\]"),
        (lambda: diffusion.DDIM(5, sigma_min=0.0), "`sigma_min` must be a finite number above 0"),
        (lambda: diffusion.Churn(5, s_churn=-1), "`s_churn` must be"),
        (lambda: diffusion.Churn(5, s_min=3, s_max=2), "`s_min` must be between"),
        (lambda: diffusion.Churn(5, s_noise=0), "`s_noise` must be"),
        (lambda: diffusion.Churn(5, rho=0), "`rho` must be"),
        (lambda: samplers.get("euler"), "Unknown sampler. Received: 'euler'"),
        (lambda: diffusion.sample(gaussian, (2,), 0), "`num_samples` must be"),
        (lambda: diffusion.sample(gaussian, (2,), 3, labels=[1]), "one class id per example"),
        (lambda: diffusion.sample(gaussian, (2,), 3, seed=-1), "`seed` must be"),
        (lambda: diffusion.sample(gaussian, (2,), 3, labels=5), r"shape \(\).*np.full\(3, 5\)"),
        (lambda: diffusion.generate(small_network(), 3), "The network takes labels"),
        (lambda: diffusion.generate(small_network(), 2, num_classes=3, labels=[1, 3]), "class ids from 0 to 2.*: 3"),
        (lambda: diffusion.generate(small_network(), 2, num_classes=3, labels=[-1, 1]), "from 0 to 2. Received: -1"),
        (lambda: diffusion.generate(small_network(), 2, num_classes=3, labels=1), r"np.full\(2, 1\)"),
        (lambda: diffusion.generate(small_network(), 2, num_classes=3, guidance=np.nan), "`guidance` must be a finite"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
