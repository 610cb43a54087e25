"""Small Keras models, and the gradient that a strategy hands to the optimizer."""

import keras
import numpy as np
from keras import ops

import lipdp
from lipdp import backend, strategies

FIT = {"batch_size": 20, "delta": 1e-3, "verbose": 0}
BATCH = 16
SECRET = np.arange(1, 9, dtype="uint32")


def plain(features=6, classes=3, hidden=0, **compile_arguments):
    """A compiled private model of plain Keras layers; with `hidden=0` multinomial logistic regression."""
    keras.utils.set_random_seed(0)
    middle = [keras.layers.Dense(hidden, activation="tanh"), keras.layers.Dropout(0.0)] if hidden else []
    model = keras.Sequential([keras.Input((features,)), *middle, keras.layers.Dense(classes)])
    model = lipdp.DP_Model.from_keras(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss=loss, metrics=["accuracy"], **compile_arguments)
    return model


def rows(number, features=6, classes=3, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    x = scale * rng.normal(size=(number, features))
    return x.astype("float32"), rng.integers(0, classes, number).astype("int32")


def overflowing(model, number):
    """Examples for a model whose first layer has large weights: one of which an activation is NaN, one of norm 1e30.

    Returns:
        Finite inputs with the two, without them, labels, and the rows of the two.
    """
    first = next(layer for layer in model.layers if isinstance(layer, keras.layers.Dense))
    kernel = ops.convert_to_numpy(first.kernel).copy()
    kernel[0], kernel[1] = 30.0, -30.0
    first.kernel.assign(kernel)
    first.activation = keras.activations.linear  # TensorFlow's tanh swallows NaN
    x, y = rows(number)
    x[:, :2] *= 0.01
    wild = x.copy()
    wild[3, :2] = 3e38  # infinity less infinity
    wild[5, 2:] *= 1e30
    return wild, x, y, (3, 5)


def averaged(model, strategy, data, state=None, microbatches=1):
    """What the optimizer receives, and the private count: arrays, from `(x, y, weight)`."""
    calibration, forward = strategy.calibrate(model, model.loss, BATCH), backend.Forward(model)
    state = [ops.convert_to_tensor(a) for a in state or strategy.initial_state(model.trainable_variables)]
    sums = counts = None
    for i, part in enumerate(zip(*(np.array_split(d, microbatches) for d in data), strict=True)):
        part = tuple(ops.convert_to_tensor(d) for d in part)
        (new, more, _), _, _ = strategy.microbatch(calibration, forward, state, i, SECRET, part, BATCH)
        sums = new if sums is None else [a + b for a, b in zip(sums, new, strict=True)]
        counts = more if counts is None else [a + b for a, b in zip(counts, more, strict=True)]
    gradient = strategy.after_noise(strategy.average(sums, state, BATCH), state)
    return [ops.convert_to_numpy(g).astype("float64") for g in gradient], [float(c) for c in counts]


def resumes(make, x, y, path, updates=7, **arguments):
    """Asserts that a run that is interrupted within an epoch, saved and loaded ends as the uninterrupted one."""
    arguments |= {"epochs": 2, "batch_size": 20, "delta": 1e-3, "seed": 9, "verbose": 0}
    whole, part = make(), make()
    whole.fit(x, y, **arguments)

    def check(batch, logs=None):
        part.stop_training = part.stop_training or part.run.ledger.updates >= updates

    part.fit(x, y, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=check)], **arguments)
    assert part.run.ledger.updates == updates < whole.run.ledger.updates
    part.save(path)
    resumed = keras.saving.load_model(path)
    (moved,) = resumed.optimizer.strategy_state
    assert float(moved.numpy()) not in (0.0, 1.0)
    resumed.fit(x, y, **arguments)
    assert resumed.run.ledger == whole.run.ledger
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(whole.optimizer.strategy_state, resumed.optimizer.strategy_state, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def logistic_gradients(model, x, y):
    """Per-example gradients of logistic regression, by hand in float64: `(rows, features * classes + classes)`."""
    kernel, bias = (ops.convert_to_numpy(v).astype("float64") for v in model.trainable_variables)
    logits = x.astype("float64") @ kernel + bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1.0
    return np.concatenate([(x[:, :, None] * p[:, None, :]).reshape(len(x), -1), p], axis=1)


def flat(gradient):
    return np.concatenate([g.ravel() for g in gradient])


def silent(features=4, outputs=4000, **arguments):
    """A model whose gradients are zero, so that an update is nothing but noise."""
    inputs = keras.Input((features,))
    model = lipdp.DP_Model(inputs, keras.layers.Dense(outputs, use_bias=False)(inputs))
    model.compile(keras.optimizers.SGD(1.0), loss=keras.losses.MeanSquaredError(), **arguments)
    return model, np.zeros((100, features), "float32"), np.zeros((100, outputs), "float32")


def steps(model, x, y, number, **arguments):
    """Each update of the only kernel, by a call of `fit` of its own."""
    before, found = model.get_weights()[0].copy(), []
    for _ in range(number):
        model.fit(x, y, steps_per_epoch=1, **arguments, **FIT)
        found.append(model.get_weights()[0] - before)
        before = model.get_weights()[0].copy()
    return found


def assert_same_gradients(model, copy, x, rtol=1e-4, atol=1e-6):
    """Two models of the same weights have the same sums of clipped gradients for some rows and two classes."""
    found = []
    for one in (model, copy):
        private = lipdp.DP_Model.from_keras(one)
        private.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        data = (x, (np.arange(len(x)) % 2).astype("int32"), np.ones(len(x), "float32"))
        average = averaged(private, strategies.DPSGD(clip_norm=0.1), data)[0]
        found.append({id(v): g for v, g in zip(private.trainable_variables, average, strict=True)})
    assert found[0].keys() == found[1].keys()
    for key, gradient in found[0].items():
        np.testing.assert_allclose(found[1][key], gradient, rtol=rtol, atol=atol)
