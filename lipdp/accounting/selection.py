"""The cost of a hyper-parameter search: repeat and select."""

import math
from typing import Any

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from lipdp import checks
from lipdp.accounting.accountant import get_accountant
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.schemes import Sampling


def search_epsilon(
    *,
    noise_multiplier: float,
    sampling_probability: float | None = None,
    updates: int,
    delta: float,
    runs: float,
    distribution: str = "geometric",
    sampler: str | Sampling = "poisson",
    **settings: Any,
) -> float:
    """Returns epsilon of a hyper-parameter search: a random number of runs, of which only the best is kept.

    Args:
        noise_multiplier: standard deviation of the noise over the norm of one contribution, in every run.
        sampling_probability: expected batch size / number of examples, in (0, 1]; left out with a `Sampling`.
        updates: number of updates of one run, at least 0.
        delta: in (0, 1).
        runs: MEAN number of runs, at least 1.
        distribution: "geometric", or "poisson" with possibly no run at all: the number of runs must be drawn from it,
            independently of the data, and kept secret.
        sampler: a name in `SAMPLERS` for which RDP has a bound, or a bound `Sampling`.
        **settings: as in `Mechanism`.

    Returns:
        A float of at least 0, by RDP.

    Raises:
        ValueError: when an argument is out of range, or RDP has no bound for the sampler.

    **Guarantee.**
    Conditions: each run is drawn from a public distribution over settings, all of them at least as private as this
    one; only the best run is released.
    Bound: (epsilon, delta)-differential privacy of the released run and its settings.
    Not covered: a fixed number of runs; looking at the other ones; scores that are not part of the released run.
    Source: Papernot and Steinke 2022, theorems 2 and 6; equal to dp_accounting's in the tests.

    Example:
        >>> run = dict(noise_multiplier=1.1, sampling_probability=256 / 60000, updates=2350, delta=1e-5)
        >>> round(search_epsilon(**run, runs=10), 2)
        2.29
    """
    delta = checks.delta(delta)
    checks.choice("distribution", distribution, ("geometric", "poisson"))
    mean = checks.positive("runs", runs)
    if mean < 1.0:
        raise ValueError(f"`runs` must be at least 1. Received: runs={runs!r}. Pass a mean of at least 1.")
    one = Mechanism.of_updates(sampling_probability, noise_multiplier, updates, sampler, **settings)
    if not one.count:
        return 0.0
    orders, curve = get_accountant("rdp").curve((one,))  # type: ignore[attr-defined]
    if not np.isfinite(curve).any():
        return math.inf
    selected = (_geometric if distribution == "geometric" else _poisson)(np.asarray(orders), curve, mean)
    return float(rdp_privacy_accountant.compute_epsilon(orders, selected, delta)[0])


def _geometric(orders: np.ndarray, curve: np.ndarray, mean: float) -> np.ndarray:
    """Returns the RDP of the best of a geometric number of runs, from `curve`, that of one: theorem 2."""
    constant = 2.0 * np.min((1.0 - 1.0 / orders) * curve + math.log(mean) / orders)
    above_one = orders > 1.0
    bound = np.full(len(orders), math.inf)
    bound[above_one] = curve[above_one] + math.log(mean) / (orders[above_one] - 1.0) + constant
    # RDP grows with the order, so a bound at a larger order holds as well.
    return np.array([np.min(bound[orders >= order]) for order in orders])


def _poisson(orders: np.ndarray, curve: np.ndarray, mean: float) -> np.ndarray:
    """Returns the RDP of the best of a Poisson number of runs, from `curve`, that of one: theorem 6."""
    bound = np.full(len(orders), math.inf)
    for i, order in enumerate(orders):
        if order > 1.0:
            delta, _ = rdp_privacy_accountant.compute_delta(orders, curve, math.log1p(1.0 / (order - 1.0)))
            bound[i] = curve[i] + mean * delta + math.log(mean) / (order - 1.0)
    return bound
