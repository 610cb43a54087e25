"""The public description of a table, which turns its rows into inputs and labels of a model."""

import dataclasses
import difflib
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from lipdp import checks
from lipdp.data import rows
from lipdp.data.column import Column, Index, as_shown, check_values
from lipdp.data.named import label_of, no_column, numbers, person_ids
from lipdp.privacy import files

_INTERVALS = ((-1.0, 1.0), (0.0, 1.0))
_KEYS = ("header", "interval", "missing", "columns", "label")
_FITS: dict[str, Callable[[Any], bool]] = {
    "none": rows.is_missing,
    "truth": lambda value: rows.as_truth(value) is not None,
    "number": rows.is_number,
    "date": rows.is_day,
}
_COLUMN_KEYS = ("kind", "range", "vocabulary", "missing", "unit")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """What is publicly known of a table: ranges, vocabularies and classes; it encodes rows by nothing else.

    A number is clipped to its range and mapped to `interval`. A category becomes one entry for each value of its
    vocabulary, and one for any other. Where values may be missing, one more entry says so, and the others are 0.

    Args:
        columns: the columns beside the label, in the order of the entries.
        label: name of the column of classes, or of the number to predict; None for a table without one.
        classes: of the label, at least two texts or numbers: class id i is the i-th.
        target_range: instead of classes, `(low, high)` of a number to predict: what follows from its meaning.
        target_unit: of this number, for the reader.
        interval: (-1, 1) or (0, 1).
        header: whether the first line of its files holds column names; without one they are "0", "1", ...
        missing: texts that stand for a missing value beside the empty one, "NA", "N/A", "NaN", "null", "None" and "?",
            in upper or lower case.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> table = Table(
        ...     columns=(
        ...         Column(name="age", kind="number", range=(0, 120), unit="years"),
        ...         Column(name="smoker", kind="category", vocabulary=("no", "yes"), missing=False),
        ...     ),
        ...     label="ill",
        ...     classes=("no", "yes"),
        ... )
        >>> people = {"age": [30, None], "smoker": ["yes", "at times"], "ill": ["no", "yes"]}
        >>> table.features
        ('age', 'age: missing', 'smoker=no', 'smoker=yes', 'smoker: other')
        >>> table.encode(people).tolist()
        [[-0.5, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0, 1.0]]
        >>> table.labels(people).tolist()
        [0, 1]

    **Guarantee.**
    Conditions: the description was written without looking at the private rows.
    Bound: `encode` and `labels` make each row of that row alone, so they cost no epsilon; the L2 norm of an encoded
    row is at most `norm`. A number and the text that Python writes for it are the same, other than in a file.
    Not covered: a description that follows from the rows, such as their smallest and largest values, or the words that
    occur; column names and the number of rows, which are taken to be public; that a call fails, and its message; what
    others made of values before, such as pandas of the text "01".
    """

    columns: tuple[Column, ...]
    label: str | None = None
    classes: tuple[str | int | float, ...] = ()
    interval: tuple[float, float] = (-1.0, 1.0)
    header: bool = True
    missing: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    target_unit: str = ""

    def __post_init__(self):
        object.__setattr__(self, "columns", tuple(self.columns))
        if other := next((column for column in self.columns if not isinstance(column, Column)), None):
            raise ValueError(
                "`columns` must be lipdp.data.Column objects. Received: "
                f"{other!r}. Pass for example Column('age', kind='number', range=(0, 120))."
            )
        names = [column.name for column in self.columns]
        if not any(column.features for column in self.columns):
            raise ValueError(f"A table needs a column that is not ignored. Received: columns {names}. Describe one.")
        for name in (*names, self.label):
            if (names + [self.label]).count(name) > 1:
                raise ValueError(f"Each column is described once. Received: {name!r} twice. Leave one out.")
        if self.target_range is not None:
            if self.label is None or self.classes:
                raise ValueError(
                    "A range of the target is for a label that is a number. Received: "
                    f"target_range={self.target_range!r} with label={self.label!r}, classes={self.classes!r}. Pass the "
                    "label alone with it, or classes in its place."
                )
            object.__setattr__(self, "classes", ())
            object.__setattr__(self, "target_range", checks.as_range(self.target_range, f" Of label {self.label!r}."))
        elif self.label is not None:
            told = f" Of label {self.label!r}; of a number to predict give the range in place of classes."
            object.__setattr__(self, "classes", check_values("classes", self.classes, 2, told))
        elif self.classes:
            raise ValueError(f"Classes need a label column. Received: classes={self.classes!r}. Pass label as well.")
        interval = tuple(self.interval) if isinstance(self.interval, (list, tuple)) else self.interval
        if interval not in _INTERVALS:
            raise ValueError(f"`interval` must be (-1, 1) or (0, 1). Received: interval={self.interval!r}.")
        object.__setattr__(self, "interval", (float(interval[0]), float(interval[1])))
        checks.boolean("header", self.header)
        words = self.missing
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
            raise ValueError(f'`missing` must be a list of texts, such as ["-9"]. Received: missing={words!r}.')
        object.__setattr__(self, "missing", tuple(word.strip() for word in words))

    @property
    def features(self) -> tuple[str, ...]:
        """Returns the names of the entries of an encoded row."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def norm(self) -> float | None:
        """Returns a bound on the L2 norm of an encoded row; None where a number has no range.

        Each column has at most one entry that is not 0, of at most 1: the bound is the root of their number.
        """
        used = [column for column in self.columns if column.features]
        if any(column.kind == "number" and column.range is None for column in used):
            return None
        return math.sqrt(len(used))

    def encode(self, source: Any) -> np.ndarray:
        """Returns the rows as inputs of a model.

        Args:
            source: path of a `.csv` file, a DataFrame, or a dictionary from column name to N values. The label column
                may be absent.

        Returns:
            float32, shape `(N, len(features))`.

        Raises:
            ValueError: a column is absent or not described, a value is not a number, or one is missing where none may
                be; says which.
            FileNotFoundError: when there is no such file.
        """
        return np.concatenate([self._encoded(found) for found in rows.pieces(source, self.header)])

    def _encoded(self, found: rows.Rows) -> np.ndarray:
        unknown = [n for n in found.columns if n != self.label and n not in {column.name for column in self.columns}]
        used = [column for column in self.columns if column.features]
        absent = [column.name for column in used if column.name not in found.columns]
        if absent:
            raise no_column("column", absent[0], found, [column.name for column in self.columns])
        if unknown:
            raise ValueError(
                f"A column of {found.source} is not described. Received: {', '.join(map(repr, unknown[:20]))}. Leave "
                'it out, or describe it, with the kind "ignore" if no model may see it.'
            )
        words = frozenset(self.missing)
        columns = [(c, found.values(c.name, numeric=c.kind == "number")) for c in used]
        parts = [c.encode(values, self.interval, words, found) for c, values in columns]
        return np.concatenate(parts, axis=1)

    def labels(self, source: Any) -> np.ndarray:
        """Returns the class ids of rows, or the numbers to predict.

        Args:
            source: as in `encode`, with the label column.

        Returns:
            int32, shape `(N,)`, the places of the labels in `classes`. With a `target_range` float32, the numbers as
            they are, in their own unit.

        Raises:
            ValueError: there is no label column, or a label is missing, none of the classes or no number; says where.
            FileNotFoundError: when there is no such file.
        """
        if self.label is None:
            raise ValueError("The table has no label. Received: label=None. Describe the column of classes.")
        return np.concatenate([self._labels(found) for found in rows.pieces(source, self.header)])

    def _labels(self, found: rows.Rows) -> np.ndarray:
        if self.label not in found.columns:
            raise no_column("label column", str(self.label), found)
        if self.target_range is not None:
            return numbers(found, str(self.label), self.missing)
        values, find = found.columns[self.label], Index(self.classes)
        ids = np.array(find.all(found.values(self.label)), "int32")
        if (ids < 0).any():
            first = int(np.flatnonzero(ids < 0)[0])
            raise ValueError(
                f"Label column {self.label!r} of {found.source} holds no class {found.places(ids < 0)}. Received: "
                f"{as_shown(values[first])}, classes {list(self.classes)}. Remove these rows, or add the class to the "
                "description."
            )
        return ids

    def without(self, column: str) -> "Table":
        """Returns the table with a column that no model sees, such as whose a row is, described or not."""
        columns = [one for one in self.columns if one.name != column]
        return dataclasses.replace(self, columns=(*columns, Column(name=column, kind="ignore")))

    @classmethod
    def from_json(cls, path: str | os.PathLike) -> "Table":
        """Returns the table that a JSON file describes, see `template`.

        Args:
            path: path of the file.

        Raises:
            ValueError: when the file is not such a description, or not filled in; says where.
            FileNotFoundError: when there is no such file.
        """
        file = pathlib.Path(path)
        if not file.is_file():
            raise FileNotFoundError(
                f"There is no such description of a table. Received: {str(path)!r}. `lipdp table` begins one."
            )
        try:
            content = files.parse(file.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"{path} is not a JSON file: {error}. `lipdp table` writes one to fill in.") from error
        try:
            return cls(**_arguments(content))
        except ValueError as error:
            raise ValueError(f"{path} does not describe a table. {error}") from error

    def to_json(self, path: str | os.PathLike) -> None:
        """Writes the description, which `from_json` reads."""
        columns = {column.name: _described(column) for column in self.columns}
        label = None if self.label is None else {"column": self.label, "classes": self.classes}
        if label is not None and self.target_range is not None:
            label = {"column": self.label, "range": self.target_range, "unit": self.target_unit}
        _write(path, header=self.header, interval=self.interval, missing=self.missing, columns=columns, label=label)

    @staticmethod
    def template(
        source: Any,
        path: str | os.PathLike,
        label: str | None = None,
        header: bool = True,
        person: str | None = None,
        number: bool = False,
    ) -> None:
        """Writes a description to be filled in: column names, and whether they hold numbers, dates or truth values.

        Ranges, classes and other vocabularies are left empty: fill them in by what is publicly known, not by the rows.

        Args:
            source: path of a `.csv` file, a DataFrame, or a dictionary from column name to values.
            path: of the JSON file.
            label: name of the column of classes; default: the last one.
            header: whether the first line of a file holds column names.
            person: name of the column that says whose each row is, which no model may see.
            number: whether the label is a number to predict, so that its range is to be filled in, not classes.

        Raises:
            ValueError: when there is no such column, or the table cannot be read.
        """
        kinds: dict[str, list[str]] = {}
        for found in rows.pieces(source, header):
            label = label_of(found, label)
            if person is not None:
                person_ids(found, person, label)
            for name, values in found.columns.items():
                kinds[name] = _fitting(values, kinds.get(name, list(_FITS)))
        columns = {name: _blank(fitting) for name, fitting in kinds.items() if name != label}
        columns |= {} if person is None else {person: {"kind": "ignore"}}
        empty: dict = {"column": label} | ({"range": [None, None], "unit": ""} if number else {"classes": []})
        _write(path, header=header, interval=_INTERVALS[0], missing=[], columns=columns, label=empty)


def _fitting(values, kinds: list[str]) -> list[str]:
    """Returns those of these kinds that all values are of, beside missing ones."""
    return [kind for kind in kinds if all(_FITS[kind](value) or rows.is_missing(value) for value in values)]


def _blank(fitting: list[str]) -> dict:
    """Returns the description of a column whose values are of these kinds, to be filled in."""
    if "truth" in fitting and "none" not in fitting:
        return {"kind": "category", "vocabulary": ["false", "true"], "missing": True}
    kind = next((kind for kind in fitting if kind in ("number", "date")), None)
    if kind is None:
        return {"kind": "category", "vocabulary": [], "missing": True}
    return {"kind": kind, "range": [None, None], "unit": "", "missing": True}


def _described(column: Column) -> dict:
    if column.kind == "ignore":
        return {"kind": "ignore"}
    own: dict = {"range": column.range, "unit": column.unit}
    if column.kind == "category":
        own = {"vocabulary": column.vocabulary, "unit": column.unit}
    return {"kind": column.kind, **own, "missing": column.missing}


def _arguments(content: Any) -> dict:
    """Returns the arguments of `Table` that a description holds."""
    _check_keys(content, _KEYS, "it")
    columns = content.get("columns")
    if not isinstance(columns, dict):
        raise ValueError(f'"columns" must map names to descriptions. Received: {columns!r}.')
    arguments = {name: content[name] for name in ("header", "interval", "missing") if name in content}
    label = content.get("label")
    left = {"classes": "the classes of the label"} if isinstance(label, dict) and label.get("classes") == [] else {}
    if isinstance(label, dict) and label.get("range") == [None, None]:
        left = {"range": "the range of the label"}
    arguments["columns"] = _columns(columns, [*left.values()])
    if label is not None:
        unit = ("unit",) if isinstance(label, dict) and "range" in label else ()
        _check_keys(label, ("column", "classes", "range", *unit), "the label")
        arguments |= {"label": label.get("column"), "classes": label.get("classes", [])}
        arguments |= {f"target_{key}": label[key] for key in ("range", "unit") if key in label}
        if not isinstance(arguments["label"], str):
            raise ValueError(f'The "column" of the label must be a name. Received: {arguments["label"]!r}.')
    return arguments


def _columns(described: dict, unfilled: list[str]) -> list[Column]:
    """Returns all columns, or says which of them, and what else, are not described yet."""
    columns, wrong = [], {}
    for name, values in described.items():
        try:
            columns.append(_column(name, values))
        except (TypeError, ValueError) as error:
            wrong[name] = str(error)
    if wrong:
        (_, *others), (text, *_) = wrong, wrong.values()
        left = [*map(repr, others), *unfilled]
        if len(left) > 12:
            left = [*left[:10], f"and {len(left) - 10} more"]
        rest = f" To fill in as well: {', '.join(left)}." if left else ""
        raise ValueError(f'{text}{rest} A column that no model may see has {{"kind": "ignore"}}.')
    return columns


def _column(name: str, values: Any) -> Column:
    _check_keys(values, _COLUMN_KEYS, f"column {name!r}")
    kind = values.get("kind")
    if kind == "number" and "range" not in values:
        raise ValueError(
            f"Column {name!r} needs a range. Received: {values!r}. Write two numbers, or null to take numbers as they "
            "are."
        )
    if kind == "number" and values["range"] == [None, None]:
        raise ValueError(
            "A range is not filled in. Write the smallest and the largest value that are possible, or null in place of "
            f"the list where values are to be taken as they are. Received: [null, null]. In column {name!r}."
        )
    return Column(**{"name": name, "kind": kind, **{key: value for key, value in values.items() if key != "kind"}})


def _check_keys(values: Any, known: tuple[str, ...], where: str) -> None:
    if not isinstance(values, dict):
        raise ValueError(f"A JSON object is needed for {where}. Received: {values!r}.")
    unknown = [key for key in values if key not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."
        raise ValueError(f"An unknown word in {where}. Received: {unknown[0]!r}. {hint}")


def _write(path, **content) -> None:
    """Writes a description with one line for each column."""
    columns = content.pop("columns")
    lines = [f"    {json.dumps(name)}: {json.dumps(column)}" for name, column in columns.items()]
    parts = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    parts.insert(3, '  "columns": {\n' + ",\n".join(lines) + "\n  }")
    files.write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")
