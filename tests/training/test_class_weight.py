"""Weights of classes in `fit`: they act before gradients are clipped, and as in Keras."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import strategies
from lipdp.training.importance import ImportanceDriver

ROWS = 64
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ROWS, 6)).astype("float32")
Y = RNG.integers(0, 3, ROWS).astype("int32")
WEIGHTS = {0: 0.5, 2: 3.0}


def plain(outputs: int = 3) -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(outputs)])


def trained(y=Y, loss="sparse", *, class_weight=WEIGHTS, outputs=3, strategy=None, **options):
    """One update with all rows and next to no noise."""
    model = lipdp.DP_Model.from_keras(plain(outputs))
    if loss == "sparse":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.0), loss=loss)
    strategy = strategies.DPSGD(clip_norm=1e3) if strategy is None else strategy
    arguments = {"batch_size": ROWS, "sampling": "fixed_order", "noise_multiplier": 1e-9, "delta": 1e-9, "verbose": 0}
    history = model.fit(X, y, strategy=strategy, class_weight=class_weight, **{**arguments, **options})
    return model, history


def kernels(model) -> np.ndarray:
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


def one_step_of_keras(y=Y, loss=None, outputs=3, class_weight=WEIGHTS):
    model = plain(outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss is None else loss
    model.compile(keras.optimizers.SGD(1.0), loss=loss)
    history = model.fit(X, y, batch_size=ROWS, class_weight=class_weight, verbose=0)
    return kernels(model), history.history["loss"][0]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [strategies.DPSGD(clip_norm=1e3), strategies.DPSGD(1e3, clipping="per_layer")])
@pytest.mark.parametrize("microbatch", [pytest.param(None, marks=pytest.mark.slow), 24])
def test_one_update_is_that_of_keras_with_class_weight(strategy, microbatch):
    model, history = trained(strategy=strategy, microbatch_size=microbatch)
    weights, loss = one_step_of_keras()
    np.testing.assert_allclose(kernels(model), weights, atol=2e-5)
    np.testing.assert_allclose(history.history["loss"][0], loss, rtol=1e-5)
    assert np.abs(weights - one_step_of_keras(class_weight=None)[0]).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["ids in a column", "one-hot", "float ids"])
def test_labels_of_all_forms_name_their_class(labels):
    loss = None
    if labels == "ids in a column":
        y = Y[:, None]
    elif labels == "one-hot":
        y, loss = keras.utils.to_categorical(Y, 3), keras.losses.CategoricalCrossentropy(from_logits=True)
    else:
        y = Y.astype("float32")
    model, _ = trained(y, "sparse" if loss is None else loss)
    np.testing.assert_allclose(kernels(model), one_step_of_keras()[0], atol=2e-5)


@pytest.mark.slow
def test_binary_labels():
    y, loss = (Y > 1).astype("float32")[:, None], keras.losses.BinaryCrossentropy(from_logits=True)
    model, _ = trained(y, loss, outputs=1, class_weight={1: 7.0})
    expected, _ = one_step_of_keras(y, loss, outputs=1, class_weight={1: 7.0})
    np.testing.assert_allclose(kernels(model), expected, atol=2e-5)


@pytest.mark.parametrize(
    "strategy",
    [
        strategies.DPSGD(clip_norm=0.05),
        pytest.param(strategies.DPSGD(clip_norm=0.05, clipping="per_layer"), marks=pytest.mark.slow),
        pytest.param(strategies.DPSGD(clip_norm=0.05, quantile=0.5), marks=pytest.mark.slow),
        pytest.param(strategies.AdaCliP(clip_norm=0.05), marks=pytest.mark.slow),
    ],
    ids=["flat", "per layer", "quantile", "adaclip"],
)
def test_a_weight_moves_no_update_beyond_the_clip_norm(strategy):
    """However large a weight is: the difference that one row of a heavy class makes stays below the clip norm."""
    heavy = {2: 1e6}
    row = int(np.flatnonzero(Y == 2)[0])
    kept = np.arange(ROWS) != row
    noise = 1e-5 if getattr(strategy, "quantile", None) else 1e-9
    model, _ = trained(strategy=strategy, class_weight=heavy, noise_multiplier=noise)
    other = lipdp.DP_Model.from_keras(plain())
    other.compile(keras.optimizers.SGD(1.0), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    other.fit(
        X[kept], Y[kept], strategy=strategy, class_weight=heavy, batch_size=ROWS - 1, steps_per_epoch=1,
        sampling="fixed_order", noise_multiplier=noise, delta=1e-9, verbose=0,
    )  # fmt: skip
    start = kernels(lipdp.DP_Model.from_keras(plain()))
    # Updates are divided by the expected batch size, which differs by one row.
    moved = ROWS * (kernels(model) - start) - (ROWS - 1) * (kernels(other) - start)
    assert 0.9 * 0.05 < np.linalg.norm(moved) <= 0.05 * 1.01


@pytest.mark.slow
def test_importance_sampling_weighs_both_its_passes(monkeypatch):
    """A class of weight 0 has gradients of norm 0, by which its rows are drawn; and the others train as in Keras."""
    seen, all_norms = [], ImportanceDriver._all_norms
    monkeypatch.setattr(ImportanceDriver, "_all_norms", lambda *a: seen.append(all_norms(*a)) or seen[-1])
    only = {0: 0.0, 1: 0.0}
    asked = {"strategy": strategies.DPIS(clip_norm=1.0), "sampling": "poisson", "batch_size": 16}
    model, _ = trained(class_weight=only, noise_multiplier=None, epsilon=30.0, **asked)
    assert np.isfinite(kernels(model)).all()
    assert len(seen) > 0 and all((norms[Y == 2] > 0).all() and (norms[Y != 2] < 1e-12).all() for norms in seen)


@pytest.mark.slow
def test_other_weights_are_another_plan_with_noise_of_its_own():
    """With one seed, two runs that differ in the weights of classes alone must not share their noise."""
    asked = {"noise_multiplier": 1e3, "seed": 7}
    one, two, same = (kernels(trained(class_weight=w, **asked)[0]) for w in (WEIGHTS, {0: 0.5, 2: 3.1}, WEIGHTS))
    assert np.array_equal(one, same)
    assert np.abs(one - two).max() > 100.0


@pytest.mark.slow
def test_the_second_fit_takes_other_weights(tmp_path):
    """The compiled step is made anew, and a file remembers what the plan was."""
    model, _ = trained(class_weight={2: 3.0})
    before = kernels(model)
    model.fit(X, Y, strategy=strategies.DPSGD(clip_norm=1e3), class_weight={0: 0.0, 1: 0.0, 2: 1.0}, batch_size=ROWS,
              sampling="fixed_order", noise_multiplier=1e-9, delta=1e-9, verbose=0)  # fmt: skip
    alone = plain()
    start = np.split(before, np.cumsum([w.size for w in alone.get_weights()])[:-1])
    alone.set_weights([s.reshape(w.shape) for s, w in zip(start, alone.get_weights(), strict=True)])
    alone.compile(keras.optimizers.SGD(1.0), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    alone.fit(X, Y, class_weight={0: 0.0, 1: 0.0, 2: 1.0}, batch_size=ROWS, verbose=0)
    np.testing.assert_allclose(kernels(model), kernels(alone), atol=2e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.run.request.class_weight == ((0, 0.0), (1, 0.0), (2, 1.0))


@pytest.mark.parametrize(
    ("class_weight", "says"),
    [
        ([1.0, 2.0], "dictionary"),
        ("balanced", "dictionary"),
        ({}, "dictionary"),
        ({"a": 1.0}, "class 'a'"),
        ({-1: 1.0}, "class -1"),
        ({0: -1.0}, "weight -1.0 of class 0"),
        ({0: float("nan")}, "weight nan"),
        ({0: float("inf")}, "weight inf"),
        ({0: 1e39}, "weight 1e+39"),
        ({True: 1.0}, "class True"),
        ({0: "2"}, "weight '2'"),
    ],
)
def test_what_are_no_weights_is_refused(class_weight, says):
    with pytest.raises(ValueError, match="class_weight") as refusal:
        trained(class_weight=class_weight)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    "strategy", ["clipless", strategies.DPSGD(clipping="automatic")], ids=["clipless", "automatic"]
)
def test_strategies_that_weights_would_not_fit_refuse_them(strategy):
    model = lipdp.DP_Sequential(
        [lipdp.layers.BoundedInput((6,), norm=3.0), lipdp.layers.SpectralDense(3)], name="lipschitz"
    )
    model.compile(keras.optimizers.SGD(0.1), loss=lipdp.losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="class_weight with strategy") as refusal:
        model.fit(X, Y, epsilon=1.0, class_weight=WEIGHTS, strategy=strategy, verbose=0)
    assert "dpsgd" in str(refusal.value) and "MulticlassHKR" in str(refusal.value)
    assert model.run.ledger.updates == 0


@pytest.mark.slow
def test_labels_without_one_class_an_example_are_refused():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4)(inputs)
    model = lipdp.DP_Model(inputs, [keras.layers.Dense(3, name="a")(hidden), keras.layers.Dense(3, name="b")(hidden)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=[loss, loss])
    with pytest.raises(ValueError, match="several outputs"):
        model.fit(X, [Y, Y], epsilon=1.0, strategy="dpsgd", class_weight=WEIGHTS, verbose=0)
    model = lipdp.DP_Model(inputs, keras.layers.Reshape((2, 3, 1))(keras.layers.Dense(6)(inputs)))
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="labels of shape"):
        model.fit(X, np.zeros((ROWS, 2, 3, 1)), epsilon=1.0, strategy="dpsgd", class_weight=WEIGHTS, verbose=0)


def test_weighted_metrics_are_those_of_keras():
    some = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "metrics": ["accuracy"]}
    found = []
    for private in (True, False):
        model = lipdp.DP_Model.from_keras(plain(3)) if private else plain(3)
        model.compile(keras.optimizers.SGD(0.0), weighted_metrics=["accuracy"], **some)
        asked = {"strategy": "dpsgd", "sampling": "fixed_order", "noise_multiplier": 1.0, "delta": 1e-3}
        history = model.fit(X, Y, batch_size=ROWS, class_weight=WEIGHTS, verbose=0, **asked if private else {}).history
        found.append([history["accuracy"][0], history["weighted_accuracy"][0]])
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert abs(found[0][0] - found[0][1]) > 1e-3
