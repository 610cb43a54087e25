"""What the outputs of a model end in, behind layers that only move or average values."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import losses

ENDS = {
    "softmax": [
        lambda x: L.Dense(3, activation="softmax")(x),
        lambda x: L.Softmax()(L.Dense(3)(x)),
        lambda x: L.Reshape((3,))(L.Dense(3, activation="softmax")(x)),
        lambda x: L.Dropout(0.1)(L.Dense(3, activation="softmax")(x)),
        lambda x: L.Activation("linear", dtype="float32")(L.Dense(3, activation="softmax")(x)),
        lambda x: L.Average()([L.Dense(3, activation="softmax")(x) for _ in range(2)]),
        lambda x: ops.squeeze(L.Reshape((1, 3))(L.Dense(3, activation="softmax")(x)), 1),
        lambda x: keras.Sequential([L.Dense(3, activation="softmax"), L.Flatten()])(x),
    ],
    "none": [
        lambda x: L.Dense(3)(x),
        lambda x: L.Flatten()(L.Dense(3)(x)),
        lambda x: L.Dense(3)(L.Dense(3, activation="softmax")(x)),
        lambda x: L.Add()([L.Dense(3, activation="softmax")(x), L.Dense(3)(x)]),
        lambda x: L.Average()([L.Dense(3, activation="softmax")(x), L.Dense(3)(x)]),
        lambda x: L.Average()([L.Dense(3, activation="softmax")(x), L.Dense(3, activation="relu")(x)]),
    ],
}


def model_of(end):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    return keras.Model(inputs, end(inputs))


@pytest.mark.parametrize(("name", "end"), [(name, end) for name, ends in ENDS.items() for end in ends])
def test_a_cross_entropy_by_name_is_that_of_the_ending(name, end):
    """On probabilities that of Keras; as logits they would go through softmax twice."""
    model = lipdp.DP_Model.from_keras(model_of(end))
    assert (losses.endings(model)[0] == "softmax") == (name == "softmax")
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    assert isinstance(model.loss, losses.Loss) == (name == "none")


def test_the_accuracy_of_a_sigmoid_behind_flatten_and_of_bce():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)).astype("float32"), rng.integers(0, 2, 64).astype("int32")
    found = []
    for kind in (lipdp.DP_Model.from_keras, lambda model: model):
        model = kind(model_of(lambda x: L.Flatten()(L.Dense(1, activation="sigmoid")(x))))
        model.compile("sgd", loss="bce", metrics=["accuracy"])
        found.append(model.evaluate(x, y, verbose=0))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_time_distributed_probabilities():
    inputs = keras.Input((5, 4))
    model = lipdp.DP_Model(inputs, L.TimeDistributed(L.Dense(3, activation="softmax"))(inputs))
    assert losses.endings(model) == ["softmax"]


def test_two_kinds_of_values_are_neither():
    model = model_of(lambda x: L.Average()([L.Dense(3, activation=kind)(x) for kind in ("softmax", "relu")]))
    assert losses.endings(model) == ["average"]
