"""The default size of a microbatch: from the activations of a row, and without influence on what is learnt."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import backend, gradients, strategies
from lipdp.gradients import at_most, default_microbatch, supported


def network():
    inputs = keras.Input((8, 8, 1))
    h = keras.layers.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
    return lipdp.DP_Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(h)))


def wide(*more):
    """A network of which a row has more than 4 MiB of activations."""
    layers = [keras.layers.Dense(600, "tanh"), *more, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
    return lipdp.DP_Sequential([keras.Input((2048, 2)), *layers])


def allow(monkeypatch, budget, compiled=False):
    monkeypatch.setattr(backend, "compiles", lambda model: compiled)
    monkeypatch.setattr(backend, "microbatch_bytes", lambda model, clips: budget)


ROW = 4 * (8 * 8 * (1 + 4 + 4) + 3)


def test_rows_follow_from_activations(monkeypatch):
    allow(monkeypatch, 1000 * ROW)
    assert default_microbatch(network()) == 1000
    assert default_microbatch(network(), copies=4) == 250
    assert default_microbatch(network(), copies=4000) == 1
    allow(monkeypatch, 1)
    assert default_microbatch(network()) == 32 and default_microbatch(network(), copies=3) == 10


def test_a_limit_holds_only_where_more_would_be_taken(monkeypatch):
    allow(monkeypatch, 1000 * ROW)
    assert at_most(network(), 1000) is None and at_most(network(), 999) == 999 and at_most(network(), None) is None
    assert at_most(network(), 250, copies=4) is None and at_most(network(), 249, copies=4) == 249
    allow(monkeypatch, None)
    assert at_most(network(), 999) == 999 and at_most(network(), None) is None


def test_compiled_steps_take_fewer_rows_but_not_for_many_weights(monkeypatch):
    allow(monkeypatch, 1000 * ROW, compiled=True)
    assert default_microbatch(network()) == 1000
    allow(monkeypatch, 1, compiled=True)
    weights = 4 * (9 * 4 + 4 + 8 * 8 * 4 * 3 + 3)
    assert 4 * weights // ROW == 5 and default_microbatch(network()) == 8
    vast = lipdp.DP_Sequential([keras.Input((8,)), keras.layers.Dense(2**18)])
    assert default_microbatch(vast) == 20 * 2**20 // (4 * (8 + 2**18))


@pytest.mark.parametrize("compiled", [False, True])
def test_whole_gradients_of_own_layers_stay_near_the_cache(monkeypatch, compiled):
    class Matrix(keras.layers.Layer):
        def __init__(self, units):
            super().__init__()
            self.units = units

        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1], self.units))

        def call(self, x):
            return keras.ops.matmul(x, self.w)

    def own(units, layer=Matrix):
        return lipdp.DP_Sequential([keras.Input((512,)), layer(units)])

    allow(monkeypatch, 2**40, compiled)
    assert default_microbatch(own(512)) == 12 * 2**20 // (4 * 512 * 512) == 12
    assert default_microbatch(own(512), copies=3) == 12  # one gradient for all copies
    assert default_microbatch(own(1024), clips=False) > 1000
    assert default_microbatch(own(4096)) == (4 if compiled else 8)
    assert default_microbatch(own(1)) == 12 * 2**20 // (4 * 512)
    assert default_microbatch(own(1024, lambda units: keras.layers.Dense(units))) > 1000
    frozen = own(1024)
    frozen.layers[-1].trainable = False
    assert default_microbatch(frozen) > 1000


def test_steps_of_recurrent_layers_count_where_they_are_compiled(monkeypatch):
    def recurrent(layer):
        return lipdp.DP_Sequential([keras.Input((50, 2)), layer, keras.layers.Dense(2)])

    outputs, inside = 4 * (50 * 2 + 8 + 2), 4 * 50 * 3 * (4 * 8)
    for compiled, row in ((False, outputs), (True, outputs + inside)):
        allow(monkeypatch, 2**20, compiled)
        assert default_microbatch(recurrent(keras.layers.LSTM(8))) == 2**20 // row
    both = keras.layers.Bidirectional(keras.layers.LSTM(8))
    assert default_microbatch(recurrent(both)) == 2**20 // (4 * (50 * 2 + 16 + 2) + 2 * inside)


class Own(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(16, "tanh"), keras.layers.Dense(4)

    def build(self, input_shape):
        self.first.build(input_shape)
        self.second.build((*input_shape[:-1], 16))

    def call(self, inputs):
        return self.second(self.first(inputs))


def test_layers_inside_of_a_users_own_count_where_they_are_compiled(monkeypatch):
    model = lipdp.DP_Sequential([keras.Input((50, 2)), Own(), Own(), keras.layers.Dense(2)])
    outputs, inside = 4 * 50 * (2 + 4 + 4 + 2), 4 * 50 * 2 * 2 * (4 + 4)
    for compiled, row in ((False, outputs), (True, outputs + inside)):
        allow(monkeypatch, 2**20, compiled)
        assert default_microbatch(model) == 2**20 // row


@pytest.mark.parametrize("compiled", [False, True])
def test_heavy_rows_come_in_few(compiled, monkeypatch):
    allow(monkeypatch, 2 * 2**20, compiled)
    assert default_microbatch(wide()) == 4 and default_microbatch(wide(), copies=2) == 2
    convolution = wide(keras.layers.Conv1D(4, 3))
    assert default_microbatch(convolution) == (4 if compiled else 16)
    allow(monkeypatch, None, compiled)
    assert default_microbatch(wide()) is None


@pytest.mark.parametrize("threads", [1, 2])
def test_what_does_not_clip_comes_whole_where_threads_need_the_work(threads, monkeypatch):
    if keras.backend.backend() == "tensorflow":
        from lipdp.backend import tensorflow

        monkeypatch.setattr(tensorflow, "cpu_threads", lambda: threads)
        assert backend.microbatch_bytes(network(), True) == (8 if threads == 1 else 20) * 2**20
        assert backend.microbatch_bytes(network(), False) == (8 * 2**20 if threads == 1 else None)
        dense = lipdp.DP_Sequential([keras.Input((512,)), keras.layers.Dense(512), keras.layers.Dense(512)])
        weights = 4 * sum(np.prod(v.shape) for v in dense.trainable_variables)
        assert backend.microbatch_bytes(dense, True) == (16 * weights if threads == 1 else 20 * 2**20)
        deep = lipdp.DP_Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(39))])
        assert backend.microbatch_bytes(deep, True) == 40 * (2**19 if threads == 1 else 2**21)
    elif keras.backend.backend() == "jax":
        import jax

        assert backend.microbatch_bytes(network(), True) == backend.microbatch_bytes(network(), False)
        assert (backend.microbatch_bytes(network()) is None) == (jax.devices()[0].platform != "cpu")


@pytest.mark.slow
def test_heavy_rows_are_probed_a_few_at_a_time(monkeypatch):
    seen, probe = [], backend.probe

    def counted(model, batches, *arguments, **options):
        seen.append(len(batches[0][1]))
        return probe(model, batches, *arguments, **options)

    monkeypatch.setattr(backend, "probe", counted)
    supported(wide())
    supported(network())
    assert seen == [3, 5]


@pytest.mark.slow
@pytest.mark.backend_free
def test_by_default_heavy_rows_are_learnt_from_as_others_are():
    """Microbatches of a few rows against a whole update."""
    rng = np.random.default_rng(0)
    x, y, found = rng.normal(size=(60, 2048, 2)).astype("float32"), rng.integers(0, 3, 60), []
    for rows in (None, 40):
        keras.utils.set_random_seed(0)
        model = wide()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss=loss)
        options = {"noise_multiplier": 1.0, "delta": 1e-3, "seed": 1, "microbatch_size": rows}
        model.fit(x, y, batch_size=10, epochs=1, strategy=strategies.DPSGD(1.0), verbose=0, **options)
        assert model.run.driver.microbatch == (None if rows else 4 if backend.compiles(model) else 5)
        found.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_unknown_shapes_have_no_default(monkeypatch):
    monkeypatch.setattr(backend, "microbatch_bytes", lambda model, clips: 10**6)
    inputs = keras.Input((None, 3))
    model = lipdp.DP_Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(inputs)))
    assert default_microbatch(model) is None
    assert default_microbatch(model, inputs=[(50,)]) == default_microbatch(model, inputs=[(50, 3)])
    assert default_microbatch(model, inputs=[(50, 3)]) == 10**6 // (4 * (50 * 3 + 3 + 2))


@pytest.mark.backend_free
@pytest.mark.slow
def test_lengths_that_a_model_leaves_open_are_those_of_the_data(monkeypatch):
    """A text classifier of Keras' examples, of any length."""
    monkeypatch.setattr(backend, "microbatch_bytes", lambda model, clips: 2**18)
    found, x, y = [], np.zeros((600, 40), "int32"), np.zeros(600)
    for length in (None, 40):
        stack = [keras.layers.Embedding(9, 16), keras.layers.LSTM(8), keras.layers.Dense(2)]
        model = lipdp.DP_Sequential([keras.Input((length,), dtype="int32"), *stack])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(x, y, batch_size=300, steps_per_epoch=1, noise_multiplier=1.0, delta=1e-4, verbose=0)
        found.append(model.run.driver.microbatch)
    assert found[0] == found[1] and found[0] < 300


@pytest.mark.slow
def test_no_microbatch_of_dpis_has_more_rows_than_two_updates(monkeypatch):
    monkeypatch.setattr(backend, "microbatch_bytes", lambda model, clips: 10**12)
    rows, norms = [], backend.ImportanceStep.norms
    monkeypatch.setattr(backend.ImportanceStep, "norms", lambda self, d: rows.append(len(d[2])) or norms(self, d))
    model = network()
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.zeros((200, 8, 8, 1), "float32"), np.zeros(200, "int32")
    model.fit(x, y, batch_size=50, epochs=1, epsilon=3.0, delta=1e-3, strategy=strategies.DPIS(1.0), verbose=0)
    assert rows and max(rows) <= 128


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("strategy", [strategies.DPSGD(1.0), strategies.AdaCliP(), strategies.DPIS(1.0)])
def test_default_microbatches_change_nothing_but_the_order_of_sums(strategy, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 8, 8, 1)).astype("float32"), rng.integers(0, 3, 200)
    found = []
    for size in (None, 16):
        monkeypatch.setattr(gradients, "default_microbatch", lambda model, copies, clips, inputs, size=size: size)
        keras.utils.set_random_seed(0)
        model = network()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss=loss)
        budget = {"epsilon": 3.0} if isinstance(strategy, strategies.DPIS) else {"noise_multiplier": 1.0}
        history = model.fit(
            x, y, batch_size=50, epochs=2, delta=1e-3, seed=1, strategy=strategy, verbose=0, **budget
        ).history
        if not isinstance(strategy, strategies.DPIS):
            assert model.run.driver.microbatch == (size and (14 if backend.compiles(model) else 17))
        found.append((np.concatenate([w.ravel() for w in model.get_weights()]), history["loss"]))
    (whole, loss), (parts, other) = found
    np.testing.assert_allclose(whole, parts, rtol=1e-4, atol=1e-5)
    # Under JAX, Keras weighs the loss of an update by its padded rows.
    np.testing.assert_allclose(loss, other, rtol=0.05 if keras.backend.backend() == "jax" else 1e-4)
