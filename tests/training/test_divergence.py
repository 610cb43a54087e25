"""Training whose weights are lost stops before it is charged for more, and goes on at a lower rate."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp.callbacks import Checkpoint
from tests.helpers.models import DELTA, blobs

X, Y = blobs()
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
FIT = {"batch_size": 40, "epochs": 2, "delta": DELTA, "verbose": 0, "strategy": "dpsgd", "epsilon": 4.0}


def linear(rate):
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]))
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss=LOSS)
    return model


class Lost(keras.callbacks.Callback):
    """Loses the weights after an update, as an overflow would."""

    def __init__(self, update, value=np.nan):
        super().__init__()
        self.update, self.value, self.made = update, value, 0

    def on_train_batch_end(self, batch, logs=None):
        self.made += 1
        if self.made == self.update:
            bias = self.model.trainable_variables[1]
            bias.assign(np.full(bias.shape, self.value, "float32"))


def test_the_rest_of_the_budget_is_kept_and_can_be_used():
    model = linear(1e30)
    before = model.get_weights()
    with pytest.raises(
        FloatingPointError, match="diverged: after update 1 .*learning_rate=1e.30.* 19 updates"
    ) as error:
        model.fit(X, Y, **FIT)
    assert "lower learning rate" in str(error.value)
    spent = model.privacy.epsilon()
    assert model.privacy.updates == 1 and 0.0 < spent < 2.0

    with pytest.raises(ValueError, match="not finite.*`compile` again with a lower"):
        model.fit(X, Y, **FIT)
    model.set_weights(before)
    plan = model.run.plan
    model.compile(keras.optimizers.SGD(0.1), loss=LOSS)
    model.fit(X, Y, **FIT)
    assert model.run.plan is plan and model.privacy.updates == 20
    assert spent < model.privacy.epsilon() <= 4.0
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.backend_free
def test_an_optimizer_that_has_diverged_is_refused_with_good_weights():
    model = linear(0.1)
    model.fit(X, Y, **FIT | {"steps_per_epoch": 1, "epochs": 1})
    momentum = next(v for v in model.optimizer.variables if "momentum" in v.path)
    momentum.assign(np.full(momentum.shape, np.inf, "float32"))
    before = model.run.ledger.to_json()
    with pytest.raises(ValueError, match="momentum.*not finite"):
        model.fit(X, Y, **FIT | {"epsilon": 8.0})
    assert model.run.ledger.to_json() == before


@pytest.mark.backend_free
@pytest.mark.parametrize(("lost", "seen"), [(1, 2), (2, 4), (9, 10)])
def test_it_is_seen_soon(lost, seen):
    model = linear(0.1)
    with pytest.raises(FloatingPointError):
        model.fit(X, Y, callbacks=[Lost(lost)], **FIT)
    assert model.privacy.updates == seen


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_checkpoint_keeps_the_last_good_weights(tmp_path):
    path = tmp_path / "run.weights.h5"
    model = linear(0.1)
    with pytest.raises(FloatingPointError):
        model.fit(X, Y, callbacks=[Lost(12), Checkpoint(path, every=1)], **FIT)
    made = model.privacy.updates
    other = linear(0.1)
    other.load_weights(path)
    assert all(np.isfinite(w).all() for w in other.get_weights())
    # A new process goes on from there, and pays for what was lost.
    again = linear(0.1)
    again.fit(X, Y, callbacks=[Checkpoint(path)], **FIT)
    assert again.privacy.updates == 20 and 12 <= made < 20
    assert again.privacy.epsilon() <= 4.0


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_last_update_of_a_plan_warns():
    model = linear(0.1)
    with pytest.warns(UserWarning, match="diverged.*last update of the plan"):
        model.fit(X, Y, callbacks=[Lost(19)], **FIT)
    assert model.privacy.updates == 20


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_loss_has_no_say():
    """It is computed on the private data without noise: what follows it is outside of the guarantee."""
    model = linear(0.1)

    class Loss(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            logs["loss"] = np.nan

    model.fit(X, Y, callbacks=[Loss()], **FIT)
    assert model.privacy.updates == 20
