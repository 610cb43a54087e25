"""Persons with several rows: who owns which, and which of them take part when a person is drawn."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lipdp import checks
from lipdp.accounting.held_out import held_out_persons
from lipdp.sampling import arrays, randomness

# Subsets of up to so many rows are drawn for all persons at once, larger ones for each by itself.
_AT_ONCE = 32
# What NumPy and pandas make of a missing value among texts, and in codes or casts to integers.
_UNKNOWN_NUMBERS = (-1, -(2**31), -(2**63))
_UNKNOWN = frozenset(("", "nan", "None", "NaT", "<NA>", *map(str, _UNKNOWN_NUMBERS)))


class Persons:
    """The persons that rows belong to, numbered from 0 in the order of their ids.

    Args:
        person_ids: `(N,)`, integers or texts: whose each row is.
        rows_per_person: The most rows k, at least 1, that a person brings into one update.
        fixed_width: Whether everybody has k places, whoever has most rows.

    Raises:
        ValueError: ids that are no integers or texts, or not one for each row.

    Attributes:
        count: Number of persons.
        width: Places of a person: k, or without `fixed_width` less where nobody has as many rows.

    **Guarantee.**
    Conditions: all rows of a person have one id.
    Bound: `rows` returns at most k rows of each person that is drawn, a uniformly random subset of them, with equal
    shares that add up to 1. Given who is drawn, the rows of one person are independent of those of all others: whatever
    is at most 1 for each row is at most 1 for their average, and nobody else's average depends on it.
    Not covered: ids that do not say the truth: two ids of one person, and one id of several persons, such as a code for
    everyone who is not known.

    Example:
        >>> import numpy as np
        >>> persons = Persons(["eve", "bob", "eve"], rows_per_person=2)
        >>> index, shares = persons.rows(np.array([0, 1]), np.random.default_rng(0))
        >>> index.tolist(), shares.tolist()
        ([[1, 0], [0, 2]], [[1.0, 0.0], [0.5, 0.5]])
    """

    def __init__(self, person_ids: ArrayLike, rows_per_person: int, fixed_width: bool = False):
        most = checks.integer("rows_per_person", rows_per_person, minimum=1)
        _, owner = np.unique(checked_ids(person_ids), return_inverse=True)
        self._order = np.argsort(owner, kind="stable")
        self._sizes = np.bincount(owner)
        self._first = np.cumsum(self._sizes) - self._sizes
        self.count = len(self._sizes)
        self.width = most if fixed_width else int(min(most, self._sizes.max()))
        self._brought = np.minimum(self._sizes, self.width)

    def rows(self, drawn: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of some persons, chosen at random, and what each of them counts.

        Args:
            drawn: `(n,)`, numbers of persons.
            rng: What chooses.

        Returns:
            Two arrays `(n, width)`: indices of rows, and shares in float32. Places that are not used have share 0.
        """
        sizes, brought = self._sizes[drawn], self._brought[drawn]
        places = np.tile(np.arange(self.width), (len(drawn), 1))
        many = np.flatnonzero(sizes > self.width)
        if len(many):
            places[many] = _subsets(sizes[many], self.width, rng)
        used = np.arange(self.width) < brought[:, None]
        index = self._order[np.where(used, self._first[drawn][:, None] + places, 0)]
        # Rounded down: their sum must not exceed 1.
        shares = (1.0 / brought).astype("float32")
        shares = np.where(shares > 1.0 / brought, np.nextafter(shares, np.float32(0.0)), shares)
        return np.where(used, index, 0), np.where(used, shares[:, None], np.float32(0.0))

    def shares(self) -> np.ndarray:
        """Returns what each row counts where all rows of all persons take part, `(N,)`: those of a person 1 in all."""
        shares = np.empty(len(self._order))
        shares[self._order] = np.repeat(1.0 / self._sizes, self._sizes)
        return shares

    def expected_rows(self, sampling_probability: float) -> tuple[float, float]:
        """Returns mean and standard deviation of the number of rows in an update; they depend on private sizes."""
        square = np.sum(self._brought.astype("float64") ** 2)
        return sampling_probability * float(self._brought.sum()), float(np.sqrt(sampling_probability * square))


class Chooser:
    """Which rows are in an update, from who is in it: what `Batches` asks.

    Args:
        persons: The persons.
        secret: What the choice derives from, 32 bytes.
        together: Whether the rows of a person lie together, in `persons.width` places, so that their gradients can be
            averaged before anything is clipped; otherwise rows that are not used are left out.
    """

    def __init__(self, persons: Persons, secret: bytes, together: bool):
        self.persons, self.together, self._secret = persons, together, secret
        self.width = persons.width if together else 1

    def __call__(self, update: int, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and shares, `(n, width)`."""
        index, shares = self.persons.rows(drawn, randomness.generator(self._secret, "rows", update))
        if self.together:
            return index, shares
        return index[shares > 0.0][:, None], shares[shares > 0.0][:, None]


def checked_ids(person_ids: ArrayLike, rows: int | None = None) -> np.ndarray:
    """Returns ids as an array of integers or texts.

    Args:
        person_ids: One id for each row.
        rows: How many there must be; None: any number.

    Raises:
        ValueError: other values, or another number of them.
    """
    if isinstance(person_ids, str):
        raise ValueError(
            f"`person_ids` must be one integer or text for each row. Received: person_ids={person_ids!r}. Pass that "
            "column itself, and leave it out of x, where it would be an input."
        )
    # A list as it is: NumPy would make the text "nan" of what is missing among texts.
    ids: Any = np.array(person_ids, object) if isinstance(person_ids, list | tuple) else np.asarray(person_ids)
    if np.ma.is_masked(person_ids):
        raise ValueError(
            "`person_ids` must say whose each row is. Received: a masked array, whose masked ids would all be one "
            "person. Give each row whose person is not known an id of its own."
        )
    if ids.dtype == object and ids.ndim == 1:
        ids = _of_one_kind(ids)
    if ids.ndim == 1 and ids.dtype.kind in "OUi":
        _refuse_unknown(ids)
    if ids.ndim == 1 and ids.dtype.kind in "OU":
        _refuse_alike(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        seen = sorted({type(one).__name__ for one in ids}) if ids.ndim == 1 and ids.dtype == object else ()
        raise ValueError(
            "`person_ids` must be one integer or text for each row. Received: an array of shape "
            f"{ids.shape} and dtype {ids.dtype}{' of ' * bool(seen)}{', '.join(seen)}. Pass integers or texts alone, "
            "and give each row whose person is not known an id of its own."
        )
    if rows is not None and len(ids) != rows:
        raise ValueError(f"`person_ids` must have one id for each row. Received: {len(ids)} ids for {rows} rows.")
    if not len(ids):
        raise ValueError("`person_ids` must hold at least one id. Received: none.")
    return ids


def _refuse_unknown(ids: np.ndarray) -> None:
    """Refuses texts and numbers that NumPy and pandas make of what is missing."""
    if ids.dtype.kind == "i":
        unknown: Any = np.flatnonzero(np.isin(ids, _UNKNOWN_NUMBERS))
    else:
        unknown = [i for i, one in enumerate(ids.tolist()) if isinstance(one, str) and one.strip() in _UNKNOWN]
    if len(unknown):
        first = ids[unknown[0]]
        raise ValueError(
            "`person_ids` must say whose each row is: all rows of one id count as one person. Received: "
            f"{first if ids.dtype.kind == 'i' else repr(str(first))}, which NumPy and pandas make of a missing id, for "
            f"{len(unknown)} of {len(ids)} rows, first in row {unknown[0] + 1}. Give each row whose person is not "
            "known an id of its own; if somebody is called that, write all ids in another way, such as 'id nan' or "
            "'id -1'."
        )


def _refuse_alike(ids: np.ndarray) -> None:
    """Refuses texts that differ in spaces around them or in the form of their characters alone."""
    seen: dict[str, tuple[str, int]] = {}
    for i, one in enumerate(ids.tolist()):
        if not isinstance(one, str):
            continue
        first, row = seen.setdefault(unicodedata.normalize("NFKC", one).strip(), (one, i))
        if first != one:
            raise ValueError(
                "`person_ids` must say whose each row is: who is written in two ways counts as two persons. Received: "
                f"{ascii(first)} and {ascii(one)}, which look alike, first in rows {row + 1} and {i + 1}. Write all "
                "ids in one way, as unicodedata.normalize('NFKC', id).strip() does; if they are two persons, in ways "
                "that can be told apart."
            )


def _of_one_kind(ids: np.ndarray) -> np.ndarray:
    """Returns objects as texts or as integers, where all are one of the two, and none would become another's id."""
    if all(isinstance(one, str) for one in ids):
        # NumPy drops zeros at the end of a text.
        return ids if any(one.endswith("\0") for one in ids) else ids.astype(str)
    if all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in ids):
        try:
            return ids.astype("int64" if min(ids, default=0) < 0 else "uint64")
        except OverflowError:
            return ids
    return ids


def digest(ids: np.ndarray) -> str:
    """Returns a digest of ids. It tells who is in the data, so it may stand where the data may stand."""
    kind = "text" if ids.dtype.kind == "U" else "number"
    return randomness.derive(b"", "persons", kind, *map(str, ids.tolist())).hex()


def split(x: Any, y: Any, ids: np.ndarray, fraction: float) -> tuple[tuple, tuple, np.ndarray]:
    """Holds out persons for validation, each with all rows, by a hash of their ids.

    Returns:
        `(x, y)` to train on, `(x, y)` that are held out, and the ids of the first.

    Raises:
        ValueError: as `sampling.split`.
    """
    kept, held = arrays.split(x, y, fraction, lambda _: held_out_persons(ids, fraction))
    return kept, held, ids[~held_out_persons(ids, fraction)]


def _subsets(sizes: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a uniformly random subset of `count` of the numbers below each size, `(len(sizes), count)`."""
    if count > _AT_ONCE:
        return np.stack([rng.choice(size, count, replace=False, shuffle=False) for size in sizes])
    # Floyd's algorithm: the last number stands in for one that is there already.
    chosen = np.empty((len(sizes), count), "int64")
    for j in range(count):
        last = sizes - count + j
        one = rng.integers(0, last + 1)
        there = (chosen[:, :j] == one[:, None]).any(axis=1)
        chosen[:, j] = np.where(there, last, one)
    return chosen
