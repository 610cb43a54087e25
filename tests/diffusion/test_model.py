"""Private diffusion models: what an example can do to the gradient, and what is kept, charged and refused."""

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import accounting, backend, diffusion, gradients, losses, strategies
from lipdp.diffusion import toy
from tests.helpers.models import zero


def points(multiplicity=1, **options):
    network = toy.point_network(width=16, depth=1)
    return diffusion.DiffusionModel(network, noise_multiplicity=multiplicity, **options)


def labelled(**options):
    x, c_noise, label = keras.Input((2,)), keras.Input(()), keras.Input((), dtype="int32")
    seen = keras.layers.Concatenate()([x, keras.layers.Embedding(4, 3)(label), keras.layers.Reshape((1,))(c_noise)])
    hidden = keras.layers.Dense(8, activation="silu")(seen)
    network = keras.Model([x, c_noise, label], keras.layers.Dense(2)(hidden))
    return diffusion.DiffusionModel(network, num_classes=3, **options)


def captured(model, x, copies, use):
    """What `use` makes of the record of one update on examples x, as strategies get it; compiled."""
    loss = diffusion.DenoisingLoss()

    def run(rows):
        record = gradients.capture(
            backend.Forward(model),
            rows,
            ops.zeros((len(x) * copies, 1)),
            ops.ones((len(x),)),
            loss_values=lambda y, y_pred: losses.example_values(loss, y, y_pred),
            copies=copies,
        )
        return use(record)

    rows = ops.convert_to_tensor(np.repeat(np.asarray(x, "float32"), copies, axis=0))
    return backend.compiled(run, [])(rows)


def norm(tensors):
    return float(np.sqrt(sum(np.sum(np.square(ops.convert_to_numpy(t).astype(float))) for t in tensors)))


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_sensitivity_does_not_depend_on_the_multiplicity():
    model = points()
    x = np.array([[30.0, -40.0], [0.1, 0.2], [0.3, 0.0], [-0.5, 0.4]])
    ways = [strategies.DPSGD(0.5), strategies.DPSGD(0.5, clipping="automatic")]

    def use(record):
        first = ops.convert_to_tensor([1.0, 0.0, 0.0, 0.0])
        return sum(record.squared_norms())[0], [way.contributions(None, record, first, [])[0] for way in ways]

    for views in (1, 8):
        square, sums = captured(model, x, views, use)
        assert float(square) > 25.0, "the example pulls much harder than the clip norm"
        # What an example adds is its clipped gradient, whatever K: clipping each copy would give K times as much.
        assert all(0.49 < norm(part) <= 0.5 for part in sums)


@pytest.mark.backend_free
def test_the_variance_of_a_gradient_falls_as_one_over_the_multiplicity():
    model, n, spread = points(denoiser=diffusion.EDM(p_std=0.6)), 800, {}
    x = np.repeat([[0.4, -0.3]], n, axis=0)
    for views in (1, 8):
        squares, mean = captured(
            model, x, views, lambda record: (sum(record.squared_norms()), record.weighted_sum(ops.ones((n,)) / n))
        )
        spread[views] = float(ops.mean(squares)) - norm(mean) ** 2
    assert spread[1] / spread[8] == pytest.approx(8.0, rel=0.25)


@pytest.mark.slow
def test_rows_get_noise_of_their_own_and_calls_fresh_noise():
    layer = diffusion.Noising(num_classes=3, label_dropout=0.5)
    x, labels = ops.zeros((400, 2)), ops.ones((400,))
    (first, levels, target, given), (second, *_) = (layer([x, labels]) for _ in range(2))
    first, second, levels, given = (ops.convert_to_numpy(t) for t in (first, second, levels, given))
    assert len(np.unique(first)) == 800 and len(np.unique(levels)) > 390 and np.all(first != second)
    assert set(np.unique(given)) == {1, 3} and np.mean(given == 3) == pytest.approx(0.5, abs=0.1)
    # The noise is standard normal: with x = 0 the input is c_in * sigma * noise.
    sigma = np.exp(4 * levels)[:, None]
    noise = first * np.hypot(sigma, layer.denoiser.sigma_data) / sigma
    assert np.std(noise) == pytest.approx(1.0, abs=0.1)
    assert len(np.unique(np.round(noise, 3))) > 600
    expected = layer.denoiser.target(*(ops.convert_to_tensor(v, "float32") for v in (0 * noise, noise, sigma)))
    np.testing.assert_allclose(ops.convert_to_numpy(target), ops.convert_to_numpy(expected), rtol=1e-3, atol=1e-4)


def state(layer):
    return ops.convert_to_numpy(layer.seeds.state.value)


def test_the_secret_of_the_noise():
    first, second = diffusion.Noising(), diffusion.Noising()
    states = [state(layer) for layer in (first, second)]
    assert not np.array_equal(*states), "from the operating system, not from Keras' seed"
    for layer in (first, second):
        layer.seeds.reseed(np.arange(8))
    x = ops.zeros((3, 2))
    np.testing.assert_array_equal(*(ops.convert_to_numpy(layer(x)[0]) for layer in (first, second)))
    assert not np.array_equal(state(first), states[0])


def test_the_stored_state_of_the_noising_is_that_of_the_next_call_and_not_of_a_past_one():
    seeds = diffusion.Noising().seeds
    for _ in range(3):
        before = seeds.state.numpy()
        used = np.asarray(seeds.next()).astype("uint32")
        key, following = (np.asarray(k) for k in backend.ratchet(ops.convert_to_tensor(before)))
        np.testing.assert_array_equal(used, key[:2])
        np.testing.assert_array_equal(seeds.state.numpy(), following)
        assert not set(used) & set(seeds.state.numpy()) and not set(key) & set(following)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_file_holds_the_state_of_the_noising_of_a_seeded_run_only(tmp_path):
    model = points()
    model.compile("sgd")
    for seed in (None, 3, None):
        fit(model, toy.nine_modes(100), steps_per_epoch=1, seed=seed)
        model.save(tmp_path / "m.keras")
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        assert np.array_equal(state(loaded.noising), state(model.noising)) == (seed is not None)


def fit(model, x, y=None, **options):
    settings = {"batch_size": 20, "epochs": 1, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0, **options}
    return model.fit(x, y, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 16])
def test_fit_charges_what_it_executes(chunk):
    model = points(multiplicity=2)
    model.compile(keras.optimizers.SGD(0.1))
    history = fit(model, toy.nine_modes(100), seed=3, microbatch_size=chunk)
    expected = accounting.epsilon(noise_multiplier=1.0, sampling_probability=0.2, updates=5, delta=1e-3)
    assert history.history["epsilon"][-1] == pytest.approx(expected, rel=1e-3)
    assert "5 x gradient (dpsgd, poisson)" in model.privacy.statement()
    assert model.run.request.strategy.augmentation_multiplicity == 2
    # Errors of order one: the mean over the copies, not their sum.
    assert 0.3 < history.history["loss"][-1] < 2.0


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_engine_sees_every_weight_of_the_unet():
    network = diffusion.unet((4, 4, 1), 3, channels=4, multipliers=(1,), blocks=1, slim=True, attention=(4,))
    rng = np.random.default_rng(0)
    network.set_weights([w + 0.2 * rng.normal(size=w.shape) for w in network.get_weights()])
    # The probe compares with the ordinary gradient, and finds layers that mix examples.
    gradients.supported(diffusion.DiffusionModel(network, num_classes=3))


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("wrap", [keras.callbacks.CallbackList, lambda given: [keras.callbacks.CallbackList(given)]])
def test_callbacks_in_lists_are_looked_at(wrap):
    model = points()
    model.compile("sgd")
    for callback, message in (
        (keras.callbacks.EarlyStopping("loss"), "EarlyStopping"),
        (keras.callbacks.BackupAndRestore("never"), "BackupAndRestore"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(model, toy.nine_modes(100), callbacks=wrap([callback]))
    assert not model.run.ledger.releases
    seen = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["epsilon"]))
    assert fit(model, toy.nine_modes(100), callbacks=wrap([look])).history["epsilon"] == seen
    assert model._averaged is not None


def weights(model):
    return [np.array(ops.convert_to_numpy(v)) for v in model.network.trainable_variables]


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_average_follows_the_released_weights():
    model = points(average=0.9)
    model.compile(keras.optimizers.SGD(0.5))
    seen = [weights(model)]

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            getattr(model, "jax_state_sync", lambda: None)()
            seen.append(weights(model))

    fit(model, toy.nine_modes(100), callbacks=[Watch()])
    expected = seen[0]
    for t, present in enumerate(seen[1:], start=1):
        momentum = min(0.9, (1 + t) / (10 + t))
        expected = [momentum * a + (1 - momentum) * w for a, w in zip(expected, present, strict=True)]
    assert len(seen) == 6
    for variable, value in zip(model.averaged_network().trainable_variables, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(variable), value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.backend_free
def test_saving_keeps_weights_average_and_ledger(tmp_path):
    model = labelled()
    model.compile("adam")
    x, y = toy.nine_modes(60), np.arange(60) % 3
    fit(model, x, y)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.privacy.epsilon() == model.privacy.epsilon() > 0
    draw = {"sampler": diffusion.DDIM(3), "seed": 0}
    for averaged in (True, False):
        np.testing.assert_array_equal(
            again.sample(4, averaged=averaged, **draw), model.sample(4, averaged=averaged, **draw)
        )
    assert np.any(model.sample(4, **draw) != model.sample(4, averaged=False, **draw))
    fit(again, x, y)
    assert again.privacy.epsilon() > model.privacy.epsilon()


@pytest.mark.filterwarnings("ignore:A total of", "ignore:Skipping nested container")
@pytest.mark.backend_free
@pytest.mark.slow
def test_a_file_that_does_not_fit_leaves_no_average_behind(tmp_path):
    """What `sample` drew from was that of the file, and the ledger was not."""

    def with_classifier(width):
        inputs = keras.Input((2,))
        outputs = keras.layers.Dense(3)(keras.layers.Dense(width)(inputs))
        model = labelled(classifier=keras.Model(inputs, outputs))
        model.compile("adam")
        return model

    model, other = with_classifier(4), with_classifier(5)
    fit(model, toy.nine_modes(60), np.arange(60) % 3)
    model.save_weights(tmp_path / "run.weights.h5")
    with pytest.raises(ValueError, match="could not be loaded"):
        other.load_weights(tmp_path / "run.weights.h5")
    assert other.privacy.epsilon() == 0.0 and other.averaged_network() is other.network


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_resumed_run_repeats_an_uninterrupted_one(tmp_path):
    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.run.ledger.updates == 3:
                getattr(self.model, "jax_state_sync", lambda: None)()
                self.model.save(tmp_path / "model.keras")

    models = points(average=0.5), points(average=0.5)
    models[1].set_weights(models[0].get_weights())
    x, options = toy.nine_modes(100), {"seed": 3, "epochs": 2}
    for model, callbacks in zip(models, ([], [Save()]), strict=True):
        model.compile(keras.optimizers.Adam(0.1))
        fit(model, x, callbacks=callbacks, **options)
    resumed = keras.saving.load_model(tmp_path / "model.keras")
    fit(resumed, x, **options)
    assert resumed.privacy.updates == models[0].privacy.updates == 10
    for found, expected in zip(weights(resumed), weights(models[0]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for found, expected in zip(resumed._averaged, models[0]._averaged, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.backend_free
def test_without_a_seed_the_noise_begins_anew_with_each_fit():
    model = points()
    model.compile("sgd")
    x = toy.nine_modes(100)
    fit(model, x)
    known = state(model.noising)
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append(state(model.noising))

    fit(model, x, callbacks=[Watch()])
    assert not np.array_equal(seen[0], known), "a file with the state would give away the noise to come"


@pytest.mark.slow
def test_a_private_run_keeps_all_nine_modes():
    keras.utils.set_random_seed(0)
    network = toy.point_network(width=64, depth=2)
    model = diffusion.DiffusionModel(network, diffusion.EDM(p_mean=-1.8), noise_multiplicity=8, average=0.99)
    model.compile(keras.optimizers.Adam(3e-3))
    model.fit(toy.nine_modes(30000), epochs=40, batch_size=1000, epsilon=10.0, delta=1e-5, verbose=0, seed=0)
    assert model.privacy.epsilon() <= 10.0
    counts = toy.mode_counts(model.sample(2000, sampler=diffusion.DDIM(100, eta=1.0), batch_size=2000, seed=0))
    assert counts.min() > 2000 / 9 / 3, counts


@pytest.mark.backend_free
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_validation_on_training_rows_is_named_in_every_type(dtype):
    """Images in float64, which are copied into float32, passed for public ones."""
    model, x = points(), np.random.default_rng(0).normal(size=(64, 2)).astype(dtype)
    model.compile("sgd")
    fit = {"batch_size": 32, "noise_multiplier": 4.0, "delta": 1e-3, "verbose": 0, "training_metrics": False}
    stop = keras.callbacks.EarlyStopping(monitor="val_loss")
    with pytest.raises(ValueError, match="among the training data"):
        model.fit(x, validation_data=(x[:16],), callbacks=[stop], **fit)
    model.fit(x, validation_data=(x[:16],), **fit)
    assert "validation_data are among the training data" in " ".join(model.privacy.statement().split())


def narrow():
    """A network whose output would be broadcast to the shape of x."""
    x, c_noise = keras.Input((2,)), keras.Input(())
    return keras.Model([x, c_noise], keras.layers.Dense(1)(x) + zero(c_noise))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: diffusion.DiffusionModel(toy.point_network(), num_classes=3), "and labels when there are classes"),
        (lambda: diffusion.DiffusionModel(narrow()), r"outputs of shape \(1,\) for x of shape \(2,\)"),
        (lambda: points(multiplicity=0), "`noise_multiplicity` must be a positive integer"),
        (lambda: points(average=1.0), "`average` must be a number in"),
        (lambda: points(label_dropout=1.0), "`label_dropout` must be a number in"),
        (lambda: points().compile("sgd", loss="mse"), "The loss of a diffusion model"),
        (lambda: points().predict(toy.nine_modes(4)), "predicts nothing of an example. Draw examples with `sample`"),
        (lambda: fit(points(), toy.nine_modes(100), np.zeros(100, "int32")), "This model has no classes"),
        (
            lambda: fit(labelled(), np.zeros((9, 2)), np.full(9, 3)),
            "class ids from 0 to 2.* 3, in 9 of 9 labels",
        ),
        (lambda: fit(labelled(), np.zeros((9, 2)), np.zeros(9)), r"shape \(9,\) and dtype float64.*whole numbers as y"),
        (lambda: fit(labelled(), np.zeros((9, 2))), "class ids from 0 to 2.*Received: none. Pass them as y"),
        (
            lambda: diffusion.DiffusionModel(toy.point_network()).fit(toy.nine_modes(9), epsilon=1.0),
            r"not compiled. Call `compile\(\"adam\"\)` before",
        ),
        (lambda: fit(points(), toy.nine_modes(100), strategy="clipless"), "needs a strategy that clips"),
        (lambda: fit(points(), toy.nine_modes(100), class_weight={0: 2.0}), "no weights. Received: class_weight"),
        (
            lambda: fit(points(), toy.nine_modes(100), sample_weight=np.ones(100)),
            "no weights. Received: sample_weight",
        ),
        (lambda: fit(points(), toy.nine_modes(100), strategy="dpis"), "remembers gradient norms"),
        (
            lambda: fit(points(), toy.nine_modes(100), strategy=strategies.DPSGD(augmentation_multiplicity=3)),
            "set `noise_multiplicity`",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture
def policy():
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.mark.slow
def test_activations_in_bfloat16_and_noise_in_float32(policy, tmp_path):
    policy("mixed_bfloat16")
    network = diffusion.unet((8, 8, 1), 2, channels=8, multipliers=(1,), blocks=1, slim=True)
    mixture = diffusion.ClassMixture(2, components=2, frequencies=4)
    output = keras.layers.Add()([network.output, mixture(network.inputs)])
    model = diffusion.DiffusionModel(keras.Model(network.inputs, output), num_classes=2)
    model.compile("adam")
    x, y = np.random.default_rng(0).uniform(-1, 1, (40, 8, 8, 1)).astype("float32"), np.arange(40) % 2
    noisy, level, target, _ = model.noising((x, y.astype("float32")))
    assert {keras.backend.standardize_dtype(t.dtype) for t in (noisy, level, target)} == {"float32"}
    model.learn_moments(x, y, noise_multiplier=8.0, verbose=0)
    fit(model, x, y, epochs=1, steps_per_epoch=2)
    assert {v.dtype for v in model.network.trainable_variables} == {"float32"}
    drawn = model.sample(3, sampler=diffusion.DDIM(4), seed=0)
    assert drawn.dtype == "float32" and np.isfinite(drawn).all()
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.sample(3, sampler=diffusion.DDIM(4), seed=0), drawn)


@pytest.mark.parametrize("name", ["float64", "mixed_float16"])
def test_other_precisions_are_refused_by_name(policy, name):
    network = points().network
    policy(name)
    with pytest.raises(ValueError, match=f"dtype policy '{name}'"):
        diffusion.DiffusionModel(network)
