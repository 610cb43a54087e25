"""Functional models of what layers of a user's own call: the same outputs, and gradients of rows of their own."""

import re
import warnings

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import gradients, isolation, layers
from lipdp.models import steps
from tests.helpers.clipping import assert_same_gradients

# JAX compiles these for long; `make test-all` has them compiled.
LONG = pytest.mark.backend_free


class Block(L.Layer):
    """As on keras.io."""

    def __init__(self, rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.attention = L.MultiHeadAttention(2, 4)
        self.inner = keras.Sequential([L.Dense(8, activation="relu"), L.Dense(4)])
        self.first, self.second = L.LayerNormalization(), L.LayerNormalization()
        self.drop = L.Dropout(rate)

    def call(self, inputs, training=False):
        h = self.first(inputs + self.drop(self.attention(inputs, inputs), training=training))
        return self.second(h + self.drop(self.inner(h), training=training))


class Around(L.Layer):
    """Holds one of its own kind, and returns several tensors."""

    def __init__(self):
        super().__init__()
        self.block, self.gate = Block(), L.Dense(4, "sigmoid")

    def call(self, inputs, scale=1.0):
        h = self.block(inputs)
        return {"state": h * self.gate(inputs) * scale, "last": h[:, -1]}


class Both(L.Layer):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(4)

    def call(self, one, other):
        return self.dense(ops.concatenate([one, other], axis=-1))


def stack(*given, shape=(5, 4)):
    return keras.Sequential([keras.Input(shape), *given, L.Flatten(), L.Dense(2)])


def nested():
    inputs = keras.Input((5, 4))
    found = Around()(inputs, scale=2.0)
    joined = Both()(L.Flatten()(found["state"]), found["last"])
    return keras.Model(inputs, {"class": L.Dense(2)(joined), "other": found["last"]})


def rows(number=6, shape=(5, 4)):
    return np.random.default_rng(0).normal(size=(number, *shape)).astype("float32")


class Patches(L.Layer):
    """As on keras.io: by the number of rows, and axes that move beside them."""

    def __init__(self):
        super().__init__()
        self.gate, self.dense = L.Dense(1, "sigmoid"), L.Dense(4)

    def call(self, images):
        rows, height, width, channels = ops.shape(images)
        patches = ops.image.extract_patches(images, 2)
        patches = ops.reshape(patches, (rows, height * width // 4, 4 * channels))
        gates = ops.softmax(ops.squeeze(self.gate(patches), -1), axis=-1)
        chosen = ops.matmul(ops.expand_dims(gates, 1), self.dense(patches))
        return ops.stack([chosen[:, 0], ops.einsum("bp,bpd->bd", gates, self.dense(patches))], axis=1)


@LONG
def test_a_copy_is_saved_without_the_classes_that_were_taken_apart(tmp_path):
    copy = lipdp.to_functional(stack(Patches(), shape=(4, 6, 3)), verbose=False)
    copy.save(tmp_path / "copy.keras")
    x = rows(shape=(4, 6, 3))
    again = keras.saving.load_model(tmp_path / "copy.keras")(x)
    np.testing.assert_allclose(ops.convert_to_numpy(again), ops.convert_to_numpy(copy(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make", [pytest.param(lambda: stack(Block()), id="block", marks=LONG), pytest.param(nested, id="nested")]
)
def test_the_same_function_without_layers_of_ones_own(make, capsys):
    model = make()
    copy = lipdp.to_functional(model)
    assert "became a functional model of 5 layers." in capsys.readouterr().out
    assert not isolation.foreign(copy)
    before, after = model(rows()), copy(rows())
    for one, other in zip(keras.tree.flatten(before), keras.tree.flatten(after), strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other), rtol=1e-5, atol=1e-6)
    assert {id(v) for v in model.trainable_variables} == {id(v) for v in copy.trainable_variables}


@pytest.mark.parametrize(
    ("make", "shape"),
    [pytest.param(Block, (5, 4), id="block", marks=LONG), pytest.param(Patches, (4, 6, 3), id="patches")],
)
def test_gradients_are_those_that_the_layer_has_row_by_row(make, shape):
    model = stack(make(), shape=shape)
    copy, x = lipdp.to_functional(model, verbose=False), rows(shape=shape)
    assert not isolation.foreign(copy)
    np.testing.assert_allclose(ops.convert_to_numpy(model(x)), ops.convert_to_numpy(copy(x)), rtol=1e-5, atol=1e-6)
    assert_same_gradients(model, copy, x)


@LONG
def test_training_the_copy_trains_the_model():
    model = stack(Block(rate=0.5), L.Dense(3))
    private = lipdp.DP_Model.from_keras(lipdp.to_functional(model, verbose=False))
    private.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    private.fit(rows(), np.zeros(6, "int32"), 3, strategy="dpsgd", noise_multiplier=5.0, delta=1e-3, verbose=0)
    assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True) if a.size > 4)
    np.testing.assert_allclose(model(rows()), private(rows()), rtol=1e-5, atol=1e-6)
    assert lipdp.DP_Model.from_keras(model).privacy.epsilon(delta=1e-3) == private.privacy.epsilon(delta=1e-3) > 0


def test_blocks_of_layers_with_bounds_train_without_clipping():
    class Residual(L.Layer):
        def __init__(self):
            super().__init__()
            self.inner, self.bend = layers.SpectralDense(4), layers.Abs()

        def call(self, inputs):
            return self.bend(self.inner(inputs))

    stages = [layers.BoundedInput((4,), norm=1.0), Residual(), layers.SpectralDense(3)]
    model = keras.Sequential([keras.Input((4,)), *stages])
    model = lipdp.DP_Model.from_keras(lipdp.to_functional(model, verbose=False))
    model.compile("sgd", lipdp.losses.SparseCategoricalCrossentropy(temperature=1.0))
    model.fit(rows(6, (4,)), np.zeros(6, "int32"), 3, noise_multiplier=5.0, delta=1e-3, verbose=0)
    assert model.run.noise_std and len(lipdp.certify.radii(model, rows(6, (4,)))) == 6


class Own(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.drop, self.calls = L.Dense(4), L.Dropout(0.5), 0
        self.generator = None


class Linear(Own):
    """As in Keras' guide."""

    def build(self, input_shape):
        self.w = self.add_weight(shape=(input_shape[-1], 4), initializer="glorot_uniform", name="w")
        self.b = self.add_weight(shape=(4,), initializer="zeros", name="b")

    def call(self, inputs):
        return ops.matmul(inputs, self.w) + self.b


class Spelled(Linear):
    def call(self, inputs):
        return self.b + ops.einsum("...i,io->...o", inputs, self.w)


class Biased(Linear):
    """The bias is none of the product alone: that is read elsewhere too."""

    def call(self, inputs):
        product = inputs @ self.w
        return ops.tanh(product + ops.reshape(self.b, (1, 1, -1))) * product


class Shifted(Linear):
    def build(self, input_shape):
        super().build(input_shape)
        self.shift = self.add_weight(shape=(1,), name="shift")

    def call(self, inputs):
        return super().call(inputs) + self.shift


class Attends(Own):
    """Steps that are not known to keep rows apart, which they do alone."""

    def build(self, input_shape):
        self.w = self.add_weight(shape=(4, 2, 3), initializer="glorot_uniform", name="w")

    def call(self, inputs):
        h = ops.einsum("bnd,dhk->bhnk", inputs, self.w)
        return ops.softmax(ops.matmul(h, ops.transpose(h, (0, 1, 3, 2))))


class Token(Own):
    def build(self, input_shape):
        self.token = self.add_weight(shape=(1, 1, 4), name="token")
        self.places = self.add_weight(shape=(6, 4), name="places")
        self.gain = self.add_weight(shape=(), initializer="ones", name="gain")

    def call(self, inputs):
        first = ops.broadcast_to(self.token, (ops.shape(inputs)[0], 1, 4))
        return self.gain * (ops.concatenate([first, inputs], axis=1) + ops.expand_dims(self.places, 0))


class Parts(Own):
    """Places of which it takes as many as it gets, and a scale and a shift in one weight."""

    def build(self, shape):
        self.places, self.two = self.add_weight(shape=(9, 4)), self.add_weight(shape=(2, 4))

    def call(self, inputs):
        return (inputs + self.places[: inputs.shape[1]]) * self.two[0] + self.two[1, None]


class Table(Own):
    def build(self, input_shape):
        self.table = self.add_weight(shape=(3, 4), name="table")

    def call(self, inputs):
        return ops.take(self.table, inputs, axis=0)


class OfDense(L.Dense):
    def call(self, inputs):
        return ops.relu(ops.matmul(inputs, self.kernel) + self.bias)


class InAList(Own):
    def build(self, input_shape):
        self.held = [self.add_weight(shape=(4,), name="w")]

    def call(self, inputs):
        return inputs * self.held[0]


class Frozen(Own):
    def build(self, input_shape):
        self.scale = self.add_weight(shape=(4,), initializer="ones", trainable=False, name="scale")

    def call(self, inputs):
        return inputs * self.scale


class Constrained(Own):
    def build(self, input_shape):
        self.scale = self.add_weight(shape=(4,), initializer="ones", constraint="non_neg", name="scale")

    def call(self, inputs):
        return inputs * self.scale


class Transposed(Linear):
    def call(self, inputs):
        return ops.matmul(ops.matmul(inputs, self.w), ops.transpose(self.w)) + self.b


class AcrossRows(Own):
    def build(self, input_shape):
        self.scale = self.add_weight(shape=(5, 5, 4), name="scale")

    def call(self, inputs):
        return inputs * self.scale


class Masks(Linear):
    """A product that is right for one row alone, as `reshape` takes what it is given."""

    def call(self, inputs):
        product = ops.matmul(inputs[:, 0], self.w * np.tril(np.ones((4, 4), "float32")))
        return ops.reshape(product, (-1, 4)) + self.b


class Scaled(Own):
    """Several axes meet what was made of one."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(4,), name="scale")

    def call(self, inputs):
        return inputs * ops.softplus(self.scale)


class Directed(Own):
    """Its length would be that of all rows."""

    def build(self, input_shape):
        self.direction = self.add_weight(shape=(1, 1, 4), initializer="ones", name="direction")

    def call(self, inputs):
        return inputs * self.direction / ops.sqrt(ops.sum(ops.square(self.direction), keepdims=True))


class Centered(Directed):
    """The mean of all rows is that of one, but its gradient is not."""

    def call(self, inputs):
        return inputs * (self.direction - ops.mean(self.direction, keepdims=True))


class Windows(L.Layer):
    """Parts of each row, which are rows on the way."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(4)

    def call(self, inputs):
        return ops.reshape(self.dense(ops.reshape(inputs, (-1, 4))), (-1, 5, 4))


class Unread(Linear):
    def call(self, inputs):
        return ops.matmul(inputs, self.w)


class Positions(Own):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = L.Embedding(3, 4), L.Embedding(5, 4)

    def build(self, input_shape):
        """Has Keras not say that the layers inside are not built: they are by what they are called on."""

    def call(self, inputs):
        return self.tokens(inputs) + self.places(ops.arange(0, ops.shape(inputs)[-1]))


class Held(Positions):
    """Has an axis for the rows already, and holds the constant."""

    def build(self, input_shape):
        self.numbers = np.arange(5, dtype="int32")[None]

    def call(self, inputs):
        return self.tokens(inputs) * self.places(self.numbers)


class BothWays(Own):
    """Reaches its weights through its inputs, and through a constant as well."""

    def call(self, inputs):
        return ops.tanh(self.dense(inputs) + self.dense(0.5 * ops.ones((1, 5, 4))))


class OfModels(Own):
    def __init__(self):
        super().__init__()
        self.inner, self.places = Positions(), keras.Sequential([L.Embedding(5, 4), L.Dense(4)])

    def build(self, input_shape):
        pass

    def call(self, inputs):
        return self.inner(inputs) + self.places(ops.arange(5)[None])


class Masked(Own):
    def __init__(self):
        super().__init__()
        self.attention = L.MultiHeadAttention(2, 4)

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)

    def call(self, inputs):
        places = ops.arange(inputs.shape[1])
        return self.attention(inputs, inputs, attention_mask=(places[:, None] >= places)[None])


class Heads(Own):
    """Spells the number of rows."""

    def call(self, inputs):
        number = ops.shape(inputs)[0]
        h = ops.transpose(ops.reshape(self.dense(inputs), (number, 5, 2, -1)), (0, 2, 1, 3))
        h = ops.matmul(ops.softmax(ops.matmul(h, ops.swapaxes(h, 2, 3))), h)
        return ops.reshape(ops.transpose(h, (0, 2, 1, 3)), (number, 5, 4))


class DropsPositions(Positions):
    """All rows of a batch lose the same."""

    def call(self, inputs):
        return self.tokens(inputs) + self.drop(self.places(ops.arange(5)))


class WithAnAxis(Positions):
    def call(self, inputs):
        return self.tokens(inputs) + ops.expand_dims(self.places(ops.arange(5)), 0)


class ForTraining(Own):
    def call(self, inputs, training=None):
        return self.dense(inputs) * (2.0 if training else 1.0)


class NeverDrops(Own):
    def call(self, inputs):
        return self.dense(self.drop(inputs, training=False))


class Draws(Own):
    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(0)

    def call(self, inputs):
        return self.dense(inputs) * keras.random.uniform((), seed=self.generator)


class DrawsGlobally(Own):
    def build(self, input_shape):
        self.dense.build(input_shape)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def call(self, inputs):
        return self.dense(inputs) * keras.random.uniform(())


class Counts(Own):
    def call(self, inputs):
        self.calls = self.calls + 1
        return self.dense(inputs)


class Mixes(Own):
    def call(self, inputs):
        return self.dense(inputs - ops.mean(inputs, axis=0, keepdims=True))


class Loops(Own):
    def build(self, input_shape):
        self.dense.build(input_shape)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def call(self, inputs):
        return self.dense(inputs) if ops.max(inputs) > 0 else inputs


class OfAnother(Own):
    def call(self, inputs):
        return ops.matmul(self.dense(inputs), self.dense.kernel)


ELSEWHERE = L.Dense(4)


class OfNobody(Own):
    """Calls a layer that it does not hold, which no model trains."""

    def call(self, inputs):
        return self.dense(inputs) + ELSEWHERE(inputs)


class ReadsNumbers(Own):
    """Takes a weight for a number, which is none when weights have moved."""

    def build(self, input_shape):
        self.dense.build(input_shape)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def call(self, inputs):
        return self.dense(inputs) + float(ops.convert_to_numpy(self.dense.bias)[0])


class Adds(Own):
    def call(self, inputs):
        self.add_loss(ops.mean(inputs))
        return self.dense(inputs)


class Half(layers.LipschitzLayer):
    def call(self, inputs):
        return 0.5 * inputs

    def input_lipschitz(self, input_bounds):
        return (0.5,)


class Counter(Own):
    """Does for many rows what it does not for few."""

    def call(self, inputs):
        return self.dense(inputs) * (1.0 if inputs.shape[0] is None else 2.0)


STAY = {
    "a list of weights": (InAList, "in lists"),
    "frozen weights": (Frozen, "that do not train"),
    "constraints": (Constrained, "constraints or regularizers"),
    "several ways": (Transposed, "in several ways"),
    "windows": (Windows, r"on random rows \(Layer 'reshape\w*' \(Reshape\) does not return one row for each"),
    "a product of one row": (Masks, "does not run on random rows|something else on random rows"),
    "more axes": (Scaled, "does not run on random rows|something else on random rows"),
    "a length": (Directed, "a weight, which each row has a copy of"),
    "a mean": (Centered, "a weight, which each row has a copy of"),
    "unread": (Unread, "does not use"),
    "training": (ForTraining, "something else in training"),
    "explicit": (NeverDrops, "something else in training"),
    "draws": (Draws, "random numbers"),
    "global draws": (DrawsGlobally, "random numbers|cannot be read"),
    "state": (Counts, "changes what it holds"),
    "mixes": (Mixes, "something else on random rows"),
    "branches": (Loops, "cannot be read"),
    "weights of others": (OfAnother, "on a weight"),
    "numbers of weights": (ReadsNumbers, "something else on random rows"),
    "layers of nobody": (OfNobody, "none of its attributes"),
    "losses": (Adds, "cannot be read|adds losses"),
    "numbers of rows": (Counter, "something else on random rows"),
    "bounds": (Half, "bounds of its own"),
    "regularizer": (lambda: Block(activity_regularizer="l2"), "adds losses"),
}


@pytest.mark.parametrize(("make", "reason"), STAY.values(), ids=STAY)
def test_layers_that_stay(make, reason, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on JAX, that random numbers come from no attribute
        layer = make()
        copy = lipdp.to_functional(stack(layer))
    assert re.search(reason, said := capsys.readouterr().out), said
    assert layer in copy.layers and [operation for operation, _ in isolation.foreign(copy)] == [layer]


def of_tokens(layer):
    return keras.Sequential([keras.Input((5,), dtype="int32"), layer, L.Flatten(), L.Dense(2)])


ON_CONSTANTS = {
    "positions": (lambda: of_tokens(Positions()), "2 layers"),
    "held": (lambda: of_tokens(Held()), "2 layers"),
    "both ways": (lambda: stack(BothWays()), "1 layer."),
    "models": (lambda: of_tokens(OfModels()), "2 layers"),
    "mask": (lambda: stack(Masked()), "1 layer."),
    "number of rows": (lambda: stack(Heads()), "1 layer."),
}


@pytest.mark.parametrize(
    ("make", "became"),
    [pytest.param(*c, id=n, marks=[LONG] * (n not in ("positions", "both ways"))) for n, c in ON_CONSTANTS.items()],
)
def test_layers_inside_that_are_called_on_constants(make, became, capsys):
    model = make()
    copy = lipdp.to_functional(model)
    assert became in capsys.readouterr().out and not isolation.foreign(copy)
    assert all("call" not in vars(layer) for layer in model._flatten_layers())
    x = rows() if len(model.input_shape) == 3 else np.random.default_rng(0).integers(0, 3, (6, 5)).astype("int32")
    np.testing.assert_allclose(model(x), copy(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(x[:1]), copy(x[:1]), rtol=1e-5, atol=1e-6)
    assert_same_gradients(model, copy, x)


@pytest.mark.parametrize("constant", [[[True, False]], [True, False], [3, 7], [0.5, -2.0], [[0.25]]])
def test_constants_for_each_row_keep_their_type(constant):
    array = np.asarray(constant)
    array = array if array.dtype == bool else array.astype("float32" if array.dtype == float else "int32")
    found = steps.for_each_row(array, ops.convert_to_tensor(rows()))
    assert keras.backend.standardize_dtype(found.dtype) == str(array.dtype)
    np.testing.assert_array_equal(found, np.broadcast_to(array, (6, array.shape[-1])))


@pytest.mark.parametrize(("make", "reason"), [(WithAnAxis, "random rows"), (DropsPositions, "in training")])
def test_constants_that_cannot_be_taken_for_each_row(make, reason, capsys):
    layer = make()
    copy = lipdp.to_functional(of_tokens(layer))
    assert re.search(reason, said := capsys.readouterr().out), said
    assert layer in copy.layers


OWN_WEIGHTS = {
    "linear": (Linear, "float32", "1 layer."),
    "spelled": (Spelled, "float32", "2 layers."),
    "biased": (Biased, "float32", "2 layers."),
    "shifted": (Shifted, "float32", "2 layers."),
    "attention": (Attends, "float32", "1 layer."),
    "token": (Token, "float32", "3 layers."),
    "parts": (Parts, "float32", "2 layers."),
    "table": (Table, "int32", "1 layer."),
    "subclass": (lambda: OfDense(4), "float32", "1 layer."),
}


@pytest.mark.parametrize(
    ("make", "dtype", "became"),
    [pytest.param(*c, id=n, marks=[LONG] * (n == "attention")) for n, c in OWN_WEIGHTS.items()],
)
def test_weights_of_ones_own(make, dtype, became, capsys, tmp_path):
    layer = make()
    model = of_tokens(layer) if dtype == "int32" else stack(layer)
    copy = lipdp.to_functional(model)
    assert became in capsys.readouterr().out and layer not in copy.layers
    assert {id(v) for v in model.trainable_variables} == {id(v) for v in copy.trainable_variables}
    assert "add_weight" not in {name for inner in copy._flatten_layers() for name in vars(inner)}
    x = rows() if dtype == "float32" else np.random.default_rng(0).integers(0, 3, (6, 5)).astype(dtype)
    for v in model.trainable_variables:
        v.assign(v + 0.1 * np.random.default_rng(1).normal(size=v.shape).astype("float32"))
    np.testing.assert_allclose(model(x), copy(x), rtol=1e-5, atol=1e-6)
    assert_same_gradients(model, copy, x)
    copy.save(tmp_path / "copy.keras")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "copy.keras")(x), copy(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lipdp.export(copy)(x), copy(x), rtol=1e-5, atol=1e-6)


def test_training_the_copy_trains_weights_of_ones_own():
    model = stack(Linear(), Token())
    private = lipdp.DP_Model.from_keras(lipdp.to_functional(model, verbose=False))
    private.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    private.fit(rows(), np.zeros(6, "int32"), 3, strategy="dpsgd", noise_multiplier=5.0, delta=1e-3, verbose=0)
    assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    np.testing.assert_allclose(model(rows()), private(rows()), rtol=1e-5, atol=1e-6)
    assert lipdp.DP_Model.from_keras(model).privacy.epsilon(delta=1e-3) == private.privacy.epsilon(delta=1e-3) > 0


def test_a_layer_with_weights_that_is_called_twice():
    layer, inputs = Linear(), keras.Input((5, 4))
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(layer(layer(inputs)))))
    copy = lipdp.to_functional(model, verbose=False)
    assert len(copy.trainable_variables) == 4
    assert_same_gradients(model, copy, rows())


def test_weights_compute_in_the_precision_of_their_layer():
    layer = Linear()
    layer.dtype_policy = "mixed_bfloat16"
    model = keras.Sequential([keras.Input((5, 4), dtype="bfloat16"), layer, L.Flatten(), L.Dense(2)])
    copy = lipdp.to_functional(model, verbose=False)
    (dense,) = [inner for inner in copy._flatten_layers() if type(inner) is L.Dense and inner.units == 4]
    assert dense.compute_dtype == "bfloat16" and dense.kernel.dtype == "float32"


def test_truth_values_are_compared(capsys):
    class Positive(L.Layer):
        def call(self, inputs):
            return inputs > 1.0

    inputs = keras.Input((4,))
    lipdp.to_functional(keras.Model(inputs, L.Dense(2)(ops.cast(Positive()(inputs), "float32"))))
    assert "(Positive) became a functional model of operations alone" in capsys.readouterr().out


def test_inputs_with_masks_stay(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the block destroys the mask
        embedded = L.Embedding(3, 4, mask_zero=True)
        model = keras.Sequential([keras.Input((5,)), embedded, Block(), L.Flatten(), L.Dense(2)])
        lipdp.to_functional(model)
    assert "its inputs have masks" in capsys.readouterr().out


def test_a_layer_that_is_called_in_several_ways_stays(capsys):
    layer, inputs = Around(), keras.Input((5, 4))
    found = [layer(inputs, scale=scale)["last"] for scale in (1.0, 2.0)]
    lipdp.to_functional(keras.Model(inputs, L.Dense(2)(L.Add()(found))))
    assert "called in several ways" in capsys.readouterr().out


def test_a_layer_that_is_called_twice_is_one_model():
    layer, inputs = Block(), keras.Input((5, 4))
    model = keras.Model(inputs, L.Dense(2)(layer(layer(inputs))))
    copy = lipdp.to_functional(model, verbose=False)
    np.testing.assert_allclose(model(rows()), copy(rows()), rtol=1e-5, atol=1e-6)
    gradients.supported(copy)


@pytest.mark.parametrize("kind", [lipdp.DP_Sequential, lipdp.DP_Model])
def test_private_models_stay_private(kind):
    model = kind.from_keras(stack(Block()))
    copy = lipdp.to_functional(model, verbose=False)
    assert type(copy) is lipdp.DP_Model and not isolation.foreign(copy)


def test_a_model_without_such_layers():
    model = stack(L.Dense(3))
    copy = lipdp.to_functional(model, verbose=False)
    assert copy.layers[1] is model.layers[0]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = L.Dense(4, "relu"), L.Dense(2)

    def call(self, inputs):
        return self.outer(self.inner(inputs))


def test_a_subclassed_model_becomes_one_by_an_input(capsys):
    model = Subclassed()
    with pytest.raises(ValueError, match=r"keras.Model\(inputs, model\(inputs\)\)"):
        lipdp.to_functional(model)
    inputs = keras.Input((3,))
    copy = lipdp.to_functional(keras.Model(inputs, model(inputs)))
    assert "(Subclassed) became a functional model of 2 layers" in capsys.readouterr().out
    assert not isolation.foreign(copy)


def test_a_graph_with_a_call_of_its_own_keeps_its_function():
    class Twice(keras.Model):
        def call(self, inputs):
            return super().call(inputs) * 2.0

    a, b = keras.Input((4,)), keras.Input((4,))
    own = Twice([a, b], L.Dense(3)(L.Add()([a, b])))
    model = keras.Model([a, b], L.Dense(2)(own([a, b])))
    copy = lipdp.to_functional(model, verbose=False)
    x = [rows(6, (4,)), rows(6, (4,)) + 1]
    np.testing.assert_allclose(model(x), copy(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", ["model.keras", keras.Sequential([L.Dense(2)])], ids=["path", "unbuilt"])
def test_what_is_no_graph_is_refused(given):
    with pytest.raises(ValueError, match="needs a graph of layers"):
        lipdp.to_functional(given)
