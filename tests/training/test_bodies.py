"""One seed is one release: what differs in code alone, not in any configuration, has noise of its own too."""

import contextlib
import dataclasses
import functools
import logging
import types

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp.optimizer import as_private

RNG = np.random.default_rng(2)
X = RNG.normal(size=(40, 4)).astype("float32")
Y = RNG.normal(size=(40, 1)).astype("float32")
FACTOR = 1.0


def closure(quantile):
    @lipdp.row_wise
    def loss(y_true, y_pred):
        error = y_true - y_pred
        return ops.mean(ops.maximum(quantile * error, (quantile - 1.0) * error), axis=-1)

    return loss


def of_a_global(y_true, y_pred):
    return FACTOR * ops.mean(ops.square(y_true - y_pred), axis=-1)


def edited(factor, sign="-"):
    """The same name and place, another body: what comes of editing a file and running it again."""
    space = {"ops": ops, "__name__": "users_module"}
    exec(f"def loss(y, p):\n    return {factor} * ops.mean(ops.square(y {sign} p), axis=-1)", space)
    return space["loss"]


class WithAttribute(keras.losses.Loss):
    def __init__(self, k):
        super().__init__(name="with_attribute")
        self.k = k

    def call(self, y_true, y_pred):
        return self.k * ops.mean(ops.square(y_true - y_pred), axis=-1)


class Scales(keras.layers.Layer):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def call(self, inputs):
        return self.factor * inputs


def set_later(factor):
    """No configuration knows of it."""
    layer = Scales()
    layer.factor = factor
    return layer


def through(make):
    """A loss that calls a helper in one of the ways that helpers are kept in."""
    space = {"ops": ops, "__name__": "users_module", "held": make}
    exec("def loss(y, p):\n    return held.w(p) * ops.mean(ops.square(y - p), axis=-1)", space)
    return space["loss"]


def module(factor):
    found = types.ModuleType("users_helpers")
    exec(f"def w(p):\n    return {factor}", found.__dict__)
    return through(found)


@dataclasses.dataclass(slots=True)
class Slots:
    factor: float

    def w(self, p):
        return self.factor


def cached(factor):
    @functools.cache
    def w():
        return factor

    space = types.SimpleNamespace(w=lambda p: w())
    return through(space)


def teacher(bias):
    last = keras.layers.Dense(1, kernel_initializer="ones", bias_initializer=keras.initializers.Constant(bias))
    network = keras.Sequential([keras.Input((1,)), last])
    return through(types.SimpleNamespace(w=lambda p: ops.mean(ops.square(network(p)), axis=-1)))


def in_turn(functions):
    return through(types.SimpleNamespace(w=lambda p: sum(f(p) for f in functions)))


def one(p):
    return 1.0


def two(p):
    return 2.0


LOG = logging.getLogger("users")


def logging_loss(y_true, y_pred):
    LOG.debug("called")
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


def shift(amount):
    return lambda inputs: inputs + amount


MSE = keras.losses.MeanSquaredError


class Enough(Exception):
    """All that a seed stands for is settled."""


class Begun(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        raise Enough


def key(**options):
    """The key of the noise, which is there before the first update."""
    callbacks = [*options.pop("callbacks", ()), Begun()]
    found = []
    with contextlib.suppress(Enough):
        trained(callbacks=callbacks, seen=found.append, **options)
    return found[0].optimizer.noise_key.numpy().tolist()


SAME = {
    "x": X, "y": Y, "batch_size": 40, "noise_multiplier": 300.0, "delta": 1e-3, "verbose": 0, "strategy": "dpsgd",
    "seed": 7, "training_metrics": False, "steps_per_epoch": 1,
}  # fmt: skip


def trained(
    loss=None, layers=list, callbacks=(), seed=7, frozen=None, course=None, optimizer=None, seen=id,
    kind=lipdp.DP_Model, **compiled
):  # fmt: skip
    keras.utils.set_random_seed(0)
    stack = [keras.Input((4,)), *layers(), keras.layers.Dense(1, name="out")]
    model = kind.from_keras(keras.Sequential(stack))
    if frozen is not None:
        model.get_layer("out").variables[frozen].trainable = False
    model.compile(optimizer or keras.optimizers.SGD(1.0), loss=MSE() if loss is None else loss, **compiled)
    seen(model)
    model.fit(callbacks=list(callbacks), **SAME | {"seed": seed} | (course or {}))
    return model


def weights(*arguments, **options):
    return np.concatenate([np.ravel(w) for w in trained(*arguments, **options).get_weights()])


def of_global(value):
    def make():
        globals()["FACTOR"] = value
        return {"loss": of_a_global}

    return make


def with_loss(make, *arguments):
    return lambda: {"loss": make(*arguments)}


def with_layer(make, *arguments, **options):
    return lambda: {"layers": lambda: [make(*arguments, **options)]}


def with_optimizer(make, *arguments):
    return lambda: {"optimizer": make(*arguments)}


def stepping(factor):
    """An optimizer of the user's: all that its steps go by is in its code."""

    class Steps(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient * factor, variable, learning_rate)

    return Steps(1.0)


class Shortens(keras.optimizers.Adam):
    factor = 1.0

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * self.factor)


def shortening(factor):
    """The class is one and the same, and a number is set on the private optimizer that was made from it."""
    optimizer = as_private(Shortens(1.0))
    optimizer.factor = factor
    return optimizer


def scaled(factor):
    """A class of models of the user's."""

    class Scaled(lipdp.DP_Model):
        def call(self, inputs, training=None, mask=None):
            return factor * super().call(inputs, training=training)

    return Scaled


def of_kind(factor):
    return lambda: {"kind": scaled(factor)}


def replaced(factor):
    """A layer of Keras, whose method was replaced."""
    layer = keras.layers.Dense(4)
    layer.call = lambda inputs, training=None: factor * keras.layers.Dense.call(layer, inputs)
    return layer


def scheduled(factor):
    return lambda: {"callbacks": [keras.callbacks.LearningRateScheduler(lambda epoch: 1.0 * factor**epoch)]}


PAIRS = {
    "a closure": (with_loss(closure, 0.1), with_loss(closure, 0.9)),
    "an edited body": (with_loss(edited, 1.0), with_loss(edited, 1.5)),
    "an operator": (with_loss(edited, 1.0), with_loss(edited, 1.0, "+")),
    "a global": (of_global(1.0), of_global(2.0)),
    "an attribute of a loss": (with_loss(WithAttribute, 1.0), with_loss(WithAttribute, 2.0)),
    "an attribute of a layer": (with_layer(set_later, 1.0), with_layer(set_later, 2.0)),
    "an array": (with_layer(Scales, np.ones(4, "float32")), with_layer(Scales, np.full(4, 2.0, "float32"))),
    "a function in a layer": (
        with_layer(keras.layers.Dense, 4, activation=shift(1.0)),
        with_layer(keras.layers.Dense, 4, activation=shift(2.0)),
    ),
    "a partial": (
        with_loss(functools.partial, edited(1.0)),
        with_loss(functools.partial, edited(2.0)),
    ),
    "a module": (with_loss(module, 1.0), with_loss(module, 1.5)),
    "slots": (with_loss(through, Slots(1.0)), with_loss(through, Slots(1.5))),
    "a cached function": (with_loss(cached, 1.0), with_loss(cached, 1.5)),
    "weights of a teacher": (with_loss(teacher, 1.0), with_loss(teacher, 1.5)),
    "the order of functions": (with_loss(in_turn, [one, two, one]), with_loss(in_turn, [one, two, two])),
    "a schedule": (scheduled(1.0), scheduled(0.5)),
    "a method of a model": (of_kind(1.0), of_kind(0.5)),
    "a method that was replaced": (with_layer(replaced, 1.0), with_layer(replaced, 0.5)),
    "a method of an optimizer": (with_optimizer(stepping, 1.0), with_optimizer(stepping, 0.5)),
    "an attribute of an optimizer": (with_optimizer(shortening, 1.0), with_optimizer(shortening, 0.5)),
    "options named as their layers": (
        with_layer(keras.layers.Dense, 4, activation="tanh", name="tanh"),
        with_layer(keras.layers.Dense, 4, activation="relu", name="relu"),
    ),
}


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(PAIRS[name], id=name, marks=[pytest.mark.slow] * (number % 8 > 0))
        for number, name in enumerate(PAIRS)
    ],
)
def test_what_differs_in_code_alone_has_noise_of_its_own(pair):
    one, again, other = (key(**make()) for make in (pair[0], *pair))
    assert one == again != other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a closure", pytest.param("a function in a layer", marks=pytest.mark.slow)])
def test_weights_follow_the_key(name):
    one, again, other = (weights(**make()) for make in (PAIRS[name][0], *PAIRS[name]))
    np.testing.assert_array_equal(one, again)
    fresh = weights(**PAIRS[name][0](), seed=8)
    assert np.linalg.norm(one - other) > 0.1 * np.linalg.norm(one - fresh)  # the same noise leaves a hundredth


def on_the_way(**course):
    return lambda: {**scheduled(0.5)(), "course": course}


def decayed(*names):
    optimizer = keras.optimizers.SGD(1.0, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=names)
    return optimizer


def plateau(scale):
    """Rates that fall where the loss on validation data does not."""
    held_out = np.ones((4, 4), "float32"), np.full((4, 1), scale, "float32")
    return lambda: {
        "callbacks": [keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0)],
        "course": {"epochs": 2, "validation_data": held_out},
    }


BESIDE = {
    "a weight that is frozen by itself": (dict, lambda: {"frozen": 1}),
    "weights without decay": (
        lambda: {"optimizer": decayed("kernel")},
        lambda: {"optimizer": decayed("bias")},
    ),
    "the length of epochs": (on_the_way(epochs=1, steps_per_epoch=2), on_the_way(epochs=2)),
    "the first epoch": (on_the_way(epochs=1), on_the_way(epochs=2, initial_epoch=1)),
    "validation data": (plateau(1.0), plateau(2.0)),
}


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(BESIDE[name], id=name, marks=[pytest.mark.slow] * (number % 2))
        for number, name in enumerate(BESIDE)
    ],
)
def test_what_no_configuration_tells_has_noise_of_its_own(pair):
    """Rates and frozen weights change what moves: only the keys say whether the noise is the same."""
    one, again, other = (key(**make()) for make in (pair[0], *pair))
    assert one == again != other


@pytest.mark.slow
def test_what_a_logger_remembers_is_no_difference():
    one = weights(logging_loss)
    LOG.debug("between the two")
    logging.getLogger("users.another")
    np.testing.assert_array_equal(one, weights(logging_loss))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow has two ways to draw")
def test_masks_that_xla_draws_otherwise_come_with_other_noise():
    def layers():
        return [keras.layers.Dropout(0.5)]

    one = weights(layers=layers, jit_compile=False)
    other = weights(layers=layers, jit_compile=True)
    fresh = weights(layers=layers, jit_compile=False, seed=8)
    assert np.linalg.norm(one - other) > 0.3 * np.linalg.norm(one - fresh)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(with_optimizer(stepping, 0.5), id="code of an optimizer", marks=pytest.mark.slow),
        pytest.param(with_optimizer(shortening, 0.5), id="a number in it", marks=pytest.mark.slow),
        pytest.param(of_kind(0.5), id="a model", marks=pytest.mark.slow),
        pytest.param(with_layer(replaced, 0.5), id="a layer", marks=pytest.mark.slow),
    ],
)
def test_code_of_the_users_goes_on_with_its_noise(tmp_path, made):
    """What models and optimizers hold after a `fit` is no other code."""
    whole = weights(course={"epochs": 2}, **made())
    first = trained(course={"epochs": 2}, callbacks=[EndsAfterOne()], **made())
    first.save_weights(tmp_path / "model.weights.h5")

    def load(model):
        model.load_weights(tmp_path / "model.weights.h5")

    np.testing.assert_array_equal(whole, weights(course={"epochs": 2}, seen=load, **made()))
    trained_on = trained(course={"epochs": 2}, callbacks=[EndsAfterOne()], **made())
    trained_on.fit(**SAME, epochs=2)
    np.testing.assert_array_equal(whole, np.concatenate([np.ravel(w) for w in trained_on.get_weights()]))


class EndsAfterOne(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True
