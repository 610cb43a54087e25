"""`mixed_bfloat16`: activations in bfloat16; norms, coefficients, sums and noise in float32."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import backend, certify, gradients, isolation, layers, losses, strategies
from tests.helpers.clipping import assert_same_gradients

X = np.random.default_rng(0).normal(size=(60, 12)).astype("float32")
Y = np.arange(60) % 3
FIT = {"batch_size": 20, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def low():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


def private(*stack, **compiled):
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((12,)), *stack]))
    model.compile(keras.optimizers.SGD(0.5), LOSS, metrics=["accuracy"], **compiled)
    return model


class Block(L.Layer):
    def __init__(self, rate):
        super().__init__()
        self.inner = keras.Sequential([L.Dense(16, "gelu"), *([L.Dropout(rate)] if rate else []), L.Dense(12)])
        self.norm = L.LayerNormalization()

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(12,), initializer="ones")

    def call(self, inputs):
        return self.inner(self.norm(inputs)) * self.scale + inputs


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("rate", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_layers_of_ones_own_that_hold_models_and_weights(low, apart, rate):
    network = keras.Sequential([keras.Input((12,)), L.Dense(12), Block(rate), L.Dense(3, dtype="float32")])
    network = lipdp.to_functional(network, verbose=False) if apart else network
    assert bool(isolation.foreign(network)) != apart
    model = lipdp.DP_Model.from_keras(network)
    model.compile("sgd", LOSS)
    before = [ops.convert_to_numpy(v) for v in model.trainable_variables]
    model.fit(X, Y, steps_per_epoch=1, **FIT)
    assert all((a != ops.convert_to_numpy(b)).any() for a, b in zip(before, model.trainable_variables, strict=True))


def test_gradients_of_layers_of_ones_own_are_those_of_what_they_are_made_of(low):
    network = keras.Sequential([keras.Input((12,)), L.Dense(12), Block(0.0), L.Dense(3, dtype="float32")])
    copy = lipdp.to_functional(network, verbose=False)
    # One runs in float32 backwards, the other in bfloat16; sums are of order 0.1.
    assert_same_gradients(network, copy, X, rtol=0.1, atol=0.003)


@pytest.mark.slow
def test_norms_and_sums_are_float32_and_of_the_same_numbers(low):
    model = private(L.Dense(16, "relu"), L.LayerNormalization(), L.Dense(3))
    record = gradients.capture(
        backend.Forward(model), ops.convert_to_tensor(X), ops.convert_to_tensor(Y), ops.ones((60,)),
        loss_values=lambda y, y_pred: keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True),
    )  # fmt: skip
    norms = record.squared_norms()
    assert {keras.backend.standardize_dtype(t.dtype) for t in [*norms, *record.weighted_sum(ops.ones((60,)))]} == {
        "float32"
    }
    for i in range(0, 60, 7):
        alone = record.weighted_sum(ops.one_hot(i, 60))
        for norm, gradient in zip(norms, alone, strict=True):
            exact = np.square(np.asarray(ops.convert_to_numpy(gradient), "float64")).sum()
            np.testing.assert_allclose(ops.convert_to_numpy(norm)[i], exact, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["dpsgd", "adaclip", pytest.param("dpis", marks=pytest.mark.slow)])
def test_models_train_save_and_go_on(low, strategy, tmp_path):
    noise = {"epsilon": 4.0, "noise_multiplier": None} if strategy == "dpis" else {}
    model = private(L.Dense(16, "gelu"), L.Dense(3))
    model.fit(X, Y, strategy=strategy, validation_data=(X, Y), **FIT | noise)
    assert {v.dtype for v in [*model.trainable_variables, model.optimizer.noise_std]} == {"float32"}
    assert keras.backend.standardize_dtype(model(X[:2]).dtype) == "bfloat16"
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(*(ops.convert_to_numpy(ops.cast(m(X[:5]), "float32")) for m in (model, again)))
    assert again.privacy.spent() == model.privacy.spent() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "stack"),
    [
        ((7, 4), lambda: [L.Bidirectional(L.LSTM(8)), L.Dense(3)]),
        ((7, 4), lambda: [L.GRU(8, return_sequences=True), L.SimpleRNN(4), L.Dense(3)]),
        ((9, 9, 2), lambda: [L.Conv2D(8, 3), L.GroupNormalization(2), L.Conv2DTranspose(4, 3), L.Flatten()]),
        ((12, 12, 3), lambda: [L.SeparableConv2D(6, 3), L.PReLU(), L.GlobalAveragePooling2D(), L.Dense(3)]),
        ((12,), lambda: [L.EinsumDense("ab,bc->ac", 8), L.Dropout(0.3), L.RMSNormalization(), L.Dense(3)]),
    ],
)  # fmt: skip
def test_the_rules_take_low_precision(low, shape, stack):
    x = np.random.default_rng(0).normal(size=(60, *shape)).astype("float32")
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input(shape), *stack(), L.Dense(3)]))
    model.compile("sgd", LOSS)
    model.fit(x, Y, strategy="dpsgd", **FIT)
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.slow
def test_layers_without_a_rule_train(low):
    cells = L.RNN([L.LSTMCell(3), L.GRUCell(2)])
    model = private(L.Reshape((4, 3)), cells, L.Dense(3))
    model.fit(X, Y, strategy="dpsgd", steps_per_epoch=1, epochs=1, **FIT)
    assert model.run.ledger.updates == 1


def test_layers_of_ones_own_train(low):
    """Their rounding is not taken for rows that see each other."""

    class Residual(L.Layer):
        def __init__(self):
            super().__init__()
            self.inner = L.Dense(8)

        def call(self, inputs):
            return self.inner(inputs) + inputs

    model = private(L.Dense(8), Residual(), L.Dense(3))
    model.fit(X, Y, strategy="dpsgd", steps_per_epoch=1, epochs=1, **FIT)
    assert model.run.ledger.updates == 1


@pytest.mark.slow
def test_layers_that_mix_examples_are_still_found(low):
    class Centered(L.Layer):
        def call(self, inputs):
            return inputs - ops.mean(inputs, axis=0, keepdims=True)

    with pytest.raises(ValueError, match="depends on the other examples"):
        gradients.supported(keras.Sequential([keras.Input((12,)), L.Dense(4), Centered(), L.Dense(3)]))


def test_what_is_refused(low):
    with pytest.raises(ValueError, match="computes in bfloat16, where rounding breaks the norm bounds"):
        layers.SpectralDense(3)
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((12,)), L.Dense(3)]))
    model.compile("sgd", losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="computes in bfloat16"):
        model.fit(X, Y, strategy=strategies.Clipless(), **FIT)
    assert not model.run.ledger.releases
    if keras.backend.backend() == "tensorflow":
        with pytest.raises(ValueError, match="XLA may leave out roundings.*jit_compile=False"):
            private(L.Dense(3), jit_compile=True).fit(X, Y, strategy="dpsgd", **FIT)


@pytest.mark.parametrize("policy", ["bfloat16", "float16", "mixed_float16"])
def test_other_policies_are_refused(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((12,)), L.Dense(3)]))
        with pytest.raises(ValueError, match="'mixed_bfloat16' with a strategy that clips"):
            model.compile("sgd", LOSS)
    finally:
        keras.config.set_dtype_policy(before)


def of_one_row(model, x, y, i):
    """Norm of the gradient of row i as it is clipped by, and of what is added for it."""
    record = gradients.capture(
        backend.Forward(model), ops.convert_to_tensor(x), ops.convert_to_tensor(y), ops.ones((len(x),)),
        loss_values=lambda y, y_pred: keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True),
    )  # fmt: skip
    norm = np.sqrt(sum(float(n[i]) for n in record.squared_norms()))
    added = record.weighted_sum(ops.one_hot(i, len(x)))
    return norm, np.sqrt(sum(np.square(ops.convert_to_numpy(t).astype("float64")).sum() for t in added))


@pytest.mark.parametrize("kind", ["cast", "reverse"])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_layers_in_float16_have_norms_of_what_is_added(kind, scale):
    """Squares of small numbers are zero in float16: a norm of zero would let any gradient through."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12,))
    if kind == "cast":
        outputs = L.Dense(3, autocast=False, use_bias=False)(ops.cast(inputs, "float16"))
    else:
        table = L.ReversibleEmbedding(3, 12, tie_weights=False, reverse_dtype="float16")
        table.build((None,))
        outputs = table(inputs, reverse=True)
    model = keras.Model(inputs, outputs)
    try:
        norm, added = of_one_row(model, (scale * X).astype("float32"), Y, 4)
    except Exception:
        if keras.backend.backend() == "jax":
            raise
        pytest.skip("TensorFlow does not mix types")
    assert added > 0.0
    assert norm >= added * (1.0 - 1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a switch of TensorFlow")
@pytest.mark.parametrize("way", ["option", "variable"])
@pytest.mark.parametrize("strategy", ["dpsgd", "clipless"])
def test_rewriting_programs_into_low_precision_is_refused(way, strategy, monkeypatch):
    """Whatever the types of a model: the rewriter takes the products that norms are made of as well."""
    import tensorflow as tf

    model = lipdp.DP_Sequential([layers.BoundedInput((12,), norm=5.0), layers.SpectralDense(3)])
    model.compile(keras.optimizers.SGD(0.1), losses.SparseCategoricalCrossentropy())
    name = "auto_mixed_precision_onednn_bfloat16"
    if way == "variable":
        monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "1")
        name = "TF_ENABLE_AUTO_MIXED_PRECISION"
    else:
        tf.config.optimizer.set_experimental_options({name: True})
    try:
        with pytest.raises(ValueError, match=f"{name} is on"):
            model.fit(X, Y, strategy=strategy, **FIT)
    finally:
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": False})
    assert model.run.ledger.updates == 0
    model.fit(X, Y, strategy=strategy, **FIT) if way == "option" else None


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a switch of TensorFlow")
@pytest.mark.parametrize(
    "name",
    [
        "ONEDNN_DEFAULT_FPMATH_MODE",
        *(pytest.param(f"{name}_FPMATH_MODE", marks=pytest.mark.slow) for name in ("DNNL_DEFAULT", "TF_SET_ONEDNN")),
    ],
)
def test_fast_math_of_onednn_is_refused(name, monkeypatch):
    """Convolutions of float32 take bfloat16 then, with an error of 3e-3, where the slack of bounds is 2e-5."""
    model = lipdp.DP_Sequential([layers.BoundedInput((12,), norm=5.0), layers.SpectralDense(3)])
    model.compile(keras.optimizers.SGD(0.1), losses.SparseCategoricalCrossentropy())
    monkeypatch.setenv(name, "bf16")
    with pytest.raises(ValueError, match=f"{name} is on"):
        model.fit(X, Y, **FIT)
    with pytest.raises(ValueError, match=f"{name} is on"):
        certify.radii(model, X)
    assert model.run.ledger.updates == 0
    monkeypatch.setenv(name, "STRICT")
    model.fit(X, Y, **FIT)
    assert certify.radii(model, X).shape == (len(X),)


def alike():
    """Of what the number of rows of a microbatch is a multiple."""
    return 1 if keras.backend.backend() == "jax" else 48


def sizes(monkeypatch, **fit):
    """Returns how many rows the microbatches of a `fit` have."""
    seen, ordinary = set(), strategies.DPSGD.microbatch

    def microbatch(self, calibration, forward, state, index, secret, rows, batch_size):
        seen.add(rows[-1].shape[0])
        return ordinary(self, calibration, forward, state, index, secret, rows, batch_size)

    monkeypatch.setattr(strategies.DPSGD, "microbatch", microbatch)
    model = private(L.Dense(3), run_eagerly=keras.backend.backend() == "tensorflow")
    model.fit(strategy="dpsgd", **{"x": X, "y": Y} | FIT | fit)
    return seen


@pytest.mark.parametrize(
    ("fit", "expected"),
    [
        ({"microbatch_size": 8}, 8),
        ({}, 32),  # 20 + 2.5 sqrt(20)
        pytest.param({"microbatch_size": 25}, 25, marks=pytest.mark.slow),
        pytest.param({"microbatch_size": 500}, 32, marks=pytest.mark.slow),
        ({"sampling": "fixed_size"}, 20),
        pytest.param({"batch_size": 2}, 6, marks=pytest.mark.slow),
    ],
)
def test_microbatches_have_one_size(low, monkeypatch, fit, expected):
    """Among four rows one was rounded otherwise than among five: who joined a batch moved others too."""
    assert sizes(monkeypatch, epochs=4, seed=1, **fit) == {expected if alike() == 1 else 48}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["cast", "reverse"])
def test_low_precision_is_found_wherever_it_is(kind, dtype):
    """All layers are float32 here, by their policy."""
    inputs = keras.Input((12,))
    if kind == "cast":
        stack = [keras.Model(inputs, ops.cast(L.Dense(12)(inputs), dtype)), L.Dense(3)]
    else:
        table = L.ReversibleEmbedding(3, 12, reverse_dtype=dtype)
        table.build((None,))
        stack = [keras.Model(inputs, table(inputs, reverse=True))]
    assert gradients.of_one_size(keras.Sequential([keras.Input((12,)), *stack]), full_precision=True) == alike()
    assert not gradients.of_one_size(keras.Sequential([keras.Input((12,)), L.Dense(3)]), full_precision=True)


@pytest.mark.parametrize("rounded", ["mixed_bfloat16", "float32"])
def test_a_row_is_rounded_alike_wherever_it_stands(low, rounded):
    """The last two of 32 rows were not on TensorFlow, where a processor takes six rows at once into a product."""
    keras.utils.set_random_seed(0)
    wide = [L.Dense(256, "relu"), L.Dense(256, "tanh", dtype=rounded), L.Dense(256, "tanh")]
    model = keras.Sequential([keras.Input((256,)), *wide, L.Dense(3)])
    rows = 32 if alike() == 1 else 48
    for seed in range(30):
        x = np.random.default_rng(seed).normal(size=(rows, 256)).astype("float32")
        turned = np.roll(x, 5, axis=0)
        outputs = [ops.convert_to_numpy(ops.cast(model(ops.convert_to_tensor(t)), "float32")) for t in (x, turned)]
        np.testing.assert_array_equal(np.roll(outputs[0], 5, axis=0), outputs[1])


@pytest.mark.parametrize("rows", [2, 4])
def test_persons_take_as_many_rows_whoever_has_most(low, monkeypatch, rows):
    """One person with more rows than all others changed the microbatches, and how the rows of others were rounded."""
    ids = np.append(np.repeat(np.arange(28), 2), [28] * rows)
    fit = {"x": X[: len(ids)], "y": Y[: len(ids)], "person_ids": ids, "rows_per_person": 3, "batch_size": 10}
    assert sizes(monkeypatch, epochs=1, steps_per_epoch=1, **fit) == {
        54 if alike() == 1 else 96
    }  # 10 + 2.5 sqrt(10) persons


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow computes float32 in float32")
def test_microbatches_have_one_size_on_a_gpu(monkeypatch):
    """Its products may be in TF32, but where a strategy asks for float32."""
    few = {"batch_size": 30, "steps_per_epoch": 1, "seed": 1}
    assert sizes(monkeypatch, **few) == {40}  # of several
    monkeypatch.setattr(backend, "cpu_threads", lambda: None)
    assert sizes(monkeypatch, **few) == {44}  # 30 + 2.5 sqrt(30)
    monkeypatch.setattr(strategies.DPSGD, "full_precision", True)
    assert sizes(monkeypatch, **few) == {40}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="compiled passes always have one size")
def test_scoring_passes_have_one_size(low, monkeypatch):
    seen, ordinary = set(), backend.ImportanceStep.norms
    monkeypatch.setattr(
        backend.ImportanceStep, "norms", lambda self, rows: seen.add(len(rows[-1])) or ordinary(self, rows)
    )
    model = private(L.Dense(3))
    model.fit(X, Y, strategy="dpis", epsilon=4.0, microbatch_size=16, **FIT | {"noise_multiplier": None})
    assert seen == {48}
