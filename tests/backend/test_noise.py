"""The noise generator: known answers, distribution, keys, and the same values however it is run."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

from lipdp import backend
from lipdp.backend import chacha, noise, threefry

SIZE = 1_000_001


def key(*words):
    return ops.convert_to_tensor(np.array(words, "uint32"))


def draw(size, *words, generator="chacha20"):
    """Normals under a key that begins with these words."""
    return np.asarray(backend.normal(size, full(*words), generator))


def full(*words):
    return key(*words, *range(8 - len(words)))


GENERATORS = sorted(noise.GENERATORS)


def compiled(function):
    """The function inside the other ways in which training runs it."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return [tf.function(function), tf.function(function, jit_compile=True)]
    import jax

    return [jax.jit(function)]


@pytest.fixture(scope="module", params=GENERATORS)
def generator(request):
    return request.param


@pytest.fixture(scope="module")
def values(generator):
    return draw(SIZE, 123, 456, generator=generator).astype("float64")


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


def numbered(text):
    return np.frombuffer(bytes.fromhex(text), "<u4").astype("uint32")


def key_stream(secret, counters, nonce):
    """Bytes of ChaCha20 as hexadecimal numbers, block after block."""
    blocks = chacha.chacha20(key(*numbered(secret)), key(*counters), [int(word) for word in numbered(nonce)])
    return np.asarray(blocks).T.astype("<u4").tobytes().hex()


ORDERED = bytes(range(32)).hex()
# RFC 8439: section 2.3.2, appendix A.1 vectors 1, 2 and 4, section 2.4.2, and appendix A.1 vector 3.
VECTORS = [
    (
        (ORDERED, [1], "000000090000004a00000000"),
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4ed2826446079faa0914c2d705d98b02a2b5129cd1de164eb9"
        "cbd083e8a2503c4e",
    ),
    (
        ("00" * 32, [0, 1], "00" * 12),
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a376a43b8f41518a11c"
        "c387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed29b721769ce64e43d57133b074d839d531ed1f28510afb45"
        "ace10a1f4b794d6f",
    ),
    (
        ("00ff" + "00" * 30, [2], "00" * 12),
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b"
        "7374f4872e99f096",
    ),
    (
        (ORDERED, [1, 2], "000000000000004a00000000"),
        "224f51f3401bd9e12fde276fb8631ded8c131f823d2c06e27e4fcaec9ef3cf788a3b0aa372600a92b57974cded2b9334794cba40c63e34cd"
        "ea212c4cf07d41b7"
        "69a6749f3f630f4122cafe28ec4dc47e26d4346d70b98c73f3e9c53ac40c5945398b6eda1a832c89c167eacd901d7e2bf363740373201aa1"
        "88fbbce83991c4ed",
    ),
    (
        ("00" * 31 + "01", [1], "00" * 12),
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125"
        "a64addeb006c13a0",
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), VECTORS)
def test_chacha20_gives_the_answers_of_rfc_8439(arguments, expected):
    assert key_stream(*arguments) == expected


@pytest.mark.slow
def test_the_words_of_a_generator():
    """ChaCha20: the key stream itself. Threefry: the cipher between two whitenings."""
    secret = key(*range(1, 9))
    stream = np.asarray(chacha.chacha20(secret, key(*range(4096)))).reshape(16, 32, 128)
    np.testing.assert_array_equal(np.asarray(chacha.words(5000, secret))[:5000], stream.swapaxes(0, 1).ravel()[:5000])
    words = np.asarray(threefry.words(10, secret))
    one, two = threefry.threefry(secret, key(7 ^ 3), key(4))
    assert (words[7], words[1024 + 7]) == (int(one[0]) ^ 5, int(two[0]) ^ 6)


def test_quantile_is_exact_to_float32_over_all_magnitudes():
    magnitudes = np.unique(np.concatenate([np.geomspace(1, 2**31 - 1, 40_000), np.arange(1000)]).astype("uint32"))
    z = np.asarray(noise.quantile(ops.convert_to_tensor(magnitudes * np.uint32(2)))).astype("float64")
    exact = -stats.norm.ppf((magnitudes.astype("float64") * 2.0**-31 + 2.0**-32) / 2)
    assert np.max(np.abs(z - exact) / np.maximum(exact, 0.1)) < 2e-6
    opposite = noise.quantile(ops.convert_to_tensor(magnitudes * np.uint32(2) + np.uint32(1)))
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


def test_distribution_over_many_keys(generator):
    p_values = [stats.kstest(draw(20_000, k, 7, generator=generator), "norm").pvalue for k in range(60)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_values_are_uncorrelated_and_distinct(values):
    limit = 4 / SIZE**0.5
    # The distance of two values of one block, and the length of a row: 1024, 2048 and 128, 2048.
    for lag in (1, 2, 3, 4, 127, 128, 512, 1023, 1024, 1025, 2048, 500_000):
        assert abs(np.mean(values[:-lag] * values[lag:])) < limit * (SIZE / (SIZE - lag)) ** 0.5
        assert abs(np.mean((values[:-lag] ** 2 - 1) * (values[lag:] ** 2 - 1))) < 2 * limit * 1.5
    # 24-bit values repeat by chance; bits shared between values would repeat far more of them.
    assert len(np.unique(values)) > 0.95 * SIZE


def test_neighbouring_keys_give_independent_noise(values, generator):
    for words in ((124, 456), (123, 457), (456, 123), (123, 456, 5), (123, 456, 0, 1, 2, 4)):
        other = draw(SIZE, *words, generator=generator)
        assert abs(np.corrcoef(values, other)[0, 1]) < 4 / SIZE**0.5


@pytest.mark.slow
def test_same_values_eager_and_compiled(generator):
    reference = draw(5001, 1, 2, generator=generator)
    for run in compiled(lambda k: backend.normal(5001, k, generator)):  # also inside of a compiled step
        np.testing.assert_allclose(np.asarray(run(full(1, 2))), reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "size", [1, 3, 1024, 2047, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 1023, 1025, 2048, 2049))]
)
def test_sizes_are_prefixes(size, generator):
    found = draw(size, 1, 2, generator=generator)
    assert found.shape == (size,)
    np.testing.assert_array_equal(found, draw(5000, 1, 2, generator=generator)[:size])


@pytest.mark.parametrize("size", [0, -1, 2**34])
def test_refuses_a_size_out_of_range(size):
    with pytest.raises(ValueError, match="`size` must be"):
        backend.normal(size, full())


def test_refuses_an_unknown_generator():
    with pytest.raises(ValueError, match="`generator` must be one of"):
        noise.normal(3, full(), "mersenne")


@pytest.mark.slow
def test_values_at_places_are_those_of_the_whole():
    whole = draw(9000, 3, 1, 4, generator="threefry")
    places = np.random.default_rng(0).integers(0, 9000, (7, 300)).astype("uint32")
    for function in (backend.normal_at, *compiled(backend.normal_at)):
        found = np.asarray(function(ops.convert_to_tensor(places), full(3, 1, 4)))
        np.testing.assert_allclose(found, whole[places], rtol=1e-6)
    # Far beyond the first rows: counters do not wrap.
    last = np.array([2**31 + 5, 2**32 - 1], "uint32")
    assert len(set(np.asarray(backend.normal_at(ops.convert_to_tensor(last), full(3, 1, 4))).tolist())) == 2


def test_ratchet_is_the_same_everywhere():
    reference = [np.asarray(k) for k in backend.ratchet(full(5, 6))]
    assert all(k.dtype == np.uint32 and k.shape == (8,) for k in reference)
    for run in compiled(backend.ratchet):
        np.testing.assert_array_equal([np.asarray(k) for k in run(full(5, 6))], reference)


def test_ratchet_never_repeats_and_never_meets_other_uses_of_its_key():
    state, seen = key(*[0] * 8), set()
    for _ in range(200):
        noise_key, state = backend.ratchet(state)
        seen.update({tuple(np.asarray(noise_key).tolist()), tuple(np.asarray(state).tolist())})
    assert len(seen) == 400
    bits = np.array(sorted(seen), "uint32").view("uint8")
    assert abs(np.unpackbits(bits).mean() - 0.5) < 4 * 0.5 / (400 * 256) ** 0.5
    secret = key(*[0] * 8)
    noise_words = set(np.asarray(chacha.words(2**16, secret)).tolist())
    parts = {int(w) for i in range(20) for w in np.asarray(backend.subkey(secret, i))}
    ratcheted = {int(w) for k in backend.ratchet(secret) for w in np.asarray(k)}
    assert len(parts) == 160 and len(ratcheted) == 16
    assert not parts & ratcheted and not noise_words & (parts | ratcheted)


def test_successive_updates_are_independent(generator):
    state, draws = full(9, 9), []
    for _ in range(20):
        noise_key, state = backend.ratchet(state)
        draws.append(np.asarray(backend.normal(50_000, noise_key, generator)))
    correlation = np.corrcoef(draws) - np.eye(20)
    assert np.max(np.abs(correlation)) < 5 / 50_000**0.5


def test_state_lives_in_a_stateless_scope():
    words = np.arange(1, 9, dtype="uint32")
    variable = keras.Variable(words, dtype="uint32", trainable=False)
    with keras.StatelessScope() as scope:
        noise_key, next_key = backend.ratchet(variable.value)
        variable.assign(next_key)
        inside = backend.normal(10, noise_key)
    expected_key, expected_next = backend.ratchet(key(*words))
    np.testing.assert_array_equal(np.asarray(inside), np.asarray(backend.normal(10, expected_key)))
    np.testing.assert_array_equal(np.asarray(scope.get_current_value(variable)), np.asarray(expected_next))
    np.testing.assert_array_equal(np.asarray(variable.value), words)
