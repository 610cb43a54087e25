"""Weights of examples in `fit`: a part of their rows, which act before gradients are clipped, and as in Keras."""

import dataclasses

import keras
import numpy as np
import pytest

import lipdp
from lipdp import models, sampling, strategies
from lipdp.training.importance import ImportanceDriver

ROWS = 64
RNG = np.random.default_rng(6)
X = RNG.normal(size=(ROWS, 6)).astype("float32")
Y = RNG.integers(0, 3, ROWS).astype("int32")
WEIGHTS = RNG.uniform(0.0, 4.0, ROWS) * (RNG.random(ROWS) < 0.8)
ALL = {"batch_size": ROWS, "sampling": "fixed_order", "noise_multiplier": 1e-9, "delta": 1e-9, "verbose": 0}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def plain() -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(3)])


def trained(sample_weight=WEIGHTS, x=X, y=Y, strategy=None, metrics=None, **options):
    """One update with all rows and next to no noise."""
    model = lipdp.DP_Model.from_keras(plain())
    model.compile(keras.optimizers.SGD(1.0), loss=LOSS, metrics=metrics)
    strategy = strategies.DPSGD(clip_norm=1e3) if strategy is None else strategy
    return model, model.fit(x, y, strategy=strategy, sample_weight=sample_weight, **{**ALL, **options}).history


def kernels(model) -> np.ndarray:
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [strategies.DPSGD(clip_norm=1e3), strategies.DPSGD(1e3, clipping="per_layer")])
@pytest.mark.parametrize("microbatch", [None, 24])
@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_update_is_that_of_keras(strategy, microbatch, eager):
    model = lipdp.DP_Model.from_keras(plain())
    model.compile(keras.optimizers.SGD(1.0), loss=LOSS, metrics=["accuracy"], run_eagerly=eager)
    fit = {**ALL, "strategy": strategy, "microbatch_size": microbatch}
    history = model.fit(X, Y, sample_weight=WEIGHTS[:, None], **fit).history
    usual = plain()
    usual.compile(keras.optimizers.SGD(1.0), loss=LOSS, metrics=["accuracy"])
    expected = usual.fit(X, Y, batch_size=ROWS, sample_weight=WEIGHTS, verbose=0).history
    np.testing.assert_allclose(kernels(model), kernels(usual), atol=2e-5)
    # Keras divides the loss that it shows by the sum of the weights, or by their number, depending on its version.
    scale = {1.0, WEIGHTS.mean()}
    assert any(np.isclose(history["loss"][0] / s, expected["loss"][0], rtol=1e-4) for s in scale)
    np.testing.assert_allclose(history["accuracy"], expected["accuracy"], rtol=1e-5)
    assert np.abs(kernels(model) - kernels(trained(None)[0])).max() > 1e-2


@pytest.mark.parametrize(
    "strategy",
    [
        strategies.DPSGD(clip_norm=0.05),
        pytest.param(strategies.DPSGD(clip_norm=0.05, clipping="per_layer"), marks=pytest.mark.slow),
        pytest.param(strategies.DPSGD(clip_norm=0.05, quantile=0.5), marks=pytest.mark.slow),
        pytest.param(strategies.DPSGD(clip_norm=0.05, augmentation_multiplicity=2), marks=pytest.mark.slow),
        pytest.param(strategies.AdaCliP(clip_norm=0.05), marks=pytest.mark.backend_free),
    ],
    ids=["flat", "per layer", "quantile", "copies", "adaclip"],
)
@pytest.mark.parametrize("weight", [*(pytest.param(w, marks=pytest.mark.slow) for w in (1.0, 1e6)), 1e38])
def test_no_weight_moves_an_update_beyond_the_clip_norm(strategy, weight):
    noise = 1e-5 if getattr(strategy, "quantile", None) else 1e-9
    heavy, row = np.ones(ROWS), 17
    heavy[row] = weight
    kept = np.arange(ROWS) != row
    model, _ = trained(heavy, strategy=strategy, noise_multiplier=noise)
    rest = {"batch_size": ROWS - 1, "steps_per_epoch": 1}
    other, _ = trained(heavy[kept], X[kept], Y[kept], strategy, noise_multiplier=noise, **rest)
    start = kernels(lipdp.DP_Model.from_keras(plain()))
    moved = ROWS * (kernels(model) - start) - (ROWS - 1) * (kernels(other) - start)
    assert np.linalg.norm(moved) <= 0.05 * 1.01
    assert weight == 1e38 or np.linalg.norm(moved) > 0.9 * 0.05


@pytest.mark.slow
def test_an_example_of_weight_zero_moves_nothing():
    """As if it were not there, also where its label is one that no class has."""
    weight, other = np.ones(ROWS), Y.copy()
    weight[5] = 0.0
    other[5] = (other[5] + 1) % 3
    one, two = trained(weight)[0], trained(weight, y=other)[0]
    np.testing.assert_allclose(kernels(one), kernels(two), atol=1e-7)


@pytest.mark.slow
def test_importance_sampling_weighs_both_its_passes(monkeypatch):
    seen, all_norms = [], ImportanceDriver._all_norms
    monkeypatch.setattr(ImportanceDriver, "_all_norms", lambda *a: seen.append(all_norms(*a)) or seen[-1])
    asked = {"strategy": strategies.DPIS(clip_norm=1.0), "sampling": "poisson", "batch_size": 16, "epochs": 2}
    model, _ = trained((Y == 2).astype("float32"), noise_multiplier=None, epsilon=30.0, metrics=["accuracy"], **asked)
    assert np.isfinite(kernels(model)).all()
    assert len(seen) == 2 and all((norms[Y == 2] > 0).all() and (norms[Y != 2] < 1e-12).all() for norms in seen)


@pytest.mark.slow
def test_rows_of_a_person_are_weighted_before_they_are_averaged():
    ids = np.repeat(np.arange(ROWS // 2), 2)
    model, _ = trained(person_ids=ids, batch_size=ROWS // 2)
    usual = plain()
    usual.compile(keras.optimizers.SGD(1.0), loss=LOSS)
    usual.fit(X, Y, batch_size=ROWS, sample_weight=WEIGHTS, verbose=0)
    np.testing.assert_allclose(kernels(model), kernels(usual), atol=2e-5)


def outputs() -> keras.Model:
    keras.utils.set_random_seed(4)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    return keras.Model(inputs, [keras.layers.Dense(3, name="a")(hidden), keras.layers.Dense(1, name="b")(hidden)])


@pytest.mark.slow
def test_several_outputs_share_the_weight_of_their_row():
    y = {"a": Y, "b": X[:, :1]}
    asked = {"loss": {"a": LOSS, "b": "mse"}, "loss_weights": {"a": 1.0, "b": 0.5}, "metrics": {"b": ["mae"]}}
    model, usual = lipdp.DP_Model.from_keras(outputs()), outputs()
    for one in (model, usual):
        one.compile(keras.optimizers.SGD(1.0), **asked)
    ours = model.fit(X, y, strategy=strategies.DPSGD(clip_norm=1e3), sample_weight=WEIGHTS, **ALL).history
    theirs = usual.fit(X, [Y, X[:, :1]], batch_size=ROWS, sample_weight=[WEIGHTS, WEIGHTS], verbose=0).history
    np.testing.assert_allclose(kernels(model), kernels(usual), atol=2e-5)
    np.testing.assert_allclose(ours["b_mae"], theirs["b_mae"], rtol=1e-4)
    assert {"a_loss", "b_loss"} <= set(ours)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "random_allocation", "shuffle"])
def test_weights_are_drawn_with_their_rows(sampling):
    """Rows of another class have weight 0: whoever is drawn, only class 2 is learned."""
    model, _ = trained((Y == 2) * 5.0, sampling=sampling, batch_size=16, epochs=40)
    assert (model.predict(X, verbose=0).argmax(axis=1) == 2).all()


@pytest.mark.slow
def test_weights_beside_a_source_whose_labels_are_read_as_well():
    class Rows:
        def __len__(self):
            return ROWS

        def __getitem__(self, index):
            return X[index], Y[index]

    model, _ = trained(x=Rows(), y=None)
    np.testing.assert_allclose(kernels(model), kernels(trained()[0]), atol=1e-6)


class Batches(keras.utils.PyDataset):
    """Two batches of rows, with as many parts as are asked for."""

    def __init__(self, *parts):
        super().__init__()
        self._parts = parts

    def __len__(self):
        return 2

    def __getitem__(self, number):
        return tuple(part[number * ROWS // 2 : (number + 1) * ROWS // 2] for part in self._parts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["PyDataset", "tf.data"])
def test_weights_of_a_dataset(kind):
    data = Batches(X, Y, WEIGHTS[:, None])
    if kind == "tf.data":
        data = pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices((X, Y, WEIGHTS)).batch(10)
    model, _ = trained(None, data, None)
    np.testing.assert_allclose(kernels(model), kernels(trained()[0]), atol=1e-6)
    with pytest.raises(ValueError, match="The dataset yields weights.*sample_weight"):
        trained(WEIGHTS, data, None)


@pytest.mark.slow
def test_weights_do_not_go_with_rows_in_random_order():
    """A weight that comes to another row says something of that row's update, and of its own."""
    rows = pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices
    shuffled = rows((X, Y)).shuffle(ROWS).batch(10)
    with pytest.raises(ValueError, match=r"`sample_weight`.*`\.shuffle\(\)`"):
        trained(WEIGHTS, shuffled, None, sampling="poisson")
    trained(None, rows((X, Y, WEIGHTS)).shuffle(ROWS).batch(10), None, sampling="poisson", batch_size=16)


@pytest.mark.slow
def test_a_dataset_may_say_that_it_has_no_weights():
    class Unweighted(Batches):
        def __getitem__(self, number):
            return (*super().__getitem__(number), None)

    np.testing.assert_allclose(kernels(trained(None, Unweighted(X, Y), None)[0]), kernels(trained(None)[0]), atol=1e-6)


def test_a_dataset_of_other_parts_is_refused():
    with pytest.raises(ValueError, match=r"\(inputs, labels, weights\). Received: 4 elements"):
        trained(None, Batches(X, Y, WEIGHTS, WEIGHTS), None)
    with pytest.raises(ValueError, match="`sample_weight` must hold one weight.*Received: -1"):
        trained(None, Batches(X, Y, -np.ones(ROWS)), None)


@pytest.mark.slow
def test_a_recipe_takes_weights_of_datasets():
    """For training and for validation, as it takes arrays."""
    asked = {"epsilon": 3.0, "seed": 3, "verbose": 0, "delta": 1e-3, "training_metrics": False}
    recipe = dataclasses.replace(models.table_recipe((6,), 3, ROWS, epsilon=3.0, method="dpsgd"), epochs=2)
    found = []
    for data in (
        {"x": Batches(X, Y, WEIGHTS), "validation_data": Batches(X, Y, WEIGHTS)},
        {"x": X, "y": Y, "sample_weight": WEIGHTS, "validation_data": (X, Y, WEIGHTS)},
    ):
        keras.utils.set_random_seed(1)
        found.append(recipe.fit(**data, **asked))
    np.testing.assert_array_equal(*map(kernels, found))
    shown, weighted = found[0].history.history["val_loss"][-1], found[0].evaluate(Batches(X, Y, WEIGHTS), verbose=0)[0]
    np.testing.assert_allclose(shown, weighted, rtol=1e-5)
    assert abs(shown - found[0].evaluate(X, Y, verbose=0)[0]) > 1e-3
    with pytest.raises(TypeError, match="sample_weight"):
        recipe.fit(Batches(X, Y, WEIGHTS), sample_weight=WEIGHTS, **asked)


@pytest.mark.slow
def test_rows_that_are_held_out_keep_their_weights():
    weight = np.where(Y == 2, 3.0, 0.0)
    model = lipdp.DP_Model.from_keras(plain())
    model.compile(keras.optimizers.SGD(0.0), loss=LOSS)
    asked = {**ALL, "batch_size": 16}
    history = model.fit(
        X, Y, strategy="dpsgd", sample_weight=weight, validation_split=0.4, steps_per_epoch=1, **asked
    ).history
    (_, _), (x, y) = sampling.split(X, sampling.with_weights(Y, weight), 0.4)
    held_out = model.evaluate(x, y.labels, sample_weight=y.weight, verbose=0)
    np.testing.assert_allclose(history["val_loss"][0], held_out, rtol=1e-5)
    assert abs(held_out - model.evaluate(x, y.labels, verbose=0)) > 1e-3


@pytest.mark.slow
def test_other_weights_have_noise_of_their_own():
    asked = {"noise_multiplier": 1e3, "seed": 7}
    one, two, same = (kernels(trained(w, **asked)[0]) for w in (WEIGHTS, WEIGHTS * 2, WEIGHTS))
    assert np.array_equal(one, same)
    assert np.abs(one - two).max() > 100.0


@pytest.mark.slow
def test_a_fit_with_weights_follows_one_without():
    model = lipdp.DP_Model.from_keras(plain())
    model.compile(keras.optimizers.SGD(0.1), loss=LOSS, metrics=["accuracy"])
    for weight in (None, WEIGHTS, None):
        history = model.fit(X, Y, strategy="dpsgd", sample_weight=weight, **ALL).history
        assert np.isfinite(history["loss"][0])
    assert model.privacy.updates == 3


class Endless:
    """A source as it may be written: no index is too large for it."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return 1.0


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (np.ones(ROWS - 1), "shape (63,) for 64 examples"),
        (np.ones((ROWS, 2)), "shape (64, 2)"),
        (-np.ones(ROWS), "Received: -1"),
        (np.full(ROWS, np.nan), "Received: nan"),
        (np.full(ROWS, 1e300), "Received: inf"),
        (["heavy"] * ROWS, "no array of numbers"),
        (1.0, "shape ()"),
        ({"a": np.ones(ROWS)}, "a dictionary"),
        (Endless(), "an object of type Endless"),
    ],
    ids=["too few", "two columns", "negative", "nan", "too large", "text", "a number", "a dictionary", "a source"],
)
def test_what_are_no_weights_is_refused(weight, says):
    with pytest.raises(ValueError, match="sample_weight") as refusal:
        trained(weight)
    assert says in str(refusal.value)


def test_weights_of_classes_and_examples_are_not_both_taken():
    with pytest.raises(ValueError, match="either classes or examples"):
        trained(class_weight={0: 2.0})


@pytest.mark.parametrize(
    "strategy", ["clipless", strategies.DPSGD(clipping="automatic")], ids=["clipless", "automatic"]
)
def test_strategies_that_weights_would_not_fit_refuse_them(strategy):
    model = lipdp.DP_Sequential([lipdp.layers.BoundedInput((6,), norm=3.0), lipdp.layers.SpectralDense(3)])
    model.compile(keras.optimizers.SGD(0.1), loss=lipdp.losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="sample_weight with strategy") as refusal:
        model.fit(X, Y, epsilon=1.0, sample_weight=WEIGHTS, strategy=strategy, verbose=0)
    assert "dpsgd" in str(refusal.value)
    assert model.run.ledger.updates == 0


def test_the_loss_of_weighted_rows_is_that_of_keras_whatever_the_batch_size():
    """Weights are factors; a mean over their sum changed with the batches."""
    model, usual = lipdp.DP_Model.from_keras(outputs()), outputs()
    y, weight = [Y, X[:, :1]], np.repeat([0.0, 2.0], [ROWS // 2, ROWS - ROWS // 2])
    for one in (model, usual):
        one.compile("sgd", loss=[LOSS, "mse"], loss_weights=[1.0, 0.5], weighted_metrics=[[], ["mae"]])
    model.set_weights(usual.get_weights())
    expected = usual.evaluate(X, y, sample_weight=[weight, weight], verbose=0, return_dict=True)
    for size in (5, ROWS):
        asked = {"sample_weight": weight, "batch_size": size, "verbose": 0, "return_dict": True}
        found = model.evaluate(X, y, **asked)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.backend_free
@pytest.mark.parametrize("several", [pytest.param(False, marks=pytest.mark.slow), True])
def test_metrics_are_those_of_keras(several):
    """Keras weights those of `weighted_metrics` alone, in training too; padding rows have no say in either."""
    made = outputs if several else plain
    model, usual = lipdp.DP_Model.from_keras(made()), made()
    y, loss = ([Y, X[:, :1]], [LOSS, "mse"]) if several else (Y, LOSS)
    some = [["accuracy"], ["mae"]] if several else ["accuracy"]
    for one in (model, usual):
        one.compile(keras.optimizers.SGD(0.0), loss=loss, metrics=some, weighted_metrics=some)
    model.set_weights(usual.get_weights())
    weight = np.where(Y == 2, 3.0, 0.5).astype("float32")
    expected = usual.evaluate(X, y, sample_weight=weight, verbose=0, return_dict=True, batch_size=ROWS)
    asked = {"strategy": "dpsgd", "sample_weight": weight, "microbatch_size": 24, **ALL}
    history = model.fit(X, y, validation_data=(X, y, weight), **asked).history
    found = model.evaluate(X, y, sample_weight=weight, verbose=0, return_dict=True, batch_size=7)
    names = {name for name in expected if name.endswith(("accuracy", "mae"))}
    assert len(names) == (4 if several else 2)
    for name in names:
        values = (found[name], history[name][-1], history[f"val_{name}"][-1])
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, err_msg=name)
    assert len({expected[name] for name in names}) == len(names)
