"""Rows that stand several times, and rows that change places, inside of the functions of a pipeline."""

import itertools
import warnings

import numpy as np
import pytest

from lipdp.sampling.arrays import as_arrays
from lipdp.sampling.pipelines import elements_in_memory, refuse_repeated, refuse_shuffled
from tests.helpers.pipelines import ROWS, X, Y, rows_of

pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.filterwarnings("ignore"),  # of AutoGraph, which reads no lambdas that share a line
]


def shards(tf, base, **options):
    return tf.data.Dataset.range(4).interleave(lambda i: base.shard(4, i), **options)


def moved(tf, base):
    """Pipelines that give rows other places each time, with what is said of them."""
    four, shuffled = tf.data.Dataset.range(4), base.shuffle(ROWS)

    @tf.function
    def called(i):
        return base.shard(4, i).shuffle(ROWS)

    def deeper(x, y):
        return rows_of(tf, x, y).shuffle(4)

    def pair(x, y):
        return x, y

    def first(x, y):
        return tf.constant(0, tf.int64)

    option = tf.data.Options()
    option.deterministic = False
    inside = r"`\.shuffle\(\)` inside of a function"
    return {
        "interleave": (four.interleave(lambda i: base.shard(4, i).shuffle(ROWS)), inside),
        "flat_map": (base.batch(4).flat_map(lambda x, y: rows_of(tf, x, y).shuffle(4)), inside),
        "a function in a function": (
            base.batch(8).flat_map(lambda x, y: rows_of(tf, x, y).batch(4).flat_map(deeper)),
            inside,
        ),
        "a tf.function": (four.interleave(called), inside),
        "what it uses": (four.interleave(lambda i: shuffled.shard(4, i)), inside),
        "group_by_window": (
            base.group_by_window(first, lambda key, w: w.shuffle(8).batch(8), window_size=8),
            inside,
        ),
        "a map of batches": (base.batch(8).map(lambda x, y: (tf.random.shuffle(x), y)), inside),
        "a map": (base.map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=False), "`deterministic=False`"),
        "parallel shards": (shards(tf, base, num_parallel_calls=2, deterministic=False), "`deterministic=False`"),
        "an option": (base.map(pair, num_parallel_calls=2).with_options(option), "`deterministic=False`"),
        "a choice": (tf.data.Dataset.sample_from_datasets([base.take(8), base.skip(8)]), "sample_from_datasets"),
        "chance": (base.filter(lambda x, y: tf.random.uniform([]) < 0.5), r"`\.filter\(\)` that draws random numbers"),
        "a variant": (
            tf.data.experimental.from_variant(tf.data.experimental.to_variant(shuffled), base.element_spec),
            inside,
        ),
    }  # fmt: skip


def in_place(tf, base):
    """Pipelines that give the same order each time."""

    def rows():
        yield from zip(X, Y, strict=True)

    spec = (tf.TensorSpec((2,)), tf.TensorSpec((), tf.int32))
    once = tf.data.Dataset.zip((base, tf.data.Dataset.random(1).take(ROWS)))
    return {
        "shards": shards(tf, base),
        "parallel shards": shards(tf, base, num_parallel_calls=2),
        "batches": base.batch(4).flat_map(lambda x, y: rows_of(tf, x, y)),
        "windows": base.window(4).flat_map(lambda x, y: tf.data.Dataset.zip((x, y))),
        "groups": base.group_by_window(lambda x, y: tf.constant(0, tf.int64), lambda key, w: w.batch(8), window_size=8),
        "augmentation": base.map(lambda x, y: (x + tf.random.normal([2]), y), num_parallel_calls=2),
        "numbers beside": once.map(lambda row, number: row),
        "a generator": tf.data.Dataset.from_generator(rows, output_signature=spec),
        "parts in turn": tf.data.Dataset.choose_from_datasets(
            [base.take(8), base.skip(8)], tf.data.Dataset.range(2).repeat(8)
        ),
        "one element": tf.data.Dataset.from_tensors(0).flat_map(lambda _: base),
    }


def test_rows_that_change_places_inside_of_a_function_are_refused(tf, base):
    """Before, ids and weights went to other rows, in silence."""
    for dataset, reason in moved(tf, base).values():
        for data in (dataset, dataset.batch(4).prefetch(1)):
            with pytest.raises(ValueError, match=reason + ".*into arrays once"):
                refuse_shuffled(data)


def test_rows_in_a_fixed_order_are_taken(tf, base):
    for dataset in in_place(tf, base).values():
        refuse_shuffled(dataset)
        refuse_shuffled(dataset.batch(4))


def test_rows_that_a_function_repeats_are_refused(tf, base):
    single = base.take(8).batch(1)
    twice = base.take(8).repeat(2)
    for dataset, reason in {
        "flat_map": (single.flat_map(lambda x, y: rows_of(tf, x, y).repeat(2)), r"`\.repeat\(\)` inside of a function"),
        "what it uses": (shards(tf, twice), r"`\.repeat\(\)` inside of a function"),
        "all for each": (tf.data.Dataset.range(4).flat_map(lambda i: base), r"`\.flat_map\(\)` that reads the whole"),
    }.values():
        whole = dataset.apply(tf.data.experimental.assert_cardinality(ROWS))
        with pytest.raises(ValueError, match=f"several times.*{reason}"):
            as_arrays(whole.batch(4), None, 2)
    for name, dataset in in_place(tf, base).items():
        if name != "parts in turn":  # refused before, too
            refuse_repeated(dataset.batch(4))


def test_rows_that_have_a_part_in_others_are_refused(tf, base):
    def mixed(one, other):
        return (one[0] + other[0]) / 2.0, one[1]

    def carried(state, row):
        return state + row[0], (state, row[1])

    beside, zipped = base.map(lambda x, y: (x, y)), tf.data.Dataset.zip
    for other in (base.skip(1), base.shuffle(ROWS), base.filter(lambda x, y: y > 2), beside.skip(1).cache()):
        for pair in ((base, other), (other, beside.prefetch(1)), (base.take(8), {"a": other})):
            with pytest.raises(ValueError, match=r"part in several rows.*`\.zip\(\)`.*disjoint pairs"):
                refuse_repeated(zipped(pair).take(9).batch(4))
    with pytest.raises(ValueError, match="part in several rows"):
        as_arrays(zipped((base, base.skip(1))).map(mixed).batch(4), None, 2)
    with pytest.raises(ValueError, match=r"several times.*`\.scan\(\)`"):
        refuse_repeated(base.scan(tf.zeros(2), carried).batch(4))
    # A row beside itself, or beside other data.
    for pair in ((base.map(lambda x, y: x), base.cache().map(lambda x, y: y)), (base, rows_of(tf, X + 1, Y).skip(1))):
        refuse_repeated(zipped(pair).batch(4))
    refuse_repeated(base.enumerate().map(lambda i, row: row))


def test_data_sets_of_the_same_arrays_are_one(tf, base):
    """As keras.io makes them for mixup: each row had a part in two, and epsilon was that of one."""
    again, other, zipped = rows_of(tf, X.copy(), Y.copy()), rows_of(tf, X + 1.0, Y), tf.data.Dataset.zip
    words = np.array([f"row {i}" for i in range(ROWS)])
    for pair in ((base.shuffle(ROWS).batch(4), again.shuffle(ROWS).batch(4)), (base, again.skip(1).cache())):
        with pytest.raises(ValueError, match=r"part in several rows.*`\.zip\(\)`.*disjoint pairs"):
            refuse_repeated(zipped(pair))
    missing = np.where(X > 3.0, X, np.nan)
    for array in (words, missing):
        with pytest.raises(ValueError, match="part in several rows"):
            refuse_repeated(zipped((rows_of(tf, array), rows_of(tf, array.copy()).shuffle(ROWS))))
    choice = tf.data.Dataset.range(2 * ROWS).map(lambda i: i % 2)
    for both in (base.concatenate(again), tf.data.Dataset.choose_from_datasets([again, base], choice)):
        with pytest.raises(ValueError, match="several times"):
            refuse_repeated(both.batch(4))
    # A row beside itself, and data of which only the labels are the same.
    refuse_repeated(zipped((base, again)).batch(4))
    for one in (base, base.shuffle(ROWS)):
        refuse_repeated(zipped((one, other)).batch(4))
        refuse_repeated(one.concatenate(other).batch(4))


def test_more_rows_than_elements_are_told_of(tf, base):
    def flipped(x, y):
        return tf.stack([x, -x]), tf.stack([y, y])

    many = {
        "unbatch": base.map(flipped).unbatch(),
        "flat_map": base.flat_map(lambda x, y: rows_of(tf, *flipped(x, y))),
        "beside": tf.data.Dataset.zip((rows_of(tf, X), rows_of(tf, Y))).map(lambda x, y: flipped(x[0], y[0])).unbatch(),
        "a batch": base.batch(4).map(lambda x, y: (tf.concat([x, -x], 0), tf.concat([y, y], 0))),
    }
    for name, dataset in many.items():
        with pytest.warns(UserWarning, match="makes 32 rows of 16 elements.*person_ids") as found:
            as_arrays(
                dataset.apply(tf.data.experimental.assert_cardinality(2 * ROWS if name != "a batch" else 4)), None, 2
            )
        assert [one.filename for one in found if "elements" in str(one.message)] == [__file__]
    images = tf.data.Dataset.from_tensor_slices((X.reshape(4, 4, 2), Y.reshape(4, 4)))
    files = tf.data.Dataset.from_tensor_slices(["a", "b"]).flat_map(lambda name: base.take(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for dataset in (base, base.batch(3), base.map(lambda x, y: (-x, y)).batch(3), images, images.unbatch()):
            as_arrays(dataset, None, 2)
        refuse_repeated(files.take(3))
        assert elements_in_memory(files) is None and elements_in_memory(base.map(lambda x, y: (-x, y))) == ROWS


def test_windows_that_overlap_are_refused(tf, base):
    def cut(*arguments):
        windows = base.window(*arguments).flat_map(lambda x, y: tf.data.Dataset.zip((x, y)))
        return windows.apply(tf.data.experimental.assert_cardinality(ROWS)).batch(4)

    for size, shift, stride in itertools.product(range(1, 5), range(1, 5), range(1, 4)):
        starts = np.arange(0, 100, shift)[:, None] + stride * np.arange(size)
        if len(np.unique(starts)) == starts.size:
            refuse_repeated(cut(size, shift, stride))
        else:
            with pytest.raises(ValueError, match=r"several times.*`\.window\(\)` whose windows overlap"):
                refuse_repeated(cut(size, shift, stride))
    refuse_repeated(cut(4))


def test_what_cannot_be_looked_into_is_refused(tf, base, monkeypatch):
    """In its debug mode functions are Python."""
    debug_mode = pytest.importorskip("tensorflow.python.data.ops.debug_mode")
    monkeypatch.setattr(debug_mode, "DEBUG_MODE", True)
    dataset = shards(tf, base)
    for refuse in (refuse_shuffled, refuse_repeated):
        with pytest.raises(ValueError, match="cannot be looked into.*debug mode"):
            refuse(dataset)
