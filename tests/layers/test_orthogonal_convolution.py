"""The orthogonal convolution against its exact operator: shifts and matrices one after the other, in float64."""

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import bounds, certify, layers, losses
from lipdp.bounds.check import tightness
from lipdp.bounds.propagate import SLACK
from lipdp.layers.orthogonal_convolution import directions
from tests.helpers.adversary import TOLERANCE, Probe, projected, top, weight_settings

pytestmark = pytest.mark.backend_free

# Channels, filters, kernel, padding, image: odd and even sizes, images smaller than the kernel, one channel.
CASES = [
    (1, 4, 3, "same", (5, 6)),
    (3, 5, 2, "same", (4, 3)),
    (4, 2, (3, 1), "same", (5, 4)),
    (2, 4, 5, "same", (2, 3)),
    (2, 3, (2, 3), "valid", (4, 4)),
    (1, 4, (4, 1), "valid", (4, 1)),
    (2, 5, 3, "circular", (4, 5)),
    (4, 3, (2, 4), "circular", (3, 4)),
    (3, 3, 3, "circular", (3, 3)),
    (2, 3, 1, "same", (2, 2)),
    (1, 1, 3, "circular", (5, 4)),
]


def probe_of(channels, filters, kernel, padding, image):
    return Probe(layers.OrthogonalConv2D(filters, kernel, padding), (*image, channels))


def factors_of(probe):
    return [np.asarray(ops.convert_to_numpy(v), "float64") for v in probe.variables]


def on_a_torus(x, factors, kernel_size):
    """The product of matrices and shifts, as the layer defines it, by rolling images."""
    x = x @ factors[0]
    for axis, factor in zip(directions(kernel_size), factors[1:], strict=True):
        half = x.shape[-1] // 2
        # A tap further on reads what lies one pixel ahead.
        x = np.concatenate([x[..., :half], np.roll(x[..., half:], -1, axis + 1)], axis=-1) @ factor
    return x


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_product_of_its_factors_and_of_shifts(case):
    channels, _, _, padding, (height, width) = case
    probe = probe_of(*case)
    layer = probe.model.layers[-1]
    x = np.random.default_rng(0).standard_normal((2, height, width, channels))
    before = [(k - 1) // 2 if padding != "valid" else 0 for k in layer.kernel_size]
    if padding == "circular":
        found = on_a_torus(x, factors_of(probe), layer.kernel_size)
        expected = np.roll(found, before, (1, 2))
    else:
        # On a torus so large that nothing wraps around.
        room = np.zeros((2, height + 8, width + 8, channels))
        room[:, 4 : 4 + height, 4 : 4 + width] = x
        found = on_a_torus(room, factors_of(probe), layer.kernel_size)
        rows, columns = ops.convert_to_numpy(layer(x.astype("float32"))).shape[1:3]
        expected = found[:, 4 - before[0] : 4 - before[0] + rows, 4 - before[1] : 4 - before[1] + columns]
    y = ops.convert_to_numpy(layer(x.astype("float32")))
    np.testing.assert_allclose(y, layer.scale * expected, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_exact_norm_is_at_most_one_for_all_weights_in_the_ball(case):
    probe = probe_of(*case)
    image = np.zeros((1, *case[-1], case[0]))
    rng = np.random.default_rng(0)
    settings = [weight_settings(v, rng) for v in probe.variables]
    for turn in range(6):
        for variable, choices in zip(probe.variables, settings, strict=True):
            variable.assign(choices[turn % len(choices)].astype("float32"))
        exact = top(probe.input_jacobians(image)[0])
        assert exact <= 1.0 + 1e-6
        assert exact <= certify.lipschitz(probe.model) <= 1.0 + 1e-4


def test_a_search_over_weights_finds_no_norm_above_one():
    """Steps away from orthogonal factors, projected, that are kept where the exact norm grew."""
    rng, image = np.random.default_rng(1), np.zeros((1, 3, 4, 2))
    probe = probe_of(2, 3, (2, 3), "same", (3, 4))
    best = 0.0
    for _ in range(60):
        before = factors_of(probe)
        for variable in probe.variables:
            moved = projected(variable, ops.convert_to_numpy(variable) + 0.3 * rng.standard_normal(variable.shape))
            variable.assign(moved.astype("float32"))
        found = top(probe.input_jacobians(image)[0])
        if found < best:
            for variable, value in zip(probe.variables, before, strict=True):
                variable.assign(value.astype("float32"))
        best = max(best, found)
    assert 0.5 <= best <= 1.0 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "filters", "kernel"), [(2, 2, 3), (1, 4, 3), (3, 5, (2, 4)), (4, 4, 5), (1, 1, 3)]
)
def test_no_norm_is_lost_where_shapes_allow(channels, filters, kernel):
    x = np.random.default_rng(0).standard_normal((2, 9, 9, channels)).astype("float32")
    layer = layers.OrthogonalConv2D(filters, kernel, padding="circular")
    for row, y in zip(x, ops.convert_to_numpy(layer(x)), strict=True):
        np.testing.assert_allclose(np.linalg.norm(y), layer.scale * np.linalg.norm(row), rtol=1e-4)
    # With zeros around, what lies further than a kernel from the border stays inside.
    same = layers.OrthogonalConv2D(filters, kernel, padding="same")
    x[:, :4], x[:, -4:], x[:, :, :4], x[:, :, -4:] = 0.0, 0.0, 0.0, 0.0
    y = ops.convert_to_numpy(same(x))
    np.testing.assert_allclose(np.linalg.norm(y), same.scale * np.linalg.norm(x), rtol=1e-4)


@pytest.mark.slow
def test_with_fewer_filters_no_cotangent_is_lost():
    probe = probe_of(6, 3, 3, "circular", (4, 5))
    values = np.linalg.svd(probe.input_jacobians(np.zeros((1, 4, 5, 6)))[0].squeeze(), compute_uv=False)
    np.testing.assert_allclose(values[: 3 * 4 * 5], probe.model.layers[-1].scale, atol=1e-4)


def test_the_border_loses_norm_and_never_gains():
    x = np.zeros((1, 3, 3, 1), "float32")
    x[0, 0, 0] = 1.0
    layer = layers.OrthogonalConv2D(8, 3)
    assert 0.01 < np.linalg.norm(ops.convert_to_numpy(layer(x))) < 0.999


@pytest.mark.slow
def test_a_kernel_is_larger_than_that_of_division_by_the_taps():
    """What it is for: the same shapes, three times the norm."""
    x = np.random.default_rng(0).standard_normal((1, 12, 12, 16)).astype("float32")
    ratio = {}
    for layer in (layers.OrthogonalConv2D(16, 3), layers.SpectralConv2D(16, 3)):
        ratio[type(layer).__name__] = np.linalg.norm(ops.convert_to_numpy(layer(x))) / np.linalg.norm(x)
    assert ratio["OrthogonalConv2D"] > 0.9 and ratio["SpectralConv2D"] < 0.35


@pytest.mark.slow
def test_trained_factors_below_one_are_certified_as_such():
    probe = probe_of(3, 3, 3, "same", (4, 4))
    for place, variable in enumerate(probe.variables):
        variable.assign((1.0 if place % 2 else 0.9) * ops.convert_to_numpy(variable))
    found = certify.lipschitz(probe.model)
    assert top(probe.input_jacobians(np.zeros((1, 4, 4, 3)))[0]) <= found <= 0.9**3 * 1.001
    probe.variables[1].assign(0.0 * probe.variables[1])
    assert certify.lipschitz(probe.model) == 0.0


@pytest.mark.slow
def test_every_factor_is_kept_in_the_ball_and_starts_different():
    layer = layers.OrthogonalConv2D(4, 3, kernel_initializer=keras.initializers.RandomNormal(stddev=5.0, seed=3))
    layer.build((None, 6, 6, 4))
    values = [np.asarray(ops.convert_to_numpy(factor), "float64") for factor in layer.factors]
    assert len(values) == 5 and all(np.linalg.norm(value, 2) <= 1.0 for value in values)
    for factor in layer.factors:
        pushed = ops.convert_to_numpy(factor.constraint(50.0 * factor + 1.0))
        assert np.linalg.norm(pushed.astype("float64"), 2) <= 1.0 + 1e-6


@pytest.mark.parametrize("size", [1, 3, 5, (1, 7), 11])
def test_factors_at_the_limit_of_the_ball_stay_within_the_slack_of_one_layer(size):
    """`norms.project` left 1 + 1.13e-5 of a kernel of equal entries."""
    layer = layers.OrthogonalConv2D(4, size)
    layer.build((None, 12, 12, 4))
    for factor in layer.factors:
        factor.assign((1.0 + 1.2e-5) * np.eye(4))
    # Multiples of the identity, which shifts do not change: the product's norm is that of the norms.
    norms = [np.linalg.norm(np.asarray(ops.convert_to_numpy(factor), "float64"), 2) for factor in layer.factors]
    assert layer.scale * np.prod(norms) <= (1.0 + SLACK) ** 2


@pytest.mark.parametrize(
    ("size", "expected"),
    [((3, 3), [0, 1, 0, 1]), ((1, 3), [1, 1]), ((3, 1), [0, 0]), ((1, 1), []), ((2, 4), [0, 1, 1, 1])],
)
def test_shifts_go_along_both_axes(size, expected):
    assert directions(size) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.OrthogonalConv2D(0, 3), "`filters` must be a positive integer"),
        (lambda: layers.OrthogonalConv2D(2, (3, 3, 3)), "`kernel_size` must be"),
        (lambda: layers.OrthogonalConv2D(2, 3, "reflect"), "`padding` must be"),
        (lambda: layers.OrthogonalConv2D(2, 3)(keras.Input((4, 4, None))), "known number of channels"),
        (lambda: layers.OrthogonalConv2D(2, 5, "circular")(keras.Input((4, 6, 1))), "does not fit into its input"),
        (lambda: layers.OrthogonalConv2D(2, 5, "valid")(keras.Input((6, 4, 1))), "does not fit into its input"),
        (lambda: layers.OrthogonalConv2D(2, 3, "circular")(keras.Input((None, 6, 1))), "known height and width"),
    ],
)
def test_what_does_not_fit_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["same", "circular"])
def test_gradients_come_close_to_their_bound_and_stay_below(padding):
    reached = tightness(layers.OrthogonalConv2D(4, (2, 3), padding), (3, 4, 2))
    assert 0.7 <= reached["gradient"] <= 1.0 + TOLERANCE and reached["output"] <= 1.0 + TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["clipless", "dpsgd"])
def test_training_keeps_every_factor_in_the_ball(strategy):
    layer = layers.OrthogonalConv2D(4, 3)
    stack = [layers.BoundedInput((6, 6, 1), norm=2.0), layer, layers.GroupSort(), layers.Flatten()]
    model = lipdp.DP_Sequential([*stack, layers.SpectralDense(3)])
    model.compile(keras.optimizers.SGD(5.0), loss=losses.SparseCategoricalCrossentropy(temperature=5.0))
    x = np.random.default_rng(0).uniform(size=(40, 6, 6, 1)).astype("float32")
    before = [ops.convert_to_numpy(factor) for factor in layer.factors]
    budget = {"epsilon": 2.0, "delta": 1e-3, "strategy": strategy}
    model.fit(x, np.arange(40) % 3, batch_size=20, epochs=2, **budget, verbose=0)
    for factor, value in zip(layer.factors, before, strict=True):
        now = ops.convert_to_numpy(factor)
        assert np.linalg.norm(now.astype("float64"), 2) <= 1.0 + 1e-6 and np.abs(now - value).max() > 1e-3
    assert top(Probe(layer, (6, 6, 1)).input_jacobians(np.zeros((1, 6, 6, 1)))[0]) <= 1.0 + 1e-6


def test_gradient_bounds_charge_the_sum_over_positions():
    model = keras.Sequential([keras.Input((224, 224, 3)), layers.BoundedInput(), layers.OrthogonalConv2D(4, 3)])
    terms = 3 * 224 * 224 + 9 * 4 * 6
    for variable in model.trainable_variables:
        found = bounds.propagate(model, 1.0).gradient(variable)
        assert np.exp(terms * 2.0**-24) <= found <= 1.0002 * np.exp(terms * 2.0**-24)
