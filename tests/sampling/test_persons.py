"""Persons: who owns which rows, and which of them are in an update."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lipdp.sampling import Batches, Chooser, PaddedSize, Persons
from lipdp.sampling.persons import checked_ids, digest, split

pytestmark = pytest.mark.backend_free


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    most=st.integers(1, 50),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_nobody_brings_more_than_k_rows_and_all_of_them_are_their_own(sizes, most, seed):
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))
    persons = Persons(ids, most)
    assert persons.count == len(sizes) and persons.width == min(most, max(sizes))
    drawn = rng.integers(0, len(sizes), 30)
    index, shares = persons.rows(drawn, rng)
    assert index.shape == shares.shape == (30, persons.width) and shares.dtype == np.float32
    for person, rows, counts in zip(drawn, index, shares, strict=True):
        used = rows[counts > 0]
        assert len(used) == len(set(used)) == min(most, sizes[person])
        assert (ids[used] == 7 * person).all()
        assert len(set(counts[counts > 0])) == 1
        total = float(np.sum(counts.astype("float64")))
        assert 1.0 - 1e-6 < total <= 1.0  # never above: a person would count for more than one
    mean, deviation = persons.expected_rows(0.25)
    brought = np.minimum(sizes, most)
    assert mean == pytest.approx(0.25 * brought.sum()) and deviation == pytest.approx(0.5 * np.sqrt((brought**2).sum()))


@pytest.mark.parametrize("most", [1, 3, 7, 40])  # the last is drawn one person at a time
def test_each_row_of_a_person_is_chosen_with_the_same_chance_afresh_each_time(most):
    persons = Persons(np.repeat([0, 1], [50, 2]), most)
    choose = Chooser(persons, b"0" * 32, together=True)
    counts, pairs = np.zeros(52), 0
    draws = 4000
    for update in range(draws):
        index, shares = choose(update, np.array([0]))
        chosen = index[shares > 0]
        counts[chosen] += 1
        pairs += {3, 11} <= set(chosen.tolist())
    assert counts[50:].sum() == 0
    assert stats.chisquare(counts[:50]).pvalue > 1e-4 or most == 50
    assert pairs / draws == pytest.approx(most * (most - 1) / (50 * 49), abs=0.02)
    again = choose(5, np.array([0]))[0]
    np.testing.assert_array_equal(again, choose(5, np.array([0]))[0])  # of one update: a resumed run goes on with it


def test_one_persons_rows_do_not_depend_on_who_else_is_there():
    """In distribution: the number of draws of a row of one person, beside others and alone."""
    beside, alone = np.zeros(4), np.zeros(4)
    many, one = Persons([0, 0, 0, 0, 1, 1, 1], 2), Persons([0, 0, 0, 0], 2)
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        beside[many.rows(np.array([1, 0]), rng)[0][1]] += 1
        alone[one.rows(np.array([0]), np.random.default_rng(seed))[0][0]] += 1
    assert stats.chi2_contingency([beside, alone]).pvalue > 1e-4


class All:
    def __init__(self, count):
        self.count = count

    def draw(self, update):
        return np.arange(self.count)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("shards", [1, 2])
def test_batches_hold_persons_whole(together, shards):
    ids = np.array([5, 5, 5, 9, 2, 2, 9, 5])
    persons = Persons(ids, 3)
    x = np.arange(1, 9, dtype="float32")[:, None]
    size = PaddedSize(persons.count, None, static=False, shards=shards)
    choose = Chooser(persons, b"1" * 32, together)
    batches = iter(Batches(All(persons.count), x, ids.astype("int32"), size, start=0, choose=choose))
    for _ in range(5):
        bx, by, weight = next(batches)
        assert (bx[weight == 0] == 0).all()
        assert len(bx) % (shards * (3 if together else 1)) == 0
        for person, rows in ((2, 2), (5, 3), (9, 2)):
            own = by == person
            assert own.sum() == rows == (weight[own] > 0).sum()
            assert weight[own].sum() == pytest.approx(1.0)
        if together:
            for group in by[:, None].reshape(-1, 3):
                assert len(set(group[group > 0])) <= 1


def test_ids_are_integers_or_texts():
    objects = np.array(["a", "b", "a"], dtype=object)
    assert Persons(objects, 2).count == 2
    assert digest(checked_ids([1, 2])) != digest(checked_ids(["1", "2"]))
    assert digest(checked_ids([1, 2])) == digest(checked_ids(np.array([1, 2], "uint8")))
    assert digest(checked_ids(["ab", "c"])) != digest(checked_ids(["a", "bc"]))
    for bad in ([0.5, 1.0], [[1], [2]], [None, "a"], np.array([1, "a"], dtype=object), [], 3):
        with pytest.raises(ValueError, match="person_ids"):
            checked_ids(bad)
    assert checked_ids([2**63, 1]).tolist() == [2**63, 1]
    with pytest.raises(ValueError, match="3 ids for 2 rows"):
        checked_ids([1, 2, 3], 2)
    with pytest.raises(ValueError, match="rows_per_person"):
        Persons([1], 0)


def test_whole_persons_are_held_out_whoever_else_is_there():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 200, 1000)
    x, y = rng.normal(size=(1000, 2)).astype("float32"), np.arange(1000)
    (kept, _), (held, held_y), left = split(x, y, ids, 0.3)
    assert len(kept) == len(left) and len(kept) + len(held) == 1000
    assert not set(left) & set(ids[held_y])
    assert 0.2 < len(held) / 1000 < 0.4
    some = ids != ids[held_y[0]]
    (fewer, _), _, remaining = split(x[some], y[some], ids[some], 0.3)
    assert set(remaining) == set(left) and len(fewer) == len(kept)


def test_two_persons_do_not_become_one():
    """What NumPy would make equal: missing ids among texts, masked ones, zeros at the end of a text, large numbers."""
    masked = np.ma.array([1, 2, 3], mask=[True, True, False])
    for bad in ([float("nan"), "a"], ["a", 1], ["a\0", "a"], [2**70, 1], [2**63, -1], [True, 1], masked):
        with pytest.raises(ValueError, match="person_ids"):
            checked_ids(bad)
    assert Persons(np.ma.array([1, 2, 3]), 1).count == 3


@pytest.mark.parametrize("unknown", ["nan", "None", "", " ", "<NA>", "NaT", "-1"])
def test_what_is_made_of_a_missing_id_is_nobody(unknown):
    """NumPy makes the text "nan" of a missing value among texts: all whom nobody knows would be one person."""
    assert np.array(["a", float("nan")]).tolist() == ["a", "nan"]
    for ids in (["a", unknown, unknown], np.array(["a", unknown, unknown]), np.array(["a", unknown, unknown], object)):
        with pytest.raises(
            ValueError, match="for 2 of 3 rows, first in row 2. Give each row whose person is not known"
        ):
            checked_ids(ids)
    assert Persons(["Nan", "none", "id nan", "nano"], 1).count == 4


@pytest.mark.parametrize("other", ["rene\u0301", "ren\u00e9 ", "ren\u00e9\r", "\u00a0ren\u00e9", "\uff52en\u00e9"])
def test_one_person_is_not_two_by_what_nobody_sees(other):
    """Accents are one character or two, and files pad texts: who is written in both ways would be protected by half."""
    for ids in (["ren\u00e9", "bob", other], np.array(["ren\u00e9", "bob", other], object)):
        with pytest.raises(ValueError, match="look alike.*first in rows 1 and 3.*in one way"):
            checked_ids(ids)
    assert Persons(["rene", other, other, "Rene", "bob"], 1).count == 4


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "object", "list"])
def test_codes_and_casts_of_a_missing_id_are_nobody(dtype):
    """`codes` of pandas are -1 where an id is missing, and casts of NaN the least integer: all would be one."""
    least = {"int8": -1, "int32": -(2**31)}.get(dtype, -(2**63))
    for unknown in {-1, least}:
        ids = [3, unknown, 4, unknown]
        with pytest.raises(ValueError, match=f"Received: {unknown}, which NumPy and pandas make.*for 2 of 4 rows"):
            checked_ids(ids if dtype == "list" else np.array(ids, dtype))
    assert Persons([-2, 0, 3], 1).count == 3
