"""Threefry 2x32-20, written once for both backends: a fast generator of random words, not a cryptographic one.

Two words of state fuse into two loops under XLA, which makes this several times faster than ChaCha20.
"""

from keras import ops

# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), and their reference constants.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA

# Columns of the array of counters. With several threads XLA on CPU splits the first axis, and its loops stay
# vectorised (10 times faster) only when another axis, of fixed length, is left.
_COLUMNS = 1024


def _word(value):
    return ops.convert_to_tensor(value, dtype="uint32")


def _rotate(x, bits):
    return ops.bitwise_or(ops.left_shift(x, _word(bits)), ops.right_shift(x, _word(32 - bits)))


def threefry(key, x0, x1):
    """Enciphers the blocks (x0, x1) of uint32 words under `key`, two uint32 words."""
    keys = (key[0], key[1], ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), _word(_PARITY)))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for bits in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ops.bitwise_xor(_rotate(x1, bits), x0)
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + _word(group + 1)
    return x0, x1


def words(size: int, key):
    """Returns at least `size` uint32 words; fewer are a prefix of more.

    The cipher alone has a key of 64 bits. Four words more whiten what goes in and what comes out: with n values known,
    a search that treats the cipher as a black box then takes 2^128 / n steps (Kilian and Rogaway 1996).
    """
    rows = -(-size // (2 * _COLUMNS))
    row = ops.expand_dims(ops.cast(ops.arange(rows, dtype="int32"), "uint32"), 1)
    column = ops.expand_dims(ops.cast(ops.arange(_COLUMNS, dtype="int32"), "uint32"), 0)
    counters = row * _word(_COLUMNS) + column
    first, second = threefry(key, ops.bitwise_xor(counters, key[2]), ops.zeros_like(counters) + key[3])
    whitened = [ops.bitwise_xor(first, key[4]), ops.bitwise_xor(second, key[5])]
    return ops.reshape(ops.concatenate(whitened, axis=1), (-1,))


def words_at(places, key):
    """Returns the words of `words` at uint32 `places` of any shape, each from its own block: twice the work."""
    row, column = ops.right_shift(places, _word(11)), ops.bitwise_and(places, _word(_COLUMNS - 1))
    counters = row * _word(_COLUMNS) + column
    first, second = threefry(key, ops.bitwise_xor(counters, key[2]), ops.zeros_like(counters) + key[3])
    is_first = ops.equal(ops.bitwise_and(places, _word(_COLUMNS)), _word(0))
    return ops.where(is_first, ops.bitwise_xor(first, key[4]), ops.bitwise_xor(second, key[5]))
