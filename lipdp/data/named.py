"""Columns of a table with a part of their own: the label, and whose each row is."""

import difflib
import math
from collections.abc import Collection

import numpy as np

from lipdp.data import rows
from lipdp.data.column import as_shown


def label_of(found: rows.Rows, label: str | None) -> str:
    """Returns the name of the column of classes, by default the last one; ValueError when there is none."""
    if label is None:
        return list(found.columns)[-1]
    if label not in found.columns:
        raise no_column("label column", label, found)
    return label


def person_ids(found: rows.Rows, name: str, label: str | None, words: tuple[str, ...] = ()) -> np.ndarray:
    """Returns whose each row is, as texts.

    Args:
        found: the rows.
        name: of the column that says it.
        label: name of the column of classes.
        words: texts that stand for a missing value, beside the usual ones.

    Raises:
        ValueError: there is no such column, it is the label, or an id is missing; says where.
    """
    if name not in found.columns:
        raise no_column("column of persons", name, found)
    if name == label:
        raise ValueError(
            f"The column of persons must not be the label. Received: {name!r} for both. Name the column of ids, or "
            "another label."
        )
    values = found.columns[name]
    missing = [rows.is_missing(value, frozenset(words)) for value in values]
    if any(missing):
        raise ValueError(
            f"Column {name!r} of {found.source} must say whose each row is, but has no id {found.places(missing)}. "
            f"Received: {as_shown(values[missing.index(True)])}. Remove these rows, or give each an id of its own: "
            "rows of one id count as one person."
        )
    # Objects: NumPy's own texts lose zeros at their end, and two ids may become one.
    return np.array([rows.as_text(value) for value in values], object)


def numbers(found: rows.Rows, label: str, words: tuple[str, ...] = ()) -> np.ndarray:
    """Returns the numbers to predict, each by itself, as float32.

    Args:
        found: the rows.
        label: name of their column.
        words: texts that stand for a missing value, beside the usual ones.

    Raises:
        ValueError: a value is missing, or no finite number; says where.
    """
    missing, codes = frozenset(words), rows.numbers_of(words, numeric=True)

    def read(value):
        none = rows.is_missing(value, missing, codes) or not rows.is_number(value)
        return math.nan if none else rows.as_number(value)

    values = found.values(label, numeric=True)
    with np.errstate(over="ignore"):
        read_all = np.array([read(value) for value in values], "float64").astype("float32")
    bad = ~np.isfinite(read_all)
    if bad.any():
        raise ValueError(
            f"Label column {label!r} of {found.source} has a value that is not a finite number {found.places(bad)}. "
            f"Received: {as_shown(values[int(np.flatnonzero(bad)[0])])}. Remove these rows, and write plain numbers, "
            "such as 1234.5; classes are for --task classifier, and are listed in a description."
        )
    return read_all


def no_column(what: str, name: str, found: rows.Rows, known: Collection[str] = ()) -> ValueError:
    names = list(found.columns)
    close = difflib.get_close_matches(name, [other for other in names if other not in known], 1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Its columns: {', '.join(names[:20])}."
    return ValueError(f"{found.source} has no {what} of that name. Received: {name!r}. {hint}")
