"""The dominating pairs: golden numbers of every sampler, and exact small cases that try to be worse."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from lipdp import accounting
from lipdp.accounting import Mechanism, dominating_pairs

pytestmark = pytest.mark.backend_free

Q = 256 / 60000
RUN = dict(noise_multiplier=1.1, sampling_probability=Q, updates=2350, delta=1e-5)


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        ({}, 0.92020),
        ({"relation": "zero_out_one"}, 0.92020),
        ({"relation": "replace_one"}, 1.54373),
        ({"sampler": "truncated_poisson", "capacity": 256}, 5.740),
        ({"sampler": "truncated_poisson", "capacity": 288}, 3.056),
        ({"sampler": "truncated_poisson", "capacity": 304}, 1.844),
        ({"sampler": "truncated_poisson", "capacity": 320}, 0.9453),
        ({"sampler": "truncated_poisson", "capacity": 352}, 0.92020),
        ({"sampler": "truncated_poisson", "capacity": 320, "relation": "replace_one"}, 1.5546),
        ({"sampler": "truncated_poisson", "capacity": 352, "relation": "replace_one"}, 1.5437),
        ({"sampler": "fixed_size", "relation": "add_or_remove_one"}, 6.727),
        ({"sampler": "shuffle"}, 15.783),
        ({"sampler": "fixed_order"}, 15.783),
        ({"sampler": "shuffle", "relation": "replace_one"}, 40.304),
        ({"sampler": "shuffle", "accountant": "rdp"}, 16.857),
        ({"sampler": "fixed_size", "accountant": "rdp"}, 11.98),
    ],
)
def test_golden(settings_, expected):
    found = accounting.epsilon(**RUN, num_examples=60000, **settings_)
    assert found == pytest.approx(expected, rel=5e-4)


def test_replacing_in_batches_of_fixed_size_costs_twice_the_norm():
    # The trap: RDP's replace-one relation takes the noise relative to twice the clip norm.
    relation = privacy_accountant.NeighboringRelation.REPLACE_ONE
    naive = RdpAccountant(neighboring_relation=relation)
    naive.compose(dp_event.SampledWithoutReplacementDpEvent(60000, 256, dp_event.GaussianDpEvent(1.1)), 2350)
    attack = accounting.epsilon(**RUN, sampler="fixed_size", relation="add_or_remove_one", num_examples=60000)
    assert naive.get_epsilon(1e-5) < 2.0 < 6.7 < attack
    for accountant in ("pld", "rdp"):
        assert accounting.epsilon(**RUN, sampler="fixed_size", accountant=accountant) >= attack


def test_shuffled_epochs_are_never_charged_as_poisson():
    assert accounting.epsilon(**RUN, sampler="shuffle") > 5.3  # below this nothing is sound
    assert Mechanism.of_updates(Q, 1.1, 2351, "shuffle").count == 11  # a begun pass is paid
    assert Mechanism.of_updates(1 / 3, 1.1, 3, "shuffle").count == 1
    # A tolerance of 1e-9 took large quotients for the next whole number, or missed the whole number.
    for whole in (3, 49, 23728586, 10**8 - 1, 2**31 + 11, 10**11 + 3):
        for batch in (1, 3, 256):
            q = batch / (batch * whole)
            assert Mechanism.of_updates(q, 1.0, whole, "fixed_order").count == 1
            assert Mechanism.of_updates(q, 1.0, whole + 1, "fixed_order").count == 2
    assert Mechanism.of_updates(2 / 7, 1.0, 4, "shuffle").count == 1
    assert Mechanism.of_updates(2 / 7, 1.0, 5, "shuffle").count == 2


def exact_curve(first, second, z, epsilons):
    """delta(epsilon) of two one-dimensional mixtures [(weight, mean)], by integration over a fine grid."""
    x = np.linspace(-12.0 * z - 6.0, 12.0 * z + 6.0, 8001)
    density = []
    for law in (first, second):
        weights = {}
        for w, m in law:
            weights[round(m, 12)] = weights.get(round(m, 12), 0.0) + w
        density.append(sum(w * np.exp(-0.5 * ((x - m) / z) ** 2) for m, w in weights.items()))
    scale = (x[1] - x[0]) / (z * math.sqrt(2.0 * math.pi))
    return np.array([np.sum(np.maximum(density[0] - math.exp(e) * density[1], 0.0)) * scale for e in epsilons])


def bound(mechanism, epsilons):
    """The largest of both directions, with the trivial part put back."""
    curves = [pair.curve(epsilons) for pair in dominating_pairs.directions(mechanism)[:2]]
    return [curve - np.expm1(np.minimum(epsilons, 0.0)) for curve in curves]


EPSILONS = np.linspace(-2.0, 3.0, 11)
gradients = st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6)


def fixed_size(values, batch):
    subsets = list(itertools.combinations(values, batch))
    return [(1.0 / len(subsets), sum(subset)) for subset in subsets]


@settings(max_examples=12, deadline=None)
@given(values=gradients, replacement=st.floats(-1.0, 1.0), batch=st.integers(1, 4), z=st.floats(0.5, 3.0))
def test_fixed_size_is_never_above_the_bound(values, replacement, batch, z):
    extreme = [math.copysign(1.0, v) for v in values]
    for data, new in ((values, replacement), (extreme, -extreme[0]), (extreme, 0.0)):
        other = [new, *data[1:]]
        exact = exact_curve(fixed_size(data, batch), fixed_size(other, batch), z, EPSILONS)
        for limit in bound(Mechanism(batch / 6, z, 1, "fixed_size"), EPSILONS):
            assert (exact <= limit + 1e-5).all()
        # One example less; the bound is stated with the larger number of examples.
        mechanism = Mechanism(batch / 6, z, 1, "fixed_size", "add_or_remove_one", num_examples=6)
        remove, add = bound(mechanism, EPSILONS)
        laws = fixed_size(data, batch), fixed_size(data[1:], batch)
        assert (exact_curve(*laws, z, EPSILONS) <= remove + 1e-5).all()
        assert (exact_curve(*laws[::-1], z, EPSILONS) <= add + 1e-5).all()


@settings(max_examples=8, deadline=None)
@given(values=gradients, size=st.integers(2, 3), batch=st.integers(1, 3), z=st.floats(0.5, 3.0), q=st.floats(0.05, 0.9))
def test_groups_are_never_above_the_bound(values, size, batch, z, q):
    for data in (values, [1.0] * size + [-1.0] * (6 - size)):
        mechanism = Mechanism(batch / 6, z, 1, "fixed_size", group_size=size, num_examples=6)
        laws = fixed_size(data, batch), fixed_size(data[size:], batch)
        for law, limit in zip((laws, laws[::-1]), bound(mechanism, EPSILONS), strict=True):
            assert (exact_curve(*law, z, EPSILONS) <= limit + 1e-5).all()
        laws = poisson(data, q, 6), poisson([0.0] * size + data[size:], q, 6)
        for law, limit in zip((laws, laws[::-1]), bound(Mechanism(q, z, 1, group_size=size), EPSILONS), strict=True):
            assert (exact_curve(*law, z, EPSILONS) <= limit + 1e-5).all()


def poisson(values, q, capacity):
    """The law of the sum of a Poisson sample, from which a uniformly random overflow is dropped."""
    law = []
    for drawn in itertools.product((False, True), repeat=len(values)):
        chosen = [v for v, take in zip(values, drawn, strict=True) if take]
        weight = q ** len(chosen) * (1.0 - q) ** (len(values) - len(chosen))
        kept = list(itertools.combinations(chosen, min(capacity, len(chosen))))
        law += [(weight / len(kept), sum(subset)) for subset in kept]
    return law


@settings(max_examples=12, deadline=None)
@given(
    values=gradients,
    replacement=st.floats(-1.0, 1.0),
    q=st.floats(0.05, 0.9),
    capacity=st.integers(1, 5),
    z=st.floats(0.5, 3.0),
)
def test_truncated_and_replaced_poisson_are_never_above_the_bound(values, replacement, q, capacity, z):
    extreme = [math.copysign(1.0, v) for v in values]
    for data, new in ((values, replacement), (extreme, -extreme[0])):
        for relation, changed in (("replace_one", new), ("zero_out_one", 0.0)):
            other = [changed, *data[1:]]
            mechanism = Mechanism(q, z, 1, "truncated_poisson", relation, num_examples=6, capacity=capacity)
            laws = poisson(data, q, capacity), poisson(other, q, capacity)
            for law, limit in zip((laws, laws[::-1]), bound(mechanism, EPSILONS), strict=True):
                assert (exact_curve(*law, z, EPSILONS) <= limit + 1e-5).all()
            laws = poisson(data, q, 6), poisson(other, q, 6)
            for law, limit in zip(
                (laws, laws[::-1]), bound(Mechanism(q, z, 1, "poisson", relation), EPSILONS), strict=True
            ):
                assert (exact_curve(*law, z, EPSILONS) <= limit + 1e-5).all()


def test_replacement_curve_is_exact():
    for q, z in ((0.3, 1.0), (1.0, 2.0), (0.01, 0.7), (1e-6, 1.0)):
        laws = [(1.0 - q, 0.0), (q, 1.0)], [(1.0 - q, 0.0), (q, -1.0)]
        curve = dominating_pairs.SampledReplacement(q, z).curve(EPSILONS) - np.expm1(np.minimum(EPSILONS, 0.0))
        np.testing.assert_allclose(curve, exact_curve(*laws, z, EPSILONS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (dict(sampler="shuffle", relation="add_or_remove_one"), "'zero_out_one'.*no known cost under this relation"),
        (dict(sampler="shuffle", sampling_probability=0.1), "not amplified.*sampling_probability=0.1"),
        (dict(sampler="truncated_poisson", num_examples=100), "`capacity` must be given"),
        (dict(sampler="fixed_size", relation="add_or_remove_one"), "`num_examples` must be given"),
        (dict(sampler="fixed_size", group_size=3, num_examples=17, sampling_probability=0.1), "not a whole number"),
        (dict(sampler="fixed_size", group_size=95, num_examples=100, sampling_probability=0.1), "than one batch"),
        (dict(sampler="truncated_poisson", group_size=2, num_examples=9, capacity=3), "No sound cost.*group_size=2"),
        (dict(relation="replace_one", group_size=2), "No sound cost.*'poisson'"),
        (dict(sampler="cyclic"), "`sampler` must be one of.*'cyclic'"),
    ],
)  # fmt: skip
def test_refusals(mechanism, message):
    good = dict(sampling_probability=1.0, noise_multiplier=1.0, count=1)
    with pytest.raises(ValueError, match=message):
        Mechanism(**(good | mechanism))


def test_relations_of_several_samplers():
    shuffled, poisson_ = Mechanism(1.0, 2.0, 3, "shuffle"), Mechanism(0.1, 2.0, 3)
    fixed = Mechanism(0.1, 2.0, 3, "fixed_size")
    assert accounting.common_relation([poisson_]) == "add_or_remove_one"
    assert accounting.common_relation([poisson_, fixed]) == "zero_out_one"
    assert accounting.compose([poisson_, shuffled, fixed], 1e-5) > accounting.compose([shuffled, fixed], 1e-5)
    removed = Mechanism(0.1, 2.0, 3, "fixed_size", "add_or_remove_one", num_examples=100)
    with pytest.raises(ValueError, match="no neighboring relation in common.*fixed_size.*shuffle"):
        accounting.compose([removed, shuffled], 1e-5)


@settings(max_examples=6, deadline=None)
@given(
    sampler=st.sampled_from(["truncated_poisson", "fixed_size", "shuffle"]),
    q=st.floats(0.002, 0.3),
    z=st.floats(0.8, 10.0),
    updates=st.integers(2, 500),
)
def test_monotone(sampler, q, z, updates):
    def epsilon(q=q, z=z, updates=updates, capacity=90):
        return accounting.epsilon(
            noise_multiplier=z, sampling_probability=q, updates=updates, delta=1e-5, sampler=sampler,
            num_examples=1000, capacity=max(1, round(q * 1000) + capacity),
        )  # fmt: skip

    here = epsilon() * (1.0 + 1e-3) + 1e-9
    assert epsilon(z=1.2 * z) <= here
    assert epsilon(updates=updates // 2) <= here
    assert epsilon(capacity=120) <= here
