"""Backward passes at ties and at zero, eager, in a graph and under XLA, where libraries choose differently."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers as stock

from lipdp import bounds, layers
from tests.helpers.adversary import TOLERANCE, Probe, norm, starts, top

XLA = [False, True] if keras.backend.backend() == "tensorflow" else [False]
TIED = {
    "groupsort": (layers.GroupSort, (8,)),
    "groupsort_map": (layers.GroupSort, (2, 2, 4)),
    "max": (lambda: stock.MaxPooling2D(2), (4, 4, 1)),
    "max_overlap": (lambda: stock.MaxPooling2D(3, strides=1), (4, 4, 1)),
    "max_overlap_same": (lambda: stock.MaxPooling2D(3, strides=2, padding="same"), (5, 5, 1)),
    "max1d": (lambda: stock.MaxPooling1D(2), (6, 1)),
    "max3d": (lambda: stock.MaxPooling3D(2), (2, 2, 2, 1)),
    "max3d_overlap": (lambda: stock.MaxPooling3D(2, strides=1, padding="same"), (3, 3, 3, 1)),
    "global_max": (stock.GlobalMaxPooling2D, (3, 3, 2)),
    "maximum": (stock.Maximum, (4,), (4,), (4,)),
    "minimum": (stock.Minimum, (4,), (4,)),
    "abs": (layers.Abs, (5,)),
    "relu": (stock.ReLU, (5,)),
    "relu_max": (lambda: stock.ReLU(max_value=1.0, negative_slope=0.5), (5,)),
    "leaky": (stock.LeakyReLU, (5,)),
    "relu6": (lambda: stock.Activation("relu6"), (5,)),
    "hard_tanh": (lambda: stock.Activation("hard_tanh"), (5,)),
    "hard_sigmoid": (lambda: stock.Activation("hard_sigmoid"), (5,)),
    "l2_pool": (lambda: layers.L2NormPooling2D(2), (4, 4, 1)),
    "l2_global": (layers.GlobalL2NormPooling2D, (3, 3, 2)),
    "clip": (lambda: layers.BoundedInput(norm=1.0), (5,)),
    "elu": (stock.ELU, (5,)),
}


@pytest.mark.parametrize("xla", XLA)
@pytest.mark.parametrize("name", TIED)
def test_jacobian_at_ties(name, xla):
    make, *shapes = TIED[name]
    probe = Probe(make(), *shapes, xla=xla)
    rng = np.random.default_rng(0)
    constants = bounds.rules(probe.model.layers[-1]).input_lipschitz((9.0,) * len(shapes))
    # Kinks of the activations above: 0, +-1, +-3 and 6; equal entries everywhere.
    levels = [0.0, 1.0, -1.0, 3.0, -3.0, 6.0]
    points = [[np.full((1, *s), level) for s in shapes] for level in levels]
    points += [[rng.choice(levels, (1, *s)) for s in shapes] for _ in range(12)]
    points += [[starts(s, rng)[k] for s in shapes] for k in range(8)]
    for xs in points:
        for jacobian, constant in zip(probe.input_jacobians(*xs), constants, strict=True):
            assert np.isfinite(jacobian).all()
            assert top(jacobian) <= constant * (1.0 + TOLERANCE)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="oneDNN is a part of TensorFlow")
def test_jacobian_at_ties_without_onednn():
    """Other kernels of TensorFlow send the gradient of a maximum to other entries."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "at_ties[max"]
    done = subprocess.run(
        command, env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("xla", XLA)
def test_groupsort_is_a_permutation_in_both_directions(xla):
    """Row 6e: the reference's backward pass has singular values (sqrt 2, 0) at every tie."""
    probe = Probe(layers.GroupSort(), (6,), xla=xla)
    for x in (np.zeros((1, 6)), np.ones((1, 6)), np.array([[1.0, 1.0, 2.0, 1.0, 0.0, -0.0]])):
        (jacobian,) = probe.input_jacobians(x)
        np.testing.assert_array_equal(jacobian @ jacobian.T, np.eye(6))
        assert norm(probe.value(x)) == pytest.approx(norm(x))


def test_bounded_input_in_the_middle_has_a_gradient_at_zero():
    probe = Probe(layers.BoundedInput(norm=1.0), (4,))
    (jacobian,) = probe.input_jacobians(np.zeros((1, 4)))
    np.testing.assert_allclose(jacobian, np.eye(4), atol=1e-5)
