"""Propagation through graphs: golden values derived by hand, what is refused, and what a user may declare."""

import math

import keras
import numpy as np
import pytest
from keras import layers as stock
from keras import ops

import lipdp
from lipdp import bounds, certify, layers
from tests.helpers.adversary import Probe, norm

SQRT2 = math.sqrt(2.0)


def bounded(shape=(4,), size=1.0, **arguments):
    inputs = keras.Input(shape)
    return inputs, layers.BoundedInput(norm=size, **arguments)(inputs)


def gradients(model, cotangent=1.0):
    """Bounds by layer name, without the slack for rounding."""
    propagated = bounds.propagate(model, cotangent)
    return {
        use.name: bounds.propagate(model, cotangent).gradient(use.variables[0]) / propagated.slack
        for use in propagated.layers
        if use.variables
    }


def test_sequential_chain():
    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((6,), norm=3.0),
            layers.SpectralDense(4, name="a"),
            layers.Bias(0.5, name="b"),
            layers.Abs(),
            stock.Rescaling(2.0),
            layers.SpectralDense(2, name="c"),
        ]
    )
    # Forward: 3, 3, 3.5, 3.5, 7, 7. Backward: 1, 1, 2, 2.
    assert gradients(model, 0.5) == pytest.approx({"a": 3.0, "b": 1.0, "c": 3.5})
    propagated = bounds.propagate(model, 0.5)
    assert propagated.output_bound == pytest.approx(7.0)
    assert propagated.lipschitz == pytest.approx(1.0)
    assert [use.kind for use in propagated.layers] == [
        "BoundedInput", "SpectralDense", "Bias", "Abs", "Rescaling", "SpectralDense"
    ]  # fmt: skip


def test_constants_for_each_channel():
    """Keras' `Normalization` with public constants, in a form that has a bound."""
    scale, offset = [0.5, -3.0, 0.25], np.array([1.0, 0.0, -2.0])
    layer = stock.Rescaling(scale, offset)
    inputs = keras.Input((4, 3))
    model = keras.Model(inputs, layer(layers.BoundedInput(norm=2.0)(inputs)))
    propagated = bounds.propagate(model, 1.0)
    assert propagated.lipschitz == pytest.approx(3.0)
    assert propagated.output_bound == pytest.approx(2.0 * 3.0 + np.sqrt(4 * 5.0))
    # Reached by what is long where the factor is large; the offset alone is what zeros become.
    x = np.zeros((2, 4, 3), "float32")
    x[0, 0, 1] = 2.0
    found = np.linalg.norm(model.predict(x, verbose=0).reshape(2, -1), axis=1)
    assert found[0] <= propagated.output_bound and found[1] == pytest.approx(np.sqrt(20.0))
    certified = keras.Sequential([keras.Input((3,)), stock.Rescaling(scale)])
    assert certify.lipschitz(certified) == pytest.approx(3.0, rel=1e-4)


def test_graph_of_the_fact_sheet():
    """clipless.md, section 6: residual, fan-out, concatenation, shared layer, nested model; a 8.485, b 4.243."""
    inputs, x = bounded(size=3.0)
    a = layers.SpectralDense(4, name="a")(x)
    joined = layers.Concatenate()([a, layers.Abs()(a)])
    shared = layers.SpectralDense(8, name="b")
    inner = keras.Input((8,))
    nested = keras.Model(inner, stock.Average()([shared(inner), layers.Abs()(shared(inner))]))
    model = keras.Model(inputs, nested(joined))
    # Concatenation: 3 sqrt 2 enters b. Two uses of b, each with cotangent sqrt(2) / 2; a reads twice their sum.
    assert gradients(model, SQRT2) == pytest.approx({"a": 8.485, "b": 6.0}, rel=1e-3)
    assert gradients(model, SQRT2 / 2) == pytest.approx({"a": 4.243, "b": 3.0}, rel=1e-3)


def test_fan_out_adds_and_concatenation_is_pythagoras():
    inputs, x = bounded(size=2.0)
    a = layers.SpectralDense(4, name="a")(x)
    b, c = layers.SpectralDense(3, name="b")(a), layers.SpectralDense(3, name="c")(a)
    model = keras.Model(inputs, layers.SpectralDense(2, name="d")(layers.Concatenate()([b, c])))
    assert gradients(model) == pytest.approx({"a": 4.0, "b": 2.0, "c": 2.0, "d": 2.0 * SQRT2})


@pytest.mark.parametrize("join", [lambda x, y: x + y, lambda x, y: stock.Add()([x, y]), lambda x, y: x - y])
def test_residual(join):
    inputs, x = bounded(size=2.0)
    a = layers.SpectralDense(4, name="a")(x)
    b = layers.SpectralDense(4, name="b")(a)
    model = keras.Model(inputs, layers.SpectralDense(2, name="c")(join(a, b)))
    assert gradients(model) == pytest.approx({"a": 4.0, "b": 2.0, "c": 4.0})


def test_same_tensor_twice():
    inputs, x = bounded()
    a = layers.SpectralDense(4, name="a")(x)
    for y in (a + a, stock.Add()([a, a]), stock.Average()([a, a, a, a])):
        model = keras.Model(inputs, y)
        factor = 1.0 if "average" in y._keras_history.operation.name else 2.0
        assert gradients(model) == pytest.approx({"a": factor})
        assert bounds.propagate(model, 1.0).output_bound == pytest.approx(factor)


def test_subtraction_and_negation_and_absolute_value_as_operations():
    inputs, x = bounded(size=2.0)
    a = layers.SpectralDense(4, name="a")(x)
    model = keras.Model(inputs, abs(a) - (-a))
    assert gradients(model) == pytest.approx({"a": 4.0})


def test_shared_layer_adds_its_uses():
    """Row 7b: the reference keys by name and keeps one of the uses, half of the true bound."""
    inputs, x = bounded(size=2.0)
    shared = layers.SpectralDense(4, name="a")
    model = keras.Model(inputs, shared(layers.Abs()(shared(x))))
    assert gradients(model) == pytest.approx({"a": 4.0})
    assert len([use for use in bounds.propagate(model, 1.0).layers if use.name == "a"]) == 2


def test_shared_nested_model_adds_its_uses():
    inner = keras.Input((4,))
    nested = keras.Model(inner, layers.SpectralDense(4, name="a")(inner))
    inputs, x = bounded(size=2.0)
    model = keras.Model(inputs, stock.Concatenate()([nested(x), nested(stock.Rescaling(3.0)(x))]))
    assert gradients(model) == pytest.approx({"a": 2.0 + 6.0})


def test_one_variable_in_two_layers():
    inputs, x = bounded()
    first = layers.SpectralDense(4, name="a")

    class Tied(layers.SpectralDense):
        def build(self, input_shape):
            self.kernel = first.kernel

    model = keras.Model(inputs, Tied(4, name="b")(first(x)))
    assert len(model.trainable_variables) == 1
    assert gradients(model) == pytest.approx({"a": 2.0, "b": 2.0})


def test_duplicate_names_in_nested_models_stay_apart():
    """Row 7b: two layers of one name, in different models, with different bounds."""

    def block(factor):
        inner = keras.Input((4,))
        return keras.Model(inner, stock.Rescaling(factor)(layers.SpectralDense(4, name="a")(inner)))

    inputs, x = bounded()
    first, second = block(0.1), block(5.0)
    model = keras.Model(inputs, second(first(x)))
    propagated = bounds.propagate(model, 1.0)
    found = [propagated.gradient(v) / propagated.slack for v in model.trainable_variables]
    assert found == pytest.approx([0.5, 0.5])
    assert len(model.trainable_variables) == 2
    model = keras.Model(inputs, first(second(x)))
    propagated = bounds.propagate(model, 1.0)
    assert propagated.gradient(second.trainable_variables[0]) == pytest.approx(0.5, rel=1e-3)
    assert propagated.gradient(first.trainable_variables[0]) == pytest.approx(0.5, rel=1e-3)


def test_nested_models_of_two_levels():
    inner = keras.Input((4,))
    one = keras.Sequential([keras.Input((4,)), layers.SpectralDense(4, name="a"), stock.Rescaling(2.0)])
    two = keras.Model(inner, layers.Bias(1.0, name="b")(one(inner)))
    inputs, x = bounded(size=3.0)
    model = keras.Model(inputs, stock.Rescaling(5.0)(two(x)))
    assert gradients(model) == pytest.approx({"a": 30.0, "b": 5.0})
    assert bounds.propagate(model, 1.0).output_bound == pytest.approx(35.0)


def test_several_inputs_keep_their_own_bounds():
    left, right = keras.Input((4,)), keras.Input((4,))
    inner = [keras.Input((4,)), keras.Input((4,))]
    nested = keras.Model(inner, stock.Add()([stock.Rescaling(10.0)(inner[0]), inner[1]]))
    small, big = layers.BoundedInput(norm=1.0)(left), layers.BoundedInput(norm=100.0)(right)
    model = keras.Model([left, right], nested([small, big]))
    assert bounds.propagate(model, 1.0).output_bound == pytest.approx(110.0)
    model = keras.Model([left, right], nested([big, small]))
    assert bounds.propagate(model, 1.0).output_bound == pytest.approx(1001.0)


def test_frozen_layers_need_no_parameter_bound():
    inputs, x = bounded(size=2.0)
    frozen = layers.SpectralDense(4, name="frozen", trainable=False)
    model = keras.Model(inputs, layers.SpectralDense(2, name="top")(frozen(x)))
    assert gradients(model) == pytest.approx({"top": 2.0})
    with pytest.raises(ValueError, match="has no gradient bound"):
        bounds.propagate(model, 1.0).gradient(frozen.kernel)
    model.trainable = False
    assert gradients(model) == {}


def test_layers_of_the_users_may_take_their_inputs_one_by_one():
    class Mean(stock.Layer):
        def call(self, a, b):
            return (a + b) / 2.0**0.5

    bounds.register(Mean, lambda layer: 1.0)
    inputs, x = bounded()
    model = keras.Model(inputs, layers.SpectralDense(3)(Mean()(x, layers.Abs()(x))))
    assert bounds.propagate(model, 1.0).output_bound > 0.0


def test_the_layer_that_stretches_is_named():
    inputs, x = bounded()
    first = stock.Dense(4, name="first")
    model = keras.Model(inputs, layers.SpectralDense(3, name="top")(layers.Abs()(first(x))))
    with pytest.raises(ValueError, match=r"'top' trains on inputs of unbounded norm. Layer 'first' \(Dense\) in front"):
        bounds.propagate(model, 1.0)


def test_missing_bounded_input():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.SpectralDense(3, name="first")(inputs))
    with pytest.raises(ValueError, match="'first' trains on inputs of unbounded norm.*BoundedInput"):
        bounds.propagate(model, 1.0)
    bounded_half = layers.BoundedInput()(inputs)
    model = keras.Model(inputs, layers.SpectralDense(3)(layers.Concatenate()([inputs, bounded_half])))
    with pytest.raises(ValueError, match="unbounded norm"):
        bounds.propagate(model, 1.0)


def test_frozen_layers_may_stand_before_bounded_input():
    inputs = keras.Input((4,))
    x = layers.BoundedInput(norm=2.0)(layers.SpectralDense(6, trainable=False)(inputs))
    model = keras.Model(inputs, layers.SpectralDense(3, name="a")(x))
    assert gradients(model) == pytest.approx({"a": 2.0})


def test_normalisation_behind_a_trainable_layer_is_refused():
    inputs, x = bounded()
    x = layers.SpectralDense(4, name="below")(x)
    x = layers.BoundedInput(norm=1.0, mode="normalize")(x)
    model = keras.Model(inputs, layers.SpectralDense(2)(x))
    with pytest.raises(ValueError, match="gradient of layer 'below' passes a layer without a Lipschitz"):
        bounds.propagate(model, 1.0)


def test_normalisation_in_front_is_accepted():
    inputs, x = bounded(size=3.0, mode="normalize")
    model = keras.Model(inputs, layers.SpectralDense(2, name="a")(x))
    assert gradients(model) == pytest.approx({"a": 3.0})


@pytest.mark.parametrize("layer", [layers.SpectralDense, layers.SpectralConv2D])
def test_layer_without_projection(layer):
    """Its own gradient is bounded whatever its norm; nothing trainable may stand below it."""
    make = (lambda **k: layer(4, **k)) if layer is layers.SpectralDense else (lambda **k: layer(4, 1, **k))
    inputs, x = bounded((3, 3, 2), size=2.0)
    free = make(projected=False, name="free")
    y = layers.BoundedInput(norm=5.0)(layers.Abs()(free(x)))
    model = keras.Model(inputs, layers.SpectralDense(2, name="top")(y))
    assert gradients(model) == pytest.approx({"free": 2.0, "top": 5.0})
    free.kernel.assign(100.0 * np.ones(free.kernel.shape, "float32"))
    assert gradients(model) == pytest.approx({"free": 2.0, "top": 5.0})
    with pytest.raises(ValueError, match="'top' trains on inputs of unbounded norm"):
        bounds.propagate(keras.Model(inputs, layers.SpectralDense(2, name="top")(free(x))), 1.0)
    with pytest.raises(ValueError, match="'below' passes a layer without a Lipschitz constant"):
        y = layers.BoundedInput()(make(projected=False)(layers.Bias(name="below")(x)))
        bounds.propagate(keras.Model(inputs, y), 1.0)


UNKNOWN = {
    "Dense": (lambda x: stock.Dense(3, name="bad")(x), "SpectralDense"),
    "Conv2D": (lambda x: stock.Conv2D(3, 1, name="bad")(stock.Reshape((2, 2, 1))(x)), "SpectralConv2D"),
    "BatchNormalization": (lambda x: stock.BatchNormalization(name="bad")(x), "LayerCentering"),
    "LayerNormalization": (lambda x: stock.LayerNormalization(name="bad")(x), "LayerCentering"),
    "UnitNormalization": (lambda x: stock.UnitNormalization(name="bad")(x), "BoundedInput"),
    "PReLU": (lambda x: stock.PReLU(name="bad")(x), "Abs"),
    "Multiply": (lambda x: stock.Multiply(name="bad")([x, x]), "Add"),
    "Lambda": (lambda x: stock.Lambda(lambda v: 5.0 * v, name="bad")(x), "LipschitzLayer"),
    "Softmax": (lambda x: stock.Softmax(name="bad")(x), "bounds.register"),
    "Masking": (lambda x: stock.Masking(name="bad")(stock.Reshape((2, 2))(x)), "bounds.register"),
    "GaussianNoise": (lambda x: stock.GaussianNoise(0.1, name="bad")(x), "bounds.register"),
    "TimeDistributed": (
        lambda x: stock.TimeDistributed(layers.Abs(), name="bad")(stock.Reshape((2, 2))(x)),
        "bounds.register",
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_unknown_layers_are_refused_by_name_with_a_replacement(kind):
    make, replacement = UNKNOWN[kind]
    inputs, x = bounded()
    with pytest.raises(ValueError, match=f"Layer 'bad' of type {kind} has no.*Use instead:.*{replacement}"):
        bounds.propagate(keras.Model(inputs, make(layers.SpectralDense(4)(x))), 1.0)


@pytest.mark.parametrize(
    "make, kind",
    [
        (lambda x: 2.0 * x, "Multiply"),
        (lambda x: x * x, "Multiply"),
        (lambda x: x / 2.0, "TrueDivide"),
        (lambda x: x[:, :2], "GetItem"),
        (lambda x: x**2, "Power"),
        (lambda x: ops.exp(x), "Exp"),
        (lambda x: ops.mean(x, axis=0, keepdims=True), "Mean"),
        (lambda x: ops.concatenate([x, x], axis=0), "Concatenate"),
        (lambda x: ops.matmul(x, ops.transpose(x)), "Transpose"),
        (lambda x: ops.tanh(x), "Tanh"),
    ],
)
def test_raw_operations_are_refused(make, kind):
    inputs, x = bounded()
    with pytest.raises(ValueError, match=rf"Operation '{kind}' has no sensitivity bound"):
        bounds.propagate(keras.Model(inputs, make(x)), 1.0)


@pytest.mark.parametrize("policy", ["float16", "bfloat16", "float64", "mixed_float16", "mixed_bfloat16"])
def test_other_precisions_are_refused(policy):
    inputs, x = bounded()
    with pytest.raises(ValueError, match="Layer 'bad' computes in .*Use float32"):
        layers.SpectralDense(3, name="bad", dtype=policy)
    model = keras.Model(inputs, stock.Flatten(name="bad", dtype=policy)(x))
    with pytest.raises(ValueError, match="Layer 'bad' computes in .*Use float32"):
        bounds.propagate(model, 1.0)


def test_models_without_one_graph_and_one_output_are_refused():
    inputs, x = bounded()
    with pytest.raises(ValueError, match="one output.*with 2 outputs"):
        bounds.propagate(keras.Model(inputs, [x, layers.Abs()(x)]), 1.0)
    with pytest.raises(ValueError, match="not built: give its first layer an input shape"):
        bounds.propagate(keras.Sequential([layers.SpectralDense(3)]), 1.0)

    class Subclassed(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="Use a Sequential or functional model"):
        bounds.propagate(Subclassed(), 1.0)


@pytest.mark.parametrize("base", [keras.Model, keras.Sequential])
def test_model_with_a_call_of_its_own_is_refused(base):
    """Its graph says 1; it computes 10."""

    class Louder(base):
        def call(self, inputs, training=None, mask=None):
            return 10.0 * super().call(inputs)

    inputs, x = bounded()
    if base is keras.Model:
        louder = Louder(inputs, layers.Abs()(x))
    else:
        louder = Louder([keras.Input((4,)), layers.BoundedInput(norm=1.0)])
    with pytest.raises(ValueError, match="has a `call` of its own"):
        bounds.propagate(louder, 1.0)
    with pytest.raises(ValueError, match="has a `call` of its own"):
        bounds.propagate(keras.Model(inputs, louder(x)), 1.0)


@pytest.mark.parametrize("cotangent", [-1.0, float("nan"), float("inf")])
def test_cotangents_that_mean_nothing_are_refused(cotangent):
    inputs, x = bounded()
    with pytest.raises(ValueError, match="`cotangent` must be a finite number of at least 0"):
        bounds.propagate(keras.Model(inputs, layers.Abs()(x)), cotangent)


CONFIGURATIONS = {
    # Arguments of a call that change what a layer computes.
    "constant": (lambda x: stock.Add()([x, 100.0 * np.ones((1, 4), "float32")]), "on constants or with a mask"),
    "raw_constant": (lambda x: x + 100.0, "on constants or with a mask"),
    "concatenated_constant": (lambda x: stock.Concatenate()([x, np.ones((1, 4))]), "on constants or with a mask"),
    "mask": (
        lambda x: stock.GlobalAveragePooling1D()(stock.Reshape((2, 2))(x), mask=np.array([[True, False]])),
        "on constants or with a mask",
    ),
    "mask_tensor": (
        lambda x: stock.GlobalAveragePooling1D()(stock.Reshape((2, 2))(x), mask=stock.Reshape((4,))(x)[:, :2]),
        "on constants or with a mask|Operation 'GetItem'",
    ),
    "mask_by_position": (
        lambda x: stock.GlobalAveragePooling1D()(stock.Reshape((4, 1))(x), layers.Abs()(x)),
        "on constants or with a mask",
    ),
    # Mixing examples.
    "concatenate_batch": (lambda x: stock.Concatenate(axis=0)([x, x]), "joins the batch axis"),
    "concatenate_batch_negative": (lambda x: stock.Concatenate(axis=-2)([x, x]), "joins the batch axis"),
    # Broadcasting repeats entries.
    "broadcast": (
        lambda x: stock.Add()([stock.Reshape((4, 1))(x), stock.Reshape((1, 4))(x)]),
        "equal, known shapes",
    ),
    "raw_broadcast": (lambda x: stock.Reshape((4, 1))(x) + stock.Reshape((1, 4))(x), "equal, known shapes"),
    "maximum_broadcast": (
        lambda x: stock.Maximum()([stock.Reshape((4, 1))(x), stock.Reshape((1, 4))(x)]),
        "equal, known shapes",
    ),
    # Not Lipschitz, or a constant that nobody proved.
    "threshold": (lambda x: stock.ReLU(threshold=0.5)(x), "jumps at its threshold"),
    "average_same": (
        lambda x: stock.AveragePooling1D(2, padding="same")(stock.Reshape((2, 2))(x)),
        "Use padding='valid'",
    ),
    "bilinear": (
        lambda x: stock.UpSampling2D(2, interpolation="bilinear")(stock.Reshape((2, 2, 1))(x)),
        "interpolation='nearest' only",
    ),
    "rescaling_rows": (lambda x: stock.Rescaling([[1.0, 2.0, 3.0, 99.0]])(x), "each entry of the last axis"),
    "rescaling_variable": (lambda x: stock.Rescaling(keras.Variable(1.0, trainable=False))(x), "has a bound for one"),
    "rescaling_one": (lambda x: stock.Rescaling(1.0, offset=[1.0])(x), "each entry of the last axis"),
    "rescaling_nan": (lambda x: stock.Rescaling(float("nan"))(x), "finite constants"),
    "rescaling_infinite": (lambda x: stock.Rescaling(1.0, offset=float("inf"))(x), "finite constants"),
    "softmax_activation": (lambda x: stock.Activation("softmax")(x), "activation 'softmax'"),
    "exponential": (lambda x: stock.Activation("exponential")(x), "activation 'exponential'"),
    "callable": (lambda x: stock.Activation(lambda v: 5.0 * v)(x), "no known Lipschitz constant"),
    "layer_as_activation": (lambda x: stock.Activation(stock.Dense(4))(x), "no known Lipschitz constant"),
    "activity_regularizer": (
        lambda x: layers.SpectralDense(3, activity_regularizer=keras.regularizers.L2(100.0))(x),
        "adds a regularizer of its outputs to the loss",
    ),
    "activity_regularizer_stock": (
        lambda x: stock.Activation("relu", activity_regularizer="l2")(x),
        "adds a regularizer of its outputs to the loss",
    ),
    "dropout": (lambda x: stock.Dropout(0.5)(x), "draws masks by position in the batch"),
    "spatial_dropout": (
        lambda x: stock.SpatialDropout1D(0.5)(stock.Reshape((2, 2))(x)),
        "draws masks by position in the batch",
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_that_break_a_registered_bound_are_refused(name):
    make, message = CONFIGURATIONS[name]
    inputs, x = bounded()
    with pytest.raises(ValueError, match=message):
        bounds.propagate(keras.Model(inputs, make(layers.SpectralDense(4)(x))), 1.0)


def test_a_function_does_not_shadow_an_activation_by_its_name():
    def relu(x):
        return 5.0 * x

    inputs, x = bounded()
    with pytest.raises(ValueError, match="activation 'relu'"):
        bounds.propagate(keras.Model(inputs, stock.Activation(relu)(x)), 1.0)
    assert bounds.propagate(keras.Model(inputs, stock.Activation("relu")(x)), 1.0).output_bound == 1.0


def test_sizes_that_may_turn_out_to_be_one_do_not_broadcast():
    """(batch, None, 3) + (batch, None, 3) accepts 1 against 9 rows: 4 where 2 was claimed."""
    left, right = keras.Input((None, 3)), keras.Input((None, 3))
    with pytest.raises(ValueError, match="equal, known shapes"):
        bounds.propagate(keras.Model([left, right], stock.Add()([left, right])), 1.0)


def test_inputs_matched_by_name_are_refused():
    """A dictionary is read in alphabetical order, the graph in its own: 110 was claimed, 1001 is reached."""
    first, second = keras.Input((4,), name="zz"), keras.Input((4,), name="aa")
    nested = keras.Model([first, second], stock.Add()([stock.Rescaling(10.0)(first), second]))
    inputs, small = bounded(size=1.0)
    big = layers.BoundedInput(norm=100.0)(inputs)
    model = keras.Model(inputs, nested({"zz": big, "aa": small}))
    with pytest.raises(ValueError, match="has several inputs"):
        bounds.propagate(model, 1.0)


def test_layers_used_on_several_shapes_are_bounded_for_the_worst():
    pool, squash = stock.GlobalAveragePooling1D(), stock.Activation("sigmoid")
    inputs, x = bounded((12,))
    wide, narrow = pool(stock.Reshape((12, 1))(x)), pool(stock.Reshape((1, 12))(x))
    large, small = squash(x), squash(stock.Reshape((1,))(wide))
    model = keras.Model(inputs, layers.Concatenate()([wide, narrow, large, small]))
    propagated = bounds.propagate(model, 1.0)
    for use in propagated.layers:
        if use.layer is pool:
            assert use.lipschitz == 1.0
    for x in (np.ones((1, 12)), np.eye(1, 12), -np.ones((1, 12))):
        assert norm(Probe(model).value(x)) <= propagated.output_bound


def test_register_by_a_user_matches_the_exact_type():
    class Half(keras.layers.Layer):
        def call(self, inputs):
            return 0.5 * inputs

    class NotHalf(Half):
        def call(self, inputs):
            return 50.0 * inputs

    inputs, x = bounded(size=4.0)
    bounds.register(Half, lambda layer: 0.5)
    assert bounds.propagate(keras.Model(inputs, Half()(x)), 1.0).output_bound == 2.0
    with pytest.raises(ValueError, match="type NotHalf has no sensitivity bound"):
        bounds.propagate(keras.Model(inputs, NotHalf()(x)), 1.0)

    class LouderRelu(keras.layers.ReLU):
        def call(self, inputs):
            return 50.0 * inputs

    with pytest.raises(ValueError, match="type LouderRelu has no sensitivity bound"):
        bounds.propagate(keras.Model(inputs, LouderRelu()(x)), 1.0)


def test_register_as_a_decorator_with_full_answers():
    class Shift(keras.layers.Layer):
        def call(self, inputs):
            return inputs + 3.0

    @bounds.register(Shift)
    def _shift(layer):
        return bounds.parameter_free(lambda b: (1.0,), lambda b: b[0] + 6.0)

    inputs, x = bounded()
    assert bounds.propagate(keras.Model(inputs, Shift()(x)), 1.0).output_bound == 7.0


def test_a_declared_layer_with_parameters_needs_as_many_bounds():
    class Gain(layers.LipschitzLayer):
        def build(self, input_shape):
            self.gain = self.add_weight(shape=(), initializer="ones", name="gain")

        def call(self, inputs):
            return inputs * self.gain

    inputs, x = bounded()
    with pytest.raises(ValueError, match="bounds 0 gradients but has 1 trainable"):
        bounds.propagate(keras.Model(inputs, Gain()(x)), 1.0)

    class Plain(keras.layers.Layer):
        build, call = Gain.build, Gain.call

    bounds.register(Plain, lambda layer: 1.0)
    with pytest.raises(ValueError, match="bounds 0 gradients but has 1 trainable"):
        bounds.propagate(keras.Model(inputs, Plain()(x)), 1.0)


def test_weights_with_a_regularizer_of_unknown_gradient_are_refused():
    class Regularised(layers.LipschitzLayer):
        def build(self, input_shape):
            self.w = self.add_weight(shape=(4,), regularizer=lambda w: 0.1 * keras.ops.sum(w), name="w")

        def call(self, inputs):
            return inputs

        def parameter_bounds(self, input_bounds, cotangent_bound):
            return (0.0,)

    inputs, x = bounded()
    with pytest.raises(ValueError, match="other than L1, L2 and L1L2"):
        bounds.propagate(keras.Model(inputs, Regularised()(x)), 1.0)


@pytest.mark.parametrize("constraint", [None, keras.constraints.NonNeg()], ids=["none", "another"])
def test_weights_whose_constraint_was_replaced_have_no_bound(constraint):
    """Kernels then left their ball while `fit` ran, to norm 3.4, and noise was that for norm 1."""
    model = keras.Sequential([keras.Input((4,)), layers.BoundedInput(norm=1.0), layers.SpectralDense(3)])
    model.layers[1].kernel.constraint = constraint
    with pytest.raises(ValueError, match="with (none|NonNeg) in the place of SpectralBall"):
        bounds.propagate(model, 1.0)
    assert bounds.propagate(model, 1.0, trained=True).lipschitz == pytest.approx(1.0, rel=1e-3)


def test_trained_norms_replace_those_of_the_constraint():
    inputs, x = bounded(size=2.0)
    dense = layers.SpectralDense(4)
    model = keras.Model(inputs, stock.Rescaling(2.0)(dense(x)))
    dense.kernel.assign(np.eye(4, dtype="float32") / 4)
    assert bounds.propagate(model, 1.0).lipschitz == pytest.approx(2.0)
    assert bounds.propagate(model, 1.0, trained=True).lipschitz == pytest.approx(0.5, rel=1e-5)


class Squares(layers.LipschitzLayer):
    """Entry by entry: 2 b-Lipschitz on the ball of radius b."""

    def call(self, inputs):
        return ops.square(inputs)

    def input_lipschitz(self, input_bounds):
        return (2.0 * input_bounds[0],)

    def output_bound(self, input_bounds):
        return input_bounds[0] ** 2


def test_norms_of_weights_that_were_set_by_hand_are_those_that_come_out():
    """The squares of numbers up to 10 were taken for those of numbers up to 1, and radii were ten times too large."""
    inputs, x = bounded((3,))
    dense = layers.SpectralDense(3)
    model = keras.Model(inputs, Squares()(dense(x)))
    dense.kernel.assign(10.0 * np.eye(3, dtype="float32"))
    propagated = bounds.propagate(model, 1.0, trained=True)
    assert propagated.lipschitz == pytest.approx(200.0, rel=1e-3)
    assert propagated.output_bound == pytest.approx(100.0, rel=1e-3)


def test_slack_grows_with_depth_and_covers_rounding():
    inputs, x = bounded()
    for _ in range(10):
        x = layers.SpectralDense(4)(x)
    propagated = bounds.propagate(keras.Model(inputs, x), 1.0)
    assert 1.0 + 2e-4 < propagated.slack < 1.0 + 3e-4


def test_graph_survives_a_file(tmp_path):
    inputs, x = bounded(size=3.0)
    a = layers.SpectralDense(4, name="a")(x)
    y = layers.Concatenate()([a + layers.Abs()(a), stock.Average()([a, layers.GroupSort()(a)])])
    model = keras.Model(inputs, layers.SpectralDense(2, name="b")(y))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert gradients(loaded) == pytest.approx(gradients(model))


def test_numpy_scalars_are_numbers():
    layer = stock.Rescaling(np.float32(2.0), offset=np.int64(0))
    assert bounds.rules(layer).input_lipschitz((1.0,)) == (2.0,)
