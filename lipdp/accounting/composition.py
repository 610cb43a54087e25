"""Epsilon of one plan or of a list of releases."""

import functools
from collections.abc import Iterable
from typing import Any

from lipdp import checks
from lipdp.accounting.accountant import Accountant, get_accountant
from lipdp.accounting.mechanism import Mechanism, canonical
from lipdp.accounting.schemes import Sampling


def compose(mechanisms: Iterable[Mechanism], delta: float, accountant: str | Accountant = "pld") -> float:
    """Returns epsilon of all the releases together.

    Args:
        mechanisms: the releases, in any order.
        delta: in (0, 1); below 1e-11 the bound of "pld" is that of "rdp", unless nothing is sampled.
        accountant: "pld" (tight, default), "rdp", "autodp", or an `Accountant`.

    Returns:
        A float of at least 0, `math.inf` when there is no guarantee (noise_multiplier below 0.01).

    Raises:
        ValueError: when an argument is out of range.

    **Guarantee.**
    Conditions: those of `Mechanism`, for each entry; the whole list was fixed before the first release.
    Bound: everything released is (epsilon, delta)-differentially private, under `common_relation(mechanisms)`.
    Not covered: lists chosen while looking at the releases; that needs a privacy filter.
    Source: see the accountants.

    Example:
        >>> one = Mechanism(sampling_probability=0.01, noise_multiplier=1.0, count=1000)
        >>> compose([one, one], delta=1e-6) == compose([Mechanism(0.01, 1.0, 2000)], delta=1e-6)
        True
        >>> compose([], delta=1e-6)
        0.0
    """
    return _compose(canonical(mechanisms), checks.delta(delta), get_accountant(accountant))


@functools.lru_cache(maxsize=4096)
def _compose(mechanisms, delta, accountant, rough=False):
    return accountant.epsilon(mechanisms, delta, rough)


def rough(mechanisms: Iterable[Mechanism], delta: float, accountant: str | Accountant) -> float:
    """Returns `compose`'s epsilon, perhaps a few percent too large but sooner: for searches only."""
    return _compose(canonical(mechanisms), delta, get_accountant(accountant), True)


@checks.known_arguments("relation", "group_size", "num_examples", "capacity")
def epsilon(
    *,
    noise_multiplier: float,
    sampling_probability: float | None = None,
    updates: int,
    delta: float,
    accountant: str | Accountant = "pld",
    sampler: str | Sampling = "poisson",
    **settings: Any,
) -> float:
    """Returns epsilon of a training run.

    Args:
        noise_multiplier: standard deviation of the noise over the norm one example can contribute, at least 0.
        sampling_probability: expected batch size / number of examples, in (0, 1]; left out with a `Sampling`.
        updates: number of noisy updates released, an int of at least 0.
        delta: in (0, 1); below 1e-11 the bound of "pld" is that of "rdp", unless nothing is sampled.
        accountant: "pld" (tight, default), "rdp", "autodp", or an `Accountant`.
        sampler: a name in `SAMPLERS`, or a bound `Sampling`.
        **settings: `relation`, `group_size`, `num_examples`, `capacity`, as in `Mechanism`.

    Returns:
        A float of at least 0, `math.inf` when there is no guarantee.

    Raises:
        ValueError: when an argument is out of range, or the accountant has no bound for the sampler.

    **Guarantee.**
    Conditions: Gaussian noise; batches drawn by the sampler; see `Mechanism`.
    Bound: the sequence of all updates is (epsilon, delta)-differentially private, under the sampler's relation
    (Poisson: add or remove one example).
    Not covered: any other sampler or relation, tuning, metrics on the training data.
    Source: see the accountants.

    Example:
        >>> run = dict(noise_multiplier=1.1, sampling_probability=256 / 60000, updates=2350, delta=1e-5)
        >>> round(epsilon(**run), 3), round(epsilon(**run, sampler="shuffle"), 2)
        (0.92, 15.78)
    """
    mechanism = Mechanism.of_updates(sampling_probability, noise_multiplier, updates, sampler, **settings)
    return compose([mechanism], delta, accountant)


def guarantee(mechanisms: Iterable[Mechanism], delta: float, accountant: str | Accountant = "pld") -> float:
    """Returns the epsilon to state: `compose`, or, for a filter, the budget that holds for choices on the way."""
    return _guarantee(canonical(mechanisms), checks.delta(delta), get_accountant(accountant))


@functools.lru_cache(maxsize=4096)
def _guarantee(mechanisms, delta, accountant):
    return accountant.guarantee(mechanisms, delta)


def describe(mechanisms: Iterable[Mechanism], delta: float, accountant: str | Accountant = "pld") -> dict:
    """Returns how `compose` computes its number.

    Args:
        mechanisms: the releases.
        delta: in (0, 1).
        accountant: the accountant or its name.

    Returns:
        A dict of strings: "name", "library", "version", "settings".

    Raises:
        ValueError: when an argument is out of range.

    Example:
        >>> describe([Mechanism(0.01, 1.0, 100)], 1e-6)["library"]
        'dp_accounting'
    """
    return get_accountant(accountant).describe(canonical(mechanisms), checks.delta(delta))
