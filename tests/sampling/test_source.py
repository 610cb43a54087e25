"""What is a source, how its rows are read, and what is refused."""

import collections
import itertools
import operator

import h5py
import keras
import ml_dtypes
import numpy as np
import pytest

from lipdp import sampling
from lipdp.sampling import Source, as_rows, columns
from lipdp.sampling.arrays import SMALL, label_array
from lipdp.sampling.columns import Column, digest
from lipdp.sampling.source import SAMPLE, is_source

pytestmark = pytest.mark.backend_free

ROWS = 500


def table():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (ROWS, 3, 2), dtype=np.uint8), np.arange(ROWS) % 3


class Rows:
    """Takes one index at a time, and remembers which."""

    def __init__(self, *arrays):
        self.arrays, self.seen = arrays, []

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, index):
        if not isinstance(index, int):
            raise TypeError("one index at a time")
        self.seen.append(index)
        rows = tuple(array[index] for array in self.arrays)
        return rows if len(rows) > 1 else rows[0]


class Pieces:
    """As arrays of zarr: in pieces, without `__len__`, several indices by `oindex`."""

    __module__ = "zarr.core.array"

    def __init__(self, array):
        self._array, self.shape, self.dtype, self.chunks = array, array.shape, array.dtype, (10, 3, 2)
        self.oindex = self

    def __array__(self, *args, **kwargs):
        raise AssertionError("all of it is read")

    def __getitem__(self, index):
        return self._array[index]


class Named:
    """As data sets of Hugging Face: a dictionary of lists for a list of indices."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, **arrays):
        self._arrays = arrays

    def __len__(self):
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, index):
        if isinstance(index, np.ndarray):
            raise TypeError("a list, please")
        return {name: array[index].tolist() for name, array in self._arrays.items()}


class Records(Rows):
    """As sources of grain and array_record: `__getitems__`."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Sideways(Rows):
    """Makes numbers of an index, so that an array of indices gives an array of another kind."""

    def __getitem__(self, index):
        return np.array([index, 2 * index, 3 * index], "float32")


def mapped(folder, array, mode="r"):
    array.tofile(folder / "rows")
    return np.memmap(folder / "rows", array.dtype, mode, shape=array.shape)


def in_file(folder, array, **options):
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("rows", data=array, **options)
    return h5py.File(folder / "rows.h5", "r")["rows"]


KINDS = {
    "memmap": mapped,
    "h5py": in_file,
    "h5py in pieces": lambda folder, x: in_file(folder, x, chunks=(7, 3, 2), compression="gzip"),
    "pieces": lambda folder, x: Pieces(x),
    "named": lambda folder, x: Named(image=x),
    "records": lambda folder, x: Records(x),
    "one by one": lambda folder, x: Rows(x),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_returns_the_rows_that_are_asked_for(kind, tmp_path):
    x, y = table()
    rows = KINDS[kind](tmp_path, x)
    assert is_source(rows) and is_source(Source(rows))
    source = Source(rows)
    for index in ([3], [499, 0, 7, 7, 250], [], np.random.default_rng(0).permutation(ROWS)):
        (found,) = source.read(np.array(index, "int64"))
        np.testing.assert_array_equal(found, x[np.array(index, "int64")])
    columns, labels = as_rows(rows, y, 3)
    assert isinstance(columns, Column) and columns.shape == x.shape and len(columns) == ROWS
    # Of lists no type is known: numbers in them are float32, as everywhere.
    assert columns.dtype == ("float32" if kind == "named" else "uint8")
    np.testing.assert_array_equal(labels, y)


def test_of_a_whole_file_the_data_sets_are_columns(tmp_path):
    x, y = table()
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["image"], file["digit"] = x, y
    with h5py.File(tmp_path / "file.h5") as file:
        columns, labels = as_rows(file, "digit", 3)
        assert isinstance(columns, Column) and isinstance(labels, Column) and columns.shape == x.shape
        np.testing.assert_array_equal(labels.source.read(np.array([4, 1]))[0], y[[4, 1]])
        with pytest.raises(ValueError, match="columns digit, image"):
            as_rows(file, "label", 3)


@pytest.mark.parametrize("module", ["tests", "zarr"])
def test_several_are_read_at_once_only_where_that_gives_the_same_rows(module):
    kind = type("Sideways", (Sideways,), {"__module__": module, "__getitem__": Sideways.__getitem__})
    (found,) = Source(kind(np.zeros(9))).read(np.array([4, 1, 8]))
    np.testing.assert_array_equal(found, [[4, 8, 12], [1, 2, 3], [8, 16, 24]])


class Tamed:
    """A class of the user's, written for one row: the branch is one of the batch if several come at once."""

    def __init__(self, x):
        self.x, self.kinds = x, set()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.kinds.add(type(index))
        row = self.x[index]
        if np.abs(row).max() > 50:
            row = row / np.abs(row).max()
        return row


def of_outliers():
    """Rows of which one, that no sample looks at, is far out."""
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    looked_at = np.unique(np.linspace(0, ROWS - 1, SAMPLE).round().astype(int))
    x[next(i for i in range(ROWS // 2, ROWS) if i not in looked_at)] *= 1000.0
    return x


class TamedFile(Tamed):
    """What a library would read, made into other rows by a class around it or of it."""

    __module__ = "h5py._hl.dataset"

    def __getitem__(self, index):
        return self.x[index]


class OfLibrary(TamedFile):
    __module__ = "datasets"  # a file of the user's may have this name

    __getitem__ = Tamed.__getitem__


class Items(Tamed):
    """As data sets of Hugging Face: `__getitems__` by way of `__getitem__`."""

    def __getitem__(self, index):
        return self.x[index]

    def __getitems__(self, indices):
        return list(self[np.array(indices)])


class OfItems(Items):
    __getitem__ = Tamed.__getitem__


class Forwards(Tamed):
    """Has all that is inside, as classes around a data set often do."""

    def __getattr__(self, name):
        return getattr(Records(self.x), name)


class Transformed(Tamed):
    """As a data set of Hugging Face with `set_transform`."""

    __module__ = "datasets.arrow_dataset"
    format = {"type": "custom"}

    __getitem__ = Tamed.__getitem__


class OfTransformed(Tamed):
    """As a column of one."""

    __module__ = "datasets.arrow_dataset"
    source = Transformed(np.zeros((2, 2)))

    __getitem__ = Tamed.__getitem__


class TamedMap(np.memmap):
    kinds = frozenset({int})

    def __getitem__(self, index):
        row = np.asarray(self).__getitem__(index)
        return row / np.abs(row).max() if np.abs(row).max() > 50 else row


@pytest.mark.parametrize(
    "kind", [Tamed, OfLibrary, OfItems, Forwards, Transformed, OfTransformed, TamedMap], ids=lambda kind: kind.__name__
)
def test_rows_of_a_class_of_the_users_do_not_meet(kind, tmp_path):
    """Three rows that are the same show nothing: the branch is one that they do not take."""
    x = of_outliers()
    rows = kind(x) if kind is not TamedMap else mapped(tmp_path, x).view(TamedMap)
    source = Source(rows)
    expected = np.stack([Tamed(x)[i] for i in range(ROWS)])
    (found,) = source.read(np.arange(ROWS))
    np.testing.assert_array_equal(found, expected)
    assert rows.kinds == {int}


def test_known_libraries_and_classes_that_say_so_read_several_at_once():
    x, _ = table()
    lists = []

    class Several(Rows):
        def __getitems__(self, indices):
            lists.append(list(indices))
            return [self.arrays[0][i] for i in indices]

    source = Source(Several(x))
    np.testing.assert_array_equal(source.read(np.array([5, 2, 9]))[0], x[[5, 2, 9]])
    assert lists[-1] == [2, 5, 9]
    seen = TamedFile(x)
    seen.__class__ = type("Seen", (TamedFile,), {"__module__": "h5py", "__getitem__": Tamed.__getitem__})
    Source(seen).read(np.arange(20))
    assert np.ndarray in seen.kinds


def test_several_rows_of_getitems_are_compared_with_rows_by_themselves():
    class Other(Rows):
        def __getitems__(self, indices):
            return [row + 1.0 for row in self.arrays[0][indices]]

    x = np.arange(18.0).reshape(9, 2)
    np.testing.assert_array_equal(Source(Other(x)).read(np.array([4, 1]))[0], x[[4, 1]])


def test_arrays_in_memory_are_no_sources(tmp_path):
    x, _ = table()
    memory = [x, x.tolist(), keras.ops.convert_to_tensor(x), {"a": x}, (x,), range(9), "text", b"1", None, 3]
    memory += [
        collections.deque([1.0]),
        np.float32(1),
        mapped(tmp_path, x).astype("float32"),
        np.asarray(mapped(tmp_path, x)),
    ]
    for data in memory:
        assert not is_source(data), type(data)


def test_rows_bring_labels_as_a_pair_a_column_or_not_at_all():
    x, y = table()
    for data, labels in ((Rows(x, y), None), (Named(image=x, label=y), "label"), (Rows(x), Rows(y)), (x, Rows(y))):
        columns, given = as_rows(data, labels, 3)
        assert columns.shape == x.shape and given.shape == y.shape and given.dtype == np.int32
    columns, given = as_rows(Named(a=x, b=x, c=x, label=y), "label", 3, names=("b", "a"))
    assert set(columns) == {"a", "b"} and given.shape == y.shape
    columns, _ = as_rows((Rows(x), x, Rows(y)), y, 3)
    assert [type(leaf) for leaf in columns] == [Column, np.ndarray, Column]
    assert as_rows(Rows(x), y.astype("float64"), 3)[1].dtype == np.float32
    assert as_rows(Rows(x), y.tolist(), 3)[1].dtype == np.int32


def test_only_a_sample_at_fixed_places_is_read():
    x, y = table()
    rows = Rows(x, y)
    columns, _ = as_rows(rows, None, 3)
    assert len(set(rows.seen)) == SAMPLE == len(columns.sample)
    assert {0, ROWS - 1} <= set(rows.seen)
    again = Rows(x, y)
    as_rows(again, None, 3)
    assert again.seen == rows.seen


def test_the_digest_of_a_source_sees_its_length_types_shapes_and_sample_and_no_other_row():
    x, y = table()
    seen = Rows(x, y)
    as_rows(seen, None, 3)
    elsewhere, within = x.copy(), x.copy()
    elsewhere[next(i for i in range(ROWS) if i not in seen.seen)] += 1
    within[0] += 1

    def of(x, y=y):
        return digest(as_rows(Rows(x, y), None, 3))

    assert of(x) == of(elsewhere)
    kinds = [x, within, x[:-1], x.astype("float32"), x[:, :2], x.reshape(ROWS, 2, 3)]
    assert len({of(kind, y[: len(kind)]) for kind in kinds}) == len(kinds)
    assert of(x, y + 1) != of(x)
    # Bytes that are in memory have the digest of the numbers they stand for: seeds repeat as before.
    assert digest((x, y)) == digest((x.astype("float32"), y)) != of(x)


def test_all_of_a_small_source_is_in_its_sample():
    assert [len(Source(Rows(np.arange(n)[:, None])).sample[0]) for n in (1, 2, 3, 63, 64, 65)] == [1, 2, 3, 63, 64, 64]


def ragged(index):
    return np.zeros(3 if index else 4)


class Bad(Rows):
    def __init__(self, get=None, length=ROWS):
        self._get, self._length = get, length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        return self._get(index)


class Growing(Bad):
    def __init__(self):
        self._lengths = itertools.count(ROWS)

    def __len__(self):
        return next(self._lengths)

    def __getitem__(self, index):
        return np.zeros(3)


def failing(index):
    raise OSError("no such disk")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Bad(ragged), r"one shape\. Received: shapes \(\(3,\),\), \(\(4,\),\).*__getitem__"),
        (Bad(failing), "cannot be read. Received: OSError: no such disk from row 0"),
        (Bad(lambda index: "text"), "must hold numbers. Received: text"),
        (Bad(lambda index: b"text"), "rows of bytes.*Decode a record in `__getitem__`"),
        (Bad(lambda index: 1j), "must hold real numbers"),
        (Bad(lambda index: None), "dense array of numbers. Received: dtype object"),
        (Bad(lambda index: np.nan), "NaN or infinity in each of 64 rows"),
        (Bad(lambda index: np.zeros(2), length=0), "holds no example"),
        (Bad(lambda index: np.zeros(2), length=-1), "must have a length. Received: ValueError"),
        (Bad(lambda index: np.zeros(2), length=2.5), "must have a length. Received: TypeError"),
        (Bad(lambda index: (1.0, 2.0) if index else {"a": 1.0}), "must be alike"),
        (Growing(), "length of a source must not change"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_sources_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        as_rows(rows, np.zeros(ROWS), 2)


def test_a_source_that_ignores_indices_is_refused():
    class Whole(Rows):
        def __getitem__(self, index):
            if isinstance(index, int):
                raise TypeError("arrays, please")
            return self.arrays[0]

    for module in ("tests", "zarr"):
        with pytest.raises(ValueError, match="cannot be read. Received: TypeError: arrays, please"):
            Source(
                type("Whole", (Whole,), {"__module__": module, "__getitem__": Whole.__getitem__})(np.zeros((ROWS, 2)))
            )


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (Rows(np.zeros((9, 2))), None, "needs labels.*rows are inputs only"),
        (Rows(*3 * [np.zeros(9)]), None, "needs labels"),
        ((Rows(np.zeros((9, 2))), Rows(np.zeros(9))), None, "needs labels"),
        (Named(a=np.zeros(9), b=np.zeros(9)), None, "needs labels.*a dictionary of a, b; pass the name"),
        ({"a": Rows(np.zeros(9)), "b": Rows(np.zeros(9))}, None, "needs labels.*a dictionary of a, b; pass the name"),
        (Named(a=np.zeros(9), b=np.zeros(9)), "c", "Received: y='c', and columns a, b"),
        (Rows(np.zeros((9, 2))), "label", "Received: y='label', and rows without names"),
        (Rows(np.zeros((9, 2))), np.zeros(8), r"same length. Received lengths: \[9, 8\], inputs first"),
        (Rows(np.zeros((9, 2))), Rows(np.zeros(9), np.zeros(9)), "must be one array of labels"),
    ],
)
def test_labels_that_do_not_belong_to_the_rows_are_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        as_rows(x, y, 2)


def test_rows_of_another_shape_or_type_are_not_made_to_fit():
    x, y = table()
    columns, labels = as_rows(Rows(x, y), None, 3)
    with pytest.raises(ValueError, match=r"one shape. Received: \(3, 1\) and \(3, 2\)"):
        columns.cast(x[:2, :, :1])
    for column, rows in ((columns, x.astype("float32")), (labels, y.astype("float32")), (labels, y.astype(str))):
        with pytest.raises(ValueError, match="one type. Received:"):
            column.cast(rows)


def test_a_label_in_the_sample_that_int32_has_not_is_refused():
    with pytest.raises(ValueError, match="Integer labels must be within int32.*Received: labels from 0 to 1099511"):
        as_rows(np.zeros((9, 2)), Rows(np.where(np.arange(9) == 4, 2**40, 0)), 2)


def test_numbers_of_low_precision_are_no_bytes(tmp_path):
    numbers = np.arange(18).reshape(9, 2).astype(ml_dtypes.bfloat16)
    x, y = as_rows(Rows(numbers), Rows(numbers[:, 0] + numbers.dtype.type(0.5)), 2)
    assert x.dtype == y.dtype == np.float32
    assert x.sample.tolist() == numbers.tolist() and y.sample[1] == 2.5
    assert label_array(numbers[:, 0]).dtype == np.float32


@pytest.mark.parametrize("wrap", [np.asarray, Rows])
def test_fields_of_a_structured_array_are_passed_one_by_one(wrap, tmp_path):
    table = np.zeros(9, [("x", "f4", (2,)), ("y", "i8")])
    for x, y in ((wrap(table), np.zeros(9)), (np.zeros((9, 2)), wrap(table))):
        with pytest.raises(ValueError, match="a structured array of the fields x, y. Pass fields: rows\\['name'\\]"):
            as_rows(x, y, 2)
    rows = mapped(tmp_path, table)
    x, y = as_rows(rows["x"], rows["y"], 2)
    assert x.shape == (9, 2) and y.dtype == np.int32


def test_what_a_source_needs():
    with pytest.raises(ValueError, match="must have `__len__` and `__getitem__`. Received: a generator"):
        Source(i for i in range(3))
    with pytest.raises(ValueError, match="`readers` must be a positive integer. Received: readers=0"):
        Source(Rows(np.zeros(3)), readers=0)


def test_one_array_for_all_rows_is_read_by_one_thread():
    """Others would write their row into it before it is copied."""

    class Written(Rows):
        def __init__(self, rows):
            super().__init__(rows)
            self.row, self.one = np.empty_like(rows[0]), np.ones(1)

        def __getitem__(self, index):
            self.row[:] = super().__getitem__(index)
            return self.row, self.one

    x, _ = table()
    assert Source(Written(x)).readers == 1
    assert Source(Rows(x)).readers > 1


def test_a_validation_split_of_a_source_is_refused_with_the_way_out():
    columns, y = as_rows(Rows(table()[0]), table()[1], 3)
    with pytest.raises(ValueError, match="all of a source would have to be read.*validation_data"):
        sampling.split(columns, y, 0.2)


def test_pages_of_a_file_are_given_back_and_what_was_written_into_a_private_mapping_stays(tmp_path):
    x, _ = table()
    rows = mapped(tmp_path, x, "c")
    rows[3] = 7
    source = Source(rows)
    source.prepare()
    source.release()
    assert (source.read(np.array([3]))[0] == 7).all() and (rows[3] == 7).all()


@pytest.mark.parametrize("kind", SMALL)
def test_small_numbers_in_memory_stay_so_and_others_become_float32(kind):
    x, y = table()
    x = x.astype(kind)
    kept, _ = as_rows(x, y, 3)
    assert kept is x
    assert as_rows(x.astype("int16"), y, 3)[0].dtype == np.float32
    assert sampling.as_arrays(x, y, 3)[0].dtype == np.float32
    first, second = sampling.split(kept, y, 0.3)
    for part, other in zip((first, second), sampling.split(x.astype("float32"), y, 0.3), strict=True):
        assert part[0].dtype == kind
        np.testing.assert_array_equal(part[0], other[0])


class Reuse:
    """Fills one array again and again, as decoders do."""

    def __init__(self, named=False):
        self.row, self.named = np.zeros(3, "float32"), named

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.row[:] = operator.index(index)
        return {"x": self.row, "y": np.int32(index)} if self.named else self.row


class ReuseOfSeveral(Reuse):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", [Reuse, ReuseOfSeveral])
def test_rows_that_are_written_into_one_array_are_copied(named, kind):
    source = Source(kind(named), readers=1)
    found = source.read(np.array([9, 2, 3]))
    np.testing.assert_array_equal(found[0], np.repeat([[9.0], [2.0], [3.0]], 3, axis=1))
    assert len(np.unique(source.sample[0][:, 0])) == len(source.sample[0])


def test_no_row_is_a_batch_too():
    (rows,) = Source(np.lib.stride_tricks.as_strided(np.zeros(3, "float32"), (50, 3), (0, 4))).read(np.zeros(0, int))
    assert rows.shape == (0, 3)
    assert columns.finite_rows(rows).shape == (0,) and columns.finite_rows(np.zeros((0, 2, 3, 4))).shape == (0,)
    np.testing.assert_array_equal(columns.finite_rows(np.array([1.0, np.nan])), [True, False])


@pytest.mark.backend_free
def test_rows_with_labels_and_weights_say_where_these_go():
    class Some(Rows):
        def __init__(self, parts):
            super().__init__(np.arange(8.0, dtype="float32").reshape(4, 2))
            self.parts = parts

        def __getitem__(self, index):
            return (super().__getitem__(index), np.int32(index), np.float32(1.0))[: self.parts]

    with pytest.raises(ValueError, match=r"y=None.*\(inputs, labels, weights\); return.*sample_weight="):
        as_rows(Some(3), None, 2, names=("input",))
    for parts, words in ((2, r"\(inputs, labels\)"), (3, r"\(inputs, labels, weights\)")):
        with pytest.raises(ValueError, match=words + " has its own labels. Received: y as well. Leave it out"):
            as_rows(Some(parts), np.arange(4), 2, names=("input",))
    x, y = as_rows(Some(2), None, 2, names=("input",))
    assert len(x) == len(y) == 4
    pair, _ = as_rows(Some(2), np.arange(4), 2, names=("first", "second"))  # two inputs
    assert len(pair) == 2


@pytest.mark.backend_free
def test_a_list_of_inputs_and_labels_is_told_that_it_is_one_array():
    x, y = table()
    rows = [[x[i], y[i]] for i in range(ROWS)]
    with pytest.raises(
        ValueError, match=r"A list in a row of a source is one array. .*Return a tuple, \(inputs, labels\)"
    ):
        Source(rows)


def test_a_closed_file_is_named(tmp_path):
    """h5py speaks of an invalid identifier."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = table()[0]
        rows = file["x"]
        assert is_source(rows)
    for x, y in ((rows, table()[1]), (file, "x")):
        with pytest.raises(ValueError, match="of an h5py file that is closed. Call `fit` inside of `with h5py.File"):
            as_rows(x, y, 3)


def test_a_column_of_text_is_named():
    x, y = table()
    rows = Named(x=x, name=np.full(ROWS, "text"), label=y)
    with pytest.raises(ValueError, match="Column 'name' does not fit; leave it out if it is no input. `x` must hold"):
        as_rows(rows, "label", 3)
    columns, _ = as_rows(rows, "label", 3, names=("x",))
    assert isinstance(columns, Column)
