"""The secret that all randomness of a run comes from, and a key of its own for each use of it."""

import hashlib
import os
from typing import Any

import numpy as np
from keras import tree

from lipdp.sampling.arrays import SMALL

# Separates these hashes from all others.
_PERSON = b"lipdp"
_BLOCK = 1024


def fresh() -> bytes:
    """Returns 32 bytes from the operating system."""
    return os.urandom(32)


def derive(secret: bytes, label: str, *parts: bytes | str | int) -> bytes:
    """Returns the 32 bytes that belong to one use of a secret.

    Args:
        secret: at most 64 bytes.
        label: the use, such as "noise".
        parts: what else the result depends on, such as the number of an update.

    **Guarantee.**
    Conditions: nobody can guess the secret.
    Bound: BLAKE2b with the secret as its key, a pseudo-random function: who knows some of its values learns nothing
    about the secret and about the values of other labels and parts. Each part is hashed with its length, so that two
    lists of parts are never the same text.
    Not covered: bounded computing power is assumed.

    Example:
        >>> derive(b"secret", "noise", 3) == derive(b"secret", "noise", 3) != derive(b"secret", "batches", 3)
        True
    """
    found = hashlib.blake2b(digest_size=32, key=secret, person=_PERSON)
    for part in (label, *parts):
        part = part if isinstance(part, bytes) else str(part).encode()
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


def from_seed(seed: int | None, *parts: bytes | str | int) -> bytes:
    """Returns the secret of a seed and of whatever it shall hold for alone; `fresh()` where the seed is None."""
    return fresh() if seed is None else derive(b"", "seed", seed, *parts)


def words(secret: bytes, label: str, *parts: bytes | str | int) -> np.ndarray:
    """Returns a key of eight uint32 words for one use of a secret: see `derive`."""
    return np.frombuffer(derive(secret, label, *parts), "<u4").astype("uint32")


def generator(secret: bytes, label: str, *parts: bytes | str | int) -> np.random.Generator:
    """Returns a generator for one use of a secret: numpy's Philox under a key of 128 bits of its own.

    **Guarantee.** Generators of different labels and parts are independent, as far as `derive` is pseudo-random. Not
    covered: within one of them Philox is not a cryptographic generator.
    """
    key = np.frombuffer(derive(secret, label, *parts)[:16], "<u8")
    return np.random.Generator(np.random.Philox(key=key))


def digest(data: Any) -> bytes:
    """Returns a digest of a tree of arrays: their number, order, types, shapes and all their bytes.

    Arrays of uint8 and float16 are taken for the float32 values that training makes of them.
    """
    leaves = tree.flatten(data)
    found = hashlib.blake2b(str(len(leaves)).encode(), digest_size=32, person=_PERSON)
    for leaf in map(np.asarray, leaves):
        kind = np.dtype("float32") if leaf.dtype.name in SMALL else leaf.dtype
        found.update(f"|{kind.str}{leaf.shape}|".encode())
        # In blocks where rows are copied, as float32 or side by side, so that not all of the copy has to be there.
        step = max(len(leaf), 1) if leaf.dtype == kind and leaf.flags.c_contiguous else _BLOCK
        for start in range(0, len(leaf), step):
            block = np.ascontiguousarray(leaf[start : start + step], kind)
            found.update(block.reshape(-1).view("uint8").data)
    return found.digest()
