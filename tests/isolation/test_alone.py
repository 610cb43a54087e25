"""Which operations run one row at a time, what they then compute, and what is refused."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import backend, diffusion, gradients, isolation, layers, losses, models
from lipdp.isolation import declared as registry
from tests.helpers.reference import compare


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch):
    monkeypatch.setattr(registry, "_DECLARED", {})


class Own(L.Layer):
    """A weight, a layer inside, a mask that passes, two outputs."""

    supports_masking = True

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.inner = L.Dense(3, "tanh")
        self.inner.build(shape)

    def call(self, inputs, training=None, mask=None):
        kept = inputs if mask is None else inputs * ops.cast(mask, "float32")[..., None]
        return {"a": self.inner(kept * self.scale), "b": ops.sum(kept, axis=-1, keepdims=True)}

    def compute_output_shape(self, shape):
        return {"a": (*shape[:-1], 3), "b": (*shape[:-1], 1)}


def foreign(model):
    return [type(operation).__name__ for operation, _ in isolation.foreign(model)]


def around(layer, shape=(4,)):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(inputs))


def rows(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.backend_free
def test_nothing_changes_for_models_of_keras_and_lipdp():
    inputs = keras.Input((6, 6, 4))
    h = L.Conv2D(4, 3, padding="same", activation="relu")(inputs) + L.EinsumDense("abcd,de->abce", (6, 6, 4))(inputs)
    h = L.GroupNormalization(2)(h * 2.0) - ops.mean(h, axis=(1, 2), keepdims=True)
    h = ops.reshape(h, (-1, 36, 4))
    h = L.LayerNormalization()(h + L.MultiHeadAttention(2, 3)(h, h))
    h = L.Concatenate()([h[:, 0], L.Bidirectional(L.LSTM(3))(h), L.RNN(L.GRUCell(2))(h), L.GRU(2)(h)])
    h = L.Softmax()(L.Dropout(0.0)(L.UnitNormalization()(L.Dense(4, activation=L.LeakyReLU())(h))))
    assert foreign(keras.Model(inputs, h)) == []
    unet = diffusion.unet((8, 8, 1), num_classes=10, channels=8, multipliers=(1,), blocks=1, slim=True)
    assert foreign(unet) == foreign(diffusion.DiffusionModel(unet, num_classes=10)) == []
    assert foreign(models.lenet((28, 28, 1), 10)) == []


class Same(L.Layer):
    def call(self, inputs):
        return inputs

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.backend_free
def test_a_row_is_what_it_is_in_a_batch():
    inputs = keras.Input((5,), dtype="int32")
    outputs = Own()(L.Embedding(7, 4, mask_zero=True)(inputs))
    model = keras.Model(inputs, L.Concatenate()([L.LSTM(3)(outputs["a"]), L.Flatten()(outputs["b"])]))
    x = np.array([[0, 0, 1, 2, 3], [1, 2, 0, 0, 0], [4, 0, 5, 1, 0]], "int32")
    assert foreign(model) == ["Own"]
    whole = ops.convert_to_numpy(model(x))
    with isolation.isolated(model):
        np.testing.assert_allclose(ops.convert_to_numpy(model(x)), whole, rtol=1e-5, atol=1e-6)
    assert all("call" not in vars(layer) for layer in model.layers)


@pytest.mark.slow
def test_gradients_behind_a_mask():
    inputs = keras.Input((5,), dtype="int32")
    outputs = Own()(L.Embedding(7, 4, mask_zero=True)(inputs))
    model = keras.Model(inputs, L.Concatenate()([L.LSTM(3)(outputs["a"]), L.Flatten()(outputs["b"])]))
    compare(model, np.array([[0, 0, 1, 2, 3], [1, 2, 0, 0, 0], [4, 0, 5, 1, 0]], "int32"))


@pytest.mark.parametrize(
    "views", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.backend_free)]
)
def test_gradients_are_those_of_the_layer(views):
    inputs = keras.Input((4,))
    outputs = Own()(L.Lambda(lambda h: 2.0 * h)(inputs))
    compare(keras.Model(inputs, L.Dense(2)(outputs["a"] * outputs["b"])), rows(4, 4), views=views)


class Clips(layers.LipschitzLayer):
    """Its backward pass is one of its own, on which its bounds rest."""

    def call(self, inputs):
        @ops.custom_gradient
        def identity(x):
            def back(*args, upstream=None):
                upstream = args[0] if upstream is None else upstream
                return ops.clip(upstream, -0.1, 0.1)

            return x, back

        return identity(inputs)


@pytest.mark.slow
def test_gradients_of_a_layers_own_are_kept():
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(3), Clips()])
    x = ops.convert_to_tensor(rows(5, 4))

    def gradient():
        return backend.Forward(model).gradient(x, lambda y_pred, added: (ops.sum(7.0 * y_pred), ()))[0]

    whole = [ops.convert_to_numpy(t) for t in gradient()]
    with isolation.isolated(model):
        alone = [ops.convert_to_numpy(t) for t in gradient()]
    assert foreign(model) == ["Clips"] and np.abs(whole[0]).max() > 0
    for a, b in zip(whole, alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class Remembers(Same):
    def build(self, shape):
        self.m = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, inputs):
        self.m.assign(0.9 * self.m + 0.1 * ops.mean(inputs, axis=0))
        return inputs


ELSEWHERE = keras.random.SeedGenerator(0)


class Draws(Same):
    def call(self, inputs):
        return inputs + keras.random.normal(ops.shape(inputs), seed=ELSEWHERE)


class Adds(Same):
    def call(self, inputs):
        self.add_loss(ops.sum(inputs))
        return inputs


class Turns(Same):
    def call(self, inputs):
        return ops.transpose(inputs)


class Calls(Same):
    def __call__(self, inputs):
        return super().__call__(inputs - ops.mean(inputs))


class Looks(Same):
    def call(self, inputs):
        if float(inputs[0, 0]) > 0:
            return inputs
        return -inputs


@pytest.mark.parametrize(
    "layer, words",
    [
        (Remembers(), "changes a variable.*without noise"),
        (Draws(), "changes a variable.*attribute of the layer"),
        (Adds(), "adds one"),
        (Turns(), "one row for each row.*lipdp.row_wise"),
        (Calls(), "`__call__` of its own"),
        (Looks(), "cannot be run one row at a time.*lipdp.row_wise"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_run_alone_is_refused(layer, words):
    model = keras.Sequential([keras.Input((5,)), layer])
    with pytest.raises(ValueError, match=f"(?s)'{layer.name}'.*{words}"), isolation.isolated(model):
        backend.Forward(model)(ops.ones((5, 5)))
    assert all("call" not in vars(layer) for layer in model.layers)


def _writers():
    import tensorflow as tf

    class Keeps(L.Layer):
        def __init__(self, way):
            super().__init__(name=f"keeps_{way.replace(' ', '_')}")
            self.way, self.last = way, tf.Variable(tf.zeros((1, 5)), trainable=False)

        def call(self, inputs):
            def assign():
                self.last.assign(inputs[:1])
                return inputs

            if self.way == "plain":
                return assign()
            if self.way == "function":
                return tf.function(assign)()
            if self.way == "branch":
                return tf.cond(inputs[0, 0] > 2.0, assign, lambda: tf.identity(inputs))
            if self.way == "scatter":
                self.last.scatter_nd_update([[0, 0]], [inputs[0, 0]])
                return inputs
            if self.way == "python":
                return tf.ensure_shape(tf.numpy_function(lambda x: x, [inputs], tf.float32), inputs.shape)

            @tf.custom_gradient
            def run(x):
                def back(cotangent):
                    if self.way == "python backward":
                        return tf.ensure_shape(tf.numpy_function(lambda g: g, [cotangent], tf.float32), x.shape)
                    with tf.control_dependencies([self.last.assign(x[:1])]):
                        return tf.identity(cotangent)

                return tf.identity(x), back

            return run(inputs)

    ways = ("plain", "function", "branch", "scatter", "python", "backward", "python backward")
    return [Keeps(way) for way in ways]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.Variable")
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("way", range(7))
def test_what_writes_past_keras_is_refused(way, eager):
    """No scope of Keras holds back a tf.Variable: it would keep a row, without noise, and could couple rows by it."""
    layer = _writers()[way]
    rng = np.random.default_rng(11)
    x, y = rng.normal(size=(40, 5)).astype("float32"), rng.integers(0, 3, 40)
    before = [L.Dense(5)] if "backward" in layer.way else []  # what nothing trains in front of goes backward for nobody
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((5,)), *before, layer, L.Dense(3)]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, run_eagerly=eager)
    with pytest.raises(ValueError, match=r"(?s)changes a tf.Variable.*without noise"):
        model.fit(x, y, batch_size=20, noise_multiplier=1.0, strategy="dpsgd", verbose=0)
    assert not np.isin(layer.last, x).any()  # rows that were made up to try the layer may stay
    assert model.run.ledger.updates == 0


def past_the_map(way, later=False):
    """A function of JAX that sees the other rows under a vectorized map too; with `later`, in its derivative."""
    import jax

    def of_all(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        if way == "io_callback":
            return jax.experimental.io_callback(np.asarray, shape, x)
        return jax.pure_callback(np.asarray, shape, x, vmap_method=way)

    if way == "custom_vmap":
        of_all = jax.custom_batching.custom_vmap(lambda x: x)
        of_all.def_vmap(lambda number, batched, x: (x - x.mean(axis=0), True))
    if not later:
        return lambda x: x + of_all(jax.lax.stop_gradient(x))
    through = jax.custom_vjp(lambda x: x)
    through.defvjp(lambda x: (x, None), lambda _, cotangent: (of_all(cotangent),))
    return lambda x: jax.lax.cond(x.sum() > 0, jax.jit(through), lambda x: x, x)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="vectorized maps of JAX")
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("way", ["broadcast_all", "expand_dims", "sequential", "io_callback", "custom_vmap"])
def test_what_sees_other_rows_under_a_map_is_refused(way, later):
    own = L.Lambda(past_the_map(way, later), output_shape=(4,))
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), own])
    with pytest.raises(ValueError, match="can see other rows of the batch"):
        gradients.supported(model)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="vectorized maps of JAX")
def test_what_only_the_derivative_by_a_weight_calls_is_refused():
    """The loop has no derivative by the rows, and the first layer needs none. The layer has weights, and no rule."""
    import jax

    class Scales(L.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, x):
            counted = jax.lax.while_loop(lambda c: c[0, 0] < 9.0, lambda c: c + 1.0, x)
            through = jax.custom_vjp(lambda x, w: x * w)
            of_all = past_the_map("broadcast_all")
            through.defvjp(lambda x, w: (x * w, x), lambda x, c: (None, of_all(c * x).sum(axis=0)))
            return through(counted, self.scale.value)

    model = keras.Sequential([keras.Input((4,)), Scales(), L.Dense(2)])
    with pytest.raises(ValueError, match="can see other rows of the batch"):
        gradients.supported(model)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="vectorized maps of JAX")
def test_what_only_one_derivative_calls_is_refused():
    import jax

    of_all = past_the_map("broadcast_all", later=True)

    def function(values, row):
        counted = jax.lax.while_loop(lambda c: c[0, 0] < 9.0, lambda c: c + 1.0, row[0])
        return [counted * of_all(values[0])]

    with pytest.raises(ValueError, match="can see other rows of the batch"):
        backend.row_by_row(function, [np.ones(4, "float32")], [rows(5, 4)])


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="vectorized maps of JAX")
def test_loops_without_a_derivative_and_printing_run():
    import jax

    def double(x):
        jax.debug.callback(lambda x: None, x)
        stopped = jax.lax.stop_gradient(x)
        return x + jax.lax.while_loop(lambda c: c[0, 0] < 9.0, lambda c: c + 1.0, stopped) - stopped

    x = rows(5, 4)
    model = around(L.Lambda(double, output_shape=(4,)))
    with isolation.isolated(model):
        found = model(x)
    np.testing.assert_allclose(found, x + np.ceil(9.0 - x[:, :1]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*(pytest.param(k, marks=pytest.mark.slow) for k in (L.LSTM, L.GRU)), L.SimpleRNN])
def test_a_recurrent_layer_inside_of_a_layer_of_the_users_trains(kind):
    class Reads(L.Layer):
        def __init__(self):
            super().__init__()
            self.inner = kind(3, dropout=0.2)

        def call(self, inputs):
            return self.inner(inputs)

    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((4, 5)), Reads(), L.Dense(2)]))
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(3).normal(size=(30, 4, 5)).astype("float32")
    model.fit(x, np.arange(30) % 2, batch_size=15, noise_multiplier=1.0, delta=1e-3, strategy="dpsgd", verbose=0)
    assert model.run.ledger.updates == 2


class Table(L.Layer):
    """Multiplies rows by a weight, and by a table that its caller gives it; or takes the rows that the table names."""

    def __init__(self, mixing=False, **kwargs):
        super().__init__(**kwargs)
        self.mixing = mixing
        self.scale = self.add_weight(shape=(4,), initializer="ones")

    def call(self, inputs, table=None):
        inputs = inputs * self.scale
        return ops.take(inputs, table, axis=0) if self.mixing else ops.matmul(inputs, table)


@pytest.mark.parametrize("place", ["by name", "second", "in a list"])
def test_a_layer_on_a_constant_has_it_for_each_row(place):
    class Both(Table):
        def call(self, inputs):
            return super().call(*inputs)

    inputs, table = keras.Input((4,)), rows(4, 4)  # with as many rows as the data
    outputs = {
        "by name": lambda: Table()(inputs, table=table),
        "second": lambda: Table()(inputs, table),
        "in a list": lambda: Both()([inputs, table]),
    }[place]()
    model = keras.Model(inputs, L.Dense(2)(outputs))
    compare(model, 1.0 + rows(4, 4))  # no row of the table with a row of the data


def test_a_layer_that_mixes_rows_by_a_constant_is_refused():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, Table(mixing=True)(inputs, table=ops.arange(11)[::-1]))
    with pytest.raises(ValueError, match="does not return one row for each|cannot be run one row at a time"):
        isolation.refuse_mixing(model)


def test_a_layer_on_two_constants_is_refused():
    inputs, shared = keras.Input((4,)), Table()
    once, again = ops.ones((4, 4)), ops.eye(4)
    twice = keras.Model(inputs, shared(shared(inputs, table=once), table=again))
    sometimes = keras.Model(inputs, shared(shared(inputs, table=once), table=ops.transpose(L.RepeatVector(4)(inputs))))
    for model in (twice, sometimes):
        with pytest.raises(ValueError, match="elsewhere.*attribute"), isolation.isolated(model):
            pass
    same = keras.Model(inputs, shared(shared(inputs, table=once), table=once))
    with isolation.isolated(same):
        np.testing.assert_allclose(ops.convert_to_numpy(same(ops.ones((3, 4)))), np.full((3, 4), 16.0))


def test_operations_keep_their_constants():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, ops.matmul(inputs, ops.ones((4, 4))))
    with isolation.isolated(model):
        np.testing.assert_array_equal(ops.convert_to_numpy(model(ops.ones((4, 4)))), np.full((4, 4), 4.0))


def test_a_declaration_is_of_one_class_or_function():
    class Sub(Same):
        pass

    assert lipdp.row_wise(Same) is Same
    assert foreign(around(Same())) == [] and foreign(around(Sub())) == ["Sub"]

    @lipdp.row_wise
    def twice(h):
        return 2.0 * h

    assert foreign(around(L.Lambda(twice))) == foreign(around(L.Dense(2, activation=twice))) == []
    with pytest.raises(ValueError, match="class of layers or losses, or a function.*Received"):
        lipdp.row_wise(Same())


@pytest.mark.slow
def test_declared_names_are_in_the_statement_after_a_file(tmp_path):
    @keras.saving.register_keras_serializable(package="declared")
    @lipdp.row_wise
    class Halved(layers.LipschitzLayer):
        def call(self, inputs):
            return 0.5 * inputs

    def make(*middle):
        model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), *middle, layers.SpectralDense(3)])
        model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
        fit = {"batch_size": 4, "steps_per_epoch": 1, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}
        model.fit(rows(8, 4), np.zeros(8, int), **fit)
        return model

    model = make(Halved())
    assert foreign(model) == []
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for privacy in (model.privacy, loaded.privacy):
        text = " ".join(privacy.statement().split())
        assert "nothing checked it, for:" in text and "Halved" in text
        assert privacy.to_dict()["declared_row_wise"][0].endswith("Halved")
    plain = make(layers.Abs()).privacy
    assert "declared" not in plain.statement() and "declared_row_wise" not in plain.to_dict()


def test_the_engine_and_the_probe_leave_no_trace():
    model = keras.Sequential([keras.Input((4,)), L.Dense(4), Same(), L.Dense(2)])
    gradients.supported(model)
    assert all("call" not in vars(layer) for layer in model.layers)


def test_a_subclass_and_a_call_set_on_an_object_are_not_what_they_were():
    class Own(keras.layers.Dense):
        pass

    changed = keras.layers.Dense(2)
    changed.call = lambda inputs: inputs[:, :2] - keras.ops.mean(inputs)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, changed(Own(3)(keras.layers.Dense(3)(inputs))))
    assert [type(layer) for layer, _ in isolation.foreign(model)] == [Own, keras.layers.Dense]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a warning of TensorFlow")
def test_several_models_with_layers_of_their_own_are_no_retracing(monkeypatch):
    """From the third on the log advised to move a tf.function, which no user has, out of a loop."""
    import tensorflow as tf

    said = []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda text, *values: said.append(text % values))
    for _ in range(6):
        isolation.refuse_mixing(around(Own()))
    assert not said
