"""Small models and data that several tests train."""

import json

import keras
import numpy as np

import lipdp
from lipdp import layers, losses

DELTA = 1e-4


def blobs(examples=400, features=8, classes=3, seed=0):
    """Points around class means: easy to learn, any seed."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, examples)
    x = rng.normal(size=(classes, features))[y] + 0.3 * rng.normal(size=(examples, features))
    return x.astype("float32"), y.astype("int32")


def mlp(features=8, classes=3, optimizer=None, metrics=("accuracy",), **compile_arguments):
    """A compiled two-layer network."""
    keras.utils.set_random_seed(0)
    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((features,), norm=3.0),
            layers.SpectralDense(16),
            layers.Bias(),
            layers.Abs(),
            layers.SpectralDense(classes),
        ]
    )
    model.compile(
        optimizer or keras.optimizers.SGD(0.3, momentum=0.9),
        loss=losses.SparseCategoricalCrossentropy(temperature=4.0, clip=0.5),
        metrics=list(metrics),
        **compile_arguments,
    )
    return model


def weights(model):
    return [np.array(w) for w in model.get_weights()]


def state(model):
    """Everything that a refused call must leave as it was."""
    optimizer = [v.numpy() for v in model.optimizer.variables] if model.optimizer.built else []
    return [*weights(model), *optimizer], model.run.ledger.to_json()


def same(a, b):
    return a[1] == b[1] and all(np.array_equal(p, q) for p, q in zip(a[0], b[0], strict=True))


def state_of_0_1_0(model, **values):
    """What a file holds about a run as version 0.1.0 wrote it, without a checksum, with other values."""
    known = (
        "ledger",
        "history",
        "plan",
        "request",
        "plan_start",
        "pass_key",
        "noise_std",
        "seeded",
        "logged",
        "adaptive",
    )
    content = json.loads(model.run.to_array().tobytes())
    return np.frombuffer(json.dumps({key: content[key] for key in [*known, "adaptive"]} | values).encode(), np.uint8)


def zero(numbers):
    """Zeros `(batch, 1)` that a graph makes of numbers `(batch,)`: Keras 3.12 wants each input to be used."""
    return keras.layers.Reshape((1,))(keras.layers.Rescaling(0.0)(numbers))
