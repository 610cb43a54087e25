"""Tables of the user's own, from a `.csv` file."""

import csv
import difflib
import pathlib

import numpy as np

from lipdp.data.dataset import Dataset, class_ids


def read_csv(path: pathlib.Path, label: str | None = None) -> Dataset:
    """Returns the data set in a `.csv` file: a header, numeric features, one column of classes.

    Args:
        path: a comma-separated text file in UTF-8.
        label: name of the column of classes; default: the last one.

    Returns:
        A `Dataset` without a test part. Features are taken as they are: a mean or a standard deviation of
        private rows would have to be paid for.

    Raises:
        ValueError: when the header, the label column, a value or a row is missing or not a number; says where.
    """
    header, rows = _read(path)
    position = _label_position(header, label, path)
    columns = list(zip(*rows, strict=True))
    features = [name for i, name in enumerate(header) if i != position]
    x = np.stack([_numbers(columns[i], name, path) for i, name in enumerate(header) if i != position], axis=1)
    labels = _labels(columns[position], header[position], path)
    y, classes = class_ids(labels, f"column {header[position]!r} of {path}")
    return Dataset(x, y, None, None, classes, path.stem, tuple(features))


def _read(path) -> tuple[list[str], list[list[str]]]:
    try:
        # The -sig: spreadsheets put a byte order mark in front.
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ValueError(
                        f"Line {reader.line_num} of {path} has {len(row)} values, the header has {len(header)}. "
                        "Give every line the same number of comma-separated values."
                    )
                rows.append(row)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8: {error}. Save it as such.") from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a comma-separated file: {error}. Save it as such.") from error
    _check_header(header, path)
    if not rows:
        raise ValueError(f"{path} has a header and no rows. Pass a file with data.")
    return header, rows


def _check_header(header: list[str], path) -> None:
    if len(header) < 2:
        raise ValueError(
            f"{path} needs a header with at least one feature and the label, separated by commas. Received: "
            f"{', '.join(header) or 'an empty file'}."
        )
    numbers = [name for name in header if _is_number(name)]
    if len(numbers) == len(header) or not _counts(numbers):
        raise ValueError(
            f"The first line of {path} must be column names. Received: {len(numbers)} of {len(header)} that are "
            "numbers, as in a row of data. Add a header: without one the first row would be lost."
        )
    for name in header:
        if not name or header.count(name) > 1:
            raise ValueError(f"Column names of {path} must be distinct and not empty. Received: {name!r}.")


def _label_position(header: list[str], label: str | None, path) -> int:
    if label is None:
        return len(header) - 1
    if label in header:
        return header.index(label)
    close = difflib.get_close_matches(label, header, 1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Its columns: {', '.join(header[:20])}."
    raise ValueError(f"{path} has no label column of that name. Received: {label!r}. {hint}")


def _numbers(values, name: str, path) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):
            column = np.asarray(values, "float64").astype("float32")
    except ValueError:
        column = np.asarray([float(v) if _is_number(v) else np.nan for v in values], "float32")
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        value = values[bad[0]].strip()
        missing = value.lower() in ("", "na", "n/a", "nan", "null", "none")
        what = "a missing value" if missing else "a value that is not a finite number"
        todo = (
            "Remove these rows, or fill them with a public constant."
            if missing
            else "Features must be numeric: encode categories as numbers, or drop the column."
        )
        raise ValueError(
            f"Column {name!r} of {path} has {what} in {len(bad)} of {len(values)} rows, first in row {bad[0] + 1}. "
            f"Received: {value!r}. {todo}"
        )
    return column


def _labels(values, name: str, path) -> np.ndarray:
    stripped = [value.strip() for value in values]
    missing = [i for i, value in enumerate(stripped) if not value]
    if missing:
        raise ValueError(
            f"Label column {name!r} of {path} is empty in {len(missing)} of {len(values)} rows, first in row "
            f"{missing[0] + 1}. Remove these rows."
        )
    if all(_is_number(value) for value in stripped):
        return np.asarray(stripped, "float64")
    return np.asarray(stripped)


def _counts(names: list[str]) -> bool:
    """Whether names count columns, as 0, 1, 2 do in tables that were written without names."""
    if not all(name.isdecimal() for name in names):
        return False
    first = int(names[0]) if names else 0
    return [int(name) for name in names] == list(range(first, first + len(names))) and (len(names) != 1 or first < 2)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
