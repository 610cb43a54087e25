"""The noise generator: known answers, distribution, keys, and the same values however it is run."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

from lipdp import backend
from lipdp.backend import threefry

SIZE = 1_000_001


def key(*words):
    return ops.convert_to_tensor(np.array(words, "uint32"))


def draw(size, *words):
    return np.asarray(backend.normal(size, key(*words)))


def compiled(function):
    """The function inside the other ways in which training runs it."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return [tf.function(function), tf.function(function, jit_compile=True)]
    import jax

    return [jax.jit(function)]


@pytest.fixture(scope="module")
def values():
    return draw(SIZE, 123, 456).astype("float64")


@pytest.mark.parametrize(
    "words, counter, expected",
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_cipher_gives_the_published_answers(words, counter, expected):
    a, b = threefry.threefry(key(*words), key(counter[0]), key(counter[1]))
    assert (int(a[0]), int(b[0])) == expected


def test_quantile_is_exact_to_float32_over_all_magnitudes():
    magnitudes = np.unique(np.concatenate([np.geomspace(1, 2**31 - 1, 40_000), np.arange(1000)]).astype("uint32"))
    z = np.asarray(threefry.quantile(ops.convert_to_tensor(magnitudes * np.uint32(2)))).astype("float64")
    exact = -stats.norm.ppf((magnitudes.astype("float64") * 2.0**-31 + 2.0**-32) / 2)
    assert np.max(np.abs(z - exact) / np.maximum(exact, 0.1)) < 2e-6
    opposite = threefry.quantile(ops.convert_to_tensor(magnitudes * np.uint32(2) + np.uint32(1)))
    np.testing.assert_array_equal(np.asarray(opposite), -z)
    assert z.max() > 6.2


def test_moments(values):
    assert abs(values.mean()) < 4 / SIZE**0.5
    assert abs(values.std() - 1) < 4 * (2 * SIZE) ** -0.5
    assert abs(stats.skew(values)) < 4 * (6 / SIZE) ** 0.5
    assert abs(stats.kurtosis(values)) < 4 * (24 / SIZE) ** 0.5


def test_distribution(values):
    assert stats.kstest(values, "norm").pvalue > 1e-3
    for tail in (2.0, 3.0, 4.0):
        expected = SIZE * 2 * stats.norm.sf(tail)
        assert abs(np.sum(np.abs(values) > tail) - expected) < 4 * expected**0.5


def test_distribution_over_many_keys():
    p_values = [stats.kstest(draw(20_000, k, 7), "norm").pvalue for k in range(60)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_values_are_uncorrelated_and_distinct(values):
    limit = 4 / SIZE**0.5
    # 1024 is the distance of the two values of one block, 2048 the length of a row.
    for lag in (1, 2, 3, 4, 512, 1023, 1024, 1025, 2048, 500_000):
        assert abs(np.mean(values[:-lag] * values[lag:])) < limit * (SIZE / (SIZE - lag)) ** 0.5
        assert abs(np.mean((values[:-lag] ** 2 - 1) * (values[lag:] ** 2 - 1))) < 2 * limit * 1.5
    # 24-bit values repeat by chance; bits shared between values would repeat far more of them.
    assert len(np.unique(values)) > 0.95 * SIZE


def test_neighbouring_keys_give_independent_noise(values):
    for other in (draw(SIZE, 124, 456), draw(SIZE, 123, 457), draw(SIZE, 456, 123)):
        assert abs(np.corrcoef(values, other)[0, 1]) < 4 / SIZE**0.5


def test_same_values_eager_and_compiled():
    reference = draw(5001, 1, 2)
    for run in compiled(lambda k: backend.normal(5001, k)):
        np.testing.assert_allclose(np.asarray(run(key(1, 2))), reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1, 2, 3, 1023, 1024, 1025, 2047, 2048, 2049])
def test_sizes_are_prefixes(size):
    assert draw(size, 1, 2).shape == (size,)
    np.testing.assert_array_equal(draw(size, 1, 2), draw(5000, 1, 2)[:size])


@pytest.mark.parametrize("size", [0, -1, 2**34])
def test_refuses_a_size_out_of_range(size):
    with pytest.raises(ValueError, match="`size` must be"):
        backend.normal(size, key(1, 2))


def test_ratchet_is_the_same_everywhere():
    reference = [np.asarray(k) for k in backend.ratchet(key(5, 6))]
    assert all(k.dtype == np.uint32 and k.shape == (2,) for k in reference)
    for run in compiled(backend.ratchet):
        np.testing.assert_array_equal([np.asarray(k) for k in run(key(5, 6))], reference)


def test_ratchet_never_repeats_and_never_meets_the_noise():
    state, seen = key(0, 0), set()
    for _ in range(500):
        noise_key, state = backend.ratchet(state)
        seen.update({tuple(np.asarray(noise_key).tolist()), tuple(np.asarray(state).tolist())})
    assert len(seen) == 1000
    bits = np.array(sorted(seen), "uint32").view("uint8")
    assert abs(np.unpackbits(bits).mean() - 0.5) < 4 * 0.5 / (1000 * 64) ** 0.5
    # The counters of domain 1 are not those of the noise.
    noise = threefry.threefry(key(0, 0), ops.convert_to_tensor(np.arange(4096, dtype="uint32")), key(0))
    blocks = set(zip(*(np.asarray(word).tolist() for word in noise), strict=True))
    assert not blocks & {tuple(np.asarray(k).tolist()) for k in backend.ratchet(key(0, 0))}


def test_successive_updates_are_independent():
    state, draws = key(9, 9), []
    for _ in range(20):
        noise_key, state = backend.ratchet(state)
        draws.append(np.asarray(backend.normal(50_000, noise_key)))
    correlation = np.corrcoef(draws) - np.eye(20)
    assert np.max(np.abs(correlation)) < 5 / 50_000**0.5


def test_state_lives_in_a_stateless_scope():
    variable = keras.Variable(np.array([1, 2], "uint32"), dtype="uint32", trainable=False)
    with keras.StatelessScope() as scope:
        noise_key, next_key = backend.ratchet(variable.value)
        variable.assign(next_key)
        inside = backend.normal(10, noise_key)
    expected_key, expected_next = backend.ratchet(key(1, 2))
    np.testing.assert_array_equal(np.asarray(inside), np.asarray(backend.normal(10, expected_key)))
    np.testing.assert_array_equal(np.asarray(scope.get_current_value(variable)), np.asarray(expected_next))
    np.testing.assert_array_equal(np.asarray(variable.value), [1, 2])
