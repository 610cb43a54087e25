"""Models with several outputs: their losses are one weighted sum for each example, which is what is clipped."""

import functools

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import backend, certify, gradients, layers, losses, strategies
from tests.helpers.clipping import SECRET, flat

FIT = {"batch_size": 20, "delta": 1e-3, "verbose": 0}
NOISE = {"noise_multiplier": 1.0}
WEIGHTS = {"kind": 1.0, "size": 0.25}


def losses_of():
    return {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}


def network(form=list, dropout=0.0):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    inside = L.Dropout(dropout)(L.Dense(8, activation="tanh")(inputs))
    outputs = {"kind": L.Dense(3, name="kind")(inside), "size": L.Dense(2, name="size")(inside)}
    return keras.Model(inputs, outputs if form is dict else form(outputs.values()))


def model_of(form=list, loss=None, loss_weights=WEIGHTS, dropout=0.0, **arguments):
    model = lipdp.DP_Model.from_keras(network(form, dropout))
    arguments = {"metrics": {"kind": ["accuracy"]}, "weighted_metrics": {"size": ["mae"]}} | arguments
    model.compile(keras.optimizers.SGD(0.1), loss=loss or losses_of(), loss_weights=loss_weights, **arguments)
    return model


def data(rows=100):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).astype("float32")
    return x, {"kind": rng.integers(0, 3, rows), "size": rng.normal(size=(rows, 2)).astype("float32")}


def form_of(y, form):
    return y if form is dict else form(y.values())


def by_hand(model, x, y):
    """The gradient of each example alone: of the cross-entropy plus a quarter of the squared error."""

    def total(outputs, _):
        outputs = outputs if isinstance(outputs, dict) else dict(zip(y, outputs, strict=True))
        logits = ops.log_softmax(outputs["kind"])
        value = -ops.sum(ops.one_hot(row["kind"], 3) * logits)
        return value + 0.25 * ops.mean(ops.square(outputs["size"] - row["size"])), ()

    found = []
    for i in range(len(x)):
        row = {name: ops.convert_to_tensor(labels[i : i + 1]) for name, labels in y.items()}
        one, *_ = backend.Forward(model).gradient(ops.convert_to_tensor(x[i : i + 1]), total)
        found.append(flat([ops.convert_to_numpy(g).astype("float64") for g in one]))
    return np.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("form", [pytest.param(list, marks=pytest.mark.backend_free), dict])
def test_gradients_are_those_of_the_weighted_sum(form):
    model, (x, y) = model_of(form), data(12)
    labels = {k: ops.convert_to_tensor(v) for k, v in y.items()}
    record = gradients.capture(
        backend.Forward(model), ops.convert_to_tensor(x), labels, ops.ones(12), loss_values=model.loss.call
    )
    expected = by_hand(model, x, y)
    norms = np.sqrt(sum(ops.convert_to_numpy(n) for n in record.squared_norms()))
    np.testing.assert_allclose(norms, np.linalg.norm(expected, axis=1), rtol=1e-4)
    coefficients = np.random.default_rng(1).uniform(size=12).astype("float32")
    total = flat([ops.convert_to_numpy(g) for g in record.weighted_sum(coefficients)])
    np.testing.assert_allclose(total, coefficients @ expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "copies", [pytest.param(1, marks=pytest.mark.backend_free), pytest.param(3, marks=pytest.mark.slow)]
)
def test_an_update_clips_all_outputs_of_an_example_together(copies):
    model, (x, y) = model_of(), data(12)
    strategy = strategies.DPSGD(0.3, augmentation_multiplicity=copies)
    calibration = strategy.calibrate(model, model.loss, 12)
    rows = [ops.convert_to_tensor(a) for a in (x, np.append(np.ones(11), 0.0).astype("float32"))]
    labels = tuple(ops.convert_to_tensor(v) for v in y.values())
    batch = (rows[0], labels, rows[1])
    (sums, _, loss), _, _ = strategy.microbatch(calibration, backend.Forward(model), [], 0, SECRET, batch, 12)
    expected = by_hand(model, x, y)[:11]
    clipped = expected * np.minimum(1.0, 0.3 / np.linalg.norm(expected, axis=1))[:, None]
    found = flat([ops.convert_to_numpy(s) for s in sums])
    np.testing.assert_allclose(found, clipped.sum(0), rtol=1e-3, atol=1e-4)
    values = ops.convert_to_numpy(losses.example_values(model.loss, y, model(x)))
    assert float(loss) == pytest.approx(values[:11].sum() / 12, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "given", "strategy"),
    [
        pytest.param(list, list, "dpsgd", marks=pytest.mark.backend_free),
        pytest.param(dict, dict, "adaclip", marks=pytest.mark.slow),
        pytest.param(list, dict, "dpis", marks=pytest.mark.slow),
        pytest.param(tuple, tuple, strategies.DPSGD(augmentation_multiplicity=2), marks=pytest.mark.slow),
    ],
    ids=["list", "dict", "by name", "tuple"],
)
def test_fit_evaluate_predict_save_and_load(form, given, strategy, tmp_path):
    model, (x, labels) = model_of(form, dropout=0.2), data()
    y = form_of(labels, given)
    noise = {"epsilon": 4.0} if strategy == "dpis" else NOISE
    history = model.fit(x, y, strategy=strategy, validation_data=(x, y), microbatch_size=8, **noise, **FIT).history
    names = {"loss", "kind_loss", "size_loss", "kind_accuracy", "size_mae"}
    assert set(history) == names | {f"val_{name}" for name in names} | {"epsilon"}
    assert model.run.ledger.updates == 5
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.loss.weights == [1.0, 0.25] and loaded.privacy.epsilon() == model.privacy.epsilon()
    plain = network(form)
    plain.set_weights(model.get_weights())
    plain.compile(loss=losses_of(), loss_weights=WEIGHTS, metrics={"kind": ["accuracy"], "size": ["mae"]})
    expected = plain.evaluate(x, y, verbose=0, return_dict=True, batch_size=100)
    for each in (model, loaded):
        found = each.evaluate(x, y, verbose=0, return_dict=True, batch_size=30)
        assert found == pytest.approx(expected, rel=1e-4)
        found = each.evaluate(x, y, sample_weight=np.ones(100), verbose=0, return_dict=True)
        assert found == pytest.approx(expected, rel=1e-4)
    if strategy == "dpsgd":
        loaded.fit(x, y, strategy=strategy, microbatch_size=8, **NOISE, **FIT)
        assert loaded.run.ledger.updates == 10
    predicted = model.predict(x, verbose=0)
    assert isinstance(predicted, dict if form is dict else (list, tuple))
    held = {"validation_split": 0.3, "training_metrics": False}
    history = model_of(form).fit(x, y, strategy="dpsgd", **held, **NOISE, **FIT).history
    assert {"val_kind_loss", "val_loss"} < set(history) and "kind_loss" not in history


@pytest.mark.slow
def test_logs_of_training_are_means_over_the_drawn_examples():
    """An update of weight 0 on all rows: what is logged is what `evaluate` finds."""
    model, (x, y) = model_of(), data()
    model.optimizer.learning_rate = 0.0
    options = {"sampling": "fixed_order", "strategy": "dpsgd", "microbatch_size": 8, "epochs": 2}
    history = model.fit(x, y, **options, **NOISE, **FIT).history
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    for name, value in expected.items():
        assert history[name] == pytest.approx([value, value], rel=1e-4), name


@pytest.mark.backend_free
@pytest.mark.parametrize("weight", [None, 3.0])
def test_losses_of_outputs_under_dpis_are_means_as_metrics_are(weight):
    """The shares of proposed rows are no factors of their losses: a metric of the same value agrees."""
    ce = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")
    model, (x, y) = model_of(loss_weights=None, metrics={"kind": [ce], "size": ["mse"]}, weighted_metrics=None), data()
    weights = None if weight is None else np.full(100, weight)
    logs = model.fit(x, y, sample_weight=weights, strategy="dpis", microbatch_size=8, epsilon=4.0, **FIT).history
    for name, metric in (("kind_loss", "kind_ce"), ("size_loss", "size_mse")):
        assert logs[name] == pytest.approx([(weight or 1.0) * value for value in logs[metric]], rel=1e-4), name


@pytest.mark.slow
def test_one_loss_for_all_and_losses_of_lipdp():
    inputs = keras.Input((6,))
    model = lipdp.DP_Model(inputs, [L.Dense(2, name="a")(inputs), L.Dense(2, name="b")(inputs)])
    model.compile("sgd", loss="huber", loss_weights=[1.0, 2.0])
    assert [type(loss) for loss in model.loss.losses] == [losses.Huber] * 2
    x, y = data()
    model.fit(x, [y["size"]] * 2, strategy="dpsgd", **NOISE, **FIT)
    assert model.run.ledger.updates == 5


@pytest.mark.slow
def test_a_data_set_brings_the_labels_of_all_outputs():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            x, y = data()
            return x[25 * i : 25 * i + 25], {name: labels[25 * i : 25 * i + 25] for name, labels in y.items()}

    model = model_of()
    model.fit(Batches(), strategy="dpsgd", **NOISE, **FIT)
    assert model.run.ledger.updates == 5


@pytest.mark.slow
def test_a_layer_that_makes_both_outputs_and_nested_models():
    inputs, inner = keras.Input((6,)), keras.Input((6,))
    shared = L.Dense(2, name="shared")
    inside = keras.Model(inner, [shared(inner), shared(L.Dense(6)(inner))], name="inside")
    model = lipdp.DP_Model.from_keras(keras.Model(inputs, inside(inputs)))
    model.compile("sgd", loss=["mse", "mae"])
    assert model.loss.names == ["inside", "inside_1"]
    x, y = data()
    history = model.fit(x, [y["size"]] * 2, strategy="dpsgd", **NOISE, **FIT).history
    assert {"inside_loss", "inside_1_loss"} < set(history)


def nested(form):
    x = keras.Input((6,))
    heads = [L.Dense(2, name=name)(x) for name in "abc"]
    outputs = {"u": heads[0], "v": {"q": heads[2], "p": heads[1]}} if form is dict else [heads[0], heads[1:]]
    return keras.Model(x, outputs)


@pytest.mark.backend_free
@pytest.mark.parametrize("form", [dict, pytest.param(list, marks=pytest.mark.slow)])
def test_nested_outputs_are_called_as_in_keras(form):
    """They were called after their layers, and dictionaries of losses in the form of the outputs were refused."""
    plain, (x, y) = nested(form), data()
    model = lipdp.DP_Model.from_keras(plain)
    labels, given, metrics = [y["size"], [y["size"] + 1, y["size"] + 2]], "mse", None
    if form is dict:
        labels = {"u": y["size"], "v": {"p": y["size"] + 1, "q": y["size"] + 2}}
        given = {"u": "mse", "v": {"p": "mae", "q": "mse"}}
        metrics = {"u": ["mae"], "v": {"p": ["mae"], "q": ["mse"]}}
    plain.compile("sgd", loss=given, metrics=metrics)
    model.compile("sgd", loss=given, metrics=metrics)
    expected = plain.evaluate(x, labels, 100, return_dict=True, verbose=0)
    found = model.evaluate(x, labels, return_dict=True, verbose=0)
    assert set(found) == set(expected)
    np.testing.assert_allclose([found[name] for name in expected], list(expected.values()), rtol=1e-5)
    history = model.fit(x, labels, strategy="dpsgd", validation_data=(x, labels), **NOISE, **FIT).history
    assert set(history) == {"epsilon", *expected, *(f"val_{name}" for name in expected)}


@pytest.mark.backend_free
def test_losses_of_a_file_with_other_names_keep_their_weights():
    model = lipdp.DP_Model.from_keras(nested(dict))
    model.compile("sgd", loss=losses.OutputLosses(["mse"] * 3, [1.0, 0.5, 2.0], ["a", "b", "c"]))
    assert model.loss.names == ["u", "v/p", "v/q"] and model.loss.weights == [1.0, 0.5, 2.0]


@pytest.mark.backend_free
def test_a_leaf_of_nested_outputs_without_a_loss_is_named():
    with pytest.raises(ValueError, match=r"no loss for \['v/q'\], and c/kernel"):
        lipdp.DP_Model.from_keras(nested(dict)).compile("sgd", loss={"u": "mse", "v": {"p": "mse"}})


def mixing(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=1) * ops.mean(y_pred)


def test_a_loss_that_mixes_rows_is_refused_for_its_output():
    model, (x, y) = model_of(loss=losses_of() | {"size": mixing}), data()
    with pytest.raises(ValueError, match="Output 'size'.*mixes examples"):
        model.fit(x, y, strategy="dpsgd", **NOISE, **FIT)
    assert model.run.ledger.updates == 0


def test_a_loss_of_ones_own_runs_one_row_at_a_time():
    """What the check did not find cannot mix rows all the same."""
    loss = losses.OutputLosses([mixing, "mse"])
    y_pred = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    y = np.zeros((4, 2), "float32")
    found = ops.convert_to_numpy(losses.example_values(loss, [y, y], [y_pred, y_pred]))
    square = np.square(y_pred).mean(1)
    np.testing.assert_allclose(found, square * y_pred.mean(1) + square, rtol=1e-5)


@pytest.mark.backend_free
def test_masks_come_from_the_secret_with_several_outputs():
    weights = []
    for seed in (3, 3, 4):
        model, (x, y) = model_of(dropout=0.5), data()
        model.fit(x, y, strategy="dpsgd", seed=seed, **NOISE, **FIT)
        weights.append(flat(model.get_weights()))
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.allclose(weights[0], weights[2], atol=1e-4)


def test_clipless_names_the_way_out():
    model, (x, y) = model_of(), data()
    with pytest.raises(ValueError, match="one output.*with 2.*strategy='dpsgd'"):
        model.fit(x, y, strategy="clipless", **NOISE, **FIT)
    assert model.run.ledger.updates == 0


Y = data()[1]
SCE, MSE = losses_of().values()
REFUSED = {
    "one array": (lambda: fit(Y["size"]), "one array for each output: 'kind', 'size'"),
    "two numbers": (lambda: fit([1, 2]), "Received: a number in its place, 1. Pass the labels of rows as an array"),
    "too many": (lambda: fit([*Y.values(), Y["size"]]), "a list of 3"),
    "another name": (lambda: fit({"kind": Y["kind"], "sise": Y["size"]}), r"\['kind', 'sise'\]"),
    "unequal lengths": (lambda: fit([Y["kind"][:-1], Y["size"]]), "same length"),
    "no such class": (lambda: fit([Y["kind"] + 1, Y["size"]]), "'kind': Labels must be class ids .*Number the classes"),
    "shape": (lambda: fit([Y["kind"], Y["size"][:, :1]]), "Output 'size': .*do not fit each other"),
    "NaN": (lambda: fit([Y["kind"], np.nan * Y["size"]]), "NaN"),
    "validation": (lambda: fit(Y, validation_data=(data()[0], [Y["kind"], Y["size"][:, :1]])), "`validation_data`"),
    "validation of one": (lambda: fit(Y, validation_data=(data()[0], Y["kind"])), "`validation_data`.*each output"),
    "probabilities": (
        lambda: fit(Y, loss={"kind": keras.losses.SparseCategoricalCrossentropy(), "size": "mse"}),
        "from_logits=True",
    ),
    "one loss": (lambda: model_of(loss=[SCE]), "`loss` must have one for each output: 'kind', 'size'.*list of 1"),
    "three losses": (lambda: model_of(loss=[SCE, MSE, MSE]), "`loss` must have one for each output.*list of 3"),
    "no loss": (lambda: model_of(loss=[None, None]), "Some output needs a loss"),
    "a loss that leaves weights": (
        lambda: model_of(loss=[SCE, None]),
        r"no loss for \['size'\], and size/kernel, size/bias.*trainable = False.*shares layers",
    ),
    "a name": (lambda: model_of(loss={"kind": SCE, "b": MSE}), r"`loss` must have.*\['b', 'kind'\]"),
    "a name left out": (lambda: model_of(loss={"kind": SCE}), r"no loss for \['size'\]"),
    "a name that is none": (lambda: model_of(loss={"kin": SCE}), r"`loss` must have.*\['kin'\]"),
    "a misspelt loss": (lambda: model_of(loss=[SCE, "hubr"]), "Did you mean lipdp.losses.Huber"),
    "one weight": (lambda: model_of(loss_weights=[1.0]), "`loss_weights` must have one for each output"),
    "a number": (lambda: model_of(loss_weights=1.0), "`loss_weights` must have one for each output"),
    "infinite": (lambda: model_of(loss_weights=[1.0, np.inf]), "finite"),
    "a metric": (lambda: model_of(metrics={"kind": ["acc2"]}), "Did you mean 'acc'"),
    "metrics of others": (lambda: model_of(metrics={"b": ["mae"]}), "`metrics` must have one for each output"),
    "metrics for one": (lambda: model_of(metrics=["mae"]), "`metrics` must have one for each output"),
}


def fit(y, loss=None, **arguments):
    model = model_of(loss=loss)
    try:
        model.fit(data()[0], y, strategy="dpsgd", **NOISE, **FIT, **arguments)
    finally:
        assert model.run.ledger.updates == 0


@pytest.mark.backend_free
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda one: {"kind": one}, id="dict"),
        pytest.param(lambda one: [one], id="list", marks=pytest.mark.slow),
    ],
)
def test_one_output_takes_the_forms_of_several(form):
    """As in Keras."""
    x, y = data()
    found = []
    for wrap in (form, lambda one: one):
        inputs = keras.Input((6,))
        model = lipdp.DP_Model(inputs, L.Dense(3, name="kind", kernel_initializer="ones")(inputs))
        loss = wrap(losses_of()["kind"])
        model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=wrap(["accuracy"]), weighted_metrics=wrap([]))
        history = model.fit(x, y["kind"], strategy=strategies.DPSGD(1.0), seed=0, **FIT, **NOISE).history
        found.append((history, model.evaluate(x, y["kind"], verbose=0, return_dict=True)))
    assert found[0] == found[1]
    assert "accuracy" in found[0][0]


NAMES = ["mae", "Huber", "cosine_similarity", "binary_crossentropy"]


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["bce", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES)])
@pytest.mark.parametrize("activation", [None, pytest.param("sigmoid", marks=pytest.mark.slow)])
def test_names_of_losses_of_several_places_are_those_of_keras(name, activation):
    """lipdp's are for outputs `(batch, n)`: labels that matched the outputs were refused."""
    entropy = name in ("binary_crossentropy", "bce")
    theirs = keras.losses.BinaryCrossentropy(from_logits=activation is None) if entropy else keras.losses.get(name)
    x = np.random.default_rng(0).normal(size=(6, 3, 2)).astype("float32")
    y = (x[..., :1] > 0).astype("float32")
    model = lipdp.DP_Model.from_keras(
        keras.Sequential([keras.Input((3, 2)), L.GRU(2, return_sequences=True), L.Dense(1, activation=activation)])
    )
    model.compile("sgd", name)
    model.fit(x, y, batch_size=3, noise_multiplier=9.0, delta=1e-3, strategy="dpsgd", verbose=0)
    found = losses.example_values(model.loss, y, model(x))
    expected = [float(np.mean(theirs(y[i : i + 1], model(x)[i : i + 1]))) for i in range(6)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    row = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((2,)), L.Dense(1)]))
    row.compile("sgd", name)
    # The cosine of lipdp is another function where outputs are short.
    assert isinstance(row.loss, losses.Loss) is not (name == "cosine_similarity")
    lipschitz = lipdp.DP_Sequential([keras.Input((2,)), layers.SpectralDense(1)])
    lipschitz.compile("sgd", name)
    assert isinstance(lipschitz.loss, losses.Loss)


@pytest.mark.backend_free
def test_a_loss_of_lipdp_names_the_way_out_for_several_places():
    model = lipdp.DP_Sequential([layers.BoundedInput((3, 2), norm=1.0), layers.SpectralDense(1)])
    model.compile("sgd", losses.MeanAbsoluteError())
    with pytest.raises(ValueError, match="for one place.*keras.losses, with a strategy that clips"):
        model.fit(np.ones((6, 3, 2)), np.ones((6, 3, 1)), batch_size=3, noise_multiplier=9.0, delta=1e-3, verbose=0)


def test_another_name_for_one_output_is_refused():
    inputs = keras.Input((6,))
    model = lipdp.DP_Model(inputs, L.Dense(3, name="kind")(inputs))
    for wrong in ({"loss": {"sort": "mse"}}, {"loss": "mse", "metrics": {"sort": ["mae"]}}):
        with pytest.raises(ValueError, match="must have one for each output: 'kind'"):
            model.compile("sgd", **wrong)


def one_output(form=None):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    outputs = layers.SpectralDense(3, name="kind")(layers.BoundedInput(norm=3.0)(inputs))
    model = lipdp.DP_Model(inputs, outputs if form is None else form(outputs))
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
    return model


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("strategy", "form"),
    [
        pytest.param("clipless", lambda one: {"kind": one}, id="dict", marks=pytest.mark.slow),
        pytest.param("dpsgd", lambda one: [one], id="list"),
    ],
)
def test_the_only_output_in_a_dictionary_or_list(strategy, form, tmp_path):
    x, labels = data(40)
    y = labels["kind"]
    model, plain = one_output(form), one_output()
    plain.set_weights(model.get_weights())
    assert model.evaluate(x, y, verbose=0) == plain.evaluate(x, form(y), verbose=0)
    np.testing.assert_array_equal(certify.radii(model, x), certify.radii(plain, x))
    history = model.fit(x, form(y), strategy=strategy, validation_data=(x, form(y)), **FIT, **NOISE).history
    plain.set_weights(model.get_weights())
    np.testing.assert_allclose(history["val_loss"], plain.evaluate(x, y, verbose=0)[0], rtol=1e-6)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)
    assert isinstance(keras.Model.predict(again, x, verbose=0), dict if form("") == {"kind": ""} else np.ndarray)


@pytest.mark.parametrize("form", [dict, list])
def test_gradients_of_the_only_output_are_those_of_it(form):
    x, labels = data(12)
    y, found = labels["kind"], []
    for wrap in ((lambda one: {"kind": one}) if form is dict else lambda one: [one], None):
        model = one_output(wrap)
        found.append(backend.loss_gradient(model)(x[:1], y[:1]))
        values = losses.example_values(model.loss, y if wrap is None else wrap(y), model(x))
        found[-1] = [*found[-1], values]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other), rtol=1e-6)


@pytest.mark.backend_free
def test_rows_of_a_source_and_of_a_data_set_name_the_only_output():
    x, labels = data(40)
    y = labels["kind"]

    class Rows:
        def __len__(self):
            return len(x)

        def __getitem__(self, index):
            return x[index], {"kind": y[index]}

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return x[10 * index : 10 * index + 10], {"kind": y[10 * index : 10 * index + 10]}

    for given in (Rows(), Batches()):
        history = one_output().fit(given, strategy="dpsgd", **FIT, **NOISE).history
        assert history["epsilon"][-1] > 0


def test_labels_of_another_output_than_the_only_one_are_refused():
    x, labels = data(40)
    y = labels["kind"]
    for wrong, received in (({"sort": y}, "a dict of 'sort'"), ({"kind": y, "more": y}, "a dict of 'kind', 'more'")):
        with pytest.raises(ValueError, match=f"one array of labels.*, called 'kind'. Received: {received}"):
            one_output().fit(x, wrong, **FIT, **NOISE)
    with pytest.raises(ValueError, match="one array of labels.* Received: a list of 2"):
        one_output().fit(x, [y, y], **FIT, **NOISE)


def test_from_keras_keeps_a_dictionary_of_one_output():
    inputs = keras.Input((6,))
    model = lipdp.DP_Model.from_keras(keras.Model(inputs, {"kind": L.Dense(3)(inputs)}))
    model.compile("sgd", {"kind": losses_of()["kind"]}, None, {"kind": ["accuracy"]})  # in the order of Keras
    x, y = data(40)
    model.fit(x, {"kind": y["kind"]}, strategy="dpsgd", **FIT, **NOISE)
    assert set(model.predict(x, verbose=0)) == {"kind"}


def half_trained(form, **arguments):
    """A model of which one output, without weights of its own, trains nothing."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    inside = L.Dense(8, activation="tanh")(inputs)
    outputs = {"inside": inside, "kind": L.Dense(3)(inside)}
    model = lipdp.DP_Model(inputs, outputs if form is dict else list(outputs.values()))
    loss = {"kind": SCE} if form is dict else [None, SCE]
    model.compile(keras.optimizers.SGD(0.1), loss=loss, **arguments)
    return model


@pytest.mark.parametrize("form", [pytest.param(dict, marks=pytest.mark.backend_free), list])
def test_an_output_without_a_loss_trains_nothing(form, tmp_path):
    x, y = data()
    both = {"kind": y["kind"]} if form is dict else [None, y["kind"]]
    model = half_trained(form, metrics={"kind": ["accuracy"]} if form is dict else [None, ["accuracy"]])
    alone = lipdp.DP_Model(model.inputs, model.outputs[1])
    weights = model.get_weights()
    history = model.fit(x, both, strategy="dpsgd", seed=0, validation_data=(x, both), **NOISE, **FIT).history
    name = model.loss.names[1]
    expected = {f"{name}_loss", f"{name}_accuracy", "loss"}
    assert set(history) == {"epsilon", *expected, *(f"val_{key}" for key in expected)}
    alone.compile("sgd", loss=SCE)
    some = {"kind": y["kind"][:5]} if form is dict else [None, y["kind"][:5]]
    np.testing.assert_allclose(norms_of(model, x[:5], some), norms_of(alone, x[:5], y["kind"][:5]), rtol=1e-5)
    assert any(np.abs(a - b).max() > 0 for a, b in zip(weights, model.get_weights(), strict=True))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    found, expected = (each.evaluate(x, both, verbose=0, return_dict=True) for each in (again, model))
    assert found == pytest.approx(expected) and f"{name}_accuracy" in found
    if form is dict:
        assert model.evaluate(x, both, sample_weight=np.ones(100), verbose=0, return_dict=True) == pytest.approx(found)


def test_labels_of_the_only_output_with_a_loss_stand_alone():
    """As in the GPT of keras.io: compile(loss=[loss, None]), fit(x, y)."""
    x, y = data()
    found = []
    for labels in ([None, y["kind"]], y["kind"]):
        model = half_trained(list, metrics=[None, ["accuracy"]])
        terms = {"seed": 0, "validation_data": (x, labels), "sample_weight": np.ones(100)}
        model.fit(x, labels, strategy="dpsgd", **terms, **NOISE, **FIT)
        np.testing.assert_array_equal(*(norms_of(model, x[:5], one) for one in ([None, y["kind"][:5]], y["kind"][:5])))
        found.append((*model.get_weights(), *model.evaluate(x, labels, verbose=0)))
    assert all(np.shape(one) == np.shape(other) for one, other in zip(*found, strict=True))
    with pytest.raises(ValueError, match="one array for each output"):
        model_of().loss.labels(y["kind"])


def norms_of(model, x, y):
    """The squared norms of the gradients of each row."""
    values = functools.partial(losses.example_values, model.loss)
    forward, x = backend.Forward(model), ops.convert_to_tensor(x)
    record = gradients.capture(forward, x, y, ops.ones((len(x),)), loss_values=values)
    return ops.convert_to_numpy(sum(record.squared_norms()))
