"""What the engine refuses, by type and by trying, and what it says."""

import os
import sys

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import backend, gradients


def around(*stack, shape=(4,), dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), L.Dense(4), *stack, L.Dense(2)])


class Centre(L.Layer):
    def call(self, x):
        return x - ops.mean(x, axis=0, keepdims=True)


class Reorder(L.Layer):
    def call(self, x):
        return ops.transpose(x, (1, 0, 2))


class Noisy(L.Layer):
    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(0)

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        return x * self.scale + keras.random.normal(ops.shape(x), seed=self.seed)


@lipdp.row_wise
class DeclaredNoisy(Noisy):
    pass


class WideWeight(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), dtype="float64")

    def call(self, x):
        return x * ops.cast(self.scale, x.dtype)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")  # JAX has no float64 unless asked
@pytest.mark.parametrize(
    "layer, words",
    [
        (L.BatchNormalization(), ("mixes the examples", "GroupNormalization")),
        (L.SpectralNormalization(L.Dense(3)), ("changes its weights", "lipdp.layers")),
        (L.ActivityRegularization(0.1), ("activity regularization", "Leave it out", "lipdp.fix")),
        (L.Dense(3, activity_regularizer="l2"), ("activity regularization", "Leave it out", "lipdp.fix")),
        (L.Dense(3, kernel_regularizer="orthogonal_regularizer"), ("regularizer", "lipdp.fix", "weight_decay")),
        (L.Dense(3, dtype="bfloat16"), ("bfloat16", "float32")),
        (L.Dense(3, dtype="mixed_float16"), ("float16", "float32")),
        (L.Dense(3, dtype="float64"), ("'dense", "float64", "Use float32")),
        (WideWeight(), ("wide_weight", "float64", "Use float32")),
        (DeclaredNoisy(), ("draws random numbers", "Dropout")),
        (Centre(), ("depends on the other examples", "It can be 'centre' (Centre)", "each row alone")),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_layers_that_are_refused(layer, words):
    with pytest.raises(ValueError) as caught:
        gradients.supported(around(layer))
    assert all(word in str(caught.value) for word in words)


def test_frozen_layers_in_float8_are_refused():
    layer = L.Dense(4)
    model = around(layer, L.Dense(3))
    layer.quantize("float8")
    layer.trainable = False
    with pytest.raises(ValueError, match="history of its inputs.*float8"):
        gradients.supported(model)


def cast():
    inputs = keras.Input((5,))
    return keras.Model(inputs, L.Dense(2, autocast=False)(ops.cast(inputs, "float16")))


def read_in_float16():
    inputs, table = keras.Input((5,), dtype="int32"), L.ReversibleEmbedding(7, 4, reverse_dtype="float16")
    return keras.Model(inputs, table(table(inputs), reverse=True))


@pytest.mark.slow
@pytest.mark.parametrize("make", [cast, read_in_float16])
def test_a_graph_in_float16_runs_or_is_named(make):
    try:
        gradients.supported(make())
    except ValueError as error:
        assert "computes in float16" in str(error) and "autocast" in str(error)


def test_nested_layers_are_found():
    inner = keras.Sequential([keras.Input((4,)), L.Dense(3), L.BatchNormalization()])
    with pytest.raises(ValueError, match="mixes the examples"):
        gradients.supported(around(inner))


@pytest.mark.slow
def test_rows_in_another_order_are_found():
    model = keras.Sequential([keras.Input((5, 4)), Reorder(), L.Dense(3), Reorder(), L.Dense(2)])
    with pytest.raises(ValueError, match="reorders the rows"):
        gradients.supported(model)
    # Where the sizes do not agree, the engine itself notices.
    model = keras.Sequential([keras.Input((3, 4)), Reorder(), L.Dense(3), Reorder(), L.Dense(2)])
    with pytest.raises(ValueError, match="first axis is not that of the examples"):
        gradients.supported(model)


@lipdp.row_wise
class Placed(L.Layer):
    def __init__(self, repeated):
        super().__init__()
        self.words, self.places, self.repeated = L.Embedding(7, 3), L.Embedding(4, 3), repeated

    def call(self, x):
        places = ops.arange(ops.shape(x)[-1])
        return self.words(x) + self.places(ops.broadcast_to(places, ops.shape(x)) if self.repeated else places)


@pytest.mark.parametrize("repeated", [False, True])
def test_what_has_no_axis_of_examples_is_named(repeated):
    """The transformers of keras.io look up places once for the whole batch."""
    inputs = keras.Input((4,), dtype="int32")
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(Placed(repeated)(inputs))))
    if repeated:
        gradients.supported(model)
        return
    with pytest.raises(ValueError, match=r"shape \(4,\) for .* rows.*ops.broadcast_to"):
        gradients.supported(model)


class Moved(L.Layer):
    """Puts the rows of a batch in another order."""

    def __init__(self, move):
        super().__init__()
        self.move = move

    def call(self, x):
        return self.move(x)


@pytest.mark.parametrize(
    "move",
    [
        lambda h: ops.flip(h, axis=0),
        lambda h: ops.roll(h, 3, axis=0),
        lambda h: ops.roll(h, 5, axis=0),
        lambda h: ops.roll(h, -7, axis=0),
        lambda h: ops.concatenate([h[:1], h[2:3], h[1:2], h[3:]], axis=0),
        lambda h: ops.concatenate([h[:-1], h[-1:] + h[:1]], axis=0),
    ],
    ids=("flip", "roll3", "roll5", "roll7", "swap", "last"),
)
def test_rows_in_another_order_behind_the_last_weight_are_found(move):
    inputs = keras.Input((4,))
    with pytest.raises(ValueError, match="reorders the rows"):
        gradients.supported(keras.Model(inputs, Moved(move)(L.Dense(3)(inputs))))


@pytest.mark.slow
def test_no_size_that_runs_is_no_acceptance():
    """8 tokens do not fit a kernel of 9."""

    def wide(kernel, *middle):
        convolution = L.Conv1D(4, kernel, padding="valid")
        return keras.Sequential([keras.Input((None, 4)), convolution, *middle, L.GlobalAveragePooling1D(), L.Dense(2)])

    gradients.supported(wide(9))
    with pytest.raises(ValueError, match="depends on the other examples"):
        gradients.supported(wide(9, Centre()))
    with pytest.raises(ValueError, match="cannot be tested.*8, 32, 128.*full shape.*Received"):
        gradients.supported(wide(129, Centre()))


@pytest.mark.slow
def test_what_is_not_finite_is_not_accepted():
    with pytest.raises(ValueError, match="cannot be tested.*not finite"):
        gradients.supported(around(Moved(lambda x: ops.log(-ops.abs(x)) + ops.mean(x))))
    # Made-up inputs above 0 are tried too.
    inputs = keras.Input((4,))
    gradients.supported(keras.Model(inputs, L.Dense(2)(Moved(ops.log)(inputs))))
    with pytest.raises(ValueError, match="depends on the other examples"):
        gradients.supported(keras.Model(inputs, L.Dense(2)(Moved(lambda x: ops.log(x) + ops.mean(x))(inputs))))


class Remembers(L.Layer):
    def build(self, shape):
        self.m = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, x):
        self.m.assign(0.9 * self.m + 0.1 * ops.mean(x, axis=0))
        return x


def test_statistics_kept_by_the_forward_pass_are_found():
    model = around(Remembers())
    before = [np.asarray(v) for v in model.variables]
    with pytest.raises(ValueError, match=r"remembers\w*/variable.* is changed by the forward pass"):
        gradients.supported(model)
    assert all((np.asarray(v) == b).all() for v, b in zip(model.variables, before, strict=True))


def test_mixing_is_found_where_a_size_is_not_known():
    inputs = keras.Input((None, 4))
    with pytest.raises(ValueError, match="depends on the other examples"):
        gradients.supported(keras.Model(inputs, L.Dense(2)(Centre()(L.Dense(3)(inputs)))))


def test_weights_used_behind_the_back_of_their_layer_are_found():
    owner = L.Dense(4)

    class Borrower(L.Layer):
        def call(self, x):
            return ops.matmul(x, ops.transpose(owner.kernel))

    with pytest.raises(ValueError, match="used outside of the `call`"):
        gradients.supported(keras.Sequential([keras.Input((4,)), owner, Borrower()]))
    # The numbers of rows that an Embedding gets were blamed.
    table = L.Embedding(9, 4)

    class Tied(L.Layer):
        def call(self, x):
            return ops.matmul(x, ops.transpose(table.embeddings))

    with pytest.raises(ValueError, match="used outside of the `call`"):
        gradients.supported(keras.Sequential([keras.Input((5,), dtype="int32"), table, L.Dense(4), Tied()]))


def test_masks_that_attention_takes_off_its_inputs_are_there_for_the_gradients():
    """They were lost to the gradients of each row, and a weight was said to be used elsewhere."""

    class Attending(L.Layer):
        def __init__(self):
            super().__init__()
            self.supports_masking = True
            self.attention = L.MultiHeadAttention(2, 4)

        def call(self, inputs, mask=None):
            x, memory = inputs
            return x + self.attention(query=x, value=memory, key=memory)

    tokens, memory = keras.Input((6,), dtype="int32"), keras.Input((5, 8))
    outputs = Attending()([L.Embedding(2, 8, mask_zero=True)(tokens), memory])
    gradients.supported(keras.Model([tokens, memory], outputs))


@pytest.mark.parametrize("wrong", [1, 2])
def test_rounding_at_a_kink_is_not_taken_for_weights_that_are_used_elsewhere(monkeypatch, wrong):
    calls, probe = [], backend.probe

    def rounded(*args, sums, **kwargs):
        norms, first, ordinary, changed = probe(*args, sums=sums, **kwargs)
        if sums:
            calls.append(args[1])
            first = [f + 1e3 * (len(calls) <= wrong) for f in first]
        return norms, first, ordinary, changed

    monkeypatch.setattr(backend, "probe", rounded)
    if wrong == 1:
        gradients.supported(around(L.ReLU()))
    else:
        with pytest.raises(ValueError, match="used outside of the `call`"):
            gradients.supported(around(L.ReLU()))
    (first, _), (second, _) = (batches[0] for batches in calls)
    assert len(calls) == 2 and not np.array_equal(first, second)


@pytest.mark.parametrize("read", ["tokens", "numbers"])
def test_layers_of_ones_own_are_traced_once(read, monkeypatch):
    """It takes seconds: other rows are tried forward, and before it floats that an embedding inside may not take."""

    class Own(L.Layer):
        def __init__(self):
            super().__init__()
            self.embedding = L.Embedding(7, 4)

        def call(self, x):
            return self.embedding(x) if read == "tokens" else x * self.embedding(ops.arange(3))[0]

    drawn, probe = [], backend.probe
    monkeypatch.setattr(backend, "probe", lambda *args, **kwargs: (drawn.append(args[1]), probe(*args, **kwargs))[1])
    gradients.supported(keras.Sequential([keras.Input((4,)), Own(), L.Flatten(), L.Dense(2)]))
    (batches,) = drawn
    assert len(batches[0][0]) == 5
    # On TensorFlow an outlier is no token.
    taken = read == "numbers" or keras.backend.backend() == "jax"
    assert np.any(np.abs(batches[-1][0]) > 1e4) == taken


def test_a_trial_of_tokens_changes_nothing():
    class Counts(L.Layer):
        def __init__(self):
            super().__init__()
            self.embedding = L.Embedding(7, 4)
            self.calls = self.add_weight((), "zeros", trainable=False, name="calls")

        def call(self, x):
            self.calls.assign_add(1.0)
            return self.embedding(x)

    model = keras.Sequential([keras.Input((4,)), Counts(), L.Flatten(), L.Dense(2)])
    before = float(ops.convert_to_numpy(model.layers[0].calls))
    with pytest.raises(ValueError, match="calls"):
        gradients.supported(model)
    assert float(ops.convert_to_numpy(model.layers[0].calls)) == before


def test_stateful_and_weightless_models_are_refused():
    model = keras.Sequential([keras.Input((4, 3), batch_size=3), L.LSTM(2, stateful=True)])
    with pytest.raises(ValueError, match="stateful=False"):
        gradients.supported(model)
    with pytest.raises(ValueError, match="no trainable weights"):
        gradients.supported(keras.Sequential([keras.Input((4,)), L.Flatten()]))
    frozen = around()
    frozen.trainable = False
    with pytest.raises(ValueError, match="no trainable weights"):
        gradients.supported(frozen)
    with pytest.raises(ValueError, match="Build it"):
        gradients.supported(keras.Sequential([L.Dense(2)]))


def test_sparse_inputs_are_refused():
    inputs = keras.Input((4,), sparse=True)
    with pytest.raises(ValueError, match="ragged or sparse"):
        gradients.supported(keras.Model(inputs, L.Dense(2)(inputs)))


@pytest.mark.slow
def test_an_unknown_size_with_padding_that_depends_on_it_is_refused():
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, L.GlobalAveragePooling1D()(L.Conv1D(2, 3, strides=2, padding="same")(inputs)))
    gradients.supported(model)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        forward = backend.Forward(model)

        @tf.function(input_signature=[tf.TensorSpec((None, None, 3)), tf.TensorSpec((None,))])
        def run(x, weight):
            return gradients.capture(forward, x, None, weight, loss_values=lambda y, p: p[:, 0]).squared_norms()

        with pytest.raises(ValueError, match="full shape"):
            run(ops.ones((2, 5, 3)), ops.ones((2,)))


@pytest.mark.slow
def test_what_is_accepted_leaves_the_model_as_it_was():
    frozen = L.BatchNormalization(trainable=False)
    model = around(frozen, L.Dropout(0.5), L.GaussianNoise(0.1), L.LayerNormalization())
    before = [np.asarray(v) for v in model.variables]
    gradients.supported(model)
    assert all((np.asarray(v) == b).all() for v, b in zip(model.variables, before, strict=True))
    assert all("call" not in layer.__dict__ for layer in model.layers)


def test_a_sequence_is_not_run_step_by_step(monkeypatch):
    runs, supported = [], sys.modules["lipdp.gradients.supported"]
    capture = supported.capture
    monkeypatch.setattr(supported, "capture", lambda *args, **kwargs: runs.append(1) or capture(*args, **kwargs))
    gradients.supported(keras.Sequential([keras.Input((6, 2)), L.Bidirectional(L.GRU(3)), L.Dense(2)]))
    assert len(runs) <= 2  # once for each number of rows


def test_a_failing_model_gets_its_layers_back():
    class Fails(L.Layer):
        def call(self, x):
            raise RuntimeError("no")

        def compute_output_shape(self, shape):
            return shape

    model = around(Fails())
    with pytest.raises(RuntimeError):
        gradients.supported(model)
    assert all("call" not in layer.__dict__ for layer in model.layers)


@pytest.mark.backend_free
@pytest.mark.parametrize("layer", [L.LayerNormalization, lambda: L.GroupNormalization(2)])
def test_weights_of_a_layer_on_integers_have_no_gradient(layer):
    model = keras.Sequential([keras.Input((4,), dtype="int32"), layer(), L.Dense(2)])
    with pytest.raises(ValueError, match=r"gets int32.*dtype='float32'"):
        gradients.supported(model)


def test_dense_layers_and_embeddings_take_integers():
    inputs = keras.Input((4,), dtype="int32")
    embedded = L.Flatten()(L.Embedding(3, 2)(inputs))
    gradients.supported(keras.Model(inputs, L.Dense(2)(L.Concatenate()([L.Dense(3)(inputs), embedded]))))


@pytest.mark.backend_free
def test_a_table_may_have_one_row():
    stack = [L.Embedding(1, 4), L.Flatten(), L.Dense(2)]
    gradients.supported(lipdp.DP_Sequential([keras.Input((3,), dtype="int32"), *stack]))


@pytest.mark.skipif(
    "xla_backend_optimization_level=0" in os.environ.get("XLA_FLAGS", ""), reason="Training is not optimized either."
)
@pytest.mark.parametrize(
    "normalization", [L.LayerNormalization, pytest.param(lambda: L.GroupNormalization(1), marks=pytest.mark.slow)]
)
def test_a_maximum_of_what_is_normalized_is_finite(normalization):
    """As it is in training: without optimization, JAX computes what the maximum is of twice, rounded in two ways."""
    keras.utils.set_random_seed(0)
    parts = [L.Conv2D(4, 3), normalization(), L.GlobalMaxPooling2D(), L.Dense(3)]
    gradients.supported(keras.Sequential([keras.Input((6, 6, 3)), *parts]))


class Doubles(L.Layer):
    """Puts two versions of a row behind each other in the batch, in place of beside each other."""

    def call(self, inputs):
        return ops.concatenate([ops.relu(inputs), ops.relu(-inputs)], axis=0)


def test_a_layer_that_returns_more_rows_is_named():
    model = keras.Sequential([keras.Input((5,)), Doubles(name="doubles"), L.Dense(3)])
    with pytest.raises(ValueError, match=r"10 rows for 5.* 'doubles' \(Doubles\)\. Keep"):
        gradients.supported(model)
