"""AdaCliP: sensitivity in the transformed space, the noise that is applied, and its estimates."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import strategies
from lipdp.strategies.clipping import MARGIN
from tests.helpers.clipping import BATCH, averaged, flat, logistic_gradients, overflowing, plain, rows, silent, steps

FIT = {"batch_size": 20, "delta": 1e-3, "verbose": 0}
ONES = np.ones(BATCH, "float32")
GRANULARITIES = ["coordinate", "layer"]


def some_state(strategy, model, seed=0):
    """A state in the middle of training: means that are not 0, variances over several orders of magnitude."""
    rng = np.random.default_rng(seed)
    initial = strategy.initial_state(model.trainable_variables)
    n = len(initial) // 5
    means = [0.05 * rng.normal(size=a.shape) for a in initial[:n]]
    weights = [np.exp(2.0 * rng.normal(size=a.shape)) for a in initial[n : 2 * n]]
    sums = [w * np.exp(2.0 * rng.normal(size=w.shape)) for w in weights]
    return [np.asarray(a, "float32") for a in (*means, *sums, *weights, *initial[3 * n :])]


def transform(strategy, state, variables):
    """Means a and widths b as vectors, by the formula."""
    n = len(state) // 5
    s = []
    first = strategy.clip_norm**2 / sum(int(np.prod(v.shape)) for v in variables)
    for total, weight, variable in zip(state[n : 2 * n], state[2 * n : 3 * n], variables, strict=True):
        variance = np.broadcast_to(total / weight + strategy.caution / np.sqrt(weight), variable.shape)
        level = max(variance.mean(dtype="float64"), strategy.floor**2)
        s.append(np.sqrt(first * np.maximum(variance.astype("float64"), strategy.floor**2 * level)).ravel())
    s = np.concatenate(s)
    if not strategy.adapt_norm:
        s *= strategy.clip_norm / np.linalg.norm(s)
    return flat(state[:n]).astype("float64"), np.sqrt(s * s.sum())


@pytest.mark.backend_free
@pytest.mark.parametrize("adapt_norm", [False, True])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_equals_the_definition(granularity, adapt_norm):
    model = plain()
    strategy = strategies.AdaCliP(0.4, granularity, adapt_norm=adapt_norm)
    state = some_state(strategy, model)
    x, y = rows(BATCH)
    weight = ONES.copy()
    weight[::5] = 0.0
    a, b = transform(strategy, state, model.trainable_variables)
    w = (logistic_gradients(model, x, y) - a) / b
    w *= np.minimum(1.0, MARGIN / np.linalg.norm(w, axis=1, keepdims=True))
    expected = a + b * (w * weight[:, None]).sum(0) / BATCH
    for chunks in (1, 4):
        gradient, _ = averaged(model, strategy, (x, y, weight), state, chunks)
        np.testing.assert_allclose(flat(gradient), expected, rtol=1e-4, atol=1e-6)
    scales = [
        np.broadcast_to(keras.ops.convert_to_numpy(s), v.shape)
        for s, v in zip(
            strategy.noise_scales([keras.ops.convert_to_tensor(t) for t in state]),
            model.trainable_variables,
            strict=True,
        )
    ]
    # Noise is a multiple of what the ledger names as the sensitivity.
    np.testing.assert_allclose(flat(scales) * strategy.total_clip_norm, b, rtol=1e-5)


@pytest.mark.backend_free
@pytest.mark.parametrize(("adapt_norm", "caution"), [(False, 1.0), (True, 0.0), (True, 1.0), (True, 8.0)])
def test_the_first_update_clips_to_the_norm_that_is_stated(adapt_norm, caution):
    model = plain()
    strategy = strategies.AdaCliP(0.4, adapt_norm=adapt_norm, caution=caution)
    state = [keras.ops.convert_to_tensor(t) for t in strategy.initial_state(model.trainable_variables)]
    for width in strategy._transform(state)[1]:
        np.testing.assert_allclose(keras.ops.convert_to_numpy(width), strategy.total_clip_norm, rtol=1e-5)
    sensitivity = strategy.calibrate(model, keras.losses.SparseCategoricalCrossentropy(True), 10).sensitivity
    assert sensitivity == pytest.approx(strategy.total_clip_norm / 10)


@pytest.mark.backend_free
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_long_means_are_shortened(granularity):
    """Sums lose what is clipped in the rounding of means that are thousands of times as long."""
    model = plain()
    strategy = strategies.AdaCliP(0.4, granularity)
    state = some_state(strategy, model)
    for mean in state[: len(state) // 5]:
        mean *= 1e5
    means, widths = strategy._transform([keras.ops.convert_to_tensor(t) for t in state])
    length = sum(float(keras.ops.sum(keras.ops.square(a / b))) for a, b in zip(means, widths, strict=True))
    assert 3.999 < np.sqrt(length) < 4.001


@pytest.mark.backend_free
def test_noise_is_not_lost_beside_the_mean():
    """Noise was added to sums with the mean in them: floats near it are further apart than that noise."""
    means = [keras.ops.convert_to_tensor(np.float32([0.5]))]
    strategy = strategies.AdaCliP(1e-6)
    state = [keras.ops.convert_to_tensor(t) for t in strategy.initial_state(means)]
    sums = [keras.ops.convert_to_tensor(np.float32([1e-9]))]
    far = [*means, *state[1:]]
    assert float(strategy.average(sums, far, 1000)[0][0]) == pytest.approx(1e-12)
    assert float(strategy.after_noise(sums, far)[0][0]) == pytest.approx(4e-6, rel=1e-2)  # the mean, shortened


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_one_example_moves_the_transformed_gradient_by_at_most_one(granularity):
    model = plain()
    strategy = strategies.AdaCliP(0.4, granularity)
    largest = 0.0
    for seed, scale in enumerate((1e-3, 0.1, 1.0, 30.0, 1e4)):
        state = some_state(strategy, model, seed)
        _, b = transform(strategy, state, model.trainable_variables)
        x, y = rows(BATCH, seed=seed)
        x[-1] *= scale
        weight = ONES.copy()
        weight[-1] = 0.0
        pair = [flat(averaged(model, strategy, (x, y, w), state)[0]) for w in (ONES, weight)]
        moved = np.linalg.norm((pair[0] - pair[1]) / b) * BATCH
        assert moved <= 1.0
        largest = max(largest, moved)
    assert largest > 0.99


@pytest.mark.backend_free
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_an_example_that_overflows_contributes_nothing(granularity):
    model = plain()
    strategy = strategies.AdaCliP(0.4, granularity)
    state = some_state(strategy, model)
    wild, x, y, pair = overflowing(model, BATCH)
    for row in pair:
        weight, one = ONES.copy(), x.copy()
        weight[row], one[row] = 0.0, wild[row]
        with_it, without = (flat(averaged(model, strategy, d, state)[0]) for d in ((one, y, ONES), (x, y, weight)))
        np.testing.assert_allclose(with_it, without, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_the_first_update_is_dpsgd():
    model = plain()
    x, y = rows(BATCH)
    ours, theirs = (averaged(model, s, (x, y, ONES))[0] for s in (strategies.AdaCliP(0.4), strategies.DPSGD(0.4)))
    np.testing.assert_allclose(flat(ours), flat(theirs), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_applied_noise_is_that_of_the_transform():
    """Zero gradients: the first update has noise C z / B, the next ones b z / B with the b of the state."""
    strategy = strategies.AdaCliP(0.5, floor=0.1)
    model, x, y = silent()
    (first,) = steps(model, x, y, 1, noise_multiplier=1.3, strategy=strategy)
    np.testing.assert_allclose(first.std(), 1.3 * 0.5 / 20, rtol=0.03)
    means, sums, weights = model.optimizer.strategy_state[:3]
    wide = np.arange(first.size).reshape(first.shape) % 2 == 0
    means.assign(np.zeros(means.shape))
    weights.assign(np.full(weights.shape, 100.0))
    sums.assign(100.0 * np.where(wide, 4.0, 0.25))
    _, b = transform(strategy, [v.numpy() for v in model.optimizer.strategy_state], model.trainable_variables)
    b, (second,) = b.reshape(wide.shape), steps(model, x, y, 1, noise_multiplier=1.3, strategy=strategy)
    assert b[wide].min() > 1.5 * b[~wide].max()
    for part in (wide, ~wide):
        np.testing.assert_allclose((second[part] / b[part]).std(), 1.3 / 20, rtol=0.03)


def simulate(granularity, momentum, deviation, d=2000, batch=256, updates=400, z=1.0, seed=0):
    """Estimates of the deviation when gradients are N(0.01, deviation^2); the noise is the transform's."""
    rng = np.random.default_rng(seed)
    variable = keras.Variable(np.zeros(d, "float32"))
    strategy = strategies.AdaCliP(
        float(np.linalg.norm(deviation)), granularity, mean_momentum=0.99, variance_momentum=momentum
    )
    state = strategy.initial_state([variable])
    for _ in range(updates):
        tensors = [keras.ops.convert_to_tensor(a) for a in state]
        width = np.broadcast_to(keras.ops.convert_to_numpy(strategy._transform(tensors)[1][0]), (d,))
        mean = 0.01 + np.asarray(deviation) * rng.normal(size=d) / np.sqrt(batch)
        released = mean + width * z / batch * rng.normal(size=d)
        state = [
            keras.ops.convert_to_numpy(t)
            for t in strategy.advance(
                None, tensors, [released.astype("float32")], [(width * z / batch).astype("float32")], None, batch
            )
        ]
    return state


@pytest.mark.slow
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_estimates_settle_at_the_true_deviation(granularity):
    """Neither the batch size nor the noise leaks into them (the paper's equation 5 decays to its floor)."""
    mean, sums, weights, _, _ = simulate(granularity, 0.99, np.full(2000, 0.02))
    # In units of the first variance, which is the true one here.
    assert 0.02 * np.sqrt((sums / weights).mean()) == pytest.approx(0.02, rel=0.1)
    assert mean.mean() == pytest.approx(0.01, rel=0.05)


@pytest.mark.slow
def test_a_resumed_run_repeats_an_uninterrupted_one(tmp_path):
    x, y = rows(100)
    arguments = {"epochs": 2, "noise_multiplier": 1.0, "seed": 9, "strategy": strategies.AdaCliP(), **FIT}
    whole = plain()
    whole.fit(x, y, **arguments)
    part = plain()
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(part, "stop_training", True))
    part.fit(x, y, callbacks=[stop], **arguments)
    part.save(tmp_path / "m.keras")
    resumed = keras.saving.load_model(tmp_path / "m.keras")
    assert len(resumed.optimizer.strategy_state) == 10
    resumed.fit(x, y, **arguments)
    assert resumed.run.ledger == whole.run.ledger
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(whole.optimizer.strategy_state, resumed.optimizer.strategy_state, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    # Another strategy starts from its own state, and leaves none behind.
    variables = len(resumed.optimizer.variables)
    resumed.fit(x, y, noise_multiplier=1.0, strategy="dpsgd", **FIT)
    assert len(resumed.optimizer.variables) == variables - 10
    assert {r.strategy for r in resumed.run.ledger.entries} == {"adaclip", "dpsgd"}


@pytest.mark.slow
def test_a_run_in_chunks_repeats_one_without():
    x, y = rows(100)
    found = []
    for chunk in (None, 7):
        model = plain()
        arguments = {"epochs": 2, "noise_multiplier": 1.0, "seed": 3, "microbatch_size": chunk}
        model.fit(x, y, strategy=strategies.AdaCliP(0.5, variance_momentum=0.5), **arguments, **FIT)
        assert int(model.optimizer.iterations.numpy()) == model.run.ledger.updates == 10
        found.append(flat([*model.get_weights(), *(v.numpy() for v in model.optimizer.strategy_state)]))
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-5)


def regression(strategy, d, updates=300, batch=500, examples=5000):
    """Squared distance of the weights to the truth after private linear regression on d features.

    As in figure 2 of the paper the gradient varies mostly in few directions: feature j has deviation
    1 for j = 1, and 1 / d beyond.
    """
    rng = np.random.default_rng(d)
    scale = np.full(d, 1.0 / d)
    scale[0] = 1.0
    x = scale * rng.normal(size=(examples, d))
    y = x[:, :1] + 0.5 * rng.normal(size=(examples, 1))
    inputs = keras.Input((d,))
    kernel = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = lipdp.DP_Model(inputs, kernel(inputs))
    model.compile(keras.optimizers.SGD(0.05), loss=keras.losses.MeanSquaredError())
    model.fit(
        x,
        y,
        epochs=updates * batch // examples,
        batch_size=batch,
        delta=1e-5,
        noise_multiplier=2.0,
        strategy=strategy,
        seed=0,
        verbose=0,
    )
    return float(np.sum((model.get_weights()[0].ravel() - np.eye(1, d).ravel()) ** 2))


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("dimensions", [(10, 1000), pytest.param((30, 100, 300), marks=pytest.mark.slow)])
def test_the_error_of_regression_does_not_grow_with_the_dimension(dimensions):
    """DP-SGD's does: the energy of its noise is in proportion to the dimension."""
    strategy = strategies.AdaCliP(1.0, variance_momentum=0.9, caution=0.0, floor=0.001)
    adaptive = [regression(strategy, d) for d in dimensions]
    assert max(adaptive) < 0.006
    if dimensions[-1] == 1000:
        assert regression(strategies.DPSGD(1.0), 1000) > 3 * adaptive[-1]


def test_noise_never_exceeds_that_of_dpsgd():
    """With the norm of the deviations fixed, (sum s)^2 <= d sum(s^2): equal deviations are the worst case."""
    model = plain()
    strategy = strategies.AdaCliP(0.4, floor=0.01)
    for seed in range(10):
        state = [keras.ops.convert_to_tensor(t) for t in some_state(strategy, model, seed)]
        energy = sum(np.sum(keras.ops.convert_to_numpy(s) ** 2) for s in strategy.noise_scales(state))
        assert energy <= model.count_params() * (1 + 1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"granularity": "row"}, "granularity"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"clip_norm": 1e-13}, "at least 1e-12"),
        ({"mean_momentum": 1.0}, "mean_momentum"),
        ({"variance_momentum": -0.1}, "variance_momentum"),
        ({"floor": 0.0}, "floor"),
        ({"caution": -1.0}, "caution"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        strategies.AdaCliP(**arguments)
