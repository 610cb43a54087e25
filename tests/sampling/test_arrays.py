"""Which rows are held out: each row decides for itself."""

import time

import numpy as np
import pytest

from lipdp import sampling
from lipdp.accounting.held_out import held_out
from lipdp.sampling.arrays import as_arrays, input_array, label_array
from lipdp.sampling.columns import as_rows, by_name


def table(rows=400):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 5)).astype("float32"), np.arange(rows, dtype="int32") % 3


def contents(part):
    x, y = part
    return {(row.tobytes(), int(label)) for row, label in zip(x, y, strict=True)}


@pytest.mark.backend_free
@pytest.mark.parametrize("removed", [0, 1, 200, 399])
def test_a_row_less_is_a_row_less_in_one_part(removed):
    """A cut at a fixed share of the rows moved a second row, and later ones whenever it moved on."""
    x, y = table()
    whole = sampling.split(x, y, 0.5)
    less = sampling.split(np.delete(x, removed, axis=0), np.delete(y, removed), 0.5)
    changed = [contents(a) ^ contents(b) for a, b in zip(whole, less, strict=True)]
    assert sorted(map(len, changed)) == [0, 1]


@pytest.mark.backend_free
def test_the_order_of_rows_plays_no_part_and_labels_do():
    x, y = table()
    order = np.random.default_rng(1).permutation(len(y))
    one, other = held_out((x, y), 0.3), held_out((x[order], y[order]), 0.3)
    np.testing.assert_array_equal(one[order], other)
    assert (one != held_out((x, y + 1), 0.3)).any()
    assert 90 <= one.sum() <= 150
    assert not (one & ~held_out((x, y), 0.6)).any()
    several = held_out((x, x[:, :2], y.reshape(-1, 1, 1)), 0.3)
    assert 90 <= several.sum() <= 150
    np.testing.assert_array_equal(one, held_out((x, y.astype("float64")), 0.3))


@pytest.mark.backend_free
def test_parts_keep_rows_and_labels_together():
    x, y = table()
    (x_train, y_train), (x_held, y_held) = sampling.split((x, 2.0 * x), y, 0.25)
    assert len(y_train) + len(y_held) == 400 and 60 <= len(y_held) <= 140
    np.testing.assert_array_equal(2.0 * x_held[0], x_held[1])
    assert contents((x_train[0], y_train)) | contents((x_held[0], y_held)) == contents((x, y))


@pytest.mark.backend_free
def test_an_empty_part_is_refused():
    x = np.ones((50, 2), "float32")
    with pytest.raises(ValueError, match="leaves one part empty.*hash of their contents"):
        sampling.split(x, np.zeros(50, "int32"), 0.5)


@pytest.mark.backend_free
def test_a_whole_image_set_takes_about_a_second():
    x, y = np.zeros((60_000, 784), "float32"), np.arange(60_000, dtype="int32")
    start = time.process_time()
    assert 11_000 <= held_out((x, y), 0.2).sum() <= 13_000
    assert time.process_time() - start < 3.0


@pytest.mark.backend_free
@pytest.mark.parametrize("label", [2**32 + 1, 2**31, -(2**31) - 1, 2**63 - 1])
def test_an_integer_label_does_not_become_another_one(label):
    """Before, 2**32 + 1 was taken for class 1."""
    with pytest.raises(ValueError, match="Integer labels must be within int32.*Received: labels from"):
        label_array(np.array([0, label]))
    with pytest.raises(ValueError, match="Integer labels must be within int32"):
        as_arrays(np.zeros((2, 3)), [0, label], 2)


@pytest.mark.backend_free
def test_all_integers_of_int32_are_labels():
    for dtype in ("int64", "uint32", "uint64", "int8", "bool"):
        assert label_array(np.array([0, 1], dtype)).tolist() == [0, 1]
    assert label_array([2**31 - 1, -(2**31)]).tolist() == [2**31 - 1, -(2**31)]
    assert label_array(np.zeros(0, "int64")).dtype == np.int32
    with pytest.raises(ValueError, match="in uint64"):
        label_array(np.array([2**64 - 1], "uint64"))


def concatenated():
    tf = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices((np.zeros((12, 2), "float32"), np.zeros(12, "int32")))
    other = tf.data.Dataset.from_tensor_slices((np.ones((4, 2), "float32"), np.ones(4, "int32")))
    whole, twelve = map(tf.data.experimental.assert_cardinality, (24, 12))
    changed = rows.map(lambda x, y: (x + 1.0, y), num_parallel_calls=2).cache().shuffle(12)
    doubled = {
        "itself": rows.concatenate(rows),
        "itself behind another": other.concatenate(rows).concatenate(rows),
        "batches": rows.batch(4).concatenate(rows.batch(3)).prefetch(1),
        "a changed copy": rows.concatenate(changed),
        "rows of batches": rows.batch(4).unbatch().concatenate(rows).apply(whole),
        "a rare class once more": rows.concatenate(rows.filter(lambda x, y: y == 1)).apply(twelve),
        "a part first": rows.take(3).concatenate(rows),
        "drawn from both": tf.data.Dataset.sample_from_datasets([rows, rows.shuffle(12)]).apply(whole),
        "before a map": rows.concatenate(rows).map(lambda x, y: (x, y)).batch(5),
    }
    x_alone = rows.map(lambda x, y: x)
    y_alone = rows.map(lambda x, y: y)
    once = {
        "another": rows.concatenate(other),
        "parts": rows.take(5).concatenate(rows.skip(5)),
        "parts in turn": tf.data.Dataset.sample_from_datasets([rows.take(6), rows.skip(6)]).apply(twelve),
        "inputs and labels": tf.data.Dataset.zip((x_alone, y_alone)),
    }
    return doubled, once


def test_the_same_rows_one_behind_the_other_are_refused():
    """Before, `.repeat()` was, and this was not."""
    for dataset in concatenated()[0].values():
        with pytest.raises(ValueError, match=r"with `.concatenate\(\)` of the same rows, or.*Leave one of them out"):
            as_arrays(dataset, None, 2)


def test_windows_of_keras_are_refused_with_another_way():
    """Keras repeats inside of them, where nobody can remove it."""
    import keras

    series = np.arange(20.0, dtype="float32")
    windows = keras.utils.timeseries_dataset_from_array(series[:, None], series[4:], sequence_length=4, batch_size=4)
    with pytest.raises(ValueError, match="timeseries_dataset_from_array.*sliding_window_view.*person_ids="):
        as_arrays(windows, None, 3)


def test_parts_of_one_dataset_are_taken():
    for name, dataset in concatenated()[1].items():
        assert len(as_arrays(dataset, None, 2)[1]) == (16 if name == "another" else 12)


class Kind:
    """What is used of the type of a column of a DataFrame."""

    def __init__(self, kind):
        self.kind = kind


class Frame:
    """What is used of a DataFrame: columns of several types are objects in NumPy."""

    iloc = None

    def __init__(self, columns, kinds):
        self.content, self.columns, self.kinds = columns, list(columns), kinds

    def __getitem__(self, names):
        if isinstance(names, str):
            return np.array(self.content[names])
        return Frame({name: self.content[name] for name in names}, {name: self.kinds[name] for name in names})

    def __array__(self, dtype=None, copy=None):
        return np.array(list(zip(*self.content.values(), strict=True)), object)

    @property
    def dtypes(self):
        return [Kind(kind) for kind in self.kinds.values()]

    def to_numpy(self, dtype, na_value):
        rows = zip(*self.content.values(), strict=True)
        return np.array([[na_value if value is None else value for value in row] for row in rows], dtype)


def frame(**changed):
    columns = {"age": [30.0, 40.5], "owns": [True, False], "label": [1, 0]} | changed
    return Frame(columns, {"age": "f", "owns": "b", "label": "i"})


@pytest.mark.backend_free
def test_numbers_and_truth_values_side_by_side_are_numbers():
    """NumPy makes objects of such a DataFrame, which were refused as ragged data."""
    x = input_array(frame())
    assert x.dtype == np.float32 and x.tolist() == [[30.0, 1.0, 1.0], [40.5, 0.0, 0.0]]
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 2 examples, first in row 1"):
        input_array(frame(age=[30.0, None]))


@pytest.mark.backend_free
def test_columns_of_dates_are_refused_with_the_way_out():
    dates = Frame({"born": [np.datetime64("2000-01-01")] * 2, "age": [1.0, 2.0]}, {"born": "M", "age": "f"})
    with pytest.raises(ValueError, match="dtype object. Dates, .*lipdp.data.Table"):
        input_array(dates)


@pytest.mark.backend_free
def test_labels_are_a_column_by_its_name():
    x, y = as_rows(frame(), "label", 2)
    assert x.tolist() == [[30.0, 1.0], [40.5, 0.0]] and y.tolist() == [1, 0]
    x, y = as_rows({"age": np.array([30.0, 40.5]), "label": np.array([1, 0])}, "label", 2)
    assert x.tolist() == [30.0, 40.5] and y.tolist() == [1, 0]
    with pytest.raises(ValueError, match="Received: y='labels', and columns age, owns, label. Pass one of the columns"):
        as_rows(frame(), "labels", 2)


class ArrowTable:
    """What is used of a pyarrow.Table; `columns` are not their names there."""

    def __init__(self, **columns):
        self._columns, self.column_names, self.columns = columns, list(columns), list(columns.values())

    def select(self, names):
        return ArrowTable(**{name: self._columns[name] for name in names})

    def __getitem__(self, name):
        return self._columns[name]

    def __array__(self, dtype=None, copy=None):
        return np.stack(self.columns, axis=1).astype(dtype or "float64")


class PolarsFrame:
    """What is used of a polars.DataFrame."""

    def __init__(self, **columns):
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, names):
        if isinstance(names, list):
            return PolarsFrame(**{name: self._columns[name] for name in names})
        return self._columns[names]

    def __array__(self, dtype=None, copy=None):
        return np.stack(list(self._columns.values()), axis=1).astype(dtype or "float64")


@pytest.mark.backend_free
@pytest.mark.parametrize("kind", [ArrowTable, PolarsFrame])
def test_labels_are_a_column_of_arrow_and_polars_by_its_name(kind):
    table = kind(age=np.array([30.0, 40.5]), label=np.array([1, 0]), owns=np.array([1, 0]))
    for x, y in (as_rows(table, "label", 2), by_name(table, "label")):
        assert x.tolist() == [[30.0, 1.0], [40.5, 0.0]] and y.tolist() == [1, 0]
        assert type(x) is type(y) is np.ndarray
    with pytest.raises(ValueError, match="Received: y='labels', and columns age, label, owns. Pass one of the columns"):
        as_rows(table, "labels", 2)


@pytest.mark.backend_free
@pytest.mark.parametrize("method", ["collect", "to_table"])
def test_what_becomes_a_table_by_a_method_says_which(method):
    lazy = type("Lazy", (), {"columns": ["age", "label"], method: None})()
    with pytest.raises(ValueError, match=f"x of type Lazy, without names of columns. .*: x.{method}\\(\\)"):
        as_rows(lazy, "label", 2)


@pytest.mark.backend_free
def test_columns_whose_cells_are_arrays_are_told_how_to_stack_them():
    """Before, the word was that ragged data be padded."""
    cells = np.empty((3, 1), object)
    cells[:, 0] = [np.zeros((2, 2))] * 3
    with pytest.raises(ValueError, match=r"cells that hold arrays of shape \(2, 2\). .*: numpy.stack\(column\)"):
        input_array(cells)
    cells[1, 0] = np.zeros(3)
    with pytest.raises(ValueError, match="Ragged or sparse data: pad"):
        input_array(cells)


@pytest.mark.backend_free
def test_columns_of_text_are_named_with_the_way_out():
    columns = {"age": [30.0, 40.5], "owns": ["yes", "no"], "town": ["a", "b"], "label": [1, 0]}
    people = Frame(columns, {"age": "f", "owns": "O", "town": "O", "label": "i"})
    message = "in 'owns', 'town'. Leave out columns that are no inputs. Encode .*Table.template begins"
    with pytest.raises(ValueError, match=message):
        as_rows(people, "label", 2)
    with pytest.raises(ValueError, match="`y` must hold numbers. Received: text.*Table.*labels"):
        as_rows(frame(label=["yes", "no"]), "label", 2)


@pytest.mark.backend_free
@pytest.mark.parametrize("x, kind", [(np.zeros((2, 3)), "ndarray"), ([[1.0], [2.0]], "list")])
def test_a_name_of_labels_needs_names_of_columns(x, kind):
    """Before, the name itself was taken for the labels."""
    with pytest.raises(ValueError, match=f"y='label', and x of type {kind}, without names of columns. Pass"):
        as_rows(x, "label", 2)


class Parts(dict):
    """What is used of a `DatasetDict` of Hugging Face."""

    column_names = None


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "x, match",
    [
        (Parts(train=[], test=[]), "one data set. Received: the parts train, test. Pass one: x.'train'"),
        ((row for row in ()), "a stream of batches cannot give. Received: a generator. Collect"),
        ("people.csv", "Received: x='people.csv'. Read the file first"),
    ],
)
def test_data_that_are_none_are_refused_where_labels_are_named_too(x, match):
    """Before, the word for all of them was that ragged data be padded."""
    with pytest.raises(ValueError, match=match):
        as_rows(x, "label", 2)


@pytest.mark.backend_free
def test_a_list_of_rows_is_refused_with_the_way_to_stack_them():
    """Before, they were taken for as many inputs, and their lengths were told."""
    x, y = np.zeros((5, 4, 3)), np.arange(5)
    for rows, labels in ((list(x), list(y)), (tuple(x), y), (list(x[:4]), np.eye(4))):
        with pytest.raises(
            ValueError, match=r"array for each of \d examples. Pass numpy.stack\(x\).*numpy.asarray\(y\)"
        ):
            as_arrays(rows, labels, 3)
    found, _ = as_arrays([x, x], y, 3)  # two inputs
    assert len(found) == 2


@pytest.mark.backend_free
def test_single_examples_of_tf_data_are_read_many_at_once(monkeypatch):
    """One by one 100,000 rows took 45 s."""
    tf = pytest.importorskip("tensorflow")
    x, y = table(5000)
    joined, parts = np.concatenate, []
    monkeypatch.setattr(np, "concatenate", lambda rows, *args: parts.append(len(rows)) or joined(rows, *args))
    found = as_arrays(tf.data.Dataset.from_tensor_slices((x, y)), None, 2)
    assert parts == [5, 5]
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], y)
    lengths = tf.data.Dataset.from_generator(
        lambda: ((np.zeros(n), 0) for n in (2, 3)), (tf.float32, tf.int32), ((None,), ())
    )
    with pytest.raises(ValueError, match="yields examples of several shapes"):
        as_arrays(lengths.apply(tf.data.experimental.assert_cardinality(2)), None, 2)
