"""Threads read drawn rows ahead of the updates that use them."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from lipdp.sampling import Batches, PaddedSize, PoissonSampler, Reader, Source, as_rows
from lipdp.sampling.columns import read
from tests.sampling.test_source import Rows, mapped

pytestmark = pytest.mark.backend_free

N = 400


def table():
    return np.random.default_rng(0).normal(size=(N, 5)).astype("float32"), np.arange(N, dtype="int32")


def readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("lipdp reader")]


def batches_of(x, y, size=None, **options):
    size = size or PaddedSize(80, None, True)
    return Batches(PoissonSampler(N, 0.2, seed=1), x, y, size, start=0, **options)


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("microbatch", [None, 24])
def test_batches_of_a_source_are_those_of_arrays(devices, microbatch, tmp_path):
    x, y = table()
    size = PaddedSize(80, microbatch, True, shards=devices)
    expected = iter(batches_of(x, y, size))
    sources = [as_rows(mapped(tmp_path, x), y, 2), as_rows(Rows(x, y), None, 2), as_rows(x, Rows(y), 2)]
    feeds = [batches_of(*source, size) for source in sources]
    # Each process reads the rows of its own devices.
    feeds += [batches_of(*as_rows(Rows(x, y), None, 2), size, held=(share,)) for share in range(devices)]
    iterators = [iter(feed) for feed in feeds]
    for _ in range(15):
        want = next(expected)
        found = [next(iterator) for iterator in iterators]
        for i, values in enumerate(want):
            for batch in found[:3]:
                np.testing.assert_array_equal(batch[i], values)
                assert batch[i].dtype == values.dtype
            np.testing.assert_array_equal(np.concatenate([batch[i] for batch in found[3:]]), values)
    for feed in feeds:
        feed.close()
    assert not readers()


def test_only_drawn_rows_are_read_and_two_updates_ahead():
    x, y = table()
    rows = Rows(x, y)
    data = as_rows(rows, None, 2)
    rows.seen.clear()
    batches, sampler = batches_of(*data), PoissonSampler(N, 0.2, seed=1)
    iterator = iter(batches)
    for update in range(4):
        next(iterator)
        deadline, drawn = time.monotonic() + 10, [set(sampler.draw(t).tolist()) for t in range(update + 3)]
        while len(rows.seen) < sum(map(len, drawn)) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert sorted(rows.seen) == sorted(i for each in drawn for i in each)
    batches.close()


def test_a_process_reads_the_rows_of_its_own_devices_only():
    x, y = table()
    rows = Rows(x, y)
    data = as_rows(rows, None, 2)
    rows.seen.clear()
    batches = batches_of(*data, PaddedSize(80, None, True, shards=4), held=(1, 2))
    next(iter(batches))
    batches.close()
    drawn = [PoissonSampler(N, 0.2, seed=1).draw(t) for t in range(3)]
    assert set(rows.seen) <= {i for each in drawn for share in (1, 2) for i in each[share::4].tolist()}


def test_a_row_that_is_not_finite_or_has_no_allowed_label_counts_as_zero_and_no_other_row_changes():
    x, y = table()
    bad = np.arange(N) % 7 == 2
    broken, labels = x.copy(), y.copy()
    broken[bad & (y % 2 == 0), 1] = np.nan
    labels[bad & (y % 2 == 1)] = -1

    def allowed(labels):
        if (labels < 0).any():
            raise ValueError("negative")

    whole = iter(batches_of(x, y))
    batches = batches_of(*as_rows(Rows(broken, labels), None, 2), allowed=allowed)
    iterator = iter(batches)
    for _ in range(10):
        (ex, ey, ew), (fx, fy, fw) = next(whole), next(iterator)
        dropped = bad[ey] & (ew > 0)
        np.testing.assert_array_equal(fw, np.where(dropped, 0.0, ew))
        np.testing.assert_array_equal(fx, np.where(dropped[:, None], 0.0, ex))
        np.testing.assert_array_equal(fy, np.where(dropped, 0, ey))
    batches.close()


@pytest.mark.parametrize("label", [2**32 + 1, -(2**31) - 1])
def test_a_label_that_int32_has_not_counts_as_zero_and_does_not_become_another_one(label):
    """Before, 2**32 + 1 was read as class 1."""
    x, y = table()
    other = y.astype("int64")
    other[5] = label
    data = as_rows(Rows(x, other), None, 2)
    reader, weight = Reader(data), np.ones(3, "float32")
    found, labels = reader.rows(data, np.array([4, 5, 6]), weight)
    reader.close()
    assert weight.tolist() == [1.0, 0.0, 1.0] and labels.tolist() == [y[4], 0, y[6]]
    assert not found[1].any() and found[0].any()
    with pytest.raises(ValueError, match="Integer labels must be within int32"):
        read(data, np.array([5]))


def test_numbers_beyond_float32_are_not_finite():
    x, y = table()
    x = x.astype("float64")
    x[3] = 1e300
    weight = np.array([1.0, 1.0, 1.0, 0.0, 0.0], "float32")
    data = as_rows(Rows(x, y), None, 2)
    reader = Reader(data)
    for _ in range(3):  # in memory that was used before
        full = [np.full((5, 5), np.nan, "float32"), np.full(5, 9, "int32")]
        del full
        found, labels = reader.rows(data, np.array([2, 3, 4]), weight)
        assert weight.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0] and labels.tolist() == [2, 0, 4, 0, 0]
        assert not found[[1, 3, 4]].any()
    reader.close()
    np.testing.assert_array_equal(found[0], x[2].astype("float32"))


@pytest.mark.parametrize("count", [1, 3, 16])
def test_as_many_threads_read_as_the_source_allows(count):
    x, y = table()
    running, most, lock = [0], [0], threading.Lock()

    class Slow(Rows):
        def __getitem__(self, index):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(0.002)
            with lock:
                running[0] -= 1
            return super().__getitem__(index)

    batches = batches_of(*as_rows(Source(Slow(x, y), readers=count), None, 2))
    next(iter(batches))
    batches.close()
    assert count / 2 < most[0] <= count


class Failing(Rows):
    gone, after = frozenset(), None

    def __getitem__(self, index):
        if index in self.gone or (self.after is not None and len(self.seen) >= self.after):
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def test_an_error_of_a_thread_comes_out_with_its_cause_when_its_update_is_due():
    x, y = table()
    rows = Failing(x, y)
    data = as_rows(rows, None, 2)
    # Threads read ahead, in any order: what fails are rows that the first two updates do not draw.
    first, second, third = (set(PoissonSampler(N, 0.2, seed=1).draw(t).tolist()) for t in range(3))
    rows.gone = frozenset(third - first - second)
    batches = batches_of(*data)
    iterator = iter(batches)
    next(iterator)
    next(iterator)
    with pytest.raises(
        RuntimeError, match="source of the training data has failed.*OSError: the disk is gone"
    ) as error:
        next(iterator)
    assert isinstance(error.value.__cause__, OSError)
    batches.close()
    assert not readers()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row[:3], "one shape"),
        (lambda row: (row, row), "alike"),
        (lambda row: row.astype(str), "one type"),
    ],
)
def test_rows_that_change_while_a_model_trains_are_told(change, message):
    x, _ = table()

    class Changing(Rows):
        changed = False

        def __getitem__(self, index):
            row = super().__getitem__(index)
            return change(row) if self.changed and index == 17 else row

    rows = Changing(x)
    data = as_rows(rows, np.zeros(N, "int32"), 2)
    rows.changed = True
    batches = batches_of(*data)
    iterator = iter(batches)
    with pytest.raises((ValueError, RuntimeError), match=message):
        for _ in range(30):
            next(iterator)
    batches.close()


def test_a_source_that_grows_while_a_model_trains_is_told():
    x, y = table()
    rows = Rows(x, y)
    batches = batches_of(*as_rows(rows, None, 2))
    iterator = iter(batches)
    next(iterator)
    rows.arrays = (np.concatenate([x, x]), np.concatenate([y, y]))
    with pytest.raises(ValueError, match="length of a source must not change.*had 400 rows and has 800"):
        for _ in range(4):
            next(iterator)
    batches.close()


def test_closing_ends_the_threads_also_while_another_thread_waits_for_a_batch():
    x, y = table()
    go = threading.Event()

    class Held(Rows):
        held = False

        def __getitem__(self, index):
            if self.held:
                go.wait(10)
            return super().__getitem__(index)

    rows = Held(x, y)
    data = as_rows(rows, None, 2)
    rows.held = True
    batches = batches_of(*data)
    found = []
    waiting = threading.Thread(target=lambda: found.extend(iter(batches)))
    waiting.start()
    while len(readers()) < 16:
        time.sleep(0.01)
    threading.Timer(0.2, go.set).start()
    batches.close()
    waiting.join(10)
    assert not waiting.is_alive() and not readers() and len(found) <= 1


def test_closed_batches_hold_no_source():
    rows = Rows(*table())
    alive = weakref.ref(rows)
    batches = batches_of(*as_rows(rows, None, 2))
    iterator = iter(batches)
    next(iterator)
    batches.close()
    del rows
    gc.collect()
    assert alive() is None and next(iterator, None) is None


def test_buffers_of_a_source_are_used_again_once_free():
    x, y = table()
    batches = batches_of(*as_rows(Rows(x, y), None, 2))
    iterator, seen = iter(batches), set()
    for _ in range(20):
        bx, _, _ = next(iterator)
        seen.add(bx.ctypes.data)
        del bx, _
    batches.close()
    assert len(seen) <= 5
