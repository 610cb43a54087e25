"""Gaussian noise and its keys, written once for both backends: a generator of random words, then the normal quantile.

One fused pass over memory under XLA, two to four times faster than the generators of the frameworks. JAX's
normals also stop at 5.4 standard deviations, and TensorFlow's change between graph and XLA.
"""

from keras import ops

from lipdp.backend import chacha, threefry

# What makes the words of `normal`, by the name that `fit(noise_generator=)` and files give it.
GENERATORS = {"threefry": threefry.words, "chacha20": chacha.words}

# Chebyshev-weighted fits of z/x, z the normal quantile of the two-sided tail 1-x, as a polynomial in w -
# 3.125 (up to w = 6.25) or sqrt(w) - 3.5 (beyond), with w = -log(1 - x^2); relative error at most 8e-8 up
# to 6.4.
_CENTER = (
    -7.155803505298763e-09, -1.234325175403228e-08, 6.160148586786818e-07, -2.154159574274672e-06,
    -1.9741852156585082e-05, 0.00026481517124921083, -0.0010472283465787768, -0.008533752523362637,
    0.3396347463130951, 2.338620901107788,
)  # fmt: skip
_TAIL = (
    1.942374547070358e-05, 4.6032695536268875e-05, -0.0003382556024007499, 0.0006748682353645563,
    -0.0009549722308292985, 0.0015198378823697567, -0.0029188748449087143, 0.004637930076569319,
    1.4246346950531006, 4.7170891761779785,
)  # fmt: skip


def _word(value):
    return ops.convert_to_tensor(value, dtype="uint32")


def quantile(words):
    """Maps uniform uint32 words to standard normals: the last bit is the sign, the others the tail mass."""
    # Small integers are exact in float32 and they are the tail, so it is resolved down to 2^-32 (6.3 sigma).
    tail = ops.cast(ops.cast(ops.right_shift(words, _word(1)), "int32"), "float32") * 2.0**-31 + 2.0**-32
    w = -ops.log(tail * (2.0 - tail))
    root = ops.sqrt(w)
    central = w < 6.25
    v = ops.where(central, w - 3.125, root - 3.5)
    ratio = ops.where(central, _CENTER[0], _TAIL[0])
    for center_coefficient, tail_coefficient in zip(_CENTER[1:], _TAIL[1:], strict=True):
        ratio = ratio * v + ops.where(central, center_coefficient, tail_coefficient)
    x = 1.0 - tail
    return ratio * ops.where(ops.equal(ops.bitwise_and(words, _word(1)), _word(0)), x, -x)


def normal(size: int, key, generator: str = "chacha20"):
    """Draws independent standard normals.

    Args:
        size: How many.
        key: Tensor of eight uint32 words, secret, used for one draw only.
        generator: `"chacha20"`, or the faster `"threefry"`.

    Returns:
        Float32 tensor of shape (size,). Fewer values are a prefix of more values.

    Raises:
        ValueError: `size` is not in 1 to 2^33, or an unknown generator.

    Guarantee:
        Deterministic given `key`. Each value is the normal quantile, within a relative 1e-6, of 32 bits of
        its own, from counters 0, 1, 2, ...: of the key stream of ChaCha20, a cryptographic generator with a key of
        256 bits, or of Threefry 2x32-20 with a key of 64 bits and 128 bits of whitening. Values reach 6.3 standard
        deviations, where the two-sided tail is 2^-32. Not covered: Threefry is no cryptographic standard; float32
        values are discrete.

    Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from lipdp import backend
        >>> backend.normal(3, ops.convert_to_tensor(np.arange(8, dtype="uint32"))).shape == (3,)
        True
    """
    if not 1 <= size <= 2**33:
        raise ValueError(f"`size` must be in 1 to 2^33, the counters of one key. Received: {size}.")
    if generator not in GENERATORS:
        raise ValueError(f"`generator` must be one of {sorted(GENERATORS)}. Received: {generator!r}.")
    return quantile(GENERATORS[generator](size, key))[:size]


def normal_at(places, key):
    """Returns the values of `normal(size, key, "threefry")` at uint32 `places`, in the shape of these.

    Each device of a model that is parted among several draws the noise of its own part.
    """
    return quantile(threefry.words_at(places, key))


def ratchet(key):
    """Derives the key of the next draw and the key that replaces this one in the stored state.

    Args:
        key: Tensor of eight uint32 words.

    Returns:
        `noise_key` and `next_key`, tensors of eight uint32 words.

    Guarantee:
        Both are halves of one block of ChaCha20, whatever generator makes the noise, under a nonce that nothing else
        uses. A state that holds `next_key` only does not give `noise_key` or earlier keys, and noise does not give the
        keys of other draws, other than by breaking ChaCha20 (a search of 2^256).

    Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from lipdp import backend
        >>> noise_key, next_key = backend.ratchet(ops.convert_to_tensor(np.arange(8, dtype="uint32")))
        >>> noise_key.shape == next_key.shape == (8,)
        True
    """
    block = chacha.chacha20(key, ops.zeros((1,), "uint32"), (chacha.RATCHET, 0, 0))[:, 0]
    return block[:8], block[8:]


def subkey(key, index):
    """Returns eight uint32 words for part `index` of an update: see `ratchet`, under a nonce of their own."""
    counter = ops.reshape(ops.cast(index, "uint32"), (1,))
    return chacha.chacha20(key, counter, (chacha.SUBKEY, 0, 0))[:8, 0]
