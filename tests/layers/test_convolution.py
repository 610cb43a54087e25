"""The convolution against its exact operator: singular values, patches, image sizes of real use."""

import itertools

import keras
import numpy as np
import pytest

from lipdp import layers
from tests.helpers.adversary import (
    TOLERANCE,
    Probe,
    assign,
    largest_parameter_gradient,
    norm,
    scaled,
    top,
    weight_settings,
)

pytestmark = pytest.mark.backend_free

GEOMETRIES = [
    {"kernel_size": k, "strides": s, "dilation_rate": d, "padding": p}
    for k, (s, d), p in itertools.product((3, 4), ((1, 1), (2, 1), (3, 1), ((1, 2), 1), (1, 2)), ("same", "valid"))
]


def operator(probe):
    """The layer as a (inputs, outputs) matrix: its values on a basis."""
    size = int(np.prod(probe.shapes[0]))
    return probe.value(np.eye(size).reshape(size, *probe.shapes[0])).reshape(size, -1)


def reads(probe):
    """How often a pixel is read at most, from a kernel of ones."""
    layer = probe.model.layers[-1]
    layer.kernel.assign(np.ones(layer.kernel.shape, "float32"))
    matrix = operator(probe) * np.sqrt(layer.multiplicity)
    return np.rint(matrix).sum(axis=1).max() / layer.filters


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: "-".join(str(v) for v in g.values()))
def test_operator_norm_of_every_geometry(geometry):
    layer = layers.SpectralConv2D(2, **geometry)
    shape = (7, 5, 1)
    try:
        layer.compute_output_shape((None, *shape))
    except ValueError:
        pytest.skip("the kernel does not fit")
    probe = Probe(layer, shape)
    for setting in weight_settings(layer.kernel, np.random.default_rng(0)):
        assign([layer.kernel], [setting])
        assert top(operator(probe)) <= 1.0 + TOLERANCE
    # The number of patches a pixel stands in is what the proof counts.
    assert reads(probe) <= layer.multiplicity


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("strides", [1, 2, 3])
def test_orthonormal_rows_reach_the_bound(padding, strides):
    layer = layers.SpectralConv2D(9, 3, strides=strides, padding=padding)
    probe = Probe(layer, (8, 8, 1))
    assign([layer.kernel], [np.eye(9).reshape(3, 3, 1, 9)])
    assert top(operator(probe)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kernel, reached", [(3, 0.9), (5, 0.85)])
def test_constant_image_reaches_the_parameter_bound(kernel, reached):
    probe = Probe(layers.SpectralConv2D(4, kernel), (12, 12, 1))
    found = largest_parameter_gradient(probe, 1.0, np.random.default_rng(0))
    assert reached <= found <= 1.0 + TOLERANCE


@pytest.mark.parametrize("filters, strides, padding", [(9, 1, "same"), (4, 1, "valid"), (16, 2, "same")])
def test_operator_norm_on_mnist_sized_images(filters, strides, padding):
    layer = layers.SpectralConv2D(filters, 3, strides=strides, padding=padding)
    probe = Probe(layer, (28, 28, 1))
    rng = np.random.default_rng(0)
    for setting in weight_settings(layer.kernel, rng):
        assign([layer.kernel], [setting])
        x, found = scaled(rng.standard_normal((1, 28, 28, 1)), 1.0), 0.0
        for _ in range(60):
            y, (gradient,), _ = probe.pull([x], probe.value(x))
            found = max(found, norm(y) / norm(x))
            x = scaled(gradient, 1.0)
        assert found <= 1.0 + TOLERANCE


def test_parameter_gradient_on_mnist_sized_images():
    probe = Probe(layers.SpectralConv2D(3, 3), (28, 28, 1))
    found = largest_parameter_gradient(probe, 1.0, np.random.default_rng(0))
    # 2.9765 of 3 on a constant image, divided by 3 (soundness.md, section 3).
    assert 0.99 <= found <= 1.0 + TOLERANCE


def test_shared_layer_on_more_channels_is_a_grouped_convolution_within_the_bound():
    layer = layers.SpectralConv2D(4, 3)
    layer(keras.Input((6, 6, 1)))
    probe = Probe(layer, (6, 6, 2))
    for setting in weight_settings(layer.kernel, np.random.default_rng(0)):
        assign([layer.kernel], [setting])
        assert top(operator(probe)) <= 1.0 + TOLERANCE
    assert largest_parameter_gradient(probe, 1.0, np.random.default_rng(0)) <= 1.0 + TOLERANCE


@pytest.mark.parametrize("kernel, strides", [((4, 4), (1, 2)), ((2, 2), (1, 3)), ((1, 4), (1, 2)), ((4, 1), (3, 1))])
@pytest.mark.parametrize("shape", [(7, 5, 1), (5, 4, 1), (4, 4, 1)])
def test_one_output_column_reads_the_image_only(kernel, strides, shape):
    # TensorFlow's own convolution returns foreign memory here (oneDNN, one channel, one column).
    layer = layers.SpectralConv2D(2, kernel, strides=strides, padding="valid")
    x = np.random.default_rng(0).standard_normal((35, *shape)).astype("float32")
    y = keras.ops.convert_to_numpy(layer(x))
    weights = keras.ops.convert_to_numpy(layer.kernel) / np.sqrt(layer.multiplicity)
    for i, j in np.ndindex(y.shape[1:3]):
        patch = x[:, i * strides[0] :, j * strides[1] :][:, : kernel[0], : kernel[1]]
        np.testing.assert_allclose(y[:, i, j], np.einsum("bijc,ijco->bo", patch, weights), atol=1e-5)
