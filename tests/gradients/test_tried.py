"""A model that has passed its trial is not tried again, and one that has changed is."""

import gc
import sys
import weakref

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import gradients, strategies
from tests.helpers.clipping import BATCH


class Scaled(L.Layer):
    factor = 1.0

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mixes, self.parts, self.names, self.function = False, [1.0], {}, ops.tanh

    def call(self, inputs):
        together = ops.sum(inputs, axis=0, keepdims=True) if self.mixes else 0.0
        return self.factor * self.parts[0] * self.function(inputs) + together

    def compute_output_shape(self, input_shape):
        return input_shape


def small(*layers):
    return keras.Sequential([keras.Input((3,)), L.Dense(4), *layers, L.Dense(2)])


@pytest.fixture
def trials(monkeypatch):
    """Counts how many models are run."""
    module, found = sys.modules["lipdp.gradients.supported"], []
    probe = module._probe
    monkeypatch.setattr(module, "_probe", lambda model: found.append(model) or probe(model))
    return found


@pytest.mark.parametrize("layer", [Scaled, L.ReLU])
def test_a_model_is_tried_once(trials, layer):
    model = small(layer())
    gradients.supported(model)
    model.set_weights([np.ones_like(w) for w in model.get_weights()])
    gradients.supported(model)
    assert len(trials) == 1


def test_a_second_fit_does_not_try_it_again(trials):
    model = lipdp.DP_Sequential([keras.Input((3,)), L.Dense(4), Scaled(), L.Dense(2)])
    model.compile("sgd", keras.losses.MeanSquaredError())
    x, y = np.ones((BATCH, 3), "float32"), np.ones((BATCH, 2), "float32")
    for _ in range(2):
        model.fit(x, y, BATCH, strategy=strategies.DPSGD(clip_norm=1.0), noise_multiplier=9.0, delta=1e-3, verbose=0)
    assert len(trials) == 1


def other_function(inputs):
    return ops.sin(inputs)


CHANGES = {
    "an attribute of its own layer": lambda model: setattr(model.layers[1], "factor", 2.0),
    "an entry of a list": lambda model: model.layers[1].parts.append(2.0),
    "an entry of a dictionary": lambda model: model.layers[1].names.__setitem__("a", 2),
    "a function": lambda model: setattr(model.layers[1], "function", other_function),
    "a class": lambda model: setattr(Scaled, "factor", 3.0),
    "an activation": lambda model: setattr(model.layers[0], "activation", ops.tanh),
    "a setting of a stock layer": lambda model: setattr(model.layers[0], "use_bias", False),
    "a precision": lambda model: setattr(model.layers[0], "dtype_policy", keras.DTypePolicy("mixed_bfloat16")),
    "what trains": lambda model: setattr(model.layers[0], "trainable", False),
    "how it runs": lambda model: setattr(model, "run_eagerly", True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_tried_again(trials, change, monkeypatch):
    monkeypatch.setattr(Scaled, "factor", 1.0)  # set again afterwards
    model = small(Scaled())
    gradients.supported(model)
    change(model)
    gradients.supported(model)
    assert len(trials) == 2


def test_what_mixes_now_is_refused_and_goes_on_to_be():
    model = small(Scaled())
    gradients.supported(model)
    model.layers[1].mixes = True
    for _ in range(2):
        with pytest.raises(ValueError, match="depend"):
            gradients.supported(model)
    model.layers[1].mixes = False
    gradients.supported(model)


def test_a_model_that_has_passed_is_given_back():
    model = small(Scaled())
    gradients.supported(model)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None
