"""Adversarial search for single layers (`lipdp.bounds.adversary`) and, here, for whole models."""

import keras
import numpy as np
from keras import tree

from lipdp.bounds import adversary
from lipdp.bounds.adversary import TOLERANCE as TOLERANCE
from lipdp.bounds.adversary import assign as assign
from lipdp.bounds.adversary import largest_input_jacobians as largest_input_jacobians
from lipdp.bounds.adversary import largest_output as largest_output
from lipdp.bounds.adversary import largest_parameter_gradient as largest_parameter_gradient
from lipdp.bounds.adversary import norm as norm
from lipdp.bounds.adversary import projected as projected
from lipdp.bounds.adversary import scaled as scaled
from lipdp.bounds.adversary import starts as starts
from lipdp.bounds.adversary import top as top
from lipdp.bounds.adversary import weight_settings as weight_settings


class Probe(adversary.Probe):
    """With the gradient of gradient norms, for whole models."""

    def __init__(self, layer, *shapes, **kwargs):
        super().__init__(layer, *shapes, **kwargs)
        jax = keras.backend.backend() == "jax"
        self._ascent = (_jax_ascent if jax else _tensorflow_ascent)(self.model)

    def ascent(self, weights, xs, cotangent):
        """Gradients of `sum_k weights_k ||d<cotangent, f> / d theta_k||^2 / 2`, which comes first."""
        xs = [np.asarray(x, "float32") for x in xs]
        arguments = (np.asarray(weights, "float32"), xs, np.asarray(cotangent, "float32"))
        return tree.map_structure(_array, self._ascent(*arguments))


def _array(value):
    return np.asarray(keras.ops.convert_to_numpy(value), "float64")


def _packed(xs):
    return xs if len(xs) > 1 else xs[0]


def _jax_ascent(model):
    import jax
    import jax.numpy as jnp

    @jax.jit
    def ascent(trainable, other, weights, xs, cotangent):
        def squared(trainable, xs, cotangent):
            def inner(trainable):
                return jnp.sum(cotangent * model.stateless_call(trainable, other, _packed(xs))[0])

            gradients = jax.grad(inner)(trainable)
            return 0.5 * sum(w * jnp.sum(g * g) for w, g in zip(weights, gradients, strict=True))

        value, (variables, inputs, cotangents) = jax.value_and_grad(squared, (0, 1, 2))(trainable, xs, cotangent)
        return value, inputs, variables, cotangents

    return lambda weights, xs, cotangent: ascent(*_state(model), weights, xs, cotangent)


def _state(model):
    return [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]


def _tensorflow_ascent(model):
    import tensorflow as tf

    @tf.function
    def ascent(weights, xs, cotangent):
        variables = [v.value for v in model.trainable_variables]
        with tf.GradientTape() as outer:
            outer.watch([xs, cotangent])
            with tf.GradientTape() as inner:
                value = tf.reduce_sum(cotangent * model(_packed(xs)))
            gradients = inner.gradient(value, variables, unconnected_gradients="zero")
            squares = [tf.reduce_sum(tf.square(g)) for g in gradients]
            value = 0.5 * tf.tensordot(weights, tf.stack(squares), 1)
        sources = [xs, variables, cotangent]
        return value, *outer.gradient(value, sources, unconnected_gradients="zero")

    return lambda weights, xs, cotangent: ascent(
        tf.constant(weights), [tf.constant(x) for x in xs], tf.constant(cotangent)
    )


def largest_gradient(probe, index, cotangent, rng, input_size, restarts=3, steps=25):
    """Largest gradient norm of variable `index` for one example, over inputs, allowed weights and cotangents.

    Gradient ascent with projection from structured starts.

    Returns:
        The norm, and the inputs at which it was found; the weights are left there.
    """
    weights = np.eye(len(probe.variables))[index]
    best, best_state = 0.0, None
    for restart in range(restarts):
        settings = [weight_settings(v, rng) for v in probe.variables]
        # The first start has every kernel orthonormal, where nothing is lost.
        assign(probe.variables, [s[0 if restart == 0 else rng.integers(len(s))] for s in settings])
        pick = 1 if restart == 0 else -1
        xs = [starts(s, rng, input_size)[pick] for s in probe.shapes]
        g = scaled(rng.standard_normal((1, *probe.output_shape)), cotangent)
        for step in range(steps):
            value, dxs, dvs, dg = probe.ascent(weights, xs, g)
            size = float(np.sqrt(2.0 * value))
            if size > best:
                best = size
                best_state = (xs, [_array(v.value) for v in probe.variables])
            rate = 1.0 if step < steps // 2 else 0.3
            xs = [scaled(x + rate * scaled(d, input_size), input_size) for x, d in zip(xs, dxs, strict=True)]
            g = scaled(g + rate * scaled(dg, cotangent), cotangent)
            for variable, d in zip(probe.variables, dvs, strict=True):
                moved = projected(variable, _array(variable.value) + rate * scaled(d, 1.0))
                variable.assign(moved.astype("float32"))
    if best_state:
        assign(probe.variables, best_state[1])
    return best, best_state and best_state[0]
