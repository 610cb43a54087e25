"""Penalties on weights: added behind the noise, as Keras adds them, and nothing else that a layer adds."""

import keras
import numpy as np
import pytest
from keras import layers as L

import lipdp
from lipdp import strategies
from lipdp.losses import penalties
from tests.helpers.models import blobs

X, Y = blobs(60, 6, 3)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
FIT = {"batch_size": 60, "delta": 1e-5, "verbose": 0}
WHOLE = strategies.DPSGD(clip_norm=100.0)  # clips nothing


def network(private=True, kernel="l2", bias=None):
    keras.utils.set_random_seed(1)
    network = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(5, "relu", kernel_regularizer=kernel, bias_regularizer=bias, bias_initializer="ones"),
            L.Dense(3, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02)),
        ]
    )
    model = lipdp.DP_Model.from_keras(network) if private else network
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), loss=LOSS)
    return model


@pytest.mark.parametrize("microbatch", [None, 16])
@pytest.mark.parametrize(
    ("kernel", "bias"), [("l1", None), ("l2", "l1"), (keras.regularizers.L1L2(0.1, 0.2), keras.regularizers.L2(0.3))]
)
def test_weights_are_those_of_keras(kernel, bias, microbatch):
    ours, theirs = network(True, kernel, bias), network(False, kernel, bias)
    theirs.fit(X, Y, epochs=5, batch_size=60, verbose=0)
    ours.fit(X, Y, epochs=5, noise_multiplier=1e-6, strategy=WHOLE, microbatch_size=microbatch, **FIT)
    assert ours.run.plan.sampling.batch_size == len(X)
    for mine, wanted in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, wanted, atol=2e-4)


@pytest.mark.parametrize("strategy", ["dpsgd", "dpis", "adaclip"])
def test_every_strategy_that_clips_adds_them(strategy):
    def sizes(model):
        return [float(np.abs(w).sum()) for w in model.get_weights()]

    model = network(kernel=keras.regularizers.L2(2.0))
    before = sizes(model)
    # The weights shrink by 0.4 per update; what the data add is limited by a small clip norm.
    made = {
        "dpsgd": strategies.DPSGD(clip_norm=1e-3),
        "dpis": strategies.DPIS(clip_norm=1e-3),
        "adaclip": strategies.AdaCliP(),
    }
    model.compile(keras.optimizers.SGD(0.1), loss=LOSS)
    model.fit(X, Y, epochs=8, epsilon=50.0, strategy=made[strategy], **{**FIT, "batch_size": 30})
    after = sizes(model)
    if strategy != "adaclip":
        assert after[0] < 0.05 * before[0]
        assert after[1] > 0.9 * before[1]  # has none
    other = network(kernel=keras.regularizers.L2(0.0))
    other.compile(keras.optimizers.SGD(0.1), loss=LOSS)
    other.fit(X, Y, epochs=8, epsilon=50.0, strategy=made[strategy], **{**FIT, "batch_size": 30})
    assert after[0] < 0.5 * sizes(other)[0]


def test_clipless_training_adds_them():
    class Scale(lipdp.layers.LipschitzLayer):
        def build(self, shape):
            self.w = self.add_weight(shape=(6,), initializer="ones", regularizer=keras.regularizers.L2(2.0), name="w")

        def call(self, x):
            return x * keras.ops.clip(self.w, -1.0, 1.0)

        def parameter_bounds(self, input_bounds, cotangent_bound):
            return (input_bounds[0] * cotangent_bound,)

    model = lipdp.DP_Sequential([lipdp.layers.BoundedInput((6,), norm=1.0), Scale(), lipdp.layers.SpectralDense(3)])
    model.compile(keras.optimizers.SGD(0.1), loss=lipdp.losses.SparseCategoricalCrossentropy(clip=1e-3))
    model.fit(X, Y, epochs=6, epsilon=50.0, **FIT)
    assert np.abs(model.get_weights()[0]).max() < 0.1


def test_the_loss_of_evaluate_is_that_of_keras():
    ours, theirs = network(), network(False)
    weight = np.arange(60) % 3 / 2.0
    for arguments in ({}, {"sample_weight": weight}):
        for batch in (60, 20):
            wanted = theirs.evaluate(X, Y, batch_size=batch, verbose=0, **arguments)
            np.testing.assert_allclose(ours.evaluate(X, Y, batch_size=batch, verbose=0, **arguments), wanted, rtol=1e-5)
    history = ours.fit(X, Y, noise_multiplier=1.0, strategy=WHOLE, validation_data=(X, Y), **FIT).history
    np.testing.assert_allclose(history["val_loss"][-1], ours.evaluate(X, Y, verbose=0), rtol=1e-5)


def test_an_update_past_the_budget_adds_none():
    model = network(kernel=keras.regularizers.L2(1.0))
    model.fit(X, Y, epochs=1, noise_multiplier=1.0, strategy=WHOLE, **FIT)
    weights = model.trainable_variables
    optimizer, before = model.optimizer, [w.numpy() for w in weights]
    optimizer.momentum = 0.0
    optimizer.disarm()
    for variable in optimizer.variables:
        if variable.path.endswith("momentum"):
            variable.assign(np.zeros(variable.shape))
    optimizer.apply([keras.ops.ones(w.shape) for w in weights], weights)
    assert all(np.array_equal(w.numpy(), old) for w, old in zip(weights, before, strict=True))


def test_another_penalty_is_another_secret():
    def key(factor):
        keras.utils.set_random_seed(1)
        model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((6,)), L.Dense(3)]))
        # Past the layer, whose configuration tells nothing of it.
        model.trainable_weights[0].regularizer = factor and keras.regularizers.L2(factor)
        model.compile("sgd", loss=LOSS)
        model.fit(X, Y, noise_multiplier=1.0, strategy="dpsgd", seed=3, **FIT)
        return model.optimizer.noise_key.numpy().tolist()

    keys = [key(factor) for factor in (None, 0.1, 0.2)]
    assert key(0.1) == keys[1]
    assert keys[0] != keys[1] != keys[2]


def test_a_penalty_that_changes_between_fits_is_traced_again():
    model = network(kernel=keras.regularizers.L2(0.0))
    fit = {"noise_multiplier": 1e-6, "strategy": strategies.DPSGD(clip_norm=1e-6), **FIT}
    model.fit(X, Y, **fit)
    before = np.abs(model.get_weights()[0]).sum()
    model.trainable_weights[0].regularizer = keras.regularizers.L2(2.0)
    model.optimizer.momentum = 0.0
    model.fit(X, Y, epochs=4, **fit)
    assert np.abs(model.get_weights()[0]).sum() < 0.4 * before


class Mine(keras.regularizers.L2):
    def __call__(self, x):
        return 3.0 * super().__call__(x)


@pytest.mark.parametrize("other", [keras.regularizers.OrthogonalRegularizer(), Mine(), lambda w: keras.ops.sum(w)])
def test_others_are_refused(other):
    model = network(kernel=other)
    with pytest.raises(ValueError, match="other than L1, L2 and L1L2.*lipdp.fix.*weight_decay"):
        model.fit(X, Y, noise_multiplier=1.0, strategy="dpsgd", **FIT)
    assert model.run.ledger.updates == 0


@pytest.mark.parametrize("factor", [keras.Variable(0.1), np.ones(5), lambda: 0.1])
def test_factors_that_are_no_numbers_are_refused(factor):
    model = network()
    model.trainable_weights[0].regularizer.l2 = factor
    with pytest.raises(ValueError, match=f"no number.*Received: l2={type(factor).__name__}.*Set a float"):
        model.fit(X, Y, noise_multiplier=1.0, strategy="dpsgd", **FIT)
    assert model.run.ledger.updates == 0


def test_only_what_a_regularizer_reads_is_added():
    ours, theirs = network(), network(False)
    for one in (ours, theirs):
        one.trainable_weights[0].regularizer.l1 = 0.7  # L2 of Keras does not look at it
    theirs.fit(X, Y, epochs=2, batch_size=60, verbose=0)
    ours.fit(X, Y, epochs=2, noise_multiplier=1e-6, strategy=WHOLE, **FIT)
    np.testing.assert_allclose(ours.get_weights()[0], theirs.get_weights()[0], atol=2e-4)


def test_losses_that_layers_add_beside_them_are_refused():
    class Adds(L.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x))
            return x

    inner = keras.Sequential([keras.Input((6,)), Adds(), L.Dense(3, kernel_regularizer="l2", bias_regularizer="l1")])
    model = lipdp.DP_Model.from_keras(inner)
    model.compile("sgd", loss=LOSS)
    with pytest.raises(ValueError, match="(?i)additional losses.*Received"):
        model.fit(X, Y, noise_multiplier=1.0, strategy="dpsgd", **FIT)


def test_frozen_weights_have_none():
    model = network()
    model.layers[-1].trainable = False
    model.compile("sgd", loss=LOSS)
    model.fit(X, Y, noise_multiplier=1.0, strategy="dpsgd", **FIT)
    assert len(penalties.described(model)) == 1


def test_saved_models_go_on_with_them(tmp_path):
    model = network()
    model.fit(X, Y, noise_multiplier=1.0, strategy="dpsgd", **FIT)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert penalties.described(again) == penalties.described(model) != []
    again.fit(X, Y, noise_multiplier=1.0, strategy="dpsgd", **FIT)


def test_own_layers_that_become_functional_keep_them():
    class Block(L.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = L.Dense(6, kernel_regularizer="l2")

        def build(self, shape):
            self.dense.build(shape)

        def call(self, x):
            return x + self.dense(x)

    inputs = keras.Input((6,))
    model = lipdp.to_functional(keras.Model(inputs, L.Dense(3)(Block()(inputs))))
    assert not any(isinstance(layer, Block) for layer in model.layers)
    assert penalties.described(model) == [[0, 0.0, pytest.approx(0.01)]]
