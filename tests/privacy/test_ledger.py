"""Ledger: merging, append-only, exact round trip, refusals."""

import dataclasses
import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipdp import accounting
from lipdp.accounting import Sampling
from lipdp.privacy.ledger import Ledger, Release

UPDATE = Release(
    sampling=Sampling().bind(60000, 256),
    noise_multiplier=1.1,
    sensitivity=math.pi / 256,
    strategy="clipless",
    noise_allocation="global",
)
OTHER = dataclasses.replace(UPDATE, noise_multiplier=math.nextafter(1.3, 2.0))


def ledger_of(*pairs):
    ledger = Ledger()
    for release, updates in pairs:
        ledger.charge(release, updates)
    return ledger


def test_merges_only_with_the_last_entry():
    ledger = ledger_of((UPDATE, 1), (dataclasses.replace(UPDATE), 2), (OTHER, 3), (UPDATE, 4))
    assert [entry.count for entry in ledger.entries] == [3, 3, 4]
    assert ledger.updates == 10
    assert len(ledger) == 3
    # The same object again, as in each update of a run.
    assert [entry.count for entry in ledger_of((UPDATE, 2), (UPDATE, 3)).entries] == [5]


@pytest.mark.backend_free
def test_a_joined_ledger_holds_what_each_one_does():
    first, second = ledger_of((UPDATE, 2)), ledger_of((OTHER, 3))
    second.seeded = True
    for name in ("logged", "steered", "watched", "generators", "row_wise", "bounded", "adapted", "uncharged"):
        setattr(first, name, (f"{name} 1", "both"))
        setattr(second, name, ("both", f"{name} 2"))
    for ledgers in ((first, second), (second, first)):
        total = Ledger.joined(ledgers)
        assert (total.updates, total.seeded) == (5, True)
        for name in ("logged", "steered", "watched", "generators", "row_wise", "bounded", "adapted", "uncharged"):
            assert sorted(getattr(total, name)) == sorted(["both", f"{name} 1", f"{name} 2"])
    assert not Ledger.joined([first]).seeded


@pytest.mark.backend_free
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([UPDATE, OTHER]), st.integers(1, 3)), max_size=5), st.integers(0, 15))
def test_a_ledger_continues_exactly_its_beginnings(pairs, length):
    single = [release for release, count in pairs for _ in range(count)]
    whole, part = ledger_of(*pairs), ledger_of(*((release, 1) for release in single[:length]))
    assert whole.continues(part)
    assert part.continues(whole) == (length >= len(single))
    if part.releases:
        switched = {UPDATE: OTHER, OTHER: UPDATE}
        *start, last = single[:length]
        assert not whole.continues(ledger_of(*((release, 1) for release in [*start, switched[last]])))


def test_epsilon_comes_from_the_entries():
    ledger = Ledger()
    assert ledger.epsilon(1e-5) == 0.0
    ledger.charge(UPDATE, 2350)
    assert ledger.epsilon(1e-5) == pytest.approx(0.9202, rel=2e-4)
    assert ledger.epsilon(1e-5, "rdp") == pytest.approx(1.0997, rel=1e-4)
    ledger.charge(dataclasses.replace(UPDATE, sensitivity=1.0), 10)  # other words, same cost
    together = [UPDATE.mechanism(), accounting.Mechanism(256 / 60000, 1.1, 2360)]
    assert ledger.epsilon(1e-5) == accounting.compose(together, 1e-5)


def test_charging_is_quick():
    ledger = Ledger()
    start = time.perf_counter()
    for _ in range(10_000):
        ledger.charge(UPDATE)
    assert time.perf_counter() - start < 1.0  # about 0.03 s
    assert ledger.updates == 10_000


def test_entries_cannot_be_changed_from_outside():
    ledger = ledger_of((UPDATE, 2))
    assert isinstance(ledger.entries, tuple)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ledger.entries[0].count = 0
    for name in ("remove", "pop", "clear", "__delitem__", "__setitem__"):
        assert not hasattr(ledger, name)


@pytest.mark.parametrize("updates", [0, -1, 1.0, True])
def test_refuses_bad_counts(updates):
    ledger = Ledger()
    with pytest.raises(ValueError, match="`updates` must be"):
        ledger.charge(UPDATE, updates)
    assert len(ledger) == 0


@pytest.mark.parametrize("release", [None, dataclasses.replace(UPDATE, count=1)])
def test_refuses_what_is_not_a_description(release):
    with pytest.raises(ValueError, match="not a release to charge"):
        Ledger().charge(release)


def test_round_trip_is_exact():
    ledger = ledger_of((UPDATE, 3), (OTHER, 1), (UPDATE, 5))
    restored = Ledger.from_json(ledger.to_json())
    assert restored == ledger
    assert restored.to_json() == ledger.to_json()
    assert restored.entries[1].noise_multiplier.hex() == OTHER.noise_multiplier.hex()
    restored.charge(UPDATE)
    assert [entry.count for entry in restored.entries] == [3, 1, 6]
    assert restored != ledger
    assert Ledger.from_json(Ledger().to_json()) == Ledger()


def edited(**change):
    content = json.loads(ledger_of((UPDATE, 3)).to_json())
    content["entries"][0].update(change)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        (None, "not JSON"),
        ("{", "not JSON"),
        ("[]", "lacks \"format\""),
        ('{"format": "other"}', "lacks \"format\""),
        ('{"format": "lipdp.ledger", "version": 2, "entries": []}', "version is 2.*reads 1"),
        ('{"format": "lipdp.ledger", "version": 1}', "exactly format, version and a list"),
        ('{"format": "lipdp.ledger", "version": 1, "entries": {}}', "exactly format, version and a list"),
        ('{"format": "lipdp.ledger", "version": 1, "entries": [{}]}', "exactly the fields"),
        (edited(count=0), "out of range: `count` must be a positive integer"),
        (edited(count=-3), "out of range: `count` must be a positive integer"),
        (edited(count=1.5), "out of range: `count` must be a positive integer"),
        (edited(noise_multiplier=float("nan")), "out of range: `noise_multiplier` must be a finite"),
        (edited(sampling_probability=0), "out of range: `sampling_probability`"),
        (edited(kind="magic"), "out of range: `kind` must be one of"),
        (edited(extra=1), "exactly the fields"),
        (edited().replace('"count"', '"count": 1, "count"'), "holds 'count' twice"),
        (edited(neighbouring_relation="add_or_remove_one"), "relation twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_refuses_foreign_text(text, message):
    with pytest.raises(ValueError, match=message):
        Ledger.from_json(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sensitivity": 0.0}, "`sensitivity` must be a finite number above 0"),
        ({"strategy": ""}, "`strategy` must be a non-empty string"),
        ({"noise_allocation": 3}, "`noise_allocation` must be a non-empty string"),
        ({"sampling": Sampling()}, "`sampling` must be a bound Sampling"),
        ({"sampling": Sampling(sampling_probability=0.1)}, "`sampling` must be a bound Sampling"),
        ({"sampling": "poisson"}, "`sampling` must be a bound Sampling"),
    ],
)
def test_release_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(UPDATE, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 60001}, "larger than the data"),
        ({"neighboring_relation": "swap"}, "`relation` must be one of"),
        ({"sampler": "shuffle"}, "no known cost under this relation"),
        ({"sampling_probability": 0.001}, "must be batch_size / num_examples"),
        (
            {"sampler": "fixed_size", "neighboring_relation": None, "sampling_probability": 0.1},
            "must be batch_size / num_examples",
        ),
    ],
)
def test_refuses_entries_without_a_sound_cost(change, message):
    with pytest.raises(ValueError, match=f"out of range: .*{message}"):
        Ledger.from_json(edited(**change))


SHUFFLED = dataclasses.replace(UPDATE, sampling=Sampling("shuffle").bind(1000, 100))


def epochs(*pairs):
    return sum(mechanism.count for mechanism in ledger_of(*pairs).mechanisms())


def test_epochs_are_charged_when_they_begin():
    assert epochs((SHUFFLED, 1)) == epochs((SHUFFLED, 10)) == 1
    assert epochs((SHUFFLED, 11)) == 2
    # Going on in the same stream needs no new epoch; a new stream does, wherever the old one stopped.
    later = dataclasses.replace(SHUFFLED, stream=11)
    assert epochs((SHUFFLED, 5), (UPDATE, 1), (SHUFFLED, 5)) == 1 + 1
    assert epochs((SHUFFLED, 5), (later, 5)) == 2
    assert ledger_of((SHUFFLED, 5), (UPDATE, 1), (SHUFFLED, 2), (later, 3)).position(SHUFFLED) == 7
    # A part with other noise may begin and end within an epoch.
    louder = dataclasses.replace(SHUFFLED, noise_multiplier=2.0)
    assert epochs((SHUFFLED, 5), (louder, 10)) == 2 + 2
    assert epochs((SHUFFLED, 1), (louder, 1)) == 2


def test_groups_and_samplers_mix_only_where_that_is_sound():
    ledger = ledger_of((UPDATE, 100), (SHUFFLED, 10))
    assert ledger.epsilon(1e-5, group_size=4) > ledger.epsilon(1e-5) > ledger_of((SHUFFLED, 10)).epsilon(1e-5)
    ledger.charge(dataclasses.replace(UPDATE, sampling=Sampling("fixed_size").bind(60000, 256)), 5)
    assert ledger.epsilon(1e-5) > 0.0
    with pytest.raises(ValueError, match="no neighboring relation in common"):
        ledger.epsilon(1e-5, group_size=4)


def test_reads_the_ledgers_of_earlier_versions():
    content = json.loads(ledger_of((UPDATE, 3)).to_json())
    entry = content["entries"][0]
    for name in ("capacity", "stream"):
        del entry[name]
    entry["neighbouring_relation"] = entry.pop("neighboring_relation")
    assert Ledger.from_json(json.dumps(content)) == ledger_of((UPDATE, 3))


def test_sums_that_later_noise_follows_from_make_a_ledger_adaptive():
    total = dataclasses.replace(
        UPDATE,
        kind="norm_sum",
        sampling=dataclasses.replace(UPDATE.sampling, sampling_probability=1.0),
        noise_multiplier=1200.0,
    )
    ledger = ledger_of((UPDATE, 5))
    assert not ledger.adaptive and ledger.releases == 5
    ledger.charge(total, 2)
    assert ledger.adaptive and (ledger.updates, ledger.releases) == (5, 7)
    for accountant in ("pld", "rdp"):
        with pytest.raises(ValueError, match="follow.* from earlier releases"):
            ledger.epsilon(1e-5, accountant)
    assert ledger.epsilon(1e-5, "rdp_order:8.0") == accounting.compose(ledger.mechanisms(), 1e-5, "rdp_order:8.0")
    assert len(ledger.mechanisms()) == 2
    assert ledger.epsilon(1e-5, "rdp_order:8.0") > ledger_of((UPDATE, 5)).epsilon(1e-5, "rdp_order:8.0")
    with pytest.raises(ValueError, match="follow.* from earlier releases"):
        ledger.epsilon(1e-5, "filter:8.0:4.0:1e-05")
    with pytest.raises(ValueError, match="groups"):
        ledger.epsilon(1e-5, "rdp_order:8.0", group_size=2)
    assert Ledger.from_json(ledger.to_json()) == ledger
    with pytest.raises(ValueError, match="kind"):
        dataclasses.replace(UPDATE, kind="norms")
