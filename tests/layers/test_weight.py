"""A weight that all rows share: its value, its gradient, files, export, and what it cannot do."""

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import isolation, layers
from tests.helpers.reference import compare


def network():
    inputs = keras.Input((5, 4))
    token = layers.Weight((1, 4), "ones")(inputs)
    h = ops.concatenate([token, inputs], axis=1) * layers.Weight((6, 1), "ones")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(h)))


def rows(number=6):
    return np.random.default_rng(0).normal(size=(number, 5, 4)).astype("float32")


@pytest.mark.parametrize("shape", [(), (3,), (1, 4), (2, 3)])
def test_each_row_is_the_weight(shape):
    layer = layers.Weight(shape, "random_normal")
    found = ops.convert_to_numpy(layer(rows()))
    assert found.shape == (6, *shape)
    assert layer(keras.Input((5, 4))).shape == (None, *shape)
    np.testing.assert_array_equal(found, np.broadcast_to(ops.convert_to_numpy(layer.weight), found.shape))


def test_gradients_are_those_of_each_row():
    compare(network(), rows())
    assert not isolation.foreign(network())


@pytest.mark.parametrize("written", [lambda model: model, lipdp.export], ids=["model", "export"])
def test_files(written, tmp_path):
    model = network()
    for v in model.trainable_variables:
        v.assign(v + np.random.default_rng(1).normal(size=v.shape).astype("float32"))
    written(model).save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(rows(3)), model(rows(3)), rtol=1e-5, atol=1e-6)


def test_an_export_has_no_layer_of_lipdp():
    exported = lipdp.export(network())
    assert not [layer for layer in exported.layers if type(layer).__module__.startswith("lipdp")]


def test_it_trains_with_clipping_alone():
    model = lipdp.DP_Model.from_keras(network())
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    settings = {"batch_size": 3, "noise_multiplier": 5.0, "delta": 1e-3, "verbose": 0}
    model.fit(rows(), np.zeros(6, "int32"), strategy="dpsgd", **settings)
    assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    inputs = keras.Input((3,))
    bounded = layers.BoundedInput(norm=1.0)(inputs)
    outputs = layers.Add()([layers.SpectralDense(3)(bounded), layers.Weight((3,))(bounded)])
    model = lipdp.DP_Model(inputs, outputs)
    model.compile("sgd", lipdp.losses.SparseCategoricalCrossentropy(temperature=1.0))
    with pytest.raises(ValueError, match="lipdp.layers.Bias"):
        model.fit(rows()[:, 0, :3], np.zeros(6, "int32"), **settings)


@pytest.mark.parametrize("shape", [(0,), (2.5,), (-1, 3), 4, "44"])
def test_shapes_that_are_none(shape):
    with pytest.raises(ValueError, match="shape"):
        layers.Weight(shape)


@pytest.mark.backend_free
def test_shape_without_a_call():
    assert layers.Weight((2, 3)).compute_output_shape((None, 5)) == (None, 2, 3)
