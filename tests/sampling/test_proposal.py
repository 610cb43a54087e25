"""Importance sampling against a small numpy oracle."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from keras import ops
from scipy import stats

from lipdp import accounting
from lipdp.accounting.dpis import ImportanceFilter
from lipdp.sampling import Proposal, kept

pytestmark = pytest.mark.backend_free

N, B, C = 60, 6, 1.0
RNG = np.random.default_rng(0)
GRADIENTS = RNG.normal(size=(N, 4)) * RNG.lognormal(-1.5, 1.0, (N, 1))
GRADIENTS[7] = 0.0
NORMS = np.linalg.norm(GRADIENTS, axis=1)


def proposal(growth, norm_sum, cap):
    """A proposal from stale norms: wrong by factors up to ten in both directions."""
    stale = np.minimum(NORMS * np.random.default_rng(1).uniform(0.1, 10.0, N), C)
    if cap == "clip_norm":
        return Proposal.capped(stale, growth=growth, floor=0.05, norm_sum=norm_sum, batch_size=B, clip_norm=C)
    bounds = np.minimum(growth * np.maximum(stale, 0.05), norm_sum / B)
    return Proposal(bounds, norm_sum=norm_sum, batch_size=B, clip_norm=C)


def release(p, updates, rng):
    """The sums released in many updates, noise off, and how often each example was proposed and kept: the oracle."""
    many = Proposal(np.tile(p.bounds, updates), norm_sum=p.norm_sum, batch_size=B, clip_norm=C)
    proposed = many.draw(rng)
    update, example = np.divmod(proposed, N)
    norms = np.minimum(NORMS, p.limits)[example].astype("float32")
    keep = ops.convert_to_numpy(kept(norms, many.thresholds(rng, proposed)))
    included = example[keep]
    sums = np.zeros((updates, GRADIENTS.shape[1]))
    np.add.at(sums, update[keep], GRADIENTS[included] / NORMS[included, None])
    return p.norm_sum / (N * B) * sums, np.bincount(example, minlength=N), np.bincount(included, minlength=N)


@pytest.mark.parametrize(
    "growth, norm_sum, cap, binds",
    [
        (2.0, 20.0, "norm_sum / B", False),
        (5.0, 1.05 * B * C, "norm_sum / B", True),  # probability 1
        (5.0, 20.0, "clip_norm", True),
        (1.0, 30.0, "clip_norm", True),
    ],
)
def test_the_mean_is_the_mean_of_the_clipped_gradients(growth, norm_sum, cap, binds):
    p, draws = proposal(growth, norm_sum, cap), 50000
    assert (p.bounds == (C if cap == "clip_norm" else p.cap)).any() == binds
    clipped = GRADIENTS * np.minimum(1.0, p.limits / np.maximum(NORMS, 1e-12))[:, None]
    released, proposals, inclusions = release(p, draws, np.random.default_rng(2))
    difference = released.mean(axis=0) - clipped.mean(axis=0)
    # All coordinates together: a chi-square of 4 degrees of freedom, at the level of 3 standard errors.
    spread = np.cov(released.T) / draws
    assert difference @ np.linalg.solve(spread, difference) < stats.chi2.ppf(1 - 0.0027, 4)
    for counts, exact in ((proposals, p.probabilities), (inclusions, p.inclusion(NORMS))):
        p_values = [stats.binomtest(int(c), draws, q).pvalue for c, q in zip(counts, exact, strict=True)]
        assert min(p_values) > 1e-4
    assert inclusions[7] == 0
    # Each kept example counts the same.
    assert p.inclusion(NORMS).max() <= B * C / p.norm_sum


def test_the_cap_changes_the_cost_and_nothing_else():
    loose, tight = proposal(5.0, 20.0, "norm_sum / B"), proposal(5.0, 20.0, "clip_norm")
    assert tight.probabilities.sum() < 0.9 * loose.probabilities.sum()
    np.testing.assert_allclose(tight.inclusion(NORMS), loose.inclusion(NORMS), rtol=1e-12)
    np.testing.assert_array_equal(tight.limits, loose.limits)


def test_the_uncapped_variant_is_refused():
    """The counter-example of the paper's algorithm: norm sum 1.5 b C and growth 5 (see also the accountant's test)."""
    with pytest.raises(ValueError, match="contribute more than is accounted"):
        Proposal(np.full(N, 5.0 * C), norm_sum=1.5 * B * C, batch_size=B, clip_norm=C)
    capped = Proposal.capped(np.full(N, C), growth=5.0, floor=0.1, norm_sum=1.5 * B * C, batch_size=B, clip_norm=C)
    assert capped.probabilities == pytest.approx(1 / 1.5)
    assert capped.inclusion(np.full(N, 9.0)) == pytest.approx(1 / 1.5)


@hypothesis.given(
    st.lists(st.floats(0.0, 1e6), min_size=1, max_size=20),
    st.floats(1.0, 100.0),
    st.floats(1e-6, 10.0),
    st.floats(-10.0, 1e3),
    st.floats(1e-3, 1e3),
)
@hypothesis.settings(deadline=None)
def test_no_example_is_included_more_often_than_charged(norms, growth, floor, share, clip_norm):
    budget = ImportanceFilter(
        epsilon=2.0,
        delta=1e-5,
        num_examples=100,
        batch_size=5,
        updates_per_epoch=2,
        epochs=2,
        order=10.0,
        norm_sum_noise=50.0,
    )
    budget.charge_norm_sum()
    budget.begin_epoch(share * clip_norm, clip_norm)
    p = Proposal.capped(
        np.array(norms), growth=growth, floor=floor, norm_sum=budget.norm_sum, batch_size=5, clip_norm=clip_norm
    )
    worst = p.inclusion(np.full(len(norms), np.inf))
    assert (p.probabilities <= 1.0).all()
    assert worst.max() <= budget.update.sampling_probability * (1 + 1e-12)
    # Signal over noise of one kept example, as charged.
    contribution = p.norm_sum / (100 * 5)
    noise = budget.noise_multiplier * clip_norm / 5
    assert noise / contribution == pytest.approx(budget.update.noise_multiplier)
    # What is kept for the rounded thresholds is kept with at most that probability.
    thresholds = p.thresholds(np.random.default_rng(0), np.arange(len(norms)))
    uniform = 1.0 - np.random.default_rng(0).random(len(norms))
    assert (thresholds >= uniform * p.bounds).all() and (thresholds > 0).all()


def test_wrong_bounds_are_refused():
    for bounds, match in (([-1.0], "at least 0"), ([[1.0]], "at least 0"), ([np.nan], "at least 0")):
        with pytest.raises(ValueError, match=match):
            Proposal(np.array(bounds), norm_sum=20.0, batch_size=B, clip_norm=C)
    with pytest.raises(ValueError, match="not above"):
        Proposal(np.ones(3), norm_sum=B * C, batch_size=B, clip_norm=C)
    with pytest.raises(ValueError, match="growth"):
        Proposal.capped(np.ones(3), growth=0.5, floor=0.1, norm_sum=20.0, batch_size=B, clip_norm=C)


def test_the_claim_of_one_step_holds_for_the_pair_itself():
    """One update on data with and without one example: the hockey-stick curve by Monte Carlo is below the charge."""
    p = Proposal.capped(np.array([1.0]), growth=5.0, floor=0.1, norm_sum=1.5, batch_size=1, clip_norm=1.0)
    rng, draws, z = np.random.default_rng(0), 200000, 1.0
    included = np.zeros(draws)
    for t in range(draws):
        i = p.draw(rng)
        included[t] = len(i) and bool(np.float32(1.0) >= p.thresholds(rng, i)[0])
    released = included + z * rng.normal(size=draws)
    claimed = accounting.epsilon(noise_multiplier=z, sampling_probability=1 / 1.5, updates=1, delta=0.05)
    other = z * rng.normal(size=draws)
    # The best test between the two thresholds the output.
    for cut in np.linspace(-1.0, 3.0, 9):
        excess = (released > cut).mean() - np.exp(claimed) * (other > cut).mean()
        assert excess <= 0.05 + 4.0 / np.sqrt(draws) * np.exp(claimed)


def test_a_gradient_of_norm_zero_is_never_kept():
    """Also where bounds are so small that float32 has no threshold above zero for them."""
    tiny = Proposal.capped(np.zeros(5), growth=1.0, floor=1e-45, norm_sum=2.0, batch_size=1, clip_norm=1.0)
    thresholds = tiny.thresholds(np.random.default_rng(0), np.arange(5))
    assert (thresholds >= 1e-20).all()
    assert not ops.convert_to_numpy(kept(np.zeros(5, "float32"), thresholds)).any()
