"""Certificates: the Lipschitz constant from above, radii that no attack enters, and metrics that do not overcount."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import bounds, certify, layers
from tests.helpers.adversary import Probe, norm, projected, scaled, starts, top


@pytest.mark.slow
def test_two_outputs_have_no_radius():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"a": layers.SpectralDense(2)(inputs), "b": layers.SpectralDense(1)(inputs)})
    with pytest.raises(ValueError, match="for one output.*with 2.*shares the layers"):
        certify.radii(model, np.zeros((3, 4), "float32"))


def mlp(classes=4, size=6, norm=4.0):
    return lipdp.DP_Sequential(
        [
            layers.BoundedInput((size,), norm=norm),
            layers.SpectralDense(8),
            layers.Bias(0.5),
            layers.Abs(),
            layers.SpectralDense(classes),
            layers.Bias(),
        ]
    )


def cnn(classes=3, norm=5.0):
    return lipdp.DP_Sequential(
        [
            layers.BoundedInput((6, 6, 1), norm=norm),
            layers.SpectralConv2D(4, 3),
            layers.Bias(0.5),
            layers.Abs(),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.SpectralDense(classes),
        ]
    )


def residual(classes=3):
    inputs = keras.Input((6,))
    x = layers.SpectralDense(8)(layers.BoundedInput(norm=4.0)(inputs))
    x = x + layers.GroupSort()(layers.Bias(0.5)(layers.SpectralDense(8)(x)))
    return lipdp.DP_Model(inputs, layers.SpectralDense(classes)(x))


def free(classes=3):
    """A first layer without projection: only the present norm of its kernel is known."""
    return lipdp.DP_Sequential(
        [
            layers.BoundedInput((6,), norm=4.0),
            layers.SpectralDense(8, projected=False),
            layers.Abs(),
            layers.BoundedInput(norm=6.0),
            layers.SpectralDense(classes),
        ]
    )


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "single_output": lambda: mlp(classes=1),
    "two_classes": lambda: mlp(classes=2),
    "residual": residual,
    "free": free,
}


def trained_like(model, seed=0):
    """Weights as noise and updates leave them: inside the constraint, with a spread spectrum."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        value = rng.standard_normal(tuple(variable.shape)) * rng.uniform(0.1, 0.8)
        if len(variable.shape) > 1:
            value += 0.9 * keras.ops.convert_to_numpy(variable)
        if variable.constraint is not None:
            value = projected(variable, value)
        variable.assign(value.astype("float32"))
    return model


def examples(model, count=24, seed=1):
    """Inside, on and outside of the ball of the input, where clipping acts."""
    rng = np.random.default_rng(seed)
    shape = tuple(model.input_shape)[1:]
    x = rng.standard_normal((count, *shape))
    sizes = np.linspace(0.05, 8.0, count)
    return np.stack([scaled(row, size) for row, size in zip(x, sizes, strict=True)]).astype("float32")


def attack(probe, x, radii, restarts=3, steps=30):
    """L2 projected gradient descent on the smallest margin, in balls of 0.999 of the radius; all rows at once."""
    logits = probe.value(x)
    single = logits.shape[1] == 1
    label = logits.argmax(1)
    rows, rng = np.arange(len(x)), np.random.default_rng(0)
    flipped, budget = np.zeros(len(x), bool), 0.999 * radii
    targets = range(1 if single else logits.shape[1])
    for target in targets:
        for restart in range(restarts):
            delta = rng.standard_normal(x.shape) if restart else np.zeros(x.shape)
            delta = _on_ball(delta, budget * (0.5 if restart == 1 else 1.0))
            for step in range(steps):
                g = np.zeros(logits.shape)
                if single:
                    g[:, 0] = -np.sign(logits[:, 0])
                else:
                    g[rows, target] += 1.0
                    g[rows, label] -= 1.0
                y, (gradient,), _ = probe.pull([x + delta], g)
                flipped |= (y[:, 0] > 0) != (logits[:, 0] > 0) if single else y.argmax(1) != label
                moved = delta + _on_ball(gradient, budget * (1.0 if step < steps // 2 else 0.2), exactly=True)
                delta = _on_ball(moved, budget)
    return flipped


def _on_ball(delta, sizes, exactly=False):
    lengths = np.maximum(np.linalg.norm(delta.reshape(len(delta), -1), axis=1), 1e-30)
    factor = sizes / lengths
    factor = factor if exactly else np.minimum(factor, 1.0)
    return delta * factor.reshape(-1, *[1] * (delta.ndim - 1))


@pytest.mark.backend_free
@pytest.mark.parametrize("name", MODELS)
def test_lipschitz_is_above_every_jacobian_found(name):
    model = MODELS[name]()
    probe = Probe(model)
    for seed in range(3):
        trained_like(model, seed)
        claimed, rng, found = certify.lipschitz(model), np.random.default_rng(seed), 0.0
        for x in starts(tuple(model.input_shape)[1:], rng, 2.0):
            for _ in range(4):
                (jacobian,) = probe.input_jacobians(x)
                found = max(found, top(jacobian))
                # Along the direction it stretches most.
                v = np.linalg.svd(jacobian)[2][0].reshape(x.shape)
                x = x + 0.5 * v
        assert found <= claimed
        assert found >= 0.1 * claimed


@pytest.mark.slow
def test_lipschitz_is_reached_by_a_linear_model():
    model = keras.Sequential([keras.Input((5,)), layers.SpectralDense(5), layers.SpectralDense(4)])
    trained_like(model)
    product = keras.ops.convert_to_numpy(model.weights[0]).astype("float64")
    norms = top(product) * top(keras.ops.convert_to_numpy(model.weights[1]))
    assert norms <= certify.lipschitz(model) <= norms * (1.0 + 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_attack_flips_a_prediction_inside_its_radius(name):
    model = trained_like(MODELS[name]())
    x = examples(model)
    radii = certify.radii(model, x)
    assert radii.shape == (len(x),)
    assert (radii >= 0).all() and (radii > 0).any()
    probe = Probe(model)
    assert not attack(probe, x, radii).any()
    # The attack is worth something: well outside of the radii it succeeds.
    assert attack(probe, x, 20.0 * radii + 0.5).any()


def test_radius_of_a_linear_model_is_the_distance_to_the_boundary():
    model = keras.Sequential([keras.Input((3,)), layers.SpectralDense(3, "identity")])
    x = np.array([[1.0, 0.2, 0.1], [0.0, -1.0, 0.5]], "float32")
    np.testing.assert_allclose(certify.radii(model, x), np.array([0.8, 0.5]) / np.sqrt(2), rtol=1e-3)


@pytest.mark.slow
def test_equal_kernels_and_equal_logits_have_no_radius():
    model = keras.Sequential([keras.Input((3,)), layers.SpectralDense(2)])
    model.weights[0].assign(np.full((3, 2), 0.3, "float32"))
    assert certify.radii(model, np.ones((1, 3), "float32")).tolist() == [0.0]
    biased = keras.Sequential([keras.Input((3,)), layers.SpectralDense(2), layers.Bias()])
    biased.weights[0].assign(np.full((3, 2), 0.3, "float32"))
    biased.weights[1].assign([0.5, -0.5])
    # Far away the kernels' own rounding exceeds the biases, unless the inputs are bounded.
    assert 1e4 < certify.radii(biased, np.ones((1, 3), "float32"))[0] < 1e6
    bounded = keras.Sequential([keras.Input((3,)), layers.BoundedInput(norm=9.0), *biased.layers])
    assert certify.radii(bounded, np.ones((1, 3), "float32"))[0] > 1e12


def test_rounding_grows_with_the_distance_where_nothing_bounds_it():
    """The class is that of the biases, until they are smaller than one unit in the last place of the logits."""
    model = keras.Sequential([keras.Input((3,)), layers.SpectralDense(2), layers.Bias()])
    model.weights[0].assign(np.full((3, 2), 0.3, "float32"))
    model.weights[1].assign([-0.5, 0.5])
    x = np.ones((1, 3), "float32")
    radius, probe = certify.radii(model, x)[0], Probe(model)
    far = x * 10.0 ** np.arange(1, 12)[:, None]
    flipped = probe.value(far).argmax(1) != probe.value(x).argmax(1)
    assert flipped.any()
    assert radius < np.linalg.norm(far - x, axis=1)[flipped].min()


def cancelling(norm=60.0, size=784, kind="chain"):
    """A model, and its kernel, which reads what LayerCentering removes: zero, but for the rounding of the mean."""
    inputs = keras.Input((size,))
    bounded = keras.Sequential([keras.Input((size,)), layers.LayerCentering(), layers.BoundedInput(norm=norm)])
    last = layers.SpectralDense(2)
    if kind == "chain":
        outputs = last(layers.BoundedInput(norm=norm)(layers.LayerCentering()(inputs)))
    elif kind == "nested":
        outputs = last(layers.Flatten()(bounded(inputs)))
    else:
        # The other branch is bounded at once, and adds nothing.
        nothing = layers.SpectralDense(2)
        outputs = layers.Add()([last(bounded(inputs)), nothing(layers.BoundedInput(norm=norm)(inputs))])
        nothing.kernel.assign(np.zeros((size, 2)))
    last.kernel.assign(np.array([[1.0, -1.0]] * size) / np.sqrt(2 * size))
    return keras.Model(inputs, outputs), last.kernel


@pytest.mark.parametrize("kind", ["chain", "nested", "branches"])
def test_what_cancels_in_front_of_a_bound_is_not_certified(kind):
    model, kernel = cancelling(kind=kind)
    rng = np.random.default_rng(0)
    x = (30000.0 + rng.standard_normal((200, 784))).astype("float32")
    # All of them are on the boundary: whatever has a radius is wrong.
    assert certify.radii(model, x).max() == 0.0
    # A margin above the rounding has one.
    kernel.assign(np.eye(784, 2))
    assert certify.radii(model, 3.0 * np.eye(1, 784, dtype="float32"))[0] > 1.5


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mlp", marks=pytest.mark.slow),
        "cnn",
        "single_output",
        pytest.param("two_classes", marks=pytest.mark.slow),
        "flat",
    ],
)
def test_rounding_of_a_model_that_begins_with_its_bound_is_that_of_the_bound(name):
    """Whatever the norm of the examples: what is cut off in front adds nothing."""
    flat = [layers.Flatten(), layers.BoundedInput(norm=2.0), layers.SpectralDense(3)]
    model = lipdp.DP_Sequential([keras.Input((2, 3)), *flat]) if name == "flat" else MODELS[name]()
    x = 1e6 * examples(trained_like(model))
    bounded = bounds.propagate(model, 1.0, trained=True)
    assert certify._scale(model, x) == (pytest.approx(bounded.output_bound, rel=1e-6), 0.0)


def test_one_row_that_is_not_finite_takes_no_radius_from_others():
    model = keras.Sequential([keras.Input((3,)), layers.SpectralDense(3, "identity")])
    x = np.array([[1.0, 0.0, 0.0], [np.nan, 0.0, 0.0], [np.inf, 0.0, 0.0]], "float32")
    radii = certify.radii(model, x)
    assert radii[0] == pytest.approx(certify.radii(model, x[:1])[0]) and radii[1:].tolist() == [0.0, 0.0]


def ending(*last, outputs=1):
    body = [layers.BoundedInput((4,), norm=5.0), layers.SpectralDense(8), layers.Abs(), layers.SpectralDense(outputs)]
    return lipdp.DP_Sequential([*body, layers.Bias(), *last])


def frozen_end():
    layer = keras.layers.Dense(1, activation="sigmoid")
    layer.trainable = False
    return layer


ENDS = {
    **{name: lambda name=name: [keras.layers.Activation(name)] for name in ("sigmoid", "hard_sigmoid", "softplus")},
    **{name: lambda name=name: [keras.layers.Activation(name)] for name in ("relu", "relu6")},
    "layer": lambda: [layers.ReLU()],
    "abs": lambda: [layers.Abs()],
    "dense": lambda: [frozen_end()],
    "moved": lambda: [keras.layers.Activation("sigmoid"), layers.Reshape((1, 1)), layers.Flatten()],
    "scaled": lambda: [keras.layers.Activation("sigmoid"), keras.layers.Rescaling(100.0)],
    "to [0, 1]": lambda: [keras.layers.Activation("tanh"), keras.layers.Rescaling([0.5], 0.5)],
    "turned": lambda: [keras.layers.Activation("relu6"), keras.layers.Rescaling(-2.0), keras.layers.LeakyReLU(0.1)],
    "nested": lambda: [keras.Sequential([keras.Input((1,)), keras.layers.Activation("sigmoid")])],
}


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ENDS)
def test_one_output_that_is_never_negative_is_refused(name):
    model, x = ending(*ENDS[name]()), np.ones((2, 4), "float32")
    for certified in (lambda: certify.radii(model, x), lambda: certify.certified_accuracy(model, x, [0, 1])):
        with pytest.raises(ValueError, match="One output must be a logit.*ends in .*from_logits=True"):
            certified()


def test_the_metric_refuses_one_output_that_is_never_negative():
    model = ending(keras.layers.Activation("sigmoid"))
    metric = certify.CertifiedAccuracy(0.5)
    with pytest.raises(ValueError, match="One output must be a logit.*ends in sigmoid"):
        model.compile("sgd", keras.losses.BinaryCrossentropy(), metrics=[metric])
    model = ending(keras.layers.Activation("linear"))
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), metrics=[metric])


def test_the_metric_refuses_a_model_of_low_precision():
    """Two points 2e-5 apart, of different classes, counted as certified within 1e-3."""
    relu = keras.layers.Activation("relu", dtype="mixed_bfloat16")
    model = lipdp.DP_Sequential([layers.BoundedInput((32,), norm=2.0), relu, layers.SpectralDense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match="CertifiedAccuracy for model .*, which computes in bfloat16"):
        model.compile("sgd", loss=loss, metrics=[certify.CertifiedAccuracy(0.001)])
    model.compile("sgd", loss=loss)


SIGNED = {
    **{name: lambda name=name: [keras.layers.Activation(name)] for name in ("tanh", "elu", "linear")},
    "centered": lambda: [keras.layers.Activation("sigmoid"), keras.layers.Rescaling(1.0, -0.5)],
    "bent": lambda: [keras.layers.ReLU(negative_slope=0.5)],
}


@pytest.mark.parametrize("end", SIGNED)
def test_one_output_of_either_sign_is_certified(end):
    model = trained_like(ending(*SIGNED[end]()))
    x = examples(model)
    radii = certify.radii(model, x)
    assert (radii > 0).any() and not attack(Probe(model), x, radii).any()


def test_several_outputs_behind_a_sigmoid_have_the_radii_of_the_largest():
    model = trained_like(ending(keras.layers.Activation("sigmoid"), outputs=3))
    x = examples(model)
    radii = certify.radii(model, x)
    assert (radii > 0).any() and not attack(Probe(model), x, radii).any()


def test_weights_outside_of_the_constraint_shrink_the_radius():
    model = trained_like(mlp())
    x = examples(model)
    before = certify.lipschitz(model)
    kernel = model.trainable_variables[0]
    kernel.assign(3.0 * keras.ops.convert_to_numpy(kernel))
    assert certify.lipschitz(model) == pytest.approx(3.0 * before, rel=1e-4)
    assert not attack(Probe(model), x, certify.radii(model, x)).any()


def test_rounding_follows_biases_outside_of_the_constraint():
    """Before, the class changed within a twentieth of a radius: what is below 1/128 is lost beside such biases."""
    ends = [layers.Bias(), layers.Abs(), layers.SpectralDense(2)]
    model = keras.Sequential([keras.Input((2,)), layers.BoundedInput(norm=1.0), *ends])
    model.weights[0].assign([1e5, 1e5])
    model.weights[1].assign(np.array([[0.5, -0.5], [-0.5, 0.5]], "float32"))
    x = np.array([[0.4024, 0.4022], [0.4022, 0.4024]], "float32")
    assert Probe(model).value(x).argmax(1).tolist() == [0, 1]
    assert certify.radii(model, x).max() < np.linalg.norm(x[0] - x[1])
    model.weights[0].assign([0.0, 0.0])
    assert (certify.radii(model, x) > 1e-5).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_biases_that_are_not_finite_leave_no_radius(value):
    model = keras.Sequential([keras.Input((2,)), layers.Bias(), layers.Abs(), layers.SpectralDense(2)])
    model.weights[0].assign([value, 0.0])
    assert certify.radii(model, np.eye(2, dtype="float32")).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("floatx", ["float16", "bfloat16"])
def test_examples_that_keras_rounds_have_no_certificate(floatx):
    """Before, (5.0018, 5.0021) and (5.002, 5.0018) had two classes, 4e-4 apart, and radii of 2.6e-3."""
    model = keras.Sequential([keras.Input((2,)), layers.BoundedInput(norm=10.0), layers.SpectralDense(2)])
    x, before = np.array([[5.0018, 5.0021], [5.002, 5.0018]], "float32"), keras.config.floatx()
    try:
        keras.config.set_floatx(floatx)
        with pytest.raises(ValueError, match=f"rounds examples.*{floatx}.*set_floatx"):
            certify.radii(model, x)
        with pytest.raises(ValueError, match=f"rounds examples.*{floatx}.*set_floatx"):
            certify.certified_accuracy(model, x, [1, 0])
    finally:
        keras.config.set_floatx(before)
    assert certify.radii(model, x).shape == (2,)


def test_margin_that_is_rounding_error_is_not_certified():
    """Logits that cancel: without a bound on its inputs, the model's own tell how large the errors are."""
    model = keras.Sequential([keras.Input((2,)), layers.SpectralDense(2)])
    # Columns (1, -1) / 2 and their opposite: x = (c, c) is on the boundary, whatever c.
    model.weights[0].assign(np.array([[0.5, -0.5], [-0.5, 0.5]], "float32"))
    x = np.array([[1e6, 1e6 + 0.0625], [1e6, 1e6 - 0.0625]], "float32")
    assert certify.radii(model, x).tolist() == [0.0, 0.0]
    assert (certify.radii(model, x / 1e6 + np.array([[0.1, 0.0]], "float32")) > 0).all()


@pytest.mark.parametrize("size", [224, 512])
def test_no_equal_pixels_flip_a_prediction_inside_their_radius(size):
    """Averages of many equal pixels are rounded alike: at 224 x 224 x 3 a radius was twice as large as it may be."""
    stack = [keras.Input((size, size, 3)), keras.layers.GlobalAveragePooling2D(), layers.SpectralDense(2)]
    model = keras.Sequential(stack)
    model.weights[0].assign(np.array([[0.5, -0.5], [-0.5, 0.5], [0.0, 0.0]], "float32"))
    x = np.full((9, size, size, 3), 0.1, "float32")
    x[..., 0] = np.linspace(0.0999, 0.1001, 9)[:, None, None]
    radii, classes = certify.radii(model, x, batch_size=1), model.predict(x, batch_size=1, verbose=0).argmax(axis=1)
    values = x[:, 0, 0, 0].astype("float64")
    apart = size * np.abs(values[:, None] - values)
    assert not ((classes[:, None] != classes) & (apart < radii[:, None])).any()


def test_a_mean_of_many_equal_pixels_is_removed():
    """On TensorFlow it was off by 0.07 % of the pixels, far more than a certificate allows for."""
    x = np.full((1, 256, 256, 3), 0.1, "float32")
    assert norm(layers.LayerCentering()(x)) < 2e-5 * norm(x)
    model = keras.Sequential([keras.Input((3, 8, 2)), layers.LayerCentering(axis=(-2,))])
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 2)).astype("float32")
    np.testing.assert_allclose(model.predict(x, verbose=0), x - x.mean(axis=2, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("axis", [None, 1, (2, 1), (1, 3), -1])
def test_centering_by_blocks_is_centering(axis):
    x = np.random.default_rng(0).normal(1.0, size=(2, 20, 15, 130)).astype("float32")
    layer = layers.LayerCentering(axis=axis)
    axes = (1, 2) if axis is None else axis
    expected = x - x.astype("float64").mean(axis=axes, keepdims=True)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, atol=1e-5)


def test_rounding_of_many_layers_adds_up():
    """In 400 layers whose roundings went one way, most points inside of a radius had another class."""
    inputs, layer = keras.Input((2,)), layers.SpectralDense(2, "identity")
    x = layers.BoundedInput(norm=1.5)(inputs)
    for _ in range(300):
        x = layer(x)
    deep = keras.Model(inputs, x)
    deep.compile(run_eagerly=True)
    margins = np.array([[1.0, 1.0 - 4e-5], [1.0, 1.0 - 1e-4]], "float32")
    found = certify.radii(deep, margins)
    assert found[0] == 0.0 and 2e-5 < found[1] < 5e-5


def test_a_certificate_needs_the_number_of_places_of_an_average():
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, layers.SpectralDense(2)(keras.layers.GlobalAveragePooling2D()(inputs)))
    with pytest.raises(ValueError, match="whose input shape is not known. Give the input of the model a full shape"):
        certify.radii(model, np.zeros((2, 4, 4, 3), "float32"))


def test_large_integers_are_what_they_are_as_floats():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.BoundedInput(norm=3.0), layers.SpectralDense(3)])
    x = np.random.default_rng(0).normal(size=(6, 4)) * 2.0**40
    whole = np.trunc(x).astype("int64")
    np.testing.assert_array_equal(certify.radii(model, whole), certify.radii(model, whole.astype("float32")))


def test_inputs_that_are_not_numbers_have_radius_zero():
    model = trained_like(mlp())
    x = examples(model)
    x[0, 0], x[1, 0] = np.nan, np.inf
    radii = certify.radii(model, x)
    assert radii[:2].tolist() == [0.0, 0.0]
    assert np.isfinite(radii).all()


def test_normalisation_and_outputs_with_positions_are_refused():
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0, mode="normalize"), layers.SpectralDense(3)])
    with pytest.raises(ValueError, match=r"Certificates need BoundedInput\(mode='clip'\)"):
        certify.radii(model, np.ones((1, 4), "float32"))
    tokens = keras.Sequential([keras.Input((5, 4)), layers.SpectralDense(3)])
    with pytest.raises(ValueError, match="one vector of logits per example"):
        certify.radii(tokens, np.ones((1, 5, 4), "float32"))
    with pytest.raises(ValueError, match="has no sensitivity bound"):
        certify.lipschitz(keras.Sequential([keras.Input((4,)), keras.layers.LayerNormalization()]))


@pytest.mark.parametrize("change", ["scale", "activation"])
def test_settings_of_layers_that_were_changed_since_the_last_prediction_count(change):
    """What `predict` has compiled keeps the old ones: with a scale of 0.01 radii were a hundred times too large."""
    stack = [keras.Input((4,)), keras.layers.Rescaling(1.0), keras.layers.Activation("linear")]
    model, x = keras.Sequential([*stack, layers.SpectralDense(2)]), np.eye(4, dtype="float32")
    for _ in range(2):  # after a plain prediction, and after one of its own
        model.predict(x, verbose=0)
        certify.radii(model, x)
        if change == "scale":
            model.layers[0].scale *= 0.01
        else:
            model.layers[1].activation = keras.activations.sigmoid
        assert not attack(Probe(model), x, certify.radii(model, x)).any()
        again = keras.Sequential([keras.Input((4,)), *model.layers])
        np.testing.assert_allclose(certify.radii(model, x), certify.radii(again, x), rtol=1e-5)


class Gain(keras.layers.Layer):
    """Keras makes its configuration from what the constructor was given."""

    def __init__(self, gain, **kwargs):
        super().__init__(**kwargs)
        self.gain = gain

    def call(self, inputs):
        return inputs * self.gain


def test_settings_of_own_layers_that_were_changed_since_the_last_prediction_count():
    """They need not be in its configuration: with a gain of 1 in place of 100, radii were a hundred times too large."""
    bounds.register(Gain, lambda layer: abs(layer.gain))
    model = keras.Sequential([keras.Input((4,)), layers.SpectralDense(2), Gain(100.0)])
    x = np.eye(4, dtype="float32")
    before = certify.radii(model, x)
    model.layers[-1].gain = 1.0
    np.testing.assert_allclose(certify.radii(model, x), before, rtol=1e-2)


@pytest.mark.parametrize("name", ["predict", "predict_step", "make_predict_function"])
def test_predictions_that_are_not_what_the_layers_compute_are_refused(name):
    """With a `predict_step` that multiplies by ten, radii were ten times too large."""
    own = type("Own", (keras.Model,), {name: lambda self, *args: 10.0 * getattr(keras.Model, name)(self, *args)})
    inputs = keras.Input((4,))
    model, x = own(inputs, layers.SpectralDense(2)(inputs)), np.eye(4, dtype="float32")
    with pytest.raises(ValueError, match=f"of Own, with a `{name}` of its own"):
        certify.radii(model, x)
    assert certify.radii(keras.Model(model.inputs, model.outputs), x).shape == (4,)


def test_subclass_of_the_last_layer_is_not_trusted_to_be_linear():
    class Steeper(layers.SpectralDense):
        def input_lipschitz(self, input_bounds):
            return (5.0,)

        def trained_lipschitz(self, input_bounds):
            return (5.0,)

        def parameter_bounds(self, input_bounds, cotangent_bound):
            return super().parameter_bounds(input_bounds, 5.0 * cotangent_bound)

        def gradient_terms(self, input_shapes, output_shape):
            return super().gradient_terms(input_shapes, output_shape)

        def output_terms(self, input_shapes, output_shape):
            return super().output_terms(input_shapes, output_shape)

        def call(self, inputs):
            return 5.0 * super().call(inputs)

    model = lipdp.DP_Sequential([layers.BoundedInput((6,), norm=4.0), Steeper(3)])
    x = examples(model)
    assert not attack(Probe(model), x, certify.radii(model, x)).any()


@pytest.mark.parametrize("name", ["mlp", "single_output", "cnn"])
def test_certified_accuracy_falls_with_the_radius(name):
    model = trained_like(MODELS[name]())
    x = examples(model, 60)
    logits = Probe(model).value(x)
    truth = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(1)
    truth[::3] = (truth[::3] + 1) % max(logits.shape[1], 2)
    at = (0.0, 0.01, 0.1, 0.2, 0.5, 1.0, 50.0)
    found = certify.certified_accuracy(model, x, truth, at=at)
    values = [found[r] for r in at]
    assert values[0] == pytest.approx(40 / 60)
    assert values == sorted(values, reverse=True)
    assert values[1] > values[-1] == 0.0
    if logits.shape[1] > 1:
        hot = np.eye(logits.shape[1])[truth]
        assert certify.certified_accuracy(model, x, hot, at=at) == found
    assert certify.certified_accuracy(model, x, truth[:, None], at=at) == found


def test_labels_of_another_length_are_refused():
    model = mlp()
    with pytest.raises(ValueError, match="same length. Received: 24 and 3"):
        certify.certified_accuracy(model, examples(model), [0, 1, 2])


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["mlp", "single_output", "cnn", "two_classes"])
@pytest.mark.parametrize(
    "radius", [0.0, pytest.param(0.05, marks=pytest.mark.slow), 0.1, pytest.param(0.3, marks=pytest.mark.slow)]
)
def test_metric_never_counts_more_than_is_certified(name, radius):
    model = trained_like(MODELS[name]())
    x = examples(model, 200)
    logits = Probe(model).value(x)
    truth = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(1)
    truth[::4] = (truth[::4] + 1) % max(logits.shape[1], 2)
    metric = certify.CertifiedAccuracy(radius)
    metric.update_state(truth, logits)
    counted = round(float(metric.result()) * len(x))
    exact = certify.certified_accuracy(model, x, truth, at=(radius,))[radius]
    assert counted <= round(exact * len(x))
    if radius == 0.0:
        assert counted >= 0.9 * round(exact * len(x))


@pytest.mark.slow
def test_metric_stays_below_at_the_boundary_itself():
    """A margin of exactly sqrt(2) r, where a bare comparison would count and rounding decide."""
    model = lipdp.DP_Sequential(
        [layers.BoundedInput((2,), norm=1.0), layers.SpectralDense(2, kernel_initializer="identity")]
    )
    radius = 0.1
    gaps = np.sqrt(2.0) * radius * (1.0 + np.linspace(-3e-4, 3e-3, 400))
    x = np.stack([np.full(400, 0.5), 0.5 - gaps], axis=1).astype("float32")
    logits, truth = Probe(model).value(x), np.zeros(400, int)
    for k in range(0, 400, 7):
        metric = certify.CertifiedAccuracy(radius)
        metric.update_state(truth[k : k + 1], logits[k : k + 1])
        certified = certify.radii(model, x[k : k + 1])[0] > radius
        assert float(metric.result()) <= float(certified)
    metric = certify.CertifiedAccuracy(radius)
    metric.update_state(truth, logits)
    assert 0.0 < float(metric.result()) < 1.0


def test_metric_labels_weights_and_file():
    logits = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.1, 0.0], [3.0, 0.0, 0.0]], "float32")
    truth = np.array([0, 1, 1, 2])
    sparse, column, hot, padded = (certify.CertifiedAccuracy(0.5) for _ in range(4))
    sparse.update_state(truth, logits)
    column.update_state(truth[:, None], logits)
    hot.update_state(np.eye(3)[truth], logits)
    padded.update_state(truth, logits, sample_weight=[1.0, 0.0, 0.0, 0.0])
    assert [float(m.result()) for m in (sparse, column, hot, padded)] == [0.5, 0.5, 0.5, 1.0]
    # A second batch of nothing but padding changes nothing.
    padded.update_state(truth, logits, sample_weight=np.zeros((4, 1)))
    assert float(padded.result()) == 1.0

    copy = keras.metrics.deserialize(keras.metrics.serialize(sparse))
    assert copy.get_config() == sparse.get_config()
    assert copy.name == "certified_accuracy_0.5"
    assert float(copy.result()) == 0.0
    sparse.reset_state()
    assert float(sparse.result()) == 0.0


def test_metric_does_not_count_labels_out_of_range_or_nan():
    metric = certify.CertifiedAccuracy(0.1)
    metric.update_state([-1, 3, 7], np.full((3, 3), -5.0, "float32"))
    metric.update_state([0], np.array([[np.nan, 0.0, 0.0]], "float32"))
    assert float(metric.result()) == 0.0


def test_metric_of_one_output_splits_labels_as_certified_accuracy_does():
    metric = certify.CertifiedAccuracy(0.1)
    metric.update_state([1, 0, 0, 1, -1], np.array([[1.0], [-1.0], [1.0], [0.05], [-2.0]], "float32"))
    assert float(metric.result()) == pytest.approx(3 / 5)


@pytest.mark.parametrize("arguments", [{"radius": -1.0}, {"radius": float("nan")}, {"radius": 1.0, "lipschitz": 0.0}])
def test_metric_refuses_bad_arguments(arguments):
    with pytest.raises(ValueError, match="`(radius|lipschitz)` must be a finite number"):
        certify.CertifiedAccuracy(**arguments)


@pytest.mark.slow
def test_metric_in_compile_and_evaluate():
    model = trained_like(mlp())
    x = examples(model, 40)
    truth = Probe(model).value(x).argmax(1)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[certify.CertifiedAccuracy(0.05)])
    logs = model.evaluate(x, truth, batch_size=16, verbose=0, return_dict=True)
    exact = certify.certified_accuracy(model, x, truth, at=(0.05,))[0.05]
    assert 0.0 < logs["certified_accuracy_0.05"] <= exact + 1e-6


def test_several_inputs_share_one_norm():
    """The radius is in the norm of all inputs together."""
    left, right = keras.Input((3,)), keras.Input((3,))
    joined = layers.Add()([layers.BoundedInput(norm=2.0)(left), layers.BoundedInput(norm=2.0)(right)])
    model = trained_like(lipdp.DP_Model([left, right], layers.SpectralDense(2)(joined)))
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((6, 3)).astype("float32") for _ in range(2)]
    radii, probe = certify.radii(model, xs), Probe(model)
    logits = probe.value(*xs)
    g = np.where(np.eye(2)[logits.argmax(1)] > 0, -1.0, 1.0)
    moved = [x.astype("float64") for x in xs]
    for _ in range(20):
        _, gradients, _ = probe.pull(moved, g)
        for k in range(6):
            step = np.concatenate([gradient[k] for gradient in gradients])
            step *= 0.999 * radii[k] / max(norm(step), 1e-30)
            for part, x, piece in zip(moved, xs, np.split(step, 2), strict=True):
                part[k] = x[k] + piece
        assert (probe.value(*moved).argmax(1) == logits.argmax(1)).all()


def test_a_layer_that_leads_nowhere_certifies_nothing():
    left, right = keras.Input((3,)), keras.Input((3,))
    ignoring = keras.Model([left, right], layers.Bias()(left))
    inputs = keras.Input((3,))
    hidden = layers.BoundedInput(norm=5.0)(inputs)
    used, unused = layers.SpectralDense(3), layers.SpectralDense(3)
    model = keras.Model(inputs, ignoring([used(hidden), unused(hidden)]))
    used.kernel.assign(np.eye(3))
    unused.kernel.assign(np.full((3, 3), 0.1))
    assert 0.0 < certify.radii(model, np.array([[1.0, 0.0, 0.0]], "float32"))[0] <= 0.5**0.5


def test_what_is_not_finite_has_no_radius():
    model = trained_like(lipdp.DP_Sequential([layers.BoundedInput((3,), norm=2.0), layers.SpectralDense(2)]))
    x = np.array([[np.nan, 0.0, 0.0], [np.inf, 0.0, 0.0], [1.0, 0.0, 0.0]], "float32")
    assert (certify.radii(model, x)[:2] == 0.0).all()


def test_a_last_layer_that_is_used_twice_is_not_taken_apart():
    inputs, shared = keras.Input((3,)), layers.SpectralDense(3)
    model = keras.Model(inputs, shared(layers.Abs()(shared(layers.BoundedInput(norm=2.0)(inputs)))))
    shared.kernel.assign(np.diag([1.0, 0.5, 0.1]))
    expected = np.full((3, 3), np.sqrt(2.0) * certify.lipschitz(model))
    np.testing.assert_allclose(certify._pair_constants(model), expected, rtol=1e-12)


@pytest.mark.backend_free
@pytest.mark.parametrize("layer", [keras.layers.Dropout(0.5), keras.layers.RandomTranslation(0.1, 0.1)])
def test_a_layer_that_acts_in_training_only_names_the_way_out(layer):
    """Before, the advice was that of training without clipping, and then to copy weights, which left the ledger."""
    model = lipdp.DP_Sequential([keras.Input((3, 3, 1)), layer, keras.layers.Flatten(), keras.layers.Dense(2)])
    x = np.random.default_rng(0).normal(size=(3, 3, 3, 1)).astype("float32")
    model.compile("sgd", loss="mse", run_eagerly=True)
    how = {"steps_per_epoch": 1, "noise_multiplier": 1.0, "delta": 0.1, "accountant": "rdp", "verbose": 0}
    model.fit(x, np.eye(3)[:, :2], batch_size=1, strategy="dpsgd", **how)
    with pytest.raises(ValueError, match=f"a {type(layer).__name__}, in model.*Rebuild the model of its other layers"):
        certify.radii(model, x)
    rebuilt = keras.Sequential([keras.Input((3, 3, 1)), *(each for each in model.layers if each.name != layer.name)])
    np.testing.assert_array_equal(rebuilt.predict(x, verbose=0), model.predict(x, verbose=0))
    assert (certify.radii(rebuilt, x) > 0.0).all()
    assert lipdp.DP_Sequential.from_keras(rebuilt).privacy.epsilon() == model.privacy.epsilon() > 0.0


@pytest.mark.backend_free
def test_all_layers_that_act_in_training_only_are_named_at_once():
    drops = [keras.layers.Dropout(0.5, name="first"), keras.layers.GaussianNoise(0.1, name="second")]
    model = lipdp.DP_Sequential([keras.Input((3,)), *drops, keras.layers.Dense(2)])
    with pytest.raises(
        ValueError, match=r"'first', a Dropout, 'second', a GaussianNoise.*not in \['first', 'second'\]"
    ):
        certify.radii(model, np.ones((2, 3), "float32"))


@pytest.mark.backend_free
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_inputs_that_are_rounded_have_no_certificate(dtype, nested):
    """Before, 0.999 was another class than 1, at a radius of 0.7."""
    model = keras.Sequential([keras.Input((3,), dtype=dtype), layers.SpectralDense(3)])
    if nested:
        model = keras.Sequential([keras.Input((3,)), layers.BoundedInput(norm=4.0), model])
    for certified in (certify.lipschitz, lambda model: certify.radii(model, np.eye(3))):
        with pytest.raises(ValueError, match=f"dtype {dtype}.*keras.Input in float32 of the same layers"):
            certified(model)
