"""Whole models: shared, nested and frozen layers, views, padding, masks, attention, dropout, random graphs."""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers as L
from keras import ops

import lipdp
from lipdp import backend, gradients
from tests.helpers.reference import compare, engine, plain_gradients, squared_error

MODES = ("eager", "graph", "compiled") if keras.backend.backend() == "tensorflow" else ("compiled",)


def shaken(model):
    rng = np.random.default_rng(1)
    for v in model.trainable_variables:
        v.assign(v + rng.normal(size=v.shape).astype("float32") * 0.2)
    return model


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def convolutional():
    inputs = keras.Input((8, 8, 1))
    h = L.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    h = L.GroupNormalization(2)(L.MaxPooling2D(2)(h))
    h = L.Conv2D(6, 3, padding="same")(h) + L.Conv2D(6, 1)(h)
    h = L.Conv2DTranspose(3, 2, strides=2)(L.Activation("tanh")(h))
    return shaken(keras.Model(inputs, L.Dense(3)(L.Flatten()(L.Concatenate()([h, inputs])))))


def attention():
    inputs = keras.Input((5, 8))
    h = L.LayerNormalization()(inputs)
    h = inputs + L.MultiHeadAttention(2, 4)(h, h)
    h = h + L.GroupQueryAttention(4, 4, 2)(h, h)
    return shaken(keras.Model(inputs, L.Dense(3)(L.Dense(16, "gelu")(L.RMSNormalization()(h)))))


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("mode", MODES)
def test_convolutional_network(mode):
    compare(convolutional(), normal(3, 8, 8, 1), mode=mode)


@pytest.mark.slow
@pytest.mark.backend_free  # test_precision has attention on JAX
@pytest.mark.parametrize("mode", MODES)
def test_attention(mode):
    # Several variables have gradients that vanish (the bias of the keys), so norms are compared to the largest.
    compare(attention(), normal(3, 5, 8), mode=mode, tolerance=2e-5)


@pytest.mark.backend_free
@pytest.mark.parametrize("views", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_views_are_averaged_first(views):
    compare(convolutional(), normal(2 * views, 8, 8, 1), views=views)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "stack",
    [
        [L.Embedding(9, 4), L.LSTM(5)],
        [L.Embedding(4, 3), L.GRU(4, return_sequences=True), L.Dense(3, "tanh")],
        [L.Embedding(30, 4), L.Flatten(), L.Dense(3, "tanh")],
        [L.Embedding(9, 3), L.DepthwiseConv1D(2), L.SeparableConv1D(3, 2)],
    ],
    ids=["lstm", "gru", "flat", "convolutions"],
)
def test_views_of_sequences(stack):
    model = shaken(keras.Sequential([keras.Input((5,), dtype="int32"), *stack]))
    compare(model, np.random.default_rng(0).integers(0, 4, (4, 5)).astype("int32"), views=2)


@pytest.mark.slow
@pytest.mark.backend_free
def test_padding_adds_nothing():
    weight = np.array([1, 0, 1, 0, 0], "float32")
    for model, x in ((convolutional(), normal(5, 8, 8, 1)), (attention(), normal(5, 5, 8))):
        found = engine(model, x, np.zeros(5, "float32"), weight, mode=MODES[0])
        # Not exactly: squares that may have been lost are added.
        assert all((norms[weight == 0] <= 1e-30).all() for norms in found["norms"])
        assert all((found["values"] != 0).tolist())  # as the loss gave them
        exact = plain_gradients(model, x, np.zeros(5, "float32"), weight)
        total = [np.tensordot(np.linspace(0.5, 1.5, 5)[weight == 1], g[weight == 1], 1) for g in exact]
        largest = max(np.abs(t).max() for t in total)
        for sums, expected in zip(found["sums"], total, strict=True):
            np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1)])
def test_losses_must_be_one_number_for_each_row(shape):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="one number for each row"):
        gradients.capture(
            backend.Forward(model), ops.ones((3, 3)), None, ops.ones((3,)), loss_values=lambda y, p: ops.ones(shape)
        )


def test_losses_that_layers_add_are_refused():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, L.ActivityRegularization(l2=1.0)(L.Dense(2)(inputs)))
    with pytest.raises(ValueError, match="Additional losses"):
        engine(model, normal(3, 4), np.zeros(3, "float32"), np.ones(3, "float32"), mode=MODES[0])


@lipdp.row_wise
class Doubled(L.Dense):
    """A declared subclass: the rule of its parent would give half of its gradient."""

    def call(self, inputs, training=None):
        return 2.0 * super().call(inputs)


@lipdp.row_wise
class Wrapped(L.Layer):
    """Declared, with weights of its own and a layer inside, which must not be recorded beside it."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")
        self.inside = L.Dense(3)
        self.inside.build(input_shape)

    def call(self, inputs):
        return self.inside(self.scale * inputs)


@lipdp.row_wise
class Around(L.Layer):
    """Declared, with a weight of its own, around a layer that the model uses outside of it as well."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs):
        return self.inside(self.scale * inputs)


def test_a_layer_inside_and_outside_of_one_without_a_rule_counts_for_both():
    inputs, shared = keras.Input((4,)), L.Dense(4)
    model = shaken(keras.Model(inputs, L.Dense(2)(Around(shared)(shared(inputs)))))
    compare(model, normal(5, 4), mode=MODES[0])


@pytest.mark.parametrize("layer", [lambda: Doubled(3), Wrapped, L.PReLU], ids=["subclass", "inside", "no rule"])
def test_layers_without_a_rule_of_their_own(layer):
    inputs = keras.Input((4,))
    model = shaken(keras.Model(inputs, L.Dense(2)(layer()(L.Dense(4)(inputs)))))
    compare(model, normal(5, 4), mode=MODES[0])


@pytest.mark.backend_free
def test_layers_used_several_times_and_nested():
    inputs = keras.Input((6, 6, 3))
    conv, norm, dense = L.Conv2D(3, 3, padding="same"), L.GroupNormalization(3), L.Dense(3, "tanh")
    inner = keras.Sequential([keras.Input((6, 6, 3)), dense, L.Conv2D(3, 3, padding="same")])
    h = conv(L.Activation("tanh")(norm(conv(inputs))))
    h = inner(norm(h)) + inner(dense(conv(h)))
    compare(shaken(keras.Model(inputs, h)), normal(3, 6, 6, 3))


@pytest.mark.backend_free
def test_a_table_used_twice_and_tied():
    inputs = keras.Input((4,), dtype="int32")
    table = L.ReversibleEmbedding(7, 5)
    h = table(inputs)
    h = L.Dense(5, "tanh")(h) + L.LSTM(5, return_sequences=True)(table(ops.flip(inputs, axis=1)))
    model = shaken(keras.Model(inputs, table(h, reverse=True)))
    compare(model, np.array([[1, 1, 2, 0], [3, 3, 3, 3], [6, 5, 4, 1]], "int32"))


@pytest.mark.backend_free
def test_masks_that_a_layer_sets_in_its_call_reach_the_next_one():
    inputs = keras.Input((4,), dtype="int32")
    table = L.ReversibleEmbedding(7, 5, mask_zero=True)
    h = L.LSTM(5, return_sequences=True)(table(inputs))
    model = shaken(keras.Model(inputs, table(h, reverse=True)))
    compare(model, np.array([[1, 1, 2, 0], [3, 3, 0, 0], [6, 5, 4, 1]], "int32"))


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("low_rank", [False, True])
def test_negative_indices_count_from_the_end_as_in_the_forward_pass(tied, low_rank):
    inputs = keras.Input((4,), dtype="int32")
    table = L.ReversibleEmbedding(7, 5) if tied else L.Embedding(7, 5)
    rows = table(inputs)
    if low_rank:
        table.enable_lora(2)
    outputs = table(rows, reverse=True) if tied else rows
    model = shaken(keras.Model(inputs, L.GlobalAveragePooling1D()(outputs)))
    compare(model, np.array([[-1, -1, 2, -2], [-7, 6, -1, 0], [6, 5, 4, 1]], "int32"))


@pytest.mark.backend_free
def test_repeated_and_many_indices():
    x = np.random.default_rng(0).integers(0, 50, (3, 12)).astype("int32")
    x[:, 3:7] = 5
    for size in (50, 60):
        model = shaken(keras.Sequential([keras.Input((12,), dtype="int32"), L.Embedding(size, 4), L.LSTM(3)]))
        compare(model, x)
    single = shaken(keras.Sequential([keras.Input((1,), dtype="int32"), L.Embedding(50, 4), L.Flatten()]))
    compare(single, x[:, :1])


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "layer",
    [
        L.SimpleRNN(3),
        L.LSTM(3, return_sequences=True),
        L.GRU(3, go_backwards=True, return_sequences=True),
        L.Bidirectional(L.LSTM(3)),
        L.LSTM(3, zero_output_for_mask=True, return_sequences=True),
        L.TimeDistributed(L.Dense(3, "tanh")),
        L.RNN(L.SimpleRNNCell(3)),
    ],
    ids=lambda layer: layer.name,
)
def test_masks(layer):
    x = np.array([[0, 0, 1, 2, 3], [1, 2, 0, 0, 0], [4, 0, 5, 1, 0]], "int32")
    inputs = keras.Input((5,), dtype="int32")
    h = layer(L.Embedding(7, 4, mask_zero=True)(inputs))
    compare(shaken(keras.Model(inputs, h)), x)


@pytest.mark.slow
@pytest.mark.backend_free
def test_masked_attention_and_initial_states():
    inputs = keras.Input((5,), dtype="int32")
    h = L.Embedding(7, 4, mask_zero=True)(inputs)
    h = L.MultiHeadAttention(2, 3)(h, h)
    state = L.Dense(3, "tanh")(L.LSTM(2)(h))
    h = L.GRU(3, return_sequences=True)(h, initial_state=state)
    model = shaken(keras.Model(inputs, L.SimpleRNN(3)(h, initial_state=[state])))
    compare(model, np.array([[0, 0, 1, 2, 3], [1, 2, 0, 0, 0], [4, 0, 5, 1, 0]], "int32"), tolerance=2e-5)


@pytest.mark.backend_free
def test_several_inputs_outputs_and_a_subclassed_model():
    first, second = keras.Input((4,), name="a"), keras.Input((3, 2), name="b")
    h = L.Dense(3, "tanh")(first)
    z = L.Dense(3)(second)
    model = shaken(keras.Model({"a": first, "b": second}, [h, L.Dot((1, 2))([h, z])]))
    compare(model, {"a": normal(3, 4), "b": normal(3, 3, 2)})

    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = L.Dense(4, "tanh"), L.Dense(2)

        def call(self, x):
            return self.outer(self.inner(self.inner(x)))

    model = Twice()
    model(normal(1, 4))
    compare(shaken(model), normal(3, 4))


class Bilinear(L.Layer):
    """Weights of its own and a layer inside."""

    def build(self, shape):
        self.matrix = self.add_weight(shape=(shape[-1], shape[-1]))
        self.inner = L.Dense(2)
        self.inner.build(shape)

    def call(self, x):
        return ops.sum(ops.matmul(x, self.matrix) * x, axis=-1, keepdims=True) * self.inner(x)


class Scale(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x, mask=None):
        return x * ops.exp(self.scale)


@pytest.mark.slow
def test_own_layers_and_subclasses_use_their_own_vjp():
    class Shifted(L.Dense):
        def call(self, inputs):
            return super().call(inputs) * 2.0 + self.kernel[0]

    stack = [Bilinear(), Scale(), Shifted(3, "tanh"), L.Dense(2)]
    compare(shaken(keras.Sequential([keras.Input((4,)), *stack])), normal(3, 4))


@pytest.mark.slow
def test_frozen_layers_and_weights_are_skipped():
    frozen, half = L.Dense(4, "tanh"), L.Dense(3, "tanh")
    model = shaken(keras.Sequential([keras.Input((5,)), L.Dense(5, "tanh"), frozen, half, L.Dense(2)]))
    frozen.trainable = False
    half.bias.trainable = False
    assert len(model.trainable_variables) == 5
    compare(model, normal(3, 5))


def test_a_layer_without_say_has_gradient_zero():
    inputs = keras.Input((4,))
    h = L.Dense(3)(inputs)
    model = keras.Model(inputs, L.Dense(2)(ops.stop_gradient(h)))
    found = engine(model, normal(3, 4), np.zeros(3, "float32"), np.ones(3, "float32"))
    assert all((n <= 1e-30).all() for n in found["norms"][:2]) and all((s == 0).all() for s in found["sums"][:2])
    assert all((n > 0).all() for n in found["norms"][2:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        L.LSTM(3, dropout=0.5, seed=1),
        L.GRU(3, dropout=0.3, recurrent_dropout=0.4, seed=1),
        L.GRU(3, recurrent_dropout=0.4, reset_after=False, seed=1),
        L.SimpleRNN(3, dropout=0.3, recurrent_dropout=0.4, seed=1),
        L.LSTM(3, dropout=0.3, recurrent_dropout=0.4, go_backwards=True, seed=1),
    ],
    ids=["lstm", "gru", "gru before", "simple", "lstm both"],
)
def test_dropout_masks_are_those_of_the_forward_pass(layer):
    """The sum over examples is the ordinary gradient of the same draw."""
    model = shaken(keras.Sequential([keras.Input((4, 5)), L.Dropout(0.3, seed=2), layer, L.Dense(2)]))
    x, y, weight = normal(3, 4, 5), np.zeros(3, "float32"), np.ones(3, "float32")
    states = [np.asarray(v) for v in model.non_trainable_variables]
    (norms,), sums, ordinary, _ = backend.probe(model, [(x, y)], squared_error, gradients.capture)
    assert all((np.asarray(v) == s).all() for v, s in zip(model.non_trainable_variables, states, strict=True))
    for total, expected in zip(sums, ordinary, strict=True):
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5 * max(1e-3, np.abs(expected).max()))
    assert weight.all() and all(np.isfinite(n).all() for n in norms)


def random_model(seed):
    """A random functional model on 6x6x2 images or sequences of 5 vectors of 4."""
    rng = np.random.default_rng(seed)
    images = rng.random() < 0.5
    inputs = keras.Input((6, 6, 2) if images else (5, 4))
    conv, norm = (L.Conv2D, L.GroupNormalization) if images else (L.Conv1D, L.LayerNormalization)
    nodes, shared = [inputs], {}
    for _ in range(rng.integers(2, 5)):
        h = nodes[rng.integers(len(nodes))]
        width = int(rng.choice([2, 4]))
        kind = rng.choice(["dense", "conv", "norm", "shared", "rnn"])
        if kind == "dense":
            h = L.Dense(width, rng.choice(["tanh", "relu", "linear"]))(h)
        elif kind == "conv":
            h = conv(width, int(rng.integers(1, 4)), padding="same", use_bias=bool(rng.integers(2)))(h)
        elif kind == "norm":
            h = norm(2)(h) if images else norm()(h)
        elif kind == "shared":
            layer = shared.setdefault(h.shape[-1], conv(h.shape[-1], 2, padding="same", activation="tanh"))
            h = layer(layer(h))
        elif not images:
            h = [L.GRU, L.LSTM, L.SimpleRNN][rng.integers(3)](width, return_sequences=True)(h)
        if rng.random() < 0.5 and nodes[-1].shape == h.shape:
            h = L.Add()([h, nodes[-1]])
        nodes.append(h)
    return shaken(keras.Model(inputs, L.Dense(2)(L.Concatenate()(nodes[-2:]))))


@pytest.mark.slow
@pytest.mark.backend_free
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6))
def test_random_models(seed):
    model = random_model(seed)
    compare(model, normal(2, *model.input_shape[1:], seed=seed), tolerance=3e-5)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.sampled_from(MODES), st.integers(1, 3))
def test_many_random_models(seed, mode, views):
    model = random_model(seed)
    # Both sides are float32: on JAX one of them differed by 3.2e-5.
    compare(model, normal(2 * views, *model.input_shape[1:], seed=seed), views=views, mode=mode, tolerance=1e-4)


@pytest.mark.backend_free
def test_clipped_contributions_do_not_exceed_the_clip_norm():
    """One example at a time: its contribution to the sum, measured in float64."""
    model = convolutional()
    x, y = normal(4, 8, 8, 1), np.linspace(0, 50, 4).astype("float32")
    for i in range(4):
        rows = slice(i, i + 1)
        found = engine(model, x[rows], y[rows], np.ones(1, "float32"))
        norm = np.sqrt(sum(n[0] for n in found["norms"]))
        exact = plain_gradients(model, x[rows], y[rows], np.ones(1, "float32"))
        true = np.sqrt(sum((g**2).sum() for g in exact))
        assert true / norm <= 1 + 2e-6


def test_one_filter_over_unknown_sizes_whose_largest_value_counts():
    """What TensorFlow makes the cotangent of has no static last axis then."""
    inputs = keras.Input((None, 1))
    model = lipdp.DP_Model(inputs, L.GlobalMaxPooling1D()(L.Conv1D(1, 2)(inputs)))
    model.compile("sgd", loss="mse")
    model.fit(normal(8, 6, 1), normal(8, 1), batch_size=4, epochs=1, noise_multiplier=1.0, strategy="dpsgd", verbose=0)
    assert int(model.optimizer.iterations) == 2
