"""One test per way in which the reference implementation understates a bound.

Named after the rows marked UNSOUND in the audit of lip-dp. Rows on losses, sampling and averaging are tested beside
those; rows 1c, 3c and 3d (circular padding, re-parametrised kernels, their residual wrappers) have no counterpart
here: kernels are projected after the update and nothing is differentiated through a normalisation.
"""

import keras
import numpy as np
import pytest
from keras import layers as stock

import lipdp
from lipdp import bounds, layers, losses
from tests.helpers.adversary import TOLERANCE, Probe, assign, largest_parameter_gradient, norm, scaled, top

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("kernel, size", [(3, 4), (3, 8), (3, 12), (5, 8), (7, 7)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_row_1_averaged_multiplicity_is_not_a_bound(kernel, size, padding):
    """The reference reaches 1.09 (3x3 on 8x8) to 1.32 (7x7 on 7x7) where it claims 1."""
    layer = layers.SpectralConv2D(kernel**2, kernel, padding=padding)
    probe = Probe(layer, (size, size, 1))
    assign([layer.kernel], [np.eye(kernel**2).reshape(kernel, kernel, 1, -1)])
    basis = np.eye(size**2).reshape(-1, size, size, 1)
    assert top(probe.value(basis).reshape(size**2, -1)) <= 1.0 + TOLERANCE


@pytest.mark.parametrize("strides", [1, 2, 3])
def test_row_1b_strides(strides):
    layer = layers.SpectralConv2D(25, 5, strides=strides)
    probe = Probe(layer, (8, 8, 1))
    assign([layer.kernel], [np.eye(25).reshape(5, 5, 1, -1)])
    found = top(probe.value(np.eye(64).reshape(-1, 8, 8, 1)).reshape(64, -1))
    assert 0.79 <= found <= 1.0 + TOLERANCE


@pytest.mark.parametrize(
    "values",
    [np.full(6, 1.9), np.linspace(0.98, 1.2, 6), [5.0] * 6, [1e-3] * 6, [3.0, 1e-4, 1.0, 1.0, 1.0, 1.0]],
    ids=["large", "clustered", "far", "small", "spread"],
)
def test_row_2b_clustered_spectra_are_projected(values):
    """Ten steps of power iteration without Bjorck leave 1.03 to 1.20."""
    layer = layers.SpectralDense(6)
    layer.build((None, 6))
    q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))
    kernel = layer.kernel.constraint(np.asarray((q * np.asarray(values)) @ q.T, "float32"))
    assert top(keras.ops.convert_to_numpy(kernel)) <= 1.0 + 1e-6


@pytest.mark.slow
def test_row_2c_weights_set_by_hand_are_projected_before_training():
    """The reference trains on 5 I until the next step; frozen layers would stay there for good."""
    frozen, trained = layers.SpectralDense(4, trainable=False), layers.SpectralDense(4)
    bias = layers.Bias(0.5)
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), frozen, trained, bias])
    frozen.kernel.assign(5.0 * np.eye(4, dtype="float32"))
    trained.set_weights([5.0 * np.eye(4, dtype="float32")])
    bias.bias.assign(100.0 * np.ones(4, "float32"))
    # Certificates use the norms of the moment.
    assert lipdp.certify.lipschitz(model) >= 25.0
    model.compile(keras.optimizers.SGD(1e-9), losses.MulticlassHinge())
    x, y = np.eye(4, dtype="float32").repeat(8, 0), np.arange(32) % 4
    model.fit(x, np.eye(4)[y], batch_size=16, epochs=1, noise_multiplier=1.0, delta=1e-3, verbose=0)
    for layer in (frozen, trained):
        assert top(keras.ops.convert_to_numpy(layer.kernel)) <= 1.0 + 1e-6
    assert norm(keras.ops.convert_to_numpy(bias.bias)) <= 0.5


@pytest.mark.parametrize("kernel, strides", [(3, 1), (5, 1), (3, 2), (5, 2), (3, 3)])
def test_row_3_and_3b_parameter_gradient_of_a_convolution(kernel, strides):
    """The reference finds 2.91 and 4.68 times its claim (3x3 and 5x5 at stride 1)."""
    layer = layers.SpectralConv2D(4, kernel, strides=strides)
    probe = Probe(layer, (12, 12, 1))
    (claimed,) = layer.parameter_bounds((1.0,), 1.0)
    found = largest_parameter_gradient(probe, 1.0, np.random.default_rng(0))
    assert 0.8 * claimed <= found <= claimed * (1.0 + TOLERANCE)


@pytest.mark.parametrize("size", [1, 8, 28])
def test_row_4_bias_on_feature_maps(size):
    """The reference's gradient is 8 and 28 times its claim on 8x8 and 28x28, its output 3.80 against 1.10."""
    layer = layers.Bias(0.1)
    probe = Probe(layer, (size, size, 2))
    assign([layer.bias], [[0.1, 0.0]])
    g = scaled(np.ones((1, size, size, 2)), 1.0)
    _, _, (gradient,) = probe.pull([g], g)
    assert norm(gradient) == pytest.approx(layer.parameter_bounds((1.0,), 1.0)[0], rel=1e-5)
    x = np.zeros((1, size, size, 2))
    x[..., 0] = 1.0 / size
    assert norm(probe.value(x)) == pytest.approx(layer.output_bound((1.0,)), rel=1e-5)


def test_row_4_bias_shared_by_feature_maps_of_several_sizes():
    """Scaled for the shape it was built on, the gradient would be 4 times the bound here."""
    bias = layers.Bias(1.0, name="shared")
    inputs = keras.Input((8, 8, 2))
    x = layers.BoundedInput(norm=1.0)(inputs)
    small = bias(layers.MaxPooling2D(4)(x))
    model = keras.Model(inputs, layers.Concatenate()([layers.Flatten()(small), layers.Flatten()(bias(x))]))
    probe = Probe(model)
    g = np.concatenate([np.zeros((1, 8)), scaled(np.ones((1, 128)), 1.0)], axis=1)
    _, _, (gradient,) = probe.pull([np.zeros((1, 8, 8, 2))], g)
    # One of the two uses has no cotangent here.
    assert norm(gradient) <= 1.0 + TOLERANCE
    assert bounds.propagate(model, 1.0).gradient(bias.bias) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e-3, 1.0, 100.0])
def test_row_6a_and_6b_l2_pooling_at_every_scale(scale):
    """The epsilon inside the reference's one-dimensional root makes 0.03 out of a zero input."""
    probe = Probe(layers.L2NormPooling2D(2), (8, 8, 2))
    x = scale * np.random.default_rng(0).standard_normal((1, 8, 8, 2))
    assert norm(probe.value(x)) <= norm(x) * (1.0 + TOLERANCE) + 1e-10
    assert norm(probe.value(np.zeros_like(x))) <= 1e-10
    assert top(probe.input_jacobians(x)[0]) <= 1.0 + TOLERANCE


@pytest.mark.parametrize("shape", [(5,), (4, 3), (3, 3, 2)])
def test_row_6c_centering_does_not_mix_the_batch(shape):
    """The reference takes the mean over axis 0 for inputs of rank 2 and 3."""
    layer = layers.LayerCentering()
    x = np.random.default_rng(0).standard_normal((4, *shape)).astype("float32")
    other = x.copy()
    other[1:] += 100.0
    before, after = (keras.ops.convert_to_numpy(layer(v))[0] for v in (x, other))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.SpectralDense(3, activation="exponential"),
        lambda: layers.SpectralDense(3, kernel_regularizer="l2"),
        lambda: layers.GroupSort(k_coef_lip=3.0),
        lambda: layers.L2NormPooling2D(2, k_coef_lip=3.0),
        lambda: layers.BoundedInput(norm=1.0, enforce_clipping=False),
    ],
)
def test_row_6d_unchecked_arguments_do_not_exist(make):
    with pytest.raises((TypeError, ValueError), match="(?i)unrecognized|unexpected"):
        make()


def test_row_6d_unchecked_arguments_that_exist_are_counted_or_refused():
    inputs = keras.Input((4,))
    x = layers.BoundedInput(norm=1.0)(inputs)
    steep = keras.Model(inputs, stock.ReLU(negative_slope=3.0)(x))
    assert bounds.propagate(steep, 1.0).lipschitz == pytest.approx(3.0)
    regularized = layers.SpectralDense(4, activity_regularizer=keras.regularizers.L2(100.0))(x)
    with pytest.raises(ValueError, match="adds a regularizer"):
        bounds.propagate(keras.Model(inputs, regularized), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 4, 6])
def test_row_6e_groupsort_at_ties_through_whole_networks(depth):
    """The reference's first bias gradient is 1.41, 2, 4, 8 times its bound, on a zero example."""
    inputs = keras.Input((8,))
    x = layers.BoundedInput(norm=1.0)(inputs)
    for k in range(depth):
        x = layers.GroupSort()(layers.Bias(name=f"bias_{k}")(layers.SpectralDense(8)(x)))
    model = keras.Model(inputs, layers.SpectralDense(4)(x))
    probe, rng = Probe(model), np.random.default_rng(0)
    propagated = bounds.propagate(model, 1.0)
    for _ in range(4):
        for variable in probe.variables:
            if len(variable.shape) == 2:
                q, _ = np.linalg.qr(rng.standard_normal((8, 8)))
                variable.assign(q[:, : variable.shape[1]].astype("float32"))
        jacobians = probe.parameter_jacobians(np.zeros((1, 8)))
        for variable, jacobian in zip(probe.variables, jacobians, strict=True):
            assert top(jacobian) <= propagated.gradient(variable)


def test_row_7b_shared_layer_and_duplicate_names():
    """The reference keeps one bound for two uses (half of the truth) and for two layers of one name."""
    shared = layers.SpectralDense(4)
    inputs = keras.Input((4,))
    x = layers.BoundedInput(norm=1.0)(inputs)
    model = keras.Model(inputs, shared(x) + shared(layers.Abs()(x)))
    probe = Probe(model)
    claimed = bounds.propagate(model, 1.0).gradient(shared.kernel)
    found = top(probe.parameter_jacobians(scaled(np.ones((1, 4)), 1.0))[0])
    assert found == pytest.approx(2.0, rel=1e-5)
    assert found <= claimed

    def block():
        inner = keras.Input((4,))
        return keras.Model(inner, layers.SpectralDense(4, name="a")(inner))

    model = keras.Model(inputs, block()(block()(x)))
    assert len({id(use.variables[0]) for use in bounds.propagate(model, 1.0).layers if use.variables}) == 2


@pytest.mark.slow
def test_dropout_masks_belong_to_positions_in_the_batch():
    """Not in the audit: with masks known, adding one example changes the gradients of the others.

    The state of a layer's generator is in the model file, so its masks can be computed again.
    """
    rows = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def gradient(batch):
        # Of a kernel behind the mask, for the cotangent (1, 0) of each example: the sum of the masked rows.
        masked = stock.Dropout(0.5, seed=1)(batch, training=True)
        return keras.ops.convert_to_numpy(masked).sum(axis=0)

    moved = norm(gradient(rows) - gradient(rows[1:]))
    # One example alone moves it by 1 / (1 - rate) at most.
    assert moved > 2.0
    with pytest.raises(ValueError, match="draws masks by position in the batch"):
        bounds.rules(stock.Dropout(0.5))
