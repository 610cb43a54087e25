"""Layers of the user's own that draw random numbers: each row from a state of its own, out of the secret of the run."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import backend, gradients, isolation, strategies
from lipdp.training import seeding
from tests.helpers.clipping import flat

FIT = {"batch_size": 20, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}


class Block(L.Layer):
    """Dense, dropout, dense."""

    def __init__(self, units, rate=0.5):
        super().__init__()
        self.first, self.drop, self.last = L.Dense(units, "tanh"), L.Dropout(rate), L.Dense(units)

    def build(self, shape):
        self.first.build(shape)
        self.last.build((*shape[:-1], self.first.units))

    def call(self, x):
        return self.last(self.drop(self.first(x)))


class WithFlag(Block):
    def call(self, x, training=None):
        return self.last(self.drop(self.first(x), training=training))


class OwnNoise(L.Layer):
    """Two draws from one generator."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x, training=False):
        if not training:
            return x
        return x + keras.random.normal(ops.shape(x), seed=self.seeds) * keras.random.normal((1,), seed=self.seeds)


class Scaled(OwnNoise):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x, training=False):
        return self.scale * super().call(x, training)


def model_of(*middle):
    keras.utils.set_random_seed(0)
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((6,)), *middle, L.Dense(3)]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


def data(rows=60):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 6)).astype("float32"), rng.integers(0, 3, rows).astype("int32")


MAKE = {"block": lambda: Block(4), "flag": lambda: WithFlag(4), "noise": OwnNoise, "scaled": Scaled}
SOME = ["block", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MAKE)[1:])]


@pytest.mark.slow  # `test_random_layers` trains ordinary models
@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("strategy", ["dpsgd", "dpis"])
def test_they_train(name, strategy):
    model = model_of(L.Dense(5), MAKE[name]())
    ((_, seeds),) = seeding.generators(model)
    before = ops.convert_to_numpy(seeds.state.value)
    arguments = FIT | ({"epsilon": 4.0, "noise_multiplier": None} if strategy == "dpis" else {})
    model.fit(*data(), strategy=strategy, microbatch_size=8, **arguments)
    assert model.run.ledger.updates == 3 and np.isfinite(flat(model.get_weights())).all()
    assert before[0] != ops.convert_to_numpy(seeds.state.value)[0]  # a key from the secret


def drawn(model, x, state=7):
    for k, (_, seeds) in enumerate(seeding.generators(model)):
        seeds.state.assign(np.array([state, k], seeds.state.dtype))
    with isolation.isolated(model):
        outputs, _, updated = backend.Forward(model)(ops.convert_to_tensor(x))
    for variable, value in zip(model.non_trainable_variables, updated or (), strict=False):
        variable.assign(value)
    return ops.convert_to_numpy(outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_rows_draw_their_own_numbers_and_no_row_moves_another(name):
    model, (x, _) = model_of(MAKE[name]()), data(8)
    same = np.repeat(x[:1], 8, axis=0)
    assert len({row.tobytes() for row in drawn(model, same)}) > 1
    for k, (_, seeds) in enumerate(seeding.generators(model)):
        assert ops.convert_to_numpy(seeds.state.value).tolist() == [7, k + 1]  # the next call draws something else
    usual = drawn(model, x)
    np.testing.assert_array_equal(usual, drawn(model, x))
    assert not np.allclose(usual, drawn(model, x, state=8))
    for row in range(8):
        other = x.copy()
        other[row] = 1e6
        np.testing.assert_array_equal(np.delete(drawn(model, other), row, 0), np.delete(usual, row, 0))
    # One row more or less leaves the numbers of the others.
    np.testing.assert_allclose(drawn(model, x[:5]), usual[:5], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("copies", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_gradients_are_those_of_the_numbers_that_were_drawn(name, copies):
    """The sum of the gradients of all examples is the ordinary gradient under the same draws."""
    model, (x, y) = model_of(MAKE[name]()), data(8)
    x, y = (ops.convert_to_tensor(t) for t in (x, y))

    def loss(y, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)

    def reset():
        for _, seeds in seeding.generators(model):
            seeds.state.assign(np.array([3, 5], seeds.state.dtype))

    reset()
    record = gradients.capture(backend.Forward(model), x, y, ops.ones(8 // copies), loss_values=loss, copies=copies)
    found = flat([ops.convert_to_numpy(g) for g in record.weighted_sum(ops.ones(8 // copies))])
    reset()
    with isolation.isolated(model):
        ordinary, *_ = backend.Forward(model).gradient(x, lambda y_pred, _: (ops.sum(loss(y, y_pred)) / copies, ()))
    np.testing.assert_allclose(found, flat([ops.convert_to_numpy(g) for g in ordinary]), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_hostile_row_moves_the_sum_by_no_more_than_the_clip_norm():
    model, (x, y) = model_of(Block(4)), data(12)
    x[-1] *= 1e6
    strategy = strategies.DPSGD(0.5)
    calibration = strategy.calibrate(model, model.loss, 12)
    sums = []
    for weight in (np.ones(12), np.append(np.ones(11), 0.0)):
        for _, seeds in seeding.generators(model):
            seeds.state.assign(np.array([3, 5], seeds.state.dtype))
        batch = tuple(ops.convert_to_tensor(t) for t in (x, y, weight.astype("float32")))
        (total, *_), _, _ = strategy.microbatch(calibration, backend.Forward(model), [], 0, None, batch, 12)
        sums.append(flat([ops.convert_to_numpy(t) for t in total]))
    assert 0.49 < np.linalg.norm(sums[0] - sums[1]) <= 0.5


@pytest.mark.slow
def test_what_they_draw_comes_from_the_secret():
    seen, weights = [], []
    for seed in (3, 3, None, None):
        keras.utils.set_random_seed(0)
        model = model_of(Block(4))
        model.fit(*data(), strategy="dpsgd", seed=seed, **FIT)
        ((_, seeds),) = seeding.generators(model)
        seen.append(ops.convert_to_numpy(seeds.state.value).tolist())
        weights.append(flat(model.get_weights()))
    np.testing.assert_array_equal(weights[0], weights[1])
    keys = [key for key, _ in seen]
    assert keys[0] == keys[1] and len(set(keys)) == 3
    assert seen[0] == seen[1]


class Global(L.Layer):
    def call(self, x, training=False):
        return x + keras.random.normal(ops.shape(x))


def test_numbers_from_elsewhere_are_refused():
    with pytest.raises(ValueError, match="SeedGenerator|each row alone"):  # on JAX by Keras, when the model is made
        model_of(Global()).fit(*data(), strategy="dpsgd", **FIT)


@pytest.mark.slow
@pytest.mark.backend_free
def test_clipless_has_no_bound_for_them():
    lipdp.bounds.register(OwnNoise, lambda layer: 1.0)
    model = lipdp.DP_Sequential([lipdp.layers.BoundedInput((6,)), OwnNoise(), lipdp.layers.SpectralDense(3)])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="OwnNoise.*a strategy that clips, such as strategy='dpsgd'") as caught:
        model.fit(*data(), **FIT)
    assert str(caught.value).count("dpsgd") == 1
    model.fit(*data(), strategy="dpsgd", **FIT)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "layer", [L.RandAugment, lambda: L.Pipeline([L.RandAugment()])], ids=["alone", "in a pipeline"]
)
def test_layers_that_draw_once_for_all_rows_are_refused_with_others(layer):
    """The message spoke of seeds, as if the layer were the user's."""
    inputs = keras.Input((8, 8, 3))
    model = lipdp.DP_Model(inputs, L.Dense(2)(L.Flatten()(layer()(inputs))))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).random((40, 8, 8, 3), dtype="float32")
    with pytest.raises(ValueError, match="all rows of a batch together.*RandAugment.*RandomFlip.*Pipeline"):
        model.fit(x, np.arange(40) % 2, **FIT)
    assert model.privacy.epsilon() == 0.0
