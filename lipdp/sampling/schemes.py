"""The sampler that draws what a `Sampling` says."""

import os
from typing import Any

import numpy as np

from lipdp.accounting.schemes import Sampling
from lipdp.sampling.epochs import EpochSampler
from lipdp.sampling.fixed_size import FixedSizeSampler
from lipdp.sampling.poisson import PoissonSampler


def make_sampler(sampling: Sampling, seed: int | None = None, key: tuple[int, int] | None = None) -> Any:
    """Returns the object whose `draw(update)` gives the indices of an update.

    Args:
        sampling: a bound `Sampling`.
        seed: of repeatable draws; default: the operating system's entropy.
        key: of a stream of epochs that goes on, for "shuffle".

    Example:
        >>> make_sampler(Sampling("fixed_order").bind(num_examples=5, batch_size=2)).draw(2).tolist()
        [4]
    """
    if sampling.by_epoch:
        key = epoch_key(seed) if key is None else key
        return EpochSampler(sampling.num_examples, sampling.batch_size, key if sampling.name == "shuffle" else None)
    if sampling.name == "fixed_size":
        return FixedSizeSampler(sampling.num_examples, sampling.batch_size, seed)
    return PoissonSampler(sampling.num_examples, sampling.sampling_probability, seed, sampling.capacity)


def epoch_key(seed: int | None) -> tuple[int, int]:
    """Returns the key of the permutations. It protects nobody: shuffling is charged without amplification."""
    entropy = int.from_bytes(os.urandom(32), "little") if seed is None else seed
    first, second = np.random.SeedSequence([entropy, 2]).generate_state(2, np.uint64)
    return int(first), int(second)


def get(identifier: str | Sampling) -> Sampling:
    """Returns a `Sampling` from its name or itself."""
    return identifier if isinstance(identifier, Sampling) else Sampling(identifier)
