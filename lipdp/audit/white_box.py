"""White box: canaries whose gradient is exactly as long as is charged, and an attacker who sees every update."""

import dataclasses
import math
from typing import Any

import numpy as np

from lipdp import checks, strategies
from lipdp import sampling as samplers
from lipdp.accounting.schemes import ADD_OR_REMOVE, Sampling
from lipdp.audit import intervals, watched
from lipdp.audit.family import Family
from lipdp.audit.networks import NETWORKS, Canaries
from lipdp.audit.result import Audit, roc
from lipdp.audit.scores import NAMES
from lipdp.privacy import Plan

# Part of the trials on which score and threshold are chosen.
CHOICE = 0.25
# Guesses in one run, as parts of the canaries.
GUESSES = (0.05, 0.2, 1.0)
_RUNS, _FITS = 300, 12
_CANARIES, _OF_DPIS = 256, 2048
_ASSUMES = (
    "updates have noise and draws of their own, and orthogonal canaries do not disturb each other, as a sound run has "
    "it; score and threshold were chosen on a quarter of the trials, none of which is counted"
)


def white_box(
    strategy: Any = "dpsgd",
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float = 1e-5,
    updates: int = 4,
    sampling: str | Sampling = "poisson",
    sampling_probability: float = 0.5,
    relation: str | None = None,
    rows_per_person: int | None = None,
    canaries: int | None = None,
    runs: int | None = None,
    network: str | Canaries = "dense",
    crowd: int = 0,
    confidence: float = 0.95,
    microbatch_size: int | None = None,
    noise_generator: str = "threefry",
    seed: int | None = None,
) -> Audit:
    """Audits a strategy with canaries that contribute exactly what is charged, on a network of the audit's own.

    All canaries train in one `fit` whose learning rate is 0: the weights stay, so that each `updates` updates are a run
    of their own, and many runs follow each other. Each canary is in the data or not by a fair coin.

    Args:
        strategy: As in `fit`, a name or an object.
        epsilon: Budget of one run of `updates` updates; or give the noise.
        noise_multiplier: Noise standard deviation over sensitivity, instead of `epsilon`.
        delta: Of the stated epsilon and of the lower bound, in (0, 1).
        updates: Updates of one run, at least 1; for samplers by epoch a multiple of those of an epoch. Few updates make
            many runs, and sharp bounds.
        sampling: Name of the sampler, or a `Sampling` of a name and a capacity.
        sampling_probability: Batch size over number of rows, in (0, 1]; the nearest fraction that whole rows allow.
        relation: Neighboring relation; default: the first one of the sampler. Where it replaces one row, a canary that
            is not there stands in the data with the opposite gradient; else a row without gradient takes its place.
        rows_per_person: None, or as in `fit(person_ids=...)`: each canary is then a person with twice as many rows.
        canaries: How many, at least 8, or as many as `network` has; default: 256, for DPIS 2048.
        runs: How many runs to observe; default: 300. For DPIS each is a `fit` of its own, as each of its epochs
            follows from the one before; default: 12. Hence more canaries, which also leave the sum of norms, whose
            noise grows with the data and which the attacker does not look at, a small part of the budget.
        network: `"dense"`; for clipless also `"convolution"` and `"feature_map_bias"`; or `Canaries` of your own.
        crowd: 0, or the number of other rows, all of which have the opposite gradient. There is then one canary, and
            it is truly left out of a second data set: this sees what depends on how many rows there are or are drawn.
            For Poisson sampling; the runs of both data sets take as long as two audits.
        confidence: Of each lower bound, in (0, 1).
        microbatch_size, noise_generator: As in `fit`.
        seed: Of coins and of `fit`, for a repeatable audit; default: the operating system's entropy.

    Returns:
        An `Audit`. `"curve"` is its headline; `"rates"` assumes no curve. With one run also `"one_run"` and
        `"one_run_curve"`.

    Raises:
        ValueError: an argument is out of range, or canaries do not have directions of their own.

    Guarantee:
        Conditions: trials are independent, which they are if the library does what it says. Bound: score and threshold
        are chosen on a quarter of the trials and counted on the others, so that Clopper-Pearson needs no correction;
        both rates hold together by the union bound. `"curve"` is epsilon of the least noise whose trade-off curve,
        under the plan's sampler and number of updates, forbids these rates. With a crowd, the number of rows, which is
        public, differs by one between the data sets, and the rate with it: `crowd` must be so large that this alone
        moves the sum by less than a quarter of what is charged, or all rows be in each batch. Sources: Nasr et al. 2021
        and 2023 (Dirac gradients, trade-off curves); Zanella-Beguelin et al. 2023.

    Example:
        >>> found = white_box("dpsgd", epsilon=4.0, runs=20, canaries=64, seed=0)
        >>> found.epsilon_lower < found.epsilon
        True
    """
    strategy, confidence = strategies.get(strategy), checks.fraction("confidence", confidence)
    delta, updates = checks.delta(delta), checks.integer("updates", updates, minimum=1)
    importance = isinstance(strategy, strategies.DPIS)
    runs = checks.integer("runs", _FITS if importance else _RUNS) if runs is None else runs
    runs, crowd = checks.integer("runs", runs, minimum=1), checks.integer("crowd", crowd)
    canaries = (_OF_DPIS if importance else _CANARIES) if canaries is None else canaries
    if isinstance(network, str):
        canaries = 8 if crowd else checks.integer("canaries", canaries, minimum=8)
        network = NETWORKS[checks.choice("network", network, NETWORKS)](strategy, canaries)
    rate = checks.probability("sampling_probability", sampling_probability)
    rows, batch_size = _sizes(crowd or len(network.x), rate)
    named = samplers.get(sampling)
    scheme = Sampling(named.name, named.capacity, relation=relation, rows_per_person=rows_per_person)
    scheme = scheme.bind(rows, batch_size)
    plan = _plan(scheme, updates, epsilon, noise_multiplier, delta, importance)
    if crowd:
        _check_crowd(plan, crowd, importance)
        one = dataclasses.replace(network, x=network.x[:1], y=network.y[:1], opposite_y=network.opposite()[:1])
        network = one
    options = {"microbatch_size": microbatch_size, "noise_generator": noise_generator}
    rng = np.random.default_rng(seed)
    setting = watched.Setting(network, strategy, plan, options, None if seed is None else rng)
    if crowd:
        trials, family, stated = watched.crowded(setting, runs, rng)
    else:
        trials, family, stated = watched.coins(setting, runs, epsilon if importance else None, rng)
    bounds, details, points = _bounds(trials, family, 1.0 - confidence)
    details |= {
        "updates": updates,
        "noise_multiplier": plan.noise_multiplier,
        "sampling_probability": scheme.sampling_probability,
        "batch_size": batch_size,
        "num_examples": rows,
        "rows_per_person": rows_per_person,
        "canaries": len(network.x),
        "runs": runs,
        "crowd": crowd,
    }
    common = strategy.name, scheme.name, scheme.relation, stated, delta, confidence
    return Audit("white_box", *common, bounds, "curve", details, points, family.curve().risk)


def _sizes(canaries: int, rate: float) -> tuple[int, int]:
    """Returns rows and batch size, of which as many rows as needed are no canaries."""
    batch_size = max(1, math.ceil(rate * canaries * (1.0 - 1e-9)))
    return max(canaries, round(batch_size / rate)), batch_size


def _plan(scheme, updates, epsilon, noise_multiplier, delta, importance) -> Plan:
    if scheme.by_epoch and updates % scheme.updates_per_epoch:
        raise ValueError(
            "`updates` must be a multiple of the updates of an epoch: such samplers are charged by the epoch. "
            f"Received: updates={updates}, {scheme.updates_per_epoch} in an epoch."
        )
    if (epsilon is None) == (noise_multiplier is None) or (importance and epsilon is None):
        raise ValueError(
            "Give one of `epsilon` and `noise_multiplier`, and for DPIS `epsilon`. Received: "
            f"epsilon={epsilon!r}, noise_multiplier={noise_multiplier!r}."
        )
    if epsilon is None:
        return Plan(sampling=scheme, updates=updates, noise_multiplier=noise_multiplier, delta=delta)
    return Plan.calibrated(sampling=scheme, updates=updates, epsilon=checks.budget(epsilon), delta=delta)


def _check_crowd(plan, crowd, importance) -> None:
    scheme = plan.sampling
    if importance or scheme.name != "poisson" or scheme.relation != ADD_OR_REMOVE:
        raise ValueError(
            "A crowd is for Poisson sampling under adding or removing one row, and not for DPIS. Received: "
            f"sampling={scheme.name!r}, relation={scheme.relation!r}."
        )
    # One row more lowers the rate of all: their sum then moves by about the rate, of which the crowd's own variance
    # leaves 1 / sqrt(variance); each update may show 1 / noise of it.
    rate = scheme.sampling_probability
    needed = math.ceil(16.0 * plan.noise_multiplier**2 / (rate * (1.0 - rate))) if rate < 1.0 else 1
    if crowd < needed:
        raise ValueError(
            f"`crowd` must be at least {needed} here, or sampling_probability=1: the number of rows is public, and a "
            f"small crowd shows it. Received: crowd={crowd}, sampling_probability={rate:g}."
        )


def _bounds(trials: watched.Trials, family: Family, error: float) -> tuple[dict, dict, np.ndarray]:
    members, chosen = trials.members, choice(trials.members.shape)
    tried = {name: (s[chosen & members], s[chosen & ~members]) for name, s in trials.scores.items()}
    name, cut = intervals.best_threshold(tried, family, error)
    scores = trials.scores[name]
    inside, outside = scores[~chosen & members], scores[~chosen & ~members]
    bounds, details = rate_bounds(inside, outside, cut, family, error)
    details = {"score": name, **details, "assumes": _ASSUMES}
    if len(members) == 1:
        bounds |= one_run_bounds(trials.scores[NAMES[0]][0], members[0], family, error)
    return bounds, details, roc(inside, outside)


def choice(shape: tuple[int, int]) -> np.ndarray:
    """Returns on which trials `(runs, canaries)` to choose: the first runs, or of few runs the first canaries."""
    runs, canaries = shape
    chosen = np.zeros(shape, bool)
    if runs >= 4:
        chosen[: math.ceil(CHOICE * runs)] = True
    else:
        chosen[:, : math.ceil(CHOICE * canaries)] = True
    return chosen


def rate_bounds(inside: np.ndarray, outside: np.ndarray, cut: float, family: Family, error: float) -> tuple[dict, dict]:
    """Returns the bounds that follow from trials with and without at a threshold, and what was counted."""
    hits, alarms = int(np.sum(inside >= cut)), int(np.sum(outside >= cut))
    rates = intervals.rates(hits, len(inside), alarms, len(outside), error)
    bounds = {
        "curve": family.lower_bound(lambda curve: intervals.rejects_rates(curve, *rates)),
        "rates": intervals.epsilon_of_rates(*rates, family.delta),
    }
    details = {
        "trials": [len(inside), len(outside)],
        "hits": hits,
        "false_alarms": alarms,
        "true_positive_rate_at_least": rates[0],
        "false_positive_rate_at_most": rates[1],
    }
    return bounds, details


def one_run_bounds(scores: np.ndarray, members: np.ndarray, family: Family, error: float) -> dict[str, float]:
    """Returns the two bounds from guesses in one run, each the best of `GUESSES` at a part of the error."""
    count, part = len(scores), error / len(GUESSES)
    numbers = sorted({max(2, round(share * count)) for share in GUESSES})
    tried = [(intervals.guess(scores, members, number), number) for number in numbers]
    return {
        "one_run_curve": family.lower_bound(
            lambda curve: any(intervals.rejects_one_run(curve, right, n, count, part) for right, n in tried)
        ),
        "one_run": max(intervals.one_run_epsilon(right, n, count, family.delta, part) for right, n in tried),
    }
