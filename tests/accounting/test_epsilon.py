"""Golden epsilons, independent accountants, limits and bad input."""

import logging
import math
import warnings

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from lipdp import accounting
from lipdp.accounting import Mechanism, fft_composition, pld
from lipdp.accounting.pld import PldAccountant

pytestmark = pytest.mark.backend_free

Q = 256 / 60000


def epsilon(z, q, updates, delta, accountant="pld"):
    return accounting.epsilon(
        noise_multiplier=z, sampling_probability=q, updates=updates, delta=delta, accountant=accountant
    )


@pytest.mark.parametrize(
    ("z", "q", "updates", "delta", "expected"),
    [
        (1.1, Q, 2350, 1e-5, 0.92020),
        (1.0, 0.01, 2000, 1e-6, 2.95526),
        (2.0, 0.01, 2000, 1e-6, 1.03499),
        (4.0, 0.01, 2000, 1e-6, 0.460180),
        (0.69389, Q, 2350, 1e-5, 3.000025),
        (6.44184, Q, 2350, 1e-5, 0.099816),
        (5.0, 1.0, 100, 1e-5, 9.9973),
    ],
)
def test_golden_pld(z, q, updates, delta, expected):
    assert epsilon(z, q, updates, delta) == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(
    ("z", "epochs", "rdp", "pld"),
    [
        (0.5, 1, 6.346, 5.026),
        (1.0, 1, 0.9258, 0.3928),
        (1.0, 10, 1.3516, 1.0990),
        (1.0, 40, 2.4780, 2.2630),
        (2.0, 10, 0.4266, 0.3862),
        (2.0, 40, 0.8924, 0.8142),
    ],
)
def test_golden_table_of_the_facts(z, epochs, rdp, pld):
    updates = epochs * 60000 // 256  # the table's counts
    assert epsilon(z, Q, updates, 1e-5) == pytest.approx(pld, rel=2e-3)
    assert epsilon(z, Q, updates, 1e-5, "rdp") == pytest.approx(rdp, rel=2e-3)


def test_golden_rdp():
    assert epsilon(1.1, Q, 2350, 1e-5, "rdp") == pytest.approx(1.09971, rel=1e-5)


def autodp_epsilon(z, q, updates, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from autodp import mechanism_zoo, transformer_zoo

        mechanism = mechanism_zoo.GaussianMechanism(sigma=z)
        if q < 1.0:
            sample = transformer_zoo.AmplificationBySampling(PoissonSampling=True)
            mechanism = sample(mechanism, q, improved_bound_flag=True)
        return transformer_zoo.Composition()([mechanism], [updates]).get_approxDP(delta)


@pytest.mark.parametrize(
    ("z", "q", "updates"),
    [(0.5, Q, 234), (1.0, Q, 2344), (2.0, Q, 9375), (1.0, 0.1, 1000), (4.0, 0.01, 1000)],
)
def test_pld_is_below_rdp_which_agrees_with_autodp(z, q, updates):
    pld, rdp, autodp = (epsilon(z, q, updates, 1e-5), epsilon(z, q, updates, 1e-5, "rdp"),
                        autodp_epsilon(z, q, updates, 1e-5))  # fmt: skip
    assert pld < rdp
    assert pld < autodp
    assert rdp == pytest.approx(autodp, rel=0.06)


def test_equals_the_unmodified_library():
    mechanism = Mechanism(0.05, 1.5, 300)
    step = PldAccountant().discretization((mechanism,), 1e-5)
    library = PLDAccountant(value_discretization_interval=step)
    library.compose(mechanism.event())
    expected = library.get_epsilon(1e-5)
    assert expected * (1.0 - 1e-9) <= accounting.compose([mechanism], 1e-5) <= expected * (1.0 + 1e-6)


def test_unequal_releases_equal_the_unmodified_library():
    mechanisms = (Mechanism(0.05, 1.5, 100), Mechanism(0.1, 2.0, 50), Mechanism(1.0, 20.0, 3))
    step = PldAccountant().discretization(mechanisms, 1e-5)
    library = PLDAccountant(value_discretization_interval=step)
    for mechanism in mechanisms[:2]:
        library.compose(mechanism.event())
    library.compose(mechanisms[2].event())
    assert accounting.compose(mechanisms, 1e-5) == pytest.approx(library.get_epsilon(1e-5), rel=1e-5)


@pytest.mark.parametrize(("q", "z", "updates"), [(0.0005, 0.6, 3000), (0.2, 3.0, 40), (0.02, 0.9, 1), (0.01, 0.4, 500)])
def test_discretization_is_fine_enough(q, z, updates, monkeypatch):
    mechanisms = (Mechanism(q, z, updates),)
    used = PldAccountant().epsilon(mechanisms, 1e-5)
    step = PldAccountant().discretization(mechanisms, 1e-5)
    monkeypatch.setattr(PldAccountant, "discretization", lambda *_: step / 3)
    finer = PldAccountant().epsilon(mechanisms, 1e-5)
    assert finer <= used * (1.0 + 2e-5)  # what is paid for rounding depends on the grid
    assert used <= finer * 1.001


def test_limits():
    assert epsilon(1.0, 0.01, 0, 1e-5) == 0.0
    assert epsilon(0.0, 0.01, 10, 1e-5) == math.inf
    assert epsilon(0.0, 0.01, 10, 1e-5, "rdp") == math.inf
    assert epsilon(1e-300, 0.01, 10, 1e-5) == math.inf
    assert epsilon(0.02, 1.0, 10**6, 1e-5) > 1e9
    assert epsilon(0.05, 0.5, 10**6, 1e-5) == math.inf
    for accountant in ("pld", "rdp"):
        assert epsilon(1e12, 0.5, 1000, 1e-5, accountant) < 0.01
    assert epsilon(1.0, 1e-5, 10**4, 1e-5) < 0.01


def test_smallest_delta():
    tight = epsilon(1.0, 0.01, 2000, 1e-11)
    assert epsilon(1.0, 0.01, 2000, 1e-10) < tight < epsilon(1.0, 0.01, 2000, 1e-11, "rdp")
    # Below, the bound is that of RDP, which grows on from there, and the closed form where nothing is sampled.
    assert epsilon(1.0, 0.01, 2000, 1e-12) == epsilon(1.0, 0.01, 2000, 1e-12, "rdp") > tight
    assert "RDP" in accounting.describe([Mechanism(0.01, 1.0, 2000)], 1e-12)["settings"]
    exact = epsilon(5.0, 1.0, 100, 1e-12)
    assert epsilon(5.0, 1.0, 100, 1e-11) < exact < epsilon(5.0, 1.0, 100, 1e-12, "rdp")
    assert math.isfinite(epsilon(5.0, 1.0, 100, 1e-300))
    with pytest.raises(ValueError, match=r"rounding noise.*delta=1e-12.*relation='replace_one'.*Pass delta=1e-11"):
        accounting.compose([Mechanism(0.01, 1.0, 10, relation="replace_one")], 1e-12)


def test_the_library_s_negative_deltas_do_no_harm():
    """The trap: far out, the transform's noise makes the library's delta negative, and epsilon too small."""
    mechanism = Mechanism(0.01, 1.0, 2000)
    library = PLDAccountant(value_discretization_interval=1e-3)
    library.compose(mechanism.event())
    assert min(library.get_delta(e) for e in (5.5, 6.0, 6.5, 7.0)) < 1e-12
    found = [epsilon(1.0, 0.01, 2000, delta) for delta in (1e-7, 1e-8, 1e-9, 1e-10, 1e-11)]
    assert found == sorted(found)
    for pmf, count in pld._directions(mechanism, 1e-3, 0.0)[:2]:
        composed, added = fft_composition.compose([pmf], [count])
        assert composed.masses.min() >= 0.0 and composed.infinite >= 0.0 and added.min() > 0.0


@pytest.mark.parametrize("delta", [1e-11, 1e-8, 1e-5])
def test_rounding_of_a_million_releases_is_paid(delta):
    """The error of a plain transform grows with the count: it said 34.077, where 34.238 is exact."""
    exact = accounting.compose([Mechanism(1.0, 250.0, 10**6)], delta)
    assert exact <= accounting.compose([Mechanism(1.0 - 2.0**-53, 250.0, 10**6)], delta) <= 1.0005 * exact


def test_a_tail_of_millions_of_releases_keeps_its_digits():
    remove, add = PldAccountant().both((Mechanism(0.33126, 215.54, 3 * 10**6),), 1e-11)
    for found in (remove, add):  # a transform with 64 bits of mantissa: 20.8982; with 53 bits 20.79 and 23.94
        assert found == pytest.approx(20.8982, rel=1e-4)


@settings(max_examples=8, deadline=None)
@given(
    q=st.floats(1e-3, 0.9),
    shift=st.floats(0.5, 3.0),
    updates=st.sampled_from([30, 10**4, 10**6, 3 * 10**6]),
    delta=st.sampled_from([1e-11, 1e-9, 1e-7, 1e-5]),
)
def test_every_tilt_is_an_upper_bound(q, shift, updates, delta):
    """Bounds at different tilts share nothing but the truth: the largest tilt has its digits, no other may be lower."""
    mechanism = Mechanism(q, math.sqrt(1.0 / math.log1p((shift / q) ** 2 / updates)), updates)
    step = PldAccountant().discretization((mechanism,), delta)
    for pmf, count in pld._directions(mechanism, step, 0.0)[:2]:
        best = fft_composition.best_tilt([pmf], [count], delta)
        tight, *others = (fft_composition.compose([pmf], [count], share * best)[0] for share in (1.0, 0.7, 0.4, 0.0))
        reference = tight.epsilon(delta)
        assert math.isfinite(reference)
        for other in others:
            assert other.epsilon(delta) >= reference * (1.0 - 1e-5)


def test_order_and_splitting_do_not_matter():
    a, b = Mechanism(0.01, 1.0, 10), Mechanism(0.02, 1.5, 20)
    halves = [Mechanism(0.02, 1.5, 5), a, Mechanism(0.02, 1.5, 15), Mechanism(0.5, 1.0, 0)]
    assert accounting.compose([a, b], 1e-5) == accounting.compose(halves, 1e-5)


def test_rdp_is_silent_about_orders_it_drops(caplog):
    with caplog.at_level(logging.WARNING):
        epsilon(0.71, 0.05, 10, 1e-5, "rdp")
    assert not caplog.records


@settings(max_examples=10, deadline=None)
@given(
    q=st.floats(1e-3, 1.0),
    z=st.floats(0.5, 20.0),
    updates=st.integers(1, 2000),
    accountant=st.sampled_from(["pld", "rdp"]),
)
def test_monotone(q, z, updates, accountant):
    slack = 2e-4 if accountant == "rdp" else 1e-3  # a series or an integral; where PLD's grid moves
    here = epsilon(z, q, updates, 1e-5, accountant) * (1.0 + slack) + 1e-9
    assert epsilon(z, q, max(1, updates // 2), 1e-5, accountant) <= here
    assert epsilon(z * 1.2, q, updates, 1e-5, accountant) <= here
    assert epsilon(z, q / 1.2, updates, 1e-5, accountant) <= here
    assert epsilon(z, q, updates, 1e-4, accountant) <= here


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"noise_multiplier": -1.0},
            r"`noise_multiplier` must be a finite number of at least 0\. Received: noise_multiplier=-1\.0\.",
        ),
        ({"noise_multiplier": float("nan")}, r"`noise_multiplier` must be a finite number.*nan"),
        ({"noise_multiplier": "1"}, r"`noise_multiplier` must be a finite number.*'1'"),
        ({"sampling_probability": 1.5}, r"`sampling_probability` must be a number in \(0, 1\].*1\.5.*batch size"),
        ({"sampling_probability": 0.0}, r"`sampling_probability` must be a number in"),
        ({"updates": 10.0}, r"`updates` must be a non-negative integer\. Received: updates=10\.0\."),
        ({"updates": -1}, r"`updates` must be a non-negative integer"),
        ({"updates": True}, r"`updates` must be a non-negative integer"),
        ({"delta": 0.0}, r"`delta` must be a number in \(0, 1\).*delta=0\.0"),
        ({"delta": 1.0}, r"`delta` must be a number in"),
        ({"delta": float("nan")}, r"`delta` must be a number in"),
        ({"accountant": "moments"}, r"`accountant` must be one of.*'pld'.*'rdp'.*'moments'"),
    ],
)
def test_bad_input(change, message):
    good = dict(noise_multiplier=1.0, sampling_probability=0.01, updates=10, delta=1e-5)
    with pytest.raises(ValueError, match=message):
        accounting.epsilon(**(good | change))


def test_mechanism_refuses_what_is_none_and_accepts_numpy():
    with pytest.raises(ValueError, match="must hold.*Mechanism objects"):
        accounting.compose(["x"], 1e-5)
    assert Mechanism(np.float64(0.01), np.float32(1.0), np.int64(3)) == Mechanism(0.01, 1.0, 3)


def test_describe():
    facts = accounting.describe([Mechanism(Q, 1.1, 2350)], 1e-5)
    assert facts["settings"] == "discretization 0.0001, connect-the-dots, pessimistic"
    assert "no discretization" in accounting.describe([Mechanism(1.0, 1.1, 1)], 1e-5)["settings"]
    assert "orders" in accounting.describe([], 1e-5, "rdp")["settings"]
