"""Plan: derived values, warnings, refusals, round trip."""

import dataclasses
import json

import pytest

from lipdp import accounting
from lipdp.accounting import Sampling
from lipdp.privacy.plan import Plan

pytestmark = pytest.mark.backend_free

GOOD = dict(sampling=Sampling().bind(60000, 256), updates=2350, noise_multiplier=1.1, delta=1e-5)


SMALL = Sampling().bind(6000, 256)


def test_derived_values():
    plan = Plan(**GOOD)
    assert plan.sampling.sampling_probability == 256 / 60000
    assert plan.mechanism() == accounting.Mechanism(256 / 60000, 1.1, 2350)
    assert plan.mechanism(7).count == 7
    assert plan.cost() == pytest.approx(0.9202, rel=2e-4)
    assert plan.cost(0) == 0.0


def test_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(**GOOD).delta = 0.1
    with pytest.raises(TypeError):
        Plan(Sampling().bind(60000, 256), 2350, 1.1, 1e-5)


def test_round_trip():
    plan = Plan(**GOOD, epsilon=1.0, accountant="rdp")
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    for bad in ({}, plan.to_dict() | {"extra": 1}, [1]):
        with pytest.raises(ValueError, match=r"not a plan.*Received.*num_examples"):
            Plan.from_dict(bad)


def test_files_stay_flat_and_old_ones_are_read():
    plan = Plan(**GOOD, epsilon=1.0, accountant=accounting.Filter(8.0, 2.0, 1e-5))
    values = plan.to_dict()
    assert values == {
        "num_examples": 60000,
        "batch_size": 256,
        "sampler": "poisson",
        "neighboring_relation": "add_or_remove_one",
        "examples_per_person": 1,
        "capacity": None,
        "updates": 2350,
        "noise_multiplier": 1.1,
        "delta": 1e-5,
        "epsilon": 1.0,
        "accountant": "filter:8.0:2.0:1e-05",
    }
    assert Plan.from_dict(values | {"capacity": 300}) == plan  # earlier versions took one for every sampler
    del values["examples_per_person"], values["capacity"]
    values["neighbouring_relation"] = values.pop("neighboring_relation")  # as version 0.1.0 spelled it
    assert Plan.from_dict(values) == plan
    values["accountant"] = "rdp_order:8.0:2.0:1e-05"
    assert Plan.from_dict(values).accountant == accounting.Filter(8.0, 2.0, 1e-5, covers_adaptive=True)


def test_an_update_charges_what_the_plan_says():
    plan = Plan(**GOOD | {"sampling": Sampling("fixed_size").bind(60000, 256, 3)})
    release = plan.release(sensitivity=0.1, strategy="clipless", noise_allocation="global", stream=4)
    assert release.sampling == plan.sampling.for_group(1) and release.stream == 4
    assert dataclasses.replace(release, count=2350).mechanism(3) == plan.mechanism()


def test_calibrated():
    plan = Plan.calibrated(sampling=SMALL, updates=500, epsilon=2.0, delta=1e-6)
    assert 1.98 <= plan.cost() <= plan.epsilon == 2.0
    spent = [plan.mechanism(100)]
    second = Plan.calibrated(sampling=SMALL, updates=400, epsilon=2.0, delta=1e-6, spent=spent)
    assert 1.98 <= second.cost(spent=spent) <= 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling": Sampling()}, "`sampling` must be a bound Sampling"),
        ({"updates": 0}, "`updates` must be a positive integer"),
        ({"noise_multiplier": 0.0}, "`noise_multiplier` must be a finite number above 0"),
        ({"delta": 0.0}, "`delta` must be a number in"),
        ({"epsilon": -1.0}, "`epsilon` must be a finite number above 0"),
        ({"accountant": "x"}, "`accountant` must be one of"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        Plan(**(GOOD | change))


@pytest.mark.parametrize("delta", [1 / 60000, 0.01])
def test_large_delta_warns(delta):
    with pytest.warns(UserWarning, match="delta is not below 1 / num_examples.*Received"):
        Plan(**(GOOD | {"delta": delta}))


@pytest.mark.parametrize("sampler", ["truncated_poisson", "fixed_size", "shuffle", "fixed_order"])
@pytest.mark.parametrize("persons", [1, 3])
def test_every_sampler_can_be_calibrated(sampler, persons):
    if sampler == "truncated_poisson" and persons > 1:
        pytest.skip("refused")
    sampling = Sampling(sampler).bind(60000, 256, persons)
    plan = Plan.calibrated(sampling=sampling, updates=500, epsilon=2.0, delta=1e-6)
    assert 1.98 <= plan.cost() <= 2.0
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
