"""The secret of a run, and the keys that come from it."""

import tracemalloc

import numpy as np
import pytest

from lipdp.sampling import EpochSampler, PoissonSampler, Sampling, make_sampler, randomness
from lipdp.sampling.arrays import SMALL

pytestmark = pytest.mark.backend_free


def test_every_use_has_a_key_of_its_own():
    secret = bytes(range(32))
    found = {
        randomness.derive(secret, "noise"),
        randomness.derive(secret, "batch"),
        randomness.derive(secret, "batch", 1),
        randomness.derive(secret, "batch", 11),
        randomness.derive(secret, "batch", 1, 1),
        randomness.derive(secret, "bat", "ch"),
        randomness.derive(secret, "batch1"),
        randomness.derive(bytes(32), "noise"),
        randomness.derive(bytes(31), "noise"),
        randomness.from_seed(0),
        randomness.from_seed(0, b"data"),
        randomness.from_seed(0, b"da", b"ta"),
        randomness.from_seed(1),
    }
    assert len(found) == 13 and {len(key) for key in found} == {32}
    assert randomness.derive(secret, "batch", 1) == randomness.derive(secret, "batch", 1)


def test_without_a_seed_the_operating_system_is_asked():
    assert len({randomness.from_seed(None), randomness.from_seed(None), randomness.fresh()}) == 3
    # Of 2000 secrets with 32 bits of entropy one pair would be alike in 2000 runs, with 16 bits always some.
    assert len({randomness.fresh() for _ in range(2000)}) == 2000


def test_generators_are_independent_and_uniform():
    secret = bytes(32)
    draws = np.array([randomness.generator(secret, label, i).normal(size=4000) for label in "ab" for i in range(5)])
    assert np.abs(np.corrcoef(draws) - np.eye(10)).max() < 5 / 4000**0.5
    first = [randomness.generator(secret, "first", i).random() for i in range(4000)]
    assert abs(np.mean(first) - 0.5) < 4 * (1 / 12 / 4000) ** 0.5


def test_the_key_of_the_noise_is_not_that_of_the_batches():
    """Whatever seed a sampler has: none of its words is one of the noise of the same secret."""
    seed, noise = 7, randomness.words(randomness.from_seed(7), "noise")
    first, second = make_sampler(Sampling("shuffle").bind(10, 2), seed).key
    state = PoissonSampler(10, 0.5, seed=seed)
    seen = {first % 2**32, first >> 32, second % 2**32, second >> 32}
    seen |= {int(w) for w in np.frombuffer(state._secret, "<u4")}
    assert not seen & {int(w) for w in noise}
    assert EpochSampler(10, 2, (first, second)).draw(0).shape == (2,)


def test_the_digest_sees_every_byte_shape_type_and_place():
    x = np.arange(12, dtype="float32").reshape(3, 4)
    y = np.array([0, 1, 2], "int32")
    changed = x.copy()
    changed[2, 3] = np.nextafter(changed[2, 3], np.float32(0))
    variants = [
        (x, y),
        (changed, y),
        (x.reshape(4, 3), y),
        (x.astype("float64"), y),
        (x, y.view("float32")),
        (y, x),
        ((x, x), y),
        (x[:2], y[:2]),
        (x[[1, 0, 2]], y),
    ]
    assert len({randomness.digest(data) for data in variants}) == len(variants)
    assert randomness.digest((x, y)) == randomness.digest((np.asfortranarray(x), y.copy()))


def test_the_digest_copies_a_part_of_the_rows_at_a_time():
    rows = np.zeros((40_000, 100), "float32")
    given = [rows[::2], np.asfortranarray(rows)[::2], *(rows[::2].astype(kind) for kind in SMALL)]
    tracemalloc.start()
    try:
        assert len({randomness.digest(part) for part in given}) == 1
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes / 8
    finally:
        tracemalloc.stop()
