"""Plan: derived values, warnings, refusals, round trip."""

import dataclasses
import json

import pytest

from lipdp import accounting
from lipdp.privacy.plan import Plan

pytestmark = pytest.mark.backend_free

GOOD = dict(num_examples=60000, batch_size=256, updates=2350, noise_multiplier=1.1, delta=1e-5)


def test_derived_values():
    plan = Plan(**GOOD)
    assert plan.sampling_probability == 256 / 60000
    assert plan.mechanism() == accounting.Mechanism(256 / 60000, 1.1, 2350)
    assert plan.mechanism(7).count == 7
    assert plan.cost() == pytest.approx(0.9202, rel=2e-4)
    assert plan.cost(0) == 0.0


def test_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(**GOOD).delta = 0.1
    with pytest.raises(TypeError):
        Plan(60000, 256, 2350, 1.1, 1e-5)


def test_round_trip():
    plan = Plan(**GOOD, epsilon=1.0, accountant="rdp")
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    for bad in ({}, plan.to_dict() | {"extra": 1}, [1]):
        with pytest.raises(ValueError, match=r"not a plan.*Received.*num_examples"):
            Plan.from_dict(bad)


def test_calibrated():
    plan = Plan.calibrated(num_examples=6000, batch_size=256, updates=500, epsilon=2.0, delta=1e-6)
    assert 1.98 <= plan.cost() <= plan.epsilon == 2.0
    spent = [plan.mechanism(100)]
    second = Plan.calibrated(num_examples=6000, batch_size=256, updates=400, epsilon=2.0, delta=1e-6, spent=spent)
    assert 1.98 <= second.cost(spent=spent) <= 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"batch_size": 60001},
            r"larger than the data\. Received: batch_size=60001, num_examples=60000\. Pass",
        ),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"batch_size": 25.6}, "`batch_size` must be a positive integer"),
        ({"num_examples": 0}, "`num_examples` must be a positive integer"),
        ({"updates": 0}, "`updates` must be a positive integer"),
        ({"noise_multiplier": 0.0}, "`noise_multiplier` must be a finite number above 0"),
        ({"delta": 0.0}, "`delta` must be a number in"),
        ({"epsilon": -1.0}, "`epsilon` must be a finite number above 0"),
        ({"sampler": "cyclic"}, "`sampler` must be one of"),
        ({"sampler": "balls_in_bins"}, "no sound accountant"),
        ({"sampler": "truncated_poisson"}, "capacity is missing"),
        ({"neighbouring_relation": "swap"}, "`neighbouring_relation` must be one of"),
        ({"examples_per_person": 0}, "`examples_per_person` must be a positive integer"),
        ({"examples_per_person": 2, "sampler": "truncated_poisson", "capacity": 300}, "No sound cost"),
        ({"accountant": "x"}, "`accountant` must be one of"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        Plan(**(GOOD | change))


def test_calibrated_names_both_sizes():
    with pytest.raises(ValueError, match="batch_size=70000, num_examples=60000"):
        Plan.calibrated(num_examples=60000, batch_size=70000, updates=1, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("delta", [1 / 60000, 0.01])
def test_large_delta_warns(delta):
    with pytest.warns(UserWarning, match="delta is not below 1 / num_examples.*Received"):
        Plan(**(GOOD | {"delta": delta}))


@pytest.mark.parametrize("sampler", ["truncated_poisson", "fixed_size", "shuffle", "fixed_order"])
@pytest.mark.parametrize("persons", [1, 3])
def test_every_sampler_can_be_calibrated(sampler, persons):
    if sampler == "truncated_poisson" and persons > 1:
        pytest.skip("refused")
    capacity = 352 if sampler == "truncated_poisson" else None
    plan = Plan.calibrated(
        num_examples=60000, batch_size=256, updates=500, epsilon=2.0, delta=1e-6, sampler=sampler,
        examples_per_person=persons, capacity=capacity,
    )  # fmt: skip
    assert 1.98 <= plan.cost() <= 2.0
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
