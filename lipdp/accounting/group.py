"""Groups: epsilon when k examples change together, such as all those of one person."""

import math

import numpy as np
from scipy import optimize

from lipdp import checks
from lipdp.accounting.accountant import Accountant, get_accountant
from lipdp.accounting.composition import compose
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.pld import SMALLEST_DELTA
from lipdp.accounting.schemes import ADD_OR_REMOVE


def group_epsilon(
    group_size: int,
    *,
    noise_multiplier: float,
    updates: int,
    delta: float,
    sampling_probability: float | None = None,
    batch_size: int | None = None,
    num_examples: int | None = None,
    sampler: str = "poisson",
    accountant: str | Accountant = "pld",
) -> float:
    """Returns epsilon for groups of up to `group_size` examples, without a detour over one example.

    Args:
        group_size: k, an int of at least 0.
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, at least 0.
        updates: number of noisy updates released, an int of at least 0.
        delta: in (0, 1); at least 1e-11 where groups are sampled.
        sampling_probability: chance, in (0, 1], that one example enters a batch; not for "fixed_size".
        batch_size: B, for "fixed_size" only.
        num_examples: least number of examples WITHOUT the group, at least B; for "fixed_size" only.
        sampler: "poisson", "fixed_size", "shuffle" or "fixed_order".
        accountant: "pld"; others only where nothing is sampled.

    Returns:
        A float of at least 0, `math.inf` when there is no guarantee. It grows with k, so it holds for smaller
        groups as well. Above 100 or so it means nothing.

    Raises:
        ValueError: when an argument is out of range, missing or not for this sampler.

    **Guarantee.**
    Conditions: those of `Mechanism`; the group is the same in all updates.
    Bound: (epsilon, delta)-differential privacy for adding or removing the whole group ("shuffle", "fixed_order":
    for zeroing it).
    Not covered: replacing a group by another one under sampling.
    Source: Ganesh 2024, theorems 3.1 (Poisson) and 3.3 (fixed size); see `lipdp.accounting.dominating_pairs`.

    Example:
        >>> group_epsilon(8, noise_multiplier=1.0, sampling_probability=0.01, updates=2000, delta=1e-6) < 34.9
        True
        >>> value = group_epsilon(8, noise_multiplier=2.0, batch_size=500, num_examples=50000, updates=2000,
        ...                       delta=1e-6, sampler="fixed_size")
        >>> round(value, 1)
        34.9
    """
    size = checks.integer("group_size", group_size)
    checks.delta(delta)
    if size == 0:
        return 0.0
    mechanism = _mechanism(size, noise_multiplier, updates, sampling_probability, batch_size, num_examples, sampler)
    return compose([mechanism], delta, accountant)


def vadhan_epsilon(
    group_size: int,
    *,
    noise_multiplier: float,
    updates: int,
    delta: float,
    sampling_probability: float,
    accountant: str = "rdp",
) -> float:
    """Returns epsilon for groups by conversion from one example: valid, loose, and here to compare.

    Args:
        group_size: k, an int of at least 0.
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, at least 0.
        updates: number of noisy updates, an int of at least 0.
        delta: for the group, in (0, 1).
        sampling_probability: chance, in (0, 1], that one example enters a batch.
        accountant: of one example, "rdp", or "pld": whichever is less, PLD at deltas of at least 1e-11 or RDP.

    Returns:
        A float of at least 0; `math.inf` where the conversion gives nothing.

    Raises:
        ValueError: when an argument is out of range.

    **Guarantee.**
    Conditions: those of `Mechanism`, Poisson sampling.
    Bound: an (e, d)-private mechanism is (k e, d (e^(k e) - 1) / (e^e - 1))-private for groups of k.
    Not covered: as `group_epsilon`.
    Source: Vadhan 2017, lemma 2.2.

    Example:
        >>> run = dict(noise_multiplier=1.0, sampling_probability=0.01, updates=2000, delta=1e-6)
        >>> tight, loose = group_epsilon(4, **run), vadhan_epsilon(4, **run)
        >>> round(tight, 1), round(loose, 1)
        (14.5, 23.3)
    """
    size = checks.integer("group_size", group_size)
    delta = checks.delta(delta)
    one = Mechanism(sampling_probability, noise_multiplier, updates)
    if checks.choice("accountant", accountant, ("rdp", "pld")) == "pld":
        if size <= 1 or not one.count:
            return compose([one], delta, "pld") * size
        return min(_vadhan_pld(size, one, delta), _vadhan(size, one, delta))
    if size <= 1 or not one.count:
        return compose([one], delta, "rdp") * size
    return _vadhan(size, one, delta)


def _vadhan(size: int, one: Mechanism, delta: float) -> float:
    orders, curve = get_accountant("rdp").curve((one,))  # type: ignore[attr-defined]
    return min((_vadhan_rdp(size, a, rho, delta) for a, rho in zip(orders, curve, strict=True)), default=math.inf)


def _mechanism(size, noise, updates, probability, batch_size, num_examples, sampler) -> Mechanism:
    fixed = sampler == "fixed_size"
    sizes = {"sampling_probability": probability, "batch_size": batch_size, "num_examples": num_examples}
    for name, value in sizes.items():
        if (value is None) == (fixed == (name != "sampling_probability")):
            wanted = "batch_size and num_examples" if fixed else "sampling_probability alone"
            raise ValueError(
                f"The sampling is not determined. Received: sampler={sampler!r}, {name}={value!r}. Pass {wanted}."
            )
    if not fixed:
        return Mechanism.of_updates(probability, noise, updates, sampler, group_size=size)
    batch = checks.integer("batch_size", batch_size, minimum=1)
    least = checks.integer("num_examples", num_examples, minimum=1)
    if batch > least:
        raise ValueError(
            f"`batch_size` must not be larger than the data without the group. Received: batch_size={batch}, "
            f"num_examples={least}."
        )
    together = least + size
    return Mechanism(batch / together, noise, updates, sampler, ADD_OR_REMOVE, size, together)


def _log_growth(size: int, epsilon: float) -> float:
    """Returns log((e^(k e) - 1) / (e^e - 1)) without overflow."""
    if epsilon == 0.0:
        return math.log(size)
    return (size - 1) * epsilon + math.log(-math.expm1(-size * epsilon)) - math.log(-math.expm1(-epsilon))


def _vadhan_rdp(size: int, order: float, rho: float, delta: float) -> float:
    """Returns k times the smallest e at which order `order` gives the group `delta`; infinite from k on."""
    if order <= size or not math.isfinite(rho):
        return math.inf

    def excess(epsilon):
        # Canonne, Kamath and Steinke 2020, proposition 12.
        one = (order - 1.0) * (rho - epsilon) + order * math.log1p(-1.0 / order) - math.log(order - 1.0)
        return one + _log_growth(size, epsilon) - math.log(delta)

    if excess(0.0) <= 0.0:
        return 0.0
    top = 1.0
    while excess(top) > 0.0:
        top *= 2.0
    root = optimize.brentq(excess, 0.0, top, xtol=1e-12, rtol=1e-12)
    return size * (root * (1.0 + 1e-9) + 1e-11)


def _vadhan_pld(size: int, one: Mechanism, delta: float) -> float:
    def excess(log_delta):
        return log_delta + _log_growth(size, compose([one], math.exp(log_delta), "pld")) - math.log(delta)

    low, high = math.log(SMALLEST_DELTA) + 1e-9, math.log(delta)
    if low >= high or not np.isfinite(excess(low)) or excess(low) > 0.0:
        return math.inf
    root = low if excess(high) < 0.0 else optimize.brentq(excess, low, high, xtol=1e-6)
    while excess(root) > 0.0:
        root -= 1e-6
    return size * compose([one], math.exp(root), "pld")
