"""Products, rolls and padding that run one row at a time on TensorFlow, whose vectorized map gets them wrong."""

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import backend
from tests.helpers.models import DELTA

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX has another vectorized map.")


def drawn(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


# Of x and of y, for 11 rows; the last two axes are those of the matrices (5, 5).
BATCHES = [((11, 1), ()), ((), (11, 1)), ((11, 1), (1, 1)), ((11, 3), (3,)), ((11, 1), (11, 1)), ((11, 1), (11, 4))]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("adjoint", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("batches", BATCHES)
def test_products_are_those_of_numpy(batches, adjoint, known):
    import tensorflow as tf

    from lipdp.backend.vectorizing_tensorflow import product

    x, y = (drawn(*batch, 5, 5) for batch in batches)
    expected = np.matmul(*(np.swapaxes(t, -1, -2) if turned else t for t, turned in zip((x, y), adjoint, strict=True)))
    paired = all(batch[:1] == (11,) for batch in batches)
    signature = [tf.TensorSpec([None if size == 11 and not known else size for size in t.shape]) for t in (x, y)]
    found = tf.function(lambda x, y: product(x, y, *adjoint, paired), input_signature=signature)
    np.testing.assert_allclose(found(x, y), expected, rtol=1e-4, atol=1e-4)
    assert found.get_concrete_function().output_shapes[-2:] == (5, 5)


def test_gradients_of_a_shared_matrix_are_those_of_each_row():
    kernel, rows = drawn(28, 1), drawn(11, 28, 28)

    def function(values, row):
        return [ops.sum(ops.tanh(row[0] @ values[0]) * row[0], axis=1)]

    def gradient(values, row):
        return ops.sum(ops.square(function([values], [row[None]])[0]))

    found = backend.local_gradients(gradient, [kernel], [rows], vectorised=True)[0]
    expected = backend.local_gradients(gradient, [kernel], [rows], vectorised=False)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    together = function([kernel], [rows])[0]
    np.testing.assert_allclose(backend.row_by_row(function, [kernel], [rows])[0], together, rtol=1e-4, atol=1e-4)


def test_tensorflow_keeps_its_own_way():
    from tensorflow.python.ops.parallel_for import pfor

    from lipdp.backend.vectorizing_tensorflow import own_converters

    before = {name: pfor._pfor_converter_registry[name] for name in ("BatchMatMulV2", "Roll", "PadV2")}
    with own_converters():
        assert all(pfor._pfor_converter_registry[name] is not kept for name, kept in before.items())
    assert all(pfor._pfor_converter_registry[name] is kept for name, kept in before.items())


@pytest.mark.parametrize("axis", [-1, -2, 1, 2, (-1, -2), (1, -1), (2, 2)])
@pytest.mark.parametrize("own_shift", [False, True])
def test_rolls_stay_within_their_row(axis, own_shift):
    rows = drawn(11, 4, 6)

    def function(values, row):
        shift = ops.cast(ops.abs(10.0 * row[0][0, 0, 0]), "int32") if own_shift else 1
        several = (shift, 2) if isinstance(axis, tuple) else shift
        return [ops.roll(ops.square(row[0]), several, axis)]

    def gradient(values, row):
        return ops.sum(values[0] * function([], [row[None]])[0])

    weight = drawn(1, 4, 6)
    expected = np.concatenate([function([], [rows[i : i + 1]])[0] for i in range(11)])
    np.testing.assert_allclose(backend.row_by_row(function, [], [rows])[0], expected, rtol=1e-5)
    found = backend.local_gradients(gradient, [weight], [rows], vectorised=True)[0]
    np.testing.assert_allclose(found, expected[:, None], rtol=1e-5)


@pytest.mark.parametrize("own_constant", [False, True])
def test_padding_has_its_constant(own_constant):
    rows = drawn(11, 4, 6)

    def function(values, row):
        return [ops.pad(row[0], ((0, 0), (1, 1), (0, 2)), constant_values=row[0][0, 0, 0] if own_constant else 3.0)]

    expected = np.concatenate([function([], [rows[i : i + 1]])[0] for i in range(11)])
    np.testing.assert_array_equal(backend.row_by_row(function, [], [rows])[0], expected)


class Attention(keras.layers.Layer):
    def build(self, input_shape):
        self.scores = self.add_weight(shape=(input_shape[-1], 1), name="scores")

    def call(self, inputs):
        return ops.sum(inputs * ops.softmax(inputs @ self.scores, axis=1), axis=1)


@pytest.mark.slow
def test_a_layer_that_multiplies_by_a_matrix_trains():
    keras.utils.set_random_seed(0)
    series = keras.Input((28, 28))
    model = lipdp.DP_Model(series, keras.layers.Dense(3)(Attention()(series)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = drawn(40, 28, 28), np.arange(40) % 3
    model.fit(x, y, batch_size=20, noise_multiplier=1.0, delta=DELTA, strategy="dpsgd", verbose=0)
    assert model.privacy.updates == 2
