"""What callbacks may change of a model while `fit` runs: neither what trains, nor the optimizer, nor any bound."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import bounds, layers, losses

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


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("name", "value"), [("first", False), pytest.param("last", False, marks=pytest.mark.slow), ("first", True)]
)
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


def test_the_update_after_a_change_is_not_charged():
    model = compiled()
    with pytest.raises(ValueError, match="fixed when `fit` begins"):
        fit(model, callbacks=[Sets("on_train_batch_end", "first", False)])
    assert model.run.ledger.updates == 1


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_epoch_end"])
def test_neither_at_the_very_end(hook):
    """JAX would bring the weights back to other variables."""
    model = compiled()
    setattr(sets := keras.callbacks.Callback(), hook, lambda *_, **__: setattr(model.layers[0], "trainable", False))
    with pytest.raises(ValueError, match="for 'first', set while it runs"):
        model.fit(*data(), batch_size=64, epsilon=8.0, delta=1e-3, strategy="dpsgd", verbose=0, callbacks=[sets])
    assert [weight.shape for weight in model.get_weights()[:2]] == [(8, 8), (8,)] and model.layers[0].trainable


def test_a_model_that_is_frozen_as_a_whole_is_set_back():
    class Freezes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.trainable = False

    model = compiled(frozen=True)
    with pytest.raises(ValueError, match="'second', 'last'"):
        fit(model, callbacks=[Freezes()])
    assert model.trainable and [layer.trainable for layer in model.layers] == [False, True, True]


@pytest.mark.backend_free
def test_another_precision_is_refused():
    """An eager step would take it at once, and a compiled one when it is traced again."""

    class Lowers(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.get_layer("second").dtype_policy = "mixed_bfloat16"

    model = compiled()
    with pytest.raises(ValueError, match="In which precision .* for 'second', set while it runs"):
        fit(model, callbacks=[Lowers()])
    assert model.privacy.updates == 4
    fit(model, epsilon=12.0)
    assert model.run.driver.of_one_size and model.run.driver.microbatch  # of one number of rows from here on


@pytest.mark.slow
def test_a_callback_that_sets_it_back_itself_is_nobodys_concern():
    model = compiled()
    fit(model, callbacks=[Sets("on_epoch_end", "first", False, back=True)])
    assert model.privacy.updates == 8


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["compile", "by hand"])
def test_another_optimizer_is_refused(way):
    class Replaces(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if way == "compile":
                self.model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            else:
                self.model.optimizer = keras.optimizers.SGD(0.1)

    model = compiled()
    with pytest.raises(ValueError, match="The optimizer of a model is fixed when `fit` begins"):
        fit(model, callbacks=[Replaces()])
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model)
    assert model.privacy.epsilon() <= 8.0


CLIP = 0.01
# Whatever the model says, it is wrong of some rows, so that there is a gradient.
SOME_WRONG = np.ones((64, 8), "float32"), (np.arange(64) % 4 == 0).astype("int32")
ALL_ROWS = {"batch_size": 64, "noise_multiplier": 1e-6, "delta": 1e-3, "verbose": 0, "sampling": "fixed_size"}


class Factor(keras.layers.Layer):
    """A layer of a user's whose constant is a weight that nothing trains."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, inputs):
        return self.factor * inputs


@pytest.fixture
def declared(monkeypatch):
    monkeypatch.setattr(bounds.registry, "_ENTRIES", dict(bounds.registry._ENTRIES))
    bounds.register(Factor, lambda layer: float(keras.ops.abs(layer.factor)))


def bounded(*more):
    stack = [layers.BoundedInput((8,), norm=1.0), layers.SpectralDense(8), layers.Bias(name="bias")]
    model = lipdp.DP_Sequential([*stack, *more, layers.SpectralDense(2, name="head")])
    model.compile(keras.optimizers.SGD(1.0), losses.SparseCategoricalCrossentropy(clip=CLIP))
    return model


def fit_bounded(model, **kwargs):
    model.fit(*data(), batch_size=16, epochs=2, epsilon=8.0, delta=1e-3, verbose=0, **kwargs)


class Changes(keras.callbacks.Callback):
    """Changes the model in one hook, and notes how far each update moves the layer in front."""

    def __init__(self, hook, change):
        super().__init__()
        self.hook, self.change, self.moved = hook, change, []

    def bias(self):
        return np.array(self.model.get_layer("bias").get_weights()[0])

    def act(self, hook):
        if hook == self.hook:
            self.change(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        self.act("on_epoch_begin")

    def on_train_batch_begin(self, batch, logs=None):
        self.act("on_train_batch_begin")
        self.before = self.bias()

    def on_train_batch_end(self, batch, logs=None):
        self.moved.append(np.linalg.norm(self.bias() - self.before))
        self.act("on_train_batch_end")

    def on_epoch_end(self, epoch, logs=None):
        self.act("on_epoch_end")


def grow(model):
    kernel = model.get_layer("head").trainable_variables[0]
    kernel.assign(100.0 * kernel)


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True], ids=["own", "given a function"])
@pytest.mark.parametrize("hook", HOOKS)
def test_weights_that_a_callback_sets_leave_no_bound(hook, given):
    """A kernel of a hundred times its norm behind a bias makes gradients there a hundred times as long as allowed."""
    model, changes = bounded(), Changes("none" if given else hook, grow)
    plain = keras.callbacks.Callback()
    setattr(plain, hook, lambda *args, **kwargs: grow(model))
    watching = type("Watching", (Changes,), {"__module__": "keras"})("none", grow) if given else changes
    callbacks = [plain, watching] if given else [changes]
    model.fit(*SOME_WRONG, epochs=2, steps_per_epoch=2, callbacks=callbacks, **ALL_ROWS)
    assert len(watching.moved) == 4 and 0.0 < max(watching.moved) <= 1.01 * CLIP


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_epoch_end"])
def test_neither_do_those_that_are_set_between_epochs_only(hook):
    model, places = bounded(), [np.zeros(8)]
    setattr(sets := keras.callbacks.Callback(), hook, lambda *args, **kwargs: grow(model))
    noted = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: places.append(np.array(model.get_layer("bias").get_weights()[0]))
    )
    model.fit(*SOME_WRONG, epochs=3, callbacks=[noted, sets], **ALL_ROWS)
    moved = [np.linalg.norm(after - before) for before, after in zip(places, places[1:], strict=False)]
    assert len(moved) == 3 and 0.0 < max(moved) <= 1.01 * CLIP


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_train_batch_begin"])
def test_bounds_that_follow_from_a_weight_which_a_callback_sets_are_refused(hook):
    model = bounded(Factor())
    changes = Changes(hook, lambda model: model.layers[-2].factor.assign(10.0))
    with pytest.raises(ValueError, match="constant of layer 'factor.*was at most 1 and is 10"):
        fit_bounded(model, callbacks=[changes])


@pytest.mark.slow
def test_weights_inside_of_their_bounds_may_be_set():
    model = bounded()
    zeros = Changes("on_epoch_end", lambda model: model.get_layer("bias").set_weights([np.zeros(8)]))
    fit_bounded(model, callbacks=[zeros])
    assert not np.any(model.get_layer("bias").get_weights()[0]) and model.privacy.updates == 8


@pytest.mark.backend_free
@pytest.mark.parametrize("hook", ["on_epoch_begin", pytest.param("on_epoch_end", marks=pytest.mark.slow)])
def test_weights_of_a_fit_of_smaller_batches_do_not_loosen_a_clip(hook):
    """They hold the scale of `ClipGradient`, 1 / 4: in batches of 64 gradients that were 16 times as long passed."""
    model = bounded(layers.ClipGradient(CLIP / 10.0, name="clip"))
    model.fit(*data(), batch_size=4, epsilon=8.0, delta=1e-3, verbose=0)
    kept, scales = model.get_weights(), []
    plain = keras.callbacks.Callback()
    setattr(plain, hook, lambda epoch, logs=None: epoch or model.set_weights(kept))
    plain.on_train_end = lambda logs=None: scales.append(float(model.get_layer("clip").scale.numpy()))
    model.fit(*data(), batch_size=64, epochs=2, epsilon=16.0, delta=1e-3, verbose=0, callbacks=[plain])
    assert scales == [1.0 / 64.0]


@pytest.mark.parametrize("hook", [pytest.param("on_train_batch_begin", marks=pytest.mark.slow), "on_train_batch_end"])
def test_updates_at_once_that_change_while_fit_runs_end_it(hook):
    """The compiled step would make four updates of which one is charged."""
    model = compiled()
    model.compile("sgd", model.loss, steps_per_execution=4)
    setattr(sets := keras.callbacks.Callback(), hook, lambda *_, **__: setattr(model, "steps_per_execution", 1))
    with pytest.raises(ValueError, match="updates are made at once is fixed .* 1, set while it runs"):
        fit(model, callbacks=[sets])
    assert model.steps_per_execution == 4
    assert model.privacy.updates == int(model.optimizer.iterations.numpy()) in (0, 4)
    fit(model)
    assert model.privacy.updates == int(model.optimizer.iterations.numpy())


@pytest.mark.parametrize("hook", ["on_train_begin", pytest.param("on_train_batch_begin", marks=pytest.mark.slow)])
def test_an_optimizer_that_scales_the_loss_makes_no_update(hook):
    """What it divides by afterwards would take the noise with it."""
    model = lipdp.DP_Sequential([layers.BoundedInput((8,)), layers.SpectralDense(2)])
    model.compile("sgd", losses.SparseCategoricalCrossentropy())
    before = model.get_weights()
    setattr(
        sets := keras.callbacks.Callback(), hook, lambda *_, **__: setattr(model.optimizer, "loss_scale_factor", 1e6)
    )
    with pytest.raises(ValueError, match="Loss scaling changes the gradient that the noise was calibrated for"):
        model.fit(*data(), batch_size=64, epsilon=1.0, delta=1e-3, verbose=0, callbacks=[sets])
    if keras.backend.backend() == "tensorflow":  # JAX has taken the weights out of their variables by then
        assert all(map(np.array_equal, before, model.get_weights()))
    assert model.run.ledger.updates <= 1


@pytest.mark.parametrize("name", ["compute_loss", pytest.param("train_step", marks=pytest.mark.slow)])
def test_a_step_of_its_own_that_a_callback_gives_to_a_model_makes_no_update(name):
    """The noise is that of the loss that was compiled."""
    model = lipdp.DP_Sequential([layers.BoundedInput((8,)), layers.SpectralDense(2)])
    model.compile("sgd", losses.SparseCategoricalCrossentropy())
    own = getattr(model, name)
    hook = {"on_train_begin": lambda *_: setattr(model, name, lambda *given, **named: 1e6 * own(*given, **named))}
    with pytest.raises(ValueError, match=f"with a `{name}` of its own"):
        model.fit(*data(), batch_size=64, epsilon=1.0, delta=1e-3, verbose=0, callbacks=[Calls(hook)])


class Calls(keras.callbacks.Callback):
    """Calls a function for each hook."""

    def __init__(self, hooks):
        super().__init__()
        vars(self).update(hooks)
