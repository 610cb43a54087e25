"""DP-SGD: what one example can move, what is added, and what is refused."""

import itertools

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify, losses, strategies
from lipdp.strategies import augmentation
from lipdp.strategies.clipping import MARGIN, layer_groups
from tests.helpers.clipping import (
    BATCH,
    FIT,
    averaged,
    flat,
    logistic_gradients,
    overflowing,
    plain,
    resumes,
    rows,
    silent,
    steps,
)
from tests.helpers.reference import plain_gradients

ONES = np.ones(BATCH, "float32")
STRATEGIES = {
    "flat": strategies.DPSGD(0.3),
    "per layer": strategies.DPSGD(0.3, "per_layer"),
    "norms per layer": strategies.DPSGD((0.3, 0.05), "per_layer"),
    "automatic": strategies.DPSGD(0.3, "automatic"),
    "quantile": strategies.DPSGD(0.3, quantile=0.5),
    "copies": strategies.DPSGD(0.3, augmentation_multiplicity=3),
}


def some(names, *kept):
    """The default suite holds a few; `make test-all` holds all."""
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.backend_free
def test_gradients_of_zeros_stay_zeros_under_automatic_clipping():
    """Behind an input of zeros a cotangent may be of any size: scaled up it was infinite, and times zero NaN."""
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model = lipdp.DP_Model.from_keras(network)
    model.compile("sgd", loss="mse")
    for strategy in (strategies.DPSGD(1.0, "automatic"), strategies.DPSGD(1e10, "automatic", stability=1e-18)):
        data = np.zeros((BATCH, 3), "float32"), np.full((BATCH, 1), 1e37, "float32"), ONES
        gradient, _ = averaged(model, strategy, data)
        assert not flat(gradient).any()
    with pytest.raises(ValueError, match="`stability` is too small beside the clip norm"):
        strategies.DPSGD(1e20, "automatic", stability=1e-25)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", some(STRATEGIES, "flat", "per layer", "quantile"))
def test_one_example_moves_the_gradient_by_at_most_the_clip_norm(name):
    """Examples of any size, alone against the others; dropout draws by position, so the others keep their masks."""
    strategy = STRATEGIES[name]
    model = plain(hidden=5)
    model.layers[2].rate = 0.0
    largest = 0.0
    for seed, scale in enumerate((1e-3, 0.3, 1.0, 30.0, 1e4)):
        x, y = rows(BATCH, seed=seed)
        x[-1], weight = scale * x[-1], ONES.copy()
        y[-1] = (y[-1] + 1) % 3
        weight[-1] = 0.0
        with_it = averaged(model, strategy, (x, y, ONES))[0]
        without = averaged(model, strategy, (x, y, weight))[0]
        moved = [np.linalg.norm((a - b).ravel()) for a, b in zip(with_it, without, strict=True)]
        assert np.linalg.norm(moved) <= strategy.total_clip_norm / BATCH
        largest = max(largest, np.linalg.norm(moved))
        if isinstance(strategy.clip_norm, tuple):
            for group, norm in zip(layer_groups(model), strategy.clip_norm, strict=True):
                assert np.linalg.norm([moved[i] for i in group]) <= norm / BATCH
    # The bound is met, so the search above was not idle.
    assert largest >= 0.9 * strategy.total_clip_norm / BATCH


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_example_that_overflows_contributes_nothing(name):
    strategy = STRATEGIES[name]
    model = plain(hidden=5)
    model.layers[2].rate = 0.0
    wild, x, y, pair = overflowing(model, BATCH)
    for row in pair:  # clipping per layer must leave out the layers that do not overflow too
        weight, one = ONES.copy(), x.copy()
        weight[row], one[row] = 0.0, wild[row]
        with_it, query = averaged(model, strategy, (one, y, ONES))
        without, other_query = averaged(model, strategy, (x, y, weight))
        np.testing.assert_allclose(flat(with_it), flat(without), rtol=1e-5, atol=1e-8)
        assert [a - b for a, b in zip(query, other_query, strict=True)] == [-0.5] * len(query)  # not below the norm


def test_copies_come_from_the_secret_of_the_noise():
    """Known views would be tied to known rows, and one example more moves the rows behind it."""
    image, secret = (
        np.random.default_rng(0).random((4, 8, 8, 1)).astype("float32"),
        np.arange(16, dtype="uint32").reshape(2, 8),
    )
    shift = strategies.RandomShift(3)
    seen = [np.array(shift(image, augmentation.key(s, index))) for s in secret for index in (0, 1)]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(seen, 2))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX traces its loop over microbatches, eager or not.")
def test_each_microbatch_has_copies_of_its_own(monkeypatch):
    seen = []
    ordinary = augmentation.key
    monkeypatch.setattr(augmentation, "key", lambda secret, index: seen.append(int(index)) or ordinary(secret, index))
    model = lipdp.DP_Model.from_keras(
        keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, run_eagerly=True)
    x, y = np.zeros((24, 6, 6, 1), "float32"), np.zeros(24, "int32")
    strategy = strategies.DPSGD(0.5, augmentation_multiplicity=2, augmentation=strategies.RandomShift(2))
    fit = {**FIT, "batch_size": 24, "steps_per_epoch": 1}
    model.fit(x, y, noise_multiplier=1.0, strategy=strategy, microbatch_size=8, **fit)
    assert sorted(set(seen)) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.backend_free
def test_augmentation_in_fit_repeats_with_a_seed():
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
        model = lipdp.DP_Model.from_keras(model)
        model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x = np.random.default_rng(0).random((100, 6, 6, 1)).astype("float32")
        strategy = strategies.DPSGD(0.5, augmentation_multiplicity=2, augmentation=strategies.RandomShift(2, flip=True))
        y = (np.arange(100) % 3).astype("int32")
        model.fit(x, y, noise_multiplier=1.0, strategy=strategy, seed=5, microbatch_size=8, **FIT)
        found.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_no_contribution_exceeds_the_clip_norm_in_float32():
    model = plain()
    for seed in range(20):
        x, y = rows(1, seed=seed, scale=10.0 ** (seed % 7 - 3))
        gradient, _ = averaged(model, strategies.DPSGD(0.1), (x, y, np.ones(1, "float32")))
        assert np.linalg.norm(flat(gradient)) * BATCH <= 0.1


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic"])
def test_the_smallest_clip_norm_holds_for_many_small_entries(clipping):
    """Norms of gradients whose squares underflow read as zero: contributions were hundreds of times too long."""
    parts = [keras.Input((40, 40, 1)), keras.layers.Conv2D(1, 1, use_bias=False), keras.layers.Flatten()]
    model = lipdp.DP_Model.from_keras(keras.Sequential([*parts, keras.layers.Dense(3, use_bias=False)]))
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    strategy = strategies.DPSGD(1e-12, clipping, stability=1e-20)
    for size in (1e-10, 1e-14, 1e-17, 1e-19, 1e-20, 1e-22):
        x = np.full((1, 40, 40, 1), size, "float32")
        gradient, _ = averaged(model, strategy, (x, np.zeros(1, "int32"), np.ones(1, "float32")))
        assert np.linalg.norm(flat(gradient)) * BATCH <= 1e-12


def test_a_threshold_that_follows_a_quantile_stays_above_the_smallest_clip_norm():
    strategy = strategies.DPSGD(1e-11, quantile=0.5, quantile_rate=10.0)
    (factor,) = strategy.advance(None, [np.float32(0.2)], [], [], 1000.0, 10)
    assert float(factor) * 1e-11 == pytest.approx(1e-12)
    (factor,) = strategies.DPSGD(1.0, quantile=0.5, quantile_rate=1e3).advance(None, [1.0], [], [], 10.0, 10)
    assert float(factor) == pytest.approx(1e-6)


@pytest.mark.parametrize("clipping", ["flat", "per_layer", "automatic"])
def test_equals_plain_per_example_clipping(clipping):
    model = plain()
    x, y = rows(BATCH)
    weight = ONES.copy()
    weight[3::4] = 0.0
    g = logistic_gradients(model, x, y) * weight[:, None]
    n = np.linalg.norm(g, axis=1, keepdims=True)
    if clipping == "flat":
        expected = g * np.minimum(1.0, 0.7 * MARGIN / np.maximum(n, 1e-30))
    elif clipping == "automatic":
        expected = g * 0.7 * MARGIN / (n + 0.01)
    else:  # kernel and bias belong to one layer
        expected = g * np.minimum(1.0, 0.7 * MARGIN / np.maximum(n, 1e-30))
    gradient, _ = averaged(model, strategies.DPSGD(0.7, clipping), (x, y, weight))
    np.testing.assert_allclose(flat(gradient), expected.sum(0) / BATCH, rtol=1e-5, atol=1e-7)


def several_layers():
    """Convolution, normalisation, a layer with a rule of its own for bias and kernel, and one that is used twice."""
    inputs = keras.Input((6, 6, 1))
    h = keras.layers.GroupNormalization(2)(keras.layers.Conv2D(4, 3, strides=2, activation="relu")(inputs))
    shared = keras.layers.Dense(4, activation="tanh")
    h = keras.layers.Flatten()(shared(shared(h)))
    return keras.Model(inputs, keras.layers.Dense(3)(h)), np.random.default_rng(0).normal(size=(BATCH, 6, 6, 1))


def masked_words(*layers, shortest=0):
    """Sequences of different lengths, from `shortest` on."""
    inputs = keras.Input((5,), dtype="int32")
    h = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    for layer in layers:
        h = layer(h, h) if isinstance(layer, keras.layers.MultiHeadAttention) else layer(h)
    x = np.random.default_rng(0).integers(1, 9, (BATCH, 5))
    return keras.Model(inputs, keras.layers.Dense(3)(h)), x * (
        np.arange(5) < (shortest + np.arange(BATCH) % (6 - shortest))[:, None]
    )


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "make",
    [
        several_layers,
        lambda: masked_words(keras.layers.LSTM(3)),
        # The mean over an empty sequence is NaN in Keras.
        lambda: masked_words(keras.layers.MultiHeadAttention(2, 2), keras.layers.GlobalAveragePooling1D(), shortest=1),
    ],
    ids=["several layers", "masked lstm", "masked attention"],
)
@pytest.mark.parametrize("norms", [0.3, pytest.param("one for each", marks=pytest.mark.slow)])
def test_per_layer_clipping_equals_that_of_explicit_gradients(make, norms):
    graph, x = make()
    model = lipdp.DP_Model.from_keras(graph)
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = x.astype(model.inputs[0].dtype)
    y = (np.arange(BATCH) % 3).astype("int32")
    layers = [layer for layer in model._flatten_layers() if layer._trainable_variables]
    norms = [0.3 / np.sqrt(len(layers))] * len(layers) if norms == 0.3 else [0.02 * (k + 1) for k in range(len(layers))]
    weight = ONES.copy()
    weight[3::4] = 0.0
    explicit = plain_gradients(model, x, y, weight, loss=lambda y, p: losses.example_values(model.loss, y, p))
    of = {v.path: g.reshape(BATCH, -1) for v, g in zip(model.trainable_variables, explicit, strict=True)}
    expected, clipped = {}, 0
    for layer, norm in zip(layers, norms, strict=True):
        paths = [v.path for v in layer._trainable_variables]
        size = np.linalg.norm(np.concatenate([of[p] for p in paths], axis=1), axis=1)
        factor = np.minimum(1.0, MARGIN * norm / np.maximum(size, 1e-30))
        clipped += np.sum(factor < 1.0)
        expected |= {p: factor @ of[p] / BATCH for p in paths}
    assert 0 < clipped < BATCH * len(layers)
    gradient, _ = averaged(model, strategies.DPSGD(norms, "per_layer"), (x, y, weight))
    for variable, g in zip(model.trainable_variables, gradient, strict=True):
        np.testing.assert_allclose(g.ravel(), expected[variable.path], rtol=1e-4, atol=1e-7, err_msg=variable.path)


@pytest.mark.slow
def test_copies_are_averaged_before_they_are_clipped():
    """Copies that do not differ change nothing, whatever their number."""
    model = plain()
    x, y = rows(BATCH)
    once, many = (averaged(model, strategies.DPSGD(0.5, augmentation_multiplicity=k), (x, y, ONES))[0] for k in (1, 4))
    np.testing.assert_allclose(flat(once), flat(many), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_shifted_images_keep_to_themselves():
    shift = strategies.RandomShift(2, flip=True)
    x = np.zeros((64, 9, 9, 1), "float32")
    x[:, 4, 4] = np.arange(1, 65)[:, None]
    key = keras.ops.convert_to_tensor(np.array([3, 4], "uint32"))
    moved = keras.ops.convert_to_numpy(shift(x, key))
    np.testing.assert_array_equal(moved.sum((1, 2, 3)), x.sum((1, 2, 3)))
    assert len({tuple(np.argwhere(image[..., 0])[0]) for image in moved}) > 15
    other = keras.ops.convert_to_numpy(shift(x, key + 1))
    assert not np.array_equal(moved, other)


@pytest.mark.slow
def test_chunks_give_the_same_gradient():
    model = plain()
    x, y = rows(BATCH)
    for strategy in (STRATEGIES["quantile"], STRATEGIES["norms per layer"]):
        if isinstance(strategy.clip_norm, tuple):
            strategy = strategies.DPSGD((0.3,), "per_layer")
        whole, parts = (averaged(model, strategy, (x, y, ONES), microbatches=c) for c in (1, 4))
        np.testing.assert_allclose(flat(whole[0]), flat(parts[0]), rtol=1e-5, atol=1e-8)
        assert whole[1] == parts[1]


@pytest.mark.backend_free
def test_a_run_is_charged_and_repeats_in_chunks():
    x, y = rows(100)
    found = []
    for chunk in (None, 5):
        model = plain(hidden=4)
        model.layers[2].rate = 0.0
        model.fit(x, y, epochs=1, noise_multiplier=1.5, strategy="dpsgd", seed=1, microbatch_size=chunk, **FIT)
        assert int(model.optimizer.iterations.numpy()) == model.run.ledger.updates == 5
        (release,) = model.run.ledger.entries
        assert (release.strategy, release.noise_multiplier, release.sensitivity) == ("dpsgd", 1.5, 1.0 / 20)
        assert "dpsgd" in model.privacy.statement()
        found.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    np.testing.assert_allclose(*found, atol=1e-5)


def test_applied_noise_has_the_planned_deviation():
    first, second = steps(*silent(), 2, noise_multiplier=1.3, strategy=strategies.DPSGD(0.5))
    for step in (first, second):
        np.testing.assert_allclose(step.std(), 1.3 * 0.5 / 20, rtol=0.03)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.04


@pytest.mark.slow
def test_noise_follows_the_private_threshold():
    """All norms are 0, so the threshold shrinks by about exp(-rate / 2) each time, and the noise with it."""
    strategy = strategies.DPSGD(0.5, quantile=0.5, quantile_noise=2.0, quantile_rate=1.0)
    model, x, y = silent()
    thresholds = [1.0]
    inner = (1.3**-2 - 4.0**-2) ** -0.5
    for _ in range(3):
        (step,) = steps(model, x, y, 1, noise_multiplier=1.3, strategy=strategy)
        np.testing.assert_allclose(step.std(), inner * 0.5 * thresholds[-1] / 20, rtol=0.03)
        thresholds.append(float(model.optimizer.strategy_state[0].numpy()))
    assert thresholds[3] < 0.6
    (release,) = model.run.ledger.entries
    assert release.noise_multiplier == 1.3 and "quantile" in release.noise_allocation


@pytest.mark.slow
def test_a_run_with_a_quantile_resumes_where_it_was(tmp_path):
    x, y = rows(100)
    strategy = strategies.DPSGD(0.5, quantile=0.2)
    resumes(plain, x, y, tmp_path / "m.keras", noise_multiplier=1.0, strategy=strategy)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="A setting of JAX.")
@pytest.mark.parametrize("microbatch", [None, 8])
def test_a_quantile_where_jax_computes_in_float64(microbatch):
    import jax

    x, y = rows(100)
    jax.config.update("jax_enable_x64", True)
    try:
        model = plain()
        strategy = strategies.DPSGD(0.5, quantile=0.2)
        model.fit(x, y, noise_multiplier=1.0, strategy=strategy, microbatch_size=microbatch, **FIT)
    finally:
        jax.config.update("jax_enable_x64", False)
    assert model.run.ledger.updates == 5 and model.optimizer.strategy_state[0].dtype == "float32"


def test_golden_multiplier_beside_a_quantile():
    strategy = strategies.DPSGD(1.0, quantile=0.5, quantile_noise=12.8)
    calibration = strategy.calibrate(plain(), None, 256)
    assert calibration.noise_stddevs(1.1)[0] * 256 == pytest.approx(1.101017, abs=1e-6)
    assert calibration == strategies.DPSGD(1.0, quantile=0.5).calibrate(plain(), None, 256)  # B / 20
    other = strategies.DPSGD(1.0, quantile=0.5, quantile_noise=20.0).calibrate(plain(), None, 256)
    assert other.noise_stddevs(1.1)[0] * 256 == pytest.approx(1.100416, abs=1e-6)


def test_a_quantile_that_costs_more_than_the_update_is_refused():
    x, y = rows(100)
    model = plain()
    strategy = strategies.DPSGD(1.0, quantile=0.5, quantile_noise=0.5)
    with pytest.raises(ValueError, match="quantile_noise"):
        model.fit(x, y, noise_multiplier=1.0, strategy=strategy, **FIT)
    assert model.run.ledger.updates == 0


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_the_threshold_converges_to_the_quantile(quantile):
    """Norms exp(N(0, 1)): the quantile is exp of the normal one."""
    rng = np.random.default_rng(0)
    strategy = strategies.DPSGD(10.0, quantile=quantile)
    state, seen = [np.float32(1.0)], []
    for update in range(150):
        norms = np.exp(rng.normal(size=1000))
        query = np.sum((norms <= 10.0 * float(state[0])) - 0.5) + 50.0 * rng.normal()
        state = [
            keras.ops.convert_to_numpy(s) for s in strategy.advance(None, state, None, None, np.float32(query), 1000)
        ]
        seen += [10.0 * float(state[0])] if update > 75 else []
    assert np.mean(rng.lognormal(size=100000) <= np.median(seen)) == pytest.approx(quantile, abs=0.05)


def test_the_query_counts_and_has_sensitivity_one_half():
    model = plain()
    x, y = rows(BATCH)
    weight = ONES.copy()
    weight[:3] = 0.0
    norms = np.linalg.norm(logistic_gradients(model, x, y), axis=1)
    strategy = strategies.DPSGD(float(np.median(norms)), quantile=0.5)
    (with_padding,) = averaged(model, strategy, (x, y, weight))[1]
    assert with_padding == np.sum((norms[3:] <= strategy.clip_norm) - 0.5)


@pytest.mark.slow
@pytest.mark.backend_free
def test_from_keras_shares_layers_and_trains_any_graph():
    a, b = keras.Input((4,)), keras.Input((3,))
    shared = keras.layers.Dense(5, activation="relu")
    inner = keras.Sequential([keras.Input((4,)), shared])
    merged = keras.layers.Concatenate()([inner(a), shared(keras.layers.Dense(4)(b))])
    plain_model = keras.Model([a, b], keras.layers.Dense(2, activation="softmax")(merged))
    model = lipdp.DP_Model.from_keras(plain_model)
    model.compile("sgd", loss=keras.losses.CategoricalCrossentropy())
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(60, 4)), rng.normal(size=(60, 3))]
    before = [np.array(w) for w in plain_model.get_weights()]
    model.fit(x, np.eye(2)[rng.integers(0, 2, 60)], noise_multiplier=1.0, strategy="dpsgd", **FIT)
    assert any((a != b).any() for a, b in zip(before, plain_model.get_weights(), strict=True))
    with pytest.raises(ValueError, match="softmax.*Lipschitz"):
        certify.lipschitz(model)
    with pytest.raises(ValueError, match="lipdp.losses"):
        model.summary_bounds(print_fn=lambda text: None)


@pytest.mark.slow
def test_lipschitz_models_train_with_dpsgd_too():
    from tests.helpers.models import mlp

    x, y = rows(100, features=8)
    model = mlp()
    model.fit(x, y, noise_multiplier=1.0, strategy="dpsgd", **FIT)
    rows_of_table = model.summary_bounds(print_fn=lambda text: None)
    assert {row["noise_std"] for row in rows_of_table} == {None, 1.0 / 20}


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def test_from_keras_refuses():
    subclassed = Own()
    subclassed(np.zeros((1, 4)))
    for wrong, message in (
        (subclassed, "subclassed"),
        (keras.Sequential([keras.layers.Dense(3)]), "input shape"),
        (plain(), "private already"),
        (keras.layers.Dense(3), "Keras model"),
    ):
        with pytest.raises(ValueError, match=message):
            lipdp.DP_Model.from_keras(wrong)


ARGUMENTS = {
    "clip_norm": ({"clip_norm": 0.0}, "clip_norm"),
    "clip_norm NaN": ({"clip_norm": float("nan")}, "clip_norm"),
    "clip_norm text": ({"clip_norm": "1"}, "clip_norm"),
    "clip_norm near underflow": ({"clip_norm": 1e-13}, "`clip_norm` must be at least 1e-12"),
    "norms near underflow": ({"clip_norm": [1.0, 1e-13], "clipping": "per_layer"}, "at least 1e-12"),
    "norms": ({"clip_norm": [1.0, 2.0]}, "per_layer"),
    "clipping": ({"clipping": "hard"}, "clipping"),
    "quantile": ({"quantile": 1.0}, "quantile"),
    "quantile per layer": ({"quantile": 0.5, "clipping": "per_layer"}, "flat"),
    "noise without quantile": ({"quantile_noise": 3.0}, "quantile"),
    "copies": ({"augmentation_multiplicity": 0}, "augmentation_multiplicity"),
    "augmentation": ({"augmentation": lambda x, key: x}, "augmentation"),
    "augmentation layer": ({"augmentation": keras.layers.RandomFlip()}, "augmentation"),
    "stability": ({"stability": -1.0}, "stability"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_arguments(name):
    arguments, message = ARGUMENTS[name]
    with pytest.raises(ValueError, match=message):
        strategies.DPSGD(**arguments)


def stack(*layers):
    return lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)]))


MODELS = {
    "batch normalisation": (lambda: stack(keras.layers.BatchNormalization()), "GroupNormalization"),
    "regulariser": (lambda: stack(keras.layers.Dense(4, kernel_regularizer="orthogonal_regularizer")), "(?i)regulari"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_without_per_example_gradients(name):
    make, message = MODELS[name]
    model = make()
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=message):
        model.fit(*rows(100), noise_multiplier=1.0, strategy="dpsgd", **FIT)
    assert model.run.ledger.updates == 0


def test_probabilities_into_a_loss_on_logits():
    inputs = keras.Input((6,))
    model = lipdp.DP_Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="logits"):
        model.fit(*rows(100), noise_multiplier=1.0, strategy="dpsgd", **FIT)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("name", "outputs", "activation"),
    [
        ("sparse_categorical_crossentropy", 3, "softmax"),
        ("categorical_crossentropy", 3, "softmax"),
        ("binary_crossentropy", 1, "sigmoid"),
        ("SparseCategoricalCrossentropy", 3, "softmax"),
    ],
)
def test_probabilities_and_the_name_of_a_loss_train_as_in_keras(name, outputs, activation):
    x, y = rows(100, classes=max(2, outputs))
    y = np.eye(3, dtype="float32")[y] if name.startswith("cat") else y
    inputs = keras.Input((6,))
    graph = keras.Model(inputs, keras.layers.Dense(outputs, activation)(inputs))
    model = lipdp.DP_Model.from_keras(graph)
    model.compile("sgd", loss=name, metrics=["accuracy"])
    graph.compile("sgd", loss=name, metrics=["accuracy"])
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    assert found == pytest.approx(graph.evaluate(x, y, verbose=0, return_dict=True), rel=1e-4)
    model.fit(x, y, noise_multiplier=1.0, **FIT)
    assert model.run.ledger.updates == 5 and model.run.ledger.entries[0].strategy == "dpsgd"


@pytest.mark.slow
@pytest.mark.backend_free
def test_ordinary_networks_take_dpsgd_by_themselves_and_lipschitz_ones_clipless(capsys):
    ordinary = plain()
    ordinary.fit(*rows(100), noise_multiplier=1.0, **FIT | {"verbose": 2})
    assert "Private training with strategy 'dpsgd': noise multiplier 1;" in capsys.readouterr().out
    bounded = lipdp.DP_Sequential([lipdp.layers.BoundedInput((6,)), lipdp.layers.SpectralDense(3)])
    bounded.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    bounded.fit(*rows(100), noise_multiplier=1.0, **FIT | {"verbose": 2})
    assert "Private training with strategy 'clipless': noise multiplier 1;" in capsys.readouterr().out
    spectral = (lipdp.layers.SpectralDense(4), lipdp.layers.SpectralDense(3))
    mixed = lipdp.DP_Sequential([lipdp.layers.BoundedInput((6,)), spectral[0], keras.layers.Dense(4), spectral[1]])
    mixed.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="SpectralDense.*strategy='dpsgd'"):
        mixed.fit(*rows(100), noise_multiplier=1.0, **FIT)


@pytest.mark.slow
def test_sequential_from_keras_shares_layers_and_trains():
    graph = keras.Sequential([keras.Input((6,), name="start"), keras.layers.Dense(3)], name="stack")
    model = lipdp.DP_Sequential.from_keras(graph)
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    before = graph.get_weights()
    model.fit(*rows(100), noise_multiplier=1.0, **FIT)
    assert model.name == "stack" and model.layers[0] is graph.layers[0]
    assert not np.allclose(before[0], graph.get_weights()[0])
    assert lipdp.DP_Model.from_keras(graph).privacy.epsilon() == model.privacy.epsilon() > 0
    graph.add(keras.layers.Dense(2))
    assert model.output_shape == (None, 3)


def test_a_wrong_number_of_norms():
    with pytest.raises(ValueError, match="one norm per layer"):
        plain().fit(*rows(100), noise_multiplier=1.0, strategy=strategies.DPSGD([1.0, 1.0], "per_layer"), **FIT)


def test_an_augmentation_that_mixes():
    class Mix(strategies.RandomShift):
        def __call__(self, images, key):
            return images + images[::-1]

    inputs = keras.Input((4, 4, 1))
    model = lipdp.DP_Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(inputs)))
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.zeros((100, 4, 4, 1)), np.zeros(100, "int32")
    with pytest.raises(ValueError, match="mixes examples"):
        model.fit(
            x,
            y,
            noise_multiplier=1.0,
            strategy=strategies.DPSGD(augmentation_multiplicity=2, augmentation=Mix(1)),
            **FIT,
        )


@pytest.mark.parametrize("dtype, largest", [("uint8", 255.0), ("int32", 60000.0)])
def test_integer_inputs_are_clipped(dtype, largest):
    """JAX squared them as integers: one row moved the weights by 36 times the clip norm."""
    x, y = np.zeros((32, 6), "float32"), np.zeros((32, 1), "float32")
    x[0], y[0] = largest, 1.0  # the other rows have no gradient
    inputs = keras.Input((6,), dtype=dtype)
    model = lipdp.DP_Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    options = {"batch_size": 32, "epochs": 1, "sampling": "shuffle", "noise_multiplier": 1e-3, "verbose": 0}
    model.fit(x.astype("uint8") if dtype == "uint8" else x, y, strategy=lipdp.strategies.DPSGD(1.0), **options)
    moved = 32 * np.sqrt(sum(np.square(w).sum() for w in model.get_weights()))
    assert moved == pytest.approx(1.0, abs=0.02)
