"""Poisson sampling: every example joins every update independently."""

import numpy as np

from lipdp import checks
from lipdp.sampling import randomness


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
    given the size, it is a uniform subset. Each update has a key of its own, derived from the seed with a
    cryptographic hash, so updates are independent of each other, and update t is the same whether or not training was
    interrupted before it. Without a capacity nothing is ever dropped.
    Not covered: within an update the draw is made by numpy's Philox, which is not a cryptographic generator; `fit`
    gives a seed of 256 bits, other seeds can be guessed.

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
        self._secret = randomness.from_seed(seed)

    def draw(self, update: int) -> np.ndarray:
        """Returns the indices of the examples in update number `update`."""
        rng = randomness.generator(self._secret, "batch", update)
        return rng.choice(self.num_examples, self._size(rng), replace=False, shuffle=False)

    def _size(self, rng: np.random.Generator) -> int:
        size = rng.binomial(self.num_examples, self.sampling_probability)
        # Given its size the draw is a uniform subset, and so is a uniformly random part of it.
        return size if self.capacity is None else min(size, self.capacity)
