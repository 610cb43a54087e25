"""RDP at one order fixed in advance: what it charges, states and refuses."""

import numpy as np
import pytest

from lipdp import accounting
from lipdp.accounting import Filter, rdp
from lipdp.accounting.filter import SharedFilter, conversion
from lipdp.accounting.mechanism import Mechanism

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(0.1, 1.0, 5, "fixed_size"),
        Mechanism(1.0, 1.0, 5, "shuffle"),
        Mechanism(0.1, 1.0, 5, relation="replace_one"),
        Mechanism(0.1, 1.0, 5, group_size=2),
    ],
)
def test_only_poisson_samples_are_charged_at_its_order(mechanism):
    with pytest.raises(ValueError, match="no bound"):
        accounting.compose([mechanism], 1e-5, "rdp_order:8.0")


def test_what_one_path_used_up_is_not_what_is_guaranteed():
    """The noise of an update follows from a noisy sum: the path that turns out cheap may have been an expensive one."""
    used = [Mechanism(1.0, 200.0, 1), Mechanism(0.1, 4.0, 5)]
    for delta in (1e-5, 1e-6):
        spent = accounting.compose(used, delta, "rdp_order:8.0:2.0:1e-05")
        assert spent == accounting.compose(used, delta, "rdp_order:8.0")
        stated = accounting.guarantee(used, delta, "rdp_order:8.0:2.0:1e-05")
        assert spent < 2.0 <= stated and (stated == 2.0) == (delta == 1e-5)
    assert accounting.guarantee([], 1e-5, "rdp_order:8.0:2.0:1e-05") == 0.0
    loud = [Mechanism(0.1, 0.5, 500)]
    assert accounting.guarantee(loud, 1e-5, "rdp_order:8.0:2.0:1e-05") > 2.0


USED, BESIDE = Mechanism(0.1, 4.0, 5), Mechanism(0.05, 2.0, 7)


@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_a_shared_filter_counts_its_whole_budget_and_the_rest_at_its_order(delta):
    one = Filter(8.0, 4.0, 1e-5)
    shared, whole = SharedFilter([(one, (USED,))]), one.rdp_budget + conversion(8.0, delta)
    assert accounting.compose([USED], delta, shared) == pytest.approx(whole)
    both = accounting.compose([USED, BESIDE], delta, shared)
    assert both == pytest.approx(whole + 7 * rdp.at_order(rdp.kind(BESIDE), 8.0))
    assert accounting.guarantee([USED, BESIDE], delta, shared) == both
    assert both > max(accounting.compose([USED, BESIDE], delta, name) for name in ("pld", "rdp", "rdp_order:8.0"))
    used_up = SharedFilter([(one, (Mechanism(0.1, 4.0, 40),))])
    assert shared != used_up and shared != one and hash(shared) != hash(used_up)


def test_noise_beside_a_shared_filter_is_for_what_is_left():
    shared = SharedFilter([(Filter(8.0, 4.0, 1e-5), (USED,))])
    terms = dict(delta=1e-5, accountant=shared, spent=[USED], sampling_probability=0.1)
    noise = accounting.calibrate(epsilon=5.0, updates=10, **terms)
    assert 4.9 < accounting.compose([USED, Mechanism(0.1, noise, 10)], 1e-5, shared) <= 5.0
    assert accounting.max_updates(epsilon=5.0, noise_multiplier=noise, **terms) == 10
    with pytest.raises(ValueError, match="already spent.*epsilon=4"):
        accounting.calibrate(epsilon=3.9, updates=10, **terms)


def test_shared_filters_add_up_at_the_lowest_order():
    low, high = Filter(4.0, 6.0, 1e-5), Filter(16.0, 2.0, 1e-6)
    for filters in ([(low, (USED,)), (high, (BESIDE,))], [(high, (BESIDE,)), (low, (USED,))]):
        shared = SharedFilter(filters)
        assert shared.order == 4.0
        assert accounting.compose([USED, BESIDE], 1e-5, shared) == pytest.approx(6.0 + high.rdp_budget)
        assert "budgets of 2 filters" in shared.describe((USED, BESIDE), 1e-5)["settings"]


def test_a_shared_filter_that_was_exceeded_guarantees_nothing():
    """At the lowest of the orders it may look as if it were within its budget."""
    high = Filter(64.0, 0.2, 1e-5)
    loud = Mechanism(0.1, 4.0, 40)
    assert high.rdp((loud,)) > high.rdp_budget > Filter(4.0, 6.0, 1e-5).rdp((loud,))
    shared = SharedFilter([(Filter(4.0, 6.0, 1e-5), (USED,)), (high, (loud,))])
    assert accounting.guarantee([USED, loud], 1e-5, shared) == np.inf


def test_what_is_not_known_at_the_order_is_not_added_to_a_filter():
    shared = SharedFilter([(Filter(8.0, 4.0, 1e-5), (USED,))])
    with pytest.raises(ValueError, match="nothing is known.*group_size=2"):
        shared.epsilon((USED, Mechanism(0.1, 1.0, 5, group_size=2)), 1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "rdp_order:8.0:2.0",
        "rdp_order:8.0:0.0:1e-05",
        "rdp_order:8.0:1.0:1e-05:3",
        "rdp_order",
        "rdp_order:",
        "rdp_order:x",
        "rdp_order:1",
        "rdp_order:nan",
        "rdp_order:1e300:2.0:1e-05",
        "order:5",
    ],
)
def test_unknown_orders_are_refused(name):
    with pytest.raises(ValueError, match="accountant"):
        accounting.compose([Mechanism(0.1, 1.0, 1)], 1e-5, name)


def test_a_curve_that_is_no_number_costs_everything(monkeypatch):
    """NaN compares with no budget, so it must not pass one."""
    made = rdp.rdp_privacy_accountant.RdpAccountant

    class Broken(made):
        @property
        def rdp(self):
            return np.full(len(super().rdp), np.nan)

    monkeypatch.setattr(rdp.rdp_privacy_accountant, "RdpAccountant", Broken)
    curve = rdp.single(Mechanism(0.012345678, 1.2345, 1), (3.0,))
    assert np.isinf(curve).all()
    rdp.single.cache_clear()


@pytest.mark.parametrize("order", [1.2, 1.7, 2.0, 2.5, 2.6, 3.4])
@pytest.mark.parametrize("rate", [0.05, 0.4999, 0.5, 0.5001, 0.9])
def test_a_curve_without_series_is_bounded_by_its_neighbours(order, rate):
    noise = 1.3
    x = np.linspace(-30.0, 32.0, 400001)
    ratio = 1.0 - rate + rate * np.exp((2.0 * x - 1.0) / (2.0 * noise**2))
    density = np.exp(-0.5 * (x / noise) ** 2) / (noise * np.sqrt(2.0 * np.pi))
    exact = np.log(np.sum(density * ratio**order) * (x[1] - x[0])) / (order - 1.0)
    found = rdp.single(Mechanism(rate, noise, 1), (order,))[0]
    assert exact * (1.0 - 1e-9) <= found <= 2.5 * exact
    if order > 2.0:
        assert rdp._between_integers(Mechanism(rate, noise, 1), order) >= exact * (1.0 - 1e-9)
