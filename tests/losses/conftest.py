"""Automatic differentiation on the backend in use, the reference that closed forms are compared with."""

import keras
import numpy as np
import pytest


@pytest.fixture(scope="session")
def autodiff():
    """Return `grad(function, z)`: the gradient of the sum of `function(z)` with respect to `z`, in numpy."""
    if keras.backend.backend() == "jax":
        return _jax_gradient
    return _tensorflow_gradient


def _jax_gradient(function, z):
    import jax

    return np.asarray(jax.grad(lambda x: keras.ops.sum(function(x)))(np.asarray(z, "float32")))


def _tensorflow_gradient(function, z):
    import tensorflow as tf

    x = tf.constant(np.asarray(z, "float32"))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(function(x))
    gradient = tape.gradient(y, x)
    return np.zeros_like(z, "float32") if gradient is None else np.asarray(gradient)
