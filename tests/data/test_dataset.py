"""The data set container: splits that keep epsilon's meaning, classes, public ranges."""

import dataclasses
import json

import numpy as np
import pytest

from lipdp import data
from lipdp.data.dataset import Dataset, class_ids

pytestmark = pytest.mark.backend_free


def _table(rows: int = 200) -> Dataset:
    x = np.arange(2.0 * rows, dtype="float32").reshape(rows, 2)
    return Dataset(x, np.arange(rows, dtype="int32") % 2, None, None, (0, 1), "toy", ("a", "b"))


def test_held_out_rows_and_training_rows_make_up_the_whole():
    split = _table().held_out(0.25)
    assert 30 <= len(split.x_test) <= 70
    rows = np.concatenate([split.x_train, split.x_test])
    assert sorted(rows[:, 0]) == sorted(_table().x_train[:, 0])
    assert len(split.y_train) == split.num_examples == len(split.x_train)


def test_what_a_notebook_shows_of_a_data_set_holds_no_rows():
    whole = _table(3)
    assert repr(whole) == "Dataset('toy': 3 examples of shape (2,), 2 classes, 0 held out)"
    assert repr(dataclasses.replace(whole, x_test=whole.x_train, y_test=whole.y_train)).endswith("3 held out)")


@pytest.mark.parametrize("removed", [0, 100, 199])
def test_one_row_less_moves_no_other_row_between_the_parts(removed):
    """A sequence of coins by place moved every row behind the one that went."""
    whole = _table()
    rest = [np.delete(a, removed, axis=0) for a in (whole.x_train, whole.y_train)]
    less = dataclasses.replace(whole, x_train=rest[0], y_train=rest[1]).held_out(0.3)
    split = whole.held_out(0.3)
    for mine, other in ((split.x_train, less.x_train), (split.x_test, less.x_test)):
        gone = set(mine[:, 0]) ^ set(other[:, 0])
        assert gone <= {whole.x_train[removed, 0]}


@pytest.mark.parametrize(("old", "new"), [(("b", "d"), "a"), ((1, 7), 0), ((0, 1), "none"), ((0, 1), 9)])
def test_a_row_of_a_new_class_moves_no_other_row_between_the_parts(old, new):
    """It numbers the classes anew, by which rows were held out."""
    whole = dataclasses.replace(_table(), classes=old)
    labels = [*np.array(old, object)[whole.y_train], new]
    classes = tuple(sorted({*old, new}, key=str))
    x = np.concatenate([whole.x_train, [[1e6, 0.0]]])
    more = Dataset(x, np.array([classes.index(label) for label in labels]), None, None, classes, "toy")
    mine, other = whole.held_out(0.3), more.held_out(0.3)
    assert set(mine.x_train[:, 0]) ^ set(other.x_train[:, 0]) <= {1e6}
    assert set(mine.x_test[:, 0]) ^ set(other.x_test[:, 0]) <= {1e6}


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_held_out_refuses_a_fraction_out_of_range(fraction):
    with pytest.raises(ValueError, match=r"`fraction` must be a number in \(0, 1\). Received"):
        _table().held_out(fraction)


def test_held_out_refuses_an_empty_part():
    with pytest.raises(ValueError, match="leaves one part empty.*Rows that are equal stay together"):
        _table(3).held_out(1e-9)


@pytest.mark.parametrize(
    ("labels", "ids", "classes"),
    [
        ([0, 2, 1], [0, 2, 1], (0, 1, 2)),
        ([5, 7, 5], [0, 1, 0], (5, 7)),
        ([-1.0, 1.0], [0, 1], (-1, 1)),
        ([True, False], [1, 0], (False, True)),
        (["dog", "cat"], [1, 0], ("cat", "dog")),
        ([b"dog", "Öl".encode()], [0, 1], ("dog", "Öl")),
        ([[1], [0]], [1, 0], (0, 1)),
    ],
)
def test_labels_become_ids_and_the_mapping_is_kept(labels, ids, classes):
    found, names = class_ids(np.array(labels), "toy")
    assert found.tolist() == ids and found.dtype == np.int32
    assert names == classes
    json.dumps(names)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, np.nan], "1 of 2 labels in toy are missing"),
        ([0.5, 1.0], "numbers such as 0.5"),
        ([1e300, 0.0], r"numbers such as 1e\+300"),
        ([1, 1], "at least two classes. Received: 1"),
        ([[1, 0], [0, 1]], "one class per row.*argmax"),
        ([1j, 2j], "whole numbers or strings"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        class_ids(np.array(labels), "toy")


def test_ranges_scale_named_columns_only_and_clip_outliers(tmp_path):
    file = tmp_path / "ranges.json"
    file.write_text('{"b": [0, 10]}')
    scaled = data.scale(_table(10), data.read_ranges(str(file)))
    assert np.array_equal(scaled.x_train[:, 0], _table(10).x_train[:, 0])
    assert scaled.x_train[0, 1] == pytest.approx(-0.8)
    assert scaled.x_train[-1, 1] == 1.0
    assert scaled.x_train.dtype == np.float32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON file"),
        ("[1]", "must map columns to ranges"),
        ('{"b": [1, 0]}', "two numbers, the lower one first"),
        ('{"b": [0, 1e999]}', "two numbers, the lower one first"),
        ('{"b": 3}', "two numbers, the lower one first"),
        ('{"c": [0, 1]}', "no column of that name. Received: 'c'"),
    ],
)
def test_wrong_ranges_are_refused(tmp_path, text, message):
    file = tmp_path / "ranges.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        data.scale(_table(), data.read_ranges(str(file)))


def test_ranges_are_for_tables():
    with pytest.raises(ValueError, match="Received: images"):
        data.scale(data.load("digits"), {"0": (0.0, 1.0)})
