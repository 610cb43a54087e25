"""Layers declared by users, and the search that tells them when they are wrong."""

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import bounds, layers, losses
from lipdp.norms import L2Ball


class Gain(keras.layers.Layer):
    """`x * w`, one bounded weight per feature: the gradient `x g` has norm at most `max |x_i g_i|` summed."""

    def build(self, input_shape):
        self.gain = self.add_weight(shape=(input_shape[-1],), initializer="ones", constraint=L2Ball(1.0))

    def call(self, inputs):
        return inputs * self.gain


def declare(constant=1.0, gradient=1.0):
    bounds.register(
        Gain,
        output_bound=lambda layer, inputs: constant * inputs[0],
        input_lipschitz=lambda layer, inputs: (constant,),
        parameter_bounds=lambda layer, inputs, cotangent: (gradient * inputs[0] * cotangent,),
    )


@pytest.fixture(autouse=True)
def _forget():
    yield
    bounds.registry._ENTRIES.pop(Gain, None)


@pytest.mark.slow
def test_a_declared_layer_is_checked_printed_and_trained():
    declare()
    texts = []
    layer = Gain()
    ratios = bounds.check(layer, (4,), print_fn=texts.append)
    assert set(ratios) == {"output", "jacobian", "gradient"}
    assert all(0.99 <= ratio <= 1.0 + 1e-5 for ratio in ratios.values())
    assert "Bounds of 'gain" in texts[0] and "1.0000 of its bound" in texts[0]
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.gain), np.ones(4))
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), Gain(), layers.SpectralDense(2)])
    model.compile("sgd", losses.SparseCategoricalCrossentropy())
    x = np.eye(4, dtype="float32").repeat(10, axis=0)
    model.fit(x, np.arange(40) % 2, batch_size=20, epochs=1, epsilon=2.0, delta=1e-3, verbose=0)
    assert model.privacy.epsilon() > 0


@pytest.mark.parametrize("wrong, kind", [({"constant": 0.5}, "output|jacobian"), ({"gradient": 0.9}, "gradient")])
def test_bounds_that_are_too_small_are_found(wrong, kind):
    declare(**wrong)
    with pytest.raises(ValueError, match=f"type Gain exceeds its ({kind}) bound.*times the declared one"):
        bounds.check(Gain(), (4,), print_fn=lambda text: None)


class Mode(keras.layers.Layer):
    """Three times as much in training."""

    def call(self, inputs, training=False):
        return (3.0 if training else 1.0) * inputs


class Around(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = Mode()

    def call(self, inputs):
        return self.inner(inputs)


@pytest.mark.parametrize("kind", [Mode, Around])
def test_a_layer_that_does_more_in_training_is_found(monkeypatch, kind):
    monkeypatch.setattr(bounds.registry, "_ENTRIES", {kind: lambda layer: 1.0})
    with pytest.raises(ValueError, match="is 3 times the declared one"):
        bounds.check(kind(), (4,), print_fn=lambda text: None)


class Counting(Mode):
    """Its state changes in training."""

    def build(self, input_shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.count.assign_add(1.0)
        return inputs


def test_the_state_of_a_layer_is_as_before(monkeypatch):
    monkeypatch.setattr(bounds.registry, "_ENTRIES", {Counting: lambda layer: 1.0})
    layer = Counting()
    bounds.check(layer, (4,), print_fn=lambda text: None)
    assert float(ops.convert_to_numpy(layer.count)) == 0.0


class Saturated(Gain):
    """Its output is as large as declared on inputs of norm 1 only."""

    def call(self, inputs):
        return inputs * self.gain * (1.0 + ops.sum(inputs**2, axis=-1, keepdims=True))


@pytest.mark.parametrize("kind", ["output_bound", "input_lipschitz", "parameter_bounds"])
def test_each_norm_is_tried_with_the_weights(monkeypatch, kind):
    right = {"output_bound": lambda layer, norms: norms[0] * (1.0 + norms[0] ** 2)}
    right["input_lipschitz"] = lambda layer, norms: (1.0 + 3.0 * norms[0] ** 2,)
    right["parameter_bounds"] = lambda layer, norms, cotangent: (norms[0] * (1.0 + norms[0] ** 2) * cotangent,)
    monkeypatch.setattr(bounds.registry, "_ENTRIES", {})
    bounds.register(Saturated, **right)
    bounds.check(Saturated(), (4,), norms=(1.0, 8.0), print_fn=lambda text: None)

    def wrong(layer, norms, *cotangent):
        return right[kind](layer, (min(norms[0], 1.0),), *cotangent)

    bounds.register(Saturated, **(right | {kind: wrong}))
    with pytest.raises(ValueError, match="exceeds its (output|jacobian|gradient) bound"):
        bounds.check(Saturated(), (4,), norms=(1.0, 8.0), print_fn=lambda text: None)


def test_a_gradient_that_is_no_number_is_no_bounded_one(monkeypatch):
    class Root(keras.layers.Layer):
        def call(self, inputs):
            return ops.sqrt(ops.sum(inputs**2, axis=-1, keepdims=True))

    monkeypatch.setattr(bounds.registry, "_ENTRIES", {Root: lambda layer: 1.0})
    with pytest.raises(ValueError, match="the value found is inf times"):
        bounds.check(Root(), (4,), print_fn=lambda text: None)


class Sends(layers.LipschitzLayer):
    """Declares that it passes on less of a cotangent than it does."""

    def call(self, inputs):
        return 1.0 * inputs

    def cotangent_bounds(self, input_bounds, cotangent_bound):
        return (min(cotangent_bound, 2.0),)


def test_cotangents_beyond_their_bound_are_found():
    with pytest.raises(ValueError, match="exceeds its jacobian bound: the value found is 500 times"):
        bounds.check(Sends(), (4,), print_fn=lambda text: None)


def test_too_few_bounds_and_half_a_declaration_are_refused():
    with pytest.raises(ValueError, match="both `output_bound` and `input_lipschitz`"):
        bounds.register(Gain, output_bound=lambda layer, inputs: inputs[0])
    with pytest.raises(ValueError, match="one function of the layer, or both"):
        bounds.register(Gain, lambda layer: 1.0, input_lipschitz=lambda layer, inputs: (1.0,))
    with pytest.raises(ValueError, match="of type Gain has no sensitivity bound"):
        bounds.check(Gain(), (4,))


def test_prints_to_standard_output(capsys):
    bounds.check(layers.Abs(), (3,))
    assert "jacobian" in capsys.readouterr().out
