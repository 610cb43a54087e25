"""Passes over the data: each example once per pass, in a fixed or in a random order."""

import numpy as np


class EpochSampler:
    """Cuts the data into batches, pass after pass.

    Args:
        num_examples: Number of examples N.
        batch_size: Size B of a batch; the last one of a pass holds what is left, and is divided by B all the same.
        key: Two 64-bit words for the permutations, a new one for each pass; None for the order of the data.

    Guarantee:
        Each example is in exactly one batch of every ceil(N / B) updates that begin at a multiple of ceil(N / B).
        Update t depends on the key and on t alone. Not covered: nothing is amplified by this, and the accountant
        charges each begun pass as a release without sampling.

    Example:
        >>> from lipdp.sampling import EpochSampler
        >>> [EpochSampler(5, 2).draw(t).tolist() for t in range(4)]
        [[0, 1], [2, 3], [4], [0, 1]]
    """

    def __init__(self, num_examples: int, batch_size: int, key: tuple[int, int] | None = None):
        self.num_examples, self.batch_size = num_examples, batch_size
        self.key = key
        self._pass, self._order = None, np.arange(num_examples)

    def draw(self, update: int) -> np.ndarray:
        """Indices of the examples in update number `update` of the stream."""
        which, place = divmod(update, -(-self.num_examples // self.batch_size))
        if self.key is not None and which != self._pass:
            words = np.array(self.key, np.uint64)
            rng = np.random.Generator(np.random.Philox(key=words, counter=[0, 0, 0, which]))
            self._pass, self._order = which, rng.permutation(self.num_examples)
        return self._order[place * self.batch_size : (place + 1) * self.batch_size]
