"""Padded batches hold exactly what was drawn, also while earlier ones are still in use."""

import gc
import weakref

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipdp.sampling import Batches, PaddedSize, PoissonSampler


@given(
    expected=st.integers(1, 5000),
    drawn=st.integers(0, 6000),
    chunk=st.one_of(st.none(), st.integers(1, 512)),
    static=st.booleans(),
)
@settings(deadline=None)
def test_every_draw_fits(expected, drawn, chunk, static):
    rows = PaddedSize(expected, chunk, static).rows(drawn)
    assert rows >= max(drawn, 1)
    small = 8 if static or not chunk else min(8, max(1, expected // 32))
    assert rows % (chunk if chunk and static else small) == 0


def test_small_batches_in_microbatches_are_padded_by_a_small_part_only():
    assert [PaddedSize(16, 4, static=False).rows(k) for k in (0, 13, 21)] == [1, 13, 21]
    assert [PaddedSize(128, 16, static=False).rows(k) for k in (117, 128, 129)] == [120, 128, 132]
    assert [PaddedSize(128, 16, static=False, full=True).rows(k) for k in (0, 117, 128, 129)] == [16, 128, 128, 144]
    assert {PaddedSize(16, None, static=True).rows(k) for k in range(41)} == {24, 32, 40}


def test_static_layout_has_few_shapes_and_little_padding():
    layout = PaddedSize(4096, None, static=True)
    assert {layout.rows(k) for k in range(0, 4096 + 384)} == {4160, 4256, 4480}
    assert layout.rows(4490) == 4496
    draws = np.random.default_rng(0).binomial(60000, 256 / 60000, 2000)
    assert np.mean([PaddedSize(256, None, static=True).rows(k) for k in draws]) < 1.09 * 256


def test_chunks_have_one_shape():
    # A loop over chunks skips the empty ones, so one shape, and one compilation, is enough.
    layout = PaddedSize(256, 64, static=True)
    assert {layout.rows(k) for k in range(0, 352)} == {384}


def test_a_draw_above_the_largest_shape_loses_no_row():
    class All:
        def draw(self, update):
            return np.arange(100)

    x, y = np.ones((100, 2), "float32"), np.arange(100, dtype="int32")
    _, labels, weight = next(iter(Batches(All(), x, y, PaddedSize(4, None, static=True), start=0)))
    assert len(weight) == 104
    np.testing.assert_array_equal(labels[weight > 0], y)


def test_batches_hold_the_drawn_rows():
    x, y = np.arange(300, dtype="float32").reshape(100, 3), np.arange(100, dtype="int32")
    sampler = PoissonSampler(100, 0.3, seed=0)
    batches = iter(Batches(sampler, x, y, PaddedSize(30, None, False), start=5))
    for t in range(5, 30):
        bx, by, w = next(batches)
        drawn = sampler.draw(t)
        k = len(drawn)
        np.testing.assert_array_equal(by[:k], drawn)
        np.testing.assert_array_equal(bx[:k], x[drawn])
        np.testing.assert_array_equal(w, np.arange(len(w)) < k)
        assert not bx[k:].any() and not by[k:].any()


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize("microbatch", [None, 24])
def test_devices_share_the_rows_and_each_row_lies_on_one(devices, microbatch):
    x = np.random.default_rng(0).normal(size=(400, 5)).astype("float32")
    y = np.arange(400, dtype="int32")
    size = PaddedSize(80, microbatch, True, shards=devices)
    sampler = PoissonSampler(400, 0.2, seed=1)
    whole = iter(Batches(sampler, x, y, size, start=0))
    feeds = [iter(Batches(sampler, x, y, size, start=0, held=(share,))) for share in range(devices)]
    for t in range(20):
        drawn, (bx, by, w) = sampler.draw(t), next(whole)
        assert len(w) % devices == 0 and (microbatch is None or len(w) % microbatch == 0)
        assert sorted(by[w == 1.0]) == sorted(drawn)
        np.testing.assert_array_equal(bx[w == 1.0], x[by[w == 1.0]])
        assert not bx[w == 0.0].any() and not by[w == 0.0].any()
        # Each process feeds its own devices, with what they have when one process feeds all.
        parts = [next(feed) for feed in feeds]
        for i, values in enumerate((bx, by, w)):
            np.testing.assert_array_equal(np.concatenate([part[i] for part in parts]), values)
        counts = [int(part[2].sum()) for part in parts]
        assert max(counts) - min(counts) <= 1
        # Microbatches take the next rows of each device: after the last drawn row nothing but padding is left.
        if microbatch:
            each = microbatch // devices
            assert max(-(-count // each) for count in counts) == -(-len(drawn) // microbatch)


def test_buffers_in_use_are_never_overwritten():
    """Keras' own iterators keep several batches in flight, and frameworks may alias numpy memory."""
    x = np.random.default_rng(0).normal(size=(400, 50)).astype("float32")
    y = np.arange(400, dtype="int32")
    sampler = PoissonSampler(400, 0.2, seed=1)
    batches = iter(Batches(sampler, x, y, PaddedSize(80, None, True), start=0))
    held = [keras.tree.map_structure(keras.ops.convert_to_tensor, next(batches)) for _ in range(20)]
    for t, (bx, by, _) in enumerate(held):
        drawn = sampler.draw(t)
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(by)[: len(drawn)], drawn)
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(bx)[: len(drawn)], x[drawn])


@pytest.mark.parametrize(("count", "expected", "static"), [(400, 80, True), (4000, 800, False)])
def test_buffers_are_reused_once_free(count, expected, static):
    """Batches of few sizes, or of many: the buffers stay few, and begin where no framework has to copy them."""
    x, y = np.zeros((count, 5), "float32"), np.zeros(count, "int32")
    batches = iter(Batches(PoissonSampler(count, 0.2, seed=1), x, y, PaddedSize(expected, None, static), start=0))
    seen = set()
    for _ in range(20):
        bx, _, _ = next(batches)
        seen.add(bx.ctypes.data)
        assert bx.ctypes.data % 64 == 0
        del bx, _
    assert len(seen) <= 3


def test_closed_batches_hold_no_data():
    x, y = np.zeros((100, 5), "float32"), np.zeros(100, "int32")
    alive = weakref.ref(x)
    source = Batches(PoissonSampler(100, 0.2, seed=1), x, y, PaddedSize(20, None, False), start=0)
    iterator = iter(source)
    next(iterator)
    source.close()
    del x
    gc.collect()
    assert alive() is None
    assert next(iterator, None) is None


def test_batches_survive_the_tensorflow_pipeline():
    import tensorflow as tf

    x, y = np.random.default_rng(0).normal(size=(300, 20)).astype("float32"), np.arange(300, dtype="int32")
    sampler = PoissonSampler(300, 0.3, seed=1)
    batches = iter(Batches(sampler, x, y, PaddedSize(90, None, False), start=0))
    signature = (
        tf.TensorSpec((None, 20), tf.float32),
        tf.TensorSpec((None,), tf.int32),
        tf.TensorSpec((None,), tf.float32),
    )
    data = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature).prefetch(8)
    for t, (bx, by, _) in enumerate(data.take(40)):
        drawn = sampler.draw(t)
        np.testing.assert_array_equal(by[: len(drawn)], drawn)
        np.testing.assert_array_equal(bx[: len(drawn)], x[drawn])
