"""Updates that fail before anything is computed: the model, its weights and its budget are as before `fit`."""

import keras
import numpy as np
import pytest

import lipdp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
Y = RNG.integers(0, 3, 60).astype("int32")


class Fails(keras.callbacks.Callback):
    """Makes the metric of `model_and_failure` fail from the beginning of one epoch on, after `fit` has tried it."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch, self.failing = epoch, False

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            self.failing = True
            self.model.make_train_function(force=True)

    def on_train_end(self, logs=None):
        self.failing = False


def model_and_failure(epoch):
    failure = Fails(epoch)

    def metric(y_true, y_pred):
        if failure.failing:
            raise RuntimeError("this update cannot be compiled")
        return keras.ops.mean(y_pred, -1)

    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=[metric])
    return model, failure


@pytest.mark.parametrize("strategy", ["dpsgd", pytest.param("dpis", marks=pytest.mark.slow)])
def test_first_update_that_cannot_be_compiled_leaves_the_weights(strategy):
    model, failure = model_and_failure(epoch=0)
    budget = {"epsilon": 20.0} if strategy == "dpis" else {"noise_multiplier": 2.0}
    arguments = {"batch_size": 20, "delta": 1e-3, "verbose": 0, "strategy": strategy, **budget}
    before = model.get_weights()
    with pytest.raises(RuntimeError, match="cannot be compiled"):
        model.fit(X, Y, callbacks=[failure], **arguments)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    if strategy == "dpsgd":  # nothing was released; DPIS keeps a charge once it has begun
        assert model.privacy.epsilon(1e-3) == 0.0
    failure.failing = False
    model.fit(X, Y, **arguments)
    assert model.privacy.epsilon(1e-3) > 0
    assert all(np.isfinite(value).all() for value in model.get_weights())


def test_later_update_that_cannot_be_compiled_leaves_what_the_earlier_ones_have_made():
    model, failure = model_and_failure(epoch=1)
    kept = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.extend(model.get_weights()))
    arguments, seen = {"batch_size": 20, "delta": 1e-3, "verbose": 0, "noise_multiplier": 2.0}, []
    with pytest.raises(RuntimeError, match="cannot be compiled"):
        model.fit(X, Y, epochs=2, callbacks=[failure, kept], **arguments)
    for old, new in zip(seen, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    spent, failure.failing = model.privacy.epsilon(1e-3), False
    assert spent > 0
    model.fit(X, Y, **arguments)
    assert model.privacy.epsilon(1e-3) > spent


class Looks(keras.optimizers.SGD):
    """Keeps the noisy gradient that it is given, and fails."""

    seen: list = []

    def update_step(self, gradient, variable, learning_rate):
        self.seen.append(keras.ops.convert_to_numpy(gradient))
        raise KeyboardInterrupt


def test_update_in_eager_mode_that_fails_after_its_noise_stays_charged():
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(Looks(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    before = model.get_weights()
    Looks.seen.clear()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, batch_size=20, noise_multiplier=2.0, delta=1e-3, verbose=0)
    assert Looks.seen
    assert model.privacy.epsilon(1e-3) > 0
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


class Breaks(keras.optimizers.SGD):
    """Fails while an update is executed."""

    def update_step(self, gradient, variable, learning_rate):
        import jax

        def fails(gradient):
            raise RuntimeError("this update cannot be executed")

        none = jax.pure_callback(fails, jax.ShapeDtypeStruct((), "float32"), gradient)
        super().update_step(gradient + none, variable, learning_rate)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow keeps the values in the variables")
def test_update_that_fails_while_it_is_executed_leaves_the_ledger():
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(Breaks(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    arguments = {"batch_size": 20, "delta": 1e-3, "verbose": 0, "noise_multiplier": 2.0}
    with pytest.raises(Exception, match="cannot be executed"):
        model.fit(X, Y, **arguments)
    assert model.privacy.epsilon(1e-3) > 0
    with pytest.raises(ValueError, match="takes the weights"):
        model.fit(X, Y, **arguments)
