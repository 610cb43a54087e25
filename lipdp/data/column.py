"""One column of a table: what is publicly known of it, and how one value becomes numbers."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lipdp import checks
from lipdp.data import rows

KINDS = ("number", "category", "date", "ignore")
# As messages call it; commands put their own words in its place.
DESCRIPTION = "the description of the table, which `lipdp table` begins"
# What people write for a day, as 31/5/2024 or 5.3.24.
_DATED = re.compile(r"(\d{1,2}([./-])\d{1,2}\2(\d{4}|\d\d)|\d{4}([./-])\d{1,2}\4\d{1,2})(?![\d.])")


@dataclasses.dataclass(frozen=True)
class Column:
    """What is publicly known of one column.

    Args:
        name: as in the header.
        kind: "number", "category", "date" (a date, a time, or the ISO text of one, such as "2024-05-31"), or "ignore"
            for a column that no model may see, such as a name.
        range: of a number or a date, `(low, high)` with low < high: what follows from its meaning, never the smallest
            and the largest value of private rows. None takes numbers as they are; a date needs one.
        vocabulary: of a category, its values: texts, numbers, or True and False, which count as the words "true" and
            "false"; at least one. Any other value is "other".
        missing: whether a value may be missing. An entry of its own then says so; otherwise a missing one is an error.
        unit: for the reader.

    Raises:
        ValueError: a kind, a range or a vocabulary is none; or it is not that of this kind.

    Example:
        >>> Column("smoker", kind="category", vocabulary=("yes", "no")).features
        ('smoker=yes', 'smoker=no', 'smoker: other', 'smoker: missing')
    """

    name: str
    _: dataclasses.KW_ONLY
    kind: str
    range: tuple[Any, Any] | None = None
    vocabulary: tuple[str | int | float, ...] = ()
    missing: bool = True
    unit: str = ""

    def __post_init__(self):
        where = f" In column {self.name!r}."
        checks.choice("kind", self.kind, KINDS, where.strip())
        checks.boolean("missing", self.missing, where.strip())
        if self.kind not in ("number", "date") and self.range is not None:
            raise ValueError(
                f"Only numbers and dates have a range. Received: range={self.range!r}.{where} Leave it out."
            )
        if self.kind != "category" and self.vocabulary:
            raise ValueError(
                f"Only categories have a vocabulary. Received: vocabulary={self.vocabulary!r}.{where} Leave it out."
            )
        if self.kind == "date":
            object.__setattr__(self, "range", _as_days(self.range, where))
        elif self.range is not None:
            object.__setattr__(self, "range", checks.as_range(self.range, where))
        if self.kind == "category":
            object.__setattr__(self, "vocabulary", check_values("vocabulary", self.vocabulary, 1, where))

    @property
    def features(self) -> tuple[str, ...]:
        """Returns the names of the entries that a value becomes."""
        if self.kind == "ignore":
            return ()
        own = (self.name,)
        if self.kind == "category":
            own = (*(f"{self.name}={value}" for value in self.vocabulary), f"{self.name}: other")
        return (*own, f"{self.name}: missing") if self.missing else own

    def encode(
        self, values: Sequence | np.ndarray, interval: tuple[float, float], words: frozenset[str], found: rows.Rows
    ) -> np.ndarray:
        """Returns float32 entries, shape `(N, len(features))`, each row from its own value alone.

        Args:
            values: N values, or their texts.
            interval: what the range is mapped to.
            words: texts that stand for a missing value, beside the usual ones.
            found: the rows that the values come from, for messages.

        Raises:
            ValueError: a value is not a number, or is missing where none may be.
        """
        table = np.zeros((len(values), len(self.features)), "float32")
        if self.kind == "category":
            none = self._is_missing(words)
            find = Index(self.vocabulary, none)
            self._check_truths(find, values, found.source)
            # A word of the vocabulary is a value, also where it is one of those that stand for none, as "none".
            ids = find.all(values)
            absent = np.array([i < 0 and none(v) for i, v in zip(ids, values, strict=True)], bool)
            places = np.where(np.array(ids) < 0, len(self.vocabulary), ids)
            table[~absent, places[~absent]] = 1.0
        else:
            numbers = self._numbers(values, words, found)
            absent = np.isnan(numbers)
            table[:, 0] = np.where(absent, 0.0, self._scaled(numbers, interval))
        if self.missing:
            table[:, -1] = absent
        elif absent.any():
            todo = (
                'Remove these rows, put a public constant in place of the values, or set "missing": true for the '
                f"column in {DESCRIPTION}"
            )
            raise self._refusal("a missing value", absent, values, found, todo)
        return table

    def _check_truths(self, find: "Index", values: Sequence | np.ndarray, source: str) -> None:
        """Refuses a column of truth values, by its type alone, where all would be "other"."""
        if isinstance(values, np.ndarray) and values.dtype.kind == "b" and max(find(True), find(False)) < 0:
            raise ValueError(
                f"Column {self.name!r} of {source} holds truth values, and its vocabulary holds none. Received: "
                f"vocabulary={self.vocabulary!r}. Write true and false into the vocabulary, or its words into the "
                "column."
            )

    def _scaled(self, numbers: np.ndarray, interval: tuple[float, float]) -> np.ndarray:
        if self.range is None:
            return numbers
        (low, high), (first, last) = self.range, interval
        if self.kind == "date":
            low, high = rows.as_day(low), rows.as_day(high)
        return np.clip(first + (numbers - low) * ((last - first) / (high - low)), first, last)

    def _numbers(self, values, words, found: rows.Rows) -> np.ndarray:
        """Returns float64 numbers, days of dates, NaN where they are missing."""
        is_missing = self._is_missing(words)
        if self.kind == "date":
            absent = np.array([is_missing(v) for v in values], bool)
            bad = np.array([not none and not rows.is_day(v) for none, v in zip(absent, values, strict=True)], bool)
            if bad.any():
                todo = 'Write dates as "2024-05-31", or list the word under "missing" if it stands for a missing value'
                raise self._refusal("a value that is not a date", bad, values, found, todo)
            return np.array([math.nan if none else rows.as_day(v) for none, v in zip(absent, values, strict=True)])
        try:
            # One of the words may be a number; dates are none, and one of them must not decide for the others.
            if words or (isinstance(values, np.ndarray) and values.dtype.kind not in "biuf"):
                raise ValueError
            numbers = np.asarray(values, "float64")
        except (TypeError, ValueError):
            read = [math.nan if is_missing(v) else rows.untruth(v) for v in values]
            bad = np.array([not rows.is_number(v) for v in read], bool)
            if bad.any():
                first = values[int(np.flatnonzero(bad)[0])]
                dated = isinstance(first, str) and _DATED.match(first.strip()) and not rows.is_day(first)
                other = '"date"' if dated or rows.is_day(first) else '"category"'
                plain = "write dates as 2024-05-31, " if dated else ""
                if _is_dressed(first):
                    plain = "write 1234.5, without currency, % or separators of thousands, "
                todo = (
                    f'Features must be numeric: {plain}make the column a {other} or "ignore" it in {DESCRIPTION}, '
                    'or list the word under "missing" if it stands for a missing value'
                )
                raise self._refusal("a value that is not a finite number", bad, values, found, todo) from None
            numbers = np.array([rows.as_number(v) for v in read], "float64")
        with np.errstate(over="ignore"):
            bad = np.isinf(numbers.astype("float32"))
        if self.range is None and bad.any():  # a range clips them
            todo = f"Give the column a range, in {DESCRIPTION}"
            raise self._refusal("a value that is not a finite number", bad, values, found, todo)
        return numbers

    def _is_missing(self, words: frozenset[str]) -> Callable[[Any], bool]:
        return functools.partial(
            rows.is_missing, words=words, numbers=rows.numbers_of(words, numeric=self.kind == "number")
        )

    def _refusal(self, what: str, bad: np.ndarray, values, found: rows.Rows, todo: str) -> ValueError:
        return ValueError(
            f"Column {self.name!r} of {found.source} has {what} {found.places(bad)}. Received: "
            f"{as_shown(values[int(np.flatnonzero(bad)[0])])}. {todo}."
        )


class Index:
    """Finds the place of a value in a public list: as text, and as a number where the list holds numbers.

    A value that is a number is also found where the list holds the text that is written for it. The words true and
    false are found in any letters, and 1 and 0 are the same where the list holds either both words or both numbers.

    Args:
        values: the list.
        is_missing: says which values stand for none, unless the list holds them as they are.

    Example:
        >>> find = Index(("no", "yes", 2))
        >>> [find(value) for value in (" yes", "2.0", 2, "maybe")]
        [1, 2, 2, -1]
        >>> find = Index(("false", "true"))
        >>> [find(value) for value in ("True", True, "1", 0.0, 2)]
        [1, 1, 1, 0, -1]
    """

    def __init__(self, values: Sequence, is_missing: Callable[[Any], bool] | None = None):
        self._is_missing = is_missing
        self._texts = {rows.as_text(value): i for i, value in enumerate(values)}
        self._numbers = {float(value): i for i, value in enumerate(values) if not isinstance(value, str)}
        self._written = {
            number: i for i, value in enumerate(values) for number in rows.numbers_of([str(value)], numeric=False)
        }
        # pandas makes truth values of such words, unless one row holds another text.
        words = [(rows.as_truth(value), i) for i, value in reversed(list(enumerate(values)))]
        self._truths = {truth: i for truth, i in words if truth is not None}
        digits = {truth: self._written[truth] for truth in (True, False) if truth in self._written}
        self._digits = self._truths if len(self._truths) == 2 and not digits else {}
        if not self._truths and len(digits) == 2:
            self._truths = digits

    def __call__(self, value: Any) -> int:
        """Returns the place of a value, or -1."""
        place = self._texts.get(rows.as_text(value), -1)
        if place < 0 and isinstance(value, bool | np.bool_):
            place = self._truths.get(bool(value), -1)
        if place < 0 and self._numbers and rows.is_number(value):
            place = self._numbers.get(rows.as_number(value), -1)
        if place < 0:
            place = rows.place_of_number(value, self._written)
        if place < 0 and not (self._is_missing and self._is_missing(value)):
            place = self._place_of_truth(value)
        return place

    def all(self, values: Sequence | np.ndarray) -> list[int]:
        """Returns the places of values; each text is looked for once."""
        places: dict[str, int] = {}
        found = []
        for value in values:
            if not isinstance(value, str):
                found.append(self(value))
                continue
            if value not in places:
                places[value] = self(value)
            found.append(places[value])
        return found

    def _place_of_truth(self, value: Any) -> int:
        truth = rows.as_truth(value)
        if truth is not None:
            return self._truths.get(truth, -1)
        number = rows.as_number(value) if self._digits and rows.is_number(value) else math.nan
        return self._digits[bool(number)] if number in (0.0, 1.0) else -1


def check_values(name: str, values: Any, least: int, where: str = "") -> tuple:
    """Returns a public list of texts and numbers as a tuple, truth values as "true" and "false"; ValueError when it
    holds others, or two of them are equal.
    """
    if not isinstance(values, (list, tuple)) or len(values) < least:
        raise ValueError(
            f"`{name}` must be a list of at least {least} texts or numbers, known without looking at the private rows. "
            f"Received: {name}={values!r}.{where}"
        )
    # As JSON writes them.
    values = [str(value).lower() if isinstance(value, bool | np.bool_) else value for value in values]
    for value in values:
        if not isinstance(value, (str, int, float)) or not math.isfinite(_finite(value)):
            raise ValueError(f"`{name}` must hold texts or numbers. Received: {value!r}.{where}")
    find = Index(values)
    twice = [value for i, value in enumerate(values) if find(value) != i]
    if twice:
        raise ValueError(f"`{name}` must hold each value once. Received: {twice[0]!r} twice.{where}")
    return tuple(value.strip() if isinstance(value, str) else value for value in values)


def _as_days(value: Any, where: str) -> tuple[str, str]:
    """Returns a range of dates as ISO texts; ValueError where it is none."""
    try:
        low, high = value
        low, high = (str(v.astype("M8[s]") if isinstance(v, np.datetime64) else v).strip() for v in (low, high))
        fits = rows.is_day(low) and rows.is_day(high) and rows.as_day(low) < rows.as_day(high)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            'A date needs a range of two dates, the earlier one first, such as ["2000-01-01", "2030-01-01"]. '
            f"Received: range={value!r}.{where}"
        )
    return low, high


def as_shown(value: Any) -> str:
    """Returns a value as a message shows it."""
    return repr(value.strip() if isinstance(value, str) else value)


def _is_dressed(value: Any) -> bool:
    """Whether a text is a number beside what people write around it, as "$1,234.50" or "12 %"."""
    return isinstance(value, str) and rows.is_number("".join(c for c in value if c not in "%$€£¥,' \xa0"))


def _finite(value) -> float:
    return 0.0 if isinstance(value, str) else rows.as_number(value)
