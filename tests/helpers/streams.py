"""Random streams that tests give to fits."""

from unittest import mock

from lipdp.sampling import randomness

_FROM_SEED = randomness.from_seed


def of_the_seed_alone():
    """Returns a context in which fits with one seed share noise and batches, whatever else differs."""
    return mock.patch.object(randomness, "from_seed", lambda seed, *parts: _FROM_SEED(seed))
