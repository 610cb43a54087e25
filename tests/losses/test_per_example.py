"""Losses of Keras as one value per example; those that mix examples are refused."""

import keras
import numpy as np
import pytest

from lipdp import losses

Y = np.array([0, 1, 2, 1, 0, 2, 1])
ONE_HOT = np.eye(3, dtype="float32")[Y]


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), Y),
        (keras.losses.CategoricalCrossentropy(from_logits=True, reduction="sum"), ONE_HOT),
        (keras.losses.MeanSquaredError(), ONE_HOT),
        (keras.losses.Huber(reduction=None), ONE_HOT),
        (keras.losses.BinaryFocalCrossentropy(from_logits=True), ONE_HOT),
        (keras.losses.Dice(axis=1), ONE_HOT),
        (lambda y_true, y_pred: keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1), ONE_HOT),
    ],
)
def test_values_are_what_keras_gives_for_one_row(loss, y):
    losses.check_per_example(loss, y, (None, 3))
    outputs = np.random.default_rng(0).normal(size=(7, 3)).astype("float32")
    values = keras.ops.convert_to_numpy(losses.example_values(loss, y, outputs))
    alone = [np.sum(keras.ops.convert_to_numpy(loss(y[i : i + 1], outputs[i : i + 1]))) for i in range(7)]
    np.testing.assert_allclose(values, alone, rtol=1e-5, atol=1e-6)


def test_images_are_averaged_or_summed_as_keras_does():
    y, outputs = (np.random.default_rng(i).normal(size=(3, 4, 5, 2)).astype("float32") for i in (0, 1))
    for reduction in ("sum", "sum_over_batch_size"):
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        losses.check_per_example(loss, y, (None, 4, 5, 2))
        values = keras.ops.convert_to_numpy(losses.example_values(loss, y, outputs))
        expected = float(loss(y, outputs)) * (1 if reduction == "sum" else 3)
        assert values.sum() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        (keras.losses.Dice(), ONE_HOT),
        (keras.losses.Tversky(), ONE_HOT),
        (keras.losses.Circle(), Y),
        (lambda y_true, y_pred: keras.ops.mean(y_pred), ONE_HOT),
        (lambda y_true, y_pred: y_pred[:, 0] - keras.ops.mean(y_pred[:, 0]), ONE_HOT),
        (lambda y_true, y_pred: y_pred[:, 0] * keras.ops.mean(y_true), ONE_HOT),
    ],
)
def test_losses_that_mix_examples(loss, y):
    with pytest.raises(ValueError, match="mixes examples"):
        losses.check_per_example(loss, y, (None, 3))


def logarithm(y_true, y_pred):
    return keras.ops.log(keras.ops.cast(y_true, "float32") - 2.0) * y_pred[:, 0]


LATE = np.array([5, 6, 7, 5, 6, 7])


@pytest.mark.parametrize("kind", ["int64", "float32"])
@pytest.mark.parametrize(
    "mixing",
    [
        lambda y, p: logarithm(y, p) + keras.ops.mean(p),
        lambda y, p: keras.ops.where(keras.ops.cast(y, "float32") < 7.0, keras.ops.mean(p), p[:, 0]),
        lambda y, p: keras.ops.where(keras.ops.abs(keras.ops.cast(y, "float32") - 6.0) < 0.5, keras.ops.mean(p), 1.0),
    ],
    ids=("logarithm", "end", "inside"),
)
def test_losses_that_mix_on_the_labels_that_are_there(mixing, kind):
    with pytest.raises(ValueError, match="mixes examples"):
        losses.check_per_example(mixing, LATE.astype(kind), (None, 3))
    losses.check_per_example(logarithm, LATE.astype(kind), (None, 3))


def test_a_loss_that_is_finite_nowhere_is_refused():
    with pytest.raises(ValueError, match="cannot be tested for cross-example dependence.*_logs.*Keep it finite"):
        losses.check_per_example(_logs, LATE, (None, 3))
    # Times and events: a range for each entry, so that no time is 0.
    times = np.array([[3.0, 0.0], [0.5, 1.0], [2.0, 1.0]], "float32")
    losses.check_per_example(lambda y, p: keras.ops.log(y[:, 0]) * p[:, 0] + y[:, 1], times, (None, 2))
    # A loss of outputs above 1, and labels that are missing.
    losses.check_per_example(lambda y, p: keras.ops.log(p[:, 0] - 1.0), LATE, (None, 3))
    missing = np.array([[1.0, np.nan], [np.nan, np.nan], [2.0, np.nan]], "float32")
    losses.check_per_example(keras.losses.MeanSquaredError(), missing, (None, 2))


def _logs(y, p):
    return keras.ops.log(-1.0 - keras.ops.abs(p[:, 0])) + keras.ops.mean(p)


@pytest.mark.parametrize("y", [[-1, 1, 1, -1], [0, 1, 1, 0]])
@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_signs_and_bits_are_accepted(y, kind):
    losses.check_per_example(keras.losses.Hinge(), np.array(y, kind)[:, None], (None, 1))


def test_labels_are_checked():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match="class ids"):
        losses.check_per_example(loss, np.array([0, 3]), (None, 3))
    losses.check_per_example(
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1), np.array([0, -1]), (None, 3)
    )
    with pytest.raises(ValueError, match="labels of shape"):
        losses.check_per_example(keras.losses.MeanSquaredError(), np.zeros((7, 2), "float32"), (None, 3))


def test_names_mean_losses_of_lipdp_first():
    assert isinstance(losses.resolve("categorical_crossentropy"), losses.Loss)
    assert losses.resolve("mse") is keras.losses.mean_squared_error
    with pytest.raises(ValueError, match="Did you mean"):
        losses.resolve("categorical_crossentropi")
