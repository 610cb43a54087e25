"""Epochs: each example once per epoch, in a fixed or in a random order."""

import numpy as np


class EpochSampler:
    """Cuts the data into batches, epoch after epoch.

    Args:
        num_examples: Number of examples N.
        batch_size: Size B of a batch; the last one of an epoch holds what is left, and is divided by B all the same.
        key: Two 64-bit words for the permutations, a new one for each epoch; None for the order of the data.

    **Guarantee.**
    Bound: each example is in exactly one batch of every ceil(N / B) updates that begin at a multiple of ceil(N / B).
    Update t depends on the key and on t alone.
    Not covered: nothing is amplified by this, and the accountant charges each begun epoch as a release without
    sampling.

    Example:
        >>> from lipdp.sampling import EpochSampler
        >>> [EpochSampler(5, 2).draw(t).tolist() for t in range(4)]
        [[0, 1], [2, 3], [4], [0, 1]]
    """

    def __init__(self, num_examples: int, batch_size: int, key: tuple[int, int] | None = None):
        self.num_examples, self.batch_size = num_examples, batch_size
        self.key = key
        self._epoch, self._order = None, np.arange(num_examples)

    def draw(self, update: int) -> np.ndarray:
        """Returns the indices of the examples in update number `update` of the stream."""
        epoch, place = divmod(update, -(-self.num_examples // self.batch_size))
        if self.key is not None and epoch != self._epoch:
            words = np.array(self.key, np.uint64)
            rng = np.random.Generator(np.random.Philox(key=words, counter=[0, 0, 0, epoch]))
            self._epoch, self._order = epoch, rng.permutation(self.num_examples)
        return self._order[place * self.batch_size : (place + 1) * self.batch_size]
