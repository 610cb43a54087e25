"""Standardized kernels: mean 0 and one norm for each filter, and nothing changes that is so already."""

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import strategies
from lipdp.norms import StandardizedKernel


def called(value, norm=1.0):
    return ops.convert_to_numpy(StandardizedKernel(norm)(np.asarray(value, "float32")))


def filters(kernel):
    return kernel.reshape(-1, kernel.shape[-1]).astype("float64")


@pytest.mark.parametrize("shape", [(3, 3, 16, 8), (1, 1, 16, 4), (3, 3, 1, 5), (7, 3)])
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e12])
def test_filters_have_mean_zero_and_one_norm(shape, scale):
    rng = np.random.default_rng(0)
    given = scale * (rng.normal(size=shape) + 0.5)
    found = filters(called(given, 0.5))
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), 0.5, rtol=1e-5)
    centered = filters(given) - filters(given).mean(axis=0)
    cosine = (found * centered).sum(axis=0) / (0.5 * np.linalg.norm(centered, axis=0))
    np.testing.assert_allclose(cosine, 1.0, atol=1e-5)


def test_what_is_standardized_stays_bit_for_bit():
    once = called(np.random.default_rng(1).normal(size=(3, 3, 64, 50)))
    assert np.array_equal(called(once), once)
    # One filter of all moves, by less than what is near and by more.
    for step, moves in ((5e-5, False), (1e-3, True)):
        changed = once.copy()
        changed[..., 3] *= 1.0 + step
        assert np.array_equal(called(changed), changed) is not moves
        np.testing.assert_allclose(called(changed), once, rtol=2e-4)
    shifted = once + np.float32(1e-3)
    np.testing.assert_allclose(called(shifted), once, atol=1e-6)


def test_equal_weights_become_zero_and_nan_stays():
    given = np.full((3, 3, 2, 3), 0.3, "float32")
    given[..., 1] = np.random.default_rng(2).normal(size=(3, 3, 2))
    given[0, 0, 0, 2] = np.nan
    found = filters(called(given))
    assert not found[:, 0].any() and np.linalg.norm(found[:, 1]) == pytest.approx(1.0, abs=1e-5)
    assert np.isnan(found[:, 2]).all()
    assert np.isfinite(called(np.full((4, 2), 3e38))).all()


def test_bad_arguments_are_refused():
    for norm in (0.0, -1.0, 1e9, "1", float("nan")):
        with pytest.raises(ValueError, match="norm"):
            StandardizedKernel(norm)
    for shape in ((3,), (1, 1, 1, 4)):
        with pytest.raises(ValueError, match="two weights or more.*Leave the constraint out"):
            called(np.ones(shape))


def network():
    keras.utils.set_random_seed(4)
    hidden = keras.layers.Dense(6, activation="tanh", kernel_constraint=StandardizedKernel())
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((5,)), hidden, keras.layers.Dense(3)]))
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Stopped(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise Stopped


def test_a_seeded_run_goes_on_to_the_same_end(tmp_path):
    """From weights of which not one bit was changed: noise that is drawn again hides no second gradient."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(32, 5)).astype("float32"), rng.integers(0, 3, 32)

    def fitted(path, *more):
        model = network()
        arguments = {"batch_size": 8, "epochs": 4, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 3, "verbose": 0}
        checkpoint = lipdp.callbacks.Checkpoint(tmp_path / path)
        model.fit(x, y, strategy=strategies.DPSGD(), callbacks=[checkpoint, *more], **arguments)
        return model

    whole = fitted("whole.weights.h5")
    with pytest.raises(Stopped):
        fitted("parts.weights.h5", StopAt())
    parts = fitted("parts.weights.h5")
    assert parts.run.ledger.updates == whole.run.ledger.updates == 16
    for a, b in zip(parts.get_weights(), whole.get_weights(), strict=True):
        assert np.array_equal(a, b)
    kernel = whole.trainable_variables[0]
    assert np.array_equal(called(kernel), ops.convert_to_numpy(kernel))
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1.0, atol=1e-4)
