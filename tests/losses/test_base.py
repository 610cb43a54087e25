"""The base class: arguments, the limit on the gradient, what a loss of one's own needs."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import losses
from lipdp.losses.base import row_norm


class Linear(losses.Loss):
    """A loss of one's own: the sum of the outputs, with a wrong constant on purpose."""

    def value(self, y_true, y_pred):
        return ops.sum(self.standardize(y_true, y_pred)[1], axis=-1)

    def gradient(self, y_true, y_pred):
        return ops.ones_like(self.standardize(y_true, y_pred)[1])

    def exact_lipschitz(self, num_outputs):
        return 0.5


@pytest.mark.slow
def test_limit_is_in_the_graph_even_if_the_constant_is_wrong(autodiff):
    y = z = np.ones((3, 4), "float32")
    gradient = autodiff(lambda x: Linear().call(y, x), z)
    np.testing.assert_allclose(gradient, 0.25, rtol=1e-5)
    assert np.linalg.norm(gradient.astype("float64"), axis=-1).max() <= 0.5


@pytest.mark.parametrize("num_outputs", [1, 7, 1000, 20000])
def test_clipping_never_overshoots(num_outputs):
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1.0, 1e6):
        z = (scale * rng.normal(size=(32, num_outputs))).astype("float32")

        class Identity(Linear):
            def gradient(self, y_true, y_pred, z=z):
                return ops.convert_to_tensor(z)

        gradient = np.asarray(Identity(clip=1e-4).bounded_gradient(z, z), "float64")
        norms = np.linalg.norm(gradient, axis=-1)
        assert norms.max() <= 1e-4
        expected = np.minimum(1e-4, np.linalg.norm(z.astype("float64"), axis=-1))
        np.testing.assert_allclose(norms, expected, rtol=2 * (num_outputs + 16) * 2**-24)


def test_lipschitz_is_the_smaller_of_constant_and_clip():
    assert Linear().lipschitz(3) == 0.5
    assert Linear(clip=0.1).lipschitz(3) == 0.1
    assert Linear(clip=2.0).lipschitz(3) == 0.5
    assert isinstance(Linear(clip=np.float32(0.25)).lipschitz(np.int64(3)), float)


@pytest.mark.parametrize("clip", [0, -1.0, math.nan, math.inf, True, "1"])
def test_clip_out_of_range(clip):
    with pytest.raises(ValueError, match="`clip` must be a finite number above 0 or None. Received: clip="):
        losses.Huber(clip=clip)


@pytest.mark.parametrize("num_outputs", [0, -1, 2.5, True, None])
def test_number_of_outputs_out_of_range(num_outputs):
    with pytest.raises(ValueError, match="`num_outputs` must be a positive integer"):
        losses.Huber().lipschitz(num_outputs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_is_refused(dtype):
    with pytest.raises(ValueError, match="Losses need dtype='float32'"):
        losses.Huber(dtype=dtype)


@pytest.mark.slow
def test_low_precision_outputs_are_computed_in_float32():
    z = ops.convert_to_tensor(np.ones((2, 3)), dtype="bfloat16")
    loss = losses.SparseCategoricalCrossentropy()
    assert keras.backend.standardize_dtype(loss([0, 1], z).dtype) == "float32"
    assert keras.backend.standardize_dtype(loss.gradient([0, 1], z).dtype) == "float32"


def test_misspelt_argument():
    with pytest.raises(TypeError, match="temprature"):
        losses.CategoricalCrossentropy(temprature=8.0)


def test_unfinished_loss_says_what_is_missing():
    loss = losses.Loss()
    for missing in ("value", "gradient"):
        with pytest.raises(NotImplementedError, match=missing):
            getattr(loss, missing)([[0.0]], [[0.0]])
    with pytest.raises(NotImplementedError, match="exact_lipschitz"):
        loss.lipschitz(1)


def test_value_keeps_its_precision_at_large_outputs():
    # 1e6 + 1e-3 would be lost if the value were written as (value - s) + s.
    z = np.array([[1e6, 1e6 - 1.0]], "float32")
    loss = losses.CategoricalCrossentropy()
    np.testing.assert_allclose(loss.call([[1.0, 0.0]], z), [math.log1p(math.exp(-1.0))], rtol=1e-5)


def test_row_norm_neither_overflows_nor_divides_by_zero():
    x = np.array([[3e30, 4e30], [3e-25, 4e-25], [0.0, 0.0], [1.0, 0.0]], "float32")
    np.testing.assert_allclose(np.asarray(row_norm(x))[:, 0], [5e30, 5e-25, 0.0, 1.0], rtol=1e-6)
    assert np.isnan(np.asarray(row_norm(np.array([[np.nan, 1.0], [np.inf, 1.0]], "float32")))).all()


def test_labels_of_another_shape_are_refused_in_the_graph():
    cases = (
        (losses.CategoricalCrossentropy(), (4,), "use keras.utils.to_categorical"),
        (losses.CategoricalCrossentropy(), (4, 2), r"must have shape \(batch, 3\)"),
        (losses.SparseCategoricalCrossentropy(), (4, 3), "Make class ids of one-hot labels"),
        (losses.MulticlassHinge(), (4, 2), r"shape \(batch, 3\) or \(batch,\) or \(batch, 1\)"),
        (losses.Huber(), (4,), "use keras.utils.to_categorical"),
    )
    for loss, shape, message in cases:
        with pytest.raises(ValueError, match=message):
            loss(np.zeros(shape), np.zeros((4, 3)))
        with pytest.raises(ValueError, match=message):
            loss.check_labels(np.zeros(shape), 3)


def test_many_outputs_cost_no_accuracy():
    """A quarter of the limit was given up to rounding at 2^22 outputs, all of it at 2^24."""
    z = np.full((1, 2**20 + 3), 0.1, "float32")

    class Identity(Linear):
        def gradient(self, y_true, y_pred):
            return ops.convert_to_tensor(z)

    gradient = np.asarray(Identity(clip=1.0).bounded_gradient(z, z), "float64")
    assert 0.499 <= np.linalg.norm(gradient) <= 0.5
