"""Losses of Keras as one value per example; those that mix examples are refused."""

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import losses
from lipdp.losses import per_example

Y = np.array([0, 1, 2, 1, 0, 2, 1])
ONE_HOT = np.eye(3, dtype="float32")[Y]


def one_number(y_true, y_pred):
    return keras.ops.mean(y_pred)


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


@pytest.mark.parametrize(
    "loss", [keras.losses.Hinge(), keras.losses.SquaredHinge(), keras.losses.hinge, "squared_hinge"]
)
@pytest.mark.parametrize("columns", [1, 2])
def test_hinges_take_bits_for_signs_row_by_row(loss, columns):
    """Keras does where all labels of the batch are bits: one other label would move the gradients of all rows."""
    loss = losses.resolve(loss)
    rng = np.random.default_rng(0)
    y = np.array([0, 1, 0, -1, 1, 2], "float32")
    y = y if columns == 1 else np.stack([y, np.abs(y)], axis=1)
    outputs = rng.normal(size=(6, columns)).astype("float32")
    losses.check_per_example(loss, y, (None, columns))
    values = ops.convert_to_numpy(losses.example_values(loss, y, outputs))
    rows = np.split(y.reshape(6, columns), 6)
    of_keras = [np.sum(ops.convert_to_numpy(loss(row, outputs[i : i + 1]))) for i, row in enumerate(rows)]
    np.testing.assert_allclose(values, of_keras, rtol=1e-5)
    others = y.copy()
    others[-3:] = 1.0
    np.testing.assert_array_equal(ops.convert_to_numpy(losses.example_values(loss, others, outputs))[:3], values[:3])


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
@pytest.mark.parametrize("own", [False, True])
def test_places_that_a_mask_hides_are_left_out_as_keras_does(reduction, own):
    class Own(keras.losses.SparseCategoricalCrossentropy):  # one row at a time
        pass

    rng = np.random.default_rng(0)
    y, tokens = rng.integers(0, 3, (4, 5)), rng.integers(1, 9, (4, 5))
    for row, length in enumerate((5, 3, 1, 0)):
        tokens[row, length:] = 0
    inputs = keras.Input((5,), dtype="int32")
    inside = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3)(inside))
    loss = (Own if own else keras.losses.SparseCategoricalCrossentropy)(from_logits=True, reduction=reduction)
    values = keras.ops.convert_to_numpy(losses.example_values(loss, y, model(tokens)))
    alone = [float(loss(y[i : i + 1], model(tokens[i : i + 1]))) for i in range(4)]
    np.testing.assert_allclose(values, alone, rtol=1e-5, atol=1e-6)
    assert values[3] == 0.0  # as padding rows of a batch


def test_a_mask_of_whole_rows_takes_their_loss():
    outputs = keras.layers.Masking()(np.array([[0.0, 0.0], [1.0, 2.0]], "float32"))
    values = losses.example_values(keras.losses.MeanSquaredError(), np.ones((2, 2), "float32"), outputs)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(values), [0.0, 0.5])


def test_a_mask_of_other_axes_than_those_of_the_loss_is_left_alone():
    outputs = keras.layers.Masking()(np.array([[[0.0], [0.0]], [[1.0], [3.0]]], "float32"))
    values = losses.example_values(
        lambda y, y_pred: keras.ops.mean(y_pred, axis=(1, 2)) - y, np.zeros(2, "float32"), outputs
    )
    np.testing.assert_allclose(keras.ops.convert_to_numpy(values), [0.0, 2.0])


@pytest.mark.slow
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
        (one_number, ONE_HOT),
        (lambda y_true, y_pred: y_pred[:, 0] - keras.ops.mean(y_pred[:, 0]), ONE_HOT),
        (lambda y_true, y_pred: y_pred[:, 0] * keras.ops.mean(y_true), ONE_HOT),
    ],
)
def test_losses_that_mix_examples(loss, y):
    why = "one number for the whole batch. Return one value for each" if loss is one_number else "mixes examples"
    with pytest.raises(ValueError, match=why) as error:
        losses.check_per_example(loss, y, (None, 3))
    assert error.match("set its `axis`" if isinstance(loss, keras.losses.Loss) else "by `axis=-1`")


class MeanSquaredError(keras.losses.Loss):
    """Of the name of one of Keras'."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(y_pred) + y_pred[:, 0]


def changed(attribute):
    loss = keras.losses.MeanSquaredError()
    setattr(loss, attribute, one_number)
    return loss


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("loss", "labels", "outputs", "known"),
    [
        (keras.losses.MeanSquaredError(), (7, 3), (7, 3), True),
        (keras.losses.mean_squared_error, (7, 3), (7, 3), True),
        (keras.losses.SparseCategoricalCrossentropy(), (7,), (7, 3), True),
        (keras.losses.SparseCategoricalCrossentropy(), (7, 1), (7, 3), True),
        (keras.losses.CategoricalCrossentropy(), (7, 4, 3), (7, 4, 3), True),
        (keras.losses.BinaryCrossentropy(), (7,), (7, 1), True),
        (losses.Huber(), (7, 3), (7, 3), True),
        (keras.losses.CategoricalCrossentropy(axis=0), (7, 3), (7, 3), False),
        (keras.losses.CategoricalCrossentropy(axis=-2), (7, 3), (7, 3), False),
        (keras.losses.CosineSimilarity(axis=-3), (7, 4, 3), (7, 4, 3), False),
        (keras.losses.CosineSimilarity(axis=0), (7, 3), (7, 3), False),
        (keras.losses.CosineSimilarity(), (7, 3), (7, 3), True),
        (keras.losses.SparseCategoricalCrossentropy(axis=0), (7, 3), (7, 3, 3), False),
        (keras.losses.cosine_similarity, (7, 3), (7, 3), True),
        (keras.losses.MeanSquaredError(), (7,), (7, 3), False),
        (keras.losses.MeanSquaredError(), (7, 3), (7, 4, 3), False),
        (keras.losses.Dice(), (7, 3), (7, 3), False),
        (keras.losses.Tversky(), (7, 3), (7, 3), False),
        (keras.losses.Circle(), (7,), (7, 3), False),
        (MeanSquaredError(), (7, 3), (7, 3), False),
        (changed("call"), (7, 3), (7, 3), False),
        (changed("fn"), (7, 3), (7, 3), False),
        (one_number, (7, 3), (7, 3), False),
    ],
)
def test_losses_that_are_known_to_keep_rows_apart(loss, labels, outputs, known):
    found = per_example._keeps_apart(loss, *(keras.ops.ones(shape) for shape in (labels, outputs)))
    assert found == known


def logarithm(y_true, y_pred):
    return keras.ops.log(keras.ops.cast(y_true, "float32") - 2.0) * y_pred[:, 0]


LATE = np.array([5, 6, 7, 5, 6, 7])


@pytest.mark.parametrize("kind", ["int64", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "mixing",
    [
        lambda y, p: logarithm(y, p) + keras.ops.mean(p),
        lambda y, p: keras.ops.where(keras.ops.cast(y, "float32") < 7.0, keras.ops.mean(p), p[:, 0]),
        lambda y, p: p[:, 0] / keras.ops.maximum(1.0, keras.ops.max(p) / 100.0),
        lambda y, p: p[:, 0] * (keras.ops.mean(p) if p.shape[0] is None or p.shape[0] > 8 else 1.0),
    ],
    ids=("logarithm", "label", "outlier", "number"),
)
def test_losses_that_mix_somewhere(mixing, kind):
    with pytest.raises(ValueError, match="mixes examples"):
        losses.check_per_example(mixing, LATE.astype(kind), (None, 3))
    losses.check_per_example(logarithm, LATE.astype(kind), (None, 3))


def test_what_is_refused_does_not_depend_on_private_labels():
    square = lambda y, p: keras.ops.mean(keras.ops.square(y - p), axis=-1)  # noqa: E731
    for loss, sizes in ((keras.losses.MeanSquaredError(), (3e38, np.nan)), (square, (0.0, 1.0, 1e25, np.nan, np.inf))):
        for size in sizes:
            losses.check_per_example(loss, np.full((6, 2), size, "float32"), (None, 2))
    # Nor can such a loss mix: it sees one row.
    values = keras.ops.convert_to_numpy(losses.example_values(_logs, LATE, np.ones((6, 3), "float32")))
    assert values.shape == (6,)
    losses.check_per_example(_logs, LATE, (None, 3))


def _logs(y, p):
    return keras.ops.log(-1.0 - keras.ops.abs(p[:, 0])) + keras.ops.mean(p)


def test_own_losses_get_one_row():
    seen = []

    def own(y_true, y_pred):
        seen.append(y_pred.shape[0])
        return keras.ops.sum(keras.ops.abs(y_true - y_pred), axis=-1)

    values = losses.example_values(own, ONE_HOT, np.zeros((7, 3), "float32"))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(values), np.ones(7))
    assert set(seen) == {1}
    # Labels that would be broadcast along the batch are taken row by row as well.
    loss, outputs = keras.losses.MeanSquaredError(), np.arange(9, dtype="float32").reshape(3, 3)
    values = losses.example_values(loss, np.array([0.0, 1.0, 2.0], "float32"), outputs)
    expected = [np.mean((outputs[i] - i) ** 2) for i in range(3)]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(values), expected)


@pytest.mark.parametrize("y", [[-1, 1, 1, -1], [0, 1, 1, 0]])
@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_signs_and_bits_are_accepted(y, kind):
    losses.check_per_example(keras.losses.Hinge(), np.array(y, kind)[:, None], (None, 1))


@pytest.mark.parametrize("loss", ["BinaryCrossentropy", "BinaryFocalCrossentropy", "binary_crossentropy"])
def test_signs_are_no_bits(loss):
    """The loss fell without end, and the budget was gone."""
    loss = getattr(keras.losses, loss)
    loss = loss(from_logits=True) if isinstance(loss, type) else loss
    signs = np.array([-1, 1, 1, -1])
    for labels in (signs, signs[:, None].astype("float32")):
        with pytest.raises(ValueError, match=r"2 of 4 rows are not. Received: .*-1.*\(y \+ 1\) / 2"):
            losses.check_per_example(loss, labels, (None, 1))
        losses.check_per_example(loss, (labels + 1) / 2, (None, 1))
    losses.check_per_example(loss, signs > 0, (None, 1))
    with pytest.raises(ValueError, match="labels must lie in"):
        losses.check_per_example(loss, np.array([[0.0, 1.0], [0.5, 2.0]]), (None, 2))
    # A mask may hide places of a sequence.
    losses.check_per_example(loss, np.array([[[0.0], [-1.0]]]), (None, 2, 1))


@pytest.mark.backend_free
def test_of_a_source_only_rows_with_bits_count():
    check = losses.label_check(keras.losses.BinaryCrossentropy(), (None, 1))
    check(np.zeros((0,), "float32"))
    check(np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 1\]"):
        check(np.array([-1.0]))


def test_labels_are_checked():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match="class ids"):
        losses.check_per_example(loss, np.array([0, 3]), (None, 3))
    losses.check_per_example(
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1), np.array([0, -1]), (None, 3)
    )
    for ignored in (-1, 255):
        with pytest.raises(ValueError, match=f"as places without a label, pass ignore_class={ignored} to"):
            losses.check_per_example(loss, np.array([0, ignored, 1]), (None, 3))
    with pytest.raises(ValueError, match="Number the classes from 0"):
        losses.check_per_example(loss, np.array([0, 255, 4]), (None, 3))
    with pytest.raises(ValueError, match="labels of shape"):
        losses.check_per_example(keras.losses.MeanSquaredError(), np.zeros((7, 2), "float32"), (None, 3))


def test_names_mean_losses_of_lipdp_first():
    assert isinstance(losses.resolve("categorical_crossentropy"), losses.Loss)
    assert losses.resolve("mse") is keras.losses.mean_squared_error
    with pytest.raises(ValueError, match="Did you mean"):
        losses.resolve("categorical_crossentropi")


def test_places_of_an_ignored_class_do_not_divide():
    """As in Keras, but of each row alone."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    logits = np.random.default_rng(0).normal(size=(4, 6, 5)).astype("float32")
    y = np.where(np.arange(6) < np.array([[2], [2], [6], [0]]), 3, -1)
    found = ops.convert_to_numpy(losses.example_values(loss, y, logits))
    for i, count in enumerate([2, 2, 6]):
        np.testing.assert_allclose(found[i], loss(y[i : i + 1, :count], logits[i : i + 1, :count]), rtol=1e-6)
    assert found[3] == 0.0
    assert losses.example_values(loss, y[:2], logits[:2]).shape == (2,)


@pytest.mark.backend_free
@pytest.mark.parametrize("kind", [keras.losses.MeanSquaredError, losses.MeanAbsoluteError])
def test_a_call_of_the_whole_batch_is_not_left_out_in_silence(kind):
    """It was: the model learned another loss than Keras would have."""

    class Own(kind):
        def __call__(self, y_true, y_pred, sample_weight=None):
            return 2.0 * super().__call__(y_true, y_pred, sample_weight)

    class Plain(kind):
        pass

    with pytest.raises(ValueError, match="Own with a `__call__` of its own. Put what it does into `call`"):
        losses.resolve(Own())
    assert isinstance(losses.resolve(Plain()), Plain)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.MeanSquaredError(),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mse", "binary_crossentropy", "mean_absolute_error")),
        keras.losses.Huber(),
    ],
)
def test_outputs_without_an_axis_of_their_own_are_named(loss):
    """It said that the loss mixes examples, or that `num_outputs` is None."""
    with pytest.raises(ValueError, match=r"an output of shape \(batch,\).*an output \(batch, 1\)"):
        losses.check_per_example(losses.resolve(loss), np.zeros(7, "float32"), (None,))
    losses.check_per_example(lambda y, outputs: ops.square(y - outputs), np.zeros(7, "float32"), (None,))
