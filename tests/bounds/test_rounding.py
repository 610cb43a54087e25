"""Float32 sums over many positions: what bounds charge for them, and gradients that try to exceed it."""

import keras
import numpy as np
import pytest
from keras import layers as stock

from lipdp import bounds, layers
from tests.helpers.adversary import Probe


def one_layer(layer, shape, entry=None):
    """A model of one trainable layer, and its bound for inputs and cotangents of norm 1 over the exact one."""
    model = keras.Sequential([keras.Input(shape), entry or layers.BoundedInput(), layer])
    return model, bounds.propagate(model, 1.0).gradient(model.trainable_variables[0])


@pytest.mark.slow
def test_ordinary_sizes_keep_their_bounds():
    for layer, shape in [
        (layers.SpectralDense(3), (1000,)),
        (layers.Bias(), (224, 224, 3)),
        (layers.SpectralConv2D(4, 3, strides=2), (224, 224, 3)),
        (layers.OrthogonalPatchConv2D(8, 16), (224, 224, 3)),
        (layers.SpectralDense(8), (512, 4)),
        (layers.TokenMixing(8), (49, 512)),
    ]:
        assert 1.0 <= one_layer(layer, shape)[1] <= 1.001


@pytest.mark.slow
def test_one_position_costs_no_more_than_the_slack_of_its_layer():
    for layer in (layers.SpectralDense(3), layers.Bias(), stock.Dense(3, use_bias=False)):
        model, bound = one_layer(layer, (4096,))
        assert bound == pytest.approx((1.0 + 1e-5) ** (2 * len(model.layers)), rel=1e-12)


@pytest.mark.parametrize(
    ("layer", "shape", "terms"),
    [
        (layers.Bias(), (1500, 1000, 1), 1224 + 1225),
        (layers.SpectralDense(2), (100_000, 2), 100_000),
        (layers.SpectralConv2D(2, 3, strides=2), (600, 600, 1), 300 * 300),
        (layers.SpectralDepthwiseConv2D(3), (300, 300, 1), 300 * 300),
        (layers.SpectralConv2DTranspose(1, 2, strides=2), (300, 300, 1), 300 * 300),
        (layers.TokenMixing(2), (2, 100_000), 100_000),
        (layers.Householder(), (300, 300, 2), 2 * 300 * 300),
        (stock.Conv2D(2, 3, use_bias=False), (302, 302, 1), 300 * 300),
    ],
)
def test_rounding_of_long_sums_is_charged(layer, shape, terms):
    bound = one_layer(layer, shape)[1]
    exact = 1.0 if not isinstance(layer, stock.Conv2D) else 3.0
    assert np.exp(terms * 2.0**-24) <= bound / exact <= 1.0002 * np.exp(terms * 2.0**-24)


def test_rounding_of_a_layer_that_says_nothing_is_charged_for_all_entries():
    class Scaled(layers.LipschitzLayer):
        def build(self, input_shape):
            self.scale = self.add_weight(shape=())

        def call(self, inputs):
            return inputs * self.scale

        def parameter_bounds(self, input_bounds, cotangent_bound):
            return (input_bounds[0] * cotangent_bound,)

    assert one_layer(Scaled(), (1000, 100))[1] >= np.exp(100_000 * 2.0**-24)


def test_tokens_of_an_open_number_are_refused():
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, stock.GlobalMaxPooling1D()(layers.SpectralDense(4)(inputs)))
    with pytest.raises(ValueError, match="a known size on every axis but the batch"):
        bounds.propagate(model, 1.0, input_bound=1.0)
    assert bounds.propagate(model, 1.0, input_bound=1.0, trained=True).lipschitz <= 1.001


@pytest.mark.parametrize("xla", [False, True] if keras.backend.backend() == "tensorflow" else [False])
@pytest.mark.parametrize(
    ("layer", "shape", "entry"),
    [
        (layers.Bias, (500, 500, 1), layers.BoundedInput),
        (lambda: layers.BoundedEmbedding(2, 1), (100_000,), stock.Identity),
        (lambda: layers.SpectralDense(1), (100_000, 1), layers.BoundedInput),
    ],
    ids=["bias", "embedding", "dense"],
)
def test_gradients_of_equal_terms_stay_within_their_bounds(layer, shape, entry, xla):
    """float32 sums of so many equal terms erred by up to 0.3 %, and the slack was 0.004 %."""
    model, bound = one_layer(layer(), shape, entry())
    probe = Probe(model, shape, xla=xla)
    for value in (1.0, 0.1, 0.3, 0.7):
        x = np.full((1, *shape), 1.0 / np.prod(shape) ** 0.5, "float32")
        y = np.full((1, *model.output_shape[1:]), value, "float32")
        x = x if entry is layers.BoundedInput else np.zeros_like(x)
        found = np.linalg.norm(probe.pull([x], y)[2][0].astype("float64"))
        assert found <= bound * np.linalg.norm(y.astype("float64"))


@pytest.mark.parametrize(
    ("pooling", "constant"),
    [
        (stock.GlobalAveragePooling2D, 1.0 / 256.0),
        (lambda: stock.AveragePooling2D(256), 1.0 / 256.0),
        (layers.GlobalL2NormPooling2D, 1.0),
    ],
    ids=["average", "windows", "norm"],
)
def test_what_is_pooled_from_equal_pixels_stays_within_its_bound(pooling, constant):
    """On TensorFlow the mean of so many equal pixels of three channels erred by 0.07 %, and the slack was 0.004 %."""
    shape = (256, 256, 3)
    stack = [keras.Input(shape), layers.BoundedInput(norm=1e3), pooling(), stock.Flatten(), layers.SpectralDense(2)]
    model = keras.Sequential(stack)
    bound = bounds.propagate(model, 1.0).gradient(model.trainable_variables[0]) / (1e3 * constant)
    for value in np.linspace(0.05, 0.2, 16):
        x = np.full((1, *shape), value, "float32")
        found = np.linalg.norm(np.asarray(stack[2](x), "float64"))
        assert found <= bound * constant * np.linalg.norm(x.astype("float64"))


def test_gradients_of_repeated_entries_stay_within_their_bounds():
    """The gradient of an entry sums those of its copies, on TensorFlow one after the other: it erred by 0.06 %."""
    shape, copies = (1, 3), 2**16
    model = keras.Sequential([keras.Input(shape), layers.BoundedInput(), layers.Bias(), stock.UpSampling1D(copies)])
    bound = bounds.propagate(model, 1.0).gradient(model.trainable_variables[0])
    assert bound >= copies**0.5 * np.exp(copies * 2.0**-24)
    probe = Probe(model, shape)
    for value in (0.1, 0.3, 0.7, 1.0 / 3.0):
        y = np.full((1, copies, 3), value, "float32")
        found = np.linalg.norm(probe.pull([np.zeros((1, *shape), "float32")], y)[2][0].astype("float64"))
        assert found <= bound * np.linalg.norm(y.astype("float64"))


@pytest.mark.parametrize(
    ("pooling", "terms"),
    [
        (stock.GlobalAveragePooling2D, 500 * 500),
        (lambda: stock.AveragePooling2D(500), 500 * 500),
        (layers.GlobalL2NormPooling2D, 500 + 500),
        (lambda: layers.ScaledAveragePooling2D(500), 500 * 500),
        (lambda: layers.L2NormPooling2D(500), 500 * 500),
        (layers.LayerCentering, 500 + 500),
    ],
)
def test_cotangents_are_charged_for_long_sums_of_outputs(pooling, terms):
    """Both ways: the norm of what a mean returns, and of what goes back through a root of a sum."""
    model = keras.Sequential([keras.Input((500, 500, 1)), layers.BoundedInput(), layers.Bias(0.5), pooling()])
    plain, charged = 1.0, bounds.propagate(model, 1.0)
    if pooling is stock.GlobalAveragePooling2D or isinstance(model.layers[-1], stock.AveragePooling2D):
        plain = 1.0 / 500.0
    factor = max(1.0, np.exp((terms + 8) * 2.0**-24) / (1.0 + 1e-5) ** 2)
    assert factor > 1.00003
    assert charged.output_bound == pytest.approx(1.5 * plain * factor, rel=1e-9)
    assert charged.gradient(model.trainable_variables[0]) >= plain * factor


@pytest.mark.backend_free
def test_products_are_charged_for_a_quarter_of_their_terms():
    """A row that is alone in its batch is added up in four strands; 12288 equal terms erred by 0.016 %."""
    model = keras.Sequential([keras.Input((12288,)), layers.BoundedInput(), layers.SpectralDense(2)])
    kernel = model.trainable_variables[0]
    kernel.assign(np.full(kernel.shape, (2.0 * 12288.0) ** -0.5, "float32"))
    for value in (0.1, 0.3, 0.7, 1.3):
        x = np.full((1, 12288), value, "float32")
        found = model.layers[-1](x)
        assert np.linalg.norm(np.asarray(found, "float64")) <= np.linalg.norm(x.astype("float64")) * (
            bounds.propagate(model, 1.0).output_bound * (1.0 + 1e-5) ** 2
        )
