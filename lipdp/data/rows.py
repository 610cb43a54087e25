"""The rows of a table as columns by name: from a CSV file, a DataFrame or a dictionary."""

import csv
import datetime
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# Values of a file that are texts at a time: texts take ten times the memory of what they are encoded as.
_AT_ONCE = 2**20
# Characters of one value: texts may be longer than the module allows by itself.
_LONGEST = 2**31 - 1
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
# As Python writes integers: other forms, as "01", are codes.
_WHOLE = re.compile("-?[1-9][0-9]{0,307}|0")


class Rows(NamedTuple):
    """Columns by name, all of one length.

    Args:
        columns: the columns.
        source: what to call them in messages.
        written: whether texts are those of a file.
        before: rows of a longer file that stand before these; None where these are all.
    """

    columns: Mapping[str, Sequence | np.ndarray]
    source: str
    written: bool = True
    before: int | None = None

    def places(self, bad: Any) -> str:
        """Returns in how many rows something is wrong, and in which first, as messages say it."""
        before, (first, *_) = self.before or 0, np.flatnonzero(bad)
        rows = f"{len(bad)} rows" if self.before is None else f"rows {before + 1} to {before + len(bad)}"
        return f"in {np.count_nonzero(bad)} of {rows}, first in row {before + first + 1}"

    def values(self, name: str, numeric: bool = False) -> Sequence | np.ndarray:
        """Returns a column, with numbers in the place of texts that NumPy or pandas may have made of them.

        They do so where one value of a column is a text: what a text means must not depend on other rows. A text of
        another form, as "01", stays a text, unless the column is `numeric`. What was read from a file here is as it
        was written there.
        """
        values = self.columns[name]
        if self.written or (isinstance(values, np.ndarray) and values.dtype.kind not in "OUT"):
            return values
        found = np.empty(len(values), object)
        for i, value in enumerate(values):
            found[i] = _unwritten(value, numeric) if isinstance(value, str) else value
        return found


def read(source: Any, header: bool = True, least: int = 2) -> Rows:
    """Returns the columns of a table.

    Args:
        source: path of a `.csv` file, a DataFrame, or a dictionary from column name to values.
        header: whether the first line of a file holds column names; without one they are "0", "1", ...
        least: columns that a file needs.

    Raises:
        ValueError: when it is none of these, or a file is not such a file; says where.
        FileNotFoundError: when there is no such file.
    """
    if isinstance(source, Rows):
        return source
    if isinstance(source, (str, os.PathLike)):
        return next(_of_file(_existing(source), header, least, None))
    # Those of Arrow have columns as well, without their names.
    frame = hasattr(source, "columns") and hasattr(source, "__getitem__") and not hasattr(source, "column_names")
    if not isinstance(source, Mapping) and not frame:
        raise ValueError(
            f"A table is the path of a .csv file, a DataFrame or a dictionary of columns. Received: a "
            f"{type(source).__name__}. Pass one of these"
            f"{': .to_pandas()' if hasattr(source, 'to_pandas') else ', such as {name: values}'}."
        )
    names = list(source if isinstance(source, Mapping) else source.columns)
    called = f"the {type(source).__name__}"
    if len(set(map(str, names))) < len(names):
        raise ValueError(f"Column names of {called} must be distinct. Received: {names}. Rename the columns.")
    columns = {str(name): _as_column(source[name]) for name in names}
    lengths = {values.shape for values in columns.values()}
    if len(lengths) != 1 or any(len(shape) != 1 for shape in lengths):
        raise ValueError(
            f"The columns of {called} must have one value per row. Received: columns of shapes "
            f"{sorted(map(str, lengths))}. Pass at least one column, all of the same length."
        )
    if lengths == {(0,)}:
        raise ValueError(f"The table holds no row. Received: {called} of length 0. Pass one with data.")
    return Rows(columns, called, written=False)


def pieces(source: Any, header: bool = True, least: int = 2) -> Iterator[Rows]:
    """Yields the rows that `read` returns, those of a file by and by."""
    if isinstance(source, (str, os.PathLike)):
        yield from _of_file(_existing(source), header, least, _AT_ONCE)
    else:
        yield read(source, header, least)


def is_number(text: Any) -> bool:
    """Returns whether a value, or the text of one, is a number, NaN and infinity included."""
    if isinstance(text, np.datetime64):  # NumPy would count nanoseconds
        return False
    try:
        as_number(text)
    except (TypeError, ValueError):
        return False
    return True


def as_number(value: Any) -> float:
    """Returns a number, or the text of one, as a float; one that is too large is infinite, also as an integer."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_truth(value: Any) -> bool | None:
    """Returns a truth value, or the word of one in any letters, as True or False; None for what is none."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None


def untruth(value: Any) -> Any:
    """Returns 1 or 0 for a truth value or the word of one, and others as they are."""
    truth = as_truth(value)
    return value if truth is None else float(truth)


def numbers_of(words: Iterable[str], numeric: bool) -> frozenset[float]:
    """Returns the numbers that words stand for: all of them, or those in the form in which a number is written."""
    found = (_unwritten(word, numeric) for word in words)
    return frozenset(float(number) for number in found if not isinstance(number, str | bool))


def as_day(value: Any) -> float:
    """Returns a date, or the ISO text of one, in days since 1970-01-01; a time counts as a part of its day, in UTC.

    Raises:
        ValueError: the value is none.

    Example:
        >>> as_day("1970-01-02"), as_day("1970-01-02T12:00:00+00:00")
        (1.0, 1.5)
    """
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value.strip())
    if isinstance(value, np.datetime64):
        time = value.astype("M8[us]").item()  # the same steps as for a text, so that the same day is the same number
        if not isinstance(time, datetime.datetime):
            return float((value - np.datetime64("1970-01-01")) / np.timedelta64(1, "D"))
        value = time
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp() / 86400.0
    if isinstance(value, datetime.date):
        return float((value - datetime.date(1970, 1, 1)).days)
    raise ValueError(f"Not a date: {value!r}.")


def is_day(value: Any) -> bool:
    """Returns whether a value, or the text of one, is a date. A number is none, also where it could be read as one."""
    try:
        as_day(value)
    except ValueError:
        return False
    return not is_number(value)


def is_missing(value: Any, words: frozenset[str] = frozenset(), numbers: frozenset[float] = frozenset()) -> bool:
    """Returns whether a value stands for a missing one: None, NaN, an empty text, "NA", "?" and the like, or a word.

    Args:
        value: what to look at.
        words: further texts that stand for a missing value.
        numbers: numbers that do, see `numbers_of`; a text is none.
    """
    if isinstance(value, str):
        text = value.strip()
        return text.lower() in _MISSING or text in words
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas, which is not imported here
        return True
    if bool(value != value) or (words and as_text(value) in words):
        return True
    return bool(numbers) and _counts_as_number(value) and as_number(value) in numbers


def as_text(value: Any) -> str:
    """Returns a value as the text that a CSV file would hold: 2.0, which is how DataFrames keep 2, is "2"."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] not in "YM" and not np.isnat(value):
        value = value.astype("M8[us]").item()  # pandas keeps dates in another type where one value is a text
    if isinstance(value, datetime.datetime) and value.time() == datetime.time() and value.tzinfo is None:
        value = value.date()
    return str(value).strip()


def place_of_number(value: Any, numbers: Mapping[float, int]) -> int:
    """Returns the place of a value that is a number, not the text of one, or -1."""
    return numbers.get(as_number(value), -1) if numbers and _counts_as_number(value) else -1


def _counts_as_number(value: Any) -> bool:
    return not isinstance(value, str | bool | np.bool_) and is_number(value)


def _unwritten(text: str, numeric: bool) -> Any:
    """Returns the number or the truth value that a text is written for, or the text."""
    bare = text.strip()
    if bare in ("True", "False"):
        return bare == "True"
    if not is_number(bare):
        return text
    number = float(bare)
    if repr(number) == bare or numeric:
        return number
    return int(bare) if bare.isascii() and _WHOLE.fullmatch(bare) else text


def _as_column(values: Any) -> np.ndarray:
    """Returns values as an array; of a list as they are: NumPy would make texts of all where one is a text."""
    if isinstance(values, Sequence) and not isinstance(values, str | bytes) and not hasattr(values, "__array__"):
        return np.array(list(values), object)
    return np.asarray(values)


def _existing(source: str | os.PathLike) -> pathlib.Path:
    path = pathlib.Path(source)
    if path.is_dir():
        raise ValueError(f"A folder is no file of rows. Received: {str(source)!r}. Pass a .csv file.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no such file. Received: {str(source)!r}. Pass an existing .csv file.")
    return path


def _of_file(path: pathlib.Path, header: bool, least: int, at_once: int | None) -> Iterator[Rows]:
    """Yields the rows of a file, as many at a time as hold so many values."""
    names: list[str] | None = None
    rows: list[list[str]] = []
    done, most = 0, 0

    def columns() -> Rows:
        found = dict(zip(names or (), zip(*rows, strict=True), strict=True))
        return Rows(found, str(path), before=done if done or len(rows) == most else None)

    before = csv.field_size_limit(_LONGEST)
    try:
        # The -sig: spreadsheets put a byte order mark in front.
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            for row in reader:
                if names is None:
                    names = [name.strip() for name in row] if header else [str(i) for i in range(len(row))]
                    most = max(1, at_once // max(1, len(names))) if at_once else 0
                    if header:
                        continue
                if not row:
                    continue
                if len(row) != len(names):
                    first = "header" if header else "first line"
                    raise ValueError(
                        f"Line {reader.line_num} of {path} has {len(row)} values, the {first} has {len(names)}. "
                        f"Give every line the same number of comma-separated values.{_other_separator(names)}"
                    )
                rows.append(row)
                if len(rows) == most:
                    _check_names(names, path, header, least)
                    yield columns()
                    done, rows = done + len(rows), []
    except UnicodeDecodeError as error:
        todo = "Save it as such; spreadsheets call it CSV UTF-8."
        if path.suffix in (".npz", ".npy"):
            todo = f"Its arrays are numbers already, which need no description: lipdp train --dataset {path}."
        elif path.suffix not in (".csv", ".txt"):
            todo = "Save the table as comma-separated values, in pandas with frame.to_csv(path, index=False)."
        raise ValueError(f"{path} is not a text file in UTF-8: {error}. {todo}") from error
    except csv.Error as error:
        # Quotes around names end the reading before there are names to look at.
        hint = _other_separator(names or [_first_line(path)])
        raise ValueError(
            f"{path} is not a comma-separated file: {error}, in line {reader.line_num}. Save it as such, with quotes "
            f"inside of quotes doubled.{hint}"
        ) from error
    finally:
        csv.field_size_limit(before)
    _check_names(names or [], path, header, least)
    if rows:
        yield columns()
    elif not done:
        raise ValueError(f"{path} has a header and no rows. Pass a file with data.")


def _check_names(names: list[str], path, header: bool, least: int) -> None:
    if len(names) < least:
        wanted = "at least one feature and the label, separated by commas" if least > 1 else "the name of a column"
        raise ValueError(
            f"{path} needs {'a header with ' if header else ''}{wanted}. Received: "
            f"{', '.join(names) or 'an empty file'}.{_other_separator(names)}"
        )
    if not header:
        return
    numbers = [name for name in names if is_number(name)]
    if len(numbers) == len(names) or not _counts(numbers):
        raise ValueError(
            f"The first line of {path} must be column names. Received: {len(numbers)} of {len(names)} that are "
            "numbers, as in a row of data: it would be lost. Add a header, or pass --no-header (in Python: "
            "header=False) when there is none."
        )
    for place, name in enumerate(names, 1):
        if not name:
            raise ValueError(
                f"Column names of {path} must be distinct and not empty. Received: '' for column {place} of "
                f"{len(names)}. Write a name into the first line. pandas leaves that of the index empty: "
                "to_csv(path, index=False) writes none."
            )
        if names.count(name) > 1:
            twice = names.index(name, place) + 1
            raise ValueError(
                f"Column names of {path} must be distinct and not empty. Received: {name!r} for columns {place} and "
                f"{twice}. Rename one of them in the first line, or remove it from the file."
            )


def _first_line(path: pathlib.Path) -> str:
    with open(path, encoding="utf-8-sig") as file:
        return file.readline()


def _other_separator(names: list[str]) -> str:
    """Returns what to do where the first line looks separated by something else than commas; "" elsewhere."""
    found = next((mark for mark in (";", "\t", "|") if any(mark in name for name in names)), None)
    if found is None:
        return ""
    return (
        f" The first line looks separated by {found!r}: put commas there, and write numbers with a decimal point. In "
        f"pandas: pd.read_csv(path, sep={found!r}, decimal=',').to_csv(path, index=False). Where no value is quoted: "
        f"sed 's/,/./g; s/{repr(found)[1:-1]}/,/g' OLD.csv > NEW.csv."
    )


def _counts(names: list[str]) -> bool:
    """Whether names count columns, as 0, 1, 2 do in tables that were written without names."""
    if not all(name.isdecimal() for name in names):
        return False
    first = int(names[0]) if names else 0
    return [int(name) for name in names] == list(range(first, first + len(names))) and (len(names) != 1 or first < 2)
