"""Whose noise is whose: one secret for a release, another one for any other, and none in files without a seed."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import backend, strategies
from lipdp.sampling import randomness
from lipdp.training import importance, seeding

ROWS, FEATURES, CLASSES = 40, 150, 4
SIZE = FEATURES * CLASSES
# Five standard deviations of a correlation of independent noise.
LIMIT = 5.0 / SIZE**0.5


def silent(loss=None, optimizer=None, activation=None, start=0.0, eager=True):
    """A model whose gradients are zero, so that it moves by noise alone."""
    layer = keras.layers.Dense(CLASSES, use_bias=False, kernel_initializer="zeros", activation=activation)
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((FEATURES,)), layer]))
    layer.kernel.assign(np.full(layer.kernel.shape, start))
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(1.0), loss=loss, run_eagerly=eager)
    return model


def data(label=0):
    """Inputs of zero; the label of the last row can be another one."""
    y = np.arange(ROWS) % CLASSES
    y[-1] = label
    return np.zeros((ROWS, FEATURES), "float32"), y


def moves(model, arrays=None, updates=1, callbacks=(), **arguments):
    """Steps of one `fit`, in units of their standard deviation."""
    settings = {"batch_size": 8, "noise_multiplier": 1.0, "delta": 1e-3, "strategy": strategies.DPSGD(), "verbose": 0}
    settings |= {"steps_per_epoch": updates, "training_metrics": False, "seed": 11} | arguments
    seen = [model.get_weights()[0].ravel()]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs=None: seen.append(
            ops.convert_to_numpy(note.model.trainable_variables[0]).ravel()
        )
    )
    model.fit(*(data() if arrays is None else arrays), callbacks=[note, *callbacks], **settings)
    return np.diff(seen, axis=0) / model.run.noise_std[0]


def correlation(a, b):
    return abs(np.corrcoef(a, b)[0, 1])


@pytest.mark.backend_free
def test_unseeded_fits_have_noise_of_their_own():
    """Zero gradients and all rows in each batch: only the noise can differ."""
    (first,), (second,) = (moves(silent(), seed=None, sampling="fixed_order", batch_size=ROWS) for _ in range(2))
    assert first.std() == pytest.approx(1.0, abs=0.15)
    assert correlation(first, second) < LIMIT


VARIATIONS = {
    "same": (silent, {}),
    "seed": (silent, {"seed": 12}),
    "noise": (silent, {"noise_multiplier": 2.0}),
    "delta": (silent, {"delta": 1e-4}),
    "batch": (silent, {"batch_size": 4}),
    "length": (silent, {"updates": 2}),
    "sampling": (silent, {"sampling": "fixed_size"}),
    "clip norm": (silent, {"strategy": strategies.DPSGD(2.0)}),
    "strategy": (silent, {"strategy": strategies.AdaCliP()}),
    "person": (silent, {"examples_per_person": 2}),
    "data": (silent, {"arrays": data(1)}),
    "rows": (silent, {"arrays": [a[:-1] for a in data()]}),
    "weights": (lambda: silent(start=1e-3), {}),
    "rate": (lambda: silent(optimizer=keras.optimizers.SGD(0.5)), {}),
    "schedule": (
        lambda: silent(optimizer=keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.9))),
        {},
    ),
    "loss": (lambda: silent(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3)), {}),
    "activation": (lambda: silent(activation="tanh"), {}),
    "generator": (silent, {"noise_generator": "chacha20"}),
}


@pytest.mark.slow
@pytest.mark.backend_free
def test_releases_under_one_seed_share_noise_only_if_they_are_the_same():
    found = {}
    for name, (make, arguments) in VARIATIONS.items():
        model = make()
        found[name] = moves(model, **arguments)[0], model.run.driver.sampler.draw(0)
    same = found.pop("same")
    again = silent()
    np.testing.assert_array_equal(moves(again)[0], same[0])
    np.testing.assert_array_equal(again.run.driver.sampler.draw(0), same[1])
    noises = np.corrcoef([same[0], *(noise for noise, _ in found.values())]) - np.eye(len(VARIATIONS))
    assert np.abs(noises).max() < LIMIT, "noise of another release"
    drawn = [tuple(sorted(batch)) for _, batch in (same, *found.values())]
    assert len(set(drawn)) == len(drawn), "batches of another release"


@pytest.mark.backend_free
def test_what_keras_computes_with_everywhere_is_part_of_a_seed():
    """Losses such as the divergence clip by it: two releases told the difference of their gradients."""
    first = moves(silent())[0]
    keras.config.set_epsilon(1e-3)
    try:
        second = moves(silent())[0]
    finally:
        keras.config.set_epsilon(1e-7)
    assert correlation(first, second) < LIMIT
    np.testing.assert_array_equal(moves(silent())[0], first)


def interrupted(updates=2, total=4, **arguments):
    """A model that was stopped within its plan."""
    model = silent()
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs=None: setattr(model, "stop_training", model.run.ledger.updates >= updates)
    )
    moves(model, updates=total, callbacks=[stop], **arguments)
    assert model.run.ledger.updates == updates
    return model


@pytest.mark.slow
@pytest.mark.backend_free
def test_continuations_of_one_seeded_file_share_noise_only_if_they_are_the_same(tmp_path):
    interrupted().save(tmp_path / "m.keras")
    whole = moves(silent(), updates=4)
    found = {}

    def on(name, change=lambda model: None, **arguments):
        model = keras.saving.load_model(tmp_path / "m.keras")
        change(model)
        found[name] = moves(model, **{"updates": 4} | arguments)[0]
        return model

    for _ in range(2):
        model = on("same")
        np.testing.assert_array_equal(found.pop("same"), whole[2])
        assert model.run.ledger.updates == 4
    on("plan", noise_multiplier=3.0)
    on("length", updates=3, noise_multiplier=1.5)
    on("seed", seed=12)
    on("no seed", seed=None)
    on("data", arrays=data(1))
    on("weights", lambda model: model.set_weights([w + 1e-6 for w in model.get_weights()]))
    on("rate", lambda model: model.optimizer.learning_rate.assign(0.5))
    on("loss", lambda model: model.compile("sgd", keras.losses.CategoricalHinge(), run_eagerly=True), arrays=one_hot())
    draws = np.array([*whole, *found.values()])
    assert np.abs(np.corrcoef(draws) - np.eye(len(draws))).max() < LIMIT


def one_hot():
    x, y = data()
    return x, np.eye(CLASSES, dtype="float32")[y]


@pytest.mark.slow
def test_an_interruption_changes_nothing_in_one_process():
    whole, model = moves(silent(), updates=4), interrupted()
    np.testing.assert_array_equal(moves(model, updates=4), whole[2:])
    # Another `fit` is another plan.
    assert correlation(moves(model, updates=4)[0], whole[0]) < LIMIT


@pytest.mark.slow
def test_a_fit_that_fails_before_its_first_update_leaves_its_noise_to_the_next():
    whole, model = moves(silent()), silent()

    def fail(batch, logs=None):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        moves(model, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=fail)])
    assert model.run.ledger.updates == 0
    np.testing.assert_array_equal(moves(model), whole)
    other = silent()
    with pytest.raises(RuntimeError, match="stop"):
        moves(other, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=fail)])
    other.set_weights([np.full_like(w, 1e-3) for w in other.get_weights()])
    assert correlation(moves(other)[0], whole[0]) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("generator", ["threefry", "chacha20"])
def test_the_stored_key_is_that_of_the_next_update_and_not_of_a_past_one(generator):
    model, keys = silent(eager=False), []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs=None: keys.append(note.model.optimizer.noise_key.numpy())
    )
    steps = -moves(model, updates=4, callbacks=[note], noise_generator=generator)

    def noise(key):
        return np.asarray(backend.normal(SIZE, ops.convert_to_tensor(key), generator))

    for i, key in enumerate(keys):
        following, after = (np.asarray(k) for k in backend.ratchet(ops.convert_to_tensor(key)))
        if i + 1 < len(keys):
            np.testing.assert_allclose(noise(following), steps[i + 1], atol=1e-4)
            np.testing.assert_array_equal(after, keys[i + 1])
        for known in (key, following):
            assert max(correlation(noise(known), step) for step in steps[: i + 1]) < LIMIT


@pytest.mark.slow
def test_batches_noise_and_what_a_file_holds_have_different_keys():
    model, seen = silent(), []
    note = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs=None: seen.append(model.optimizer.noise_key.numpy().astype("<u4").tobytes())
    )
    moves(model, sampling="shuffle", callbacks=[note])
    draws = model.run.secret.draws
    epochs = np.array(model.run.epoch_key, "<u8").tobytes()
    keys = [seen[0], draws, randomness.derive(draws, "sampler"), epochs]
    pieces = [key[i : i + 8] for key in keys for i in range(0, len(key), 8)]
    assert len(set(pieces)) == len(pieces) == 14


def test_no_file_of_an_unseeded_run_holds_a_part_of_its_secret(tmp_path):
    model = interrupted()
    known = json.loads(model.run.to_array().tobytes())["secret"]
    assert bytes.fromhex(known[0]) == model.run.secret.draws
    model.save(tmp_path / "seeded.keras")
    again = keras.saving.load_model(tmp_path / "seeded.keras")
    again.save(tmp_path / "copy.keras")  # what is kept is kept on
    again = keras.saving.load_model(tmp_path / "copy.keras")
    assert again.run.secret == model.run.secret and again.optimizer.noise_key.numpy().any()
    for each in (silent(), again):
        moves(each, seed=None)
        each.save(tmp_path / "m.keras")
        assert json.loads(each.run.to_array().tobytes())["secret"] is None
        assert not keras.saving.load_model(tmp_path / "m.keras").optimizer.noise_key.numpy().any()


def test_a_corrupt_secret_is_refused():
    content = json.loads(silent().run.to_array().tobytes())
    for secret in (7.5, "text", ["ab", "basis", None], [1, 2, 3], ["g" * 64, "basis", None]):
        model = silent()
        with pytest.raises(ValueError, match="corrupt"):
            model.run.restore(np.frombuffer(json.dumps(content | {"secret": secret}).encode(), np.uint8))
        assert model.run.secret is None


@pytest.mark.slow
def test_models_that_were_built_alike_have_one_description(tmp_path):
    def make(units=3):
        inputs = keras.Input((6, 6, 2))
        x = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
        inner = keras.Sequential([keras.Input((4, 4, 4)), keras.layers.GroupNormalization(2), keras.layers.Flatten()])
        x = keras.layers.Concatenate()([inner(x), keras.layers.GlobalAveragePooling2D()(x)])
        x = keras.layers.Dense(units)(x)
        model = lipdp.DP_Model(inputs, ops.relu(x) + keras.layers.Dense(units)(x))  # operations have names, too
        model.compile("adam", loss=keras.losses.MeanSquaredError())
        return model

    first, second, other = make(), make(), make(4)
    first.save(tmp_path / "m.keras")
    texts = [json.dumps(seeding.described(m)) for m in (first, second, keras.saving.load_model(tmp_path / "m.keras"))]
    assert len(set(texts)) == 1
    assert json.dumps(seeding.described(other)) != texts[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The learning rate is too small")
def test_noise_of_the_private_count():
    """Over silent updates the log of the threshold moves by rate * noise / B, and nothing else is random."""
    batch, noise, rate, updates = 10, 3.0, 0.1, 400
    inputs = keras.Input((2,))
    model = lipdp.DP_Model(inputs, keras.layers.Dense(2, use_bias=False)(inputs))
    model.compile(keras.optimizers.SGD(1e-6), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    seen = [0.0]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs=None: seen.append(
            float(np.log(ops.convert_to_numpy(note.model.optimizer.strategy_state[0])))
        )
    )
    model.fit(
        np.zeros((batch, 2), "float32"), np.zeros(batch, "int32"), batch_size=batch, epochs=1, steps_per_epoch=updates,
        noise_multiplier=1.0, delta=1e-3, sampling="fixed_order", training_metrics=False, verbose=0, callbacks=[note],
        strategy=strategies.DPSGD(1.0, quantile=0.99, quantile_noise=noise, quantile_rate=rate),
    )  # fmt: skip
    moved = np.diff(seen)
    assert len(moved) == updates
    # The standard error of a standard deviation of 400 is 3.5 %.
    assert moved.std() == pytest.approx(rate * noise / batch, rel=0.15)
    assert moved.mean() == pytest.approx(-rate * 0.01, abs=4 * rate * noise / batch / updates**0.5)


@pytest.mark.parametrize("draw", [-2.0, 0.5])
def test_what_dpis_releases_beside_its_gradients_has_the_noise_that_is_charged(monkeypatch, draw):
    class Fixed:
        def normal(self):
            return draw

    released, ordinary = [], importance.ImportanceDriver._generator
    inner = importance.ImportanceDriver._released

    def generator(driver, label):
        return Fixed() if label == "sum" else ordinary(driver, label)

    def note(driver, kind, charge, value, multiplier, sensitivity):
        found = inner(driver, kind, charge, value, multiplier, sensitivity)
        charged = driver.run.ledger.entries[-1]
        released.append((kind, found, value + multiplier * sensitivity * draw))
        assert (charged.kind, charged.noise_multiplier, charged.sensitivity) == (kind, multiplier, sensitivity)
        return found

    monkeypatch.setattr(importance.ImportanceDriver, "_generator", generator)
    monkeypatch.setattr(importance.ImportanceDriver, "_released", note)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 6)).astype("float32"), rng.integers(0, 3, 400)
    inputs = keras.Input((6,))
    model = lipdp.DP_Model(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(
        x, y, batch_size=40, epochs=2, steps_per_epoch=2, epsilon=4.0, delta=1e-4, verbose=0, training_metrics=False,
        strategy=strategies.DPIS(0.8, clip_scale=1.5, count_noise=8.0, norm_sum_noise=8.0),
    )  # fmt: skip
    assert {kind for kind, _, _ in released} == {"count", "clip_sum", "norm_sum"}
    assert model.run.plan.sampling.num_examples == round(400 + 8.0 * draw)
    for kind, found, expected in released:
        assert found == pytest.approx(expected, rel=1e-12), kind


@pytest.mark.parametrize(
    "update, repeats",
    [
        pytest.param(2, False, id="within an epoch"),
        pytest.param(4, True, id="at its end", marks=pytest.mark.backend_free),
    ],
)
def test_a_file_of_dpis_from_within_an_epoch_leads_to_noise_of_its_own(tmp_path, update, repeats):
    """No file holds the norms that were seen, so other batches may follow than in the run that went on."""

    def noise(model, *callbacks):
        strategy = strategies.DPIS(norm_sum_noise=20.0)
        settings = {"updates": 4, "epochs": 2, "noise_multiplier": None, "epsilon": 8.0, "strategy": strategy}
        return moves(model, callbacks=callbacks, **settings)

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.run.ledger.updates == update:
                self.model.save(tmp_path / "model.keras")

    first = noise(silent(), Keep())[update:]
    rest = noise(keras.saving.load_model(tmp_path / "model.keras"))
    assert len(first) == len(rest) == 8 - update
    for pair in zip(first, rest, strict=True):
        assert correlation(*pair) > 0.999 if repeats else correlation(*pair) < LIMIT
