"""ChaCha20, written once for both backends: a cryptographic block function with a key of 256 bits (RFC 8439)."""

import numpy as np
from keras import ops

# "expand 32-byte k".
_CONSTANTS = np.array([[0x61707865], [0x3320646E], [0x79622D32], [0x6B206574]], "uint32")

# Columns of the array of counters: see `threefry`.
_COLUMNS = 128

# First words of the nonce, one for each use of a key.
NOISE, RATCHET, SUBKEY = 0, 1, 2


def _rotate(x, bits):
    left, right = (ops.convert_to_tensor(n, dtype="uint32") for n in (bits, 32 - bits))
    return ops.bitwise_or(ops.left_shift(x, left), ops.right_shift(x, right))


def _roll(x, rows):
    return ops.concatenate([x[rows:], x[:rows]], axis=0)


def _quarters(a, b, c, d):
    """Four quarter rounds side by side, one in each column of the state."""
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _rotate(ops.bitwise_xor(d, a), first)
        c = c + d
        b = _rotate(ops.bitwise_xor(b, c), second)
    return a, b, c, d


def _double_round(_, state):
    a, b, c, d = _quarters(*state)
    a, b, c, d = _quarters(a, _roll(b, 1), _roll(c, 2), _roll(d, 3))
    return a, _roll(b, 3), _roll(c, 2), _roll(d, 1)


def chacha20(key, counters, nonce=(0, 0, 0)):
    """Returns the sixteen words of each block.

    Args:
        key: Tensor of eight uint32 words.
        counters: Flat uint32 tensor of n block numbers.
        nonce: Three words of 32 bits, numbers or scalar tensors.

    Returns:
        Uint32 tensor `(16, n)`.
    """
    key = ops.expand_dims(key, 1)
    numbers = ops.stack([counters, *(ops.zeros_like(counters) + ops.cast(word, "uint32") for word in nonce)])
    zeros = ops.zeros((4, 1), "uint32") + ops.zeros_like(numbers[:1])
    rows = [ops.convert_to_tensor(_CONSTANTS), key[:4], key[4:]]
    start = (*(zeros + row for row in rows), numbers)
    mixed = ops.fori_loop(0, 10, _double_round, start)
    return ops.concatenate([one + two for one, two in zip(mixed, start, strict=True)], axis=0)


def words(size: int, key):
    """Returns at least `size` uint32 words, the key stream of domain `NOISE`; fewer are a prefix of more."""
    rows = -(-size // (16 * _COLUMNS))
    counters = ops.cast(ops.arange(rows * _COLUMNS, dtype="int32"), "uint32")
    blocks = ops.reshape(chacha20(key, counters, (NOISE, 0, 0)), (16, rows, _COLUMNS))
    return ops.reshape(ops.transpose(blocks, (1, 0, 2)), (-1,))
