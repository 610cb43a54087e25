"""What changes after the noise was calibrated: no step is made of other bounds than those it was calibrated for."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import bounds, layers, losses
from lipdp.training import guards

X = np.zeros((200, 4), "float32")
X[:, 0] = 1.0
Y = np.zeros(200, "int32")
CLIP = 1e-3
FIT = {"batch_size": 200, "noise_multiplier": 1e-3, "delta": 1e-4, "verbose": 0, "seed": 0}


class Halved(keras.layers.Layer):
    """A layer of a user's: nothing in its configuration tells its factor."""

    factor = 0.5

    def call(self, inputs):
        return self.factor * inputs


class Scaled(keras.layers.Layer):
    """A frozen layer whose bound follows from its weight."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer=keras.initializers.Constant(0.5), trainable=False)

    def call(self, inputs):
        return self.scale * inputs


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    monkeypatch.setattr(bounds.registry, "_ENTRIES", dict(bounds.registry._ENTRIES))
    bounds.register(Halved, lambda layer: layer.factor)
    bounds.register(Scaled, lambda layer: float(keras.ops.abs(layer.scale)))


def model_of(*behind, clip=CLIP, eagerly=False, **compile_arguments):
    keras.utils.set_random_seed(0)
    first = layers.SpectralDense(3, kernel_initializer="zeros", projected=False, name="first")
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), first, *behind])
    loss = losses.SparseCategoricalCrossentropy(clip=clip)
    model.compile(keras.optimizers.SGD(1.0), loss=loss, run_eagerly=eagerly, **compile_arguments)
    return model


def calling(when, change):
    callback = keras.callbacks.Callback()
    setattr(callback, when, lambda *_, **__: change())
    return callback


def moved(model, start=0.0):
    return float(np.linalg.norm(np.asarray(model.get_layer("first").get_weights()[0]) - start))


def untouched(model, start=0.0):
    # JAX holds the weights while a step is made, and a step that fails does not give them back.
    return keras.backend.backend() == "jax" or moved(model, start) == 0.0


def raise_clip(model):
    model.loss.clip = 1.0


def write_past_the_check(model):
    vars(model.loss)["clip"] = 1.0


def replace(model):
    model.loss = losses.SparseCategoricalCrossentropy()


@pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eagerly"])
@pytest.mark.parametrize("when", ["on_train_begin", "on_train_batch_begin"])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (raise_clip, AttributeError, "`clip` of SparseCategoricalCrossentropy is fixed while `fit` trains with it"),
        (write_past_the_check, ValueError, "gradient of the loss.*at most 0.001.*is 1.*once for each value"),
        (replace, ValueError, "gradient of the loss.*at most 0.001.*is 1.41421.*once for each value"),
    ],
)
def test_a_loss_that_a_callback_changes_before_the_first_step_is_refused(change, error, message, when, eagerly):
    """Claimed epsilon 1, true epsilon 146: the noise was that of the smaller clip."""
    model = model_of(eagerly=eagerly)
    with pytest.raises(error, match=message):
        model.fit(X, Y, epochs=3, callbacks=[calling(when, lambda: change(model))], **FIT)
    assert untouched(model)


@pytest.mark.slow
@pytest.mark.parametrize("change", [write_past_the_check, replace])
def test_a_loss_that_changes_later_moves_no_weight_further(change):
    model = model_of()  # the compiled step keeps what it was made of
    model.fit(X, Y, epochs=3, callbacks=[calling("on_train_batch_end", lambda: change(model))], **FIT)
    assert moved(model) < 3.3 * CLIP
    model = model_of(eagerly=True)
    with pytest.raises(ValueError, match="gradient of the loss"):
        model.fit(X, Y, epochs=3, callbacks=[calling("on_train_batch_end", lambda: change(model))], **FIT)
    assert keras.backend.backend() == "jax" or moved(model) < 1.1 * CLIP


LATER = {
    "scale": (
        lambda: keras.layers.Rescaling(0.01),
        lambda layer: setattr(layer, "scale", 1.0),
        "constant of.*0.01 and is 1 now",
    ),
    "offset": (lambda: keras.layers.Rescaling(0.01), lambda layer: setattr(layer, "offset", np.inf), "finite"),
    "function": (
        lambda: keras.layers.Activation("linear"),
        lambda layer: setattr(layer, "activation", lambda z: 50.0 * z),
        "no known Lipschitz constant",
    ),
    "slope": (
        lambda: keras.layers.LeakyReLU(negative_slope=0.1),
        lambda layer: setattr(layer, "negative_slope", 9.0),
        "constant of.*at most 1 and is 9 now",
    ),
    "own": (Halved, lambda layer: setattr(layer, "factor", 20.0), "constant of.*0.5 and is 20 now"),
}


@pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eagerly"])
@pytest.mark.parametrize("kind", LATER)
def test_a_layer_that_a_callback_changes_before_the_first_step_is_refused(kind, eagerly):
    """Keras' own layers are not fixed once they are built: weights moved 67 times as far as their bound."""
    make, change, message = LATER[kind]
    model = model_of(make(), eagerly=eagerly)
    layer = model.layers[-1]
    with pytest.raises(ValueError, match=message) as error:
        model.fit(X, Y, callbacks=[calling("on_epoch_begin", lambda: change(layer))], **FIT)
    assert f"ayer '{layer.name}'" in str(error.value)
    assert untouched(model)


@pytest.fixture
def unseen(monkeypatch):
    """Nobody notices that a callback has frozen or released a layer, before the step is made."""
    monkeypatch.setattr(guards, "SameModel", lambda *args: keras.callbacks.Callback())


@pytest.mark.usefixtures("unseen")
def test_a_weight_that_begins_to_train_is_refused():
    stack = [layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(4), layers.SpectralDense(3, name="last")]
    model = lipdp.DP_Sequential(stack)
    model.layers[-1].trainable = False
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    change = calling("on_train_begin", lambda: setattr(model.layers[-1], "trainable", True))
    with pytest.raises(ValueError, match="last/kernel' did not train and does so now"):
        model.fit(X, Y, callbacks=[change], **FIT)


def test_what_changes_the_norm_of_an_input_names_the_weight():
    """The constant of no layer changes, but what enters the one behind."""
    shift = keras.layers.Rescaling(1.0, name="shift")
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), shift, layers.SpectralDense(3)])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    change = calling("on_train_begin", lambda: setattr(shift, "offset", 5.0))
    with pytest.raises(ValueError, match="norm at the input of layer 'spectral_dense.*at most 1.*is 11"):
        model.fit(X, Y, callbacks=[change], **FIT)


@pytest.mark.slow
def test_a_step_that_is_made_anew_is_checked_again():
    """As other shapes of batches have it made: the first one was made in time, the second one is not."""
    model = model_of(keras.layers.Rescaling(0.01), clip=None)

    def change():
        model.layers[-1].scale = 1.0
        model.make_train_function(force=True)

    with pytest.raises(ValueError, match="constant of layer 'rescaling.*at most 0.01"):
        model.fit(X, Y, epochs=3, callbacks=[calling("on_train_batch_end", change)], **FIT)
    assert model.run.ledger.updates == 2
    if keras.backend.backend() == "tensorflow":  # JAX holds the weights
        assert 0.0 < moved(model) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["dpsgd", "adaclip"])
def test_where_gradients_are_clipped_a_loss_may_change(strategy):
    model = model_of()
    callbacks = [calling("on_epoch_begin", lambda: replace(model))]
    model.fit(X, Y, epochs=2, strategy=strategy, callbacks=callbacks, **FIT)
    assert model.run.ledger.updates == 2
    assert moved(model) < 2.2


@pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eagerly"])
@pytest.mark.parametrize("strategy", ["dpsgd", "adaclip", "dpis"])
@pytest.mark.usefixtures("unseen")
def test_a_callback_that_lets_batch_statistics_in_is_refused(strategy, eagerly):
    """Without weights of its own nothing but its statistics changes when the layer is no longer frozen."""
    norm = keras.layers.BatchNormalization(center=False, scale=False)
    norm.trainable = False
    model = lipdp.DP_Sequential([keras.Input((4,)), norm, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss=loss, run_eagerly=eagerly)
    change = calling("on_epoch_begin", lambda: setattr(norm, "trainable", True))
    arguments = {"batch_size": 50, "epsilon": 1.0, "delta": 1e-4, "verbose": 0, "strategy": strategy}
    with pytest.raises(ValueError, match="mixes the examples of a batch"):
        model.fit(X, Y, callbacks=[change], **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("eagerly", [False, True], ids=["compiled", "eagerly"])
def test_bounds_that_follow_from_weights_are_known_while_a_step_is_made(eagerly):
    model = model_of(Scaled(), eagerly=eagerly)
    model.layers[-1].scale.assign(0.25)
    model.fit(X, Y, epochs=2, **FIT)
    assert 0.0 < moved(model) < 2.2 * 0.25 * CLIP


@pytest.mark.parametrize("strategy", [lipdp.strategies.Clipless(quantile=0.5), lipdp.strategies.Clipless()])
def test_microbatches_and_quantiles_are_checked_as_well(strategy):
    model = model_of(keras.layers.Rescaling(0.01), clip=0.5)
    change = calling("on_epoch_begin", lambda: setattr(model.layers[-1], "scale", 1.0))
    with pytest.raises(ValueError, match="constant of layer 'rescaling.*at most 0.01"):
        model.fit(X, Y, strategy=strategy, microbatch_size=50, callbacks=[change], **FIT)
    assert untouched(model)


@pytest.mark.slow
def test_a_loss_may_be_changed_between_two_fits():
    model = model_of()
    for clip in (1e-3, 1e-2):
        model.loss.clip = clip
        start = model.get_layer("first").get_weights()[0]
        model.fit(X, Y, **FIT)
        assert moved(model, start) == pytest.approx(clip, rel=0.1)
