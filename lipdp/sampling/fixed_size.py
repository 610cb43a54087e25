"""Batches of constant size: a uniform subset for each update."""

import numpy as np

from lipdp.sampling.poisson import PoissonSampler


class FixedSizeSampler(PoissonSampler):
    """Draws a uniform subset of constant size for every update.

    Args:
        num_examples: Number of examples N.
        batch_size: Size B of each batch, at most N.
        seed: Non-negative integer for repeatable draws; default: the operating system's entropy.

    **Guarantee.**
    Bound: each update is a uniform subset of B of the N examples, without replacement, independent of the others;
    update t is the same whether or not training was interrupted before it.
    Not covered: as `PoissonSampler`.

    Example:
        >>> from lipdp.sampling import FixedSizeSampler
        >>> len(FixedSizeSampler(1000, 100, seed=0).draw(3))
        100
    """

    def __init__(self, num_examples: int, batch_size: int, seed: int | None = None):
        super().__init__(num_examples, batch_size / num_examples, seed)
        self.batch_size = batch_size

    def _size(self, rng: np.random.Generator) -> int:
        return self.batch_size
