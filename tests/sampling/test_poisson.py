"""What is drawn is what is charged."""

import numpy as np
import pytest
from scipy import stats

from lipdp.sampling import PoissonSampler

pytestmark = pytest.mark.backend_free


def test_each_example_is_included_with_probability_q():
    n, q, updates = 50, 0.13, 4000
    sampler = PoissonSampler(n, q, seed=1)
    counts = np.zeros(n)
    for t in range(updates):
        counts[sampler.draw(t)] += 1
    p_values = [stats.binomtest(int(c), updates, q).pvalue for c in counts]
    assert min(p_values) > 1e-5
    # Together the p-values are uniform.
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4


def test_sizes_are_binomial():
    n, q = 200, 0.1
    sampler = PoissonSampler(n, q, seed=2)
    sizes = np.array([len(sampler.draw(t)) for t in range(4000)])
    edges = np.arange(10, 31)
    expected = np.diff(stats.binom.cdf(np.concatenate([[-1], edges, [n]]), n, q)) * len(sizes)
    observed = np.histogram(sizes, np.concatenate([[-0.5], edges + 0.5, [n + 0.5]]))[0]
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_pairs_and_updates_are_independent():
    n, q, updates = 30, 0.3, 6000
    sampler = PoissonSampler(n, q, seed=3)
    drawn = np.zeros((updates, n))
    for t in range(updates):
        drawn[t, sampler.draw(t)] = 1
    centred = (drawn - q) / np.sqrt(q * (1 - q))
    within = centred.T @ centred / updates
    between = centred[:-1].T @ centred[1:] / (updates - 1)
    limit = 5.0 / np.sqrt(updates)
    assert np.abs(within - np.diag(np.diag(within))).max() < limit
    assert np.abs(between).max() < limit


def test_no_example_twice_and_full_rate():
    sampler = PoissonSampler(100, 0.5, seed=0)
    drawn = sampler.draw(0)
    assert len(np.unique(drawn)) == len(drawn)
    assert sorted(PoissonSampler(7, 1.0, seed=0).draw(5)) == list(range(7))


def test_draws_depend_on_seed_and_update_only():
    a, b = PoissonSampler(1000, 0.1, seed=4), PoissonSampler(1000, 0.1, seed=4)
    b.draw(0)
    np.testing.assert_array_equal(a.draw(3), b.draw(3))
    assert not np.array_equal(np.sort(a.draw(3)), np.sort(a.draw(4)))
    assert not np.array_equal(np.sort(a.draw(3)), np.sort(PoissonSampler(1000, 0.1, seed=5).draw(3)))


def test_default_draws_come_from_the_operating_system():
    np.random.seed(0)
    first = PoissonSampler(1000, 0.1).draw(0)
    np.random.seed(0)
    assert not np.array_equal(np.sort(first), np.sort(PoissonSampler(1000, 0.1).draw(0)))


@pytest.mark.parametrize("q", [0.0, -0.1, 1.1, float("nan")])
def test_bad_rates(q):
    with pytest.raises(ValueError, match="sampling_probability"):
        PoissonSampler(10, q)
