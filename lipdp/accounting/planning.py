"""Planning a run: any one of epsilon, noise, epochs and batch size from the other three."""

import math

from lipdp import checks
from lipdp.accounting.calibration import calibrate, max_updates
from lipdp.accounting.composition import epsilon as epsilon_of

UNKNOWNS = ("epsilon", "noise_multiplier", "epochs", "batch_size")


def solve(
    *,
    num_examples: int,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    accountant: str = "pld",
    sampler: str = "poisson",
    examples_per_person: int = 1,
    capacity: int | None = None,
) -> dict:
    """Returns a whole plan from three of its four numbers.

    Args:
        num_examples: N, at least 1.
        delta: in (0, 1).
        epsilon: the budget, above 0.
        noise_multiplier: standard deviation of the noise over the norm of one contribution, above 0.
        epochs: each of ceil(N / B) updates, at least 1.
        batch_size: expected batch size B, from 1 to N.
        accountant: "pld", "rdp" or "autodp".
        sampler: as in `Mechanism`.
        examples_per_person: epsilon is that of a person with so many examples.
        capacity: for "truncated_poisson"; default: B + 6 sqrt(B).

    Returns:
        A dict with the four numbers, `updates` and `sampling_probability`. Its `epsilon` is what the plan really
        costs, at most the budget. Of noise multipliers the smallest, of epochs and batch sizes the largest is
        taken; a batch size is found by halving, as its cost grows with it but for the rounding of N / B.

    Raises:
        ValueError: unless exactly one of the four is None, when one is out of range, or when there is no answer.

    **Guarantee.**
    Conditions: those of `Mechanism`.
    Bound: the returned plan costs the returned epsilon, which was computed for just these numbers.
    Not covered: choosing among plans by looking at results.
    Source: `accounting.epsilon`.

    Example:
        >>> plan = solve(num_examples=60000, delta=1e-5, epsilon=1.0, noise_multiplier=1.1, batch_size=256)
        >>> plan["epochs"], plan["epsilon"] <= 1.0
        (11, True)
    """
    size = checks.integer("num_examples", num_examples, minimum=1)
    delta = checks.delta(delta)
    given = dict(zip(UNKNOWNS, (epsilon, noise_multiplier, epochs, batch_size), strict=True))
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"A plan needs three of {', '.join(UNKNOWNS)}, and finds the fourth. Received: "
            f"{', '.join(f'{name}={value!r}' for name, value in given.items())}. Leave out exactly one."
        )
    for name, value in given.items():
        if value is None:
            continue
        check = checks.positive if name in ("epsilon", "noise_multiplier") else checks.integer
        given[name] = check(name, value) if check is checks.positive else check(name, value, minimum=1)
    if given["batch_size"] is not None and given["batch_size"] > size:
        raise ValueError(
            f"The expected batch is larger than the data. Received: batch_size={batch_size}, num_examples={size}. "
            "Pass a batch_size of at most num_examples."
        )

    def shared(batch):
        most = capacity
        if sampler == "truncated_poisson" and most is None:
            most = math.ceil(batch + 6.0 * math.sqrt(batch))
        return {
            "delta": delta,
            "sampling_probability": batch / size,
            "accountant": accountant,
            "sampler": sampler,
            "group_size": examples_per_person,
            "num_examples": size,
            "capacity": most,
        }

    def cost(batch, count, noise):
        updates = count * math.ceil(size / batch)
        return epsilon_of(noise_multiplier=noise, updates=updates, **shared(batch))

    budget, noise, epochs, batch = given.values()
    if missing == ["noise_multiplier"]:
        noise = calibrate(epsilon=budget, updates=epochs * math.ceil(size / batch), **shared(batch))
    elif missing == ["epochs"]:
        updates = max_updates(epsilon=budget, noise_multiplier=noise, **shared(batch))
        epochs = updates // math.ceil(size / batch)
        if epochs < 1:
            raise _none("one epoch", budget, given, "a larger epsilon, more noise or a smaller batch size")
    elif missing == ["batch_size"]:
        batch = _largest_batch(lambda b: cost(b, epochs, noise) <= budget, size)
        if batch < 1:
            raise _none("a batch of one example", budget, given, "a larger epsilon, more noise or fewer epochs")
    updates = epochs * math.ceil(size / batch)
    found = {"epsilon": cost(batch, epochs, noise), "noise_multiplier": noise, "epochs": epochs, "batch_size": batch}
    return {**found, "updates": updates, "sampling_probability": batch / size, "delta": delta, "found": missing[0]}


def _largest_batch(fits, size: int) -> int:
    low, high = 0, 1
    while high <= size and fits(high):
        low, high = high, 2 * high
    high = min(high, size + 1)
    while high - low > max(1, low // 256):  # to half a per cent: a batch size needs no more
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _none(what: str, budget, given, advice: str) -> ValueError:
    values = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
    return ValueError(f"Not even {what} fits the budget. Received: {values}. Pass {advice}.")
