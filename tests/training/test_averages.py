"""Keras' moving average of the weights: what comes after the noise is free, and clipping needs no bounds of weights."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import strategies

RNG = np.random.default_rng(1)
X = RNG.normal(size=(32, 5)).astype("float32")
Y = RNG.integers(0, 3, 32).astype("int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network():
    keras.utils.set_random_seed(4)
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)])


def averaging(**options):
    return keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5, **options)


def flat(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"ema_overwrite_frequency": 2}], ids=["at the end", "every two updates"])
def test_averages_are_those_of_keras(options, tmp_path):
    plain = network()
    plain.compile(averaging(**options), LOSS)
    plain.fit(X, Y, batch_size=32, epochs=5, shuffle=False, verbose=0)
    model = lipdp.DP_Model.from_keras(network())
    model.compile(averaging(**options), LOSS)
    model.fit(
        X, Y, batch_size=32, epochs=5, sampling="fixed_order", noise_multiplier=1e-12, delta=1e-9, verbose=0,
        strategy=strategies.DPSGD(clip_norm=1e3),
    )  # fmt: skip
    np.testing.assert_allclose(flat(model), flat(plain), atol=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.use_ema and loaded.run.ledger.updates == 5
    np.testing.assert_array_equal(flat(loaded), flat(model))


@pytest.mark.slow
def test_a_model_that_was_used_is_saved_and_goes_on(tmp_path):
    """On JAX a weight was the array of its average, which `predict` deleted."""
    model = lipdp.DP_Model.from_keras(network())
    model.compile(averaging(), LOSS)
    arguments = {"batch_size": 8, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0, "strategy": "dpsgd"}
    model.fit(X, Y, **arguments)
    logits = model.predict(X, verbose=0)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "model.keras").predict(X, verbose=0), logits)
    model.fit(X, Y, **arguments)
    assert model.run.ledger.updates == 8


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["dpsgd", "adaclip", "dpis"])
def test_noise_and_charges_are_as_without(strategy):
    budget = {"epsilon": 60.0} if strategy == "dpis" else {"noise_multiplier": 2.0}
    for optimizer in (averaging(), keras.optimizers.Adam(0.05)):
        model = lipdp.DP_Model.from_keras(network())
        model.compile(optimizer, LOSS)
        model.fit(X, Y, batch_size=8, epochs=2, strategy=strategy, delta=1e-3, verbose=0, **budget)
        assert model.run.ledger.updates >= int(model.optimizer.iterations.numpy()) == 8


@pytest.mark.parametrize("strategy", ["clipless", "dpsgd"])
def test_bounds_of_weights_refuse_averages(strategy):
    """Of the strategy, or of certificates: an average of projected weights that is taken before lies outside."""
    model = lipdp.DP_Sequential([lipdp.layers.BoundedInput((5,)), lipdp.layers.SpectralDense(3)])
    model.compile(averaging(), lipdp.losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="(?s)use_ema=True.*strategy='dpsgd'"):
        model.fit(X, Y, epsilon=1.0, batch_size=8, delta=1e-3, verbose=0, strategy=strategy)
    assert model.run.ledger.updates == 0


@pytest.mark.slow
def test_a_checkpoint_holds_the_average_of_the_end(tmp_path):
    def fitted(*more):
        model = lipdp.DP_Model.from_keras(network())
        model.compile(averaging(), LOSS)
        callbacks = [lipdp.callbacks.Checkpoint(tmp_path / "run.weights.h5"), *more]
        arguments = {"batch_size": 8, "epochs": 2, "noise_multiplier": 2.0, "delta": 1e-3, "seed": 3, "verbose": 0}
        model.fit(X, Y, strategy="dpsgd", callbacks=callbacks, **arguments)
        return flat(model)

    np.testing.assert_array_equal(fitted(), fitted())
    # On disk the averages would stand for the weights, to which the next `fit` adds noise that was drawn already.
    with pytest.raises(ValueError, match="swap_on_epoch"):
        fitted(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))


@pytest.mark.backend_free
def test_averages_that_the_optimizer_does_not_keep_are_refused_before_anything_is_spent():
    """Keras said so when training was over."""
    model = lipdp.DP_Model.from_keras(network())
    model.compile("sgd", LOSS)
    swap = keras.callbacks.SwapEMAWeights()
    with pytest.raises(ValueError, match="use_ema=False. Give it use_ema=True"):
        model.fit(X, Y, batch_size=8, noise_multiplier=2.0, delta=1e-3, verbose=0, strategy="dpsgd", callbacks=swap)
    assert not model.run.ledger.updates
