"""How batches are drawn: the names that `fit(sampling=...)` takes, and the sampler behind each."""

import math
import os
from dataclasses import dataclass

import numpy as np

from lipdp import checks
from lipdp.accounting.mechanism import EPOCH_SAMPLERS, check_sampler
from lipdp.sampling.epochs import EpochSampler
from lipdp.sampling.fixed_size import FixedSizeSampler
from lipdp.sampling.poisson import PoissonSampler


@dataclass(frozen=True)
class Sampling:
    """A way to draw batches.

    Args:
        name: "poisson", "truncated_poisson", "fixed_size", "shuffle" or "fixed_order".
        capacity: largest batch, for "truncated_poisson"; default: B + 6 sqrt(B), which costs nothing.

    Raises:
        ValueError: an unknown name, a sampler without a sound accountant, or a capacity that has no meaning.

    Example:
        >>> Sampling("truncated_poisson", capacity=320)
        Sampling(name='truncated_poisson', capacity=320)
    """

    name: str = "poisson"
    capacity: int | None = None

    def __post_init__(self):
        check_sampler(self.name)
        if self.capacity is not None:
            if self.name != "truncated_poisson":
                raise ValueError(
                    f"Only truncated Poisson sampling has a capacity. Received: name={self.name!r}, "
                    f"capacity={self.capacity!r}. Leave the capacity out, or use 'truncated_poisson'."
                )
            checks.integer("capacity", self.capacity, minimum=1)

    def largest(self, batch_size: int) -> int | None:
        """Returns the largest batch that can occur, None for Poisson sampling."""
        if self.name == "truncated_poisson":
            return self.capacity or math.ceil(batch_size + 6.0 * math.sqrt(batch_size))
        return None if self.name == "poisson" else batch_size

    def sampler(self, num_examples: int, batch_size: int, seed: int | None = None, key=None):
        """Returns the object whose `draw(update)` gives the indices of an update.

        Args:
            num_examples: N.
            batch_size: B.
            seed: of repeatable draws; default: the operating system's entropy.
            key: of a stream of passes that goes on, for "shuffle".
        """
        if self.name in EPOCH_SAMPLERS:
            key = epoch_key(seed) if key is None else key
            return EpochSampler(num_examples, batch_size, key if self.name == "shuffle" else None)
        if self.name == "fixed_size":
            return FixedSizeSampler(num_examples, batch_size, seed)
        capacity = self.largest(batch_size)
        return PoissonSampler(num_examples, batch_size / num_examples, seed, capacity)


def epoch_key(seed: int | None) -> tuple[int, int]:
    """Returns the key of the permutations. It protects nobody: shuffling is charged without amplification."""
    entropy = int.from_bytes(os.urandom(32), "little") if seed is None else seed
    return tuple(int(word) for word in np.random.SeedSequence([entropy, 2]).generate_state(2, np.uint64))


def get(identifier) -> Sampling:
    """Returns a `Sampling` from its name or itself."""
    if isinstance(identifier, Sampling):
        return identifier
    return Sampling(check_sampler(identifier))
