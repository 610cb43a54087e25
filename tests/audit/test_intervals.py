"""From counts to bounds: closed forms, and how often bounds are wrong."""

import math

import numpy as np
import pytest
from scipy import special, stats

from lipdp import accounting
from lipdp.audit import intervals
from lipdp.audit.family import Curve, Family

pytestmark = pytest.mark.backend_free

ERROR = 0.05


def gaussian(noise_multiplier, delta=1e-5):
    return Family.of([accounting.Mechanism(1.0, noise_multiplier, 1)], delta)


def poisson(noise_multiplier, rate=0.5, count=4, delta=1e-5):
    return Family.of([accounting.Mechanism(rate, noise_multiplier, count)], delta)


def test_clopper_pearson_is_where_the_tail_has_the_error():
    low, high = intervals.clopper_pearson(7, 50, 0.02)
    assert stats.binom.sf(6, 50, low) == pytest.approx(0.02)
    assert stats.binom.cdf(7, 50, high) == pytest.approx(0.02)


@pytest.mark.parametrize(("hits", "expected"), [(0, (0.0, 1 - 0.05 ** (1 / 20))), (20, (0.05 ** (1 / 20), 1.0))])
def test_clopper_pearson_at_the_ends(hits, expected):
    assert intervals.clopper_pearson(hits, 20, 0.05) == pytest.approx(expected)


def test_epsilon_of_rates_looks_at_both_directions():
    assert intervals.epsilon_of_rates(0.5, 0.1, 0.0) == pytest.approx(math.log(5.0))
    # One in a thousand is missed: the other direction says more.
    assert intervals.epsilon_of_rates(0.999, 0.5, 0.0) == pytest.approx(math.log(500.0))
    assert intervals.epsilon_of_rates(0.5, 0.1, 0.1) == pytest.approx(math.log(4.0))
    assert intervals.epsilon_of_rates(0.4, 0.5, 1e-5) == 0.0
    assert intervals.epsilon_of_rates(0.5, 0.0, 1e-5) == math.inf


def test_one_run_epsilon_without_delta_is_that_of_a_binomial():
    # All of 100 right: refuted as long as rate^100 is below the error.
    rate = ERROR ** (1 / 100)
    assert intervals.one_run_epsilon(100, 100, 100, 0.0, ERROR) == pytest.approx(math.log(rate / (1 - rate)), abs=1e-6)


def test_one_run_epsilon_follows_the_recursion_of_the_paper():
    def p_value(epsilon, correct, guesses, canaries, delta):
        rate = 1.0 / (1.0 + math.exp(-epsilon))
        above = sum(stats.binom.pmf(k, guesses, rate) for k in range(correct, guesses + 1))
        total, alpha = 0.0, 0.0
        for i in range(1, correct + 1):
            total += stats.binom.pmf(correct - i, guesses, rate)
            alpha = max(alpha, total / i)
        return above + 2.0 * alpha * delta * canaries

    for case in ((90, 100, 1000, 1e-5), (60, 80, 200, 1e-4), (600, 600, 1000, 1e-5)):
        found = intervals.one_run_epsilon(*case, ERROR)
        assert p_value(found, *case) == pytest.approx(ERROR, rel=1e-4)


def test_delta_costs_one_run_something():
    bounds = [intervals.one_run_epsilon(95, 100, 10000, delta, ERROR) for delta in (0.0, 1e-5, 1e-3)]
    assert bounds == sorted(bounds, reverse=True) and bounds[-1] < bounds[0]


def test_a_guess_takes_the_ends():
    scores, members = np.arange(10.0), np.arange(10) >= 5
    assert intervals.guess(scores, members, 4) == 4
    assert intervals.guess(scores, ~members, 4) == 0
    assert intervals.guess(scores, members, 10) == 10
    members[9] = False
    assert intervals.guess(scores, members, 5) == 4


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_one_run_refutes_the_true_curve_rarely(share):
    """Of 400 experiments with the very mechanism of the curve; the bound allows 5 %."""
    rng, mu, count = np.random.default_rng(0), 1.0, 200
    curve, guesses, wrong = gaussian(1.0 / mu).curve(), round(share * count), 0
    for _ in range(400):
        members = rng.random(count) < 0.5
        right = intervals.guess(mu * members + rng.standard_normal(count), members, guesses)
        wrong += intervals.rejects_one_run(curve, right, guesses, count, ERROR)
    assert wrong <= stats.binom.isf(1e-6, 400, ERROR)


@pytest.mark.parametrize(("guesses", "canaries", "error"), [(100, 200, 0.5), (20, 20, 0.2), (200, 200, 0.2)])
def test_one_run_refutes_as_its_recursion_does(guesses, canaries, error):
    """Theorem 3.2 of Mahloujifar et al., step by step, with a curve of one pair (epsilon, delta)."""
    curve = Curve(accounting.Risk(np.array([1.0]), np.array([0.01])))

    def refuted(correct):
        found, missed = error * correct / canaries, error * (guesses - correct) / canaries
        for i in reversed(range(correct)):
            forced = max(0.0, math.exp(-1.0) * (found - 0.01), 1.0 - 0.01 - math.exp(1.0) * (1.0 - found))
            if forced > missed:
                found, missed = found + (forced - missed) * i / (guesses - i), forced
        return found + missed > guesses / canaries

    counts = range(guesses // 2, guesses + 1)
    expected = [refuted(correct) for correct in counts]
    assert [intervals.rejects_one_run(curve, correct, guesses, canaries, error) for correct in counts] == expected
    assert 0 < sum(expected) < len(expected)


def test_one_run_refutes_a_curve_that_is_far_too_small():
    rng, count = np.random.default_rng(0), 1000
    members = rng.random(count) < 0.5
    right = intervals.guess(2.0 * members + rng.standard_normal(count), members, 200)
    family = gaussian(1.0)
    assert intervals.rejects_one_run(family.curve(), right, 200, count, ERROR)
    assert not intervals.rejects_one_run(family.curve(0.4), right, 200, count, ERROR)
    assert not intervals.rejects_one_run(family.curve(), 0, 200, count, ERROR)


def test_one_run_allows_for_canaries_that_are_found_together():
    """A mechanism that tells all coins with probability 0.2, else nothing, is (0, 0.2)-private: trials that were taken
    for independent would refute that each time it does."""
    curve = Curve(accounting.Risk(np.zeros(1), np.full(1, 0.2)))
    assert not intervals.rejects_one_run(curve, 50, 50, 50, ERROR)
    assert intervals.rejects_one_run(curve, 50, 50, 50, 0.5)
    assert intervals.one_run_epsilon(50, 50, 50, 0.2, ERROR) == 0.0


@pytest.mark.parametrize("family", [gaussian(0.8), poisson(0.9)], ids=["gaussian", "poisson"])
def test_a_curve_gives_back_what_its_risk_allows(family):
    curve = family.curve()
    for rate in (1e-4, 0.01, 0.1, 0.5, 0.9):
        allowed = curve.risk.true_positive_rate(rate)
        assert curve.false_positives(allowed) == pytest.approx(rate, rel=0.02)
        # Never above: a bound must not forbid what the curve allows.
        assert curve.false_positives(allowed) <= rate * (1.0 + 1e-4)
    assert curve.false_positives(np.array([0.0, 1.0])).tolist() == pytest.approx([0.0, 1.0])


def test_more_noise_allows_less():
    family = poisson(1.0)
    rates = [family.curve(factor).false_positives(0.5) for factor in (0.5, 1.0, 2.0, 4.0)]
    assert rates == sorted(rates)


def test_the_lower_bound_is_epsilon_of_the_least_noise_that_is_refuted():
    family = gaussian(1.0)
    # Rates on the curve of 1.25 times the noise.
    edge = family.curve(1.25)
    high = edge.false_positives(0.6)
    bound = family.lower_bound(lambda curve: intervals.rejects_rates(curve, 0.6, high))
    assert bound <= family.epsilon(1.25) and bound == pytest.approx(family.epsilon(1.25), rel=0.01)


def test_the_lower_bound_at_its_ends():
    family = gaussian(1.0)
    assert family.lower_bound(lambda curve: False) == 0.0
    assert family.lower_bound(lambda curve: True) == math.inf


def test_rates_that_no_noise_explains_give_an_infinite_bound():
    """With Poisson sampling an example may never be drawn: nobody finds more than those who were."""
    family = poisson(1.0, rate=0.5, count=2)
    assert family.lower_bound(lambda curve: intervals.rejects_rates(curve, 0.9, 0.01)) == math.inf


def test_held_out_thresholds_make_true_bounds():
    """A bound of 95 % from trials of the curve itself: wrong in at most 5 % of experiments."""
    rng, mu, wrong = np.random.default_rng(2), 1.0, 0
    family = gaussian(1.0 / mu)
    stated = family.epsilon()
    for _ in range(60):
        inside, outside = mu + rng.standard_normal(300), rng.standard_normal(300)
        _, cut = intervals.best_threshold({"": (inside[:75], outside[:75])}, family, ERROR)
        hits, alarms = int(np.sum(inside[75:] >= cut)), int(np.sum(outside[75:] >= cut))
        rates = intervals.rates(hits, 225, alarms, 225, ERROR)
        wrong += intervals.rejects_rates(family.curve(), *rates)
        assert intervals.epsilon_of_rates(*rates, 1e-5) <= stated
    assert wrong <= stats.binom.isf(1e-4, 60, ERROR)


def test_the_best_score_is_found():
    rng = np.random.default_rng(3)
    noise = {"useless": (rng.standard_normal(200), rng.standard_normal(200))}
    sharp = {"sharp": (3.0 + rng.standard_normal(200), rng.standard_normal(200))}
    name, cut = intervals.best_threshold(noise | sharp, gaussian(1.0), ERROR)
    assert name == "sharp" and 0.0 < cut < 3.5


def test_scores_that_are_all_the_same_say_nothing():
    assert intervals.best_threshold({"a": (np.ones(3), np.ones(3))}, gaussian(1.0), ERROR) == ("a", math.inf)


def test_the_gaussian_curve_is_exact():
    curve = Curve(accounting.risk_of([accounting.Mechanism(1.0, 2.0, 1)]))
    assert curve.false_positives(0.7) == pytest.approx(float(special.ndtr(special.ndtri(0.7) - 0.5)), rel=1e-12)
