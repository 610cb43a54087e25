"""Clipless training whose clip at the logits follows a private quantile."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import backend, layers, losses, strategies
from tests.helpers import streams
from tests.helpers.clipping import resumes

FIT = {"batch_size": 20, "delta": 1e-3, "verbose": 0}


def linear(clip=0.4, features=4, outputs=3, extra=()):
    stack = [layers.BoundedInput((features,), norm=2.0), *extra, layers.SpectralDense(outputs, projected=not extra)]
    model = lipdp.DP_Sequential(stack)
    model.compile(keras.optimizers.SGD(1.0), loss=losses.CategoricalCrossentropy(temperature=3.0, clip=clip))
    return model


def data(number=100, features=4, outputs=3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(number, features)).astype("float32")
    return x, np.eye(outputs, dtype="float32")[rng.integers(0, outputs, number)]


def sums(model, strategy, x, y, weight, factor=1.0):
    """What one microbatch contributes, without noise, times the size of the batch."""
    calibration = strategy.calibrate(model, model.loss, len(x))
    tensors = [keras.ops.convert_to_tensor(v) for v in (x, y, weight)]
    state = [keras.ops.convert_to_tensor(np.float32(factor))]
    (gradients, counts, _), _, _ = strategy.microbatch(
        calibration, backend.Forward(model), state, 0, np.array([1, 2], "uint32"), tensors, len(x)
    )
    return [len(x) * keras.ops.convert_to_numpy(g) for g in gradients], float(counts[0])


@pytest.mark.backend_free
@pytest.mark.parametrize("factor", [1.0, 0.05, 1e-4])
def test_one_example_moves_the_gradient_by_at_most_the_scaled_bound(factor):
    model, strategy = linear(), strategies.Clipless(quantile=0.5)
    x, y = data(20)
    calibration = strategy.calibrate(model, model.loss, 20)
    largest = 0.0
    for i in range(20):
        x[i] *= 100.0  # on the sphere of BoundedInput, where the bound is met
        weight = np.ones(20, "float32")
        with_it = sums(model, strategy, x, y, weight, factor)[0]
        weight[i] = 0.0
        without = sums(model, strategy, x, y, weight, factor)[0]
        largest = max(largest, np.linalg.norm(with_it[0] - without[0]))
    bound = 20 * calibration.sensitivity * factor
    assert 0.9 * bound <= largest <= bound * (1.0 + 1e-4)


@pytest.mark.slow
def test_the_count_is_of_gradients_below_the_threshold_and_ignores_padding():
    model, strategy = linear(clip=0.4), strategies.Clipless(quantile=0.5)
    x, y = data(20)
    weight = np.ones(20, "float32")
    weight[15:] = 0.0
    z = model(x)
    norms = np.linalg.norm(keras.ops.convert_to_numpy(model.loss.gradient(y, z)), axis=1)
    factor = float(np.median(norms)) / 0.4
    assert sums(model, strategy, x, y, weight, factor)[1] == np.sum((norms[:15] <= np.float32(0.4 * factor)) - 0.5)


@pytest.mark.slow
def test_noise_follows_the_threshold_and_the_charge_does_not_change():
    """Targets that are met: all gradients are 0, so the threshold shrinks and every update is noise."""
    inputs, outputs = 4, 3000
    model = lipdp.DP_Sequential(
        [layers.BoundedInput((inputs,), norm=1.0), layers.SpectralDense(outputs, projected=False)]
    )
    model.compile(keras.optimizers.SGD(1.0), loss=losses.MeanAbsoluteError(clip=0.5))
    x, y = np.zeros((100, inputs), "float32"), np.zeros((100, outputs), "float32")
    strategy = strategies.Clipless(quantile=0.5, quantile_noise=2.0, quantile_rate=1.0)
    sensitivity = strategy.calibrate(model, model.loss, 20).sensitivity
    inner, factor = (1.3**-2 - 4.0**-2) ** -0.5, 1.0
    for _ in range(3):
        before = model.get_weights()[0]
        model.fit(x, y, steps_per_epoch=1, noise_multiplier=1.3, strategy=strategy, **FIT)
        step = model.get_weights()[0] - before
        np.testing.assert_allclose(step.std(), inner * sensitivity * factor, rtol=0.03)
        factor = float(model.optimizer.strategy_state[0].numpy())
    assert factor < 0.6
    (release,) = model.run.ledger.entries
    assert release.noise_multiplier == 1.3 and "quantile" in release.noise_allocation


@pytest.mark.slow
def test_chunks_give_the_same_run():
    x, y = data()
    found = []
    for chunk in (None, 8):
        model = linear()
        keras.utils.set_random_seed(0)
        model.set_weights([np.full_like(w, 0.1) for w in model.get_weights()])
        strategy = strategies.Clipless(quantile=0.3)
        model.fit(x, y, noise_multiplier=1.0, strategy=strategy, seed=1, microbatch_size=chunk, **FIT)
        found.append(np.concatenate([w.ravel() for w in model.get_weights()]))
        assert np.isfinite(found[-1]).all()
    np.testing.assert_allclose(*found, atol=1e-5)


@pytest.mark.slow
def test_the_threshold_is_part_of_the_file(tmp_path):
    x, y = data()
    model = linear()
    model.fit(x, y, noise_multiplier=1.0, strategy=strategies.Clipless(quantile=0.1), seed=1, **FIT)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    (a,), (b,) = model.optimizer.strategy_state, loaded.optimizer.strategy_state
    assert float(a.numpy()) == float(b.numpy()) != 1.0


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX computes in float32 in any case.")
@pytest.mark.parametrize(
    "strategy",
    [strategies.Clipless(), strategies.Clipless(quantile=0.3), strategies.DPSGD(0.3)],
    ids=("clipless", "quantile", "dpsgd"),
)
def test_a_loss_in_float64_trains_as_one_in_float32(strategy):
    x, y = data()
    found = []
    for dtype in ("float32", "float64"):
        model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=2.0), layers.SpectralDense(3)])
        model.set_weights([np.full_like(w, 0.1) for w in model.get_weights()])
        loss = losses.CategoricalCrossentropy(temperature=3.0, clip=0.4, dtype=dtype)
        model.compile(keras.optimizers.SGD(1.0), loss=loss)
        with streams.of_the_seed_alone():
            model.fit(x, y, noise_multiplier=1.0, strategy=strategy, seed=1, steps_per_epoch=2, **FIT)
        found.append([*model.get_weights(), model.evaluate(x, y, verbose=0)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_run_resumes_where_the_threshold_was(tmp_path):
    def make():
        keras.utils.set_random_seed(0)
        return linear()

    strategy = strategies.Clipless(quantile=0.2)
    resumes(make, *data(), tmp_path / "m.keras", noise_multiplier=1.0, strategy=strategy)


def test_bounds_out_of_proportion_are_refused():
    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((4,), norm=1.0),
            layers.SpectralDense(4),
            layers.ClipGradient(0.1),
            layers.SpectralDense(3),
        ]
    )
    model.compile("sgd", loss=losses.CategoricalCrossentropy(clip=0.4))
    x, y = data()
    with pytest.raises(ValueError, match="ClipGradient"):
        model.fit(x, y, noise_multiplier=1.0, strategy=strategies.Clipless(quantile=0.5), **FIT)
    assert model.run.ledger.updates == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"quantile": 1.5}, "quantile"),
        ({"quantile_noise": 1.0}, "belongs to a `quantile`"),
        ({"quantile": 0.5, "quantile_rate": -1.0}, "quantile_rate"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        strategies.Clipless(**arguments)
