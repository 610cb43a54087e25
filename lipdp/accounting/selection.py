"""The cost of a hyper-parameter search: repeat and select."""

import math

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from lipdp import checks
from lipdp.accounting import accountant as accountants
from lipdp.accounting.mechanism import Mechanism


def search_epsilon(
    *,
    noise_multiplier: float,
    sampling_probability: float,
    updates: int,
    delta: float,
    runs: float,
    distribution: str = "geometric",
    sampler: str = "poisson",
    **settings,
) -> float:
    """Returns epsilon of a hyper-parameter search: a random number of runs, of which only the best is kept.

    Args:
        noise_multiplier: standard deviation of the noise over the norm of one contribution, in every run.
        sampling_probability: expected batch size / number of examples, in (0, 1].
        updates: number of updates of one run, at least 0.
        delta: in (0, 1).
        runs: MEAN number of runs, at least 1 ("geometric") or above 0 ("poisson"; possibly no run at all).
        distribution: "geometric" or "poisson": the number of runs must be drawn from it, independently of the
            data, and kept secret.
        sampler: "poisson", "fixed_size", "shuffle" or "fixed_order".
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
    Source: Papernot and Steinke 2022, theorems 2 and 6; dp_accounting.

    Example:
        >>> run = dict(noise_multiplier=1.1, sampling_probability=256 / 60000, updates=2350, delta=1e-5)
        >>> round(search_epsilon(**run, runs=10), 2)
        2.29
    """
    delta = checks.delta(delta)
    checks.choice("distribution", distribution, ("geometric", "poisson"))
    mean = checks.positive("runs", runs)
    if distribution == "geometric" and mean < 1.0:
        raise ValueError(
            f"A geometric number of runs is at least 1. Received: runs={runs!r}. Pass a mean of at least 1."
        )
    one = Mechanism.of_updates(sampling_probability, noise_multiplier, updates, sampler, **settings)
    if not one.count:
        return 0.0
    orders, curve = accountants.get("rdp").curve((one,))
    if not np.isfinite(curve).any():
        return math.inf
    shape = 1.0 if distribution == "geometric" else math.inf
    chosen = rdp_privacy_accountant._compute_rdp_repeat_and_select(np.asarray(orders), curve, mean, shape)
    return float(rdp_privacy_accountant.compute_epsilon(orders, chosen, delta)[0])
