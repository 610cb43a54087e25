"""CSV files: what is read, and where each error points to."""

import numpy as np
import pytest

from lipdp import data

pytestmark = [pytest.mark.backend_free, pytest.mark.filterwarnings("ignore::lipdp.data.UnchargedWarning")]


def _load(tmp_path, text, label=None, encoding="utf-8"):
    file = tmp_path / "table.csv"
    file.write_text(text, encoding=encoding)
    return data.load(str(file), label)


def test_the_last_column_is_the_label_by_default(tmp_path):
    found = _load(tmp_path, "age,weight,ill\n30,70.5,yes\n40,80,no\n\n50,90,yes\n")
    assert found.columns == ("age", "weight") and found.classes == ("no", "yes")
    assert found.x_train.tolist() == [[30.0, 70.5], [40.0, 80.0], [50.0, 90.0]]
    assert found.y_train.tolist() == [1, 0, 1]
    assert found.x_train.dtype == np.float32


def test_the_label_column_can_be_named(tmp_path):
    found = _load(tmp_path, "ill,age\n2,30\n1,40\n", label="ill")
    assert found.columns == ("age",) and found.classes == (1, 2)


def test_a_byte_order_mark_and_quotes_are_understood(tmp_path):
    found = _load(tmp_path, '"a, b",ill\n"1",x\n2,y\n', encoding="utf-8-sig")
    assert found.columns == ("a, b",)


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("", None, "header with at least one feature.*an empty file"),
        ("ill\n1\n", None, "at least one feature"),
        ("a,ill\n", None, "no rows"),
        ("1.0,2.0\n3,1\n4,0\n", None, "must be column names. Received: 2 of 2 that are numbers"),
        ("a,a,ill\n1,2,0\n", None, "distinct and not empty. Received: 'a' for columns 1 and 2. Rename"),
        ("a,,ill\n1,2,0\n", None, "not empty. Received: '' for column 2 of 3. Write.*index=False"),
        ("a,ill\n1,0\n2\n", None, "Line 3 of .* has 1 values, the header has 2"),
        ("a,ill\n1,0\n2,1\n", "il", "label column of that name. Received: 'il'. Did you mean 'ill'"),
        ("a,ill\n1,0\n2,1\n", "zebra", "Its columns: a, ill"),
        ("a,ill\n1,0\nred,1\n", None, "'a' of .* not a finite number in 1 of 2 rows, first in row 2.*'red'"),
        ("a,ill\n1,0\ninf,1\n", None, "not a finite number.*'inf'"),
        ("a,ill\n1,0\n1e39,1\n", None, "not a finite number.*'1e39'"),
        ("a,ill\n,0\n2,1\n", None, "missing value in 1 of 2 rows, first in row 1"),
        ("a,ill\nNaN,0\nNA,1\n", None, "missing value in 2 of 2 rows"),
        ('a,ill\n"$1,234.50",0\n2,1\n', None, "Features must be numeric: write 1234.5, without currency, %"),
        ("a,ill\n12 %,0\n2,1\n", None, "Received: '12 %'.*write 1234.5"),
        ("a,ill\n31/5/2024,0\n1/6/2024,1\n", None, 'numeric: write dates as 2024-05-31, make the column a "date" or'),
        ("a,ill\n3.5.24 8:00,0\n2,1\n", None, 'write dates as 2024-05-31, make the column a "date"'),
        ("a,ill\n2024-05-31,0\n2,1\n", None, 'Features must be numeric: make the column a "date"'),
        ("a,ill\n10.0.0.1,0\n2,1\n", None, 'Features must be numeric: make the column a "category"'),
        ("a,ill\n1,\n2,1\n", None, "Label column 'ill' of .* holds no class in 1 of 2 rows, first in row 1"),
        ("a,ill\n1,yes\n2,NA\n3,no\n", None, "no class in 1 of 3 rows, first in row 2. Received: 'NA'. Remove"),
        ("a,ill\n1,?\n2,yes\n3,no\n", None, "Received: '\\?'. Remove these rows, or list the text among the classes"),
        ("a,ill\n1,0.5\n2,1\n", None, "numbers such as 0.5 in column 'ill'.*--label.*regression.md"),
        ("a,ill\n1,0\n2,0\n", None, "at least two classes"),
        ('a,ill\n"1,0\n', None, "not a comma-separated file: .*, in line 2. Save it as such.*doubled.$"),
        ('"a";"ill"\n1;0\n', None, "not a comma-separated file.*looks separated by ';': put commas there"),
        (
            "a;ill\n1;0\n",
            None,
            "looks separated by ';': put commas there.* pandas: .*sep=';', decimal=','.*to_csv.*s/;/,/g",
        ),
        ('a;ill\n"1";0\n', None, "not a comma-separated file.*looks separated by ';'"),
        ("a;ill\n1,5;0\n", None, "header has 1.*looks separated by ';'.*decimal point"),
        ("a\till\n1\t0\n", None, r"looks separated by '\\t'.*s/\\t/,/g"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, text, label, message):
    with pytest.raises(ValueError, match=message):
        _load(tmp_path, text, label)


@pytest.mark.parametrize(("kinds", "rows"), [(101, 1000), (6, 11)])
def test_values_that_are_hardly_classes_are_refused(tmp_path, kinds, rows):
    text = "a,price\n" + "".join(f"{i},{7000 + i % kinds}\n" for i in range(rows))
    with pytest.raises(ValueError, match="Label column 'price' .* too many values .*`lipdp table`.*regr") as refused:
        _load(tmp_path, text)
    assert "70" not in str(refused.value).replace(str(tmp_path), "")
    classes = tuple(7000 + i for i in range(kinds))
    table = data.Table(columns=(data.Column("a", kind="number"),), label="price", classes=classes)
    assert data.load(str(tmp_path / "table.csv"), table=table).num_classes == kinds


def test_none_is_a_class(tmp_path):
    assert _load(tmp_path, "a,ill\n1,none\n2,flu\n").classes == ("flu", "none")


def test_text_in_another_encoding_is_refused(tmp_path):
    with pytest.raises(ValueError, match="UTF-8"):
        _load(tmp_path, "âge,ill\n1,0\n", encoding="latin-1")
    with pytest.raises(ValueError, match="spreadsheets call it CSV UTF-8"):
        _load(tmp_path, "age,ill\n1,0\n", encoding="utf-16")
