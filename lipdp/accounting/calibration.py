"""The noise, or the number of updates, that a budget allows."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from scipy import optimize

from lipdp import checks
from lipdp.accounting import rdp, schemes
from lipdp.accounting.accountant import Accountant
from lipdp.accounting.composition import compose, rough
from lipdp.accounting.mechanism import Mechanism, canonical
from lipdp.accounting.rdp import LARGEST_NOISE, SMALLEST_NOISE
from lipdp.accounting.risk_budget import check_risk, noise_for
from lipdp.accounting.rounding import round_up
from lipdp.accounting.schemes import Sampling

_DIGITS = 6
_MOST_UPDATES = 10**9


@checks.known_arguments("relation", "group_size", "num_examples", "capacity")
def calibrate(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sampling_probability: float | None = None,
    updates: int,
    accountant: str | Accountant = "pld",
    spent: Iterable[Mechanism] = (),
    sampler: str | Sampling = "poisson",
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    **settings: Any,
) -> float:
    """Returns the noise multiplier that spends a budget, or that keeps attacks below a bound.

    Args:
        epsilon: the budget, above 0.
        delta: in (0, 1); below 1e-11 the bound of "pld" is that of "rdp", unless nothing is sampled.
        advantage: instead of epsilon and delta, in (0, 1): the most that the true positive rate of any attack may be
            above its false positive rate.
        tpr, fpr: instead of epsilon and delta: the largest true positive rate at this false positive rate, both in
            (0, 1) and the first one larger.
        sampling_probability: expected batch size / number of examples, in (0, 1]; left out with a `Sampling`.
        updates: number of updates to come, an int of at least 1.
        accountant: "pld" (tight, default), "rdp", "autodp", or an `Accountant`.
        spent: releases already made, to be paid from the same budget; for groups of the same size.
        sampler: a name in `SAMPLERS`, or a bound `Sampling`.
        **settings: `relation`, `group_size`, `num_examples`, `capacity`, as in `Mechanism`.

    Returns:
        A float of six significant digits, rounded up.

    Raises:
        ValueError: when an argument is out of range, when `spent` leaves nothing of the budget, or when the
            budget or delta is so large that no noise is needed.

    **Guarantee.**
    Conditions: those of `Mechanism`; the noise is chosen once, before the first of these updates.
    Bound: `compose` of `spent` and the updates is at most `epsilon`, and at least 99 % of it; less only where epsilon
    jumps to 0, as it does for tiny budgets.
    Not covered: choosing again during training in view of the results.
    Source: checked by evaluating the returned value.

    Example:
        >>> z = calibrate(epsilon=1.0, delta=1e-5, sampling_probability=256 / 60000, updates=2344)
        >>> 1.04 < z < 1.06
        True
        >>> z = calibrate(advantage=0.1, sampling_probability=256 / 60000, updates=2344)
        >>> 0.99 < z < 1.06
        True
    """
    bounds = {"advantage": advantage, "tpr": tpr, "fpr": fpr}
    wanted = {name: value for name, value in bounds.items() if value is not None}
    sampling = schemes.get(sampling_probability, sampler, **settings)
    if wanted:
        if epsilon is not None or delta is not None:
            raise ValueError(
                "Noise follows from a budget or from a bound on risk, not from both. Received: "
                f"epsilon={epsilon!r}, delta={delta!r}, {', '.join(f'{k}={v!r}' for k, v in wanted.items())}. Pass one."
            )
        found: dict[str, Any] = {"updates": updates, "sampling": sampling, "accountant": accountant, "spent": spent}
        return noise_for(check_risk(wanted), **found)
    if epsilon is None or delta is None:
        raise ValueError(
            "Noise follows from a budget or from a bound on risk. Received: "
            f"epsilon={epsilon!r}, delta={delta!r}. Pass both of these, `advantage`, or `tpr` and `fpr`."
        )
    budget = checks.budget(epsilon)
    delta = checks.delta(delta)
    updates = checks.integer("updates", updates, minimum=1)
    spent = _spent(spent, delta, accountant, budget)

    def releases(noise):
        return [*spent, Mechanism.of_updates(None, noise, updates, sampling)]

    def cost(noise):
        return compose(releases(noise), delta, accountant)

    def quick(noise):
        return rough(releases(noise), delta, accountant)

    guess = _first_guess(budget, delta, sampling.sampling_probability, updates, releases)
    guess = _solve(quick, budget, *_bracket(quick, budget, guess))
    noise = _polish(cost, budget, guess, _slope(quick, guess))
    if noise is None:
        noise = _solve(cost, budget, *_bracket(cost, budget, guess))
    while cost(noise := round_up(noise, _DIGITS)) > budget:  # the last digit: the grid may have moved
        noise *= 1.0 + 2.0 * 10.0 ** (1 - _DIGITS)
    # Epsilon may jump: from infinity, where there is no noise to calibrate, or to 0, where a tiny budget is met.
    if cost(noise) < 0.99 * budget and not math.isfinite(cost(0.99 * noise)):
        raise needs_no_noise(budget)
    return noise


@checks.known_arguments("relation", "group_size", "num_examples", "capacity")
def max_updates(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float | None = None,
    noise_multiplier: float,
    accountant: str | Accountant = "pld",
    spent: Iterable[Mechanism] = (),
    sampler: str | Sampling = "poisson",
    **settings: Any,
) -> int:
    """Returns how many updates a budget allows.

    Args:
        epsilon: the budget, above 0.
        delta: in (0, 1); below 1e-11 the bound of "pld" is that of "rdp", unless nothing is sampled.
        sampling_probability: expected batch size / number of examples, in (0, 1]; left out with a `Sampling`.
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, at least 0.
        accountant: "pld" (tight, default), "rdp", "autodp", or an `Accountant`.
        spent: releases already made, to be paid from the same budget; for groups of the same size.
        sampler: a name in `SAMPLERS`, or a bound `Sampling`.
        **settings: `relation`, `group_size`, `num_examples`, `capacity`, as in `Mechanism`.

    Returns:
        The largest int whose epsilon, `spent` included, is at most `epsilon`; 0 when none is; at most 10^9.

    Raises:
        ValueError: when an argument is out of range.

    **Guarantee.**
    Conditions: those of `Mechanism`.
    Bound: `compose` at the returned number is at most `epsilon`, and above it at one more (below 10^9).
    "shuffle" and "fixed_order": counted from the first update of an epoch.
    Not covered: choosing the budget in view of the results.
    Source: checked by evaluating both numbers.

    Example:
        >>> max_updates(epsilon=1.0, delta=1e-6, sampling_probability=0.01, noise_multiplier=2.0)
        1873
    """
    budget = checks.budget(epsilon)
    delta = checks.delta(delta)
    spent = canonical(spent)
    sampling = schemes.get(sampling_probability, sampler, **settings)
    single = Mechanism.of_updates(None, noise_multiplier, 1, sampling)
    # Samplers that go through the data pay for an epoch when it begins.
    unit = sampling.updates_per_epoch if sampling.by_epoch else 1

    def releases(count):
        return [*spent, dataclasses.replace(single, count=count)]

    def cost(count):
        return compose(releases(count), delta, accountant)

    if cost(0) > budget or cost(1) > budget:
        return 0
    start = _last(lambda count: rough(releases(count), delta, accountant), budget, 1)
    return min(_MOST_UPDATES, unit * _last(cost, budget, start))


def _first_guess(budget, delta, probability, updates, releases) -> float:
    """Returns a noise multiplier to start from, by RDP where that is possible."""
    guess = math.sqrt(2.0 * math.log(1.25 / delta) * updates) * probability / budget + 0.5
    known = [m for m in releases(1.0) if rdp.supports(m)]
    if len(known) == len(releases(1.0)):
        return _rdp_noise(lambda z: rough(releases(z), delta, "rdp"), budget, min(guess, LARGEST_NOISE))
    size = max(m.group_size for m in releases(1.0))

    def plain(noise):  # one example, at k times the norm where k examples meet in a batch: only to start from
        scale = max(1.0, size * math.sqrt(probability)) if size > 1 else 1.0
        return rough([Mechanism(probability, noise / scale, updates)], delta, "rdp")

    return _rdp_noise(plain, budget, min(guess, LARGEST_NOISE))


def _last(cost, budget, start) -> int:
    """Returns the largest count whose cost is within the budget; that of 1 is."""
    low, high, gap = 1, start, max(1, start // 64)
    while cost(high) <= budget:
        if high >= _MOST_UPDATES:
            return _MOST_UPDATES
        low, high, gap = high, min(_MOST_UPDATES, high + gap), 4 * gap
    while high - low > 1:
        middle = _interpolate(cost, budget, low, high)
        near = max(1, (high - low) // 32)
        # The estimate is close to the answer, so its neighbor cuts off the other side.
        for count in (middle, middle + near if cost(middle) <= budget else middle - near):
            if low < count < high:
                low, high = (count, high) if cost(count) <= budget else (low, count)
    return low


def _interpolate(cost, budget, low, high) -> int:
    bottom, top = cost(low), cost(high)
    if not math.isfinite(top) or bottom <= 0.0 or top <= bottom:
        return (low + high) // 2
    share = math.log(budget / bottom) / math.log(top / bottom)
    middle = math.exp(math.log(low) + share * math.log(high / low))
    return min(max(int(middle), low + 1), high - 1)


def _spent(spent, delta, accountant, budget) -> tuple[Mechanism, ...]:
    spent = canonical(spent)
    paid = compose(spent, delta, accountant)
    if paid >= budget:
        raise ValueError(
            f"The budget is already spent: the releases made so far cost epsilon={paid:.6g}. "
            f"Received: epsilon={budget!r}. Pass a larger epsilon, or stop training."
        )
    return spent


def _rdp_noise(cost, budget, noise) -> float:
    """Returns RDP's noise to a percent, as a first guess: it is cheap and 5 to 10 % above PLD's."""
    if not cost(LARGEST_NOISE) <= budget < cost(SMALLEST_NOISE):
        return noise
    low, high = _bracket(cost, budget, noise)
    return optimize.brentq(lambda z: min(cost(z), 1e6 * budget) - budget, low, high, rtol=1e-2)


def needs_no_noise(budget: float) -> ValueError:
    """Returns the error for a budget that nothing can exceed."""
    return ValueError(
        f"The budget needs no noise at all, so it protects nobody. Received: epsilon={budget!r}. "
        "Pass an epsilon of the order of 1 to 10, and a delta well below 1 / number of examples."
    )


def _slope(cost, noise) -> float:
    """Returns d log cost / d log noise; 0 where that makes no sense."""
    here, there = cost(noise), cost(1.02 * noise)
    if not (math.isfinite(here) and 0.0 < there < here):
        return 0.0
    return math.log(there / here) / math.log(1.02)


def _polish(cost, budget, noise, slope):
    """Returns a noise multiplier that spends 99.99 % of the budget; None when Newton fails."""
    for _ in range(4):
        spent = cost(noise)
        if 0.9999 * budget <= spent <= budget:
            return noise
        if not (slope < 0.0 and 0.5 * budget < spent < 2.0 * budget):
            return None
        noise *= math.exp(math.log((1.0 - 3e-5) * budget / spent) / slope)
    return None


def _bracket(cost, budget, noise) -> tuple[float, float]:
    """Returns low < high with cost(low) > budget >= cost(high)."""
    if cost(noise) > budget:
        while cost(noise) > budget:
            if noise >= LARGEST_NOISE:
                raise ValueError(
                    f"No noise multiplier up to {LARGEST_NOISE:g} meets the budget. Received: epsilon={budget!r}. "
                    "Pass a larger epsilon, fewer updates or a smaller batch size."
                )
            low, noise = noise, min(1.25 * noise, LARGEST_NOISE)
        return low, noise
    high = noise
    while cost(noise) <= budget:
        if noise <= SMALLEST_NOISE:
            raise needs_no_noise(budget)
        high, noise = noise, max(0.85 * noise, SMALLEST_NOISE)
    return noise, high


def _solve(cost, budget, low, high) -> float:
    """Returns a noise multiplier with cost at the budget, to a few 1e-6."""

    def excess(log_noise):
        return math.log(min(max(cost(math.exp(log_noise)), 1e-12 * budget), 1e6 * budget) / budget)

    return math.exp(optimize.brentq(excess, math.log(low), math.log(high), xtol=2e-6, rtol=1e-14))
