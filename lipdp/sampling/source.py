"""Data that are read row by row, when rows are drawn: files larger than memory, and whatever has `__getitem__`."""

import collections
import itertools
import mmap
import operator
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import checks
from lipdp.sampling.doubled import refuse_doubled

# Rows at fixed places: types, shapes and the key of a seed come from them, and labels are checked on them.
SAMPLE = 64
_READERS = 16
# Rows on which reading several at once is compared with reading one by one.
_COMPARED = 3
# A fault maps what the system keeps around a page, up to 2 MiB, and what is mapped counts as memory of the process.
_FAULT, _MOST_MAPPED, _AT_ONCE = 2**21, 2**27, 8
# Where the classes are whose contract is that several indices give what each of them gives. Longer than a package where
# a user's own may have that name.
_ROW_BY_ROW = (
    "array_record.python",
    "dask.array",
    "datasets.arrow_dataset",
    "grain._src",
    "grain.python",
    "h5py",
    "numpy",
    "pyarrow",
    "tensorstore",
    "xarray.core",
    "zarr",
)


class Unlike(ValueError):
    """The rows of a source are not alike, or not as many as they were."""


class Source:
    """Examples that are read when they are drawn, by several threads.

    `fit` makes one of whatever it takes for a source; make it yourself to say how many threads may read.

    Args:
        rows: An object with `__len__` and `__getitem__`, such as a `numpy.memmap`, a data set of h5py, zarr or Hugging
            Face, or a class of your own. A row is an array, or a tuple or dictionary of arrays. `__getitem__` of your
            class gets one index at a time, an `int`; a class with a method `__getitems__` of its own gets a list of
            them there, and returns a list of rows. Only arrays and data sets of known libraries, which read several
            rows as they read each, are asked for several at once without it.
        readers: Threads that read at the same time; 1 for a source that only one thread may use, and for one that is
            seen to write all rows into one array.

    Raises:
        ValueError: no rows, rows that are not alike, or that hold no numbers; rows of grain, Hugging Face or torch that
            stand in it several times.

    **Guarantee.**
    Conditions: the row that `rows` returns for an index depends on that index and on one example alone, which stands
    behind no other index (it would be protected half; repetitions by known libraries are refused), stays the same while
    a model trains, and is not written to by another thread that reads; in `__getitems__`, that no row depends on the
    others of the list. Nothing can check that: three rows are compared with what `__getitem__` returns for them.
    Bound: an update depends on the drawn rows and on no other. A row that is not finite, or in a model with one output
    whose label the loss does not allow, counts as zero: that depends on this row alone, and so does every other cast.
    Not covered: that reading fails, which ends training; how long it takes.

    Example:
        >>> import numpy as np
        >>> class Squares:
        ...     def __len__(self):
        ...         return 1000
        ...     def __getitem__(self, index):
        ...         return np.array([index, index**2], "float32")
        >>> (rows,) = Source(Squares()).read(np.array([3, 2]))
        >>> rows.tolist()
        [[3.0, 9.0], [2.0, 4.0]]
    """

    def __init__(self, rows: Any, readers: int = _READERS):
        if not hasattr(rows, "__getitem__") or not (hasattr(rows, "__len__") or hasattr(rows, "shape")):
            raise ValueError(
                f"A source must have `__len__` and `__getitem__`. Received: a {type(rows).__name__}. Pass an array, or "
                "an object with both."
            )
        refuse_doubled(rows)
        self.rows, self.readers = rows, checks.integer("readers", readers, minimum=1)
        self._length = _length(rows)
        if self._length == 0:
            raise ValueError(f"The training data holds no example. Received: a {type(rows).__name__} of length 0.")
        # A class of the user's over a mapped file may compute a row of what it reads.
        self._map, self._mapped, self._lock = _mapping(rows) if _row_by_row(rows) else None, 0, threading.Lock()
        self._sampled = np.unique(np.linspace(0, self._length - 1, SAMPLE).round().astype("int64"))
        few = self._sampled[:: max(1, len(self._sampled) // _COMPARED)][:_COMPARED]
        self._read, self._structure = self._way(few)
        if self._read is _one_by_one and _one_place(rows, few):
            self.readers = 1  # others would write into an array before it is copied
        self.look()

    def look(self) -> None:
        """Reads the rows at fixed places, as each `fit` does: since the one before they may have become others."""
        try:
            self.sample = [leaf.copy() for leaf in self.read(self._sampled)]
        except (Unlike, MemoryError):
            raise
        except Exception as error:  # whatever a source raises for a row that it does not have
            raise ValueError(
                f"Some of the rows of a source cannot be read. Received: {type(error).__name__}: {error} from a "
                f"{type(self.rows).__name__} of length {len(self)}. `__getitem__` must take each index from 0 to its "
                "length minus 1."
            ) from error
        self.check_length()
        self.release()

    def __len__(self) -> int:
        return self._length

    def check_length(self) -> None:
        """Refuses a source that has become longer or shorter: N is what the accountant charges for."""
        now = _length(self.rows)
        if now != self._length:
            raise Unlike(
                f"The length of a source must not change while a model trains. Received: a {type(self.rows).__name__} "
                f"that had {self._length} rows and has {now}. Write a new file, and train on that."
            )

    @property
    def places(self) -> Any:
        """Returns a row with, for each array in it, its place in what `read` returns."""
        return tree.pack_sequence_as(self._structure, list(range(len(self.sample))))

    def read(self, index: np.ndarray) -> list[np.ndarray]:
        """Returns the rows of some indices, a list with one array for each column."""
        if not len(index):
            return [leaf[:0] for leaf in self.sample]
        # Files are read in the order of their rows, and some want each of them once.
        unique, back = np.unique(index, return_inverse=True)
        found = [self._mapped_rows(unique)] if self._map else self._columns(self._read(self.rows, unique), len(unique))
        same = len(unique) == len(index) and bool((back[:-1] < back[1:]).all())
        return found if same else [leaf[back] for leaf in found]

    def prepare(self) -> None:
        """Tells the system that rows are read in no order."""
        self._advise("MADV_RANDOM")

    def release(self) -> None:
        """Gives back the pages of a file that this process has mapped, and what was said about their order."""
        self._advise("MADV_DONTNEED")
        self._advise("MADV_NORMAL")

    def _advise(self, name: str) -> None:
        # In a private mapping what the user wrote stands in these pages alone.
        private = getattr(self.rows, "mode", None) == "c" and name == "MADV_DONTNEED"
        if self._map is not None and hasattr(mmap, name) and not private:
            self._map.madvise(getattr(mmap, name))

    def _mapped_rows(self, index: np.ndarray) -> np.ndarray:
        """Returns rows of a mapped file, and gives back its pages before they are many."""
        rows = np.asarray(self.rows)  # the type of memmap costs more than a small read
        found = np.empty((len(index), *rows.shape[1:]), rows.dtype)
        each = rows.itemsize * int(np.prod(rows.shape[1:])) + _FAULT
        for start in range(0, len(index), _AT_ONCE):
            part = index[start : start + _AT_ONCE]
            np.take(rows, part, axis=0, out=found[start : start + _AT_ONCE], mode="clip")
            with self._lock:
                self._mapped += each * len(part)
                full = self._mapped > _MOST_MAPPED
                self._mapped = 0 if full else self._mapped
            if full:
                self._advise("MADV_DONTNEED")
        return found

    def _way(self, places: np.ndarray) -> tuple[Callable, Any]:
        """Returns how several rows are read, and the nest of a row."""
        if isinstance(self.rows, np.ndarray) and _row_by_row(self.rows):
            return _from_array, np.asarray(self.rows[:0])
        one_by_one, failure = None, None
        try:
            one_by_one = _parts(_one_by_one(self.rows, places))
        except Unlike:
            raise
        except Exception as error:  # whatever a source raises for a single index
            failure = error
        for way in _ways(self.rows):
            try:
                found = tree.map_structure(np.array, _parts(way(self.rows, places)))
                if one_by_one is None:
                    # As many rows as indices, and for one of them alone the same.
                    alone = _parts(way(self.rows, places[:1]))
                    same = all(np.shape(leaf)[:1] == (len(places),) for leaf in tree.flatten(found))
                    same = same and _same(tree.map_structure(lambda leaf: leaf[:1], found), alone)
                else:
                    same = _same(found, one_by_one)
                if same:
                    return way, found
            except Exception:  # it does not take indices in this way
                continue
        if one_by_one is None:
            raise ValueError(
                f"The rows of a source cannot be read. Received: {type(failure).__name__}: {failure} from row "
                f"{places[0]} of a {type(self.rows).__name__}. `__getitem__` must take an index from 0 to its length "
                "minus 1; a class with `__getitems__` a list of them there."
            ) from failure
        return _one_by_one, one_by_one

    def _columns(self, found: Any, count: int) -> list[np.ndarray]:
        found = _parts(found)
        leaves = tree.flatten(found)
        if not _alike(found, self._structure):
            raise Unlike("The rows of a source must be alike. Received: some with other parts than the first.")
        for leaf in leaves:
            if np.shape(leaf)[:1] != (count,):
                raise Unlike(
                    f"A source must return one row for each index. Received: shape {np.shape(leaf)} for {count} "
                    f"indices, from a {type(self.rows).__name__}."
                )
        return leaves


def is_source(data: Any) -> bool:
    """Returns whether `fit` reads data row by row: a file that is mapped, or an object that is no array in memory.

    Raises:
        ValueError: data of an h5py file that is closed.
    """
    if isinstance(data, Source):
        return True
    refuse_closed(data)
    if isinstance(data, np.ndarray):
        return _mapping(data) is not None
    known = (list, tuple, Mapping, str, bytes, os.PathLike, collections.deque, keras.utils.PyDataset)
    if isinstance(data, (*known, range, type)) or type(data).__module__ in ("builtins", "array"):
        return False
    if not hasattr(data, "__getitem__") or hasattr(data, "toarray"):
        return False
    # What turns into an array is one, unless it lies in pieces in a file; those of zarr have no `__len__`.
    if hasattr(data, "chunks") and hasattr(data, "shape"):
        return True
    return hasattr(data, "__len__") and not hasattr(data, "__array__")


def refuse_closed(data: Any) -> None:
    """Refuses what belongs to an h5py file that is closed."""
    if type(data).__module__.startswith("h5py.") and not data:
        raise ValueError(
            f"Rows are read while a model trains. Received: a {type(data).__name__} of an h5py file that is closed. "
            "Call `fit` inside of `with h5py.File(path) as file:`, or pass an array, file['x'][:]."
        )


def _length(rows) -> int:
    try:
        return operator.index(len(rows) if hasattr(rows, "__len__") else rows.shape[0])
    except Exception as error:
        raise ValueError(
            f"A source must have a length. Received: {type(error).__name__}: {error} from `len` of a "
            f"{type(rows).__name__}."
        ) from error


def _mapping(rows) -> mmap.mmap | None:
    """Returns what maps the file of a `numpy.memmap`; None for other arrays, copies of one among them."""
    while isinstance(rows, np.memmap):
        rows = rows.base
    return rows if isinstance(rows, mmap.mmap) else None


def _ways(rows) -> tuple[Callable, ...]:
    """Returns how several rows of a source may be read at once.

    That three rows are the same does not tell: whoever wrote `__getitem__` for one row may let rows of a batch mix in
    a branch that none of the three takes.
    """
    items = (_from_items,) if _defined(rows, "__getitems__") in _until_rows(rows) else ()
    if not _row_by_row(rows):
        return items
    return () if _transformed(rows) else (_orthogonal, _from_array, _from_list, *items)


def _defined(rows, name: str) -> type | None:
    """Returns the class that a source has a method from."""
    return next((cls for cls in type(rows).__mro__ if name in vars(cls)), None)


def _until_rows(rows) -> tuple[type, ...]:
    """Returns the classes down to the one that says what a row is: `__getitems__` of its parents is of other rows."""
    order, last = type(rows).__mro__, _defined(rows, "__getitem__")
    return order[: order.index(last) + 1] if last else ()


def _row_by_row(rows) -> bool:
    """Whether what says what a row is belongs to a library that reads several as it reads each."""
    module = getattr(_defined(rows, "__getitem__"), "__module__", None) or ""
    return any(module == known or module.startswith(f"{known}.") for known in _ROW_BY_ROW)


def _transformed(rows) -> bool:
    """Whether a data set of Hugging Face gives what it reads to a function of the user's, all of it at once."""
    for _ in range(10):  # a column of a column
        kind = getattr(rows, "format", None)
        if isinstance(kind, Mapping) and kind.get("type") == "custom":
            return True
        rows = getattr(rows, "source", None)
    return False


def _from_array(rows, index):
    return rows[index]


def _orthogonal(rows, index):
    return rows.oindex[index]


def _from_list(rows, index):
    return rows[index.tolist()]


def _from_items(rows, index):
    return _together(rows.__getitems__(index.tolist()))


def _one_by_one(rows, index):
    # Copied before the next is read: a source may write all rows into one array.
    return _together([tree.map_structure(np.array, _parts(rows[i])) for i in index.tolist()])


def _one_place(rows, index) -> bool:
    """Returns whether a source is seen to write a row into the array of the one before."""
    for first, second in itertools.pairwise(index.tolist()):
        kept = tree.flatten(_parts(rows[first]))
        before = [np.array(leaf) for leaf in kept]
        rows[second]
        if not _same(kept, before):
            return True
    return False


def _together(found: list) -> Any:
    """Returns a list of rows as one row of arrays."""
    found = [_parts(row) for row in found]
    if not all(_alike(row, found[0]) for row in found):
        raise Unlike("The rows of a source must be alike. Received: some with other parts than the first.")
    shapes = {tuple(map(np.shape, tree.flatten(row))) for row in found}
    if len(shapes) > 1:
        shown = ", ".join(map(str, sorted(shapes)[:3]))
        raise Unlike(
            f"The rows of a source must have one shape. Received: shapes {shown}. Cut or pad them in `__getitem__`."
        )
    return tree.map_structure(lambda *values: np.stack(values), *found)


def _parts(row: Any) -> Any:
    """Returns the nest of arrays that a row is; lists are arrays."""
    if isinstance(row, Mapping):
        return {str(name): _parts(value) for name, value in row.items()}
    if isinstance(row, tuple):
        return tuple(map(_parts, row))
    if isinstance(row, list) and row and not np.isscalar(row[0]):
        values = [np.asarray(value) for value in row]
        if len(shapes := {value.shape for value in values}) > 1:
            raise Unlike(
                f"A list in a row of a source is one array. Received: a list of shapes {', '.join(map(str, shapes))}. "
                "Return a tuple, (inputs, labels), or cut or pad what the list holds."
            )
        return np.stack(values)
    return np.asarray(row)


def _alike(one: Any, other: Any) -> bool:
    try:
        tree.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return False
    return True


def _same(found: Any, expected: Any) -> bool:
    if not _alike(found, expected):
        return False
    pairs = zip(tree.flatten(found), tree.flatten(expected), strict=True)
    return all(a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
