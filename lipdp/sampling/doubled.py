"""Data in which a row, or a part of one, stands several times, as far as known libraries and memory tell it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import tree

_MOST_ARRAYS = 100  # of which each is compared with each


def refuse_doubled(rows: Any) -> None:
    """Refuses a source of grain, Hugging Face or torch that holds some of its rows several times.

    A class of the user's own around it may do the same: nothing can see that.
    """
    module = type(rows).__module__.partition(".")[0]
    found = next(_FINDS[module](rows), None) if module in _FINDS else None
    if found is not None:
        raise ValueError(
            "Rows that stand in the data several times are protected less than epsilon says. Received: a "
            f"{type(rows).__name__} with {found}. Leave it out, and pass epochs=; copies to augment are those of "
            "DPSGD(augmentation_multiplicity=...), and for rare classes there is class_weight=. If they are meant, "
            "pass a class around it that has `__len__` and `__getitem__`, and examples_per_person=."
        )


def refuse_overlapping(data: Sequence[Any]) -> None:
    """Refuses arrays, or nests of them, whose neighboring rows lie in the same memory, as windows of a series do.

    So do labels that are the inputs of the next row. Rows that are one and the same are let through: inputs such as
    positions are made by `broadcast_to`. Of a PyDataset the first two batches are compared. Copies of windows do not
    show where they come from.
    """
    arrays: list[np.ndarray] = []
    for given in data:
        parts = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple | list) else [given]
        arrays += [rows for rows in parts if isinstance(rows, np.ndarray) and rows.ndim and len(rows) > 1]
    found = any(itertools.starmap(_overlap, itertools.product(arrays[:_MOST_ARRAYS], repeat=2)))
    if not found and not any(_batches_overlap(given) for given in data if isinstance(given, keras.utils.PyDataset)):
        return
    raise ValueError(
        "Numbers that stand in several rows are protected less than epsilon says. Received: arrays whose rows "
        "overlap in memory, as windows of numpy.lib.stride_tricks.sliding_window_view do, or labels that are the "
        "inputs of the next row. Say whose each row is with person_ids= (docs/howto/time-series.md), or in how "
        "many rows a number stands with examples_per_person=; numpy.array(x) makes rows of their own, where a row "
        "alone is what epsilon is to protect."
    )


def _batches_overlap(dataset: keras.utils.PyDataset) -> bool:
    """Returns whether the second batch has a part of the memory of the first, as windows of a series do.

    Arrays that begin at the same place may: a constant, or one array that all batches are written into.
    """
    if (dataset.num_batches or 0) < 2:
        return False
    first, second = ([a for a in tree.flatten(dataset[i]) if isinstance(a, np.ndarray) and a.size] for i in (0, 1))
    pairs = itertools.islice(itertools.product(first, second), _MOST_ARRAYS)
    return any(one.ctypes.data != other.ctypes.data and _shares(one, other) for one, other in pairs)


def _overlap(rows: np.ndarray, others: np.ndarray) -> bool:
    """Returns whether the first row of one array has numbers of the second row of another, or of itself."""
    apart = 0 in (rows.strides[0], others.strides[0])
    return not apart and _shares(rows[:1], others[1:2])


def _shares(one: np.ndarray, other: np.ndarray) -> bool:
    try:
        return np.shares_memory(one, other, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False


def _grain(rows) -> Iterator[str]:
    parents = list(getattr(rows, "parents", ()))
    if len(parents) == 1 and "Repeat" in type(rows).__name__ and len(rows) > len(parents[0]):
        yield "`.repeat()`"
    if _same_twice(parents):
        yield "the same data set twice"
    for parent in parents:
        yield from _grain(parent)


def _torch(rows) -> Iterator[str]:
    if not type(rows).__module__.startswith("torch."):  # of the user's, whose names may mean anything
        return
    parts = list(getattr(rows, "datasets", ()))
    if _same_twice(parts):
        yield "the same data set twice"
    index = np.asarray(getattr(rows, "indices", ()))
    if len(np.unique(index)) < len(index):
        yield "indices that stand in it several times"
    for part in [*parts, *([rows.dataset] if hasattr(rows, "dataset") else [])]:
        yield from _torch(part)


def _hugging_face(rows) -> Iterator[str]:
    # Private names, but without them nothing is looked at, and nothing else depends on them.
    table, index = getattr(rows, "data", None), getattr(rows, "_indices", None)
    index = None if index is None else index.column(0).to_numpy()
    columns = list(getattr(table, "columns", ()))
    # A column alone may consist of the same values again and again.
    if columns and all(_doubled(column, index) for column in columns):
        yield "rows that stand in it several times, by `.repeat()`, `.select()` or concatenate_datasets"
    if hasattr(rows, "source"):  # of a column
        yield from _hugging_face(rows.source)


def _doubled(column, index) -> bool:
    """Returns whether an Arrow column has a value of the same place in memory twice, of all or of some indices."""
    pieces = [piece for piece in column.chunks if len(piece)]
    held = [next((buffer for buffer in piece.buffers()[1:] if buffer is not None), None) for piece in pieces]
    if any(buffer is None for buffer in held):
        return True  # this column does not tell
    spans = [(buffer.address, piece.offset, len(piece)) for buffer, piece in zip(held, pieces, strict=True)]
    if index is None:
        by_place = itertools.pairwise(sorted(spans))
        return any(a[0] == b[0] and a[1] + a[2] > b[1] for a, b in by_place)
    starts: dict[int, int] = {}  # of the places in each buffer among all places
    total = 0
    for address in sorted({address for address, _, _ in spans}):
        starts[address] = total
        total += max(offset + length for where, offset, length in spans if where == address)
    places = np.concatenate([starts[address] + offset + np.arange(length) for address, offset, length in spans])
    seen = np.zeros(total, bool)
    seen[places[index]] = True
    return int(seen.sum()) < len(index)


def _same_twice(parts: list) -> bool:
    return len({id(part) for part in parts}) < len(parts)


_FINDS = {"grain": _grain, "torch": _torch, "datasets": _hugging_face}
