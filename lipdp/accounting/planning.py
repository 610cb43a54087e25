"""Planning a run: any one of epsilon, noise, epochs and batch size from the other three."""

from typing import Any

from lipdp import checks
from lipdp.accounting.accountant import Accountant
from lipdp.accounting.calibration import calibrate, max_updates
from lipdp.accounting.composition import epsilon as epsilon_of
from lipdp.accounting.schemes import SCHEMES, Sampling, check_batch, check_sampler

UNKNOWNS = ("epsilon", "noise_multiplier", "epochs", "batch_size")


def solve(
    *,
    num_examples: int,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    accountant: str | Accountant = "pld",
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
        accountant: "pld", "rdp", "autodp", or an `Accountant`.
        sampler: a name in `SAMPLERS`.
        examples_per_person: epsilon is that of a person with so many examples.
        capacity: as in `Sampling`.

    Returns:
        A dict with the four numbers, `updates` and `sampling_probability`. Its `epsilon` is what the plan really
        costs, at most the budget. Of noise multipliers the smallest, of epochs and batch sizes the largest is
        taken. The cost grows with the batch size but for the rounding of N / B; the batch size returned is one at which
        neither one example more fits nor the next size that saves an update of each epoch.

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
    known: dict[str, Any] = dict(zip(UNKNOWNS, (epsilon, noise_multiplier, epochs, batch_size), strict=True))
    missing = [name for name, value in known.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"A plan needs three of {', '.join(UNKNOWNS)}, and finds the fourth. Received: "
            f"{', '.join(f'{name}={value!r}' for name, value in known.items())}. Leave out exactly one; "
            "of several unknown ones guess all but one, and compare plans."
        )
    for name, value in known.items():
        if value is not None and name in ("epsilon", "noise_multiplier"):
            known[name] = checks.positive(name, value)
        elif value is not None:
            known[name] = checks.integer(name, value, minimum=1)
    budget, noise, epochs, batch = known.values()
    if batch is not None:
        check_batch(size, batch)
    scheme = Sampling(sampler, capacity if SCHEMES[check_sampler(sampler)].has_capacity else None)

    def shared(batch):
        sampling = scheme.bind(size, batch, examples_per_person)
        return {"delta": delta, "sampler": sampling, "accountant": accountant}, sampling.updates_per_epoch

    def cost(batch, count, noise):
        arguments, in_epoch = shared(batch)
        return epsilon_of(noise_multiplier=noise, updates=count * in_epoch, **arguments)

    if missing == ["noise_multiplier"]:
        arguments, in_epoch = shared(batch)
        noise = calibrate(epsilon=budget, updates=epochs * in_epoch, **arguments)
    elif missing == ["epochs"]:
        arguments, in_epoch = shared(batch)
        epochs = max_updates(epsilon=budget, noise_multiplier=noise, **arguments) // in_epoch
        if epochs < 1:
            raise _none("one epoch", known, "a larger epsilon, more noise or a smaller batch size")
    elif missing == ["batch_size"]:
        batch = _largest_batch(lambda b: cost(b, epochs, noise) <= budget, size)
        if batch < 1:
            raise _none("a batch of one example", known, "a larger epsilon, more noise or fewer epochs")
    sampling = scheme.bind(size, batch, examples_per_person)
    plan = dict(zip(UNKNOWNS, (cost(batch, epochs, noise), noise, epochs, batch), strict=True))
    probability, updates = sampling.sampling_probability, epochs * sampling.updates_per_epoch
    return {**plan, "updates": updates, "sampling_probability": probability, "delta": delta, "found": missing[0]}


def _largest_batch(fits, size: int) -> int:
    """Returns the largest batch that fits, 0 for none; see `solve`."""
    low, high = 0, 1
    while high <= size and fits(high):
        low, high = high, 2 * high
    low = _bisect(fits, low, min(high, size + 1))
    # One example more may save an update of each epoch, and then fit again.
    while 0 < low < size:
        updates = -(-size // low) - 1
        first = -(-size // updates)
        if not fits(first):
            break
        low = _bisect(fits, first, -(-size // (updates - 1)) if updates > 1 else size + 1)
    return low


def _bisect(fits, low: int, high: int) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _none(what: str, known: dict, advice: str) -> ValueError:
    values = ", ".join(f"{name}={value!r}" for name, value in known.items() if value is not None)
    return ValueError(f"Not even {what} fits the budget. Received: {values}. Pass {advice}.")
