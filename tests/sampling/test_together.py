"""Functions of a pipeline that see several rows: whether one of them decides about others."""

import keras
import numpy as np
import pytest

from lipdp.sampling.arrays import as_arrays
from lipdp.sampling.together import refuse_mixing
from tests.helpers.pipelines import ROWS, X, Y, rows_of

pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.filterwarnings("ignore"),  # of AutoGraph, which reads no lambdas that share a line
]


def counted(tf, dataset):
    return dataset.apply(tf.data.experimental.assert_cardinality(sum(1 for _ in dataset)))


@pytest.fixture(scope="module")
def images(tf):
    x = np.random.default_rng(0).integers(0, 255, (ROWS, 6, 6, 3)).astype("uint8")
    return tf.data.Dataset.from_tensor_slices((x, np.eye(3, dtype="float32")[Y % 3]))


def test_batches_whose_rows_see_each_other_are_refused(tf, images):
    """The map behind `.batch()` that MixUp is in most examples: each row would move two, or all of its batch."""
    floats = images.map(lambda x, y: (tf.cast(x, "float32"), y))

    def mixed(x, y):
        share, others = tf.random.uniform(()), tf.random.shuffle(tf.range(tf.shape(x)[0]))
        return share * x + (1 - share) * tf.gather(x, others), share * y + (1 - share) * tf.gather(y, others)

    def layer(x, y):
        both = mix_up({"images": x, "labels": y})
        return both["images"], both["labels"]

    mix_up = keras.layers.MixUp()
    mixing = {
        "mixup": floats.shuffle(4).batch(4).map(mixed),
        "layer": floats.batch(4, drop_remainder=True).prefetch(1).map(layer, num_parallel_calls=2).cache(),
        "mean": images.batch(4).map(lambda x, y: (tf.cast(x, "float32") - tf.reduce_mean(tf.cast(x, "float32"), 0), y)),
        "largest": floats.batch(4).map(lambda x, y: (x / tf.reduce_max(x), y)),
        "labels": floats.batch(4).map(lambda x, y: (x, y - tf.reduce_mean(y, axis=0))),
        "pairs": floats.batch(4).map(lambda x, y: (x + x[::-1], y)),
        "largest byte": images.batch(4).map(lambda x, y: (x / tf.reduce_max(x), y)),
        "smallest byte": images.batch(4).map(lambda x, y: (x - tf.reduce_min(x, axis=0), y)),
    }
    for name, dataset in mixing.items():
        with pytest.raises(ValueError, match=r"rows of a batch see each other"):
            as_arrays(dataset, None, 4)
            pytest.fail(name)
    with pytest.raises(ValueError, match=r"see each other"):
        refuse_mixing(
            images.batch(4).map(lambda x, y: {"x": x, "y": y}).map(lambda row: {"x": row["x"][::-1] + row["x"]})
        )


def test_batches_whose_rows_are_apart_are_taken(tf, images):
    flip, rotate = keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1)
    floats = images.map(lambda x, y: (tf.cast(x, "float32") / 255.0, y))

    def checked(x, y):
        tf.debugging.assert_all_finite(x, "")
        return x, y

    apart = {
        "scaled": images.batch(4).map(lambda x, y: (tf.cast(x, "float32") / 255.0, y)),
        "layers": floats.batch(4).map(lambda x, y: (rotate(flip(x)), y)),
        "each image": floats.batch(4).map(lambda x, y: (tf.image.per_image_standardization(x), tf.argmax(y, axis=-1))),
        "bytes": images.batch(4).map(lambda x, y: (tf.one_hot(x[..., 0], 2), y)),
        "classes": images.map(lambda x, y: (x, tf.argmax(y)))
        .batch(4)
        .map(lambda x, y: (x, tf.gather([0.0, 1.0, 2.0], y))),
        "moved": floats.batch(4).map(lambda x, y: (x[::-1], y[::-1])),
        "noise": floats.batch(4).map(lambda x, y: (x + tf.random.normal(tf.shape(x)), y)),
        "finite": floats.batch(4).map(checked),
        "row": floats.map(lambda x, y: (x - tf.reduce_mean(x, axis=0), y)).batch(4),
    }
    for name, dataset in apart.items():
        assert len(as_arrays(dataset, None, 4)[0]) == ROWS, name
    single = floats.batch(4).unbatch()
    refuse_mixing(single.map(lambda x, y: (x - tf.reduce_mean(x, axis=0), y)))


@pytest.fixture(scope="module")
def lists(tf):
    return tf.data.Dataset.from_tensor_slices((tf.ragged.constant([[1, 2], [3, 4, 5], [6], [7, 8]]), [0, 1, 0, 1]))


def test_rows_as_long_as_the_longest_are_refused(tf, lists):
    """One long row made all others longer, and moved the gradients of all."""
    words = keras.layers.TextVectorization(vocabulary=["a", "b", "c"])
    few = keras.layers.TextVectorization(vocabulary=["a", "b", "c"], output_sequence_length=3)
    texts = rows_of(tf, ["a b", "c", "a b c", "b"], [0, 1, 0, 1])
    single = texts.map(lambda text, y: (words(text), y))

    def length(tokens, y):
        return tf.shape(tokens)[0]

    known = tf.data.experimental.assert_cardinality(1)
    longest = {
        "padded": single.padded_batch(4),
        "buckets": single.bucket_by_sequence_length(length, [9], [4, 4]).apply(known),
        "inside": tf.data.Dataset.range(1).flat_map(lambda i: single.padded_batch(4)).apply(known),
        "ragged": lists.batch(4).map(lambda tokens, y: (tokens.to_tensor(), y)),
        "ragged batch": lists.ragged_batch(4).prefetch(1).map(lambda tokens, y: (tokens.to_tensor(), y)).cache(),
        "words": texts.batch(4).map(lambda text, y: (words(text), y)),
        "split": texts.batch(4).map(lambda text, y: (tf.strings.length(tf.strings.split(text).to_tensor()), y)),
    }
    for name, dataset in longest.items():
        with pytest.raises(ValueError, match="padded to the longest.*padded_shapes=.*output_sequence_length="):
            as_arrays(dataset, None, 2)
            pytest.fail(name)
    of_one_length = {
        "padded": single.padded_batch(4, padded_shapes=([3], [])),
        "ragged": lists.batch(4).map(lambda tokens, y: (tokens.to_tensor(shape=(None, 3)), y)),
        "words": texts.batch(4).map(lambda text, y: (few(text), y)),
        "each": texts.map(lambda text, y: (few(text), y)).batch(4),
        "images": rows_of(tf, np.zeros((4, 3), "float32"), np.zeros(4)).padded_batch(2),
    }
    for name, dataset in of_one_length.items():
        assert as_arrays(dataset, None, 2)[0].shape == (4, 3), name


def test_rows_behind_the_last_full_batch_are_not_left_out(tf, base):
    """With one row more in front another one would be left out: two rows change where one is charged."""
    unknown = base.filter(lambda x, y: y >= 0)
    for dataset in (
        base.batch(5, drop_remainder=True),
        base.batch(5, drop_remainder=True, num_parallel_calls=2).map(lambda x, y: (-x, y)),
        base.padded_batch(5, drop_remainder=True).cache(),
        base.apply(tf.data.experimental.map_and_batch(lambda x, y: (x, y), 5, drop_remainder=True)),
        unknown.batch(4, drop_remainder=True).apply(tf.data.experimental.assert_cardinality(4)),
    ):
        with pytest.raises(ValueError, match=r"drop_remainder=True.*Leave it out: `fit` draws batches"):
            as_arrays(dataset, None, 2)
    with pytest.raises(ValueError, match=r"whether all rows behind it are there.*`\.filter\(\)`"):
        as_arrays(base.take_while(lambda x, y: y < 9).apply(tf.data.experimental.assert_cardinality(9)), None, 2)
    for dataset in (base.batch(4, drop_remainder=True), base.batch(5)):
        assert len(as_arrays(dataset, None, 2)[0]) == ROWS


def test_functions_that_make_data_sets_of_batches_are_tried(tf, base):
    """One row moved all 8 of its batch, and all of the data where it was left out."""
    make, slices = tf.data.Dataset, tf.data.Dataset.from_tensor_slices

    def minus(x, y):
        return x - tf.reduce_mean(x, axis=0), y

    def parity(x, y):
        return tf.cast(y, tf.int64) % 2

    def length(x, y):
        return tf.cast(x[0], tf.int32)

    groups = {"key_func": parity, "window_size": 4}
    buckets = base.bucket_by_sequence_length(length, [9], [4, 4])
    window = base.window(4).flat_map(lambda x, y: make.zip((x, y)).batch(4))
    arrays = (X.reshape(4, 4, 2), Y.reshape(4, 4))
    mixing = {
        "flat_map": base.batch(4).flat_map(lambda x, y: slices(minus(x, y))),
        "batches": base.batch(4).flat_map(lambda x, y: make.from_tensors(minus(x, y))),
        "sums": base.batch(4).flat_map(lambda x, y: slices((tf.cumsum(x), y))),
        "interleave": base.batch(4).interleave(lambda x, y: slices(minus(x, y)), num_parallel_calls=1),
        "group": base.group_by_window(reduce_func=lambda key, rows: rows.batch(4).map(minus), **groups),
        "buckets": buckets.map(minus).unbatch(),
        "windows": window.map(minus).unbatch(),
        "arrays": slices(arrays).map(minus),
        "arrays in rows": slices(arrays).map(minus).unbatch(),
        "whole": make.from_tensors((X, Y)).map(minus).unbatch(),
    }
    for name, dataset in mixing.items():
        with pytest.raises(ValueError, match=r"rows of a batch see each other"):
            as_arrays(counted(tf, dataset), None, 2)
            pytest.fail(name)
    apart = {
        "flat_map": base.batch(4).flat_map(lambda x, y: slices((-x, y))),
        "batches": base.batch(4).flat_map(lambda x, y: make.from_tensors((-x, y))),
        "group": base.group_by_window(reduce_func=lambda key, rows: rows.batch(4).map(lambda x, y: (-x, y)), **groups),
        "buckets": buckets.map(lambda x, y: (-x, y)).unbatch(),
        "windows": window.map(lambda x, y: (-x, y)),
        "arrays": slices(arrays).map(lambda x, y: (-x, y)),
        "rows": base.map(lambda x, y: (x - tf.reduce_mean(x), y)).batch(4),
        "parts": slices(arrays).unbatch().map(lambda x, y: (x - tf.reduce_mean(x), y)),
    }
    for name, dataset in apart.items():
        assert len(as_arrays(counted(tf, dataset), None, 2)[0]) == ROWS, name
    # A window of a series is an example, which may be standardized by itself.
    assert len(as_arrays(counted(tf, window.map(minus)), None, 3)[0]) == ROWS // 4


def test_what_rows_leave_behind_for_others_is_refused(tf, base):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    total, count, flip = tf.Variable(tf.zeros(2)), tf.Variable(0), keras.layers.RandomFlip()

    def kept(x, y):
        key = tf.zeros((), tf.int64)
        with tf.control_dependencies([table.insert(key, x[0])]):
            return x + table.lookup(key), y

    def summed(x, y):
        return total.assign_add(x), y

    def first(x, y):
        return total.assign_add(x)[0] < 9.0

    def numbered(x, y):
        count.assign_add(1)
        return x, y

    for dataset in (base.map(kept), base.map(summed), base.filter(first)):
        with pytest.raises(ValueError, match=r"writes what rows hold into a variable or a table.*it alone"):
            refuse_mixing(dataset.batch(4))
    refuse_mixing(base.map(numbered).batch(4))
    refuse_mixing(rows_of(tf, np.zeros((4, 3, 3, 1), "float32")).map(lambda x: flip(x, training=True)))


def test_one_row_does_not_say_which_others_are_there(tf, base):
    """Weights of 9 to 1 left out 9 rows of one class for a row less of the other; behind a filter all rows moved."""
    make = tf.data.Dataset
    odd, even = (base.filter(lambda x, y, rest=rest: y % 2 == rest) for rest in (1, 0))
    refused = {
        r"behind `\.batch\(\)`": (
            base.batch(4).filter(lambda x, y: tf.reduce_max(x) < 9.0),
            base.batch(4).map(lambda x, y: (tf.debugging.check_numerics(x, ""), y)).ignore_errors(),
        ),
        "stop_on_empty_dataset=False": (
            make.sample_from_datasets([odd, even], [0.9, 0.1], seed=1, stop_on_empty_dataset=True),
            make.choose_from_datasets([odd, even], make.range(ROWS).map(lambda i: i % 2)),
        ),
        r"Put `\.shard\(\)` before": (odd.shard(2, 0), odd.map(lambda x, y: (x, y)).shard(2, 1).batch(2)),
        r"Put `\.take\(\)` before": (odd.batch(2).take(2),),
        r"Put `\.skip\(\)` before": (base.ignore_errors().skip(2),),
        r"Put `\.enumerate\(\)` before": (odd.enumerate().map(lambda i, row: row),),
        "drop_remainder=True": (
            base.bucket_by_sequence_length(lambda x, y: tf.cast(x[0], tf.int32), [9], [3, 3], drop_remainder=True),
        ),
    }
    for message, datasets in refused.items():
        for dataset in datasets:
            with pytest.raises(ValueError, match=message):
                as_arrays(counted(tf, dataset), None, 2)
    taken = (
        odd,
        base.take(9).filter(lambda x, y: y > 2).batch(4),
        base.shard(2, 0).ignore_errors(),
        base.enumerate().filter(lambda i, row: i % 4 > 0).map(lambda i, row: row),
        make.sample_from_datasets([odd, even], [0.5, 0.5], seed=1),
        make.choose_from_datasets([odd, even], make.range(ROWS).map(lambda i: i % 2), stop_on_empty_dataset=False),
    )
    for dataset in taken:
        assert len(as_arrays(counted(tf, dataset), None, 2)[0]) >= 6


def test_rows_of_a_batch_that_are_kept_by_place_are_refused(tf, base):
    """Of 64 rows `x[:4]` of eight kept half; without the first row 8 of these were gone, and 8 others there."""

    def positive(x, y, most=None):
        return tf.boolean_mask(x, x[:, 0] > 0)[:most], tf.boolean_mask(y, x[:, 0] > 0)[:most]

    def grouped(reduce):
        return base.group_by_window(lambda x, y: tf.cast(y, tf.int64) % 2, reduce, window_size=4)

    make, batches = tf.data.Dataset, base.map(lambda x, y: (x - 9.0, y)).batch(4)
    refused = {
        "slice": batches.map(lambda x, y: (x[:2], y[:2])),
        "mask and slice": batches.map(lambda x, y: positive(x, y, 2)),
        "every other": batches.map(lambda x, y: (x[::2], y[::2])).unbatch(),
        "large batches": base.batch(ROWS).map(lambda x, y: (x[:12], y[:12])),
        "rows": batches.flat_map(lambda x, y: make.from_tensor_slices(positive(x, y, 2))),
        "take": batches.flat_map(lambda x, y: make.from_tensor_slices((x, y)).take(2)),
        "parts": batches.interleave(lambda x, y: make.from_tensors((x[:2], y[:2]))).unbatch(),
        "all at once": make.from_tensors((X, Y)).flat_map(lambda x, y: make.from_tensor_slices((x[:9], y[:9]))),
        "groups": grouped(lambda key, window: window.take(1)),
        "batches of groups": grouped(lambda key, window: window.batch(4).map(lambda x, y: (x[:2], y[:2]))),
    }
    for name, dataset in refused.items():
        with pytest.raises(ValueError, match=r"keeps some of rows that are all alike.*filter.*part of the arrays"):
            refuse_mixing(counted(tf, dataset), 2)
            pytest.fail(name)
    steps = make.from_tensor_slices(X.ravel())
    taken = {
        "whole groups": grouped(lambda key, window: window.batch(4)),
        "rows of groups": grouped(lambda key, window: window.filter(lambda x, y: x[0] > 0)),
        "buckets": base.bucket_by_sequence_length(lambda x, y: 2, [9], [4, 4]),
        "mask": batches.map(positive),
        "mask of rows": batches.flat_map(lambda x, y: make.from_tensor_slices(positive(x, y))),
        "flips": batches.map(lambda x, y: (tf.concat([x, -x], axis=0), tf.concat([y, y], axis=0))),
        "steps of a series": steps.batch(8).map(lambda x: (x[:4], x[4])).batch(2),
        "pairs": base.batch(2).map(lambda x, y: (x[0] - x[1], y[0])).batch(2),
        "fixed size": base.batch(4, drop_remainder=True).map(lambda x, y: (tf.reshape(x, (4, 2)), y)),
    }
    for dataset in taken.values():
        refuse_mixing(counted(tf, dataset), 2)


def test_all_rows_in_one_element_are_a_batch(tf):
    make = tf.data.Dataset
    whole = make.from_tensors((X, Y))
    for dataset in (whole, whole.map(lambda x, y: (x / 9.0, y))):
        mixed = dataset.flat_map(lambda x, y: make.from_tensor_slices((x - tf.reduce_mean(x, axis=0), y)))
        with pytest.raises(ValueError, match=r"flat_map.*see each other"):
            refuse_mixing(mixed, 2)
        refuse_mixing(dataset.flat_map(lambda x, y: make.from_tensor_slices((2.0 * x, y))), 2)
