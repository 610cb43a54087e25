"""The encoding of a row is a function of that row alone, whatever else is in a column, and however it got there."""

import dataclasses
import datetime
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipdp.data import Column, Table, TextColumns
from lipdp.data.tokenizers import ByteTokenizer

pytestmark = pytest.mark.backend_free

TABLE = Table(
    columns=(
        Column("age", kind="number", range=(0, 120)),
        Column("code", kind="category", vocabulary=("1", "2", "01", "True", "2024-05-31")),
        Column("rooms", kind="category", vocabulary=(1, 2.5, "x")),
        Column("seen", kind="date", range=("2000-01-01", "2030-01-01")),
    ),
    label="ill",
    classes=(0, "1"),
    missing=("-9", "-1.0"),
)
DAY = datetime.date(2024, 5, 31)
HOUR = datetime.datetime(2024, 5, 31, 13, 7, 5, 123457)
NUMBERS = [30.0, 30, np.float32(0.1), np.int8(7), True, "7", "-9.0", -9, -9.0, "-9", -1, "-1.0", 2**53 + 1]
HOSTILE = [
    "?",
    " na",
    None,
    math.nan,
    np.float64("nan"),
    10**400,
    -(2**70),
    "1e400",
    "True",
    np.True_,
    2**63,
    1e300,
    "",
]
ANYTHING = [
    *NUMBERS,
    *HOSTILE,
    1.0,
    "1.0",
    "1",
    "01",
    2.5,
    "2.5",
    "2.50",
    "x",
    b"1",
    DAY,
    HOUR,
    np.datetime64(DAY, "ns"),
]
DATES = [
    DAY,
    HOUR,
    "2024-05-31",
    "2024-05-31T13:07:05.123457",
    "2024-05-31 13:07",
    np.datetime64(DAY),
    np.datetime64(HOUR),
]
ROWS = st.fixed_dictionaries(
    {
        "age": st.sampled_from([*NUMBERS, *HOSTILE]),
        "code": st.sampled_from(ANYTHING),
        "rooms": st.sampled_from(ANYTHING),
        "seen": st.sampled_from([*DATES, "?", None, "-9", -9.0, -1, np.datetime64("NaT", "D")]),
        "ill": st.sampled_from([0, 1, 0.0, 1.0, "0", "1", "0.0", "1.0", False, np.int64(1)]),
    }
)


class Frame(dict):
    """What is used of a DataFrame."""

    columns = property(lambda self: list(self))


def objects(values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def columns(rows, make=list):
    return {name: make([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.slow
@given(st.lists(ROWS, min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_each_row_is_encoded_as_if_it_were_alone(rows):
    for table in (TABLE, dataclasses.replace(TABLE, missing=())):
        rows = [row for row in rows if table.missing or row["seen"] not in ("-9", -9.0, -1)]
        if not rows:
            return
        alone = np.concatenate([table.encode(columns([row])) for row in rows])
        labels = np.concatenate([table.labels(columns([row])) for row in rows])
        for source in (columns(rows), columns(rows, tuple), Frame(columns(rows, objects))):
            np.testing.assert_array_equal(table.encode(source), alone)
            np.testing.assert_array_equal(table.labels(source), labels)


FORMS = {
    "age": [[-9, -9.0, "-9", "-9.0", " -9.00", np.float32(-9), np.int8(-9)], [30, 30.0, "30", "30.0", "3e1"]],
    "code": [[1, 1.0, "1", "1.0", np.float32(1), np.uint8(1)], [True, np.True_, "True"], [-9, -9.0, "-9", "-9.0"]],
    "rooms": [[1, 1.0, "1", "1.0"], [2.5, "2.5", np.float32(2.5)], [-1, -1.0, "-1", "-1.0"]],
    "seen": [[DAY, "2024-05-31", np.datetime64(DAY), np.datetime64(DAY, "ns")], [HOUR, str(HOUR), np.datetime64(HOUR)]],
}


@pytest.mark.parametrize(("name", "values"), [(name, values) for name in FORMS for values in FORMS[name]], ids=str)
def test_a_number_is_the_text_of_itself(name, values):
    """What NumPy and pandas make of a column where one value is a text, they make of all."""
    table = dataclasses.replace(TABLE, columns=tuple(c for c in TABLE.columns if c.name == name))
    found = [
        table.encode(source)[0] for v in values for source in ({name: [v]}, {name: objects([v])}, {name: np.array([v])})
    ]
    for one in found:
        np.testing.assert_array_equal(one, found[0])


def test_one_text_more_does_not_make_texts_of_numbers():
    """Before, NumPy did, and -9.0 was no more the missing word -9, and 1.0 no more the category 1."""
    rows = [{"age": age, "code": code, "rooms": 2.5, "seen": DAY, "ill": 0} for age, code in ((-9.0, 1.0), (30.0, 2.0))]
    more = [*rows, {"age": "?", "code": "x", "rooms": "y", "seen": None, "ill": "1"}]
    expected = TABLE.encode(columns(rows))
    assert expected[:, 1].tolist() == [1.0, 0.0] and expected[:, 2:4].tolist() == [[1, 0], [0, 1]]
    np.testing.assert_array_equal(TABLE.encode(columns(more))[:2], expected)
    promoted = {name: np.asarray([row[name] for row in more]) for name in ("age", "code", "rooms")}
    assert promoted["age"].dtype.kind == "U"
    np.testing.assert_array_equal(TABLE.encode(columns(more) | promoted)[:2], expected)
    assert TABLE.labels({"ill": [0.0, 1.0, "1"]}).tolist() == [0, 1, 1]
    assert TABLE.labels({"ill": np.array([0.0, 1.0, "1"])}).tolist() == [0, 1, 1]
    texts = TextColumns(text="said", tokenizer=ByteTokenizer(4), label="mood", classes=("0", "1"))
    for moods in ([0.0, 1.0, "1"], np.array([0.0, 1.0, "1"]), ["0", "1.0", 1]):
        assert texts.labels({"said": ["a"] * 3, "mood": moods}).tolist() == [0, 1, 1]


def test_codes_that_are_no_canonical_numbers_stay_texts():
    table = Table(columns=(Column("code", kind="category", vocabulary=("01", "1", "1.10"), missing=False),))
    found = table.encode({"code": ["01", "1", 1.0, "1.10", "1.1", "001"]})
    assert found.argmax(axis=1).tolist() == [0, 1, 1, 2, 3, 3]


def test_texts_of_a_file_are_as_they_were_written(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,code,rooms,ill\n-9.0,1.0,1.0,1\n-9,1,1,0\n?,True,x,1\n1e1,01,2.50,0\n")
    table = dataclasses.replace(TABLE, columns=TABLE.columns[:3])
    assert table.encode(path).tolist() == [
        [-1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0],
        [pytest.approx(-5 / 6), 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0],
    ]
    assert table.labels(path).tolist() == [1, 0, 1, 0]


def test_a_number_too_large_for_a_float_is_clipped_like_its_text():
    table = dataclasses.replace(TABLE, columns=TABLE.columns[:1])
    assert table.encode({"age": [10**400, -(10**400), "1e400"]})[:, 0].tolist() == [1, -1, 1]
    with pytest.raises(ValueError, match="not a finite number in 1 of 2 rows, first in row 2"):
        Table(columns=(Column("age", kind="number"),)).encode({"age": [1, 10**400]})
