"""The scattering front end: its norm bound, its values, and certificates in pixels through it."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify, layers
from lipdp.layers.wavelets import low_pass, morlet
from lipdp.norms import filter_bank_norm
from lipdp.norms.exact import _Convolution
from tests.helpers import streams
from tests.helpers.adversary import Probe, largest_input_jacobians, norm, scaled, top

PRESETS = ("accurate", "robust")


def matrix(kernel, size, stride):
    """A `same` convolution of one channel as a matrix."""
    operator = _Convolution(kernel[:, :, None], size, stride, "same", 1)
    pixels = np.prod(size)
    return operator.forward(np.eye(pixels).reshape(pixels, *size, 1)).reshape(pixels, -1).T


def gaussian(scale):
    return np.outer(low_pass(scale), low_pass(scale))[:, :, None]


def reference(image, weights, scales, angles, constant):
    """The transform of one channel in float64, by matrices."""

    def stage(x, order, last, resolution):
        stride = 2 ** (scales - resolution)
        found = [stride * weights[order] * (matrix(gaussian(scales - resolution), x.shape, stride) @ x.ravel())]
        for j in range(last + 1, scales) if order < 2 else ():
            step = 2 ** (j - resolution)
            kernel = step * morlet(j - resolution, angles)
            size = tuple(-(-n // step) for n in x.shape)
            z = (matrix(kernel, x.shape, step) @ x.ravel()).reshape(*size, 2 * angles)
            for u in np.moveaxis(np.hypot(z[..., :angles], z[..., angles:]), -1, 0):
                found += stage(u, order + 1, j, j)
        return found

    return np.stack(stage(image, 0, -1, 0)) / constant


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "shape, scales, angles",
    [((12, 12, 1), 2, 8), ((9, 11, 2), 2, 3), ((7, 5, 1), 1, 4), ((17, 9, 1), 3, 2), ((3, 75, 1), 1, 2)],
)
def test_values_are_those_of_the_definition(shape, scales, angles):
    weights = (0.3, 1.0, 2.0)
    layer = layers.Scattering2D(weights, scales=scales, angles=angles)
    x = np.random.default_rng(0).random((2, *shape)).astype("float32")
    y = keras.ops.convert_to_numpy(layer(x))
    assert y.shape == (2, *(-(-n // 2**scales) for n in shape[:2]), shape[2] * layer.channels)
    for image, found in zip(x, y, strict=True):
        for channel in range(shape[2]):
            expected = reference(image[..., channel].astype("float64"), weights, scales, angles, layer.constant)
            part = found.reshape(-1, shape[2], layer.channels)[:, channel].T
            # The order of the features is free: only the set counts.
            assert norm(np.sort(part, 0) - np.sort(expected, 0)) <= 1e-5 * norm(expected)
            assert np.allclose(np.sort(norms(part)), np.sort(norms(expected)), rtol=1e-4)


def norms(rows):
    return np.linalg.norm(rows, axis=1)


@pytest.mark.slow
@pytest.mark.backend_free
def test_float32_errs_far_less_than_is_charged():
    layer = layers.Scattering2D("accurate")
    x = np.random.default_rng(1).random((1, 16, 16, 1)).astype("float32")
    y = keras.ops.convert_to_numpy(layer(x))[0].reshape(-1, 81).T
    exact, charged = layer._bound(0, -1, 0, (16, 16))
    expected = reference(x[0, :, :, 0].astype("float64"), (0.1, 1.0, 6.0), 2, 8, layer.constant)
    assert layer.constant == exact + charged and charged < 1e-3 * exact
    assert norm(np.sort(y, 0) - np.sort(expected, 0)) * layer.constant <= 0.05 * charged * norm(x)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [*PRESETS, (3.0, 0.1, 1.0)], ids=str)
def test_no_jacobian_exceeds_one(weights):
    rng = np.random.default_rng(0)
    probe = Probe(layers.Scattering2D(weights), (8, 7, 1))
    (found,) = largest_input_jacobians(probe, (1.0,), rng, steps=2)
    assert found <= 1.0
    # The bound is not loose beyond what is known: moduli lose what the linear maps keep.
    assert found >= {"robust": 0.8, "accurate": 0.4}.get(weights, 0.0)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("weights", PRESETS)
def test_no_pair_of_images_is_moved_apart(weights):
    """Local ascent on the ratio of distances, along the leading singular vectors, at several step sizes."""
    rng = np.random.default_rng(3)
    probe = Probe(layers.Scattering2D(weights), (10, 8, 1))
    plane = np.cos(np.pi * 0.75 * np.arange(8))[None, None, :, None] * np.ones((1, 10, 1, 1))
    best = 0.0
    for x in (np.zeros((1, 10, 8, 1)), plane, rng.random((1, 10, 8, 1))):
        (jacobian,) = probe.input_jacobians(x)
        step = np.linalg.svd(jacobian)[2][0].reshape(x.shape)
        for size in (1e-1, 1.0, 30.0):
            for _ in range(6):
                other = x + scaled(step, size)
                difference = probe.value(other) - probe.value(x)
                best = max(best, norm(difference) / size)
                step = step + 0.5 * scaled(probe.pull([other], difference)[1][0], norm(step))
    assert 0.2 < best <= 1.0 + 1e-6


def test_a_stack_of_convolutions_is_bounded_for_every_size_and_stride():
    rng = np.random.default_rng(5)
    for _ in range(40):
        size = tuple(int(n) for n in rng.integers(2, 9, 2))
        banks, rows = [], []
        for stride in (1, 2, 4)[: rng.integers(1, 4)]:
            kernel = rng.standard_normal((*rng.integers(1, 7, 2), int(rng.integers(1, 4))))
            gain = float(rng.random())
            banks.append((kernel, stride, gain))
            rows.append(gain * matrix(kernel, size, stride))
        exact = top(np.concatenate(rows))
        assert exact * (1 - 1e-12) <= filter_bank_norm(banks, size)


@pytest.mark.parametrize("size", [pytest.param((28, 28), marks=pytest.mark.slow), (16, 13), (9, 20)])
def test_the_norm_of_the_first_stage_is_close_to_exact(size):
    banks = [(gaussian(2), 4, 4.0), (morlet(0, 8), 1, 1.0), (morlet(1, 8), 2, 2.0)]
    gram = sum((gain * (m := matrix(kernel, size, stride))).T @ (gain * m) for kernel, stride, gain in banks)
    exact = float(np.sqrt(np.linalg.eigvalsh(gram)[-1]))
    assert exact <= filter_bank_norm(banks, size) <= 1.02 * exact


def test_strides_that_do_not_nest_are_refused():
    with pytest.raises(ValueError, match=r"divide the largest. Received: strides=\[2, 3\]"):
        filter_bank_norm([(np.ones((1, 1, 1)), 2, 1.0), (np.ones((1, 1, 1)), 3, 1.0)], (6, 6))


def test_the_filters_form_a_littlewood_paley_family():
    """Symmetrised sums: at most 1 up to truncation; every wavelet has mean zero; the low-pass keeps constants."""
    total = np.abs(np.fft.fft2(gaussian(2)[..., 0], (64, 64))) ** 2
    for scale in (0, 1):
        kernels = morlet(scale, 8)
        assert np.abs(kernels.sum(axis=(0, 1))).max() < 1e-12
        total += (np.abs(np.fft.fft2(kernels, (64, 64), axes=(0, 1))) ** 2).sum(-1)
    assert 1.0 <= total.max() < 1.002
    assert total[0, 0] == pytest.approx(1.0)
    one_sided = np.abs(np.fft.fft2(morlet(0, 8)[..., :8] + 1j * morlet(0, 8)[..., 8:], (64, 64), axes=(0, 1))) ** 2
    assert one_sided.sum(-1).max() > 1.2  # the sum that complex images would need


@pytest.mark.slow
@pytest.mark.parametrize("weights", PRESETS)
def test_certificates_are_in_pixels(weights, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.random((20, 8, 8, 1)).astype("float32")
    front = keras.Sequential([keras.Input((8, 8, 1)), layers.Scattering2D(weights)])
    features = front.predict(x, verbose=0)
    head = lipdp.DP_Sequential(
        [layers.BoundedInput((2, 2, 81), norm=3.0), layers.Flatten(), layers.SpectralDense(3, projected=False)]
    )
    whole = keras.Sequential([front, head])
    np.testing.assert_allclose(certify.radii(whole, x), certify.radii(head, features), rtol=1e-3, atol=1e-4)
    constant = certify.lipschitz(whole)
    far = x + 0.3 * rng.standard_normal(x.shape).astype("float32")
    moved = norms(whole.predict(far, verbose=0) - whole.predict(x, verbose=0))
    assert (moved <= constant * norms((far - x).reshape(20, -1))).all()
    whole.save(tmp_path / "whole.keras")
    loaded = keras.saving.load_model(tmp_path / "whole.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), whole.predict(x, verbose=0))
    assert loaded.layers[0].layers[0].constant == front.layers[0].constant
    assert not front.weights


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_head_trains_on_precomputed_features_and_on_images_alike():
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 8, 8, 1)).astype("float32"), rng.integers(0, 2, 60)
    front = layers.Scattering2D("accurate")
    features = keras.Sequential([keras.Input((8, 8, 1)), front]).predict(x, verbose=0)
    kernels = []
    for data, before in ((features, []), (x, [keras.Input((8, 8, 1)), front])):
        head = [layers.BoundedInput((2, 2, 81), norm=1.0), layers.Flatten(), layers.SpectralDense(2, "identity")]
        model = lipdp.DP_Sequential([*before, *head])
        model.compile("sgd", loss="sparse_categorical_crossentropy")
        with streams.of_the_seed_alone():
            model.fit(data, y, batch_size=30, epochs=2, noise_multiplier=1.0, delta=1e-3, seed=1, verbose=0)
        kernels.append(model.get_weights()[0])
    np.testing.assert_allclose(*kernels, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"weights": "accurat"}, "'accurate', 'robust'. Received: weights='accurat'. Or pass three numbers"),
        ({"weights": (1.0, 1.0)}, r"three numbers.*\(1.0, 1.0\)"),
        ({"weights": (1.0, -1.0, 1.0)}, "three numbers from 0"),
        ({"weights": (0, 0, 0)}, "not all zero"),
        ({"weights": 3.0}, "three numbers"),
        ({"scales": 4}, r"`scales` must be an integer in \[1, 3\]. Received: scales=4"),
        ({"angles": 1}, "`angles` must be an integer of at least 2. Received: angles=1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.Scattering2D(**arguments)


@pytest.mark.parametrize(
    "shape, message", [((None, 8, 1), "of a known size"), ((8, 8), "of a known size"), ((3, 8, 1), "every 4 pixels")]
)
def test_images_without_a_bound_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        layers.Scattering2D()(keras.Input(shape))


def test_another_size_is_refused():
    layer = layers.Scattering2D()
    layer(keras.Input((8, 8, 1)))
    with pytest.raises(ValueError, match=r"built for images of size \(8, 8\). Received: \(12, 12\)"):
        layer(keras.Input((12, 12, 1)))
