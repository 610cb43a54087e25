"""Adversarial search against whole networks: one example's gradients never exceed what is propagated."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import bounds, layers, losses
from tests.helpers.adversary import Probe, assign, largest_gradient, norm, scaled, starts, top, weight_settings
from tests.helpers.random_models import INPUT_NORM, random_model

pytestmark = pytest.mark.backend_free

COTANGENT = 0.7


def attack(model, seed, restarts=2, steps=15):
    """Ratio of the largest gradient found to its bound, for each variable."""
    probe, rng = Probe(model), np.random.default_rng(seed)
    propagated = bounds.propagate(model, COTANGENT)
    ratios = []
    for index, variable in enumerate(probe.variables):
        found, xs = largest_gradient(probe, index, COTANGENT, rng, INPUT_NORM, restarts, steps)
        if xs is not None:
            # The best cotangent for this input and these weights, exactly.
            jacobian = probe.parameter_jacobians(*xs)[index]
            found = max(found, COTANGENT * top(jacobian))
            assert norm(probe.value(*xs)) <= propagated.output_bound * (1 + 1e-5)
            assert top(probe.input_jacobians(*xs)[0]) * COTANGENT <= propagated.lipschitz * propagated.slack
        ratios.append(found / propagated.gradient(variable))
    return ratios


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_random_graphs(seed):
    ratios = attack(random_model(seed), seed)
    assert max(ratios) <= 1.0
    # A search that finds nothing proves nothing.
    assert max(ratios) >= 0.3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 36))
def test_more_random_graphs(seed):
    assert max(attack(random_model(seed), seed, restarts=6, steps=60)) <= 1.0


@pytest.mark.slow
def test_bounds_of_a_dense_chain_are_reached():
    inputs = keras.Input((4,))
    x = layers.Bias(0.5)(layers.SpectralDense(4)(layers.BoundedInput(norm=INPUT_NORM)(inputs)))
    model = keras.Model(inputs, layers.SpectralDense(4)(layers.Abs()(x)))
    ratios = attack(model, 0, restarts=3, steps=40)
    assert max(ratios) <= 1.0
    assert min(ratios) >= 0.98


def test_bounds_of_a_residual_chain_are_reached():
    """Every branch the identity: cotangents double at each sum."""
    inputs = keras.Input((4,))
    x = layers.BoundedInput(norm=INPUT_NORM)(inputs)
    x = layers.SpectralDense(4, name="first")(x)
    x = x + layers.SpectralDense(4)(x)
    x = layers.Add()([x, layers.SpectralDense(4)(x)])
    model = keras.Model(inputs, x)
    assert bounds.propagate(model, 1.0).gradient(model.get_layer("first").kernel) == pytest.approx(8, rel=1e-3)
    probe = Probe(model)
    assign(probe.variables, [np.eye(4)] * 3)
    found = top(probe.parameter_jacobians(scaled(np.ones((1, 4)), INPUT_NORM))[0])
    assert 0.999 * 8 <= found <= bounds.propagate(model, 1.0).gradient(probe.variables[0])


LOSSES = [
    losses.CategoricalCrossentropy(temperature=5.0),
    losses.CategoricalCrossentropy(temperature=20.0, clip=0.2),
    losses.MulticlassHinge(),
    losses.MulticlassHKR(alpha=5.0),
    losses.CosineSimilarity(),
    losses.Huber(),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{loss.clip}")
def test_through_a_real_loss(loss):
    """Gradients as `fit` computes them, one example at a time, against what the noise is calibrated to."""
    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((5, 5, 1), norm=INPUT_NORM),
            layers.SpectralConv2D(3, 3),
            layers.Bias(0.3),
            layers.Abs(),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.SpectralDense(3),
            layers.Bias(),
        ]
    )
    variables, rng = model.trainable_variables, np.random.default_rng(0)
    propagated = bounds.propagate(model, loss.lipschitz(3))
    limits = [propagated.gradient(v) for v in variables]
    gradient = _loss_gradient(model, loss)
    largest = np.zeros(len(variables))
    settings = [weight_settings(v, rng) for v in variables]
    for trial in range(8):
        assign(variables, [s[trial % len(s)] for s in settings])
        for x in starts((5, 5, 1), rng, INPUT_NORM)[trial % 2 :: 2]:
            for label in range(3):
                found = gradient(x.astype("float32"), np.eye(3, dtype="float32")[[label]])
                largest = np.maximum(largest, [norm(g) for g in found])
    assert (largest <= limits).all()
    assert (largest > 0).all()


def _loss_gradient(model, loss):
    if keras.backend.backend() == "jax":
        import jax

        def value(trainable, other, x, y):
            return loss.call(y, model.stateless_call(trainable, other, x)[0])[0]

        compiled = jax.jit(jax.grad(value))
        other = [v.value for v in model.non_trainable_variables]
        return lambda x, y: compiled([v.value for v in model.trainable_variables], other, x, y)
    import tensorflow as tf

    @tf.function
    def compiled(x, y):
        with tf.GradientTape() as tape:
            value = loss.call(y, model(x))
        return tape.gradient(value, [v.value for v in model.trainable_variables])

    return lambda x, y: compiled(tf.constant(x), tf.constant(y))
