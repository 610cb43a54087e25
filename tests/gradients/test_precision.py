"""Passes of low precision: norms and sums still agree, so that what is clipped keeps its norm (JAX)."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers, ops

import lipdp
from lipdp import backend, gradients, strategies
from lipdp.gradients import factors
from lipdp.strategies.clipping import MARGIN

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow has one switch for all products.")
ROWS = 5


@pytest.fixture
def coarse(monkeypatch):
    """Products as a GPU makes them, and coarser: 8 bits of each number where float32 is not asked for."""
    import jax
    from jax._src.lax import lax

    exact = lax.dot_general

    def rounded(a, b, dimension_numbers, precision=None, **more):
        asked = jax.config.jax_default_matmul_precision if precision is None else str(precision)
        if "highest" not in str(asked).lower():
            a, b = (jax.lax.reduce_precision(t, 8, 7) for t in (a, b))
        return exact(a, b, dimension_numbers, precision=precision, **more)

    monkeypatch.setattr(lax, "dot_general", rounded)


@dataclasses.dataclass(frozen=True)
class OwnClipping(strategies.PerExample):
    """Who writes one makes sums of their own, perhaps."""

    name = "own"
    clip_norm: float = 1.0
    augmentation: object = None

    def contributions(self, calibration, record, weight, state):
        return record.weighted_sum(0.0 * weight), []


def dense():
    return [keras.Input((12,)), layers.Dense(9, "tanh"), layers.Dense(3)]


def sequence():
    # Few positions, wide layers: norms are taken from pairs of positions.
    return [keras.Input((3, 16)), layers.Dense(16, "tanh"), layers.Dense(16, "tanh"), layers.Flatten(), layers.Dense(3)]


def long_sequence():
    # Many positions, narrow layers: the gradients themselves are made.
    return [keras.Input((40, 4)), layers.Dense(5, "tanh"), layers.GlobalAveragePooling1D(), layers.Dense(3)]


def attention():
    inputs = keras.Input((3, 16))
    h = layers.MultiHeadAttention(2, 8)(inputs, inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(h)))


def tokens():
    return [keras.Input((3,), dtype="int32"), layers.Embedding(30, 20), layers.LSTM(4), layers.Dense(3)]


def shared():
    inputs, twice = keras.Input((12,)), layers.Dense(12, "tanh")
    return keras.Model(inputs, layers.Dense(3)(twice(twice(inputs))))


def built(make):
    found = make()
    return found if isinstance(found, keras.Model) else keras.Sequential(found)


def contributions(model, x, y):
    """The clipped gradient of each row as it enters the sum of a batch, and its norm in float64."""
    import jax

    values = [[v.value for v in variables] for variables in (model.trainable_variables, model.non_trainable_variables)]

    def loss(y, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)

    @jax.jit
    def clipped(x, y, chosen):
        record = gradients.capture(backend.Forward(model, *values), x, y, ops.ones((ROWS,)), loss_values=loss)
        norms = ops.sqrt(sum(record.squared_norms()))
        return record.weighted_sum(chosen * MARGIN / norms)

    rows = [clipped(x, y, np.eye(ROWS, dtype="float32")[i]) for i in range(ROWS)]
    return np.array([np.sqrt(sum(np.square(np.asarray(g, "float64")).sum() for g in row)) for row in rows])


def data(model, seed=0):
    rng = np.random.default_rng(seed)
    shape = (ROWS, *model.input_shape[1:])
    x = rng.integers(0, 30, shape) if "int" in model.inputs[0].dtype else rng.normal(size=shape).astype("float32")
    return x, rng.integers(0, 3, ROWS).astype("int32")


@pytest.mark.parametrize("make", [dense, sequence, long_sequence, attention, tokens, shared])
def test_what_is_added_keeps_the_norm_that_was_measured(coarse, make):
    model = built(make)
    found = contributions(model, *data(model))
    assert found.max() <= 1.0
    assert found.min() >= 1.0 - 3e-4


@pytest.mark.slow
def test_without_it_they_would_differ(coarse, monkeypatch):
    """A test of the test: were the sum as coarse as the passes, it would be longer than what was measured."""
    monkeypatch.setattr(factors.Outer, "_summed", factors.Outer._summed.__wrapped__)
    model = built(sequence)
    found = [contributions(model, *data(model, seed)).max() for seed in range(3)]
    assert max(found) > 1.0 + 1e-4


def test_what_is_measured_is_what_is_added(monkeypatch):
    """Also where a row that overflows is left out, which is another branch of the program."""
    made, ordinary = [], backend.contract

    def contract(a, b):
        made.append(a.shape)
        return ordinary(a, b)

    monkeypatch.setattr(backend, "contract", contract)
    a, g = (np.random.default_rng(i).normal(size=(ROWS, 40, 4)).astype("float32") for i in range(2))
    a[2, 0] = np.inf
    factor = factors.Outer(ops.convert_to_tensor(a), ops.convert_to_tensor(g), factors.MatrixLayout((4, 4)))
    finite = ops.isfinite(factor.squared_norm())
    total = np.asarray(factor.masked(finite).weighted_sum(ops.ones((ROWS,))))
    expected = np.einsum("bpi,bpo->io", np.delete(a, 2, 0), np.delete(g, 2, 0))
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-4)
    assert len(made) == 1


def test_the_compiler_makes_nothing_again():
    import jax

    model = built(long_sequence)
    x, y = data(model)
    values = [[v.value for v in variables] for variables in (model.trainable_variables, model.non_trainable_variables)]

    def step(x):
        record = gradients.capture(
            backend.Forward(model, *values), x, y, ops.ones((ROWS,)), loss_values=lambda y, y_pred: y_pred[:, 0]
        )
        return record.squared_norms(), record.weighted_sum(ops.ones((ROWS,)))

    # What the passes leave, and the gradients made of it.
    assert jax.jit(step).lower(x).as_text().count("optimization_barrier") >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "exact"),
    [(strategies.Clipless(), True), (strategies.DPIS(), True), (strategies.DPSGD(), False), (OwnClipping(), True)],
)
def test_fit_asks_for_float32_where_the_bounds_need_it(strategy, exact):
    import jax

    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(jax.config.jax_default_matmul_precision)

    stack = [lipdp.layers.BoundedInput(norm=1.0), lipdp.layers.SpectralDense(3)]
    model = lipdp.DP_Sequential([keras.Input((4,)), *stack])
    model.compile("sgd", lipdp.losses.SparseCategoricalCrossentropy())
    x, y = np.random.default_rng(0).normal(size=(64, 4)).astype("float32"), np.arange(64) % 3
    model.fit(x, y, batch_size=16, epsilon=5.0, delta=1e-5, strategy=strategy, callbacks=[Look()], verbose=0)
    assert set(seen) == {"highest" if exact else None}
