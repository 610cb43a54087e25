"""Dropout, noise and random images: their draws come from the secret of the run, and no file tells them."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import backend, callbacks, strategies
from lipdp.training import seeding

FIT = {"batch_size": 20, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}
IMAGES = {
    "RandomFlip": lambda: L.RandomFlip(),
    "RandomTranslation": lambda: L.RandomTranslation(0.2, 0.2),
    "RandomRotation": lambda: L.RandomRotation(0.2),
    "RandomZoom": lambda: L.RandomZoom(0.2),
    "RandomShear": lambda: L.RandomShear(0.2, 0.2),
    "RandomCrop": lambda: L.RandomCrop(5, 5),
    "RandomBrightness": lambda: L.RandomBrightness(0.3, (0, 1)),
    "RandomContrast": lambda: L.RandomContrast(0.3, (0, 1)),
    "RandomHue": lambda: L.RandomHue(0.3, (0, 1)),
    "RandomSaturation": lambda: L.RandomSaturation(0.4, (0, 1)),
    "RandomGrayscale": lambda: L.RandomGrayscale(0.5),
    "RandomColorJitter": lambda: L.RandomColorJitter((0, 1), 0.2, 0.2, 0.2, 0.2),
    "RandomColorDegeneration": lambda: L.RandomColorDegeneration(0.5, (0, 1)),
    "RandomInvert": lambda: L.RandomInvert(0.5, (0, 1)),
    "RandomPosterization": lambda: L.RandomPosterization(4, (0, 1)),
    "RandomSharpness": lambda: L.RandomSharpness(0.5, (0, 1)),
    "RandomGaussianBlur": lambda: L.RandomGaussianBlur(value_range=(0, 1)),
    "RandomErasing": lambda: L.RandomErasing(value_range=(0, 1)),
    "RandomPerspective": lambda: L.RandomPerspective(),
    "RandomElasticTransform": lambda: L.RandomElasticTransform(value_range=(0, 1)),
    "Solarization": lambda: L.Solarization(0.3, (0.2, 0.8), value_range=(0, 1)),
}
QUICK = ("RandomFlip", "RandomColorJitter", "Solarization")  # the second holds others


def model_of(*middle, shape=(6,), **compile_arguments):
    keras.utils.set_random_seed(0)
    stack = keras.Sequential([keras.Input(shape), *middle, L.Flatten(), L.Dense(3)])
    model = lipdp.DP_Model.from_keras(stack)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"], **compile_arguments)
    return model


def data(*shape):
    rng = np.random.default_rng(0)
    return rng.uniform(size=(100, *shape)).astype("float32"), rng.integers(0, 3, 100).astype("int32")


def states(model):
    return [ops.convert_to_numpy(seeds.state.value).tolist() for _, seeds in seeding.generators(model)]


def final(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        "dpsgd",
        strategies.DPSGD(augmentation_multiplicity=3),
        pytest.param("adaclip", marks=pytest.mark.slow),
        "dpis",
    ],
    ids=["dpsgd", "copies", "adaclip", "dpis"],
)
def test_ordinary_models_train(strategy):
    model = model_of(L.GaussianNoise(0.1), L.Dense(16, "relu"), L.Dropout(0.3), L.AlphaDropout(0.1))
    noise = {"epsilon": 4.0} if strategy == "dpis" else {"noise_multiplier": 1.0}
    model.fit(*data(6), epochs=2, strategy=strategy, **{**FIT, "noise_multiplier": None} | noise)
    assert model.run.ledger.updates == 10 and np.isfinite(final(model)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in IMAGES])
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_random_images_train_and_keep_rows_apart(name):
    if keras.backend.backend() == "jax" and name in ("RandomCrop", "RandomElasticTransform"):
        pytest.skip("Keras' own cannot be compiled with JAX")
    layer, (x, y) = IMAGES[name](), data(8, 8, 3)
    generators = [seeds for inner in layer._flatten_layers() for seeds in inner._seed_generators]
    start = [ops.convert_to_numpy(seeds.state.value) for seeds in generators]

    def change(x):
        for seeds, state in zip(generators, start, strict=True):
            seeds.state.assign(state)
        return ops.convert_to_numpy(layer(ops.convert_to_tensor(x), training=True))

    usual, rng = change(x[:12]), np.random.default_rng(1)
    for row in range(12):
        other = x[:12].copy()
        other[row] = 1e6 * rng.normal(size=other[row].shape)
        np.testing.assert_array_equal(np.delete(change(other), row, 0), np.delete(usual, row, 0))
    # Crops have another size in training than in inference.
    model = model_of(layer, L.GlobalAveragePooling2D(), shape=(8, 8, 3))
    model.fit(x, y, strategy="dpsgd", **FIT)
    assert model.run.ledger.updates == 5 and np.isfinite(final(model)).all()


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_rows_of_several_devices_have_other_masks_and_so_other_noise(rate, monkeypatch):
    """A seed gives a mask to a place in the batch: with the same noise, two runs would give their difference away."""
    keys = []
    for shards in (1, 2, 1):
        monkeypatch.setattr(backend, "row_shards", lambda shards=shards: (shards, tuple(range(shards))))
        keras.utils.set_random_seed(0)
        model = model_of(*([L.Dropout(rate)] if rate else []), L.Dense(4))
        model.fit(*data(6), strategy="dpsgd", seed=3, **FIT)
        keys.append(ops.convert_to_numpy(model.optimizer.noise_key))
    assert np.array_equal(keys[0], keys[2]) and np.array_equal(keys[0], keys[1]) == (not rate)


def attention(layer):
    return lambda x: layer(x, x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: L.Dropout(0.5),
        lambda: L.SpatialDropout1D(0.5),
        lambda: L.AlphaDropout(0.5),
        lambda: L.GaussianDropout(0.5),
        lambda: L.GaussianNoise(1.0),
        lambda: L.LSTM(3, dropout=0.5),
        pytest.param(lambda: L.GRU(3, dropout=0.3, recurrent_dropout=0.3), marks=pytest.mark.slow),
        pytest.param(lambda: L.Bidirectional(L.SimpleRNN(3, dropout=0.5)), marks=pytest.mark.slow),
        lambda: L.RNN([L.LSTMCell(3, dropout=0.5), L.GRUCell(2, recurrent_dropout=0.5)]),
        pytest.param(lambda: L.TimeDistributed(L.Dropout(0.5)), marks=pytest.mark.slow),
        lambda: attention(L.MultiHeadAttention(2, 3, dropout=0.5)),
        pytest.param(lambda: attention(L.GroupQueryAttention(3, 2, 1, dropout=0.5)), marks=pytest.mark.slow),
        lambda: lambda x: L.Attention(dropout=0.5)([x, x]),
        pytest.param(lambda: lambda x: L.AdditiveAttention(dropout=0.5)([x, x]), marks=pytest.mark.slow),
    ],
)
def test_nothing_is_drawn_from_elsewhere(make):
    """With the states that `fit` sets put back a layer draws the same again, and with others something else."""
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, make()(inputs))
    x = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")
    found = [seeds for _, seeds in seeding.generators(model)]

    def draw(number):
        for k, seeds in enumerate(found):
            seeds.state.assign(np.array([number, k], seeds.state.dtype))
        return ops.convert_to_numpy(model(x, training=True))

    assert found
    np.testing.assert_array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))


def test_a_network_with_dropout_for_each_time_trains():
    """Keras' loop over time draws other numbers, and the weights inside were taken for used elsewhere."""
    inside = keras.Sequential([L.Dense(4, "relu"), L.Dropout(0.5), L.Dense(3)])
    model = model_of(L.TimeDistributed(inside), shape=(5, 3))
    model.fit(*data(5, 3), strategy="dpsgd", **FIT)
    assert model.run.ledger.updates == 5 and np.isfinite(final(model)).all()


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("layer", [L.MixUp, L.CutMix, L.AugMix, L.RandAugment])
def test_images_that_are_mixed_are_refused(layer):
    x, y = data(8, 8, 3)
    model = model_of(layer(), shape=(8, 8, 3))
    with pytest.raises(ValueError, match=rf"or mixes them. Received: {layer.__name__}.*RandomFlip"):
        model.fit(x, y, strategy="dpsgd", **FIT)
    assert model.run.ledger.updates == 0


def test_masks_follow_from_the_secret_and_not_from_a_seed_of_keras(tmp_path):
    seen = []
    for _ in range(2):
        model = model_of(L.Dense(8), L.Dropout(0.5, seed=1), L.Dropout(0.2))
        before = states(model)
        model.fit(*data(6), strategy="dpsgd", **FIT)
        seen.append(states(model))
        assert all(a != b for a, b in zip(before, seen[-1], strict=True))
    # Neither two fits have a key in common, nor two layers.
    assert len({key for fit in seen for key, _ in fit}) == 4
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert all(a != b for a, b in zip(states(loaded), seen[-1], strict=True))
    other = model_of(L.Dense(8), L.Dropout(0.5, seed=1), L.Dropout(0.2))
    other.load_weights(tmp_path / "m.weights.h5")
    assert all(a != b for a, b in zip(states(other), seen[-1], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 3])
def test_once_a_run_without_a_seed_is_over_nothing_holds_what_its_masks_follow_from(seed):
    """Formats of Keras past `save`, as that of `export`, hold the states: a counter that goes back gives all masks."""
    model, seen = model_of(L.Dense(8), L.Dropout(0.5), L.GaussianNoise(0.1)), []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            getattr(model, "jax_state_sync", lambda: None)()
            seen.append(states(model))
            if len(seen) == 7:
                raise KeyboardInterrupt

    for _ in range(2):  # one that ends, and one that is stopped
        try:
            model.fit(*data(6), strategy="dpsgd", seed=seed, callbacks=[Look()], **FIT)
        except KeyboardInterrupt:
            assert len(seen) == 7
        kept = [key == last for (key, _), (last, _) in zip(states(model), seen[-1], strict=True)]
        assert kept == [seed is not None] * 2


@pytest.mark.slow
def test_each_update_draws_anew():
    """Counters only rise, and a microbatch takes a number of its own."""
    model, seen = model_of(L.Dense(8), L.Dropout(0.5)), []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            getattr(model, "jax_state_sync", lambda: None)()
            seen.append(states(model)[0])

    model.fit(*data(6), strategy="dpsgd", microbatch_size=2, callbacks=[Look()], **FIT)
    assert len({key for key, _ in seen}) == 1
    assert np.diff([count for _, count in seen]).min() >= 2


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_seed_repeats_and_a_run_that_was_stopped_goes_on_with_its_masks(tmp_path, eager):
    def build():
        keras.utils.set_random_seed(0)
        return model_of(L.Dense(8, "relu"), L.Dropout(0.5), run_eagerly=eager)

    arguments = {**FIT, "epochs": 2, "seed": 3, "strategy": "dpsgd"}
    whole, again, other = build(), build(), build()
    for model in (whole, again):
        model.fit(*data(6), **arguments)
    np.testing.assert_array_equal(final(whole), final(again))
    other.fit(*data(6), **arguments | {"seed": 4})
    assert not np.allclose(final(whole), final(other), atol=1e-3)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self._model.stop_training = self._model.run.ledger.updates >= 4

    path = tmp_path / ("c.keras" if eager else "c.weights.h5")
    part = build()
    part.fit(*data(6), callbacks=[callbacks.Checkpoint(path, every=1), Stop()], **arguments)
    assert part.run.ledger.updates == 4
    resumed = build()
    resumed.fit(*data(6), callbacks=[callbacks.Checkpoint(path, every=1)], **arguments)
    assert resumed.run.ledger.updates == 10
    np.testing.assert_array_equal(final(whole), final(resumed))


@pytest.mark.backend_free
def test_clipless_has_no_bound_for_masks():
    model = lipdp.DP_Sequential([lipdp.layers.BoundedInput((6,)), L.Dropout(0.2), lipdp.layers.SpectralDense(3)])
    model.compile("sgd", loss=lipdp.losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="Dropout.*a strategy that clips") as caught:
        model.fit(*data(6), **FIT)
    assert str(caught.value).count("dpsgd") == 1  # one hint, not two
