"""From counts of an attack to lower bounds on epsilon."""

import math
from collections.abc import Mapping

import numpy as np
from scipy import special, stats

from lipdp.audit.family import Curve, Family

# Thresholds that are tried where one is chosen.
_MOST_THRESHOLDS = 400


def clopper_pearson(hits: float, trials: float, error: float) -> tuple[float, float]:
    """Returns bounds on a rate, below and above: each is wrong with probability at most `error`.

    Args:
        hits: Successes among `trials` independent trials.
        trials: At least 1.
        error: In (0, 1).

    Example:
        >>> [round(bound, 4) for bound in clopper_pearson(0, 59, 0.05)]
        [0.0, 0.0495]
    """
    low = stats.beta.ppf(error, hits, trials - hits + 1) if hits > 0 else 0.0
    high = stats.beta.isf(error, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def rates(hits: int, trials_in: int, alarms: int, trials_out: int, error: float) -> tuple[float, float]:
    """Returns a true positive rate from below and a false positive rate from above; both hold but for `error`."""
    return (
        clopper_pearson(hits, trials_in, error / 2.0)[0],
        clopper_pearson(alarms, trials_out, error / 2.0)[1],
    )


def epsilon_of_rates(true_positives: float, false_positives: float, delta: float) -> float:
    """Returns the least epsilon that allows a test with these rates, at `delta`; no curve is assumed.

    **Guarantee.** Bound: both directions of (epsilon, delta)-differential privacy (Kairouz, Oh & Viswanath 2015), so
    with the bounds of `rates` a lower bound.

    Example:
        >>> round(epsilon_of_rates(0.9, 0.1, 1e-5), 4)
        2.1972
    """
    best = 0.0
    for likely, rare in ((true_positives, false_positives), (1.0 - false_positives, 1.0 - true_positives)):
        if likely > delta:
            best = max(best, math.inf if rare <= 0.0 else math.log((likely - delta) / rare))
    return best


def rejects_rates(curve: Curve, true_positives: float, false_positives: float) -> bool:
    """Returns whether a curve forbids a test with so many true and so few false positives."""
    return false_positives < curve.false_positives(true_positives)


def best_threshold(
    scores: Mapping[str, tuple[np.ndarray, np.ndarray]], family: Family, error: float
) -> tuple[str, float]:
    """Chooses by which score, and from which value on, a trial is said to be a member.

    Args:
        scores: By name, those of trials with and without, of which NONE is counted later.
        family: Curves of the bound that this is for.
        error: Of that bound.

    Returns:
        The name and the value that give the largest bound on these trials alone. Few trials above a threshold show
        little, which keeps the choice away from chance finds in the tails.
    """
    tried = [(name, cut) for name, (inside, outside) in scores.items() for cut in _between(inside, outside)]
    if not tried:
        return next(iter(scores)), math.inf
    low, high = (np.concatenate(side) for side in zip(*(_rates(*both, error) for both in scores.values()), strict=True))
    # Where no curve is forbidden, the rates that are farthest apart.
    best = int(np.argmax(special.ndtri(np.clip(low, 1e-300, 1.0)) - special.ndtri(np.clip(high, 1e-300, 1.0 - 1e-16))))

    def rejects(curve):
        nonlocal best
        margin = curve.false_positives(low) - high
        found = int(np.argmax(margin))
        if margin[found] > 0.0:
            best = found
        return margin[found] > 0.0

    family.lower_bound(rejects, halvings=4)
    return tried[best]


def _between(inside, outside) -> np.ndarray:
    """Returns values between the scores, most of them in the middle and some in the tails."""
    pooled = np.unique(np.concatenate([inside, outside]))
    between = 0.5 * (pooled[1:] + pooled[:-1])
    if len(between) <= _MOST_THRESHOLDS:
        return between
    middle = between[np.linspace(0, len(between) - 1, _MOST_THRESHOLDS).astype(int)]
    return np.unique(np.concatenate([between[:20], middle, between[-20:]]))


def _rates(inside, outside, error) -> tuple[np.ndarray, np.ndarray]:
    """Returns bounds on the rates at all values of `_between`."""
    cuts, trials_in, trials_out = _between(inside, outside), len(inside), len(outside)
    hits = trials_in - np.searchsorted(np.sort(inside), cuts)
    alarms = trials_out - np.searchsorted(np.sort(outside), cuts)
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, stats.beta.ppf(error / 2.0, hits, trials_in - hits + 1), 0.0)
        high = np.where(alarms < trials_out, stats.beta.isf(error / 2.0, alarms + 1, trials_out - alarms), 1.0)
    return low, high


def one_run_epsilon(correct: int, guesses: int, canaries: int, delta: float, error: float) -> float:
    """Returns the largest epsilon that so many right guesses in one run refute; no curve is assumed.

    Args:
        correct: Right ones among the guesses.
        guesses: How many canaries were guessed; the rest was left out.
        canaries: How many there are, each in the data or not by a fair coin of its own.
        delta: In [0, 1).
        error: In (0, 1).

    **Guarantee.** Conditions: the number of guesses did not depend on the coins. Bound: under (epsilon, delta) the
    number of right guesses exceeds one of a binomial of rate `1 / (1 + e^-epsilon)` by i or more with a probability
    of at most `2 canaries delta / i`; epsilon is refuted where the chance of `correct` or more is then below `error`.
    Source: Steinke, Nasr & Jagielski 2023, theorem 5.2.

    Example:
        >>> round(one_run_epsilon(100, 100, 1000, 1e-5, 0.05), 2)
        3.47
    """
    return _largest(lambda epsilon: _chance(correct, guesses, canaries, epsilon, delta) < error)


def _chance(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    rate = special.expit(epsilon)
    above = stats.binom.sf(correct - 1, guesses, rate)
    if delta == 0.0 or correct == 0:
        return float(above)
    steps = np.arange(1, correct + 1)
    within = stats.binom.sf(correct - steps - 1, guesses, rate) - above
    return float(min(1.0, above + 2.0 * canaries * delta * np.max(within / steps, initial=0.0)))


def _largest(refuted) -> float:
    """Returns the largest value up to which an ordered claim is refuted, from below."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2.0 * high
        if high > 1e3:
            return math.inf
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def rejects_one_run(curve: Curve, correct: int, guesses: int, canaries: int, error: float) -> bool:
    """Returns whether a curve forbids so many right guesses in one run.

    Args:
        curve: The trade-off curve that is claimed.
        correct, guesses, canaries, error: As in `one_run_epsilon`.

    **Guarantee.** Conditions: as there. Bound: suppose `correct` or more of the guesses are right with a probability
    of `error`. Weigh the outcomes with i right guesses by i and by guesses - i, over the number of canaries: the first
    is how often a canary is found, the second how often one is missed, and the curve ties the two sums over "at least
    i right" for each i. Going down from `correct`, they only grow; past guesses / canaries, their sum over all
    outcomes, is a contradiction. Source: Mahloujifar, Melis & Chaudhuri 2025, theorem 3.2, with abstentions.
    """
    if not 0 < correct <= guesses:
        return False
    most = guesses / canaries
    found, missed = error * correct / canaries, error * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        grown = max(missed, curve.false_positives(found))
        if grown > missed:
            found += (grown - missed) * i / (guesses - i)
            missed = grown
        if found + missed > most:
            return True
    return False


def guess(scores: np.ndarray, members: np.ndarray, guesses: int) -> int:
    """Returns how many of the guesses are right: the highest half of them "in", the lowest half "out"."""
    order = np.argsort(scores, kind="stable")
    low = guesses // 2
    return int(np.sum(members[order[len(order) - (guesses - low) :]]) + np.sum(~members[order[:low]]))
