"""The sampler that draws what a `Sampling` says."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lipdp.accounting.schemes import SCHEMES, Sampling, Scheme, check_sampler
from lipdp.sampling import randomness
from lipdp.sampling.allocation import AllocationSampler
from lipdp.sampling.epochs import EpochSampler
from lipdp.sampling.fixed_size import FixedSizeSampler
from lipdp.sampling.poisson import PoissonSampler


def make_sampler(sampling: Sampling, seed: int | None = None, key: tuple[int, int] | None = None) -> Any:
    """Returns the object whose `draw(update)` gives the indices of an update.

    Args:
        sampling: a bound `Sampling`.
        seed: of repeatable draws, from `fit` an integer of 256 bits that derives from the secret of the run; default:
            the operating system's entropy.
        key: of a stream of epochs that goes on, for "shuffle" and "random_allocation".

    Example:
        >>> make_sampler(Sampling("fixed_order").bind(num_examples=5, batch_size=2)).draw(2).tolist()
        [4]
    """
    return _MAKERS[sampling.name](sampling, seed, key)


def register(name: str, scheme: Scheme, make: Callable[..., Any]) -> None:
    """Makes a sampler known under its name.

    Args:
        name: what `fit(sampling=...)` and files call it.
        scheme: under which relations its cost is known.
        make: called as `make(sampling, seed, key)`, see `make_sampler`; returns an object with `draw(update)`.

    **Guarantee.** None of its own: that a draw costs what `accounting.dominating_pairs` charges for it is the claim of
    whoever registers it.
    """
    SCHEMES[name], _MAKERS[name] = scheme, make


def epoch_key(seed: int | None) -> tuple[int, int]:
    """Returns the key of the permutations. It protects nobody: shuffling is charged without amplification."""
    first, second = np.frombuffer(randomness.derive(randomness.from_seed(seed), "epochs")[:16], "<u8")
    return int(first), int(second)


def secret_key(seed: int | None) -> tuple[int, ...]:
    """Returns the key of an allocation, on whose secrecy its amplification rests."""
    return tuple(np.frombuffer(randomness.derive(randomness.from_seed(seed), "allocation"), "<u8").tolist())


def get(identifier: str | Sampling) -> Sampling:
    """Returns a `Sampling` from its name or itself."""
    return identifier if isinstance(identifier, Sampling) else Sampling(check_sampler(identifier, "sampling"))


def _epochs(sampling: Sampling, seed: int | None, key: tuple[int, int] | None) -> EpochSampler:
    return EpochSampler(sampling.num_examples, sampling.batch_size, epoch_key(seed) if key is None else key)


def _allocation(sampling: Sampling, seed: int | None, key: tuple[int, ...] | None) -> AllocationSampler:
    return AllocationSampler(
        sampling.num_examples, sampling.updates_per_epoch, secret_key(seed) if key is None else key
    )


def _poisson(sampling: Sampling, seed: int | None, key: Any) -> PoissonSampler:
    return PoissonSampler(sampling.num_examples, sampling.sampling_probability, seed, sampling.capacity)


_MAKERS: dict[str, Callable[..., Any]] = {
    "poisson": _poisson,
    "truncated_poisson": _poisson,
    "fixed_size": lambda sampling, seed, key: FixedSizeSampler(sampling.num_examples, sampling.batch_size, seed),
    "random_allocation": _allocation,
    "shuffle": _epochs,
    "fixed_order": lambda sampling, seed, key: EpochSampler(sampling.num_examples, sampling.batch_size),
}
