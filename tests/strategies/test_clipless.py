"""How noise is shared between variables."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lipdp
from lipdp import layers, losses, strategies
from lipdp.strategies import allocate
from tests.helpers.models import blobs, mlp

vectors = st.lists(st.tuples(st.floats(1e-6, 1e3), st.integers(1, 10**6)), min_size=1, max_size=6)


@given(vectors, st.sampled_from(["global", "per_layer", "optimal"]))
def test_every_split_is_one_gaussian_of_multiplier_one(pairs, noise):
    deltas, sizes = zip(*pairs, strict=True)
    std = allocate(deltas, sizes, noise)
    assert sum((d / s) ** 2 for d, s in zip(deltas, std, strict=True)) == pytest.approx(1.0)


@given(vectors)
def test_optimal_has_the_least_energy(pairs):
    deltas, sizes = zip(*pairs, strict=True)

    def energy(noise):
        return sum(d * s * s for d, s in zip(sizes, allocate(deltas, sizes, noise), strict=True))

    assert energy("optimal") <= min(energy("global"), energy("per_layer")) * (1 + 1e-9)


def test_golden_energies():
    """784-512-512-10, equal sensitivities: optimal over global 0.7385."""
    sizes = (784 * 512, 512 * 512, 512 * 10)
    energies = {
        noise: sum(d * s * s for d, s in zip(sizes, allocate((1.0, 1.0, 1.0), sizes, noise), strict=True))
        for noise in strategies.clipless.ALLOCATIONS
    }
    assert energies["optimal"] / energies["global"] == pytest.approx(0.7385, abs=1e-4)
    deltas = (8.0, 2.0, 1.0)
    energies = {
        noise: sum(d * s * s for d, s in zip(sizes, allocate(deltas, sizes, noise), strict=True))
        for noise in strategies.clipless.ALLOCATIONS
    }
    assert energies["optimal"] / energies["global"] == pytest.approx(0.823, abs=1e-3)
    assert energies["optimal"] / energies["per_layer"] == pytest.approx(0.474, abs=1e-3)


def test_a_variable_without_gradient_needs_no_noise():
    assert allocate((1.0, 0.0), (10, 10), "per_layer")[1] == 0.0
    assert allocate((1.0, 0.0), (10, 10), "optimal")[1] == 0.0


def test_probabilities_into_a_loss_on_logits():
    """Names of losses become those of Keras there, which have no bound."""
    body = [layers.BoundedInput((8,), norm=3.0), layers.SpectralDense(1), keras.layers.Activation("sigmoid")]
    model = lipdp.DP_Sequential(body)
    model.compile("sgd", loss=losses.BinaryCrossentropy())
    x, y = blobs(classes=2)
    with pytest.raises(ValueError, match="BinaryCrossentropy takes logits.*ends in sigmoid"):
        model.fit(x, y, epochs=1, batch_size=100, noise_multiplier=1.0, strategy="clipless", verbose=0)
    assert model.run.ledger.updates == 0


def test_sensitivity_of_the_averaged_gradient():
    model = mlp()
    calibration = strategies.Clipless().calibrate(model, model.loss, 40)
    # First kernel 3 * 0.5, bias 0.5, last kernel (3 + 1) * 0.5.
    expected = np.sqrt(1.5**2 + 0.5**2 + 2.0**2) / 40
    assert calibration.sensitivity == pytest.approx(expected, rel=2e-4)
    assert calibration.sensitivity >= expected
    assert calibration.noise_std == pytest.approx((calibration.sensitivity,) * 3)


@pytest.mark.parametrize("noise", ["local", "", None])
def test_unknown_split(noise):
    with pytest.raises(ValueError, match="noise"):
        strategies.Clipless(noise=noise)


@lipdp.row_wise
class _Remembering(layers.LipschitzLayer):
    """Each row is treated alone, and something of all of them is kept."""

    def build(self, input_shape):
        self.seen = self.add_weight(name="seen", shape=input_shape[1:], initializer="zeros", trainable=False)

    def call(self, inputs):
        self.seen.assign(keras.ops.max(keras.ops.abs(inputs), axis=0))
        return inputs


def test_a_declared_layer_that_keeps_something_of_the_rows():
    x, y = blobs(60)
    model = lipdp.DP_Sequential(
        [layers.BoundedInput(x.shape[1:], norm=3.0), _Remembering(), layers.SpectralDense(int(y.max()) + 1)]
    )
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    before = [np.array(weight) for weight in model.get_weights()]
    with pytest.raises(ValueError, match=r"'.*/seen' is changed by the forward pass"):
        model.fit(x, y, batch_size=20, noise_multiplier=1.0, delta=1e-3, verbose=0)
    assert model.privacy.updates == 0
    assert all(map(np.array_equal, before, model.get_weights()))


@lipdp.row_wise
class _Choosy(layers.LipschitzLayer):
    """Takes no numbers but those of its data."""

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)

    def call(self, inputs):
        raise RuntimeError("a number that no row has")


def test_a_declared_layer_that_takes_no_random_inputs_is_refused():
    x, y = blobs(60)
    parts = [layers.BoundedInput(x.shape[1:], norm=3.0), _Choosy(), layers.SpectralDense(int(y.max()) + 1)]
    model = lipdp.DP_Sequential(parts, name="choosy")
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="'choosy' does not run on random inputs[^|]*no row has[^|]*Have these"):
        model.fit(x, y, batch_size=20, noise_multiplier=1.0, delta=1e-3, verbose=0)
    assert model.privacy.updates == 0
