"""Groups: the golden tables in both directions, the tail cut, limits, Vadhan's conversion, refusals."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from lipdp import accounting
from lipdp.accounting import Mechanism, group_epsilon, mixture, pld, vadhan_epsilon
from lipdp.accounting.pld import PldAccountant

pytestmark = pytest.mark.backend_free

RUN = dict(sampling_probability=0.01, updates=2000, delta=1e-6)
SIZES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (1.0, (2.95526, 6.43261, 14.53498, 34.8907, 90.9012)),
        (2.0, (1.03499, 2.20023, 4.76841, 10.7159, 25.5981)),
        (4.0, (0.460180, 0.968450, 2.05558, 4.44372, 9.94654)),
    ],
)
def test_golden_poisson(noise, expected):
    for size, value in zip(SIZES, expected, strict=True):
        assert group_epsilon(size, noise_multiplier=noise, **RUN) == pytest.approx(value, rel=2e-4)


def test_golden_add_side():
    for size, value in zip(SIZES, (2.39614, 5.13087, 11.28709, 25.8728, 62.3991), strict=True):
        remove, add = PldAccountant().both((Mechanism(0.01, 1.0, 2000, group_size=size),), 1e-6)
        assert add == pytest.approx(value, rel=2e-4)
        assert add < remove


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (2.0, (2.95523, 14.5322, 34.8770, 90.8297)),
        (4.0, (1.03506, 4.76794, 10.7136, 25.5856)),
        (8.0, (0.460354, 2.05545, 4.44292, 9.94257)),
    ],
)
def test_golden_fixed_size(noise, expected):
    run = dict(batch_size=500, num_examples=50000, updates=2000, delta=1e-6, sampler="fixed_size")
    for size, value in zip((1, 4, 8, 16), expected, strict=True):
        # The table's grid is coarser where epsilon is small: 6e-4 at 0.46.
        found = group_epsilon(size, noise_multiplier=noise, **run)
        assert found == pytest.approx(value, rel=2e-4 if value > 1.0 else 6e-4)


def test_golden_large_and_small_noise():
    for size, value in {6: 24.045, 9: 40.801, 12: 60.429, 32: 259.14}.items():  # 9: where the usual code gives up
        assert group_epsilon(size, noise_multiplier=1.0, **RUN) == pytest.approx(value, rel=2e-4)
    for size, value in zip(SIZES, (20.621, 42.137, 90.531, 208.326, 516.02), strict=True):
        assert group_epsilon(size, noise_multiplier=0.5, **RUN) == pytest.approx(value, rel=3e-4)


def test_golden_vadhan():
    golden = {1.0: {1: 3.246, 2: 7.698, 4: 23.286, 6: 64.986, 8: 311.98}, 2.0: {4: 5.345, 8: 13.227, 16: 39.756},
              4.0: {4: 2.233, 8: 4.945, 16: 12.013}}  # fmt: skip
    for noise, row in golden.items():
        for size, value in row.items():
            loose = vadhan_epsilon(size, noise_multiplier=noise, **RUN)
            assert loose == pytest.approx(value, rel=2e-4)
            assert group_epsilon(size, noise_multiplier=noise, **RUN) <= loose
    # The usual code overflows to infinity from 9 on; in logarithms it is finite, and as useless.
    assert vadhan_epsilon(9, noise_multiplier=1.0, **RUN) > 1000.0
    assert vadhan_epsilon(2, noise_multiplier=1.0, accountant="pld", **RUN) == pytest.approx(6.96, rel=2e-3)
    # PLD has no digits at the deltas that larger groups need; RDP has.
    for size in (3, 4, 5):
        loose = vadhan_epsilon(size, noise_multiplier=1.0, accountant="pld", **RUN)
        assert group_epsilon(size, noise_multiplier=1.0, **RUN) < loose
        assert loose <= vadhan_epsilon(size, noise_multiplier=1.0, **RUN)
    assert vadhan_epsilon(0, noise_multiplier=1.0, **RUN) == 0.0


@pytest.mark.parametrize("add", [False, True])
def test_equals_the_unmodified_library(add):
    # Few updates and a coarse grid: the library takes a minute for the golden table.
    mechanism = Mechanism(0.1, 3.0, 20, group_size=3)
    step = PldAccountant().discretization((mechanism,), 1e-5)
    weights = stats.binom.pmf(range(4), 3, 0.1)
    library = PLDAccountant(value_discretization_interval=step)
    library.compose(dp_event.MixtureOfGaussiansDpEvent(3.0, [0.0, 1.0, 2.0, 3.0], weights), 20)
    direction = library._pld._pmf_add if add else library._pld._pmf_remove
    both = PldAccountant().both((mechanism,), 1e-5)
    assert both[add] == pytest.approx(direction.get_epsilon_for_delta(1e-5), rel=1e-7)


@pytest.mark.parametrize("size", [4, 16])
def test_cut_tail_is_sound_and_free(size, monkeypatch):
    mechanism = (Mechanism(0.01, 1.0, 2000, group_size=size),)
    cut = PldAccountant().both(mechanism, 1e-6)
    monkeypatch.setattr(pld, "_tail_cut", lambda *_: 0.0)
    whole = PldAccountant().both(mechanism, 1e-6)
    for with_cut, without in zip(cut, whole, strict=True):
        assert without <= with_cut * (1.0 + 1e-7)
        assert with_cut == pytest.approx(without, rel=1e-5)


def test_the_cut_mass_is_what_was_left_out():
    shifts, weights, lost = mixture.poisson_group(16, 0.01, 1e-15)
    assert shifts == tuple(range(1, len(shifts) + 1)) and len(shifts) < 12
    assert lost == pytest.approx(stats.binom.sf(len(shifts), 16, 0.01)) and lost <= 1e-15
    assert sum(weights) == pytest.approx(1.0 - 0.99**16, rel=1e-12)
    shifts, _, lost = mixture.fixed_group(20, 3, 100, 0.0)
    assert shifts == (2.0, 4.0, 6.0) and lost == 0.0  # no more than a batch holds


def test_a_ledger_of_unequal_releases_composes_by_direction():
    parts = [Mechanism(0.05, 1.5, 30, group_size=3), Mechanism(0.1, 2.5, 20, group_size=3)]
    together = accounting.compose(parts, 1e-5)
    assert max(accounting.compose([part], 1e-5) for part in parts) < together
    assert together < sum(accounting.compose([part], 5e-6) for part in parts)
    halves = [Mechanism(0.05, 1.5, 15, group_size=3)] * 2
    assert accounting.compose(halves, 1e-5) == accounting.compose(parts[:1], 1e-5)
    with pytest.raises(ValueError, match=r"different sizes.*\[1, 3\].*one size"):
        accounting.compose([parts[0], Mechanism(0.1, 1.0, 1)], 1e-5)


def test_limits():
    def epsilon(size, noise=1.0, q=0.01, updates=100, **more):
        return group_epsilon(size, noise_multiplier=noise, sampling_probability=q, updates=updates, delta=1e-6, **more)

    assert epsilon(0) == 0.0
    assert epsilon(5, updates=0) == 0.0
    assert epsilon(5, noise=1e12) < 0.01
    assert epsilon(5, noise=0.0) == epsilon(64, noise=0.005) == math.inf
    assert epsilon(1) == accounting.epsilon(noise_multiplier=1.0, sampling_probability=0.01, updates=100, delta=1e-6)
    # In every batch, the group is one example of k times the norm.
    whole = accounting.epsilon(noise_multiplier=2.0, sampling_probability=1.0, updates=9, delta=1e-6)
    assert epsilon(5, noise=10.0, q=1.0, updates=9) == pytest.approx(whole, rel=1e-9)
    assert epsilon(5, noise=10.0, q=1.0 - 1e-9, updates=9) == pytest.approx(whole, rel=1e-3)
    assert epsilon(4, noise=8.0, sampler="shuffle") == pytest.approx(epsilon(1, noise=2.0, sampler="shuffle"))
    assert epsilon(64, noise=0.5, updates=2000) > 3000.0  # large, and no overflow
    assert epsilon(1000, noise=1.0) > epsilon(500, noise=1.0)
    fixed = dict(noise_multiplier=3.0, batch_size=4, updates=3, delta=1e-6, sampler="fixed_size")
    # More examples than a batch holds, and more than there were: the batch may be all of the group.
    assert group_epsilon(50, num_examples=4, **fixed) <= group_epsilon(5000, num_examples=4, **fixed)


@settings(max_examples=6, deadline=None)
@given(
    size=st.integers(1, 40),
    q=st.floats(1e-4, 0.9),
    noise=st.floats(0.7, 30.0),
    updates=st.integers(1, 3000),
)
def test_monotone(size, q, noise, updates):
    def epsilon(size=size, q=q, noise=noise, updates=updates, delta=1e-6):
        return group_epsilon(size, noise_multiplier=noise, sampling_probability=q, updates=updates, delta=delta)

    here = epsilon() * (1.0 + 1e-3) + 1e-9
    if here > 300.0:  # no guarantee either way; losses that overflow are reported as infinite
        return
    assert epsilon(size=size - 1) <= here
    assert epsilon(q=q / 1.3) <= here
    assert epsilon(noise=noise * 1.2) <= here
    assert epsilon(updates=max(1, updates // 2)) <= here
    assert epsilon(delta=1e-5) <= here


@settings(max_examples=3, deadline=None)
@given(size=st.integers(2, 40), budget=st.floats(0.2, 12.0), q=st.floats(1e-3, 0.5), updates=st.integers(1, 2000))
def test_calibration_for_groups_is_conservative(size, budget, q, updates):
    run = dict(delta=1e-6, sampling_probability=q, updates=updates)
    noise = accounting.calibrate(epsilon=budget, group_size=size, **run)
    assert 0.99 * budget <= group_epsilon(size, noise_multiplier=noise, **run) <= budget


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_size": -1}, r"`group_size` must be a non-negative integer\. Received: group_size=-1"),
        ({"group_size": 2.0}, r"`group_size` must be a non-negative integer"),
        ({"delta": 1e-12}, r"rounding noise.*delta=1e-12"),
        ({"sampling_probability": None}, r"sampling is not determined.*sampling_probability=None"),
        ({"batch_size": 5}, r"sampling is not determined.*batch_size=5"),
        ({"sampler": "fixed_size"}, r"sampling is not determined.*Pass batch_size and num_examples"),
        ({"sampler": "balls_in_bins"}, r"no sound accountant: for bins.*2502\.08202.*'balls_in_bins'.*'poisson'"),
        ({"accountant": "rdp"}, r'"rdp" has no bound.*group_size=4.*Use accountant="pld"'),
        ({"sampler": "truncated_poisson"}, r"`num_examples` must be given"),
    ],
)
def test_bad_input(change, message):
    good = dict(group_size=4, noise_multiplier=1.0, **RUN) | change
    with pytest.raises(ValueError, match=message):
        group_epsilon(good.pop("group_size"), **good)


def test_bad_fixed_size():
    with pytest.raises(ValueError, match="larger than the data without the group.*batch_size=9, num_examples=8"):
        group_epsilon(
            2, noise_multiplier=1.0, updates=1, delta=1e-5, batch_size=9, num_examples=8, sampler="fixed_size"
        )


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 60), q=st.floats(1e-6, 0.999), noise=st.floats(0.05, 1e4))
def test_the_root_is_found(size, q, noise):
    """A wrong root chooses a wrong event, and would make delta too small."""
    shifts, weights, _ = mixture.poisson_group(size, q, 0.0)
    c, p = np.array(shifts), np.array(weights)
    target = np.concatenate([np.linspace(-50.0, 50.0, 101), np.geomspace(100.0, 1e5, 20)])
    x = mixture._outcome(target, shifts, weights, noise)
    value = special.logsumexp(np.log(p)[:, None] + (c[:, None] * x - 0.5 * c[:, None] ** 2) / noise**2, axis=0)
    np.testing.assert_allclose(value, target, rtol=1e-7, atol=1e-7)


def test_losses_that_overflow_are_infinite_and_never_small():
    # Masses beyond e^700 are no distribution; what they gave was a number, or a warning.
    for size, noise, updates in ((37, 1.0, 20), (36, 2.4, 13), (34, 1.0, 4)):
        run = dict(noise_multiplier=noise, sampling_probability=0.875, updates=updates, delta=1e-6)
        without_sampling = group_epsilon(size // 2, **(run | {"sampling_probability": 1.0}))
        assert group_epsilon(size, **run) >= without_sampling > 400.0


def test_nearly_certain_samples_cost_at_most_as_much_as_certain_ones():
    # (1 - q)^k is close to rounding, so that the masses are no distribution: epsilon was infinite.
    run = dict(noise_multiplier=2.0, updates=1, delta=1e-3)
    assert group_epsilon(20, sampling_probability=0.8, **run) <= group_epsilon(20, sampling_probability=1.0, **run)
    run = dict(noise_multiplier=0.08, updates=1, delta=1e-5)
    certain = accounting.epsilon(sampling_probability=1.0, **run)
    assert 0.99 * certain < accounting.epsilon(sampling_probability=1.0 - 1e-9, **run) <= certain
    run = dict(noise_multiplier=0.3, updates=1, delta=1e-10)
    certain = accounting.epsilon(sampling_probability=1.0, **run)
    assert accounting.epsilon(sampling_probability=1.0 - 1e-15, **run) <= certain
