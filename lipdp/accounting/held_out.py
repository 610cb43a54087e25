"""Which rows of a data set are held out, so that removing one row removes one row from what is trained on."""

import hashlib
from collections.abc import Sequence

import numpy as np

_BLOCK = 1024


def held_out(arrays: Sequence[np.ndarray], fraction: float) -> np.ndarray:
    """Says for each row whether it is held out, from nothing but the row itself.

    Args:
        arrays: Arrays with one row per example.
        fraction: Expected fraction of the rows that are held out, in (0, 1).

    Returns:
        One boolean per row: whether a fixed hash of its float32 values, in all arrays, is below `fraction`.

    **Guarantee.** The side of a row depends on no other row, neither on their values nor on their number: a row more or
    less is a row more or less in one part. A cut at a fixed share of the rows would move a second one. Rows with the
    same values are on the same side.

    Example:
        >>> import numpy as np
        >>> from lipdp.accounting.held_out import held_out
        >>> rows = np.arange(6.0)[:, None]
        >>> all(held_out([rows], 0.5)[1:] == held_out([rows[1:]], 0.5))
        True
    """
    # One type for all: that of a list of numbers depends on all of them.
    limit, out = int(fraction * 2.0**64), np.empty(len(arrays[0]), bool)
    # In blocks: all of a leaf of bytes would be four times as large.
    for start in range(0, len(out), _BLOCK):
        leaves = [np.ascontiguousarray(leaf[start : start + _BLOCK], "<f4") for leaf in arrays]
        rows = [leaf.reshape(len(leaf), -1).view(np.uint8) for leaf in leaves]
        for i in range(len(rows[0])):
            digest = hashlib.blake2b(digest_size=8, person=b"lipdp held out")
            for leaf in rows:
                digest.update(leaf[i])
            out[start + i] = int.from_bytes(digest.digest(), "little") < limit
    return out


def held_out_persons(person_ids: np.ndarray, fraction: float) -> np.ndarray:
    """Says for each row whether it is held out, from nothing but the id of its person.

    Args:
        person_ids: `(N,)`, integers or texts.
        fraction: Expected fraction of the persons that are held out, in (0, 1).

    Returns:
        One boolean per row: whether a fixed hash of the id is below `fraction`.

    **Guarantee.** All rows of a person are on one side, which depends on no other person.

    Example:
        >>> import numpy as np
        >>> from lipdp.accounting.held_out import held_out_persons
        >>> out = held_out_persons(np.repeat(np.arange(100), 2), 0.3)
        >>> bool((out[::2] == out[1::2]).all())
        True
    """
    limit = int(fraction * 2.0**64)
    unique, owner = np.unique(person_ids, return_inverse=True)
    digests = (hashlib.blake2b(str(one).encode(), digest_size=8, person=b"lipdp persons") for one in unique.tolist())
    out = [int.from_bytes(digest.digest(), "little") < limit for digest in digests]
    return np.array(out, bool)[owner]
