"""Tables by a public description: each row from itself alone, the bound on its norm, files, bad descriptions."""

import dataclasses
import datetime
import json
import math

import numpy as np
import pytest

from lipdp import data
from lipdp.data import Column, Table

pytestmark = pytest.mark.backend_free

AGE = Column(name="age", kind="number", range=(0, 120), unit="years")
SMOKER = Column(name="smoker", kind="category", vocabulary=("no", "yes"))
ROOMS = Column(name="rooms", kind="category", vocabulary=(1, 2, 3), missing=False)
TABLE = Table(
    columns=(Column(name="id", kind="ignore"), AGE, SMOKER, ROOMS),
    label="ill",
    classes=("well", "sick"),
    missing=("-9",),
)
CSV = "id,age,smoker,rooms,ill\na,30,yes,2,sick\nb,,no,1.0,well\nc,-9,,7,well\nd,200,at times,3,sick\n"
ENCODED = [
    [-0.5, 0, 0, 1, 0, 0, 0, 1, 0, 0],
    [0, 1, 1, 0, 0, 0, 1, 0, 0, 0],
    [0, 1, 0, 0, 0, 1, 0, 0, 0, 1],
    [1, 0, 0, 0, 1, 0, 0, 0, 1, 0],
]


class Frame:
    """What is used of a DataFrame."""

    def __init__(self, columns):
        self.content, self.columns = columns, list(columns)

    def __getitem__(self, name):
        return self.content[name]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    return path


def test_a_file_is_encoded_by_its_description(file):
    assert TABLE.encode(file).tolist() == ENCODED
    assert TABLE.encode(str(file)).dtype == np.float32
    assert TABLE.labels(file).tolist() == [1, 0, 0, 1]
    assert TABLE.labels(file).dtype == np.int32
    assert TABLE.features[:2] == ("age", "age: missing") and len(TABLE.features) == 10


def test_a_frame_is_encoded_like_its_file(file):
    columns = {
        "ill": ["sick", "well", "well", "sick"],
        "rooms": np.array([2.0, 1.0, 7.0, 3.0]),
        "id": list("abcd"),
        "smoker": np.array(["yes", "no", None, "at times"], object),
        "age": np.array([30.0, np.nan, -9.0, 200.0]),
    }
    for source in (columns, Frame(columns)):
        assert TABLE.encode(source).tolist() == ENCODED
        assert TABLE.labels(source).tolist() == [1, 0, 0, 1]
    del columns["ill"], columns["id"]
    assert TABLE.encode(columns).tolist() == ENCODED


def test_pandas_frames(file):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(file)
    assert TABLE.encode(frame).tolist() == ENCODED
    assert TABLE.encode(frame.convert_dtypes()).tolist() == ENCODED
    assert TABLE.labels(frame).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("yes, no", [("TRUE", "FALSE"), ("true", "false"), ("True", "False")])
def test_truth_values_of_a_frame_are_the_words_of_its_file(tmp_path, yes, no):
    """pandas makes truth values of these words, unless one row holds another one."""
    table = Table(columns=(Column("a", kind="category", vocabulary=(no, yes)),), label="b", classes=(no, yes))
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n{yes},{no}\n{no},{yes}\n")
    truths = np.array([True, False])
    for values in (truths, truths.astype(object), truths.tolist(), np.array([yes, no], object)):
        assert table.encode({"a": values}).tolist() == table.encode(path).tolist()
        assert table.labels({"b": values[::-1]}).tolist() == table.labels(path).tolist() == [0, 1]


WRITTEN = [False, "False", "false", 0, "0", np.False_], [True, "True", "TRUE", " true ", 1, "1", np.True_]


@pytest.mark.parametrize(
    "no, yes", [(False, True), ("false", "true"), ("FALSE", "TRUE"), (0, 1), ("0", "1"), (np.False_, np.True_)]
)
def test_a_truth_value_is_one_in_whatever_form_it_is_written(tmp_path, no, yes):
    column, path = Column("a", kind="category", vocabulary=(no, yes)), tmp_path / "t.csv"
    table = Table(columns=(column,), label="b", classes=(no, yes))
    for place, values in enumerate(WRITTEN):
        path.write_text("a,b\n" + "".join(f"{value},{value}\n" for value in values))
        for source in (path, {"a": values, "b": values}):
            assert table.encode(source)[:, place].tolist() == [1.0] * len(values)
            assert table.labels(source).tolist() == [place] * len(values)
    found = table.encode({"a": ["yes", 2, -1, "", "1.5", None, 1.0, "0.0"]})
    assert found.argmax(axis=1).tolist() == [2, 2, 2, 3, 2, 3, 1, 0]


def test_truth_values_in_a_description(tmp_path):
    column = Column("a", kind="category", vocabulary=(True, False))
    assert column.vocabulary == ("true", "false") and column.features[:2] == ("a=true", "a=false")
    table = Table(columns=(column,), label="b", classes=(True, False))
    table.to_json(tmp_path / "t.json")
    assert Table.from_json(tmp_path / "t.json") == table
    written = (tmp_path / "t.json").read_text().replace('"true"', "true").replace('"false"', "false")
    (tmp_path / "t.json").write_text(written)
    assert "[true, false]" in written and Table.from_json(tmp_path / "t.json") == table


def test_words_of_a_description_come_before_other_forms_of_a_truth_value():
    def places(values, vocabulary, missing=()):
        column = Column("a", kind="category", vocabulary=vocabulary)
        return Table(columns=(column,), missing=missing).encode({"a": values}).argmax(axis=1).tolist()

    assert places([True, False, 1, 0], ("true", "false", 1)) == [0, 1, 2, 3]
    assert places(["true", "True", "TRUE"], ("True", "true")) == [1, 0, 0]
    assert places(["true", "TRUE", "0", 0, False], ("true", "false"), ("0", "TRUE")) == [0, 3, 3, 3, 1]


def test_truth_values_are_numbers_where_numbers_are_asked_for(tmp_path):
    table, path = (
        Table(columns=(Column("a", kind="number", range=(0, 1)),), label="b", classes=(0, 1)),
        tmp_path / "t.csv",
    )
    path.write_text("a,b\nTrue,1\nfalse,0\n1,1\n0,0\nNA,0\n")
    expected = [[1, 0], [-1, 0], [1, 0], [-1, 0], [0, 1]]
    assert table.encode(path).tolist() == expected
    assert table.encode({"a": [True, "False", 1, "0", None]}).tolist() == expected


def test_truth_values_that_a_vocabulary_does_not_have_are_refused():
    table = Table(columns=(Column("a", kind="category", vocabulary=("no", "yes")),))
    with pytest.raises(ValueError, match="'a' of the dict holds truth values.*Received: vocabulary=.*Write true and"):
        table.encode({"a": np.array([True, False])})


def test_a_template_knows_truth_values(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,d\nTrue,1,,x\nfalse,0,,y\n,1,,x\n")
    frame = {"a": [True, False, None], "b": [1, 0, 1], "c": [None] * 3, "d": list("xyx")}
    for source in (path, frame):
        Table.template(source, tmp_path / "t.json")
        columns = json.loads((tmp_path / "t.json").read_text())["columns"]
        assert columns["a"] == {"kind": "category", "vocabulary": ["false", "true"], "missing": True}
        assert columns["b"]["kind"] == columns["c"]["kind"] == "number"


def test_rows_are_encoded_each_by_itself(file):
    """Nothing of one row changes another: that is why encoding costs no epsilon."""
    header, *lines = CSV.splitlines()
    for i, line in enumerate(lines):
        file.write_text(f"{header}\n{line}\n")
        assert TABLE.encode(file).tolist() == [ENCODED[i]]


def test_the_norm_is_a_bound_and_is_attained():
    table = dataclasses.replace(TABLE, interval=(0, 1))
    for one in (TABLE, table):
        assert one.norm == pytest.approx(math.sqrt(3))
        columns = {"age": ["inf", -1e30, "1e300", "0", ""], "smoker": list("abc") + ["", "no"], "rooms": [1] * 5}
        norms = np.linalg.norm(one.encode(columns), axis=1)
        assert norms.max() <= one.norm + 1e-6
        assert norms[0] == pytest.approx(one.norm)
    assert table.encode({"age": [60], "smoker": ["no"], "rooms": [1]})[0, 0] == 0.5
    raw = dataclasses.replace(TABLE, columns=(AGE, Column(name="b", kind="number")))
    assert raw.norm is None


DATES = Table(
    columns=(Column("seen", kind="date", range=("2000-01-01", "2020-01-01")), Column("paid", kind="number")),
    label="ill",
    classes=("well", "sick"),
)


def test_dates_are_days_within_their_range(tmp_path):
    texts = ["2000-01-01", " 2010-01-01", "2030-05-06", "1990-01-01T10:00:00+02:00", "NA", "2020-01-01 00:00"]
    found = DATES.encode({"seen": texts, "paid": [1] * 6})
    middle = 2.0 * 3653 / 7305 - 1.0
    np.testing.assert_allclose(found[:, 0], [-1, middle, 1, -1, 0, 1], atol=1e-6)
    assert found[:, 1].tolist() == [0, 0, 0, 0, 1, 0]
    days = [datetime.date(2000, 1, 1), datetime.datetime(2010, 1, 1)]
    for values in (days, np.array(["2000-01-01", "2010-01-01"], "datetime64[ns]"), np.array(days, object)):
        np.testing.assert_allclose(DATES.encode({"seen": values, "paid": [1, 1]})[:, 0], [-1, middle], atol=1e-6)
    with pytest.raises(ValueError, match='make the column a "date"'):  # not nanoseconds
        DATES.encode({"seen": days, "paid": np.array(["2000-01-01", "2010-01-01"], "datetime64[ns]")})
    absent = np.array(["2010-01-01", "NaT"], "datetime64[ns]")
    assert DATES.encode({"seen": absent, "paid": [1, 1]})[:, 1].tolist() == [0, 1]
    DATES.to_json(tmp_path / "dates.json")
    assert Table.from_json(tmp_path / "dates.json") == DATES
    assert dataclasses.replace(DATES, columns=DATES.columns[:1]).norm == 1.0
    years = np.datetime64("2000"), np.datetime64("2020")
    assert Column("seen", kind="date", range=years).range == ("2000-01-01T00:00:00", "2020-01-01T00:00:00")


def test_dates_are_recognized_and_wrong_ones_refused(tmp_path):
    path, table = tmp_path / "visits.csv", tmp_path / "visits.json"
    path.write_text("seen,year,ill\n2001-02-03,2001,well\n,1999,sick\n")
    Table.template(path, table)
    columns = json.loads(table.read_text())["columns"]
    assert columns["seen"] == {"kind": "date", "range": [None, None], "unit": "", "missing": True}
    assert columns["year"]["kind"] == "number"
    with pytest.raises(ValueError, match="A date needs a range of two dates"):
        Table.from_json(table)
    with pytest.raises(ValueError, match="not a date in 1 of 2 rows, first in row 2. Received: '3.2.2001'"):
        DATES.encode({"seen": ["2001-02-03", "3.2.2001"], "paid": [1, 1]})
    with pytest.raises(ValueError, match='make the column a "date"'):
        DATES.encode({"seen": ["2001-02-03"] * 2, "paid": ["2001-02-03"] * 2})
    for wrong in (None, ("2001-01-01",), ("2001-01-01", "2000-01-01"), (0, 1), ("today", "tomorrow")):
        with pytest.raises(ValueError, match="A date needs a range of two dates"):
            Column("seen", kind="date", range=wrong)


def test_a_word_of_the_vocabulary_is_a_value_also_where_it_could_mean_missing():
    column = Column(name="allergy", kind="category", vocabulary=("none", "nuts"))
    found = Table(columns=(column,)).encode({"allergy": ["none", "None", "", "nuts"]})
    assert found.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 1, 0, 0]]


def test_a_description_survives_its_file(tmp_path):
    TABLE.to_json(tmp_path / "table.json")
    assert Table.from_json(tmp_path / "table.json") == TABLE
    alone = Table(columns=(AGE,), header=False, interval=(0, 1))
    alone.to_json(tmp_path / "table.json")
    assert Table.from_json(str(tmp_path / "table.json")) == alone


def test_a_template_holds_names_and_kinds_only_and_has_to_be_filled_in(file, tmp_path):
    path = tmp_path / "t.json"
    Table.template(file, path)
    content = json.loads(path.read_text())
    assert {name: column["kind"] for name, column in content["columns"].items()} == {
        "id": "category", "age": "number", "smoker": "category", "rooms": "number",
    }  # fmt: skip
    for value in ("30", "200", "yes", "at times", "sick", "well"):
        assert f'"{value}"' not in path.read_text() and f"[{value}" not in path.read_text()
    with pytest.raises(ValueError, match="does not describe a table.*vocabulary=\\[\\]. In column 'id'"):
        Table.from_json(path)
    Table.template(file, path, label="smoker")
    assert json.loads(path.read_text())["label"] == {"column": "smoker", "classes": []}
    with pytest.raises(ValueError, match="no label column of that name. Received: 'il'. Did you mean 'ill'"):
        Table.template(file, path, label="il")


def test_all_columns_that_are_not_filled_in_are_named(tmp_path):
    file, path = tmp_path / "t.csv", tmp_path / "t.json"
    file.write_text("id,age,kind,ill\nx1,30,a,yes\nx2,40,b,no\n")
    Table.template(file, path, label="ill")
    said = r"column 'id'.* To fill in as well: 'age', 'kind', the classes of the label\..*\"kind\": \"ignore\""
    with pytest.raises(ValueError, match=said):
        Table.from_json(path)


def test_of_many_columns_that_are_not_filled_in_the_first_are_named(tmp_path):
    file, path = tmp_path / "t.csv", tmp_path / "t.json"
    file.write_text(f"{','.join(f'c{i}' for i in range(40))},ill\n{'1,' * 40}yes\n{'2,' * 40}no\n")
    Table.template(file, path, label="ill")
    with pytest.raises(
        ValueError, match=r"not filled in\. .*olumn 'c0'\. To fill in as well: 'c1', .*'c10', and 30 more\. A column"
    ):
        Table.from_json(path)


def test_load_reads_a_described_file(file):
    found = data.load(str(file), table=TABLE)
    assert found.x_train.tolist() == ENCODED and found.y_train.tolist() == [1, 0, 0, 1]
    assert found.classes == ("well", "sick") and found.uncharged == () and found.table is TABLE
    assert found.columns == TABLE.features
    with pytest.raises(ValueError, match="names the label.*Received: label='age'"):
        data.load(str(file), label="age", table=TABLE)
    with pytest.raises(ValueError, match="is scaled already"):
        data.scale(found, {"age": (0, 1)})
    with pytest.raises(ValueError, match="Only a .csv file.*a description"):
        data.load("digits", table=TABLE)


def test_without_a_description_what_is_read_off_the_rows_is_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,ill\n1,2,yes\n3,4,no\n")
    with pytest.warns(data.UnchargedWarning, match="not covered by epsilon: the list of classes"):
        found = data.load(str(path))
    assert found.uncharged == ("the list of classes: those that occur in column 'ill'",)
    assert found.table.encode(path).tolist() == found.x_train.tolist()
    assert found.table.labels(path).tolist() == found.y_train.tolist()
    scaled = data.scale(found, {"a": (0, 4)})
    assert scaled.table.encode(path).tolist() == scaled.x_train.tolist() == [[-0.5, 2.0], [0.5, 4.0]]
    assert data.load("digits").uncharged == ()
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 3)), y=[0, 1])
    with pytest.warns(data.UnchargedWarning, match="among the labels"):
        assert data.load(str(tmp_path / "t.npz")).uncharged


def test_files_without_a_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1.5,2,yes\n3,4,no\n")
    with pytest.raises(ValueError, match="would be lost. Add a header, or pass --no-header"):
        data.load(str(path))
    with pytest.warns(data.UnchargedWarning):
        found = data.load(str(path), header=False)
    assert found.x_train.tolist() == [[1.5, 2], [3, 4]] and found.columns == ("0", "1")
    assert found.table.header is False and found.table.label == "2"
    assert found.table.encode(path).tolist() == [[1.5, 2], [3, 4]]
    path.write_text("1,2,yes\n3,no\n")
    with pytest.raises(ValueError, match="Line 2 of .* has 2 values, the first line has 3"):
        data.load(str(path), header=False)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"age": [1], "smoker": ["no"]},
            "the dict has no column of that name. Received: 'rooms'. Its columns: age, smo",
        ),
        ({"Age": [1], "smoker": ["no"], "rooms": [1]}, "Received: 'age'. Did you mean 'Age'"),
        ({"age": [1], "smoker": ["no"], "rooms": [1], "b": [1]}, "not described. Received: 'b'.*\"ignore\""),
        ({"age": ["x"], "smoker": ["no"], "rooms": [1]}, "'age' .* not a finite number in 1 of 1 rows.*'x'. Features"),
        ({"age": [1, 2], "smoker": ["no"] * 2, "rooms": [1, None]}, "'rooms' .* missing value in 1 of 2 .* row 2"),
        ({"age": [1, 2], "smoker": ["no"], "rooms": [1]}, "one value per row"),
        ({"age": [[1]], "smoker": ["no"], "rooms": [1]}, "one value per row"),
        ({"age": [], "smoker": [], "rooms": []}, "holds no row"),
        ([[1, 2]], "Received: a list. Pass one of these, such as {name: values}"),
        ("none.csv", "no such file. Received: 'none.csv'"),
    ],
)
def test_tables_that_do_not_fit_are_refused(columns, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        TABLE.encode(columns)


def test_a_column_that_is_in_use_is_not_proposed_for_an_absent_one():
    table = Table(columns=(AGE, Column(name="wage", kind="number", range=(0, 9))))
    with pytest.raises(ValueError, match="Received: 'wage'. Its columns: age."):
        table.encode({"age": [1]})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": [1]}, "no label column of that name. Received: 'ill'"),
        ({"ill": ["well", "Sick"]}, "holds no class in 1 of 2 rows, first in row 2. Received: 'Sick', classes"),
        ({"ill": ["well", None]}, "first in row 2. Received: None"),
    ],
)
def test_labels_that_are_no_classes_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        TABLE.labels(columns)
    with pytest.raises(ValueError, match="The table has no label"):
        Table(columns=(AGE,)).labels(columns)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"kind": "text"},
            "`kind` must be one of 'number', 'category', 'date', 'ignore'. Received: kind='text'. In column 'a'",
        ),
        ({"kind": "number", "range": (1, 1)}, "two numbers, the lower one first. Received: \\(1, 1\\). In column 'a'"),
        ({"kind": "number", "range": "low"}, "two numbers"),
        ({"kind": "number", "range": (0, 10**400)}, "two numbers"),
        ({"kind": "number", "range": (-1e308, 1e308)}, "two numbers"),
        ({"kind": "number", "range": (0.0, 5e-324)}, "two numbers"),
        ({"kind": "number", "vocabulary": ("x",)}, "Only categories have a vocabulary"),
        ({"kind": "category", "range": (0, 1), "vocabulary": ("x",)}, "Only numbers and dates have a range"),
        ({"kind": "category"}, "at least 1 texts or numbers, known without looking at the private rows"),
        ({"kind": "category", "vocabulary": "yes"}, "Received: vocabulary='yes'"),
        ({"kind": "category", "vocabulary": ("x", " x")}, "each value once. Received: 'x' twice"),
        ({"kind": "category", "vocabulary": ("1", 1)}, "each value once"),
        ({"kind": "category", "vocabulary": (True, "true")}, "each value once. Received: 'true' twice"),
        ({"kind": "category", "vocabulary": (None,)}, "texts or numbers. Received: None"),
        ({"kind": "category", "vocabulary": (math.nan,)}, "texts or numbers. Received: nan"),
        ({"kind": "number", "missing": 1}, "`missing` must be True or False"),
    ],
)
def test_wrong_columns_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Column(name="a", **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ()}, "needs a column that is not ignored"),
        (
            {"columns": (Column(name="a", kind="ignore"),)},
            "needs a column that is not ignored. Received: columns \\['a'\\]",
        ),
        ({"columns": ("age", "region")}, "lipdp.data.Column objects. Received: 'age'. Pass for example Column"),
        ({"columns": (AGE, AGE)}, "described once. Received: 'age' twice"),
        ({"label": "age", "classes": (0, 1)}, "described once. Received: 'age' twice"),
        ({"label": "ill"}, "at least 2 texts or numbers.*Of label 'ill'; of a number to predict"),
        ({"classes": (0, 1)}, "Classes need a label column"),
        ({"interval": (0, 2)}, "`interval` must be \\(-1, 1\\) or \\(0, 1\\). Received: interval=\\(0, 2\\)"),
        ({"interval": 1}, "`interval` must be"),
        ({"header": "no"}, "`header` must be True or False"),
        ({"missing": "-9"}, "`missing` must be a list of texts"),
        ({"missing": (-9,)}, "`missing` must be a list of texts"),
    ],
)
def test_wrong_tables_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Table(**{"columns": (AGE,)} | arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON file"),
        ("[1]", "A JSON object is needed for it"),
        ("[" * 100_000, "not a JSON file: it is nested too deeply"),
        ('{"columns": {"a": {"kind": "number", "range": [0, 1]}, "a": {"kind": "ignore"}}}', "holds 'a' twice"),
        ("{}", '"columns" must map names'),
        ('{"colums": {}}', "An unknown word in it. Received: 'colums'. Did you mean 'columns'"),
        ('{"columns": {"a": 3}}', "needed for column 'a'"),
        ('{"columns": {"a": {"kind": "number"}}}', "Column 'a' needs a range.*or null"),
        ('{"columns": {"a": {"kind": "number", "range": [null, null]}}}', "A range is not filled in. Write"),
        ('{"columns": {"a": {"kind": "number", "rnage": [0, 1]}}}', "Received: 'rnage'. Did you mean 'range'"),
        ('{"columns": {"a": {"vocabulary": [1]}}}', "`kind` must be one of"),
        ('{"columns": {"a": {"kind": "number", "range": null}}, "label": {"classes": [0, 1]}}', "must be a name"),
        (
            '{"columns": {"a": {"kind": "number", "range": null}}, "label": {"column": "b", "classes": []}}',
            "at least 2",
        ),
    ],
)
def test_wrong_descriptions_are_refused(tmp_path, text, message):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Table.from_json(path)


def test_a_byte_order_mark_in_front_of_a_description_is_understood(tmp_path):
    TABLE.to_json(tmp_path / "t.json")
    (tmp_path / "t.json").write_text((tmp_path / "t.json").read_text(), encoding="utf-8-sig")
    assert Table.from_json(tmp_path / "t.json") == TABLE
    (tmp_path / "r.json").write_text('{"age": [0, 120]}', encoding="utf-8-sig")
    assert data.read_ranges(str(tmp_path / "r.json")) == {"age": (0.0, 120.0)}


def test_a_description_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such description"):
        Table.from_json(tmp_path / "none.json")


def test_a_table_of_arrow_is_refused_with_what_makes_a_frame_of_it():
    class Arrow(Frame):
        column_names = ("a",)

        def to_pandas(self):
            raise AssertionError

    with pytest.raises(ValueError, match=r"Received: a Arrow. Pass one of these: \.to_pandas\(\)\."):
        data.Table.template(Arrow({"a": [1, 2]}), "never.json")


PRICE = Table(columns=(AGE,), label="price", target_range=(0, 1000), target_unit="euros", missing=("-9",))


def test_a_number_to_predict_is_taken_as_it_is(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("age,price\n30,12.5\n40,-3\n50,1e6\n")
    labels = PRICE.labels(path)
    assert labels.dtype == np.float32 and labels.tolist() == [12.5, -3.0, 1e6]
    assert PRICE.labels({"age": [1, 2], "price": ["7", 8]}).tolist() == [7.0, 8.0]
    dataset = data.load(str(path), table=PRICE)
    assert dataset.num_classes == 0 and dataset.classes == () and not dataset.uncharged
    assert dataset.y_train.tolist() == labels.tolist()


@pytest.mark.parametrize("value", ["", "NA", "-9", "-9.0", "inf", "1e39", "12 euros", "1,5"])
def test_what_is_no_finite_number_is_no_target(value):
    with pytest.raises(ValueError, match="not a finite number in 1 of 2 rows, first in row 2"):
        PRICE.labels({"age": [1, 2], "price": ["7", value]})


def test_a_target_is_described_by_its_range(tmp_path):
    PRICE.to_json(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["label"] == {
        "column": "price",
        "range": [0.0, 1000.0],
        "unit": "euros",
    }
    assert Table.from_json(tmp_path / "t.json") == PRICE
    for wrong, text in (
        ({"target_range": (5, 5)}, "A range must be two numbers.*Of label 'price'"),
        ({"classes": ("a", "b")}, "Pass the label alone with it"),
        ({"label": None}, "label that is a number"),
        ({"target_range": None}, "give the range in place of classes"),
    ):
        with pytest.raises(ValueError, match=text):
            dataclasses.replace(PRICE, **wrong)


def test_without_a_description_the_range_of_a_target_is_told(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("age,price\n30,12.5\n40,3\n50,2\n")
    dataset = data.load(str(path), target_range=(0, 20))
    assert dataset.table.target_range == (0.0, 20.0) and not dataset.uncharged
    assert dataset.y_train.tolist() == [12.5, 3.0, 2.0]
    with pytest.raises(ValueError, match="says what its label is"):
        data.load(str(path), table=PRICE, target_range=(0, 20))
    with pytest.raises(ValueError, match="range .* of a target"):
        data.load("digits", target_range=(0, 20))


def test_who_is_held_out_follows_from_the_row_alone(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{p:.3f}" for a, p in zip(rng.uniform(0, 99, 200), rng.uniform(0, 99, 200), strict=True)]
    path, fewer = tmp_path / "t.csv", tmp_path / "fewer.csv"
    path.write_text("age,price\n" + "\n".join(lines) + "\n")
    fewer.write_text("age,price\n" + "\n".join(lines[1:]) + "\n")
    both = [data.load(str(one), table=PRICE).held_out(0.3) for one in (path, fewer)]
    sets = [set(map(float, one.y_test)) for one in both]
    assert sets[1] <= sets[0] and len(sets[0] - sets[1]) <= 1 and 20 < len(sets[0]) < 120
