"""Calibration: golden table, conservative and tight, quick; number of updates."""

import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lipdp import accounting
from lipdp.accounting import Mechanism
from lipdp.accounting.composition import _compose
from lipdp.accounting.pld import _single

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize(
    ("examples", "batch", "updates", "budget", "pld", "rdp"),
    [
        (60000, 256, 2350, 1.0, 1.05102, 1.15778),
        (60000, 256, 2350, 3.0, 0.69389, 0.74220),
        (60000, 256, 2350, 8.0, 0.52384, 0.54963),
        (50000, 4096, 1300, 3.0, 4.20586, 4.51258),
        (60000, 256, 2350, 0.1, 6.44184, 7.10387),
        (60000, 32, 5625, 1.0, 0.62782, None),
    ],
)
def test_golden_table(examples, batch, updates, budget, pld, rdp):
    q = batch / examples
    for accountant, expected in (("pld", pld), ("rdp", rdp)):
        if expected is None:
            continue
        z = accounting.calibrate(
            epsilon=budget, delta=1e-5, sampling_probability=q, updates=updates, accountant=accountant
        )
        assert z == pytest.approx(expected, rel=5e-3)
        cost = accounting.compose([Mechanism(q, z, updates)], 1e-5, accountant)
        assert 0.99 * budget <= cost <= budget


def test_takes_seconds():
    _compose.cache_clear()
    _single.cache_clear()
    start = time.perf_counter()
    accounting.calibrate(epsilon=1.0, delta=1e-5, sampling_probability=256 / 60000, updates=2344)
    assert time.perf_counter() - start < 20.0  # about 1 s on an idle core; far from the library's 20


@settings(max_examples=6, deadline=None)
@given(
    budget=st.floats(0.05, 20.0),
    q=st.floats(2e-3, 1.0),
    updates=st.integers(1, 3000),
    delta=st.sampled_from([1e-9, 1e-5]),
    accountant=st.sampled_from(["pld", "rdp"]),
)
def test_conservative_and_tight(budget, q, updates, delta, accountant):
    # RDP's largest order has a smallest epsilon.
    assume(accountant == "pld" or budget > 0.2)
    z = accounting.calibrate(
        epsilon=budget, delta=delta, sampling_probability=q, updates=updates, accountant=accountant
    )
    assert float(f"{z:.5e}") == z
    assert 0.99 * budget <= accounting.compose([Mechanism(q, z, updates)], delta, accountant) <= budget


@pytest.mark.slow
def test_millions_of_updates_at_a_small_delta():
    """It was refused as a budget that needs no noise, because delta drowned in rounding."""
    z = accounting.calibrate(epsilon=8.0, delta=1e-11, sampling_probability=0.33126, updates=3 * 10**6)
    assert 500.0 < z < 600.0
    assert 7.92 < accounting.compose([Mechanism(0.33126, z, 3 * 10**6)], 1e-11) <= 8.0


def test_spent_is_paid_first():
    spent = [Mechanism(0.01, 1.0, 300)]
    z = accounting.calibrate(epsilon=2.0, delta=1e-5, sampling_probability=0.02, updates=500, spent=spent)
    assert 1.98 <= accounting.compose([*spent, Mechanism(0.02, z, 500)], 1e-5) <= 2.0
    assert z > accounting.calibrate(epsilon=2.0, delta=1e-5, sampling_probability=0.02, updates=500)
    with pytest.raises(ValueError, match=r"already spent.*cost epsilon=.*Received: epsilon=0\.5.*larger epsilon"):
        accounting.calibrate(epsilon=0.5, delta=1e-5, sampling_probability=0.02, updates=500, spent=spent)


def test_almost_everything_spent():
    spent = [Mechanism(0.01, 1.0, 300)]
    budget = accounting.compose(spent, 1e-5) * 1.001
    z = accounting.calibrate(epsilon=budget, delta=1e-5, sampling_probability=0.01, updates=10, spent=spent)
    assert accounting.compose([*spent, Mechanism(0.01, z, 10)], 1e-5) <= budget


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, r"`epsilon` must be a finite number above 0\. Received: epsilon=0\.0\."),
        ({"epsilon": -1.0}, r"`epsilon` must be a finite number above 0"),
        ({"epsilon": float("inf")}, r"`epsilon` must be a finite number"),
        ({"updates": 0}, r"`updates` must be a positive integer"),
        ({"sampling_probability": 2.0}, r"`sampling_probability` must be a number in"),
        ({"delta": 2.0}, r"`delta` must be a number in"),
        ({"epsilon": 1e7}, r"needs no noise at all.*Received: epsilon="),
        ({"delta": 0.9}, r"needs no noise at all"),
        (
            {"epsilon": 1e-7, "updates": 10**6, "sampling_probability": 1.0},
            r"No noise multiplier up to 100000",
        ),
    ],
)
def test_bad_input(change, message):
    good = dict(epsilon=1.0, delta=1e-5, sampling_probability=0.01, updates=10)
    with pytest.raises(ValueError, match=message):
        accounting.calibrate(**(good | change))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("spent", [(), (Mechanism(0.01, 1.2, 200),)])
def test_max_updates_is_the_largest(accountant, spent):
    settings_ = dict(delta=1e-5, accountant=accountant, spent=spent)
    count = accounting.max_updates(epsilon=1.2, sampling_probability=256 / 60000, noise_multiplier=1.1, **settings_)

    def cost(n):
        return accounting.compose([*spent, Mechanism(256 / 60000, 1.1, n)], 1e-5, accountant)

    assert count > 100
    assert cost(count) <= 1.2 < cost(count + 1)


def test_max_updates_limits():
    good = dict(epsilon=1.0, delta=1e-5, sampling_probability=0.01, accountant="rdp")
    assert accounting.max_updates(noise_multiplier=0.0, **good) == 0
    assert accounting.max_updates(noise_multiplier=0.3, **good) == 0
    assert accounting.max_updates(noise_multiplier=1e5, **good) == 10**9
    assert accounting.max_updates(noise_multiplier=1.0, spent=[Mechanism(1.0, 1.0, 1)], **good) == 0
    with pytest.raises(ValueError, match="`epsilon` must be a finite number above 0"):
        accounting.max_updates(noise_multiplier=1.0, **(good | {"epsilon": 0}))


def test_calibration_and_max_updates_agree():
    z = accounting.calibrate(epsilon=2.0, delta=1e-5, sampling_probability=0.01, updates=1000)
    count = accounting.max_updates(epsilon=2.0, delta=1e-5, sampling_probability=0.01, noise_multiplier=z)
    assert 1000 <= count <= 1002
