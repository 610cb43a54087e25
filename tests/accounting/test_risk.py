"""What an attacker can do: against closed forms, against riskcal, and against attackers."""

import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from riskcal import analysis
from scipy import stats

from lipdp import accounting
from lipdp.accounting import Mechanism, Risk, dominating_pairs, pld, risk, risk_of
from lipdp.accounting.loss_distribution import LossDistribution

pytestmark = pytest.mark.backend_free
RATES = np.array([0.0, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
RUNS = [
    {"noise_multiplier": 1.1, "sampling_probability": 256 / 60000, "updates": 2350},
    {"noise_multiplier": 1.92, "sampling_probability": 4096 / 60000, "updates": 150},
    {"noise_multiplier": 0.7, "sampling_probability": 0.1, "updates": 20},
]


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
def test_without_sampling_it_is_that_of_a_gaussian(mu):
    found = risk(noise_multiplier=2.0 / mu, sampling_probability=1.0, updates=4)
    assert found.mu == pytest.approx(mu) and found.rho == pytest.approx(mu * mu / 2)
    assert found.advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, abs=1e-6)
    exact = stats.norm.cdf(stats.norm.ppf(RATES) + mu)
    assert found.true_positive_rate(RATES) == pytest.approx(exact, abs=1e-3)
    assert np.all(found.true_positive_rate(RATES) >= exact - 1e-9)
    for prior in (0.5, 0.1, 0.9, 0.001):
        # The best test says yes where the likelihood ratio is above (1 - prior) / prior.
        at = math.log((1 - prior) / prior) / mu
        best = prior * stats.norm.sf(at - mu / 2) + (1 - prior) * stats.norm.cdf(at + mu / 2)
        assert best - 1e-9 <= found.right_guesses(prior) == pytest.approx(best, abs=1e-3)
    epsilons = np.linspace(0.0, 2 * mu, 7)
    for epsilon in epsilons:
        delta = found.delta(epsilon)
        assert accounting.epsilon(noise_multiplier=2.0 / mu, sampling_probability=1.0, updates=4, delta=delta) == (
            pytest.approx(epsilon, abs=2e-3 * max(1.0, mu))
        )


@pytest.mark.parametrize("run", RUNS)
def test_it_is_that_of_riskcal(run):
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        run["noise_multiplier"], sampling_prob=run["sampling_probability"], value_discretization_interval=1e-4
    ).self_compose(run["updates"])
    found = risk(**run)
    assert found.advantage == pytest.approx(analysis.get_advantage_from_pld(pld), abs=1e-3)
    inside = RATES[1:-1]
    assert found.true_positive_rate(inside) == pytest.approx(1 - analysis.get_beta_from_pld(pld, inside), abs=1e-3)
    for prior in (0.5, 0.2):
        assert 1 - found.right_guesses(prior) == pytest.approx(analysis.get_bayes_risk_from_pld(pld, prior), abs=1e-3)


@pytest.mark.parametrize("run", RUNS)
def test_no_attacker_does_better(run):
    """The best test on what is released: the likelihood ratio of all updates, on many draws."""
    q, z, rng = run["sampling_probability"], run["noise_multiplier"], np.random.default_rng(0)
    draws, updates = 40_000, min(run["updates"], 150)
    found = risk(**run | {"updates": updates})
    scores = {}
    for used in (False, True):
        total = np.zeros(draws)
        for _ in range(updates):
            x = z * rng.normal(size=draws) + used * (rng.random(draws) < q)
            total += np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))
        scores[used] = np.sort(total)
    slack = 4.0 * 0.5 / math.sqrt(draws)
    for rate in (0.01, 0.1, 0.5):
        threshold = scores[False][int((1 - rate) * draws)]
        hit = np.mean(scores[True] > threshold)
        allowed = found.true_positive_rate(min(1.0, rate + slack))
        assert hit <= allowed + slack
        assert hit >= allowed - 0.1


def test_pairs_say_what_they_can():
    one = Risk(np.array([2.0]), np.array([1e-5]))
    assert one.advantage == pytest.approx((math.exp(2) - 1 + 2e-5) / (math.exp(2) + 1))
    assert one.right_guesses() == pytest.approx((math.exp(2) + 1e-5) / (math.exp(2) + 1))
    assert one.delta(3.0) == 1e-5 and one.delta(2.0) == 1e-5 and one.delta(1.9) > 1e-5
    assert one.true_positive_rate(0.0) == pytest.approx(1e-5)
    # A pair more never hurts, and chords are those of convex functions of e^epsilon.
    gaussian = risk(noise_multiplier=1.0, sampling_probability=1.0, updates=1)
    few = Risk(gaussian.epsilons[::250], gaussian.deltas[::250])
    for epsilon in np.linspace(0.0, 8.0, 41):
        assert few.delta(epsilon) >= gaussian.delta(epsilon) - 1e-12
    assert np.all(few.true_positive_rate(RATES) >= gaussian.true_positive_rate(RATES) - 1e-12)


@pytest.mark.parametrize("accountant", ["rdp", "autodp", "filter:8.0:4.0:1e-05"])
def test_other_accountants_bound_it_too(accountant):
    tight, found = risk(**RUNS[1]), risk(**RUNS[1], accountant=accountant)
    assert tight.advantage < found.advantage < 1.0
    assert np.all(found.true_positive_rate(RATES) >= tight.true_positive_rate(RATES) - 1e-9)
    assert found.mu is None and found.rho is None


def test_a_filter_states_the_risk_of_its_budget():
    """What was spent so far says nothing: other paths may have spent all of it."""
    few, many = (risk(**RUNS[1] | {"updates": n}, accountant="filter:8.0:4.0:1e-05") for n in (1, 100))
    assert few.advantage == many.advantage > risk(**RUNS[1] | {"updates": 100}, accountant="rdp").advantage


def test_the_curve_agrees_with_epsilon():
    for run in [*RUNS, RUNS[1] | {"group_size": 3}, RUNS[0] | {"updates": 1}]:
        found = risk(**run)
        for delta in (1e-3, 1e-5, 1e-7):
            epsilon = accounting.epsilon(**run, delta=delta)
            assert delta * (1 - 1e-6) <= found.delta(epsilon) <= 1.1 * delta


def test_the_curve_of_a_distribution_is_never_below_it():
    rng = np.random.default_rng(0)
    masses = rng.random(50)
    pmf = LossDistribution(0.1, -20, 0.9 * masses / masses.sum(), 0.1)
    for epsilon in np.linspace(-3.0, 4.0, 57):
        exact = pmf.infinite + np.sum(pmf.masses * np.maximum(-np.expm1(epsilon - pmf.losses), 0.0))
        assert pld._at(pmf, np.array([epsilon]))[0] >= exact - 1e-12


@pytest.mark.parametrize(
    "run",
    [
        {"noise_multiplier": 0.1, "sampling_probability": 0.01, "updates": 10},  # rare losses of some hundreds
        {"noise_multiplier": 0.3, "sampling_probability": 0.01, "updates": 1000},
        {"noise_multiplier": 1.1, "sampling_probability": 256 / 60000, "updates": 2350, "group_size": 8},
    ],
)
def test_few_points_of_the_curve_say_as_much_as_all(run):
    few, mechanism = risk(**run), Mechanism.of_updates(**run)
    many = Risk(*accounting.get_accountant("pld").curve((mechanism,), 200_000))
    assert 0.0 <= few.advantage - many.advantage < 1e-3
    assert np.all(np.abs(few.true_positive_rate(RATES) - many.true_positive_rate(RATES)) < 1e-3)
    assert few.advantage > 0.05


def test_both_directions_count(monkeypatch):
    run = RUNS[2] | {"group_size": 2}
    found, directions = risk(**run), dominating_pairs.directions

    def swapped(mechanism, dropped):
        remove, add, lost = directions(mechanism, dropped)
        return add, remove, lost

    monkeypatch.setattr(dominating_pairs, "directions", swapped)
    for epsilon in (0.0, 0.5, 2.0):
        assert risk(**run).delta(epsilon) == pytest.approx(found.delta(epsilon), rel=1e-4)


def test_mass_that_is_dropped_is_paid_for(monkeypatch):
    """Of a group, many in one batch are so rare that they are left out; here far too many are."""
    run = RUNS[2] | {"group_size": 3, "updates": 5}
    found = risk(**run)
    monkeypatch.setattr(pld, "_tail_cut", lambda mechanisms, delta: 0.02)
    careless = risk(**run)
    for epsilon in (0.0, 1.0, 5.0, 8.0):
        assert careless.delta(epsilon) >= found.delta(epsilon) - 1e-9
    assert careless.advantage > found.advantage + 1e-3


def test_more_costs_more():
    base = risk(**RUNS[1]).advantage
    assert risk(**RUNS[1] | {"updates": 300}).advantage > base
    assert risk(**RUNS[1] | {"noise_multiplier": 3.0}).advantage < base
    assert risk(**RUNS[1], group_size=4).advantage > base
    both = risk_of([Mechanism(4096 / 60000, 1.92, 150), Mechanism(1.0, 5.0, 3, "shuffle")])
    assert both.advantage > base


def test_ends():
    nothing = risk(**RUNS[0] | {"updates": 0})
    assert nothing.advantage == 0.0 and nothing.right_guesses() == 0.5 and nothing.true_positive_rate(0.2) == 0.2
    for accountant in ("pld", "rdp"):
        naked = risk(**RUNS[0] | {"noise_multiplier": 0.0}, accountant=accountant)
        assert naked.advantage == 1.0 and naked.right_guesses() == 1.0 and naked.true_positive_rate(0.0) == 1.0
    tiny = risk(noise_multiplier=0.02, sampling_probability=1.0, updates=100)  # epsilons of 1e5 and more
    assert tiny.advantage == pytest.approx(1.0) and tiny.precision(0.5) == pytest.approx(2 / 3)


def test_words_and_numbers():
    found = risk(**RUNS[1])
    assert "right in at most 59.1 of 100 guesses" in str(found) and "at most 3.3 % of them at 1 %" in str(found)
    assert repr(found).startswith("Risk(advantage=0.18")
    facts = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert facts["right_guesses"] == pytest.approx(0.5 + facts["advantage"] / 2)
    assert found.reconstruction(0.01) == found.true_positive_rate(0.01) == facts["true_positive_rates"][1][1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.true_positive_rate(1.2), "`false_positive_rate` must be in"),
        (lambda r: r.precision(0.0), "`false_positive_rate` must be a number in"),
        (lambda r: r.right_guesses(1.0), "`prior` must be a number in"),
        (lambda r: r.reconstruction(-0.1), "`baseline` must be a number in"),
        (lambda r: Risk(np.array([1.0, 0.5]), np.array([0.1, 0.2])), "in increasing order"),
        (lambda r: Risk(np.array([1.0]), np.array([1.2])), "deltas in"),
        (lambda r: r.delta(-1.0), "`epsilon` must be a finite number"),
        (lambda r: risk(noise_multiplier=1.0, sampling_probability=0.1, updates=3, accountant="x"), "one of"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(risk(**RUNS[2]))


@pytest.mark.parametrize("sampler", ["poisson", "shuffle", "random_allocation"])
@pytest.mark.parametrize("wanted", [{"advantage": 0.1}, {"tpr": 0.02, "fpr": 0.01}])
def test_noise_is_calibrated_to_risk(sampler, wanted):
    run = {"sampling_probability": 256 / 60000, "updates": 2350, "sampler": sampler}
    noise = accounting.calibrate(**wanted, **run)
    found = risk(noise_multiplier=noise, **run)
    reached = found.advantage if "advantage" in wanted else found.true_positive_rate(wanted["fpr"])
    bound = wanted.get("advantage", wanted.get("tpr"))
    assert 0.99 * bound <= reached <= bound
    less = risk(noise_multiplier=0.97 * noise, **run)
    assert (less.advantage if "advantage" in wanted else less.true_positive_rate(wanted["fpr"])) > bound


def test_calibrated_noise_is_that_of_riskcal():
    q, updates = 256 / 60000, 2350
    found = accounting.calibrate(advantage=0.1, sampling_probability=q, updates=updates)
    curve = privacy_loss_distribution.from_gaussian_mechanism(
        found, sampling_prob=q, value_discretization_interval=1e-4
    ).self_compose(updates)
    assert analysis.get_advantage_from_pld(curve) == pytest.approx(0.1, abs=1e-3)
    rate = accounting.calibrate(tpr=0.02, fpr=0.01, sampling_probability=q, updates=updates)
    curve = privacy_loss_distribution.from_gaussian_mechanism(
        rate, sampling_prob=q, value_discretization_interval=1e-4
    ).self_compose(updates)
    assert 1 - analysis.get_beta_from_pld(curve, np.array([0.01]))[0] == pytest.approx(0.02, abs=1e-3)


def test_without_sampling_the_noise_is_a_closed_form():
    noise = accounting.calibrate(advantage=0.2, sampling_probability=1.0, updates=9)
    mu = 2.0 * stats.norm.ppf(0.6)
    assert noise == pytest.approx(3.0 / mu, rel=1e-4) and noise >= 3.0 / mu * (1.0 - 1e-9)


def test_what_was_spent_counts():
    run = {"sampling_probability": 0.01, "updates": 100}
    before = [Mechanism(0.01, 1.0, 100)]
    alone, beside = accounting.calibrate(advantage=0.2, **run), accounting.calibrate(advantage=0.2, spent=before, **run)
    assert beside > alone
    together = risk_of([*before, Mechanism(0.01, beside, 100)])
    assert 0.99 * 0.2 <= together.advantage <= 0.2
    used = risk_of(before).advantage
    with pytest.raises(ValueError, match="used up"):
        accounting.calibrate(advantage=used, spent=before, **run)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"advantage": 0.1, "epsilon": 1.0, "delta": 1e-5}, "not from both"),
        ({"advantage": 0.1, "tpr": 0.1, "fpr": 0.01}, "A bound on risk is"),
        ({"tpr": 0.1}, "A bound on risk is"),
        ({"tpr": 0.01, "fpr": 0.1}, "`tpr` must be above `fpr`"),
        ({"advantage": 1.5}, "`advantage`"),
        ({}, "Pass both of these, `advantage`, or"),
        ({"epsilon": 1.0}, "delta=None"),
        ({"advantage": 0.999999}, "needs no noise"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        accounting.calibrate(sampling_probability=0.01, updates=1, **arguments)


def test_what_sampling_alone_allows_needs_no_noise():
    """The search for the noise stopped where the accountant has no bound any more, far below what was asked for."""
    run = {"sampling_probability": 0.01, "updates": 10}
    for wanted in ({"advantage": 0.5}, {"tpr": 0.9, "fpr": 0.1}):
        with pytest.raises(ValueError, match="needs no noise"):
            accounting.calibrate(**wanted, **run)
    noise = accounting.calibrate(advantage=0.09, **run)  # sampling alone: 0.0956
    assert 0.08 < risk(noise_multiplier=noise, **run).advantage <= 0.09


def test_a_prior_of_next_to_nothing():
    assert risk(noise_multiplier=1.0, sampling_probability=1.0, updates=1).right_guesses(1e-320) == 1.0


def test_curves_of_the_report_hold_at_once():
    found = risk(noise_multiplier=1.0, sampling_probability=1.0, updates=1)
    facts = found.to_dict()
    rates, misses = np.array(facts["trade_off"]).T
    exact = stats.norm.cdf(stats.norm.ppf(1 - rates) - 1.0)
    assert (misses <= exact + 1e-9).all() and misses == pytest.approx(exact, abs=1e-3)
    assert (np.diff(misses) <= 0).all() and found.trade_off(0.0) == pytest.approx(1.0, abs=1e-6)
    for epsilon, delta in facts["deltas"]:
        assert epsilon == pytest.approx(
            accounting.epsilon(noise_multiplier=1.0, sampling_probability=1.0, updates=1, delta=delta), abs=0.01
        )
        assert found.delta(epsilon) <= delta
    assert Risk(np.array([1.0]), np.array([0.1])).epsilon(1e-3) == math.inf
