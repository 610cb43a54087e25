"""Losses of Keras that are known to keep rows apart: whatever the shapes, no row moves the value of another."""

import functools
import itertools

import keras
import numpy as np
import pytest
from keras import layers as L

import lipdp
from lipdp import backend, gradients, losses, strategies
from lipdp.losses import per_example
from tests.adversarial.attack import ROWS, Target, watched

# Keras says so of categorical losses of one output.
pytestmark = pytest.mark.filterwarnings("ignore:In loss categorical:SyntaxWarning")
N, K = 7, 3
# Labels and outputs of one row.
LABELS = ((), (1,), (K,), (K, 1), (2, 1), (2, K), (N,), (N, 1))
OUTPUTS = ((), (1,), (K,), (2, 1), (2, K), (N, 1))


def made(name):
    loss = getattr(keras.losses, name)
    return loss() if isinstance(loss, type) else loss


def drawn(shape, ids):
    rng = np.random.default_rng(0)
    return rng.integers(0, 2, (N, *shape)) if ids else rng.uniform(0.1, 0.9, (N, *shape)).astype("float32")


def values(loss, y, outputs):
    return keras.ops.convert_to_numpy(losses.example_values(loss, y, outputs))


@pytest.mark.backend_free
@pytest.mark.parametrize("name", sorted(per_example._KNOWN))
def test_a_row_alone_has_the_value_that_it_has_among_others(name):
    loss, trained = made(name), 0
    for labels, outputs in itertools.product(LABELS, OUTPUTS):
        y, y_pred = drawn(labels, per_example._takes_ids(loss)), drawn(outputs, False)
        try:
            losses.check_per_example(loss, y, (None, *outputs))
        except ValueError:
            continue
        trained += 1
        together = values(loss, y, y_pred)
        assert together.shape == (N,)
        for i in (0, N - 1):
            alone = values(loss, y[i : i + 1], y_pred[i : i + 1])
            np.testing.assert_allclose(together[i : i + 1], alone, rtol=1e-5, atol=1e-6)
    # The function of this one has an argument without a default.
    assert trained > 1 or name == "categorical_generalized_cross_entropy"


def objects():
    """Functions and names of losses with the object that Keras makes of each."""
    for name in sorted(per_example._KNOWN):
        kind = getattr(keras.losses, name)
        if isinstance(kind, type) and not per_example._takes_ids(kind()):
            yield pytest.param(kind(), kind(), id=name)
            yield pytest.param(kind().fn, kind(), id=kind().fn.__name__)


@pytest.mark.backend_free
@pytest.mark.parametrize(("loss", "expected"), list(objects()))
@pytest.mark.parametrize("labels", [(), (1,)])
def test_labels_without_an_axis_mean_what_the_object_of_keras_computes(loss, expected, labels):
    y, y_pred = drawn(labels, False), drawn((1,), False)
    found = float(np.mean(values(loss, y, y_pred)))
    assert found == pytest.approx(float(expected(y, y_pred)), rel=1e-5)


@pytest.mark.parametrize("labels", [(), (1,)])
def test_generalized_cross_entropy_takes_class_ids(labels):
    loss, y, y_pred = keras.losses.CategoricalGeneralizedCrossEntropy(), drawn(labels, True), drawn((K,), False)
    found = values(loss, y, y_pred)
    np.testing.assert_allclose(found, (1 - y_pred[np.arange(N), y.reshape(-1)] ** 0.5) / 0.5, rtol=1e-5)
    losses.check_per_example(loss, y, (None, K))
    for wrong, outputs in ((y + K, K), (drawn((K,), True), K), (y, 1)):
        with pytest.raises(ValueError, match="class ids|do not fit"):
            losses.check_per_example(loss, wrong, (None, outputs))


class Renamed:
    """What `functools.wraps` makes: the name and module of a loss of Keras."""

    __name__, __module__ = "mean_squared_error", keras.losses.mean_squared_error.__module__

    def __call__(self, y_true, y_pred):
        return keras.ops.mean(y_pred) + y_pred[:, 0]


@pytest.mark.backend_free
def test_a_function_that_only_has_the_name_of_one_of_keras_is_not_known():
    loss = keras.losses.MeanSquaredError()
    loss.fn = Renamed()
    y, y_pred = drawn((K,), False), drawn((K,), False)
    assert not per_example._keeps_apart(loss, y, y_pred)
    with pytest.raises(ValueError, match="mixes examples"):
        losses.check_per_example(loss, y, (None, K))


def quantile(y_true, y_pred):
    return keras.ops.maximum(0.9 * (y_true - y_pred), 0.1 * (y_pred - y_true))


@pytest.mark.backend_free
def test_labels_that_are_broadcast_along_the_batch_are_named():
    with pytest.raises(ValueError, match=r"'batch', 1\), all rows with all others: .* as y\[..., None\]"):
        losses.check_per_example(quantile, np.zeros(6, "float32"), (None, 1))
    losses.check_per_example(quantile, np.zeros((6, 1), "float32"), (None, 1))


ENDS = {"poisson": "softplus", "categorical_hinge": "sigmoid", "kl_divergence": "sigmoid", "hinge": None}


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("poisson", ()),
        *(pytest.param(name, (), marks=pytest.mark.slow) for name in [*ENDS][1:]),
        pytest.param("poisson", (1,), marks=pytest.mark.slow),
    ],
)
def test_one_row_moves_an_update_by_the_clip_norm_at_most(name, labels):
    rng = np.random.default_rng(0)
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((4,)), L.Dense(1, ENDS[name])]))
    model.compile(watched(keras.optimizers.SGD)(0.05), loss=name)
    x = rng.normal(size=(ROWS + 2, 4)).astype("float32")
    y = rng.poisson(3, len(x)) if name == "poisson" else rng.integers(0, 2, len(x))
    x[ROWS:] *= 5
    y[ROWS:] = 30 if name == "poisson" else 1
    y = (2 * y - 1 if name == "hinge" else y).astype("float32").reshape(-1, *labels)
    assert Target(model, x, y, strategies.DPSGD(clip_norm=0.1)).ratios().max() <= 1.0 + 1e-4


# JAX compiles the first one for long.
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(keras.losses.CTC(), id="CTC", marks=pytest.mark.backend_free),
        pytest.param(keras.losses.ctc, id="ctc"),
    ],
)
def test_no_row_moves_another_by_ctc(loss):
    """It runs on whole batches: one row at a time `fit` took half a minute to begin, and four times as long a step."""
    rng, length, classes = np.random.default_rng(0), 9, 4
    y, y_pred = rng.integers(1, classes, (N, 3)), rng.normal(size=(N, length, classes)).astype("float32")
    y[2, 1:], y[3] = 0, 0  # shorter, and empty
    assert per_example._keeps_apart(loss, y, y_pred)
    losses.check_per_example(loss, y, (None, length, classes))

    def found(y, y_pred):
        """Values and gradients of all rows."""
        model = keras.Sequential([keras.Input((length, classes)), L.Dense(classes, kernel_initializer="identity")])
        forward, weight = backend.Forward(model), keras.ops.ones((len(y),))
        loss_values = functools.partial(losses.example_values, loss)
        record = gradients.capture(forward, y_pred, y, weight, loss_values=loss_values)
        norms = keras.ops.convert_to_numpy(sum(record.squared_norms()))
        return values(loss, y, y_pred), norms

    plain = found(y, y_pred)
    assert all(np.isfinite(each).all() for each in plain)
    for i in range(N):
        for ours, alone in zip(plain, found(y[i : i + 1], y_pred[i : i + 1]), strict=True):
            np.testing.assert_allclose(ours[i : i + 1], alone, rtol=1e-4, atol=1e-5)
    for wild in (1e6, -1e6, np.inf, np.nan):
        for labels in ([1, 1, 1], [0, 0, 0], [3, 2, 1]):
            other_y, other = y.copy(), y_pred.copy()
            other_y[-1], other[-1] = labels, wild * rng.choice([-1.0, 1.0], (length, classes))
            for ours, moved in zip(plain, found(other_y, other), strict=True):
                np.testing.assert_allclose(moved[:-1], ours[:-1], rtol=1e-4, atol=1e-5)
