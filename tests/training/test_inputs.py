"""What `fit` refuses of inputs; shapes are in `test_refusals`."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import sampling
from lipdp.training.inputs import as_rows, rank_of_batch
from lipdp.training.session import expected_batch_size
from tests.helpers.streams import of_the_seed_alone
from tests.sampling.test_source import Named

FIT = {"batch_size": 20, "noise_multiplier": 1.0, "delta": 1e-3, "strategy": "dpsgd", "verbose": 0}
TOKENS = np.random.default_rng(0).integers(0, 9, (60, 4))
Y = np.arange(60, dtype="int32") % 3


def network():
    words, numbers = keras.Input((4,), name="words"), keras.Input((2,), name="numbers")
    embedded = keras.layers.Embedding(9, 3, name="table")(words)
    both = keras.layers.Concatenate()([keras.layers.Flatten()(embedded), numbers])
    model = lipdp.DP_Model([words, numbers], keras.layers.Dense(3)(both))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def inputs(token=8):
    words = TOKENS.astype("float32")
    words[7, 2] = token
    return {"words": words, "numbers": np.full((60, 2), 50.0)}


@pytest.mark.backend_free
@pytest.mark.parametrize("token", [9, *(pytest.param(token, marks=pytest.mark.slow) for token in (-1, 1e9))])
def test_tokens_that_an_embedding_lacks_are_refused_before_anything_is_charged(token):
    """TensorFlow stopped within the epoch; JAX trained on what stands for them."""
    model = network()
    refused = "from 0 to 8, the input_dim of layer 'table' less one. Received: .*; the first row with another is 7"
    with pytest.raises(ValueError, match=refused):
        model.fit(inputs(token), Y, **FIT)
    with pytest.raises(ValueError, match=f"`validation_data` does not fit. .*{refused}"):
        model.fit(inputs(), Y, validation_data=(inputs(token), Y), **FIT)
    assert model.run.ledger.releases == 0
    model.fit(inputs(), Y, validation_data=(inputs(0), Y), **FIT)


@pytest.mark.slow
@pytest.mark.parametrize("more", [pytest.param({}, marks=pytest.mark.slow), {"id": np.full(60, "text")}])
@pytest.mark.parametrize("kind", [np.asarray, sampling.Source])
def test_dictionaries_go_by_the_names_of_inputs(kind, more):
    """As in Keras: of any order, and with more than the model takes."""
    found = []
    words, numbers = (kind(column) for column in inputs().values())
    for x in ({"numbers": numbers, "words": words, **more}, [words, numbers]):
        keras.utils.set_random_seed(1)
        model = network()
        validation = ({**inputs(), **more}, Y) if isinstance(x, dict) else (inputs(), Y)
        model.fit(x, Y, validation_data=validation, seed=3, **FIT)
        found.append(model.history.history["val_loss"])
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.slow
def test_a_model_with_one_input_takes_it_by_name():
    model = lipdp.DP_Sequential([keras.Input((4,), name="words"), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = {"id": np.arange(60), "words": TOKENS, "class": Y}
    model.fit(data, "class", validation_data=(data, "class"), **FIT)
    assert model.run.ledger.updates == 3 and "val_loss" in model.history.history


@pytest.mark.backend_free
def test_of_a_source_the_sample_is_looked_at():
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Embedding(9, 3), keras.layers.Flatten()])
    model.add(keras.layers.Dense(3))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="Received: 3 to 11; the first row with another is 0"):
        model.fit(sampling.Source(TOKENS + 3), Y, **FIT)


def of_integers(first):
    ids = first + np.arange(4)
    x = np.random.default_rng(0).choice(ids, (40, 1))
    inputs = keras.Input((1,), dtype="int32", name="id")
    outputs = keras.layers.Dense(3)(keras.ops.cast(inputs, "float32") * 1e-9)
    model = lipdp.DP_Model(inputs, outputs)
    model.compile("sgd", loss="mse")
    return model, x, np.zeros((40, 3), "float32")


def test_integers_that_float32_does_not_tell_apart_are_refused():
    """They were rounded without a word in `fit`, and not in `predict`."""
    model, x, y = of_integers(2**24)
    with pytest.raises(ValueError, match="Input 'id' takes integers, which must be below 16777216"):
        model.fit(x, y, strategy="dpsgd", batch_size=8, noise_multiplier=1.0, delta=1e-3, verbose=0)
    assert model.run.ledger.updates == 0
    model, x, y = of_integers(2**24 - 4)
    model.fit(x, y, strategy="dpsgd", batch_size=8, noise_multiplier=1.0, delta=1e-3, verbose=0)


@pytest.mark.backend_free
def test_columns_of_a_table_and_lists_within_a_dictionary():
    """As in Keras: a column goes to an input (N, 1)."""
    rng = np.random.default_rng(0)
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    joined = keras.layers.Concatenate()([a, b])
    columns, y = {"a": rng.normal(size=40), "b": rng.normal(size=40)}, rng.normal(size=(40, 1))
    for inputs, x in (([a, b], columns), ({"pair": [a, b]}, {"pair": [columns["a"][:, None], columns["b"][:, None]]})):
        model = lipdp.DP_Model(inputs, keras.layers.Dense(1)(joined))
        model.compile("sgd", loss="mse")
        more = {"validation_data": (x, y)} if "a" in x else {}
        model.fit(x, y, strategy="dpsgd", batch_size=8, noise_multiplier=1.0, delta=1e-3, verbose=0, **more)
        assert model.run.ledger.updates == 5


class Frame:
    """What is looked at of a pandas.DataFrame."""

    iloc = None

    def __init__(self, **columns):
        self._columns, self.columns = columns, list(columns)
        self.shape = (len(self), len(columns))

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, names):
        return Frame(**{n: self._columns[n] for n in names}) if isinstance(names, list) else self._columns[names]

    def __array__(self, dtype=None, copy=None):
        return np.stack(list(self._columns.values()), axis=1).astype(dtype or "float64")


def of_columns():
    named = {name: keras.Input((1,), name=name) for name in ("a", "b")}
    model = lipdp.DP_Model(named, keras.layers.Dense(3)(keras.layers.Concatenate()(list(named.values()))))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.backend_free
def test_numbers_in_the_rows_of_a_source_go_to_inputs_of_one_number():
    found = []
    for kind in (dict, Named):
        keras.utils.set_random_seed(1)
        model, data = of_columns(), kind(a=TOKENS[:, 0], b=TOKENS[:, 1] / 7, label=Y)
        with of_the_seed_alone():
            model.fit(data, "label", validation_data=(data, "label"), seed=3, **FIT)
        found.append(model.history.history["val_loss"])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_texts_beside_the_inputs_are_left_out_by_evaluate_and_predict():
    """As by `fit`, of which it is the same dictionary; Keras' own error was about a dtype."""
    model, more = network(), {"id": np.full(60, "text"), "kind": Y}
    np.testing.assert_array_equal(*(model.predict(inputs() | beside, verbose=0) for beside in (more, {})))
    found = [model.evaluate(*given, verbose=0) for given in ((inputs() | more, "kind"), (inputs(), Y))]
    assert found[0] == found[1]


@pytest.mark.backend_free
def test_columns_that_are_not_what_the_model_takes_say_how_to_make_that():
    frame = Frame(a=TOKENS[:, 0], b=TOKENS[:, 1], label=Y)
    with pytest.raises(ValueError, match=r"\(60, 2\).*: dict\(frame\) of a DataFrame"):
        of_columns().fit(frame, "label", **FIT)
    model = lipdp.DP_Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"the keys 'a', 'b'.*numpy\.stack\("):
        model.fit(Named(a=TOKENS[:, 0], b=TOKENS[:, 1], label=Y), "label", **FIT)
    with pytest.raises(ValueError, match="person_ids='label'. Pass that column itself, and leave it out of x"):
        model.fit(frame, "a", person_ids="label", **FIT)


@pytest.mark.backend_free
def test_evaluate_takes_the_name_of_the_labels_as_fit_does():
    model = lipdp.DP_Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = TOKENS[:, :2].astype("float32")
    expected = model.evaluate(x, Y, verbose=0)
    for data in ({"x": x, "label": Y}, Frame(a=x[:, 0], b=x[:, 1], label=Y)):
        model.fit(data, "label", validation_data=(data, "label"), **FIT)
        assert model.evaluate(data, "label", verbose=0) == model.evaluate(x, Y, verbose=0) != expected


@pytest.mark.backend_free
def test_a_model_that_begins_with_text_says_what_to_do_before_fit():
    words = keras.Input((1,), dtype="string", name="job")
    model = lipdp.DP_Model(words, keras.layers.Dense(3)(keras.layers.Lambda(lambda x: x, (4,), dtype="float32")(words)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="inputs of text, 'job'. Call its StringLookup or TextVectorization layers"):
        model.fit(np.full((60, 1), "baker"), Y, **FIT)


@pytest.mark.backend_free
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_layers_that_keras_computes_by_tensorflow_are_refused_elsewhere(backend, monkeypatch):
    lookup = keras.layers.IntegerLookup(vocabulary=[1, 2], output_mode="one_hot")
    model = lipdp.DP_Sequential([keras.Input((1,), dtype="int32"), lookup, keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    x = np.ones((60, 1), "int32")
    if backend == "tensorflow":
        assert as_rows(model, x, Y)[0].shape == x.shape
    else:
        with pytest.raises(ValueError, match=r"\(IntegerLookup\) does not run within a step of jax.*before `fit`"):
            as_rows(model, x, Y)


def test_validation_data_of_tensors():
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((40, 4), "float32"), np.ones((40, 1), "float32")
    held_out = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
    asked = {"batch_size": 8, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0, "validation_data": held_out}
    assert np.isfinite(model.fit(x, y, strategy="dpsgd", **asked).history["val_loss"]).all()


@pytest.mark.backend_free
def test_images_without_an_axis_of_channels_are_told_how_to_get_one():
    network = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
    model = lipdp.DP_Model.from_keras(network)
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"x\[..., None\] has an axis of channels\.$"):
        model.fit(np.zeros((40, 6, 6), "float32"), np.zeros(40, int), batch_size=8, epsilon=1.0, strategy="dpsgd")


@pytest.mark.backend_free
def test_images_with_channels_first_are_told_how_to_have_them_last():
    network = keras.Sequential([keras.Input((6, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
    model = lipdp.DP_Model.from_keras(network)
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"numpy\.moveaxis\(x, 1, -1\) has the channels last\.$"):
        model.fit(np.zeros((40, 3, 6, 8), "float32"), np.zeros(40, int), batch_size=8, epsilon=1.0, strategy="dpsgd")


@pytest.mark.parametrize("more", [{}, {"a0": TOKENS[:, 2]}])
@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_datasets_of_columns_are_read_row_by_row_and_in_batches(batch_size, more):
    """As in Keras: of a batch of numbers each is a row of an input (N, 1). Before, a batch was taken for one row."""
    tf = pytest.importorskip("tensorflow")
    columns = {"a": TOKENS[:, 0], "b": TOKENS[:, 1], **more}
    whole = tf.data.Dataset.from_tensor_slices((columns, Y))
    model = of_columns()
    x, y = as_rows(model, whole.batch(batch_size) if batch_size else whole, None)
    assert rank_of_batch(model, whole) == 1
    np.testing.assert_array_equal(x["a"], TOKENS[:, :1])
    np.testing.assert_array_equal(np.ravel(y), Y)
    labeled = tf.data.Dataset.from_tensor_slices({**columns, "label": Y})
    x, y = as_rows(model, labeled.batch(batch_size) if batch_size else labeled, "label")
    np.testing.assert_array_equal(x["b"], TOKENS[:, 1:2])
    np.testing.assert_array_equal(np.ravel(y), Y)


@pytest.mark.backend_free
def test_datasets_of_columns_beside_images():
    """The first of the arrays, by which batches are told, may be another than the first input."""
    tf = pytest.importorskip("tensorflow")
    age, image = keras.Input((1,), name="age"), keras.Input((2, 2), name="image")
    joined = keras.layers.Concatenate()([age, keras.layers.Flatten()(image)])
    rows = {"age": TOKENS[:, 0], "image": TOKENS.reshape(-1, 2, 2)}
    for inputs in ([age, image], [image, age], {"age": age, "image": image}):
        model = lipdp.DP_Model(inputs, keras.layers.Dense(3)(joined))
        for data in (
            tf.data.Dataset.from_tensor_slices((rows, Y)),
            tf.data.Dataset.from_tensor_slices((rows, Y)).batch(7),
        ):
            x, _ = as_rows(model, data, None)
            assert sorted(leaf.shape for leaf in keras.tree.flatten(x)) == [(60, 1), (60, 2, 2)]


@pytest.mark.backend_free
def test_the_batch_size_of_a_dataset_of_columns_is_that_of_its_batches():
    tf = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices(({"a": TOKENS[:, 0], "b": TOKENS[:, 1]}, Y)).batch(20)
    assert expected_batch_size(of_columns(), rows) == 20
    tagged = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Embedding(9, 2), keras.layers.Dense(3)])
    one_by_one = tf.data.Dataset.from_tensor_slices((TOKENS, TOKENS % 3))
    assert rank_of_batch(tagged, one_by_one) == rank_of_batch(tagged, one_by_one.batch(5)) == 2


@pytest.mark.backend_free
def test_shapes_that_do_not_fit_get_a_hint_that_does():
    model = lipdp.DP_Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"behind the axis of examples\.$"):
        model.fit(TOKENS[:, :3], Y, **FIT)
    with pytest.raises(ValueError, match="behind the axis of examples: single rows, not batches of them"):
        model.fit(sampling.Source(list(zip(TOKENS.reshape(6, 10, 4), Y.reshape(6, 10), strict=True))), **FIT)


def test_activations_with_weights_train_from_the_first_fit_on():
    """Keras builds them where they first compute: inside of a step TensorFlow refused them, and JAX failed."""
    stack = [keras.Input((4,)), keras.layers.Dense(8, activation=keras.layers.PReLU()), keras.layers.Dense(3)]
    model = lipdp.DP_Model.from_keras(keras.Sequential(stack))
    model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(TOKENS.astype("float32"), Y, **FIT)
    alpha = model.layers[-2].activation.alpha
    assert any(v is alpha for v in model.trainable_variables) and np.any(keras.ops.convert_to_numpy(alpha.value))
    assert model.optimizer.noise_std.shape[0] == len(model.trainable_variables) == 5
