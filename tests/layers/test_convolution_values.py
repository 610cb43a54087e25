"""Values of the convolutions against plain numpy, on shapes where TensorFlow's own may read foreign memory too."""

import keras
import numpy as np
import pytest

from lipdp import layers
from lipdp.norms.exact import _Convolution
from tests.helpers.adversary import Probe

pytestmark = pytest.mark.backend_free


def reference(layer, x):
    """Group by group, from the definition."""
    kernel = keras.ops.convert_to_numpy(layer.kernel).astype("float64") / np.sqrt(layer.multiplicity)
    parts = []
    for channels, filters in zip(
        np.split(x, layer.groups, axis=-1), np.split(kernel, layer.groups, axis=-1), strict=True
    ):
        operator = _Convolution(filters, x.shape[1:-1], layer.strides, layer.padding, layer.dilation_rate)
        parts.append(operator.forward(channels))
    return np.concatenate(parts, axis=-1)


FORWARD = [
    *((layers.SpectralConv1D, (n, c), {"filters": 2, "kernel_size": k, "strides": s, "padding": p})
      for n, c, k, s, p in ((4, 1, 4, 2, "valid"), (5, 1, 4, 3, "valid"), (9, 1, 3, 2, "same"), (7, 2, 2, 3, "valid"))),
    (layers.SpectralConv1D, (9, 4), {"filters": 4, "kernel_size": 3, "dilation_rate": 2, "groups": 2}),
    (layers.SpectralConv2D, (6, 5, 4), {"filters": 4, "kernel_size": 3, "strides": 2, "groups": 2}),
    (layers.SpectralConv2D, (4, 4, 1), {"filters": 2, "kernel_size": 4, "strides": (1, 2), "padding": "valid"}),
    *((layers.SpectralConv3D, shape, {"filters": 2, "kernel_size": k, "strides": s, "padding": p})
      for shape, k, s, p in (
          ((3, 4, 4, 1), (1, 4, 4), (1, 1, 2), "valid"), ((4, 4, 5, 1), 2, (2, 1, 3), "valid"),
          ((4, 3, 5, 2), 3, 2, "same"), ((2, 2, 2, 1), 2, 2, "valid"))),
    (layers.SpectralDepthwiseConv1D, (7, 3), {"kernel_size": 3, "strides": 2, "depth_multiplier": 2}),
    (layers.SpectralDepthwiseConv1D, (4, 1), {"kernel_size": 4, "strides": 2, "padding": "valid"}),
    (layers.SpectralDepthwiseConv2D, (6, 5, 3), {"kernel_size": (3, 2), "strides": 2, "depth_multiplier": 2}),
    (layers.SpectralDepthwiseConv2D, (6, 7, 1), {"kernel_size": 2, "dilation_rate": 2, "padding": "valid"}),
]  # fmt: skip


@pytest.mark.parametrize("kind, shape, arguments", FORWARD, ids=lambda v: getattr(v, "__name__", str(v)))
def test_forward_values(kind, shape, arguments):
    layer = kind(**arguments)
    x = np.random.default_rng(0).standard_normal((33, *shape)).astype("float32")
    y = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_allclose(y, reference(layer, x), atol=2e-6)


BACKWARD = [
    (layers.SpectralConv1DTranspose, (1, 2), {"filters": 1, "kernel_size": 4, "strides": 2, "padding": "valid"}),
    (layers.SpectralConv1DTranspose, (4, 2), {"filters": 2, "kernel_size": 3, "strides": 2}),
    (layers.SpectralConv2DTranspose, (4, 1, 2), {"filters": 1, "kernel_size": (2, 3), "strides": (1, 2)}),
    (layers.SpectralConv2DTranspose, (3, 3, 2), {"filters": 3, "kernel_size": 3, "strides": 2, "padding": "valid"}),
    (layers.SpectralConv2DTranspose, (2, 3, 1), {"filters": 1, "kernel_size": 2, "strides": 3, "padding": "valid"}),
    (layers.SpectralConv3DTranspose, (2, 2, 1, 2), {"filters": 1, "kernel_size": 2, "strides": (1, 2, 2)}),
]


@pytest.mark.parametrize("kind, shape, arguments", BACKWARD, ids=lambda v: getattr(v, "__name__", str(v)))
def test_transposed_values_and_gradients_are_those_of_the_adjoint(kind, shape, arguments):
    probe = Probe(kind(**arguments), shape)
    layer, rng = probe.model.layers[-1], np.random.default_rng(0)
    kernel = keras.ops.convert_to_numpy(layer.kernel).astype("float64") / np.sqrt(layer.multiplicity)
    operator = _Convolution(kernel, probe.output_shape[:-1], layer.strides, layer.padding, 1)
    x, g = rng.standard_normal((33, *shape)), rng.standard_normal((33, *probe.output_shape))
    y, (gradient,), _ = probe.pull([x], g)
    np.testing.assert_allclose(y, operator.adjoint(x), atol=2e-6)
    np.testing.assert_allclose(gradient, operator.forward(g), atol=2e-6)
