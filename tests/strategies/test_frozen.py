"""A strategy is a value: what one model needs never stands on it."""

import dataclasses

import keras
import numpy as np
import pytest

from lipdp import strategies
from tests.helpers.models import DELTA, blobs, mlp, weights

FIT = {"batch_size": 40, "epochs": 2, "noise_multiplier": 1.0, "delta": DELTA, "seed": 3, "verbose": 0}


def other():
    """A model whose loss lets through ten times the gradient."""
    model = mlp()
    loss = type(model.loss).from_config({**model.loss.get_config(), "clip": 1.0})
    model.compile("sgd", loss=loss)
    return model


@pytest.mark.slow
def test_a_second_model_changes_nothing_for_the_first():
    strategy = strategies.Clipless(quantile=0.5)

    def fitted(callbacks):
        model = mlp()
        loss = type(model.loss).from_config({**model.loss.get_config(), "clip": 0.1})
        model.compile("sgd", loss=loss, run_eagerly=keras.backend.backend() == "tensorflow")
        model.fit(*blobs(), strategy=strategy, callbacks=callbacks, **FIT)
        return weights(model)

    second = other()
    during = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: strategy.calibrate(second, second.loss, 40)
    )
    for alone, beside in zip(fitted([]), fitted([during]), strict=True):
        np.testing.assert_array_equal(alone, beside)


@pytest.mark.backend_free
@pytest.mark.parametrize("make", strategies._BY_NAME.values())
def test_strategies_cannot_be_changed(make):
    strategy = make()
    name = dataclasses.fields(strategy)[0].name
    with pytest.raises(AttributeError):
        setattr(strategy, name, getattr(strategy, name))
    assert make() == strategy == type(strategy).from_config(strategy.get_config())


@pytest.mark.backend_free
def test_a_strategy_of_ones_own_cannot_be_changed_either():
    class Own(strategies.Strategy):
        pass

    with pytest.raises(AttributeError, match="A strategy is frozen"):
        Own().limit = 1.0
