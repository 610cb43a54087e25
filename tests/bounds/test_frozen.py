"""Plain and frozen layers in front of what trains: the bounds find out that nothing has to pass them."""

import keras
import numpy as np
import pytest
from keras import layers as stock

import lipdp
from lipdp import bounds, certify, layers, losses
from tests.helpers.adversary import TOLERANCE, Probe, norm, scaled, starts, top

pytestmark = pytest.mark.backend_free


def backbone(trainable=False):
    """What people take from keras.applications, small: batch normalisation, depthwise and plain convolutions."""
    inputs = keras.Input((8, 8, 3))
    x = stock.Conv2D(8, 3, padding="same", activation="swish")(inputs)
    x = stock.BatchNormalization()(x)
    x = stock.DepthwiseConv2D(3)(x)
    x = stock.LayerNormalization()(x)
    x = stock.Add()([x, stock.Multiply()([x, x])])
    model = keras.Model(inputs, stock.GlobalAveragePooling2D()(x), name="backbone")
    model.trainable = trainable
    return model


def headed(front):
    inputs = keras.Input((8, 8, 3))
    x = layers.BoundedInput(norm=1.0)(front(inputs))
    x = layers.Abs()(layers.SpectralDense(8)(x))
    return lipdp.DP_Model(inputs, layers.SpectralDense(2)(x))


@pytest.mark.slow
def test_a_frozen_backbone_costs_nothing_and_does_not_move():
    front = backbone()
    model = headed(front)
    found = bounds.propagate(model, 1.0)
    assert [found.gradient(v) for v in model.trainable_variables] == pytest.approx([1.0, 1.0], rel=1e-3)
    model.compile("sgd", losses.SparseCategoricalCrossentropy(temperature=5.0))
    before = [v.numpy() if hasattr(v, "numpy") else np.asarray(v) for v in front.weights]
    x = np.random.default_rng(0).standard_normal((64, 8, 8, 3)).astype("float32")
    head = keras.ops.convert_to_numpy(model.trainable_variables[0])
    model.fit(x, np.arange(64) % 2, batch_size=32, epochs=2, epsilon=5.0, delta=1e-3, seed=0, verbose=0)
    for old, new in zip(before, front.weights, strict=True):
        np.testing.assert_array_equal(old, keras.ops.convert_to_numpy(new))
    assert not np.array_equal(head, keras.ops.convert_to_numpy(model.trainable_variables[0]))
    with pytest.raises(ValueError, match="has no sensitivity bound"):
        certify.radii(model, x[:2])


def test_what_trains_in_front_of_it_is_refused_by_name():
    with pytest.raises(ValueError, match="BatchNormalization has no sensitivity bound"):
        bounds.propagate(headed(backbone(trainable=True)), 1.0)
    inputs = keras.Input((4,))
    x = layers.SpectralDense(4)(layers.BoundedInput(norm=1.0)(inputs))
    frozen = stock.LayerNormalization(trainable=False)
    with pytest.raises(ValueError, match="LayerNormalization has no sensitivity bound.*LayerCentering"):
        bounds.propagate(keras.Model(inputs, frozen(x)), 1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: stock.Activation(lambda v: v - keras.ops.mean(v, axis=0)),
        lambda: stock.Dense(3, activation=lambda v: v - keras.ops.mean(v, axis=0), trainable=False),
        lambda: stock.BatchNormalization(center=False, scale=False),
        lambda: stock.Lambda(lambda v: v),
        lambda: stock.Dropout(0.5),
        lambda: stock.GaussianNoise(0.5),
    ],
)
def test_layers_that_may_mix_examples_are_refused_even_when_frozen(make):
    inputs = keras.Input((4,))
    x = layers.BoundedInput(norm=1.0)(make()(inputs))
    with pytest.raises(ValueError, match="no sensitivity bound|no known Lipschitz|draws masks"):
        bounds.propagate(keras.Model(inputs, layers.SpectralDense(2)(x)), 1.0)


@pytest.mark.parametrize("make", [stock.LayerNormalization, stock.PReLU, lambda: stock.Embedding(5, 3)])
def test_layers_without_a_bound_are_refused_as_soon_as_they_train(make):
    layer = make()
    layer.build((None, 4))
    with pytest.raises(ValueError, match="has no sensitivity bound"):
        bounds.rules(layer)
    layer.trainable = False
    assert bounds.rules(layer).output_bound((1.0,)) == float("inf")


PLAIN = {
    "dense": (lambda: stock.Dense(3), (4,)),
    "dense_tokens": (lambda: stock.Dense(3, activation="tanh"), (5, 4)),
    "dense_without_bias": (lambda: stock.Dense(3, use_bias=False, activation="gelu"), (4,)),
    "conv1d": (lambda: stock.Conv1D(2, 3, strides=2, padding="same"), (7, 2)),
    "conv2d": (lambda: stock.Conv2D(2, 3, padding="same", activation="relu"), (4, 5, 1)),
    "conv2d_dilated": (lambda: stock.Conv2D(2, 2, dilation_rate=2), (4, 4, 2)),
    "conv3d": (lambda: stock.Conv3D(1, 2, strides=2), (4, 2, 2, 1)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_gradients_and_exact_norms_of_plain_layers(name):
    make, shape = PLAIN[name]
    layer = make()
    probe, rng = Probe(layer, shape), np.random.default_rng(0)
    answers = bounds.rules(layer)
    limits = answers.parameter_bounds((2.0,), 1.0)
    reached = np.zeros(len(limits))
    for variable in probe.variables:
        variable.assign(rng.standard_normal(variable.shape))
    for x in starts(shape, rng, 2.0):
        reached = np.maximum(reached, [top(j) for j in probe.parameter_jacobians(x)])
        assert top(probe.input_jacobians(x)[0]) <= answers.trained_lipschitz((2.0,))[0] * (1 + TOLERANCE)
        assert norm(probe.value(x)) <= answers.trained_output_bound((2.0,)) * (1 + TOLERANCE)
    assert (reached <= np.array(limits) * (1 + TOLERANCE)).all()
    assert (reached >= 0.4 * np.array(limits)).all()
    assert answers.input_lipschitz((2.0,)) == (float("inf"),)


@pytest.mark.slow
def test_a_plain_first_layer_trains_and_is_certified_with_its_exact_norm():
    inputs = keras.Input((4,))
    plain = stock.Dense(6, name="plain")
    x = layers.BoundedInput(norm=1.0)(layers.Abs()(plain(layers.BoundedInput(norm=2.0)(inputs))))
    model = lipdp.DP_Model(inputs, layers.SpectralDense(2)(x))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 4)).astype("float32")
    model.compile("sgd", losses.SparseCategoricalCrossentropy(temperature=5.0))
    model.fit(x, (x[:, 0] > 0).astype("int32"), batch_size=100, epochs=3, epsilon=5.0, delta=1e-3, verbose=0)
    found = bounds.propagate(model, 1.0)
    assert found.gradient(plain.kernel) == pytest.approx(2.0, rel=1e-3)
    assert found.gradient(plain.bias) == pytest.approx(1.0, rel=1e-3)
    exact = np.linalg.norm(keras.ops.convert_to_numpy(plain.kernel).astype("float64"), 2)
    assert certify.lipschitz(model) <= exact * 1.001
    probe = Probe(model)
    for point in starts((4,), rng, 2.0):
        assert top(probe.input_jacobians(point)[0]) <= certify.lipschitz(model)
    assert (certify.radii(model, x) > 0).any()


def test_two_plain_layers_that_train_are_refused():
    inputs = keras.Input((4,))
    x = stock.Dense(6, name="second")(stock.Dense(6)(layers.BoundedInput(norm=2.0)(inputs)))
    with pytest.raises(ValueError, match="'second' of type Dense has no sensitivity bound.*SpectralDense"):
        bounds.propagate(keras.Model(inputs, x), 1.0)
    alone = keras.Model(inputs, layers.SpectralDense(2)(stock.Dense(6)(inputs)))
    with pytest.raises(ValueError, match="unbounded norm|without a Lipschitz"):
        bounds.propagate(alone, 1.0)


def test_gradients_of_a_plain_first_layer_never_exceed_the_bound():
    inputs = keras.Input((3, 3, 1))
    plain = stock.Conv2D(2, 2, padding="same")
    x = layers.BoundedInput(norm=1.0)(plain(layers.BoundedInput(norm=2.0)(inputs)))
    model = keras.Model(inputs, layers.SpectralDense(2)(layers.Flatten()(x)))
    found, rng = bounds.propagate(model, 1.0), np.random.default_rng(0)
    probe = Probe(model)
    for scale in (0.0, 0.01, 1.0, 100.0):
        plain.kernel.assign(scaled(rng.standard_normal(plain.kernel.shape), scale))
        for point in starts((3, 3, 1), rng, 2.0):
            for variable, jacobian in zip(probe.variables, probe.parameter_jacobians(point), strict=True):
                assert top(jacobian) <= found.gradient(variable)


@pytest.mark.parametrize("layer", [stock.UnitNormalization, stock.LayerNormalization])
def test_a_frozen_layer_that_normalises_over_the_batch_is_refused(layer):
    for axis in (0, -2):
        inputs = keras.Input(batch_shape=(16, 4))
        x = layer(axis=axis, trainable=False)(inputs)
        model = keras.Model(inputs, layers.SpectralDense(2)(layers.BoundedInput(norm=1.0)(x)))
        with pytest.raises(ValueError, match=layer.__name__):
            bounds.propagate(model, 1.0)
