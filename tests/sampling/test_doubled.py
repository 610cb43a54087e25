"""Sources of other libraries that hold a row several times; that libraries themselves are not installed."""

import keras
import numpy as np
import pytest

from lipdp.sampling import Source
from lipdp.sampling.arrays import as_arrays
from lipdp.sampling.doubled import refuse_doubled, refuse_overlapping
from tests.helpers.models import mlp

pytestmark = pytest.mark.backend_free


def of(module, name, **attributes):
    """Returns a class as a library has it, with some attributes."""
    methods = {"__len__": lambda self: self.length, "__getitem__": lambda self, index: np.zeros(2, "float32")}
    return type(name, (), {"__module__": module, **methods, **attributes})()


def grain(name, *parents, length=10):
    return of("grain._src.python.dataset", name, parents=parents, length=length)


ROWS, OTHERS = grain("SourceMapDataset"), grain("SourceMapDataset")
DOUBLED = "Rows that stand in the data several times are protected less than epsilon says"


@pytest.mark.parametrize(
    "rows, found",
    [
        (grain("RepeatMapDataset", ROWS, length=20), r"RepeatMapDataset with `.repeat\(\)`"),
        (grain("MapMapDataset", grain("RepeatMapDataset", ROWS, length=2**63 - 1), length=2**63 - 1), "MapMapDataset"),
        (grain("ConcatenateMapDataset", ROWS, ROWS, length=20), "with the same data set twice"),
        (of("torch.utils.data.dataset", "ConcatDataset", datasets=[ROWS, ROWS], length=20), "the same data set twice"),
        (of("torch.utils.data.dataset", "Subset", dataset=ROWS, indices=[1, 2, 1], length=3), "indices that stand in"),
    ],
)
def test_rows_that_are_repeated_are_refused(rows, found):
    """Before, they trained at half the protection that was stated; those without an end never came to it."""
    with pytest.raises(ValueError, match=f"{DOUBLED}. Received: a .*{found}.*pass epochs="):
        Source(rows)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        grain("RepeatMapDataset", ROWS),  # once
        grain("MixedMapDataset", grain("SliceMapDataset", ROWS, length=5), grain("SliceMapDataset", ROWS, length=5)),
        grain("ConcatenateMapDataset", ROWS, OTHERS, length=20),
        of("torch.utils.data.dataset", "ConcatDataset", datasets=[ROWS, OTHERS], length=20),
        of("torch.utils.data.dataset", "Subset", dataset=ROWS, indices=range(3, 0, -1), length=3),
        of(
            "torch.utils.data.dataset", "Subset", dataset=of("mine", "Rows", datasets=["a", "a"]), indices=[0], length=1
        ),
        of("mine", "RepeatMapDataset", parents=(ROWS,), length=20),
    ],
)
def test_rows_that_stand_in_data_once_are_taken(rows):
    assert len(Source(rows)) == rows.length


class Buffer:
    def __init__(self, address):
        self.address = address


class Piece:
    """A part of an Arrow column: so many values from a place in memory on."""

    def __init__(self, address, offset, length):
        self.address, self.offset, self.length = address, offset, length

    def __len__(self):
        return self.length

    def buffers(self):
        return [None, Buffer(self.address) if self.address else None]


class Indices:
    def __init__(self, index):
        self.index = index

    def column(self, _):
        return self

    def to_numpy(self):
        return np.array(self.index)


def hugging_face(*columns, index=None):
    table = of(
        "pyarrow", "Table", columns=[of("pyarrow", "Column", chunks=[Piece(*span) for span in c]) for c in columns]
    )
    return of("datasets.arrow_dataset", "Dataset", data=table, _indices=None if index is None else Indices(index))


TWICE, APART = [(64, 0, 5), (64, 0, 5)], [(64, 0, 5), (64, 5, 5)]


@pytest.mark.parametrize(
    "rows, refused",
    [
        (hugging_face(TWICE), True),
        (hugging_face(TWICE, [(0, 0, 10)]), True),  # a column of nothing does not tell
        (hugging_face([(64, 0, 6), (64, 5, 5)]), True),
        (hugging_face([(64, 0, 5)], index=[0, 1, 0]), True),
        (hugging_face(TWICE, index=[0, 2, 5]), True),
        (hugging_face(APART), False),
        (hugging_face(APART, TWICE), False),  # one column of the same values again and again
        (hugging_face([(64, 0, 5)], index=[4, 0, 3]), False),
        (hugging_face(TWICE, index=[0, 2, 6, 8]), False),
        (hugging_face([(64, 0, 0), (64, 0, 5)]), False),
    ],
)
def test_data_sets_of_hugging_face_go_by_places_in_memory(rows, refused):
    for found in (rows, of("datasets.arrow_dataset", "Column", source=rows)):
        if refused:
            with pytest.raises(ValueError, match=f"{DOUBLED}.*`.select\\(\\)`"):
                refuse_doubled(found)
        else:
            refuse_doubled(found)


SERIES = np.sin(np.arange(60, dtype="float32"))
WINDOWS = np.lib.stride_tricks.sliding_window_view(SERIES, 6)


@pytest.mark.parametrize(
    "data",
    [WINDOWS, {"a": SERIES, "b": WINDOWS[::5, :, None]}, (SERIES, WINDOWS[::-1]), (SERIES[:-1, None], SERIES[1:])],
)
def test_rows_that_overlap_in_memory_are_refused(data):
    """A number of the series stands in up to six windows, each of which would be protected alone."""
    for given in ([None, data], data if isinstance(data, tuple) else [data]):
        with pytest.raises(ValueError, match="stand in several rows.*sliding_window_view.*person_ids="):
            refuse_overlapping(given)


def test_rows_of_their_own_are_not():
    table = np.zeros((8, 6, 4))
    apart = [table.T, table[::2, ::3], table[::-1], table[:, 0], WINDOWS.copy(), WINDOWS[::6], SERIES, table[:1]]
    for rows in apart:
        refuse_overlapping([rows, rows])
    refuse_overlapping([table[:, :-1], table[:, 1:]])  # texts, and their next tokens
    refuse_overlapping([np.broadcast_to(np.arange(4), (9, 4)), table, table[:, 0], [[1, 2], [3, 4]], "label", object()])


def test_who_says_whose_windows_are_may_train_on_them():
    model = mlp(6)
    fit = {"batch_size": 10, "epochs": 1, "noise_multiplier": 2.0, "verbose": 0}
    with pytest.raises(ValueError, match="whose rows overlap in memory"):
        model.fit(WINDOWS, np.arange(55) % 3, **fit)
    model.fit(WINDOWS, np.arange(55) % 3, examples_per_person=6, **fit)
    assert model.privacy.epsilon() > model.privacy.epsilon(group_size=1)


class Batches(keras.utils.PyDataset):
    """Four batches of four rows, as a function makes them of their first row."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.made(4 * index)


def test_batches_that_are_written_into_one_array_are_copied():
    """All of them were the last one: each of its rows stood in the data four times, and epsilon was that of one."""
    x, y = np.arange(32.0, dtype="float32").reshape(16, 2), np.arange(16)
    buffer = np.empty((4, 2), "float32"), np.empty(4, int)

    def written(start):
        for out, rows in zip(buffer, (x, y), strict=True):
            out[:] = rows[start : start + 4]
        return buffer

    for made in (written, lambda start: (x[start : start + 4], y[start : start + 4], None)):
        rows, labels = as_arrays(Batches(made), None, 2)[:2]
        assert rows.tolist() == x.tolist() and labels.tolist() == y.tolist()


def test_windows_that_a_py_dataset_cuts_are_refused():
    series, y = np.arange(32.0, dtype="float32").reshape(16, 2), np.arange(16)
    windows = Batches(lambda start: (series[None, start : start + 6], y[start : start + 1]))
    with pytest.raises(ValueError, match="overlap in memory.*examples_per_person="):
        refuse_overlapping((windows, None))
    apart = lambda start: (series[None, start : start + 4], y[start : start + 1])  # noqa: E731
    copies = lambda start: (np.array(series[None, start : start + 6]), y[:1])  # noqa: E731
    for made in (apart, copies):
        refuse_overlapping((Batches(made), None))
