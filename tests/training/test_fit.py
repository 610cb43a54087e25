"""`fit` with a budget: what is planned, executed, charged and logged."""

import gc
import re
import warnings
import weakref

import keras
import numpy as np
import pytest

import lipdp
from lipdp import accounting, layers, losses, strategies
from lipdp.accounting.held_out import held_out
from tests.helpers.models import DELTA, blobs, mlp, weights

FIT = {"batch_size": 40, "delta": DELTA, "verbose": 0}


def test_the_budget_is_met_and_nearly_used():
    model = mlp()
    history = model.fit(*blobs(), epochs=3, epsilon=2.0, **FIT).history
    assert 0.99 * 2.0 <= model.privacy.epsilon() <= 2.0
    assert history["epsilon"][-1] == model.privacy.epsilon()
    assert history["epsilon"] == sorted(history["epsilon"])


def test_executed_equals_accounted():
    model = mlp()
    model.fit(*blobs(), epochs=3, epsilon=2.0, **FIT)
    assert int(model.optimizer.iterations.numpy()) == model.run.ledger.updates == 3 * 10
    (mechanism,) = model.run.ledger.mechanisms()
    assert mechanism == accounting.Mechanism(40 / 400, model.run.plan.noise_multiplier, 30)


@pytest.mark.slow
def test_it_learns():
    x, y = blobs()
    model = mlp()
    model.fit(x, y, epochs=10, epsilon=8.0, seed=0, **FIT)
    assert model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["clipless", "dpis"])
def test_nothing_holds_the_data_after_training(strategy):
    # TensorFlow keeps an unfinished generator for as long as the process lives.
    model, (x, y) = mlp(), blobs()
    if strategy == "dpis":
        plain = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(3)])
        model = lipdp.DP_Model.from_keras(plain)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = weakref.ref(x)
    model.fit(x, y, epochs=1, epsilon=2.0, strategy=strategy, **FIT)
    del x, y
    gc.collect()
    assert data() is None


def test_the_last_epoch_ends_at_the_budget():
    model = mlp()
    model.fit(*blobs(), epochs=50, epsilon=1.0, noise_multiplier=1.5, **FIT)
    updates = model.run.ledger.updates
    more = accounting.epsilon(noise_multiplier=1.5, sampling_probability=0.1, updates=updates + 1, delta=DELTA)
    assert model.privacy.epsilon() <= 1.0 < more
    assert int(model.optimizer.iterations.numpy()) == updates


@pytest.mark.slow
def test_a_second_fit_continues_the_plan():
    model = mlp()
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True))
    model.fit(*blobs(), epochs=4, epsilon=2.0, callbacks=[stop], **FIT)
    noise, first = model.run.plan.noise_multiplier, model.privacy.epsilon()
    assert model.run.ledger.updates == 10 and first < 2.0
    model.fit(*blobs(), epochs=4, epsilon=2.0, **FIT)
    assert model.run.plan.noise_multiplier == noise
    assert model.run.ledger.updates == 40
    assert 0.99 * 2.0 <= model.privacy.epsilon() <= 2.0


def test_a_larger_budget_adds_to_what_is_spent():
    model = mlp()
    model.fit(*blobs(), epochs=2, epsilon=1.0, **FIT)
    model.fit(*blobs(), epochs=2, epsilon=2.0, **FIT)
    assert len(model.run.ledger) == 2
    assert 0.99 * 2.0 <= model.privacy.epsilon() <= 2.0
    assert model.privacy.epsilon() == accounting.compose(model.run.ledger.mechanisms(), DELTA)


def test_a_spent_budget_is_refused():
    model = mlp()
    model.fit(*blobs(), epochs=1, epsilon=1.0, **FIT)
    before = weights(model)
    with pytest.raises(ValueError, match="budget is spent"):
        model.fit(*blobs(), epochs=1, epsilon=1.0, **FIT)
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_noise_multiplier_without_a_budget():
    model = mlp()
    model.fit(*blobs(), epochs=1, noise_multiplier=2.0, **FIT)
    model.fit(*blobs(), epochs=1, noise_multiplier=2.0, **FIT)
    assert model.run.ledger.updates == 20
    assert len(model.run.ledger) == 1


@pytest.mark.slow
def test_noise_differs_by_default_and_repeats_with_a_seed():
    runs = [mlp() for _ in range(4)]
    for model, seed in zip(runs, (None, None, 7, 7), strict=True):
        model.fit(*blobs(), epochs=1, noise_multiplier=1.0, seed=seed, **FIT)
    first, second, third, fourth = (np.concatenate([w.ravel() for w in weights(m)]) for m in runs)
    assert not np.allclose(first, second, atol=1e-3)
    assert np.array_equal(third, fourth)
    assert not np.allclose(first, third, atol=1e-3)
    assert "the operating system seeded the noise" in runs[0].privacy.statement()
    assert "the operating system seeded the noise" not in runs[2].privacy.statement()


@pytest.mark.slow
def test_chunks_compute_the_same_update():
    x, y = blobs()
    models = [mlp() for _ in range(3)]
    histories = [
        model.fit(x, y, epochs=2, noise_multiplier=1.0, seed=3, microbatch_size=size, **FIT).history
        for model, size in zip(models, (None, 8, 16), strict=True)
    ]
    for other, history in zip(models[1:], histories[1:], strict=True):
        for a, b in zip(weights(models[0]), weights(other), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)
        np.testing.assert_allclose(histories[0]["accuracy"], history["accuracy"], atol=1e-6)
        assert other.run.ledger.mechanisms() == models[0].run.ledger.mechanisms()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 8])
def test_noise_is_added_once_per_update(chunk):
    """On zero inputs the gradient is zero, so a step is nothing but noise."""
    model = lipdp.DP_Sequential([layers.BoundedInput((300,), norm=2.0), layers.SpectralDense(300, projected=False)])
    model.compile(keras.optimizers.SGD(1.0), loss=losses.SparseCategoricalCrossentropy(clip=0.5))
    start = weights(model)[0]
    steps = []
    x, y = np.zeros((400, 300), "float32"), np.zeros(400, "int32")
    for _ in range(2):
        model.fit(x, y, steps_per_epoch=1, noise_multiplier=1.3, microbatch_size=chunk, **FIT)
        steps.append((weights(model)[0] - start).ravel())
        start = weights(model)[0]
    expected = 1.3 * 2.0 * 0.5 / 40
    for step in steps:
        np.testing.assert_allclose(step.std(), expected, rtol=0.02)
        assert abs(step.mean()) < 5 * expected / np.sqrt(step.size)
    assert abs(np.corrcoef(steps)[0, 1]) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["global", "per_layer", "optimal"])
def test_applied_noise_has_the_planned_deviation(noise):
    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((200,), norm=2.0),
            layers.SpectralDense(250, projected=False),
            layers.BoundedInput(norm=0.7),
            layers.Bias(max_norm=1e6),
            layers.SpectralDense(120, projected=False),
        ]
    )
    # The first kernel lies upstream of a free one, so only the last may train.
    model.layers[1].trainable = False
    model.compile(keras.optimizers.SGD(1.0), loss=losses.SparseCategoricalCrossentropy(clip=0.5))
    with pytest.raises(ValueError, match="without a Lipschitz constant"):
        model.fit(np.zeros((400, 200)), np.zeros(400, "int32"), noise_multiplier=1.0, **FIT)
    model.layers[3].trainable = False
    model.compile(keras.optimizers.SGD(1.0), loss=losses.SparseCategoricalCrossentropy(clip=0.5))
    before = weights(model)
    model.fit(
        np.zeros((400, 200)),
        np.zeros(400, "int32"),
        steps_per_epoch=1,
        noise_multiplier=1.0,
        strategy=lipdp.strategies.Clipless(noise),
        **FIT,
    )
    after = weights(model)
    moved = [a - b for a, b in zip(after, before, strict=True)]
    assert not moved[0].any() and not moved[1].any()
    np.testing.assert_allclose(moved[2].std(), model.run.noise_std[0], rtol=0.02)


@pytest.mark.slow
def test_the_divisor_is_the_expected_batch():
    """One update without noise equals the sum over the drawn rows divided by B, whatever was drawn."""
    x, y = blobs()
    sizes = set()
    for seed in range(3):
        steps, drawn = [], None
        for _ in range(2):
            model = lipdp.DP_Sequential([layers.BoundedInput((8,), norm=3.0), layers.SpectralDense(3, projected=False)])
            model.layers[1].kernel.assign(np.ones((8, 3)))
            model.compile(keras.optimizers.SGD(1.0), loss=losses.SparseCategoricalCrossentropy())
            if drawn is not None:
                logits = model.predict(x[drawn], verbose=0)
                softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
                bounded = keras.ops.convert_to_numpy(model.layers[0](x[drawn]))
                steps.append(-bounded.T @ (softmax - np.eye(3)[y[drawn]]) / 40)
            else:
                model.fit(x, y, steps_per_epoch=1, noise_multiplier=1e-4, seed=seed, accountant="rdp", **FIT)
                steps.append(weights(model)[0] - 1.0)
                drawn = model.run.driver.sampler.draw(0)
                sizes.add(len(drawn))
        np.testing.assert_allclose(steps[0], steps[1], atol=1e-4)
    assert len(sizes) > 1


def test_metrics_never_count_padding():
    x, y = blobs()
    model = mlp(optimizer=keras.optimizers.SGD(1e-12))
    logs = model.fit(x, y, steps_per_epoch=1, noise_multiplier=1.0, seed=1, **FIT).history
    drawn = model.run.driver.sampler.draw(0)
    expected = np.mean(model.predict(x[drawn], verbose=0).argmax(1) == y[drawn])
    np.testing.assert_allclose(logs["accuracy"][0], expected, atol=1e-6)


@pytest.mark.backend_free
def test_evaluation_reports_means():
    x, y = blobs()
    model = mlp()
    result = model.evaluate(x, y, verbose=0, return_dict=True, batch_size=64)
    values = keras.ops.convert_to_numpy(model.loss.call(y, model.predict(x, verbose=0)))
    np.testing.assert_allclose(result["loss"], values.mean(), rtol=1e-5)


@pytest.mark.slow
def test_empty_draws_are_noise_only_updates():
    model = mlp()
    model.fit(*blobs(), epochs=1, noise_multiplier=1.0, steps_per_epoch=12, **{**FIT, "batch_size": 1})
    assert int(model.optimizer.iterations.numpy()) == 12
    assert all(np.isfinite(w).all() for w in weights(model))


@pytest.mark.slow
def test_validation_split_is_not_counted():
    model = mlp()
    history = model.fit(*blobs(), epochs=1, epsilon=1.0, validation_split=0.25, **FIT).history
    assert model.run.plan.sampling.num_examples == (~held_out(blobs(), 0.25)).sum()
    assert "val_accuracy" in history


@pytest.mark.slow
@pytest.mark.backend_free
def test_training_metrics_can_be_left_out(tmp_path):
    x, y = blobs()
    model = mlp()
    log = tmp_path / "log.csv"
    history = model.fit(
        x,
        y,
        epochs=2,
        epsilon=1.0,
        training_metrics=False,
        validation_data=(x.copy(), y),
        callbacks=[keras.callbacks.CSVLogger(str(log))],
        **FIT,
    ).history
    assert set(history) == {"epsilon", "val_loss", "val_accuracy"}
    assert log.read_text().splitlines()[0].split(",") == ["epoch", "epsilon", "val_accuracy", "val_loss"]
    assert "These were logged" not in model.privacy.statement()
    model.fit(x, y, epochs=1, epsilon=2.0, **FIT)
    assert "accuracy" in model.privacy.statement()


@pytest.mark.slow
def test_callbacks_find_epsilon():
    model = mlp()
    stop = keras.callbacks.EarlyStopping(monitor="epsilon", mode="min", patience=1)
    history = model.fit(*blobs(), epochs=6, epsilon=1.0, callbacks=stop, **FIT).history
    assert len(history["epsilon"]) == 2


@pytest.mark.slow
@pytest.mark.backend_free
def test_datasets_give_the_same_run_as_arrays():
    import tensorflow as tf

    x, y = blobs()

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return x[i * 80 : (i + 1) * 80], y[i * 80 : (i + 1) * 80]

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    results = []
    for data in ((x, y), (rows,), (rows.batch(64),), (Rows(),)):
        model = mlp()
        model.fit(*data, epochs=1, noise_multiplier=1.0, seed=5, **FIT)
        results.append(weights(model)[0])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.backend_free
@pytest.mark.slow
def test_labels_by_their_name_in_a_dataset_of_dictionaries_or_a_file_of_arrays(tmp_path):
    tf = pytest.importorskip("tensorflow")
    x, y = blobs()
    np.savez(tmp_path / "rows.npz", x=x, kind=y)
    rows = tf.data.Dataset.from_tensor_slices({"kind": y, "x": x})
    results = []
    with np.load(tmp_path / "rows.npz") as file:
        for data, labels in ((x, y), (file, "kind"), (rows, "kind"), (rows.batch(50), "kind")):
            model = mlp()
            model.fit(data, labels, epochs=1, noise_multiplier=1.0, seed=5, **FIT)
            results.append(weights(model)[0])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    with pytest.raises(ValueError, match="y='label', and the columns 'kind', 'x'"):
        mlp().fit(rows, "label", epochs=1, noise_multiplier=1.0, **FIT)


@pytest.mark.backend_free
def test_a_dataset_that_repeats_its_rows_is_refused():
    """A row that stands in the data twice would cost twice what is stated."""
    tf = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices(blobs())
    for data in (
        rows.repeat(2),
        rows.batch(64).repeat(2).prefetch(1),
        rows.repeat(3).map(lambda x, y: (x, y)).batch(9),
    ):
        model = mlp()
        with pytest.raises(ValueError, match="several times.*repeat.*pass epochs="):
            model.fit(data, epochs=1, noise_multiplier=1.0, **FIT)
        assert model.privacy.updates == 0


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_accuracy_of_one_logit_splits_the_classes_at_zero():
    x, y = blobs()
    y = (y > 0).astype("int32")
    cases = [
        (losses.BinaryCrossentropy(), layers.SpectralDense(1), "accuracy"),
        (keras.losses.BinaryCrossentropy(from_logits=True), keras.layers.Dense(1), "acc"),
        ("binary_crossentropy", keras.layers.Dense(1), "binary_accuracy"),
        (keras.losses.BinaryCrossentropy(), keras.layers.Dense(1, activation="sigmoid"), "accuracy"),
    ]
    for loss, layer, name in cases:
        model = lipdp.DP_Sequential([layers.BoundedInput((x.shape[1],), norm=0.1), layer])
        model.compile("sgd", loss=loss, metrics=[name])
        y_pred = model.predict(x, verbose=0)[:, 0]
        threshold = 0.5 if getattr(layer, "activation", None) is keras.activations.sigmoid else 0.0
        right = np.mean((y_pred > threshold) == y)
        assert model.evaluate(x, y, verbose=0, return_dict=True)[name] == pytest.approx(right, abs=1e-6)
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
        again.build((None, x.shape[1]))
        assert again.compiled


@pytest.mark.backend_free
def test_the_epsilon_of_a_spent_budget_is_rounded_up():
    """As that of the statement: nobody is told that less was released."""
    model, (x, y) = mlp(), blobs()
    model.fit(x, y, epochs=1, noise_multiplier=1.7, **FIT)
    spent = model.privacy.epsilon()
    assert float(f"{spent:.4g}") < spent
    with pytest.raises(ValueError, match="budget is spent") as refused:
        model.fit(x, y, epochs=1, epsilon=spent / 2, **FIT)
    shown = float(re.search(r"released epsilon=([\d.]+)", str(refused.value))[1])
    assert spent <= shown <= spent * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy"])
def test_cross_entropies_by_name_take_logits_where_the_loss_does(kind):
    """As Keras has them, a metric of the name of the loss took logits for probabilities: it was not the loss."""
    x, y = blobs()
    if kind == "binary_crossentropy":
        y = (y > 0).astype("int32")[:, None]
    elif kind == "categorical_crossentropy":
        y = keras.utils.to_categorical(y, 3)
    outputs = 1 if kind == "binary_crossentropy" else 3
    theirs = getattr(keras.losses, kind.title().replace("_", ""))
    for loss in (kind, losses.get(kind), theirs(from_logits=True)):
        plain = keras.Sequential([keras.Input((x.shape[1],)), keras.layers.Dense(outputs)])
        model = lipdp.DP_Model.from_keras(plain)
        model.compile("sgd", loss=loss, metrics=[kind, *["AUC"] * (outputs == 1)])
        found = model.evaluate(x, y, verbose=0, return_dict=True)
        assert found[kind] == pytest.approx(found["loss"], rel=1e-5)
        if outputs == 1:
            area = keras.metrics.AUC(from_logits=True)
            area.update_state(y, model.predict(x, verbose=0))
            assert found["AUC"] == pytest.approx(float(area.result()), abs=1e-6)
    end = keras.layers.Dense(outputs, activation="sigmoid" if outputs == 1 else "softmax")
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((x.shape[1],)), end]))
    model.compile("sgd", loss=kind, metrics=[kind])
    found = model.evaluate(x, y, verbose=0, return_dict=True)
    assert found[kind] == pytest.approx(found["loss"], rel=1e-5)


PREPROCESSING = {
    "Normalization": (keras.layers.Normalization, {}, {"mean": 0.0, "variance": 1.0}),
    "Discretization": (keras.layers.Discretization, {"num_bins": 4}, {"bin_boundaries": [-1.0, 0.0, 1.0]}),
    "IntegerLookup": (keras.layers.IntegerLookup, {}, {"vocabulary": [-1, 0, 1]}),
}


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX has no lookups")
@pytest.mark.parametrize("name", PREPROCESSING)
def test_an_adapted_layer_is_warned_of_and_stated(name, tmp_path):
    (x, y), (kind, own, public) = blobs(), PREPROCESSING[name]
    x = np.round(x)
    adapted = kind(**own)
    adapted.adapt(x)
    for layer, warned in ((adapted, True), (kind(**public), False)):
        codes = [] if name == "Normalization" else [keras.layers.Embedding(40, 2), keras.layers.Flatten()]
        plain = keras.Sequential([keras.Input((x.shape[1],)), layer, *codes, keras.layers.Dense(3)])
        model = lipdp.DP_Model.from_keras(plain)
        model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(x, y, epochs=1, noise_multiplier=1.0, **FIT)
        assert any("reads off private rows" in str(w.message) for w in caught) == warned
        model.save(tmp_path / "model.keras")
        for privacy in (model.privacy, keras.saving.load_model(tmp_path / "model.keras").privacy):
            said = f"What `adapt` has read, unless from public data, by the layers: {layer.name}."
            assert (said in " ".join(privacy.statement().split())) == warned
            assert privacy.to_dict().get("adapted_layers", []) == [layer.name] * warned


@pytest.mark.backend_free
def test_an_adapted_layer_that_makes_the_rows_is_warned_of_and_stated():
    """As the guides of Keras have it: `adapt`, and then a `map`."""
    tf = pytest.importorskip("tensorflow")
    x, y = blobs()
    adapted, public = keras.layers.Normalization(), keras.layers.Normalization(mean=0.0, variance=1.0)
    adapted.adapt(x)
    public.build(x.shape)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
    for layer, warned in ((adapted, True), (public, False)):
        model = mlp()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            data = rows.map(lambda x, y: (layer(x), y))  # noqa: B023
            model.fit(data, epochs=1, noise_multiplier=1.0, **FIT)
        found = [str(w.message) for w in caught if "reads off private rows" in str(w.message)]
        assert [layer.name in text for text in found] == [True] * warned
        assert model.privacy.to_dict().get("adapted_layers", []) == [layer.name] * warned


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX has no lookups")
@pytest.mark.filterwarnings("ignore")  # of AutoGraph
def test_an_adapted_layer_in_a_pipeline_is_warned_of():
    """Keras' examples encode texts and tables there, and nobody said that the vocabulary was of private rows."""
    tf = pytest.importorskip("tensorflow")
    words, y = np.array([f"a word {i % 7}" for i in range(40)]), np.arange(40) % 3
    own = keras.layers.TextVectorization(output_sequence_length=4)
    own.adapt(words)
    public = keras.layers.TextVectorization(output_sequence_length=4, vocabulary=["a", "word"])
    space = keras.utils.FeatureSpace({"size": keras.utils.FeatureSpace.float_normalized()}, output_mode="concat")
    sizes = tf.data.Dataset.from_tensor_slices({"size": np.arange(40.0)}).batch(8)
    space.adapt(sizes)
    for encode, rows, shape, warned in ((own, words, 4, True), (public, words, 4, False), (space, sizes, 1, True)):
        rows = rows if encode is space else tf.data.Dataset.from_tensor_slices(rows).batch(8)
        labeled = tf.data.Dataset.zip((rows, tf.data.Dataset.from_tensor_slices(y).batch(8)))
        plain = keras.Sequential([keras.Input((shape,)), keras.layers.Dense(3)])
        model = lipdp.DP_Model.from_keras(plain)
        model.compile("adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(labeled.map(lambda x, y: (encode(x), y)), epochs=1, noise_multiplier=1.0, **FIT)  # noqa: B023
        assert any("reads off private rows" in str(w.message) for w in caught) == warned


@pytest.mark.slow
def test_several_updates_per_execution():
    model = mlp(steps_per_execution=5)
    model.fit(*blobs(), epochs=2, epsilon=1.0, **FIT)
    assert int(model.optimizer.iterations.numpy()) == model.run.ledger.updates == 20
    with pytest.raises(ValueError, match="steps_per_execution=3, 10 updates.*Compile with steps_per_execution=2"):
        mlp(steps_per_execution=3).fit(*blobs(), epochs=2, epsilon=1.0, **FIT)


def test_an_update_that_never_ran_is_not_charged():
    class Broken(keras.metrics.Metric):
        def update_state(self, y_true, y_pred, sample_weight=None):
            raise RuntimeError("broken metric")

        def result(self):
            return 0.0

    model = mlp(metrics=[Broken()])
    with pytest.raises(ValueError, match="metric 'broken'.*broken metric"):
        model.fit(*blobs(), epochs=1, epsilon=1.0, **FIT)
    assert model.run.ledger.updates == 0


def test_what_was_charged_before_an_update_that_never_ran_stays():
    def fail(batch, logs=None):
        raise RuntimeError(f"after the charge, at {model.run.ledger.updates}")

    model = mlp()
    model.fit(*blobs(), epochs=1, noise_multiplier=1.0, **FIT)
    before = model.run.ledger.to_json()
    with pytest.raises(RuntimeError, match="after the charge, at 11"):
        broken = keras.callbacks.LambdaCallback(on_train_batch_begin=fail)
        model.fit(*blobs(), epochs=1, noise_multiplier=2.0, callbacks=[broken], **FIT)
    assert model.run.ledger.to_json() == before and model.run.ledger.updates == 10


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.3, 0.0])
def test_an_update_that_was_cut_short_stays_charged(rate):
    """Weights or moments have moved, the counter has not: something was released."""

    class Fails:
        def holds(self, value):
            return True

        def __call__(self, value):
            raise RuntimeError("cut short")

    model = mlp(optimizer=keras.optimizers.Adam(rate), run_eagerly=True)
    model.layers[1].kernel.constraint = Fails()
    with pytest.raises(RuntimeError, match="cut short"):  # clipless training would refuse the constraint
        model.fit(*blobs(), epochs=1, noise_multiplier=1.0, strategy="dpsgd", **FIT)
    if keras.backend.backend() == "tensorflow":
        assert int(model.optimizer.iterations.numpy()) == 0
    assert model.run.ledger.updates == 1


def test_a_failure_later_on_keeps_what_was_charged():
    model = mlp()

    def fail(batch, logs):
        if batch == 3:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        model.fit(
            *blobs(),
            epochs=1,
            epsilon=1.0,
            callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail)],
            **FIT,
        )
    assert model.run.ledger.updates == int(model.optimizer.iterations.numpy()) == 4


@pytest.mark.slow
def test_nothing_trains_outside_of_fit():
    model = mlp()
    model.fit(*blobs(), epochs=1, epsilon=1.0, **FIT)
    before = weights(model)
    with pytest.raises(ValueError, match="train_on_batch"):
        model.train_on_batch(*blobs())
    optimizer = mlp().optimizer
    variable = keras.Variable(np.ones((3,), "float32"))
    optimizer.build([variable])
    optimizer.apply([keras.ops.ones((3,))], [variable])
    np.testing.assert_array_equal(variable.numpy(), np.ones(3))
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(model), strict=True))


@pytest.mark.slow
@pytest.mark.backend_free
def test_singular_values_stay_below_one_for_200_noisy_updates():
    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((10, 10, 2), norm=3.0),
            layers.SpectralConv2D(12, 3),
            layers.Abs(),
            layers.Flatten(),
            layers.SpectralDense(64),
            layers.Abs(),
            layers.SpectralDense(5),
        ]
    )
    model.compile(keras.optimizers.SGD(2.0, momentum=0.9), loss=losses.SparseCategoricalCrossentropy(temperature=4.0))
    x = np.random.default_rng(0).normal(size=(200, 10, 10, 2))
    y = np.arange(200) % 5
    largest = []

    def record(epoch, logs):
        kernels = [w for w in weights(model) if w.ndim > 1]
        largest.extend(np.linalg.norm(k.reshape(-1, k.shape[-1]).astype("float64"), 2) for k in kernels)

    model.fit(
        x,
        y,
        batch_size=20,
        epochs=10,
        steps_per_epoch=20,
        noise_multiplier=1.0,
        delta=DELTA,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=record)],
    )
    assert largest and max(largest) <= 1 + 1e-5
    assert min(largest) > 0.9


def test_weights_set_by_hand_are_projected_before_training():
    """Looked at before the first update, behind which the optimizer projects them in any case."""
    model, norms = mlp(), []
    model.set_weights([5.0 * w for w in weights(model)])

    def note(logs=None):
        norms.extend(np.linalg.norm(w, 2) for w in weights(model) if w.ndim == 2)

    look = keras.callbacks.LambdaCallback(on_train_begin=note)
    model.fit(*blobs(), steps_per_epoch=1, noise_multiplier=1.0, callbacks=[look], **FIT)
    assert norms and max(norms) <= 1 + 1e-5


@pytest.mark.slow
def test_functional_model_with_two_inputs():
    a, b = keras.Input((4,)), keras.Input((4,))
    x = layers.Concatenate()([layers.BoundedInput(norm=1.0)(a), layers.BoundedInput(norm=1.0)(b)])
    model = lipdp.DP_Model([a, b], layers.SpectralDense(3)(layers.Abs()(layers.SpectralDense(8)(x))))
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = blobs()
    model.fit([x[:, :4], x[:, 4:]], y, epochs=1, epsilon=1.0, **FIT)
    assert model.run.ledger.updates == 10


def one_step(model, **arguments):
    """The length by which one update without noise to speak of moves the last layer."""
    x, y = np.zeros((64, 4), "float32"), np.eye(3, dtype="float32")[np.zeros(64, int)]
    x[:, 0] = 1.0
    kernel = model.get_weights()[-1].copy()
    model.fit(x, y, batch_size=64, epochs=1, noise_multiplier=0.01, delta=DELTA, verbose=0, seed=0, **arguments)
    return np.linalg.norm(model.get_weights()[-1] - kernel) / 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("change", ["loss", pytest.param("layer", marks=pytest.mark.slow), "replaced"])
@pytest.mark.parametrize("strategy", ["clipless", "dpsgd"])
def test_what_changes_between_two_fits_changes_the_compiled_step_as_well(change, strategy):
    keras.utils.set_random_seed(0)
    entry, loss = keras.layers.Rescaling(1.0), losses.CategoricalCrossentropy(clip=1.0)
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), entry, layers.SpectralDense(3)])
    model.compile(keras.optimizers.SGD(1e-3), loss=loss)
    before = one_step(model, strategy=strategy)
    if change == "loss":
        loss.clip = 0.001
    elif change == "layer":
        entry.scale = 0.001
    else:
        model.loss = losses.CategoricalCrossentropy(clip=0.001)
    assert one_step(model, strategy=strategy) < 0.02 * before


@pytest.mark.slow
def test_updates_per_execution_may_change_between_two_fits():
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(3)])
    model.compile("sgd", loss="sparse_categorical_crossentropy", steps_per_execution=4)
    x, y = np.ones((64, 4), "float32"), np.zeros(64, "int32")
    arguments = {"batch_size": 16, "noise_multiplier": 1.0, "delta": DELTA, "verbose": 0}
    model.fit(x, y, **arguments)
    model.steps_per_execution = 1
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", True))
    model.fit(x, y, **arguments, callbacks=[stop])
    assert int(model.optimizer.iterations.numpy()) == model.run.ledger.updates == 5


@pytest.mark.slow
def test_clipped_gradients_are_those_of_sums_where_the_clip_follows_a_quantile():
    found = []
    for quantile in (None, 0.5):
        keras.utils.set_random_seed(0)
        first = layers.SpectralDense(4)
        model = lipdp.DP_Sequential(
            [layers.BoundedInput((4,), norm=1.0), first, layers.ClipGradient(1.5), layers.SpectralDense(3)]
        )
        model.compile(keras.optimizers.SGD(1.0), loss=losses.CategoricalCrossentropy(clip=1.0))
        kernel = model.get_weights()[0].copy()
        more = {} if quantile is None else {"quantile": quantile, "quantile_noise": 10.0}
        one_step(model, strategy=strategies.Clipless(**more), sampling="fixed_order")
        found.append(np.linalg.norm(model.get_weights()[0] - kernel))
    assert found[1] > 0.5 * found[0] > 0.1


@pytest.mark.backend_free
def test_functions_without_a_name_are_not_warned_of_where_nothing_is_saved():
    model = lipdp.DP_Sequential([keras.Input((8,)), keras.layers.Dense(3, activation=lambda x: x)])
    model.compile("sgd", loss=lambda y, outputs: keras.ops.mean(keras.ops.square(outputs - y), axis=-1))
    stop = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: setattr(model, "stop_training", True))
    x, labels = blobs()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        model.fit(x, keras.utils.to_categorical(labels), noise_multiplier=2.0, callbacks=[stop], **FIT)
    assert not [warning for warning in given if "includes a `lambda`" in str(warning.message)]
