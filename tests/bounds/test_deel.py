"""deel-lip's layers on Keras 3: those that run are bounded soundly, the others refused by name."""

import keras
import numpy as np
import pytest

from lipdp import bounds, layers
from lipdp.bounds.check import tightness
from tests.helpers.adversary import TOLERANCE, Probe, top

if keras.backend.backend() != "tensorflow":
    pytest.skip("deel-lip is written in TensorFlow", allow_module_level=True)
deel = pytest.importorskip("deel.lip.layers")

WORKING = {
    "group_sort_2": (lambda: deel.GroupSort2(), (4,)),
    "group_sort_4": (lambda: deel.GroupSort(n=4, k_coef_lip=3.0), (8,)),
    "full_sort": (lambda: deel.FullSort(), (5,)),
    "down": (lambda: deel.InvertibleDownSampling((2, 2)), (4, 4, 2)),
    "up": (lambda: deel.InvertibleUpSampling((2, 2)), (2, 2, 8)),
    "average": (lambda: deel.ScaledAveragePooling2D((2, 2), k_coef_lip=-2.0), (4, 4, 2)),
    "global_average": (lambda: deel.ScaledGlobalAveragePooling2D(), (3, 3, 2)),
    "global_norm": (lambda: deel.ScaledGlobalL2NormPooling2D(), (3, 3, 2)),
    "norm": (lambda: deel.ScaledL2NormPooling2D((2, 2), k_coef_lip=3.0), (4, 4, 2)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WORKING)
def test_bounds_hold_and_are_reached(name):
    make, shape = WORKING[name]
    reached = tightness(make(), *[shape])
    assert all(ratio <= 1.0 + TOLERANCE for ratio in reached.values())
    assert min(reached.values()) >= 0.99


@pytest.mark.filterwarnings("ignore")
def test_ties_of_group_sort_are_paid_for():
    """Separate minimum and maximum send both cotangents to one entry: sqrt 2 where 1 is claimed."""
    layer = deel.GroupSort2()
    assert top(Probe(layer, (4,)).input_jacobians(np.zeros((1, 4)))[0]) == pytest.approx(np.sqrt(2))
    assert bounds.rules(layer).input_lipschitz((1.0,)) == (pytest.approx(np.sqrt(2)),)
    assert bounds.rules(layer).trained_lipschitz((1.0,)) == (1.0,)


@pytest.mark.parametrize("kind", ["SpectralDense", "SpectralConv2D", "FrobeniusDense", "MaxMin", "Householder"])
def test_layers_without_a_sound_bound_are_refused_by_name(kind):
    arguments = {"SpectralConv2D": (2, 3), "MaxMin": (), "Householder": ()}.get(kind, (2,))
    with pytest.raises(ValueError, match=f"of type {kind} has no.*Use instead: lipdp.layers"):
        bounds.rules(getattr(deel, kind)(*arguments))


@pytest.mark.filterwarnings("ignore")
def test_inside_a_private_model():
    inputs = keras.Input((4, 4, 1))
    x = deel.InvertibleDownSampling((2, 2))(layers.BoundedInput(norm=2.0)(inputs))
    x = layers.SpectralDense(4, name="front")(layers.Flatten()(x))
    model = keras.Model(inputs, layers.SpectralDense(2)(deel.GroupSort2()(x)))
    found = bounds.propagate(model, 1.0)
    assert found.gradient(model.get_layer("front").kernel) == pytest.approx(2.0 * np.sqrt(2), rel=1e-3)
