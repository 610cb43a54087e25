"""Texts and their classes in a CSV or JSON-lines file."""

import dataclasses
import difflib
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from lipdp.data import rows, tokenizers
from lipdp.data.column import Index, as_shown, check_values
from lipdp.data.dataset import Dataset, check_few, class_ids
from lipdp.data.named import person_ids
from lipdp.privacy import files

# Python keeps whole characters as one.
_HALF = re.compile("[\ud800-\udfff]")
SUFFIXES = (".csv", ".jsonl", ".ndjson")
_FEW = (
    "Name the column of classes, or those that may occur, from what is publicly known: --classes (in Python: classes=)."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextColumns:
    """What is publicly known of a file of texts: its columns, its classes, and how a text becomes numbers.

    Args:
        text: name of the column of texts.
        tokenizer: `ByteTokenizer` or `WordTokenizer`.
        label: name of the column of classes; None where there is none.
        classes: of the label: class id i is the i-th.

    Raises:
        ValueError: the classes are not distinct texts or numbers.

    Example:
        >>> tokenizer = tokenizers.WordTokenizer(["good", "bad"], length=3)
        >>> columns = TextColumns(text="said", tokenizer=tokenizer, label="mood", classes=("sad", "glad"))
        >>> said = {"said": ["Good.", "not bad, good"], "mood": ["glad", "sad"]}
        >>> columns.encode(said).tolist(), columns.labels(said).tolist()
        ([[1, 0, 0], [2, 1, 0]], [1, 0])

    **Guarantee.**
    Conditions: the classes, and what the tokenizer knows, were written without looking at the private texts.
    Bound: `encode` and `labels` make each row of that row alone, so they cost no epsilon.
    Not covered: column names and the number of rows, which are taken to be public; that a call fails, and its message;
    how many texts are cut.
    """

    text: str
    tokenizer: tokenizers.Tokenizer
    label: str | None = None
    classes: tuple[str | int | float, ...] = ()

    def __post_init__(self):
        if self.label is not None:
            object.__setattr__(self, "classes", check_values("classes", self.classes, 2, f" Of label {self.label!r}."))

    def encode(self, source: Any) -> np.ndarray:
        """Returns the texts as inputs of a model.

        Args:
            source: path of a `.csv` or `.jsonl` file, a DataFrame, or a dictionary from column name to N values. The
                label column may be absent.

        Returns:
            int32, shape `(N, tokenizer.length)`.

        Raises:
            ValueError: the column is absent, or a text is empty; says where.
            FileNotFoundError: when there is no such file.
        """
        return self.tokenizer(_texts(read(source), self.text))

    def cut(self, source: Any) -> int:
        """Returns how many texts are longer than the tokenizer keeps: a number about private texts."""
        tokens, length = self.tokenizer.tokens, self.tokenizer.length
        return sum(len(tokens(text)) > length for text in _texts(read(source), self.text))

    def labels(self, source: Any) -> np.ndarray:
        """Returns the class ids of rows, int32 `(N,)`: the places of the labels in `classes`.

        Args:
            source: as in `encode`, with the label column.

        Raises:
            ValueError: there is no label column, or a label is missing or none of the classes; says where.
            FileNotFoundError: when there is no such file.
        """
        if self.label is None:
            raise ValueError("The texts have no label. Received: label=None. Name the column of classes.")
        found, find = read(source), Index(self.classes)
        values = _column(found, "label", self.label)
        ids = np.array([find("" if value is None else value) for value in found.values(self.label)], "int32")
        if (ids < 0).any():
            first = int(np.flatnonzero(ids < 0)[0])
            raise ValueError(
                f"Label column {self.label!r} of {found.source} holds no class in {int((ids < 0).sum())} of {len(ids)} "
                f"rows, first in row {first + 1}. Received: {as_shown(values[first])}, classes {list(self.classes)}. "
                "Remove these rows, or add the class."
            )
        return ids

    @classmethod
    def from_json(cls, path: str | os.PathLike) -> "TextColumns":
        """Returns what `to_json` has written; ValueError when the file holds no such description."""
        try:
            content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
            tokenizer = tokenizers.from_dict(content.pop("tokenizer"))
            return cls(**content | {"tokenizer": tokenizer, "classes": tuple(content["classes"])})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} does not describe texts: {error}") from error

    def to_json(self, path: str | os.PathLike) -> None:
        """Writes the description, which `from_json` reads."""
        own = {"text": self.text, "label": self.label, "classes": self.classes, "tokenizer": self.tokenizer.to_dict()}
        files.write_text(path, json.dumps(own) + "\n")


def load_text(
    source: str | os.PathLike,
    text: str,
    label: str,
    tokenizer: tokenizers.Tokenizer | None = None,
    classes: Sequence[str | int | float] = (),
    person: str | None = None,
) -> Dataset:
    """Returns the texts of a file and their classes as a data set.

    Args:
        source: path of a `.csv` file with a header, or of a `.jsonl` file with one JSON object in each line.
        text: name of the column of texts.
        label: name of the column of classes.
        tokenizer: default: `ByteTokenizer()`.
        classes: those that may occur, from what is publicly known. Without them they are those that do occur, which
            epsilon does not cover, see `Dataset.uncharged`.
        person: name of the column that says who wrote each text, see `Dataset.person_ids`. Other texts need none.

    Returns:
        A `Dataset` without a test part; `x_train` is int32 `(N, tokenizer.length)`, and `texts` encodes others.

    Raises:
        ValueError: a column is absent, a text, a label or a person is empty, or a line is none; says where.
        FileNotFoundError: when there is no such file.
    """
    if text == label:
        raise ValueError(
            f"The column of classes must not be that of the texts. Received: {text!r} for both. Name the column of "
            "classes as label."
        )
    found = read(source)
    ids = _writers(found, person, text, label)
    uncharged = () if classes else (f"the list of classes: those that occur in column {label!r}",)
    if not classes:
        labels = [_plain(value) for value in _column(found, "label", label)]
        # "none" may be a class, as in tables.
        missing = [i for i, value in enumerate(labels) if rows.is_missing(value) and value.lower() != "none"]
        if missing:
            raise ValueError(
                f"Label column {label!r} of {found.source} holds no class in {len(missing)} of {len(labels)} rows, "
                f"first in row {missing[0] + 1}. Received: {labels[missing[0]]!r}. Remove these rows, or list the text "
                "among `classes` (--classes) if it is one."
            )
        numbers = all(map(rows.is_number, labels))
        _, classes = class_ids(np.asarray(labels, "float64" if numbers else None), f"column {label!r} of {source}")
        check_few(classes, len(labels), f"Label column {label!r} of {found.source}", _FEW)
    tokenizer = tokenizer or tokenizers.ByteTokenizer()
    columns = TextColumns(text=text, tokenizer=tokenizer, label=label, classes=tuple(classes))
    x, y = columns.encode(found), columns.labels(found)
    name = pathlib.Path(source).stem
    return Dataset(x, y, None, None, columns.classes, name, uncharged=uncharged, person_ids=ids, texts=columns)


def load_language(source: str | os.PathLike, text: str, length: int = 128, person: str | None = None) -> Dataset:
    """Returns the texts of a file as what a language model learns: each next byte from those before it.

    Args:
        source: path of a `.csv` file with a header, or of a `.jsonl` file with one JSON object in each line.
        text: name of the column of texts.
        length: bytes that are kept of a text, its end included, at least 2.
        person: name of the column that says who wrote each text, see `Dataset.person_ids`.

    Returns:
        A `Dataset` without classes and test part. `y_train` is int32 `(N, length)`, as `RawByteTokenizer` makes it, 0
        behind the end of a text; `x_train` is the same one place later, behind the number of an end.

    Raises:
        ValueError: a column is absent, a text or a person is empty, or a line is none; says where.
        FileNotFoundError: when there is no such file.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "said.csv")
        >>> _ = path.write_text("said\\nhi\\nyes\\n")
        >>> texts = load_language(path, "said", length=5)
        >>> texts.x_train.tolist(), texts.y_train.tolist()
        ([[1, 106, 107, 1, 0], [1, 123, 103, 117, 1]], [[106, 107, 1, 0, 0], [123, 103, 117, 1, 0]])
    """
    found = read(source)
    columns = TextColumns(text=text, tokenizer=tokenizers.RawByteTokenizer(length))
    ids = _writers(found, person, text, None)
    y = columns.encode(found)
    x = np.concatenate([np.full((len(y), 1), tokenizers.RawByteTokenizer.end, "int32"), y[:, :-1]], axis=1)
    return Dataset(x, y, None, None, (), pathlib.Path(source).stem, person_ids=ids, texts=columns)


def _writers(found: rows.Rows, person: str | None, text: str, label: str | None) -> np.ndarray | None:
    """Returns who wrote each text, where a column says it."""
    if person is None:
        return None
    if person == text:
        raise ValueError(
            f"The column of persons must not be that of the texts. Received: {person!r} for both. Name the column of "
            "ids."
        )
    ids = person_ids(found, person, label)
    _check_whole(ids, "Column", found, person)
    return ids


def read(source: Any) -> rows.Rows:
    """Returns the columns of a `.csv` or `.jsonl` file, or of what `rows.read` takes."""
    if not isinstance(source, (str, os.PathLike)):
        return rows.read(source)
    path = pathlib.Path(source)
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"Texts come from a file, .csv or .jsonl. Received: {str(source)!r}. Pass the path of such a file."
        )
    if path.suffix == ".csv" or not path.is_file():
        return rows.read(path, least=1)
    return _read_jsonl(path)


def _read_jsonl(path: pathlib.Path) -> rows.Rows:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8: {error}. Save it as such.") from error
    objects = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            objects.append(dict(json.loads(line).items()))
        except (ValueError, AttributeError) as error:
            raise ValueError(f"Line {number} of {path} is not a JSON object. Received: {line[:40]!r}.") from error
    if not objects:
        raise ValueError(f"{path} holds no line. Pass a file with data.")
    names = dict.fromkeys(name for values in objects for name in values)
    return rows.Rows({name: [values.get(name) for values in objects] for name in names}, str(path))


def _texts(found: rows.Rows, name: str) -> list[str]:
    values = _column(found, "text", name)
    bad = [i for i, value in enumerate(values) if not isinstance(value, str) or not value.strip()]
    if bad:
        raise ValueError(
            f"Text column {name!r} of {found.source} holds no text in {len(bad)} of {len(values)} rows, first in row "
            f"{bad[0] + 1}. Received: {values[bad[0]]!r}. Remove these rows, or write a word that stands for no text."
        )
    return list(values)


def _check_whole(values: Any, what: str, found: rows.Rows, name: str) -> None:
    """Refuses half a pair of surrogates, which JSON can hold, and no text file."""
    for i, value in enumerate(values):
        if isinstance(value, str) and (half := _HALF.search(value)):
            raise ValueError(
                f"{what} {name!r} of {found.source} holds half a character, first in row {i + 1}. Received: "
                f"{half.group()!r}, which no file in UTF-8 can hold. Write the whole character, or remove it."
            )


def _column(found: rows.Rows, what: str, name: str):
    if name not in found.columns:
        names = list(found.columns)
        close = difflib.get_close_matches(name, names, 1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Its columns: {', '.join(names[:20])}."
        raise ValueError(f"{found.source} has no {what} column of that name. Received: {name!r}. {hint}")
    _check_whole(found.columns[name], f"{what.capitalize()} column", found, name)
    return found.columns[name]


def _plain(value: Any) -> str:
    """Returns a label as the text that a CSV file would hold."""
    return "" if value is None else rows.as_text(value)
