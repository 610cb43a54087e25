"""One door to all data sets."""

import difflib
import os
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from lipdp import checks
from lipdp.data import adbench, files, rows, standard
from lipdp.data.column import Column
from lipdp.data.dataset import Dataset, check_few, class_ids
from lipdp.data.named import label_of, numbers, person_ids
from lipdp.data.table import Table

_LOADERS: dict[str, Callable[[], Dataset]] = {**standard.LOADERS, **adbench.LOADERS}
NAMES = tuple(_LOADERS)
_FEW = (
    "Name the column of classes (--label, in Python label=), or list those that may occur in a description (`lipdp "
    "table`), from what is publicly known. For a number to predict give its public range (--target-range, in Python "
    "target_range=): docs/howto/regression.md."
)


def load(
    source: str,
    label: str | None = None,
    table: Table | None = None,
    header: bool = True,
    person: str | None = None,
    target_range: tuple[float, float] | None = None,
) -> Dataset:
    """Returns a data set by name, or from the user's own file.

    Args:
        source: "digits", "mnist", "fashion_mnist", "cifar10", a table of `adbench.TABLES` such as "adbench/donors",
            or the path of a `.npz` or `.csv` file.
        label: name of the label column of a `.csv` file; default: its last column.
        table: public description of a `.csv` file, which then knows label and header. Without one all features must be
            numbers and are taken as they are, and the classes are those that occur, see `Dataset.uncharged`.
        header: whether the first line of a `.csv` file holds column names; without one they are "0", "1", ...
        person: name of the column of a `.csv` file that says whose each row is, see `Dataset.person_ids`: no model sees
            it, whatever the description says of it.
        target_range: of a `.csv` file without a description whose label is a number to predict, its public
            `(low, high)`. The labels are then numbers, float32, as they are in the file; so they are where a
            description has such a range.

    Returns:
        A `Dataset`. The named image sets and `.npz` files with `x_test` have a test part; others have none
        until `Dataset.held_out` makes one.

    Raises:
        ValueError: when the name is unknown or the content cannot be used; says what and where.
        FileNotFoundError: when there is no such file.
        UnchargedWarning: when something was read off the rows, see `Dataset.uncharged`.

    Example:
        >>> load("digits").x_train.shape
        (1437, 8, 8, 1)
    """
    if not isinstance(source, str | os.PathLike):
        # Its text would hold private rows.
        raise TypeError(
            f"A data set is loaded by its name, or by the path of a file. Received: source of type "
            f"{type(source).__name__}. Table.encode takes rows and data frames."
        )
    if not isinstance(table, Table | None):
        raise TypeError(
            f"`table` must be a lipdp.data.Table. Received: {type(table).__name__}. Table.from_json(path) reads a "
            "description."
        )
    source = os.fspath(source)
    if source in _LOADERS:
        _refuse_options(source, label, table, header, person, target_range)
        return _LOADERS[source]()
    path = pathlib.Path(source)
    if path.is_dir():
        raise ValueError(
            f"A folder is not a data set. Received: {source!r}. Pass the path of a file: of a table or of texts a .csv "
            "file, of images a .npz file, which `lipdp images` makes of folders of images, one for each class "
            "(docs/howto/images.md)."
        )
    if path.suffix not in (".npz", ".csv"):
        close = difflib.get_close_matches(source, NAMES, 1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Pass one of {', '.join(NAMES)}, or a .npz or .csv file."
        folders = ("", os.environ.get("LIPDP_DATA", ""))
        beside = [pathlib.Path(folder, source + suffix) for folder in folders for suffix in (".csv", ".npz")]
        if (there := next((file for file in beside if file.is_file()), None)) is not None:
            hint = f"Did you mean {str(there)!r}?"
        if path.is_file():
            hint = "Save the file as comma-separated values, and let its name end in .csv, or as a .npz file."
        raise ValueError(f"The data set is not known. Received: {source!r}. {hint}")
    if not path.is_file():
        raise FileNotFoundError(f"There is no such file. Received: {source!r}. Pass the path of an existing file.")
    if path.suffix != ".csv":
        _refuse_options(source, label, table, header, person, target_range)
        dataset = files.read_npz(path)
    elif table is None:
        dataset = _undescribed(path, label, header, person, target_range)
    elif target_range is not None:
        raise ValueError(
            f"The description of {path} says what its label is. Received: a description and "
            f"target_range={target_range!r}. Leave it out, and write the range into the description."
        )
    else:
        dataset = _described(path, label, table, header, person)
    for what in dataset.uncharged:
        warnings.warn(
            f"Read off the private rows, not covered by epsilon: {what}. Describe a .csv file by a lipdp.data.Table, "
            "or say so beside epsilon.",
            UnchargedWarning,
            stacklevel=checks.users_line(),
        )
    return dataset


class UnchargedWarning(UserWarning):
    """Something counts as public although it was read off the private rows."""


def _described(path: pathlib.Path, label: str | None, table: Table, header: bool, person: str | None) -> Dataset:
    """Returns the data set in a `.csv` file: nothing is read off it but its rows."""
    if label not in (None, table.label) or not (header or not table.header):
        raise ValueError(
            f"The description of {path} names the label and says whether there is a header. Received: label={label!r}, "
            f"header={header!r}, described as {table.label!r} and {table.header!r}. Leave them out."
        )
    seen = table if person is None else table.without(person)
    x, y, ids = [], [], []
    for found in rows.pieces(path, table.header):
        if person is not None:
            ids.append(person_ids(found, person, table.label, table.missing))
        x.append(seen.encode(found))
        y.append(table.labels(found))
    return _dataset(x, np.concatenate(y), ids, path, seen)


def _undescribed(
    path: pathlib.Path, label: str | None, header: bool, person: str | None, target_range: tuple | None
) -> Dataset:
    """Returns the data set in a `.csv` file of numbers and one column of classes, or of a number to predict."""
    x, y, ids, names = [], [], [], []
    for found in rows.pieces(path, header):
        label = label_of(found, label)
        if person is not None:
            ids.append(person_ids(found, person, label))
        y.append(_labels(found, label) if target_range is None else numbers(found, label))
        names = [name for name in found.columns if name not in (label, person)]
        columns = [Column(name=name, kind="number", missing=False) for name in names]
        columns += [Column(name=name, kind="ignore") for name in (label, person) if name is not None]
        x.append(Table(columns=tuple(columns), header=header).encode(found))
    labels = np.concatenate(y)
    if target_range is not None:
        described = tuple(column for column in columns if column.name != label)
        table = Table(columns=described, label=label, header=header, target_range=target_range)
        return _dataset(x, labels, ids, path, table)
    if all(map(rows.is_number, labels)):
        labels = labels.astype("float64")
    places, classes = class_ids(labels, f"column {label!r} of {path}")
    check_few(classes, len(labels), f"Label column {label!r} of {path}", _FEW)
    columns = [column for column in columns if column.name != label]
    table = Table(columns=tuple(columns), label=label, classes=classes, header=header)
    return _dataset(x, places, ids, path, table, (f"the list of classes: those that occur in column {label!r}",))


def _dataset(x: list, y: np.ndarray, ids: list, path: pathlib.Path, table: Table, uncharged: tuple = ()) -> Dataset:
    persons = np.concatenate(ids) if ids else None
    features = np.concatenate(x)
    return Dataset(features, y, None, None, table.classes, path.stem, table.features, table, uncharged, persons)


def _labels(found: rows.Rows, name: str) -> np.ndarray:
    stripped = [value.strip() for value in found.columns[name]]
    # "none" is a class of many tables, such as those of diagnoses.
    missing = [rows.is_missing(value) and value.lower() != "none" for value in stripped]
    if any(missing):
        raise ValueError(
            f"Label column {name!r} of {found.source} holds no class {found.places(missing)}. Received: "
            f"{stripped[missing.index(True)]!r}. Remove these rows, or list the text among the classes of a "
            "description (`lipdp table`) if it is one."
        )
    return np.asarray(stripped)


def _refuse_options(
    source: str, label: str | None, table: Table | None, header: bool, person: str | None, target_range: Any
) -> None:
    given = {
        f"label {label!r}": label is not None,
        "a description": table is not None,
        "no header": not header,
        f"the column {person!r} of persons": person is not None,
        f"the range {target_range!r} of a target": target_range is not None,
    }
    if any(given.values()):
        raise ValueError(
            "Only a .csv file has a label column or one of persons to name, a description and a header. Received: "
            f"{next(what for what, there in given.items() if there)} for {source!r}. Leave it out."
        )
