"""The samplers beside Poisson: their laws, and that update t depends on the key and t alone."""

import numpy as np
import pytest
from scipy import stats

from lipdp.sampling import AllocationSampler, EpochSampler, FixedSizeSampler, PoissonSampler, Sampling, make_sampler

pytestmark = pytest.mark.backend_free


def inclusion(sampler, n, updates):
    drawn = np.zeros((updates, n))
    for t in range(updates):
        drawn[t, sampler.draw(t)] = 1
    return drawn


def test_fixed_size_is_a_uniform_subset():
    n, batch, updates = 20, 5, 8000
    drawn = inclusion(FixedSizeSampler(n, batch, seed=1), n, updates)
    assert (drawn.sum(axis=1) == batch).all()
    assert min(stats.binomtest(int(c), updates, batch / n).pvalue for c in drawn.sum(axis=0)) > 1e-4
    pairs = (drawn.T @ drawn)[np.triu_indices(n, 1)]
    both = batch * (batch - 1) / (n * (n - 1))
    assert min(stats.binomtest(int(c), updates, both).pvalue for c in pairs) > 1e-5
    again = (drawn[:-1] * drawn[1:]).sum()
    assert abs(again / (updates - 1) - batch * batch / n) < 0.1


def test_truncation_drops_uniformly_at_random():
    n, q, capacity, updates = 20, 0.3, 5, 8000
    drawn = inclusion(PoissonSampler(n, q, 2, capacity), n, updates)
    sizes = drawn.sum(axis=1)
    assert sizes.max() == capacity
    below = (sizes < capacity).mean()
    assert abs(below - stats.binom.cdf(capacity - 1, n, q)) < 4.0 * np.sqrt(0.25 / updates)
    # Nobody is dropped for standing at the end.
    rate = sizes.mean() / n
    assert min(stats.binomtest(int(c), updates, rate).pvalue for c in drawn.sum(axis=0)) > 1e-4


def test_shuffled_epochs():
    n, batch = 11, 4
    sampler = EpochSampler(n, batch, (1, 2))
    orders = [np.concatenate([sampler.draw(3 * e + i) for i in range(3)]) for e in range(3000)]
    assert all(sorted(order) == list(range(n)) for order in orders[:50])
    first = np.bincount([order[0] for order in orders], minlength=n)
    assert stats.chisquare(first).pvalue > 1e-4
    follows = np.mean([a[-1] == b[0] for a, b in zip(orders, orders[1:], strict=False)])
    assert abs(follows - 1 / n) < 0.03  # an epoch knows nothing of the one before


def test_allocation_is_uniform_and_independent():
    n, updates, epochs = 12, 5, 4000
    sampler = AllocationSampler(n, updates, key=(1, 2, 3, 4))
    where = np.empty((epochs, n), int)
    for epoch in range(epochs):
        drawn = [sampler.draw(epoch * updates + i) for i in range(updates)]
        assert sorted(np.concatenate(drawn)) == list(range(n))
        for i, part in enumerate(drawn):
            where[epoch, part] = i
    for example in range(n):
        assert stats.chisquare(np.bincount(where[:, example], minlength=updates)).pvalue > 1e-4
    # Two examples, and two epochs, know nothing of each other.
    for a, b in ((where[:, 0], where[:, 7]), (where[:-1, 3], where[1:, 3])):
        assert stats.chi2_contingency(np.histogram2d(a, b, bins=updates)[0]).pvalue > 1e-4
    assert not np.array_equal(where[0], AllocationSampler(n, updates, key=(1, 2, 3, 5)).draw(0))


SAMPLERS = ["poisson", "truncated_poisson", "fixed_size", "random_allocation", "shuffle", "fixed_order"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_update_depends_on_key_and_number_alone(name):
    def make(seed=5, key=None):
        return make_sampler(Sampling(name).bind(50, 8), seed, key)

    forward = [make().draw(t) for t in range(20)]
    sampler = make()
    for t in reversed(range(20)):
        np.testing.assert_array_equal(sampler.draw(t), forward[t])
    if name == "fixed_order":
        return
    assert any(not np.array_equal(make(seed=6).draw(t), forward[t]) for t in range(5))
    assert any(not np.array_equal(make(seed=None).draw(t), make(seed=None).draw(t)) for t in range(5))
    if name == "shuffle":
        stored = make(seed=None)
        np.testing.assert_array_equal(make(seed=None, key=stored.key).draw(9), stored.draw(9))
