"""Own layers, functions and losses that mix examples: one more row moves the released sum by the clip norm at most."""

import contextlib
import sys

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import _keras, backend, diffusion, isolation, layers, losses, strategies
from tests.helpers.clipping import BATCH, averaged, flat

C = 0.1


@pytest.fixture
def unprobed(monkeypatch):
    """What is not found by trying must be harmless all the same."""
    monkeypatch.setattr(sys.modules["lipdp.gradients.supported"], "_probe", lambda model: None)
    for module in ("lipdp.gradients.supported", "lipdp.strategies.clipless"):
        monkeypatch.setattr(sys.modules[module].isolation, "refuse_mixing", lambda model: None)
    monkeypatch.setattr(sys.modules["lipdp.training.session"].losses, "check_per_example", lambda *_: None)


class Same(L.Layer):
    def compute_output_shape(self, input_shape):
        return input_shape


class LimitByLargest(Same):
    """Scales all activations by the largest of the batch, where that is above 100."""

    def call(self, inputs):
        return inputs / ops.maximum(1.0, ops.max(ops.abs(inputs)) / 100.0)


class WeakSum(Same):
    def call(self, inputs):
        return inputs + 2e-5 * ops.sum(inputs, axis=0, keepdims=True)


class ByNumber(Same):
    """Keeps rows apart in small batches only."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs):
        together = ops.cast(ops.shape(inputs)[0] > 8, "float32")
        return self.scale * (inputs + together * ops.sum(inputs, axis=0, keepdims=True))


class Standardized(L.Layer):
    """Weights of its own, a layer inside, and the statistics of the batch."""

    def build(self, input_shape):
        self.inner = L.Dense(4)
        self.inner.build(input_shape)

    def call(self, inputs):
        inputs = self.inner(inputs)
        return inputs / (1.0 + ops.mean(ops.square(inputs), axis=0))


class Masks(L.Layer):
    """Mixes through the mask alone."""

    supports_masking = True

    def call(self, inputs):
        return inputs

    def compute_mask(self, inputs, previous_mask=None):
        return ops.all(ops.max(ops.abs(inputs), axis=0, keepdims=True) < 1e6, axis=-1) & ops.any(inputs < 1e6, axis=-1)


def sum_of_batch(x):
    return x + ops.sum(x, axis=0, keepdims=True)


class MyDense(L.Dense):
    def call(self, inputs, training=None):
        return super().call(inputs) + ops.sum(inputs)


class MixingCell(L.SimpleRNNCell):
    def call(self, sequence, states, training=False):
        output, states = super().call(sequence, states, training=training)
        return output + ops.sum(output, axis=0, keepdims=True), states


def stack(*middle):
    return lambda: keras.Sequential([keras.Input((6,)), L.Dense(4), *(make() for make in middle), L.Dense(3)])


def graph(middle):
    def make():
        inputs = keras.Input((6,))
        return keras.Model(inputs, L.Dense(3)(middle(L.Dense(4)(inputs))))

    return make


def sequence(*middle):
    def make():
        front = [keras.Input((6,)), L.Dense(8), L.Reshape((2, 4))]
        return keras.Sequential([*front, *(layer() for layer in middle), L.Dense(3)])

    return make


def nested():
    inner = keras.Sequential([keras.Input((4,)), L.Dense(4), WeakSum()])
    return keras.Sequential([keras.Input((6,)), L.Dense(4), inner, L.Dense(3)])


class OwnModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = L.Dense(4), L.Dense(3)

    def call(self, inputs):
        return self.last(sum_of_batch(self.first(inputs)))


MODELS = {
    "largest": stack(LimitByLargest),
    "sum": stack(WeakSum),
    "number": stack(ByNumber),
    "statistics": stack(Standardized),
    "lambda": stack(lambda: L.Lambda(sum_of_batch)),
    "activation": stack(lambda: L.Activation(sum_of_batch)),
    "dense": stack(lambda: L.Dense(4, activation=sum_of_batch)),
    "subclass": stack(lambda: MyDense(4)),
    "flip": graph(lambda h: ops.flip(h, axis=0)),
    "roll": graph(lambda h: ops.roll(h, 1, axis=0)),
    "cumulated": graph(lambda h: ops.cumsum(h, axis=0)),
    "softmax": graph(lambda h: ops.softmax(h, axis=0)),
    "total": graph(lambda h: h + ops.sum(h, axis=0, keepdims=True)),
    "ranks": graph(lambda h: ops.max(h * ops.expand_dims(h, 1), axis=1)),
    "along": graph(lambda h: L.UnitNormalization(axis=0)(h)),
    "nested": nested,
    "time": sequence(lambda: L.TimeDistributed(WeakSum()), L.Flatten),
    "cell": sequence(lambda: L.RNN(MixingCell(4))),
    "mask": sequence(Masks, lambda: L.LSTM(3)),
}


def private(plain, loss=None, **arguments):
    model = lipdp.DP_Model.from_keras(plain)
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss=loss, **arguments)
    return model


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(12, 6)).astype("float32"), rng.integers(0, 3, 12).astype("int32")


def effect(model, strategy, y=None):
    """How far a row of size 1e8 moves the sum."""
    x, labels = data()
    y, found = labels if y is None else y, []
    for weight in (0.0, 1.0):
        x = x.copy()
        x[0] = 1e8 * weight
        weights = np.ones(12, "float32")
        weights[0] = weight
        found.append(flat(averaged(model, strategy, (x, y, weights))[0]))
    assert np.isfinite(found).all() and np.linalg.norm(found[0]) > 0
    return BATCH * float(np.linalg.norm(found[1] - found[0]))


QUICK = ("largest", "number", "statistics", "lambda", "flip", "nested", "mask")
# JAX compiles these for long.
LONG = ("largest", "mask", "number")


def marks(name):
    return [pytest.mark.backend_free] if name in LONG else [] if name in QUICK else [pytest.mark.slow]


@pytest.mark.parametrize("name", [pytest.param(n, marks=marks(n)) for n in MODELS])
def test_one_row_moves_the_sum_by_the_clip_norm_at_most(name, unprobed):
    keras.utils.set_random_seed(0)
    assert effect(private(MODELS[name]()), strategies.DPSGD(C)) <= C * 1.001


@pytest.mark.backend_free
@pytest.mark.parametrize("strategy", [strategies.DPSGD(C, augmentation_multiplicity=2), strategies.AdaCliP(C)])
def test_other_strategies_that_clip(strategy, unprobed):
    keras.utils.set_random_seed(0)
    assert effect(private(MODELS["number"]()), strategy) <= C * 1.001


def test_norms_of_dpis(unprobed):
    keras.utils.set_random_seed(0)
    model, strategy = private(MODELS["statistics"]()), strategies.DPIS(C)
    x, y = data()
    found = []
    for size in (1.0, 1e8):
        x[0] = size
        batch = [ops.convert_to_tensor(t) for t in (x, y, np.ones(12, "float32"))]
        found.append(ops.convert_to_numpy(strategy.norms(backend.Forward(model), batch)[0]))
    np.testing.assert_allclose(found[0][1:], found[1][1:], rtol=1e-4)


def by_number(y_true, y_pred):
    """Squared errors, in larger batches times their sum."""
    values = ops.mean(ops.square(ops.cast(y_true, "float32")[:, None] - y_pred), axis=-1)
    return values * ops.where(ops.shape(values)[0] > 8, ops.sum(values), 1.0)


class OwnLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return by_number(y_true, y_pred)


class OwnBounded(losses.Huber):
    def gradient(self, y_true, y_pred):
        return super().gradient(y_true, y_pred) + ops.sum(y_pred)


@pytest.mark.slow
def test_losses_that_mix_see_one_row(unprobed):
    keras.utils.set_random_seed(0)
    for loss in (by_number, OwnLoss()):
        assert effect(private(stack()(), loss), strategies.DPSGD(C)) <= C * 1.001
    y, outputs = np.zeros((12, 3), "float32"), np.ones((12, 3), "float32")
    large = outputs.copy()
    large[0] = 1e8
    for loss, labels in ((by_number, y[:, 0]), (OwnLoss(), y[:, 0]), (OwnBounded(), y)):
        few, many = (ops.convert_to_numpy(losses.example_values(loss, labels, t)) for t in (outputs, large))
        assert few.shape == (12,)
        np.testing.assert_array_equal(few[1:], many[1:])
        np.testing.assert_allclose(few, np.full(12, few[1]), rtol=1e-6)


def of_neighbors(y_true, y_pred):
    """How far each number is from the one before it, in a circle; without a sum over the batch."""
    return ops.mean(ops.square(y_pred - ops.roll(y_pred, 1, axis=-1)), axis=-1)


def test_losses_that_roll_along_the_last_axis_see_one_row():
    keras.utils.set_random_seed(0)
    assert effect(private(stack()(), of_neighbors), strategies.DPSGD(C)) <= C * 1.001
    outputs = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    expected = np.mean(np.square(outputs - np.roll(outputs, 1, -1)), -1)
    found = losses.example_values(of_neighbors, np.zeros(12, "float32"), outputs)
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's rules of vectorized maps.")
def test_a_loss_that_the_map_of_rows_computes_wrongly_is_refused(monkeypatch):
    from lipdp.backend import capture_tensorflow

    monkeypatch.setattr(capture_tensorflow, "own_converters", contextlib.nullcontext)
    model = private(stack()(), of_neighbors)
    with pytest.raises(ValueError, match="one row at a time its values are others"):
        model.fit(*data(), batch_size=6, noise_multiplier=1.0, delta=0.01, verbose=0)
    assert model.privacy.epsilon(0.01) == 0.0


class Mixes(layers.LipschitzLayer):
    """States a bound that holds for one row only."""

    def __init__(self, share=100.0):
        super().__init__()
        self.share = share

    def build(self, input_shape):
        within = keras.constraints.MinMaxNorm(0.0, 1.0, axis=None)
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="zeros", constraint=within)

    def call(self, inputs):
        return inputs * (1.0 + self.scale) + self.share * ops.sum(inputs, axis=0, keepdims=True)

    def input_lipschitz(self, input_bounds):
        return (102.0,)

    def parameter_bounds(self, input_bounds, cotangent_bound):
        return (input_bounds[0] * cotangent_bound,)


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [None, 0.5])
def test_own_lipschitz_layers_of_clipless_see_one_row(unprobed, quantile):
    keras.utils.set_random_seed(0)
    front = [layers.BoundedInput((6,), norm=1.0), layers.SpectralDense(4)]
    model = lipdp.DP_Sequential([*front, Mixes(), layers.SpectralDense(3)])
    model.compile(keras.optimizers.SGD(1e-3), loss=losses.SparseCategoricalCrossentropy(clip=0.1))
    x, y = data()
    start, moved = model.get_weights(), []
    for outlier in (False, True):
        model.set_weights(start)
        if outlier:
            x[0] = -1e8
        fit = {"noise_multiplier": 1e-6, "delta": 1e-3, "verbose": 0, "seed": 1}
        model.fit(x, y, batch_size=12, steps_per_epoch=1, strategy=strategies.Clipless(quantile=quantile), **fit)
        moved.append(flat(model.get_weights()))
    bound = 2.0 * 1e-3 * model.run.driver.calibration.sensitivity
    assert np.linalg.norm(moved[1] - moved[0]) <= bound * 1.001


@pytest.mark.parametrize("layer", [LimitByLargest, WeakSum])
def test_what_is_found_is_refused(layer):
    model = private(stack(layer)())
    with pytest.raises(ValueError, match="depends on the other examples"):
        strategies.DPSGD(C).calibrate(model, model.loss, 4)


@lipdp.row_wise
class Declared(ByNumber):
    """Said to keep rows apart, and does so in small batches."""


@lipdp.row_wise
def declared(x):
    """The same as an activation."""
    return x + ops.cast(ops.shape(x)[0] > 8, "float32") * ops.sum(x, axis=0, keepdims=True)


@pytest.mark.parametrize("layer", [Declared, lambda: L.Dense(4, declared)], ids=["layer", "activation"])
def test_a_declaration_that_a_larger_batch_disproves_is_refused(layer):
    model = private(stack(layer)())
    with pytest.raises(ValueError, match="depends on the other examples"):
        strategies.DPSGD(C).calibrate(model, model.loss, 4)


@pytest.mark.parametrize("share", [100.0, 2e-5])
def test_own_lipschitz_layers_that_mix_are_refused(share):
    inputs = keras.Input((6,))
    # In front of the layer that bounds rows, where an outlier is one.
    model = lipdp.DP_Model(inputs, layers.SpectralDense(3)(layers.BoundedInput(norm=1.0)(Mixes(share)(inputs))))
    model.layers[1].trainable = False
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy(clip=0.1))
    with pytest.raises(ValueError, match="depends on the other examples.*Mixes"):
        strategies.Clipless().calibrate(model, model.loss, 4)


@keras.saving.register_keras_serializable(package="mixing")
class Blends:
    """An augmentation that adds the mean of its batch."""

    def __call__(self, x, key):
        return x + ops.mean(x, axis=0) + 0.0 * ops.cast(key[0], "float32")

    def get_config(self):
        return {}


@pytest.mark.slow
def test_own_augmentations_see_one_row(unprobed, monkeypatch):
    monkeypatch.setattr(sys.modules["lipdp.strategies.augmentation"], "check", lambda *_: None)
    keras.utils.set_random_seed(0)
    strategy = strategies.DPSGD(C, augmentation_multiplicity=2, augmentation=Blends())
    assert effect(private(stack()()), strategy) <= C * 1.001


class Widened(diffusion.Denoiser):
    """A denoiser that scales by the largest example."""

    def training_pair(self, x, noise, u):
        x_in, c_noise, target = diffusion.denoisers.get("edm").training_pair(x, noise, u)
        return x_in / (1.0 + ops.max(ops.abs(x))), c_noise, target


def test_own_denoisers_see_one_row():
    noising = diffusion.noising.Noising(Widened())
    x = np.ones((12, 3), "float32")
    found = []
    for size in (1.0, 1e8):
        noising.seeds.reseed(np.arange(8, dtype="uint32"))
        x[0] = size
        found.append([ops.convert_to_numpy(t)[1:] for t in noising(x)])
    for few, many in zip(*found, strict=True):
        np.testing.assert_array_equal(few, many)


def test_an_embedding_of_floats_gets_tokens():
    """TensorFlow stopped at tokens that it does not have."""
    inputs = keras.Input((3,))
    outputs = keras.layers.Lambda(lambda rows: 2.0 * rows)(keras.layers.Embedding(4, 2)(inputs))
    isolation.refuse_mixing(keras.Model(inputs, outputs))
    outputs = keras.layers.Lambda(lambda rows: rows - keras.ops.mean(rows, axis=0))(
        keras.layers.Embedding(4, 2)(inputs)
    )
    with pytest.raises(ValueError, match="depends on the other examples"):
        isolation.refuse_mixing(keras.Model(inputs, outputs))


class Embedded(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(4, 2)

    def call(self, tokens):
        return self.table(tokens)


@pytest.mark.parametrize("inside", [Embedded, lambda: keras.Sequential([keras.layers.Embedding(4, 2)])])
def test_tokens_of_an_embedding_inside_of_a_layer(inside):
    tokens, numbers = keras.Input((3,)), keras.Input((2,))
    words = inside()(keras.layers.Reshape((1, 3))(tokens))
    own = keras.layers.Lambda(lambda rows: 2.0 * rows)(keras.layers.Flatten()(words))
    model = keras.Model([tokens, numbers], [own, keras.layers.Identity()(numbers)])
    isolation.refuse_mixing(model)
    _, (x, other) = isolation.synthetic(_keras.graph(model))
    x, other = (ops.convert_to_numpy(tensor) for tensor in (x, other))
    assert set(np.unique(x)) == {0.0, 1.0} and np.max(other) > 1e4  # an outlier where none is looked up


NUMBERS_OF_ROWS = {
    "an operation": lambda x: x + L.Dense(1)(x),
    "a mean": lambda x: x + ops.mean(x, axis=-1, keepdims=True),
    "a layer": lambda x: L.Add()([x, L.Dense(1)(x)]),
    "an average": lambda x: L.Average()([x, L.Dense(1)(x)]),
    "of sequences": lambda x: ops.add(L.Reshape((BATCH, 3))(L.Dense(3 * BATCH)(x)), L.Dense(1)(x)[:, None]),
}


@pytest.mark.parametrize("name", NUMBERS_OF_ROWS)
def test_numbers_of_rows_are_added_to_their_own_rows_where_channels_are_as_many(name):
    """Keras takes them for a bias on TensorFlow."""
    inputs = keras.Input((BATCH,))
    hidden = L.Flatten()(ops.tanh(NUMBERS_OF_ROWS[name](inputs)))
    model = lipdp.DP_Model.from_keras(keras.Model(inputs, L.Dense(2)(hidden)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = (
        np.random.default_rng(0).normal(size=(BATCH, BATCH)).astype("float32"),
        (np.arange(BATCH) % 2).astype("int32"),
    )

    def released(x, weight):
        return BATCH * flat(averaged(model, strategies.DPSGD(clip_norm=C), (x, y, weight))[0])

    one, without = np.ones(BATCH, "float32"), np.r_[0.0, np.ones(BATCH - 1)].astype("float32")
    for value in (x[0], 1e4, np.inf, np.nan):
        changed = x.copy()
        changed[0] = value
        assert np.linalg.norm(released(changed, one) - released(x, without)) <= C * (1 + 1e-5)


@pytest.mark.parametrize("rank", [2, 3])
def test_sums_of_equal_shapes_run_as_they_are(rank):
    inputs = keras.Input((4, 1)[: rank - 1])
    hidden = L.Add()([inputs + 2.0 * inputs, L.Average()([inputs, inputs + 1.0]) + np.ones(inputs.shape[-1])])
    assert not isolation.foreign(keras.Model(inputs, hidden))
