"""Which layers train is fixed for the whole of a `fit`."""

import keras
import numpy as np
import pytest

import lipdp

HOOKS = ("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end")


def data():
    rng = np.random.default_rng(0)
    return rng.random((64, 8)).astype("float32"), np.arange(64) % 2


def compiled(frozen=False):
    model = lipdp.DP_Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, activation="relu", name="first", trainable=not frozen),
            keras.layers.Dense(8, activation="relu", name="second"),
            keras.layers.Dense(2, name="last"),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(model, epsilon=8.0, **kwargs):
    return model.fit(
        *data(), batch_size=16, epochs=2, epsilon=epsilon, delta=1e-3, strategy="dpsgd", verbose=0, **kwargs
    )


class Sets(keras.callbacks.Callback):
    """Sets `trainable` of a layer in one hook, from the second epoch on, or for a moment only."""

    def __init__(self, hook, name, value, back=False):
        super().__init__()
        self.epoch = 0
        setattr(self, hook, lambda index, logs=None: self.act(hook, index, name, value, back))

    def act(self, hook, index, name, value, back):
        self.epoch = index if "epoch" in hook else self.epoch
        layer = self.model.get_layer(name)
        before, layer.trainable = layer.trainable, value
        if back:
            layer.trainable = before


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(("name", "value"), [("first", False), ("last", False), ("first", True)])
def test_a_layer_that_is_frozen_or_released_while_fit_runs_ends_it(hook, name, value):
    model = compiled(frozen=value)
    with pytest.raises(ValueError, match=f"fixed when `fit` begins.* for '{name}', set while it runs"):
        fit(model, callbacks=[Sets(hook, name, value)])
    # Weights and ledger are those of the updates that were made, and training goes on.
    assert model.get_layer(name).trainable is not value
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert model.privacy.updates <= 4
    fit(model)
    assert model.privacy.epsilon() <= 8.0 and model.run.updates_left == 0


def test_a_model_that_is_frozen_as_a_whole_is_set_back():
    class Freezes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.trainable = False

    model = compiled(frozen=True)
    with pytest.raises(ValueError, match="'second', 'last'"):
        fit(model, callbacks=[Freezes()])
    assert model.trainable and [layer.trainable for layer in model.layers] == [False, True, True]


def test_a_callback_that_sets_it_back_itself_is_nobodys_concern():
    model = compiled()
    fit(model, callbacks=[Sets("on_epoch_end", "first", False, back=True)])
    assert model.privacy.updates == 8


def test_the_way_out_keeps_the_ledger():
    model = compiled(frozen=True)
    fit(model)
    first = model.get_layer("first")
    before = first.get_weights()[0]
    first.trainable = True
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model, epsilon=12.0)
    assert model.privacy.updates == 16 and 8.0 < model.privacy.epsilon() <= 12.0
    assert np.abs(first.get_weights()[0] - before).max() > 0.0
