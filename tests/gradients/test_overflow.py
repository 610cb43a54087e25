"""An example whose gradient is not finite: it is seen in its norm, and leaves no trace in the sum."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops, tree

import lipdp
from lipdp import backend, gradients
from tests.helpers.reference import _quickly, squared_error, state


def shared():
    dense = L.Dense(3, "tanh")
    inputs = keras.Input((3,))
    return keras.Model(inputs, dense(dense(inputs)))


def sequential(shape, *stack):
    return keras.Sequential([keras.Input(shape), *stack])


CASES = {
    "dense": lambda: sequential((5,), L.Dense(4, "tanh"), L.Dense(3)),
    "dense, pairs": lambda: sequential((3, 9), L.Dense(8, "tanh")),
    "dense, instantiated": lambda: sequential((20, 3), L.Dense(4)),
    "groups": lambda: sequential((3, 5), L.EinsumDense("abc,bcd->abd", output_shape=(3, 4), bias_axes="bd")),
    "convolution": lambda: sequential((6, 5, 4), L.Conv2D(4, 3, padding="same", activation="relu")),
    "convolution, one channel": lambda: sequential((8, 8, 1), L.Conv2D(4, 3, padding="same")),
    "convolution, groups": lambda: sequential((6, 5, 4), L.Conv2D(6, 3, groups=2)),
    "separable": lambda: sequential((6, 7, 3), L.SeparableConv2D(4, 3)),
    "transposed": lambda: sequential((4, 3, 3), L.Conv2DTranspose(4, 3, strides=2, padding="same")),
    "spectral": lambda: sequential((6, 5, 3), lipdp.layers.SpectralConv2D(4, 3), L.Flatten(), L.Dense(2)),
    "normalization": lambda: sequential((4, 6), L.LayerNormalization()),
    "lstm": lambda: sequential((5, 3), L.LSTM(4), L.Dense(2)),
    "gru": lambda: sequential((5, 3), L.GRU(4, reset_after=False)),
    "without a rule": lambda: sequential((4, 3), L.RNN(L.GRUCell(3))),
    "shared": shared,
}


def sums(model, x, y, coefficients, mode="eager"):
    """Norms of whole gradients, and their weighted sum where examples that are not finite are left out."""

    def run(x, y, coefficients, values):
        ones = ops.ones_like(coefficients)
        record = gradients.capture(backend.Forward(model, **values), x, y, ones, loss_values=squared_error)
        norms = sum(record.squared_norms())
        finite = ops.isfinite(norms)
        return norms, record.weighted_sum(ops.where(finite, coefficients, 0.0), finite)

    arguments = tree.map_structure(ops.convert_to_tensor, (x, y, coefficients, state(model)))
    if mode != "eager" and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        run = tf.function(run, jit_compile=mode == "compiled")
    elif keras.backend.backend() == "jax":
        run = _quickly(run)
    return tree.map_structure(lambda t: np.asarray(t, "float64"), run(*arguments))


def agree(model, x, y, mode):
    """The sum with the second example, whose gradient is not finite, is the sum without it."""
    coefficients = np.array([0.5, 1.0, 1.5], "float32")
    norms, found = sums(model, x, y, coefficients, mode)
    others = [0, 2]
    alone, expected = sums(model, x[others], y[others], coefficients[others], "eager")
    assert not np.isfinite(norms[1])
    np.testing.assert_allclose(norms[others], alone, rtol=1e-4)
    for variable, a, b in zip(model.trainable_variables, found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(np.abs(b).max(), 1.0), err_msg=variable.path)


def batch(model):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, *model.input_shape[1:])).astype("float32")
    return x, rng.uniform(size=3).astype("float32")


# Each costs JAX a compilation.
ON_JAX = ("dense", "convolution, one channel", "lstm")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ON_JAX else pytest.mark.backend_free) for n in CASES]
)
def test_an_input_that_overflows(name):
    model = CASES[name]()
    x, y = batch(model)
    x[1] = np.inf
    agree(model, x, y, "eager")


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("mode", ["graph", "compiled"])
@pytest.mark.parametrize("name", ["dense, instantiated", "convolution"])
def test_an_input_that_overflows_in_a_compiled_step(name, mode):
    model = CASES[name]()
    x, y = batch(model)
    x[1] *= 1e38  # finite itself: products and sums are not
    agree(model, x, y, mode)


@pytest.mark.slow
def test_a_word_that_overflows():
    model = keras.Sequential([keras.Input((4,), dtype="int32"), L.Embedding(9, 3), L.Flatten(), L.Dense(2)])
    table = model.layers[0].get_weights()[0]
    table[7] = 3e38
    model.layers[0].set_weights([table])
    x = np.array([[1, 2, 3, 3], [1, 7, 7, 2], [0, 5, 1, 2]], "int32")
    agree(model, x, np.array([0.1, 0.5, 0.9], "float32"), "graph")


def test_a_loss_that_is_not_finite():
    model = CASES["dense"]()
    x, y = batch(model)
    y[1] = np.nan
    agree(model, x, y, "graph")
