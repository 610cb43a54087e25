"""What is cut off, rounded or capped is paid for: masses above a grid, dropped weights, tiny and huge noise."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from lipdp.accounting import Mechanism, dominating_pairs, fft_composition, gaussian, mixture, pld, rdp
from lipdp.accounting.dpis import ImportanceFilter
from lipdp.accounting.loss_distribution import LossDistribution
from lipdp.accounting.mechanism import common_relation

pytestmark = pytest.mark.backend_free


def curve(epsilon, z=1.0):
    return gaussian.hockey_stick(
        np.atleast_1d(np.asarray(epsilon, float)), sampling_probability=1.0, noise_multiplier=z, add=False
    )


def cut_gaussian():
    """The loss of a Gaussian of multiplier 1 on a grid that ends at 1, where 13 % of delta are left."""
    return gaussian.connect_dots(curve, -8.0, 1.0, 0.05)


def delta_of(pmf, epsilon):
    gain = -np.expm1(np.minimum(epsilon - pmf.losses, 0.0))
    return pmf.infinite + float(np.sum(pmf.masses * gain))


def test_what_lies_above_a_grid_is_a_total_loss():
    pmf = cut_gaussian()
    left = float(curve(1.0)[0])
    assert left > 0.1 and pmf.infinite == pytest.approx(left, rel=1e-12)
    assert pmf.masses[-1] > 0.1
    assert pmf.masses.sum() + pmf.infinite == pytest.approx(1.0, abs=1e-9)
    for epsilon in (0.0, 0.5, 1.0, 3.0):
        exact = float(curve(epsilon)[0])
        assert delta_of(pmf, epsilon) >= exact * (1.0 - 1e-9)


@pytest.mark.parametrize("delta", [0.05, 0.13, 0.2, 0.3])
def test_infinite_losses_count_in_every_delta(delta):
    pmf = cut_gaussian()
    epsilon = pmf.epsilon(delta)
    if delta < pmf.infinite:
        assert epsilon == math.inf
    else:
        assert delta_of(pmf, epsilon) == pytest.approx(delta, rel=1e-6)
    coarse = pmf.coarsened(4)
    assert coarse.infinite == pmf.infinite and coarse.epsilon(delta) >= epsilon


def test_composed_releases_add_up_their_infinite_losses():
    one = cut_gaussian()
    composed, _ = fft_composition.compose([one], [5])
    assert composed.infinite >= 1.0 - (1.0 - one.infinite) ** 5
    exact = gaussian.gaussian_epsilon(math.sqrt(5.0), 0.6)
    assert composed.epsilon(0.6) >= exact > 0.0


@pytest.mark.parametrize("masses", [[0.5, 0.6], [np.nan, 1.0], [1.5, -0.5], [np.inf, 0.0]])
def test_what_is_no_distribution_gives_no_guarantee(masses):
    composed, _ = fft_composition.compose([LossDistribution(0.1, 0, np.array(masses), 0.0)], [3])
    assert composed.infinite == 1.0 and composed.epsilon(0.5) == math.inf


def test_weights_of_a_group_that_are_cut_off_are_paid():
    shifts, weights, lost = mixture.poisson_group(60, 0.1, dropped=1e-3)
    assert len(shifts) < 60 and 0.0 < lost <= 1e-3
    assert lost == pytest.approx(stats.binom.sf(len(shifts), 60, 0.1), rel=1e-12)
    assert sum(weights) + stats.binom.pmf(0, 60, 0.1) / (1.0 - lost) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 60, 10_000])
@pytest.mark.parametrize("probability", [1e-12, 1e-6, 1e-3, 0.1, 0.9, 1.0 - 1e-9])
@pytest.mark.parametrize("dropped", [1e-300, 1e-30, 1e-9, 0.3, 0.999])
def test_what_is_cut_off_is_all_that_is_missing(size, probability, dropped):
    """A cut that looks like the end of the distribution would be paid by nobody."""
    shifts, weights, lost = mixture.poisson_group(size, probability, dropped)
    law, last = stats.binom(size, probability), max(1, int(max(shifts)))
    assert lost == (law.sf(last) if last < size else 0.0) <= dropped
    kept = np.arange(1, last + 1)
    kept = kept[law.pmf(kept) > 0.0]
    assert shifts == tuple(kept) and weights == pytest.approx(law.pmf(kept) / (1.0 - lost), rel=1e-12)


def test_large_groups_need_no_memory_for_what_is_cut_off():
    """Of a thousand million rows arrays of all of their numbers ended the process."""
    shifts, weights, lost = mixture.poisson_group(10**9, 1e-4, 1e-12)
    assert max(shifts) < 1.1e5 and 0.0 < lost <= 1e-12


def test_groups_without_sampling_are_as_far_apart_as_they_are_large():
    """A group of four in one order of the data is one Gaussian at four times the distance."""
    four = Mechanism(1.0, 8.0, 3, "shuffle", group_size=4)
    pair, other, lost = dominating_pairs.directions(four, 0.0)
    assert lost == 0.0 and pair is other
    at = np.array([0.1, 1.0])
    np.testing.assert_allclose(pair.curve(at), curve(at, 8.0 / four.shift), rtol=1e-12)
    assert four.shift >= 4.0
    # Beside a release that has to be composed on a grid.
    sampled = Mechanism(1e-6, 1e3, 1, "poisson", four.relation, group_size=4)
    least = gaussian.gaussian_epsilon(four.shift * math.sqrt(3.0) / 8.0, 1e-5)
    found = pld.PldAccountant().epsilon((four, sampled), 1e-5)
    assert least * (1.0 - 1e-4) <= found <= 1.02 * least


def test_noise_beyond_the_largest_counts_as_the_largest():
    grid = [
        pld._directions(Mechanism(0.5, z, 7), 1e-9, 0.0)[0][0] for z in (rdp.LARGEST_NOISE, 1e3 * rdp.LARGEST_NOISE)
    ]
    np.testing.assert_array_equal(grid[0].masses, grid[1].masses)


def test_a_replacement_that_all_can_see_moves_twice_the_norm():
    replaced = Mechanism(0.1, 3.0, 5, "fixed_size", "replace_one", num_examples=1000).without_amplification()
    assert (replaced.noise_multiplier, replaced.sampling_probability, replaced.count) == (1.5, 1.0, 5)


def test_releases_for_groups_of_different_sizes_are_not_added_up():
    one = Mechanism(0.1, 1.0, 5)
    with pytest.raises(ValueError, match="different sizes cannot be added up"):
        common_relation([one, dataclasses.replace(one, sampling=dataclasses.replace(one.sampling, group_size=2))])


def test_rounding_of_each_release_is_charged():
    """A million of them would otherwise hide in the last digit."""
    assert rdp.at_order(Mechanism(1e-12, 100.0, 1), 2.0) >= 1e-15


def test_noise_that_hides_nothing_costs_everything():
    assert rdp.at_order(Mechanism(0.5, 0.5 * rdp.SMALLEST_NOISE, 1), 4.0) == math.inf
    assert rdp.at_order(Mechanism(0.5, 2.0 * rdp.SMALLEST_NOISE, 1), 4.0) < math.inf


@pytest.mark.parametrize("first_phase", [0.0, 0.8])
def test_dpis_keeps_what_the_sums_of_later_epochs_cost(first_phase):
    budget = ImportanceFilter(
        epsilon=2.0, delta=1e-5, num_examples=1000, batch_size=50, updates_per_epoch=10, epochs=6,
        norm_sum_noise=9.0, clip_sum_noise=9.0, first_phase=first_phase,
    )  # fmt: skip
    for _ in range(6):
        budget.charge_clip_sum()
        budget.charge_norm_sum()
        budget.begin_epoch(norm_sum=1e9, clip_norm=1.0)
        for _ in range(10):
            budget.charge_update()
    assert 1.9 < budget.epsilon() <= 2.0
