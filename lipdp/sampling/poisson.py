"""Poisson sampling: every example joins every update independently."""

import os

import numpy as np

from lipdp import checks


class PoissonSampler:
    """Draws who takes part in an update.

    Args:
        num_examples: Number of examples N.
        sampling_probability: Probability q of each example to be in an update.
        seed: Non-negative integer for repeatable draws; default: the operating system's entropy.
        capacity: Largest batch, or None for none. From a larger draw a uniformly random part is dropped, which
            costs privacy (truncated Poisson sampling).

    **Guarantee.**
    Bound: for each update the set is distributed as N independent Bernoulli(q) draws: its size is Binomial(N, q) and,
    given the size, it is a uniform subset. Updates use disjoint counter ranges of one Philox stream, so they are
    independent of each other and update t is the same whether or not training was interrupted before it. Without a
    capacity nothing is ever dropped.
    Not covered: Philox is not a cryptographic generator.

    Example:
        >>> from lipdp.sampling import PoissonSampler
        >>> sampler = PoissonSampler(1000, 0.1, seed=0)
        >>> bool((sampler.draw(3) == sampler.draw(3)).all())
        True
    """

    def __init__(
        self, num_examples: int, sampling_probability: float, seed: int | None = None, capacity: int | None = None
    ):
        self.num_examples = num_examples
        self.sampling_probability = checks.probability("sampling_probability", sampling_probability)
        self.capacity = capacity
        entropy = int.from_bytes(os.urandom(32), "little") if seed is None else seed
        # The second word separates these draws from the noise of the same seed.
        self._key = np.random.SeedSequence([entropy, 1]).generate_state(2, np.uint64)

    def draw(self, update: int) -> np.ndarray:
        """Returns the indices of the examples in update number `update`."""
        rng = np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, 0, update]))
        return rng.choice(self.num_examples, self._size(rng), replace=False, shuffle=False)

    def _size(self, rng: np.random.Generator) -> int:
        size = rng.binomial(self.num_examples, self.sampling_probability)
        # Given its size the draw is a uniform subset, and so is a uniformly random part of it.
        return size if self.capacity is None else min(size, self.capacity)


def noise_key(seed: int | None, updates: int) -> np.ndarray:
    """Returns a 64-bit key for the noise generator: from the operating system, or from a seed and a position."""
    if seed is None:
        return np.frombuffer(os.urandom(8), np.uint32)
    return np.random.SeedSequence([seed, 0, updates]).generate_state(2, np.uint32)
