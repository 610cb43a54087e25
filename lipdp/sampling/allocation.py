"""Random allocation: in each epoch every example is in one update, drawn uniformly."""

import numpy as np

from lipdp.sampling import randomness


class AllocationSampler:
    """Deals each example out to one update of an epoch, epoch after epoch, by a draw of its own.

    Args:
        num_examples: Number of examples N.
        updates: Updates t of an epoch, at least 1; sizes of batches vary, N / t is expected.
        key: Four 64-bit words of a secret that all draws derive from.

    **Guarantee.**
    Conditions: nobody can guess the key.
    Bound: in each epoch of t updates each example is in exactly one, which is uniform and independent of those of all
    other examples and of other epochs. Each epoch has a key of its own, from a cryptographic hash. Update number u
    depends on the key and on u alone, so a stream goes on where it stopped. Nothing is dropped.
    Not covered: within an epoch the draw is made by numpy's Philox, which is not a cryptographic generator.

    Example:
        >>> sampler = AllocationSampler(5, 2, key=(1, 2, 3, 4))
        >>> sorted([*sampler.draw(0), *sampler.draw(1)]) == [0, 1, 2, 3, 4]
        True
    """

    def __init__(self, num_examples: int, updates: int, key: tuple[int, ...]):
        self.num_examples, self.updates, self.key = num_examples, updates, tuple(map(int, key))
        self._secret = np.array(self.key, "<u8").tobytes()
        self._epoch, self._order, self._ends = -1, np.arange(0), np.arange(0)

    def draw(self, update: int) -> np.ndarray:
        """Returns the indices of the examples in update number `update` of the stream."""
        epoch, place = divmod(update, self.updates)
        if epoch != self._epoch:
            places = randomness.generator(self._secret, "allocation", epoch).integers(
                0, self.updates, self.num_examples
            )
            self._epoch, self._order = epoch, np.argsort(places, kind="stable")
            self._ends = np.cumsum(np.bincount(places, minlength=self.updates))
        return self._order[self._ends[place - 1] if place else 0 : self._ends[place]]
