"""Metrics see private rows without noise: nothing that trains reads them, and they write to nothing else."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp

N = 24


def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 3)).astype("float32"), rng.normal(size=(N, 1)).astype("float32")


def watched():
    return keras.metrics.MeanAbsoluteError(name="error")


class Gate(L.Layer):
    def __init__(self, metric):
        super().__init__()
        self.metric = metric

    def call(self, inputs):
        return inputs / (1.0 + self.metric.result())


class Steered(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, metric):
        self.metric = metric

    def __call__(self, step):
        return 0.1 / (1.0 + self.metric.result())

    def get_config(self):
        return {}


class Shrinks(keras.constraints.Constraint):
    def __init__(self, metric):
        self.metric = metric

    def __call__(self, weights):
        return weights / (1.0 + self.metric.result())


def adaptive(metric):
    return lambda y, y_pred: ops.square(y - y_pred) / (1.0 + metric.result())


def trained(make, **kwargs):
    """Trains a model of `make(metric)`, which returns layers, an optimizer and a loss."""
    metric = watched()
    stack, optimizer, loss = make(metric)
    model = lipdp.DP_Sequential([keras.Input((3,)), *stack])
    eager = kwargs.pop("run_eagerly", False)
    model.compile(optimizer, loss=loss, metrics=[metric], run_eagerly=eager)
    how = {"noise_multiplier": 1.0, "strategy": "dpsgd", **kwargs}
    model.fit(*rows(), batch_size=8, steps_per_epoch=2, epochs=1, verbose=0, **how)
    return model


READERS = {
    "loss": lambda metric: ([L.Dense(1)], "sgd", adaptive(metric)),
    "layer": lambda metric: ([Gate(metric), L.Dense(1)], "sgd", "mse"),
    "schedule": lambda metric: ([L.Dense(1)], keras.optimizers.SGD(Steered(metric)), "mse"),
    "constraint": lambda metric: ([L.Dense(1, kernel_constraint=Shrinks(metric))], "sgd", "mse"),
}


@pytest.mark.parametrize("name", READERS)
def test_nothing_that_trains_reads_a_metric(name):
    with pytest.raises(ValueError, match="A metric holds what it has seen of private rows.*error/"):
        trained(READERS[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"run_eagerly": True},
        {"strategy": "adaclip"},
        {"strategy": "dpis", "noise_multiplier": None, "epsilon": 50.0, "delta": 1e-2},
        {"microbatch_size": 4},
    ],
)
def test_whatever_the_strategy(how):
    with pytest.raises(ValueError, match="A metric holds what it has seen of private rows.*error/"):
        trained(READERS["loss"], **how)


class Scaled(lipdp.losses.Loss):
    """A loss with a bound, which is no bound on what it may learn from a metric."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric

    def call(self, y_true, y_pred):
        return ops.sum(ops.abs(y_true - y_pred), axis=-1) / (1.0 + self.metric.result())

    def lipschitz(self, num_outputs):
        return 1.0


def test_without_clipping_either():
    stack = [lipdp.layers.BoundedInput(norm=1.0), lipdp.layers.SpectralDense(1)]
    with pytest.raises(ValueError, match="A metric holds what it has seen of private rows.*error/"):
        trained(lambda metric: (stack, "sgd", Scaled(metric)), strategy="clipless")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX hands metrics on, and no gradient sees them")
def test_nor_by_a_gradient_of_ones_own():
    import tensorflow as tf

    class Backward(Scaled):
        lipschitz = Scaled.lipschitz

        def call(self, y_true, y_pred):
            @tf.custom_gradient
            def apart(y_pred):
                return y_pred, lambda cotangent: cotangent / (1.0 + self.metric.result())

            return ops.sum(ops.abs(y_true - apart(y_pred)), axis=-1)

    stack = [lipdp.layers.BoundedInput(norm=1.0), lipdp.layers.SpectralDense(1)]
    with pytest.raises(ValueError, match="A metric holds what it has seen of private rows.*error/"):
        trained(lambda metric: (stack, "sgd", Backward(metric)), strategy="clipless")


class Collects(keras.metrics.Metric):
    """A metric that writes what it sees into a weight of the model."""

    def __init__(self, weight):
        super().__init__(name="collects")
        self.weight = weight

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.weight.assign(ops.sum(y_true) + ops.zeros(self.weight.shape))

    def result(self):
        return ops.zeros(())


@pytest.mark.parametrize("strategy", ["dpsgd", "dpis"])
def test_metrics_write_to_nothing_else(strategy):
    dense = L.Dense(1)
    model = lipdp.DP_Sequential([keras.Input((3,)), dense])
    model.compile("sgd", loss="mse", metrics=[Collects(dense.bias)])
    noise = {"epsilon": 50.0, "delta": 1e-2} if strategy == "dpis" else {"noise_multiplier": 1.0}
    with pytest.raises(ValueError, match="none of its own variables"):
        model.fit(*rows(), batch_size=8, steps_per_epoch=2, epochs=1, verbose=0, strategy=strategy, **noise)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.Variable")
@pytest.mark.parametrize("strategy", ["dpsgd", "dpis"])
def test_metrics_keep_nothing_in_variables_of_tensorflow(strategy):
    import tensorflow as tf

    model = lipdp.DP_Sequential([keras.Input((3,)), L.Dense(1)])
    model.compile("sgd", loss="mse", metrics=[Collects(tf.Variable(0.0, trainable=False))])
    noise = {"epsilon": 50.0, "delta": 1e-2} if strategy == "dpis" else {"noise_multiplier": 1.0}
    with pytest.raises(ValueError, match="changes a tf.Variable"):
        model.fit(*rows(), batch_size=8, steps_per_epoch=2, epochs=1, verbose=0, strategy=strategy, **noise)


@pytest.mark.parametrize("strategy", ["dpsgd", "clipless", "dpis"])
def test_without_training_metrics_no_loss_is_left_behind(strategy):
    seen = []

    class Asks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(float(self.model.get_metrics_result().get("loss", 0.0)))

    stack = [lipdp.layers.BoundedInput(norm=1.0), lipdp.layers.SpectralDense(2)]
    model = lipdp.DP_Sequential([keras.Input((3,)), *stack])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    noise = {"epsilon": 50.0, "delta": 1e-2} if strategy == "dpis" else {"noise_multiplier": 1.0}
    how = {"batch_size": 8, "steps_per_epoch": 2, "epochs": 1, "verbose": 0, "training_metrics": False}
    model.fit(rows()[0], np.arange(N) % 2, strategy=strategy, callbacks=[Asks()], **how, **noise)
    assert seen and set(seen) == {0.0}


def test_metrics_and_losses_are_logged_as_ever():
    model = trained(lambda metric: ([L.Dense(1)], "sgd", "mse"))
    assert model.history.history["error"][0] > 0.0 and model.history.history["loss"][0] > 0.0
    # Outside of a step everything may be read.
    assert float(model.get_metrics_result()["error"]) > 0.0
