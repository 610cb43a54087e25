"""Callbacks that set the optimizer back while `fit` runs: noise must never be drawn twice, or from a key all know."""

import keras
import numpy as np
import pytest

import lipdp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
Y = RNG.integers(0, 3, 60).astype("int32")


class SetsBack(keras.callbacks.Callback):
    """Keeps the state of the first epoch's end in one of the ways that Keras has, and goes back to it later."""

    def __init__(self, way, folder):
        super().__init__()
        self.way, self.file = way, str(folder / "kept.weights.h5")

    def on_epoch_end(self, epoch, logs=None):
        _, optimizer = self.model, self.model.optimizer
        if epoch == 0:
            self.weights = self.model.get_weights()
            if self.way == "own variables":
                self.kept = {}
                optimizer.save_own_variables(self.kept)
            elif self.way == "file":
                self.model.save_weights(self.file)
            elif self.way == "variables":
                self.kept = [v.numpy() for v in optimizer.variables]
            elif self.way == "key":
                self.kept = optimizer.noise_key.numpy()
            elif self.way == "tree":
                self.kept = self.model.get_state_tree(value_format="numpy_array")
        if epoch == 1:
            self.model.set_weights(self.weights)
            if self.way == "own variables":
                optimizer.load_own_variables(self.kept)
            elif self.way == "file":
                keras.saving.load_weights(self.model, self.file)
            elif self.way == "variables":
                for variable, value in zip(optimizer.variables, self.kept, strict=True):
                    variable.assign(value)
            elif self.way == "key":
                optimizer.noise_key.assign(self.kept)
            elif self.way == "tree":
                self.model.set_state_tree(self.kept)
            elif self.way == "zeros":
                optimizer.noise_key.assign(np.zeros(8, "uint32"))


def fitted(way, folder, strategy="dpsgd"):
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    budget = {"epsilon": 60.0} if strategy == "dpis" else {"noise_multiplier": 2.0}
    arguments = {"batch_size": 20, "steps_per_epoch": 2, "epochs": 3, "delta": 1e-3, "verbose": 0, **budget}
    try:
        model.fit(X, Y, strategy=strategy, callbacks=[SetsBack(way, folder)], **arguments)
    finally:
        fitted.model = model
    return model


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["dpsgd", "dpis"])
@pytest.mark.parametrize(
    "way",
    [
        "own variables",
        "key",
        *(pytest.param(w, marks=pytest.mark.slow) for w in ("file", "variables", "tree", "zeros")),
    ],
)
def test_an_optimizer_set_back_within_fit_makes_no_further_update(way, strategy, tmp_path):
    with pytest.raises((RuntimeError, ValueError), match="while `fit` runs"):
        fitted(way, tmp_path, strategy)
    model = fitted.model
    assert int(model.optimizer.iterations.numpy()) <= model.run.ledger.updates <= 5 + (strategy == "dpis")


class SetsBackWithin(keras.callbacks.Callback):
    """Goes back to the key of the update before, in one of the hooks around an update."""

    kept: np.ndarray | None = None

    def go_back(self):
        if self.kept is not None:
            self.model.optimizer.noise_key.assign(self.kept)
        self.kept = self.model.optimizer.noise_key.numpy()


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX holds the variables during an epoch")
@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_epoch_begin"])
def test_a_key_set_back_between_two_updates_is_seen(hook):
    def act(self, index, logs=None):
        if hook == "on_epoch_begin":  # it gets its hook once `fit` has begun
            self.on_train_batch_begin = lambda *_, **__: self.go_back()
        else:
            self.go_back()

    callback = type("Within", (SetsBackWithin,), {hook: act})()
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    arguments = {"batch_size": 20, "steps_per_epoch": 4, "delta": 1e-3, "noise_multiplier": 2.0, "verbose": 0}
    with pytest.raises(RuntimeError, match="drawn already"):
        model.fit(X, Y, strategy="dpsgd", callbacks=[callback], **arguments)
    assert int(model.optimizer.iterations.numpy()) <= 2


@pytest.mark.parametrize("strategy", ["dpsgd", pytest.param("dpis", marks=pytest.mark.backend_free)])
def test_earlier_weights_alone_may_come_back(strategy, tmp_path):
    model = fitted("weights", tmp_path, strategy)
    assert int(model.optimizer.iterations.numpy()) == 6


class OfTheFitBefore(keras.callbacks.Callback):
    """Keeps the state of the optimizer in one `fit`, and goes back to it in the next."""

    kept: list | None = None

    def on_epoch_end(self, epoch, logs=None):
        variables = self.model.optimizer.variables
        if self.kept is None:
            self.kept = [v.numpy() for v in variables]
        elif epoch == 0 and self.params["epochs"] == 2:
            for variable, value in zip(variables, self.kept, strict=True):
                variable.assign(value)


@pytest.mark.parametrize(("noise", "received"), [(2.0, "have noise drawn again|drawn already"), (4.0, "to less noise")])
def test_an_optimizer_set_back_to_an_earlier_fit_makes_no_further_update(noise, received):
    """Noise was drawn again for other batches, or that of a larger budget was taken for the present one's."""
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    arguments = {"strategy": "dpsgd", "batch_size": 20, "steps_per_epoch": 2, "delta": 1e-3, "verbose": 0}
    back = OfTheFitBefore()
    model.fit(X, Y, epochs=3, noise_multiplier=2.0, callbacks=[back], **arguments)
    with pytest.raises(RuntimeError, match=received):
        model.fit(X, Y, epochs=2, noise_multiplier=noise, callbacks=[back], **arguments)
    assert int(model.optimizer.iterations.numpy()) <= model.run.ledger.updates == 9


@pytest.mark.slow
def test_the_next_fit_takes_a_state_from_before(tmp_path):
    """Between two fits the state may be any: the next one without a seed draws a key of its own."""
    model = fitted("weights", tmp_path)
    kept = [v.numpy() for v in model.optimizer.variables]
    model.fit(X, Y, strategy="dpsgd", batch_size=20, steps_per_epoch=2, noise_multiplier=2.0, delta=1e-3, verbose=0)
    for variable, value in zip(model.optimizer.variables, kept, strict=True):
        variable.assign(value)
    model.fit(X, Y, strategy="dpsgd", batch_size=20, steps_per_epoch=2, noise_multiplier=2.0, delta=1e-3, verbose=0)
    assert model.run.ledger.updates == 10
