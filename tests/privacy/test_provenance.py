"""A private model inside a function or an attribute that Keras does not track counts."""

import argparse
import collections
import dataclasses
import functools
import sys
import types

import keras
import numpy as np
import pytest

import lipdp
from lipdp import sampling
from lipdp.privacy import Ledger, Release, provenance
from tests.helpers.models import DELTA, blobs

pytestmark = pytest.mark.backend_free


def network():
    """Layers that stand for a private model: their weights have a ledger with releases."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(3)])
    ledger = Ledger()
    ledger.charge(released())
    provenance.attribute(model, [ledger])
    return model, ledger


def released():
    return Release(
        sampling=sampling.get("poisson").bind(1000, 10),
        noise_multiplier=1.0,
        sensitivity=0.1,
        strategy="clipless",
        noise_allocation="global",
    )


PRIVATE, LEDGER = network()
UNUSED, UNUSED_LEDGER = network()
TWO = {"first": PRIVATE, "second": 3}


class Holder:
    def __init__(self, net):
        self.net, self.other = net, UNUSED

    def apply(self, z):
        return self.deeper(z)

    def deeper(self, z):
        return self.net(z)

    __call__ = apply


class Only(Holder):
    """Of an object in an attribute of a layer all attributes count: how the layer uses it is not looked at."""

    def __init__(self, net):
        self.net = net


class Hides(keras.layers.Layer):
    def __init__(self, value):
        super().__init__()
        object.__setattr__(self, "hidden", value)

    def call(self, z):
        return z


class Global(keras.layers.Layer):
    def call(self, z):
        return self.inner(z)

    def inner(self, z):
        return PRIVATE(z)


class OfGlobal(Global):
    def call(self, z):
        return super().call(z)


class Static(keras.layers.Layer):
    held = [PRIVATE]

    def call(self, z):
        return self.held[0](z)


def calls(z):
    return PRIVATE(z)


def with_default(z, net=PRIVATE):
    return net(z)


def with_attribute(z):
    return with_attribute.net(z)


with_attribute.net = PRIVATE


def closed(net):
    return lambda z: net(z)


def deep(net):
    for _ in range(30):
        net = closed(net)
    return net


def inside(net):
    def outer(z):
        def inner(z):
            return net(z)

        return inner(z)

    return outer


def compiled(function):
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function)


MODULE = types.ModuleType("a_module_of_mine")
MODULE.net, MODULE.other = PRIVATE, UNUSED


def of_module(z):
    return MODULE.net(z)


class Space:
    net, other = PRIVATE, UNUSED


def of_class(z):
    return Space.net(z)


def of_library(z):
    return keras.ops.add(z, sys.maxsize)


@dataclasses.dataclass(slots=True)
class Slots:
    net: object


FUNCTIONS = {
    "global": calls,
    "closure": closed(PRIVATE),
    "of a layer": closed(PRIVATE.layers[0]),
    "of a variable": closed(PRIVATE.layers[0].kernel),
    "of a graph": closed(keras.Function(PRIVATE.inputs, PRIVATE.outputs)),
    "of closures": deep(PRIVATE),
    "inside": inside(PRIVATE),
    "default": with_default,
    "keyword default": lambda z, *, net=PRIVATE: net(z),
    "attribute of a function": with_attribute,
    "function that it calls": lambda z: calls(z),
    "item": lambda z: TWO["first"](z),
    "module": of_module,
    "class": of_class,
    "partial": functools.partial(lambda net, z: net(z), PRIVATE),
    "method": Holder(PRIVATE).apply,
    "method of a model": PRIVATE.call,
    "object": Only(PRIVATE),
    "object in a closure": closed(Holder(PRIVATE)),
    "compiled": compiled(closed(PRIVATE)),
    "slots": (lambda held: lambda z: held.net(z))(Slots(PRIVATE)),
    "a namespace": (lambda held: lambda z: held.net(z))(types.SimpleNamespace(net=PRIVATE)),
    "arguments": (lambda held: lambda z: held.net(z))(argparse.Namespace(net=PRIVATE)),
    "a dictionary of one's own": (lambda held: lambda z: held["net"](z))(collections.UserDict(net=PRIVATE)),
}


def around(layer):
    return keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(2)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_private_model_in_a_function_counts(name):
    function = FUNCTIONS[name]
    activated = keras.layers.Activation(function)
    for layer in (keras.layers.Lambda(function, output_shape=(3,)), activated, Hides(function)):
        assert provenance.ledgers_of(around(Hides(layer))) == (LEDGER,), type(layer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Hides(PRIVATE),
        lambda: Hides(PRIVATE.layers[1]),
        lambda: Hides(PRIVATE.layers[1].kernel),
        lambda: Hides([{"a": (PRIVATE,)}]),
        lambda: Hides(types.SimpleNamespace),
        Global,
        OfGlobal,
        Static,
        lambda: keras.layers.Lambda(lambda z, net: net(z), arguments={"net": PRIVATE}, output_shape=(3,)),
    ],
)
def test_a_private_model_that_a_layer_holds_past_keras_counts(make):
    layer = make()
    expected = () if getattr(layer, "hidden", None) is types.SimpleNamespace else (LEDGER,)
    assert provenance.ledgers_of(around(layer)) == expected


class Encoded:
    """A source whose rows a private model makes."""

    def __init__(self, net):
        self.net = net

    def __len__(self):
        return 40

    def __getitem__(self, index):
        row = keras.ops.convert_to_numpy(self.net(np.full((1, 6), 0.1 * index, "float32")))[0]
        return row, index % 2


class InBatches(keras.utils.PyDataset):
    def __init__(self, net):
        super().__init__()
        self.net = net


class Augmentation(Only):
    def get_config(self):
        return {}


def pipeline(net):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.range(4).map(lambda z: z if net else z).batch(2).prefetch(1)


def of_a_class(net):
    """A function that uses a class of data sets, which is none."""
    dataset = pytest.importorskip("tensorflow").data.Dataset
    return dataset.range(4).flat_map(lambda z: dataset.from_tensors(z if net else z))


@pytest.mark.parametrize(
    "make",
    [
        Encoded,
        InBatches,
        pipeline,
        of_a_class,
        lambda net: sampling.Source(Encoded(net)),
        lambda net: {"a": np.zeros(3), "b": Encoded(net)},
        lambda net: lipdp.strategies.DPSGD(augmentation=Augmentation(net)),
    ],
)
def test_a_private_model_in_what_fit_is_given_counts(make):
    assert provenance.ledgers_of(make(PRIVATE)) == (LEDGER,)
    assert provenance.ledgers_of(make(np.tanh)) == ()


class Perceptual(keras.losses.Loss):
    """A distance in the features of a private model."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(self.net(y_pred) - self.net(y_true)), axis=-1)


def test_a_private_model_in_the_loss_of_one_of_several_outputs_counts():
    inputs = keras.Input((6,))
    model = lipdp.DP_Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(6)(inputs)])
    for losses in (["mse", Perceptual(PRIVATE)], {"dense_a": "mse", "dense_b": Perceptual(PRIVATE)}):
        names = dict(zip(losses, model.output_names, strict=True)) if isinstance(losses, dict) else None
        model.compile("sgd", losses if names is None else {names[key]: loss for key, loss in losses.items()})
        assert provenance.ledgers_of(model) == (LEDGER,)


class Anchored(keras.optimizers.SGD):
    """Draws weights towards those of a private model."""

    def update_step(self, gradient, variable, learning_rate):
        anchors = {tuple(anchor.shape): anchor for anchor in PRIVATE.weights}
        super().update_step(gradient + 0.1 * (variable - anchors[tuple(variable.shape)]), variable, learning_rate)


class Scheduled(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, net):
        self.net = net

    def __call__(self, step):
        return 0.1 * keras.ops.mean(self.net.weights[0])


@pytest.mark.parametrize("optimizer", [Anchored(0.1), keras.optimizers.SGD(Scheduled(PRIVATE))])
def test_a_private_model_that_an_optimizer_reads_counts(optimizer):
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)]))
    model.compile(optimizer, "mse")
    assert provenance.ledgers_of(model) == (LEDGER,)
    model.compile("sgd", "mse")
    assert provenance.ledgers_of(model) == ()


def test_rows_that_a_private_model_makes_bring_its_cost():
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit = {"batch_size": 20, "noise_multiplier": 2.0, "delta": DELTA, "verbose": 0, "strategy": "dpsgd"}
    with pytest.raises(ValueError, match="batch_size"):
        model.fit(Encoded(PRIVATE), **{**fit, "batch_size": 41})
    assert model.run.ledgers == (model.run.ledger,)  # nothing has come of it
    model.fit(Encoded(PRIVATE), **fit)
    assert model.run.ledgers == (model.run.ledger, LEDGER)
    assert provenance.ledgers_of(model.layers[-1]) == (model.run.ledger, LEDGER)


def test_what_is_not_used_does_not_count_and_nothing_is_searched_for_ever():
    cycle = [np.zeros(3)]
    cycle.append(cycle)
    many = [object() for _ in range(10**6)]
    holder = Holder(3)
    holder.self, holder.list, holder.many = holder, cycle, many
    for function in (of_library, lambda z: holder.net * z, lambda z: cycle and many and z, lambda z: UNUSED_LEDGER):
        assert provenance.ledgers_of(around(keras.layers.Lambda(function, output_shape=(3,)))) == ()


@pytest.mark.slow
def test_a_model_of_many_layers_is_searched_to_its_end():
    stock = [keras.layers.Identity() for _ in range(1500)]
    last = keras.layers.Lambda(closed(PRIVATE), output_shape=(3,))
    assert provenance.ledgers_of(keras.Sequential([*stock, last])) == (LEDGER,)


@pytest.mark.slow
def test_updates_of_a_private_model_behind_a_function_are_in_the_ledger_of_a_head():
    x, y = blobs(100, 6)
    fit = {"batch_size": 20, "epochs": 1, "noise_multiplier": 2.0, "delta": DELTA, "verbose": 0, "strategy": "dpsgd"}

    def compiled(model):
        model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    private = compiled(lipdp.DP_Sequential.from_keras(plain))
    private.fit(x, y, **fit)
    hidden = keras.layers.Lambda(lambda z: private(z), output_shape=(3,))
    head = compiled(lipdp.DP_Sequential([keras.Input((6,)), hidden, keras.layers.Dense(3)]))
    assert head.privacy.updates == 5
    head.fit(x, y, **fit)
    assert head.privacy.updates == 10 and head.privacy.epsilon() > private.privacy.epsilon()
