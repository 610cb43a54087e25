"""The rows of a file, a part at a time: the same numbers, ids, kinds and refusals as of all at once."""

import json

import numpy as np
import pytest

from lipdp import data
from lipdp.data import Column, Table, rows

pytestmark = pytest.mark.backend_free

LINES = "30,yes,7,sick,ann\n,no,8.5,well,bob\n40,maybe,-1,well,ann\n50,true,2,sick,eve\n60,no,3,well,bob\n"
TABLE = Table(
    columns=(
        Column(name="age", kind="number", range=(0, 120)),
        Column(name="smoker", kind="category", vocabulary=("no", "yes")),
        Column(name="rooms", kind="number", range=None, missing=False),
    ),
    label="ill",
    classes=("well", "sick"),
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,smoker,rooms,ill,who\n" + LINES)
    return path


@pytest.mark.parametrize("most", [0, 1, 2, 5, 50])
def test_parts_are_the_whole(file, monkeypatch, most):
    whole, kinds = data.load(str(file), table=TABLE, person="who"), file.with_suffix(".whole")
    Table.template(file, kinds, label="ill", person="who")
    monkeypatch.setattr(rows, "_AT_ONCE", 5 * most + 4)
    found = list(rows.pieces(file))
    assert [len(part.columns["age"]) for part in found] == [
        min(most or 1, 5 - start) for start in range(0, 5, most or 1)
    ]
    again = data.load(str(file), table=TABLE, person="who")
    np.testing.assert_array_equal(again.x_train, whole.x_train)
    np.testing.assert_array_equal(TABLE.without("who").encode(file), whole.x_train)
    assert again.y_train.tolist() == whole.y_train.tolist() == TABLE.labels(file).tolist() == [1, 0, 0, 1, 0]
    assert again.person_ids.tolist() == ["ann", "bob", "ann", "eve", "bob"]
    Table.template(file, file.with_suffix(".parts"), label="ill", person="who")
    assert file.with_suffix(".parts").read_text() == kinds.read_text()


def test_one_row_anywhere_decides_what_a_column_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_AT_ONCE", 10)
    file, described = tmp_path / "kinds.csv", tmp_path / "kinds.json"
    lines = [f"{i},true,2024-01-0{i},,a\n" for i in (1, 2, 3, 4)]
    file.write_text("number,truth,day,none,label\n" + "".join(lines))
    Table.template(file, described)
    kinds = {name: column["kind"] for name, column in json.loads(described.read_text())["columns"].items()}
    assert kinds == {"number": "number", "truth": "category", "day": "date", "none": "number"}
    file.write_text("number,truth,day,none,label\n" + "".join(lines) + "x,maybe,x,x,a\n")
    Table.template(file, described)
    columns = json.loads(described.read_text())["columns"]
    assert {column["kind"] for column in columns.values()} == {"category"} and not columns["truth"]["vocabulary"]


def test_an_undescribed_file_in_parts(tmp_path, monkeypatch):
    file = tmp_path / "plain.csv"
    file.write_text("a,b,c\n" + "".join(f"{i},{i / 7},{i % 3}\n" for i in range(50)))
    with pytest.warns(data.UnchargedWarning):
        whole = data.load(str(file))
    monkeypatch.setattr(rows, "_AT_ONCE", 12)
    with pytest.warns(data.UnchargedWarning):
        parts = data.load(str(file))
    np.testing.assert_array_equal(parts.x_train, whole.x_train)
    np.testing.assert_array_equal(parts.y_train, whole.y_train)
    assert parts.classes == whole.classes == (0, 1, 2) and parts.table == whole.table


@pytest.mark.parametrize(
    "line, said",
    [
        ("x,no,1,well,bob\n", "Column 'age' .* in 1 of rows 5 to 6, first in row 6. Received: 'x'"),
        ("1,no,1,other,bob\n", "Label column 'ill' .* in 1 of rows 5 to 6, first in row 6. Received: 'other'"),
        ("1,no,1,well,\n", "Column 'who' .* in 1 of rows 5 to 6, first in row 6. Received: ''"),
        ("1,no,1,well\n", "Line 7 of .* has 4 values, the header has 5"),
    ],
)
def test_a_refusal_names_the_row_of_the_file(file, monkeypatch, line, said):
    monkeypatch.setattr(rows, "_AT_ONCE", 10)
    file.write_text(file.read_text() + line)
    with pytest.raises(ValueError, match=said):
        data.load(str(file), table=TABLE, person="who")


def test_texts_of_few_rows_are_in_memory(tmp_path, monkeypatch):
    file = tmp_path / "long.csv"
    file.write_text("a,b\n" + "1,2\n" * 9 + "1\n")
    monkeypatch.setattr(rows, "_AT_ONCE", 6)
    parts = rows.pieces(file)
    assert [next(parts).before for _ in range(3)] == [0, 3, 6]  # the line that is too short was not read yet
    with pytest.raises(ValueError, match="Line 11 of"):
        next(parts)
