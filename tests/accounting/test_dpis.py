"""DPIS: the budget of an adaptive run."""

import json
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from lipdp import accounting
from lipdp.accounting.dpis import ImportanceFilter
from lipdp.accounting.filter import Filter
from lipdp.accounting.mechanism import Mechanism

pytestmark = pytest.mark.backend_free

GOLDEN = dict(epsilon=4.0, delta=1e-5, num_examples=60000, batch_size=256, updates_per_epoch=234, epochs=40)
SMALL = dict(epsilon=1.0, delta=1e-5, num_examples=500, batch_size=20, updates_per_epoch=5, epochs=4)


def run(budget, norm_sums, clip_norm=0.1):
    """Runs all epochs; returns their noise multipliers and the mechanisms charged."""
    noise, charged = [], []
    for norm_sum in norm_sums:
        if budget.clip_sum_noise:
            budget.charge_clip_sum()
            charged.append(Mechanism(1.0, budget.clip_sum_noise, 1))
        budget.charge_norm_sum()
        charged.append(Mechanism(1.0, budget.norm_sum_noise, 1))
        noise.append(budget.begin_epoch(norm_sum, clip_norm))
        for _ in range(budget.updates_per_epoch):
            budget.charge_update()
        charged.append(Mechanism(budget.update.sampling_probability, budget.update.noise_multiplier, 234))
    return noise, charged


def test_the_golden_run():
    budget = ImportanceFilter(**GOLDEN, count_noise=1200.0)
    assert budget.order == 5.3
    budget.charge_count()
    assert budget.declare_count(60000.2) == 60000
    noise, _ = run(budget, np.linspace(1.0, 0.3, 40) * 6000.0)
    expected = {1: 0.8066, 10: 0.79882, 20: 0.77639, 32: 0.73281, 33: 0.43219, 40: 0.38321}
    for epoch, value in expected.items():
        assert noise[epoch - 1] == pytest.approx(value, abs=2e-5), epoch
    assert budget.epsilon() == pytest.approx(4.0, abs=1e-4)
    assert budget.epsilon() <= 4.0


@pytest.mark.parametrize("share, expected", [(0.8, 0.7159), (0.6, 0.6336), (0.4, 0.5615), (0.3, 0.5315)])
def test_noise_of_a_constant_share(share, expected):
    budget = ImportanceFilter(**GOLDEN, first_phase=0.0, order=5.3, norm_sum_noise=1e5)
    budget.charge_norm_sum()
    assert budget.begin_epoch(share * 6000.0, 0.1) == pytest.approx(expected, abs=2e-4)


def test_charges_are_the_mechanisms_and_no_others():
    budget = ImportanceFilter(**GOLDEN, clip_sum_noise=1200.0)
    _, charged = run(budget, np.linspace(1.0, 0.2, 40) * 6000.0)
    from dp_accounting.rdp import RdpAccountant

    library = RdpAccountant(orders=[budget.order])
    for mechanism in charged:
        library.compose(mechanism.event())
    assert budget.epsilon() == pytest.approx(library.get_epsilon(1e-5), rel=1e-9)
    accountant = Filter(budget.order, covers_adaptive=True)
    assert accounting.compose(charged, 1e-5, accountant) == pytest.approx(budget.epsilon(), rel=1e-12)


def test_a_share_of_one_is_dp_sgd():
    budget = ImportanceFilter(**GOLDEN)
    budget.charge_norm_sum()
    noise = budget.begin_epoch(1e9, 0.1)
    assert budget.update == Mechanism(256 / 60000, noise, 1)
    # A single order and the noisy sums cost little over the best order of plain DP-SGD.
    plain = accounting.calibrate(
        epsilon=4.0, delta=1e-5, sampling_probability=256 / 60000, updates=9360, accountant="rdp"
    )
    assert plain <= noise * 1.001 and noise <= 1.01 * plain


def test_an_uncapped_proposal_would_cost_more_than_claimed():
    """Facts B (iii): clipping q at 1 without capping the proposal shrinks the noise multiplier and keeps the rate up.

    Norm sum 1.5 b C, growth k = 5: claimed rate 1 / 1.5 at noise multiplier 1; true rate 1 / k with the contribution
    k b C / norm_sum times longer.
    """
    claimed = accounting.epsilon(noise_multiplier=1.0, sampling_probability=1 / 1.5, updates=1, delta=1e-5)
    true = accounting.epsilon(noise_multiplier=1.5 / 5, sampling_probability=1 / 5, updates=1, delta=1e-5)
    assert claimed == pytest.approx(3.883, abs=2e-3)
    assert true == pytest.approx(16.255, abs=5e-3)


adversary = st.lists(
    st.tuples(
        st.one_of(
            st.floats(-1e9, 1e9),
            st.floats(0.0, 60.0),
            st.sampled_from([0.0, -math.inf, 1e300, 2.0 * 1e-300, 20 * 0.1, 20 * 0.1 * (1 + 1e-6), 50.0]),
        ),
        st.floats(1e-3, 10.0),
        st.integers(0, 5),
    ),
    min_size=4,
    max_size=4,
)


@hypothesis.given(adversary, st.floats(0.3, 8.0), st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.booleans(), st.booleans())
@hypothesis.settings(max_examples=60, deadline=None)
def test_the_budget_holds_on_every_path(path, epsilon, first_phase, private_count, adaptive):
    budget = ImportanceFilter(
        **{**SMALL, "epsilon": epsilon},
        first_phase=first_phase,
        norm_sum_noise=200.0,
        count_noise=150.0 if private_count else None,
        clip_sum_noise=200.0 if adaptive else None,
        order=max(3.0, 30.0 / epsilon),
    )
    if private_count:
        budget.charge_count()
        budget.declare_count(max(-1e6, min(path[0][0], 1e6)))
    for norm_sum, clip_norm, skipped in path:
        if adaptive:
            budget.charge_clip_sum()
        budget.charge_norm_sum()
        if not math.isfinite(norm_sum):
            with pytest.raises(ValueError, match="norm_sum"):
                budget.begin_epoch(norm_sum, clip_norm)
            norm_sum = 0.0
        noise = budget.begin_epoch(norm_sum, clip_norm)
        assert 0.0 < budget.update.sampling_probability <= 1.0 and noise > 0.0
        for _ in range(5 - skipped):
            budget.charge_update()
        assert budget.epsilon() <= epsilon
    if not any(skipped for _, _, skipped in path):  # and what was planned was all executed
        assert budget.epsilon() > 0.999 * epsilon


@pytest.mark.parametrize("updates", [18547, 18769, 26428])
def test_rounding_takes_no_planned_update_away(updates):
    """Thousands of costs added up differ in their last digits from the product that the noise was solved with."""
    budget = ImportanceFilter(
        epsilon=2.0, delta=1e-5, num_examples=2000, batch_size=200, updates_per_epoch=updates, epochs=1, order=8.0,
        norm_sum_noise=100.0,
    )  # fmt: skip
    budget.charge_norm_sum()
    budget.begin_epoch(1500.0, 1.0)
    for _ in range(updates):
        budget.charge_update()
    assert 0.999 * 2.0 < budget.epsilon() <= 2.0


def test_a_rate_of_one_half_at_a_small_order_ends_no_run():
    """The library's series for fractional orders diverges there, so every noise multiplier seemed to cost infinity."""
    budget = ImportanceFilter(
        epsilon=10.0, delta=1e-5, num_examples=60000, batch_size=256, updates_per_epoch=234, epochs=20
    )
    assert budget.order == 2.6
    budget.charge_norm_sum()
    assert math.isfinite(budget.begin_epoch(2 * 256.0, 1.0))
    assert budget.update.sampling_probability == pytest.approx(0.5)
    budget.charge_update()


def test_what_is_not_planned_is_refused():
    budget = ImportanceFilter(**SMALL)
    with pytest.raises(ValueError, match="No epoch was begun"):
        _ = budget.update
    with pytest.raises(ValueError, match="not charged"):
        budget.begin_epoch(1.0, 1.0)
    with pytest.raises(ValueError, match="no update left"):
        budget.charge_update()
    with pytest.raises(ValueError, match="public"):
        budget.charge_count()
    with pytest.raises(ValueError, match="clip_sum_noise"):
        budget.charge_clip_sum()
    for _ in range(4):
        budget.charge_norm_sum()
        budget.begin_epoch(300.0, 1.0)
        for _ in range(5):
            budget.charge_update()
        with pytest.raises(ValueError, match="no update left"):
            budget.charge_update()
    with pytest.raises(ValueError, match="All 4 epochs"):
        budget.charge_norm_sum()


def test_a_private_count_comes_first():
    budget = ImportanceFilter(**SMALL, count_noise=100.0)
    with pytest.raises(ValueError, match="private"):
        budget.charge_norm_sum()
    with pytest.raises(ValueError, match="after charge_count"):
        budget.declare_count(500)
    budget.charge_count()
    assert budget.declare_count(-3.0) == 20  # never below the batch
    assert budget.epsilon() > 0.0


def test_a_charge_that_would_just_pass_the_budget_is_refused():
    """What was spent before it is within the budget, what would be after it is not."""
    budget = ImportanceFilter(**SMALL)
    budget.charge_norm_sum()
    budget.begin_epoch(300.0, 1.0)
    one = budget.update
    accountant = Filter(budget.order, SMALL["epsilon"], SMALL["delta"], covers_adaptive=True)
    most = int(accountant.rdp_budget * (1.0 - 1e-8) / accountant.rdp((one,)))
    for count, refused in ((most, True), (most - 1, False)):
        budget.resume(budget.state(), [Mechanism(one.sampling_probability, one.noise_multiplier, count)])
        before = budget.epsilon()
        assert before <= SMALL["epsilon"]
        if refused:
            with pytest.raises(ValueError, match="budget is spent.*Nothing was charged"):
                budget.charge_update()
            assert budget.epsilon() == before
        else:
            budget.charge_update()


def test_a_sum_that_got_lost_is_charged_again():
    once, twice = (ImportanceFilter(**SMALL, clip_sum_noise=20.0, norm_sum_noise=20.0, order=20.0) for _ in range(2))
    for budget, times in ((once, 1), (twice, 2)):
        for _ in range(4):
            for _ in range(times):
                budget.charge_clip_sum()
                budget.charge_norm_sum()
            budget.begin_epoch(300.0, 1.0)
            first = budget.epsilon()
            for _ in range(5):
                budget.charge_update()
            assert budget.epsilon() > first
        assert 0.999 < budget.epsilon() <= 1.0
    assert twice.noise_multiplier > once.noise_multiplier


def test_an_earlier_release_is_paid_from_the_same_budget():
    earlier = Mechanism(20 / 500, 4.0, 5)
    free, paid = (ImportanceFilter(**SMALL, order=20.0, spent=s) for s in ((), (earlier,)))
    noise = []
    for budget in (free, paid):
        noise.append(run(budget, [400.0] * 4, 1.0)[0][0])
        assert 0.999 < budget.epsilon() <= 1.0
    assert noise[1] > noise[0]
    with pytest.raises(ValueError, match="budget"):
        ImportanceFilter(**SMALL, spent=(Mechanism(1.0, 1.0, 5),))


def test_a_resumed_budget_is_the_same():
    whole, part = (ImportanceFilter(**SMALL, clip_sum_noise=20.0, count_noise=80.0) for _ in range(2))
    charged = []

    def advance(budget, epochs, updates, keep):
        for _ in range(epochs):
            budget.charge_clip_sum()
            budget.charge_norm_sum()
            budget.begin_epoch(200.0, 0.7)
            for _ in range(updates):
                budget.charge_update()
            if keep:
                charged.extend([Mechanism(1.0, 20.0, 1), Mechanism(1.0, 10.0, 1)])
                charged.append(Mechanism(budget.update.sampling_probability, budget.update.noise_multiplier, updates))

    for budget in (whole, part):
        budget.charge_count()
        budget.declare_count(470.0)
        advance(budget, 2, 3, budget is part)
    charged.append(Mechanism(1.0, 80.0, 1))
    resumed = ImportanceFilter(**json.loads(json.dumps(part.arguments())))
    resumed.resume(json.loads(json.dumps(part.state())), charged)
    assert resumed.epsilon() == pytest.approx(whole.epsilon(), rel=1e-12)
    assert resumed.update == whole.update and resumed.updates_left == 2 and resumed.num_examples == 470
    for budget in (whole, resumed):
        budget.charge_update()
        advance(budget, 2, 5, False)
    assert resumed.epsilon() == pytest.approx(whole.epsilon(), rel=1e-9)
    assert whole.epsilon() <= 1.0


def test_only_poisson_samples_are_paid_from_its_budget():
    for spent in (Mechanism(0.1, 1.0, 5, "fixed_size"), Mechanism(0.1, 1.0, 5, group_size=2)):
        for order in (None, 8.0):
            with pytest.raises(ValueError, match="no bound"):
                ImportanceFilter(**SMALL, spent=[spent], order=order)


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(epsilon=0.0), "epsilon"),
        (dict(delta=1.0), "delta"),
        (dict(batch_size=501), "larger than the data"),
        (dict(epochs=0), "epochs"),
        (dict(first_phase=1.5), "first_phase"),
        (dict(norm_sum_noise=0.0), "norm_sum_noise"),
        (dict(order=1.0), "order"),
        (dict(norm_sum_noise=0.5), "budget"),
        (dict(norm_sum_noise=0.5, order=8.0), "noisy sums"),
        (dict(epsilon=1e9), "protects nobody"),
    ],
)
def test_bad_arguments_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        ImportanceFilter(**{**SMALL, **change})


def test_too_few_examples_for_the_sums_are_named():
    run = {"delta": 1e-3, "updates_per_epoch": 2, "epochs": 20, "batch_size": 10, "num_examples": 20}
    with pytest.raises(
        ValueError, match=r"of its 20 epochs alone cost more, with noise 0.4: 20 examples \(or persons\) are too few"
    ):
        ImportanceFilter(epsilon=2.0, **run)
    with pytest.raises(ValueError, match=r"0 releases made before. Pass a larger epsilon.$"):
        ImportanceFilter(epsilon=1e-9, **run)
