"""Planning, the filter, autodp and the search: known gaps, golden numbers, limits, refusals."""

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from lipdp import accounting
from lipdp.accounting import Filter, Mechanism, planning, rdp, search_epsilon, solve
from lipdp.accounting.filter import conversion

pytestmark = pytest.mark.backend_free

Q = 256 / 60000
PLAN = dict(epsilon=1.0, noise_multiplier=1.1, epochs=10, batch_size=256)
SHARED = dict(num_examples=60000, delta=1e-5)


@pytest.mark.parametrize("unknown", planning.UNKNOWNS)
def test_any_one_of_four(unknown):
    plan = solve(**SHARED, **(PLAN | {unknown: None}), accountant="rdp" if unknown == "batch_size" else "pld")
    assert plan["found"] == unknown
    assert plan["updates"] == plan["epochs"] * math.ceil(60000 / plan["batch_size"])
    if unknown == "epsilon":
        assert plan["epsilon"] == pytest.approx(0.9202, rel=1e-3)
    else:
        assert 0.9 < plan["epsilon"] <= 1.0
        worse = {"noise_multiplier": 0.999, "epochs": 1.0 + 1.0 / plan["epochs"], "batch_size": 1.02}[unknown]
        changed = plan[unknown] * worse
        values = {name: plan[name] for name in planning.UNKNOWNS}
        values |= {unknown: changed if unknown == "noise_multiplier" else math.ceil(changed - 1e-9), "epsilon": None}
        accountant = "rdp" if unknown == "batch_size" else "pld"
        assert solve(**SHARED, **values, accountant=accountant)["epsilon"] > 1.0


@pytest.mark.parametrize("sampler", ["truncated_poisson", "fixed_size", "shuffle", "fixed_order"])
def test_every_sampler_is_planned(sampler):
    plan = solve(**SHARED, epsilon=4.0, epochs=3, batch_size=256, sampler=sampler)
    assert 3.96 <= plan["epsilon"] <= 4.0
    again = solve(**SHARED, epsilon=4.0, noise_multiplier=plan["noise_multiplier"], batch_size=256, sampler=sampler)
    assert again["epochs"] in (3, 4) and again["epsilon"] <= 4.0


def test_a_person_needs_more_noise():
    one, four = (solve(**SHARED, epsilon=2.0, epochs=5, batch_size=256, examples_per_person=k) for k in (1, 4))
    assert four["noise_multiplier"] > 1.5 * one["noise_multiplier"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, r"needs three of.*Received: epsilon=1\.0.*Leave out exactly one"),
        ({"epsilon": None, "epochs": None}, "Leave out exactly one"),
        ({"epsilon": None, "batch_size": 60001}, "larger than the data.*batch_size=60001"),
        ({"epsilon": None, "epochs": 0}, "`epochs` must be a positive integer"),
        ({"epsilon": None, "noise_multiplier": -1.0}, "`noise_multiplier` must be a finite number above 0"),
        ({"epochs": None, "noise_multiplier": 0.3}, "Not even one epoch fits.*larger epsilon"),
        ({"batch_size": None, "epsilon": 1e-6}, "Not even a batch of one example"),
        ({"noise_multiplier": None, "epsilon": 0.0}, "`epsilon` must be a finite number above 0"),
    ],
)
def test_bad_plans(change, message):
    with pytest.raises(ValueError, match=message):
        solve(**SHARED, **(PLAN | change), accountant="rdp")


@pytest.mark.parametrize(("noise", "q", "updates"), [(0.5, Q, 234), (1.1, Q, 2350), (4.0, 0.01, 1000), (8.0, 1.0, 20)])
def test_accountants_agree_within_their_gaps(noise, q, updates):
    run = dict(noise_multiplier=noise, sampling_probability=q, updates=updates, delta=1e-5)
    pld, rdp, autodp = (accounting.epsilon(**run, accountant=name) for name in ("pld", "rdp", "autodp"))
    name = accounting.plan_filter(epsilon=2.0 * rdp, delta=1e-5, mechanism=Mechanism(q, noise, updates))
    filtered = accounting.epsilon(**run, accountant=name)
    assert pld <= rdp * (1 + 1e-9) and pld <= autodp * (1 + 1e-9)
    assert autodp == pytest.approx(rdp, rel=0.06)
    assert rdp <= filtered * (1 + 1e-9) <= 1.4 * rdp  # one order for a budget twice as large


def test_autodp_guards():
    run = dict(sampling_probability=0.01, updates=10, delta=1e-5, accountant="autodp")
    assert accounting.epsilon(noise_multiplier=1e-3, **run) == math.inf
    assert accounting.epsilon(noise_multiplier=1e12, **run) < 0.2
    assert accounting.epsilon(noise_multiplier=1.0, **(run | {"updates": 0})) == 0.0
    assert accounting.epsilon(noise_multiplier=9.0, sampler="shuffle", **run) > 0.0
    with pytest.raises(ValueError, match='"autodp" has no bound'):
        accounting.epsilon(noise_multiplier=1.0, group_size=2, **run)
    assert accounting.describe([], 1e-5, "autodp")["library"] == "autodp"


def test_filter_golden():
    # Facts: epsilon 4, delta 1e-5, T = 40 * 234 at b = 256: order 5.3, RDP budget 1.91951, noise 0.8066.
    filter_ = accounting.plan_filter(epsilon=4.0, delta=1e-5, mechanism=Mechanism(Q, 0.8066, 9360))
    assert filter_ == Filter(5.3, 4.0, 1e-5) == accounting.get_accountant("filter:5.3:4.0:1e-05")
    assert filter_.name == "filter:5.3:4.0:1e-05"
    assert filter_.rdp_budget == pytest.approx(1.91951, abs=1e-5)
    noise = accounting.calibrate(epsilon=4.0, delta=1e-5, sampling_probability=Q, updates=9360, accountant=filter_)
    assert noise == pytest.approx(0.8066, rel=2e-3)
    assert (
        accounting.describe([], 1e-5, filter_)["settings"]
        == "RDP at the order 5.3 and the budget 4, both fixed in advance"
    )


def test_filter_states_its_budget_and_never_less():
    name = "filter:5.3:4.0:1e-05"
    few, many = [Mechanism(Q, 0.8066, 10)], [Mechanism(Q, 0.5, 9360)]
    assert accounting.guarantee([], 1e-5, name) == 0.0
    assert accounting.compose(few, 1e-5, name) < accounting.guarantee(few, 1e-5, name) == pytest.approx(4.0)
    assert 4.0 < accounting.compose(many, 1e-5, name) < accounting.guarantee(many, 1e-5, name) == math.inf
    assert accounting.guarantee(few, 1e-6, name) > 4.0  # the same budget at a smaller delta
    assert accounting.guarantee(few, 1e-5, "pld") == accounting.compose(few, 1e-5, "pld")


@settings(max_examples=20, deadline=None)
@given(epsilon=st.floats(0.5, 20.0), probability=st.floats(1e-3, 1.0), updates=st.integers(1, 5000))
def test_what_a_budget_allows_stays_within_it(epsilon, probability, updates):
    """Rounding in calibration must not look like a filter that was exceeded."""
    planned = Mechanism(probability, 2.0, updates)
    name = accounting.plan_filter(epsilon=epsilon, delta=1e-5, mechanism=planned)
    run = dict(epsilon=epsilon, delta=1e-5, sampling_probability=probability, accountant=name)
    noise = accounting.calibrate(updates=updates, **run)
    most = accounting.max_updates(noise_multiplier=noise, **run)
    for count, finite in ((updates, True), (most, True), (most + max(1, most // 50), False)):
        stated = accounting.guarantee([Mechanism(probability, noise, count)], 1e-5, name)
        assert stated == pytest.approx(epsilon) if finite else stated == math.inf


def test_a_fractional_order_costs_no_more_than_the_next_integer():
    """At a rate of 1/2 the series of the library is thousands of times too large there, without an error."""
    mechanism = Mechanism(0.5, 1000.0, 1)
    orders = (3.0, 3.5, 3.6, 3.7, 4.0)
    assert list(rdp.single(mechanism, orders)) == sorted(rdp.single(mechanism, orders))
    run = dict(epsilon=8.0, delta=1e-5, sampling_probability=0.5, updates=2113)
    name = accounting.plan_filter(epsilon=8.0, delta=1e-5, mechanism=Mechanism(0.5, 2.0, 2113))
    assert accounting.calibrate(**run, accountant=name) < 1.2 * accounting.calibrate(**run, accountant="rdp")


@settings(max_examples=20, deadline=None)
@given(order=st.floats(1.02, 200.0), delta=st.floats(1e-12, 0.1))
def test_conversion_is_that_of_the_library(order, delta):
    from dp_accounting.rdp import compute_epsilon

    ours = 3.0 + conversion(order, delta)
    assert max(0.0, ours) == pytest.approx(compute_epsilon([order], [3.0], delta)[0], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("filter", "needs an order and a budget that are fixed in advance.*plan_filter"),
        ("filter:5", "filter:ORDER:EPSILON:DELTA.*Received: .*filter:5"),
        ("filter:a:b:c", "filter:ORDER:EPSILON:DELTA"),
        ("filter:1.0:4.0:1e-5", "`order` must be above 1"),
        ("filter:2.0:0.1:1e-5", "does not pay for the conversion"),
        ("filter:8:-1:1e-5", "`budget` must be a finite number above 0"),
    ],
)
def test_bad_filters(name, message):
    with pytest.raises(ValueError, match=message):
        accounting.compose([Mechanism(Q, 1.0, 10)], 1e-5, name)


def test_search_is_the_library_s_and_grows():
    run = dict(noise_multiplier=1.1, sampling_probability=Q, updates=2350, delta=1e-5)
    library = RdpAccountant()
    library.compose(dp_event.RepeatAndSelectDpEvent(Mechanism(Q, 1.1, 2350).event(), 10, 1))
    assert search_epsilon(**run, runs=10) == pytest.approx(library.get_epsilon(1e-5), rel=1e-6)
    one = accounting.epsilon(**run, accountant="rdp")
    found = [search_epsilon(**run, runs=runs) for runs in (1, 2, 10, 100)]
    assert one <= found[0] * (1 + 1e-9) and found == sorted(found)
    assert search_epsilon(**run, runs=5, distribution="poisson") > one
    assert search_epsilon(**run, runs=5, sampler="shuffle") > accounting.epsilon(**run, sampler="shuffle")
    assert search_epsilon(**(run | {"updates": 0}), runs=5) == 0.0
    assert search_epsilon(**(run | {"noise_multiplier": 0.0}), runs=5) == math.inf
    for change, message in (
        ({"runs": 0.5}, "at least 1.*runs=0.5"),
        ({"runs": 0.0}, "`runs` must be a finite number above 0"),
        ({"runs": 3, "distribution": "fixed"}, "`distribution` must be one of.*'geometric'"),
        ({"runs": 3, "group_size": 2}, '"rdp" has no bound'),
    ):
        with pytest.raises(ValueError, match=message):
            search_epsilon(**run, **change)


def test_layers_are_one_release():
    """The trap: layers sampled separately are charged less than the one batch they share."""
    parts = [Mechanism(Q, 1.1 * math.sqrt(3.0), 3 * 2350)]  # three noises, as if each layer drew its own batch
    together = accounting.epsilon(noise_multiplier=1.1, sampling_probability=Q, updates=2350, delta=1e-5)
    assert accounting.compose(parts, 1e-5) < 0.75 < 0.92 < together
