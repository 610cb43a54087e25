"""The noise that a bound on risk allows, instead of one on epsilon."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from scipy import optimize

from lipdp import checks
from lipdp.accounting import schemes
from lipdp.accounting.accountant import Accountant
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.rdp import LARGEST_NOISE, SMALLEST_NOISE
from lipdp.accounting.risk import Risk, risk_of
from lipdp.accounting.rounding import round_up

_DIGITS = 6
_KINDS = ("advantage",), ("tpr", "fpr")
_NEEDS_NO_NOISE = "The bound on risk needs no noise at all, so it protects nobody. Pass a smaller one."
_CERTAINTY = Risk(np.zeros(1), np.ones(1))


def check_risk(risk: Mapping[str, float]) -> dict[str, float]:
    """Returns a bound on risk as a dictionary of floats.

    Args:
        risk: `{"advantage": a}`, a in (0, 1): true positive rate less false positive rate of any attack; or
            `{"tpr": t, "fpr": f}`, 0 < f < t < 1: the true positive rate at this false positive rate.

    Raises:
        ValueError: other keys, or values out of range.

    Example:
        >>> check_risk({"advantage": 0.1})
        {'advantage': 0.1}
    """
    if not isinstance(risk, Mapping) or tuple(sorted(risk, reverse=True)) not in _KINDS:
        raise ValueError(
            "A bound on risk is an advantage, or a true positive rate at a false positive rate. Received: "
            f'risk={risk!r}. Pass {{"advantage": 0.1}} or {{"tpr": 0.02, "fpr": 0.01}}.'
        )
    values = {name: checks.fraction(name, risk[name]) for name in ("advantage", "tpr", "fpr") if name in risk}
    if "tpr" in values and values["tpr"] <= values["fpr"]:
        raise ValueError(
            "`tpr` must be above `fpr`: a coin has both alike. Received: "
            f"tpr={values['tpr']!r}, fpr={values['fpr']!r}. Pass a larger tpr."
        )
    return values


def excess(found: Risk, wanted: Mapping[str, float]) -> float:
    """Returns by how much a risk is above the one that is wanted; at most 0 where it is met."""
    if "advantage" in wanted:
        return found.advantage - wanted["advantage"]
    return found.true_positive_rate(wanted["fpr"]) - wanted["tpr"]


def noise_for(
    wanted: Mapping[str, float],
    *,
    updates: int,
    sampling: schemes.Sampling,
    accountant: str | Accountant = "pld",
    spent: Iterable[Mechanism] = (),
) -> float:
    """Returns the least noise multiplier, of six digits, with which no attack exceeds a bound on risk.

    Args:
        wanted: As `check_risk` returns it.
        updates, sampling, accountant, spent: As in `calibrate`.

    Raises:
        ValueError: what is spent exceeds the bound already, or no noise meets it.

    **Guarantee.**
    Conditions: those of `Mechanism`; the noise is chosen once, before the first of these updates.
    Bound: `risk_of` what is spent and the updates meets the bound.
    Not covered: choosing again in view of the results.
    Source: checked by evaluating the returned value.
    """
    spent, updates = tuple(spent), checks.integer("updates", updates, minimum=1)
    size = wanted["advantage"] if "advantage" in wanted else wanted["tpr"] - wanted["fpr"]
    # What calibration leaves over is no budget to train on.
    if spent and excess(risk_of(spent, accountant), wanted) >= -0.01 * size:
        raise ValueError(
            f"The bound on risk is used up by what was released before. Received: {words(wanted)}. Raise it, or build "
            "a new model (its cost adds up outside of this ledger)."
        )

    def above(noise: float) -> float:
        return excess(risk_of([*spent, Mechanism.of_updates(None, noise, updates, sampling)], accountant), wanted)

    low, high = _bracket(above, math.sqrt(updates) * (sampling.sampling_probability or 1.0) + 0.5)
    noise = high if low == high else optimize.brentq(lambda log: above(math.exp(log)), math.log(low), math.log(high))
    noise = noise if low == high else math.exp(noise)
    while above(noise := round_up(noise, _DIGITS)) > 0.0:
        noise *= 1.0 + 2.0 * 10.0 ** (1 - _DIGITS)
    # What sampling alone allows needs no noise: the risk jumps to certainty where the accountant has no bound any more.
    if above(noise) < -0.05 * size and above(0.99 * noise) >= excess(_CERTAINTY, wanted):
        raise ValueError(_NEEDS_NO_NOISE)
    return noise


def _bracket(above: Callable[[float], float], guess: float) -> tuple[float, float]:
    """Returns noises between which the bound is met."""
    low = high = min(max(guess, 1.0), LARGEST_NOISE / 4.0)
    while above(high) > 0.0:
        low, high = high, 2.0 * high
        if high > LARGEST_NOISE:
            raise ValueError(f"No noise multiplier up to {LARGEST_NOISE:g} meets the bound on risk. Raise it.")
    while low == high or above(low) <= 0.0:
        low, high = low / 2.0, low
        if low < SMALLEST_NOISE:
            raise ValueError(_NEEDS_NO_NOISE)
    return low, high


def words(wanted: Any) -> str:
    """Returns a bound on risk as a person reads it.

    Example:
        >>> words({"tpr": 0.02, "fpr": 0.01})
        'at most 2 % of the examples found at 1 % false alarms'
    """
    if "advantage" in wanted:
        return f"an advantage of attacks of at most {wanted['advantage']:g}"
    return f"at most {100.0 * wanted['tpr']:g} % of the examples found at {100.0 * wanted['fpr']:g} % false alarms"
