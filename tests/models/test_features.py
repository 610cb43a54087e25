"""Features of private rows by a frozen network: each row alone, in memory or on disk."""

import itertools
import time
import warnings

import keras
import numpy as np
import pytest
from keras import layers as L

import lipdp
from lipdp.training.outputs import Outputs

X = np.random.default_rng(0).normal(size=(50, 6)).astype("float32")


@lipdp.row_wise
class WithNumpy(L.Layer):
    def call(self, inputs):
        return keras.ops.convert_to_tensor(2.0 * keras.ops.convert_to_numpy(inputs))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape)


def backbone():
    return keras.Sequential([keras.Input((6,)), L.Dense(5, "relu"), L.BatchNormalization(trainable=False)])


@pytest.mark.backend_free
@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_they_are_the_outputs_of_the_network(batch_size):
    model = backbone()
    found = lipdp.features(model, X, batch_size=batch_size)
    assert found.shape == (50, 5) and found.dtype == np.float32
    np.testing.assert_allclose(found, model.predict(X, verbose=0), atol=1e-6)


@pytest.mark.backend_free
def test_a_row_that_joins_moves_no_other_in_low_precision():
    """On TensorFlow the last two of 32 rows were rounded otherwise, and those of others by 0.2 %."""
    keras.utils.set_random_seed(0)
    inner = [keras.layers.Dense(256, "tanh", dtype="mixed_bfloat16"), keras.layers.Dense(256, "tanh")]
    last = [keras.layers.Dense(size, dtype="mixed_bfloat16") for size in (256, 64)]
    network = keras.Sequential([keras.Input((64,)), *inner, *last])
    rows = np.random.default_rng(0).normal(size=(3000, 64)).astype("float32")
    joined = np.concatenate([np.ones((1, 64), "float32"), rows])
    found, others = (lipdp.features(network, x, batch_size=32, verbose=0) for x in (rows, joined))
    np.testing.assert_array_equal(others[1:], found)


@pytest.mark.parametrize(("batch_size", "seen"), [(256, 128), (16, 8), (7, 4), (1, 1)])
def test_two_threads_take_half_of_a_batch_each(batch_size, seen, monkeypatch):
    model = backbone()
    monkeypatch.setattr("lipdp.backend.cpu_threads", lambda: 1)
    alone = lipdp.features(model, X, batch_size=seen)
    monkeypatch.setattr("lipdp.backend.cpu_threads", lambda: 2)
    np.testing.assert_array_equal(lipdp.features(model, X, batch_size=batch_size), alone)


def test_a_failure_in_a_thread_is_that_of_the_call(monkeypatch):
    """Neither hides it, nor goes on with what is left."""
    monkeypatch.setattr("lipdp.backend.cpu_threads", lambda: 2)
    found, made, calls = Outputs(backbone(), 2, shared=True), [], itertools.count()

    def failing(rows):
        call = next(calls)  # `len(made)` could grow by two before either thread reads it
        made.append(len(rows))
        if call == 2:
            raise MemoryError("no memory")
        time.sleep(0.01)  # what is left waits for who would cancel it
        return rows

    found._compute = failing
    with pytest.raises(MemoryError, match="no memory"):
        found(np.repeat(X, 100, axis=0))
    assert len(made) < 1000 and set(made) == {1}


@pytest.mark.backend_free
def test_what_a_network_has_adapted_to_is_said_as_by_fit():
    adapted, given = L.Normalization(name="adapted"), L.Normalization(mean=0.0, variance=1.0)
    adapted.adapt(X)
    lipdp.features(keras.Sequential([keras.Input((6,)), given]), X)  # warnings are errors
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lipdp.features(keras.Sequential([keras.Input((6,)), adapted]), X)
    (said,) = [str(each.message) for each in caught if "What `adapt` reads" in str(each.message)]
    assert "Received: adapted." in said


@pytest.mark.backend_free
@pytest.mark.parametrize("functional", [False, True])
def test_a_network_that_is_run_eagerly_is_not_compiled(functional):
    model = keras.Sequential([keras.Input((6,)), WithNumpy()])
    model = keras.Model(model.inputs, model.outputs) if functional else model
    model.compile(run_eagerly=True)
    np.testing.assert_array_equal(lipdp.features(model, X), 2.0 * X)


def test_where_nobody_watches_a_line_is_written_for_each_tenth(capsys):
    lipdp.features(backbone(), np.zeros((1000, 6), "float32"), batch_size=2, verbose=2)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"Features of {rows} of 1000 rows" for rows in (128, 224, 320, 416, 512, 608, 704, 800, 928)]
    lipdp.features(backbone(), X, verbose=2)  # as quick as no line is worth
    assert not capsys.readouterr().out


@pytest.mark.backend_free
def test_a_row_changes_its_own_features_only():
    model, other = backbone(), X.copy()
    other[7] = 1e6
    a, b = lipdp.features(model, X, batch_size=16), lipdp.features(model, other, batch_size=16)
    np.testing.assert_array_equal(np.delete(a, 7, 0), np.delete(b, 7, 0))


@pytest.mark.slow
def test_a_file_of_half_the_size_that_fit_reads_row_by_row(tmp_path):
    model = backbone()
    whole = lipdp.features(model, X)
    found = lipdp.features(model, X, tmp_path / "f.npy", dtype="float16")
    assert isinstance(found, np.memmap) and found.dtype == np.float16
    np.testing.assert_allclose(found, whole, rtol=1e-3, atol=1e-3)
    head = lipdp.DP_Sequential([lipdp.layers.BoundedInput((5,), norm=1.0), lipdp.layers.SpectralDense(3)])
    head.compile("sgd", loss="sparse_categorical_crossentropy")
    head.fit(found, np.arange(50) % 3, batch_size=10, noise_multiplier=1.0, verbose=0)
    assert head.privacy.epsilon() > 0


@pytest.mark.slow
@pytest.mark.backend_free
def test_progress_is_shown_where_it_is_asked_for(capsys, monkeypatch):
    monkeypatch.setattr("lipdp.models.features._AT_ONCE", 1)
    for verbose, told in ((0, False), ("auto", False), (1, True)):  # nobody looks on at a terminal
        lipdp.features(backbone(), X, batch_size=20, verbose=verbose)
        written = capsys.readouterr().out
        assert ("Features of 50 rows" in written and "50/50" in written) == told == bool(written)


@pytest.mark.backend_free
def test_large_values_are_cut_off(tmp_path):
    model = keras.Sequential([keras.Input((6,)), L.Rescaling(1e6)])
    found = lipdp.features(model, X, dtype="float16")
    assert np.isfinite(found).all() and np.abs(found).max() == 65504


@pytest.mark.slow
@pytest.mark.backend_free
def test_rows_of_a_source_are_read_a_few_at_a_time():
    most = []

    class Rows:
        def __len__(self):
            return 2000

        def __getitem__(self, index):
            index = np.asarray(index)
            most.append(index.size)
            return np.broadcast_to((index % 7)[..., None], (*index.shape, 6)).astype("float32")

    model = backbone()
    found = lipdp.features(model, Rows(), batch_size=10)
    expected = model.predict(np.repeat(np.arange(7.0)[:, None], 6, 1), verbose=0)
    np.testing.assert_allclose(found, expected[np.arange(2000) % 7], atol=1e-6)
    assert max(most) <= 1024


@pytest.mark.backend_free
def test_images_of_bytes():
    model = keras.Sequential([keras.Input((4, 4, 1)), L.Rescaling(1 / 255.0), L.Flatten()])
    images = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 1)).astype("uint8")
    np.testing.assert_allclose(lipdp.features(model, images), images.reshape(9, 16) / 255.0, rtol=1e-6)


@pytest.mark.backend_free
def test_several_inputs():
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    model = keras.Model({"a": a, "b": b}, L.Concatenate()([a, b]))
    found = lipdp.features(model, {"a": X[:, :3], "b": X[:, :2]})
    np.testing.assert_array_equal(found, np.concatenate([X[:, :3], X[:, :2]], 1))


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_task_takes_raw_rows():
    pytest.importorskip("keras_hub")
    from tests.training.test_preprocessing import TEXTS, classifier

    task = classifier()
    np.testing.assert_allclose(lipdp.features(task, TEXTS), task.predict(TEXTS, verbose=0), atol=1e-6)


class Centered(L.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, axis=0)


@pytest.mark.backend_free
@pytest.mark.parametrize("layer", [Centered(), L.BatchNormalization()])
def test_layers_that_may_mix_rows_are_refused(layer):
    model = keras.Sequential([keras.Input((6,)), layer])
    with pytest.raises(ValueError, match="depend on that row alone"):
        lipdp.features(model, X)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="where Keras takes such numbers for a bias")
def test_a_number_of_each_row_is_added_to_its_own_row():
    """With as many rows at once as channels, each row had the means of all."""
    inputs = keras.Input((6,))
    mean = keras.ops.mean(inputs, axis=-1, keepdims=True)
    with pytest.raises(ValueError, match="in front of what it is added to"):
        lipdp.features(keras.Model(inputs, inputs + mean), X, batch_size=6)
    found = lipdp.features(keras.Model(inputs, mean + inputs), X, batch_size=6)
    np.testing.assert_allclose(found, X + X.mean(axis=1, keepdims=True), atol=1e-6)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_network_that_was_trained_privately_is_refused():
    plain = keras.Sequential([keras.Input((6,)), L.Dense(3)])
    model = lipdp.DP_Model.from_keras(plain)
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(X, np.arange(50) % 3, batch_size=10, noise_multiplier=1.0, verbose=0)
    with pytest.raises(ValueError, match="into one model with the head"):
        lipdp.features(keras.Model(plain.inputs, plain.outputs), X)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("model", {}, "built Sequential or functional"),
        (keras.Sequential([L.Dense(3)]), {}, "built Sequential or functional"),
        (None, {"batch_size": 0}, "`batch_size`"),
        (None, {"dtype": "int8"}, "`dtype`"),
    ],
)
def test_what_is_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        lipdp.features(backbone() if model is None else model, X, **options)


@lipdp.row_wise
class Centered(L.Layer):
    """Said to keep rows apart."""

    def call(self, inputs):
        return inputs - keras.ops.mean(inputs, axis=0)

    def compute_output_shape(self, input_shape):
        return input_shape


MIXING = {
    "attention on vectors": ((3,), lambda x: L.Attention()([x, x]), "not known to keep rows"),
    "additive attention": ((3,), lambda x: L.AdditiveAttention()([x, x]), "not known to keep rows"),
    "softmax in time": ((2, 3, 4), lambda x: L.TimeDistributed(L.Softmax(axis=-3))(x), "not known to keep rows"),
    "norms in time": ((2, 3, 4), lambda x: L.TimeDistributed(L.UnitNormalization(axis=-3))(x), "not known"),
    "images without channels": ((4, 3), lambda x: L.Resizing(4, 3)(x), r"Reshape\(\(4, 3, 1\)\)"),
    "a wrong declaration": ((3,), lambda x: Centered()(x), "change with the other rows"),
}


@pytest.mark.backend_free
@pytest.mark.parametrize("name", MIXING)
def test_networks_that_mix_rows_are_refused(name):
    shape, function, message = MIXING[name]
    inputs = keras.Input(shape)
    with pytest.raises(ValueError, match=message):
        lipdp.features(keras.Model(inputs, function(inputs)), np.zeros((5, *shape), "float32"))


@pytest.mark.backend_free
def test_sizes_and_outputs_that_are_not_one():
    tokens = keras.Input((None, 2))
    with pytest.raises(ValueError, match="one size"):
        lipdp.features(keras.Model(tokens, L.Dense(2)(tokens)), np.zeros((3, 4, 2)))
    inputs = keras.Input((6,))
    with pytest.raises(ValueError, match="one output"):
        lipdp.features(keras.Model(inputs, [inputs, L.ReLU()(inputs)]), X)


@pytest.mark.backend_free
def test_data_whose_rows_have_no_places_are_refused_with_the_way_out():
    """A dataset was told that it yields labels of its own, a path that categories be encoded."""
    tf = pytest.importorskip("tensorflow")
    for data in (tf.data.Dataset.from_tensor_slices((X, X[:, 0])).batch(10), tf.data.Dataset.from_tensor_slices(X)):
        with pytest.raises(
            ValueError, match=f"`features` takes arrays .*Received: a {type(data).__name__}. Read it once"
        ):
            lipdp.features(backbone(), data)
    with pytest.raises(ValueError, match="Received: x='rows.npy'. Read the file first"):
        lipdp.features(backbone(), "rows.npy")
    with pytest.raises(ValueError, match="Received: a generator. Collect its batches"):
        lipdp.features(backbone(), (row for row in X))
