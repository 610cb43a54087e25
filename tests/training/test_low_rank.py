"""Low-rank additions in files: training goes on with them, to the bit."""

import warnings

import keras
import numpy as np
import pytest

import lipdp
from lipdp.callbacks import Checkpoint
from lipdp.training import low_rank

X = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
Y = np.arange(48) % 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(layer=None, adapted=True):
    keras.utils.set_random_seed(1)
    layer = keras.layers.Dense(5, "tanh") if layer is None else layer
    model = lipdp.DP_Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
    if adapted:
        model.layers[0].enable_lora(2)
    model.compile(keras.optimizers.Adam(0.05), loss=LOSS)
    return model


def train(model, epochs, **options):
    model.fit(X, Y, batch_size=12, epochs=epochs, noise_multiplier=1.0, seed=7, verbose=0, **options)


def values(model):
    return [np.asarray(v.numpy()) for v in model.weights]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("name", [pytest.param("m.weights.h5", marks=pytest.mark.slow), "m.keras"])
def test_a_file_brings_the_additions_and_what_they_are_added_to(tmp_path, name):
    model = compiled()
    train(model, 1)
    path = tmp_path / name
    if name.endswith(".keras"):
        model.save(path)
        other = keras.saving.load_model(path)
    else:
        model.save_weights(path)
        other = compiled()
        other.load_weights(path)
    for a, b in zip(values(model), values(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert other.layers[0].lora_kernel_b.numpy().any()
    before = other.layers[0].lora_kernel_a.numpy()
    train(other, 1)
    assert (other.layers[0].lora_kernel_a.numpy() != before).any()


@pytest.mark.slow
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path):
    whole, first = compiled(), compiled()
    train(whole, 3, callbacks=[Checkpoint(tmp_path / "whole.weights.h5")])

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    path = tmp_path / "part.weights.h5"
    with pytest.raises(KeyboardInterrupt):
        train(first, 3, callbacks=[Checkpoint(path), Stop()])
    second = compiled()
    train(second, 3, callbacks=[Checkpoint(path)])
    for a, b in zip(values(whole), values(second), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_model_without_additions_is_told_that_a_file_has_them(tmp_path):
    model = compiled()
    train(model, 1)
    model.save_weights(tmp_path / "m.weights.h5")
    other = compiled(adapted=False)
    other.optimizer.build(other.trainable_variables)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        other.load_weights(tmp_path / "m.weights.h5")
    assert any("holds low-rank additions" in str(warning.message) for warning in told)
    np.testing.assert_allclose(other.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6)
    assert other.privacy.epsilon() == model.privacy.epsilon()


def three(adapted="a", rank=2, alpha=None):
    keras.utils.set_random_seed(3)
    inputs = outputs = keras.Input((6,))
    for name in "ab":
        outputs = keras.layers.Dense(6, "tanh", name=name)(outputs)
    model = lipdp.DP_Model(inputs, keras.layers.Dense(3, name="c")(outputs))
    for name in adapted:
        model.get_layer(name).enable_lora(rank, lora_alpha=alpha)
    model.compile(keras.optimizers.Adam(0.05), loss=LOSS)
    return model


def loaded(path, other):
    """Has a model read a file, and returns what it was told of low-rank additions."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        # The optimizer is another one.
        other.load_weights(path, skip_mismatch=True)
    return [str(w.message) for w in told if "holds low-rank" in str(w.message) or "no low-rank" in str(w.message)]


@pytest.fixture(scope="module")
def adapted_at_a(tmp_path_factory):
    model = three()
    train(model, 1)
    model.compile("sgd", loss=LOSS)
    path = tmp_path_factory.mktemp("files") / "m.weights.h5"
    model.save_weights(path)
    return model, path


@pytest.mark.backend_free
@pytest.mark.parametrize("options", [("b", 2, None), ("a", 3, None), ("a", 2, 8.0), ("", 2, None)], ids=str)
def test_additions_of_another_layer_rank_or_factor_stay_in_the_kernel(adapted_at_a, options):
    model, path = adapted_at_a
    other = three(*options)
    other.compile("sgd", loss=LOSS)
    told = loaded(path, other)
    assert told
    np.testing.assert_allclose(other.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6)
    for name in options[0]:  # they can be trained
        layer = other.get_layer(name)
        assert layer.lora_kernel_a.numpy().any() and not layer.lora_kernel_b.numpy().any()


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("earlier", [False, True])
def test_each_layer_takes_its_own_additions(tmp_path, monkeypatch, earlier):
    model = three("ab")
    train(model, 1)
    if earlier:  # files of earlier versions have no factor
        values = low_rank.values
        without = lambda model: {k: v for k, v in values(model).items() if not k.endswith("_scale")}  # noqa: E731
        monkeypatch.setattr(low_rank, "values", without)
    model.save_weights(tmp_path / "m.weights.h5")
    for adapted, told in (("b", True), ("ab", False), ("a", True)):
        other = three(adapted)
        other.compile("sgd", loss=LOSS)
        assert bool(loaded(tmp_path / "m.weights.h5", other)) is told, "of the other layer"
        for name in adapted:
            np.testing.assert_array_equal(other.get_layer(name).lora_kernel_a, model.get_layer(name).lora_kernel_a)
        np.testing.assert_allclose(other.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6)


@pytest.mark.slow
@pytest.mark.backend_free
def test_additions_to_a_layer_that_was_frozen_first_are_named():
    model = compiled(adapted=False)
    model.layers[0].trainable = False
    model.layers[0].enable_lora(2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        train(model, 1)
    assert any(f"frozen train nothing. Received: {model.layers[0].name} " in str(one.message) for one in told)
    model = compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(model, 1)
    assert model.layers[0].lora_kernel_b.numpy().any()


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.slow)])
def test_a_model_saved_after_enable_lora_loads(optimizer, tmp_path):
    """Before it is compiled again; it has more weights than the deviations of the last noise were for."""
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones((20, 4), "float32"), np.arange(20) % 2
    asked = {"batch_size": 10, "noise_multiplier": 1.0, "delta": 1e-3, "strategy": "dpsgd", "verbose": 0}
    model.fit(x, y, **asked)
    model.layers[0].enable_lora(2)
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.privacy.epsilon() == model.privacy.epsilon() > 0
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    loaded.compile("sgd", loaded.loss)
    loaded.fit(x, y, **asked)
    assert loaded.privacy.updates == 4
