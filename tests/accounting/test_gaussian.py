"""The privacy loss distribution equals the unmodified library's, in both directions."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.pld import privacy_loss_mechanism as losses

from lipdp import accounting
from lipdp.accounting.gaussian import gaussian_epsilon, hockey_stick, loss_distribution

pytestmark = pytest.mark.backend_free

SETTINGS = [(0.004267, 1.1), (0.3, 0.6), (0.01, 4.0), (0.999, 1.0)]


def direction(add):
    return losses.AdjacencyType.ADD if add else losses.AdjacencyType.REMOVE


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("q", "z"), [*SETTINGS, (1.0, 2.0)])
def test_delta_equals_the_library(q, z, add):
    grid = np.linspace(-3.0, 6.0, 181)
    theirs = losses.GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=direction(add))
    ours = hockey_stick(grid, sampling_probability=q, noise_multiplier=z, add=add)
    ours = ours - np.expm1(np.minimum(grid, 0.0))
    np.testing.assert_allclose(ours, theirs.get_delta_for_epsilon(grid), rtol=1e-9, atol=2e-15)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("q", "z"), SETTINGS)
def test_distribution_equals_the_library(q, z, add):
    theirs = library._create_pld_pmf_from_monotone_privacy_loss(
        losses.GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=direction(add)),
        value_discretization_interval=5e-3,
        use_connect_dots=True,
    ).to_dense_pmf()
    ours = loss_distribution(q, z, 5e-3, add)
    shift = theirs._lower_loss - ours.lowest
    assert abs(shift) <= 1
    a, b = ours.masses[max(shift, 0) :], theirs._probs[max(-shift, 0) :]
    size = min(len(a), len(b)) - 2  # the last points differ by a rounding of the range
    np.testing.assert_allclose(a[:size], b[:size], rtol=1e-6, atol=1e-12)
    assert ours.infinite < 1e-20


@pytest.mark.parametrize("add", [False, True])
def test_tiny_rate_keeps_its_digits(add):
    # Plain differences of cumulative functions leave a mass error of 1e-4 per release here.
    pmf = loss_distribution(1e-6, 0.7, 1e-6, add)
    losses_ = pmf.losses
    assert abs(pmf.masses.sum() - 1.0) < 1e-9
    assert abs(np.dot(pmf.masses, np.exp(-losses_)) - 1.0) < 1e-9  # the second distribution has mass 1 as well


def test_gaussian_epsilon_is_exact():
    for mu in (0.01, 0.5, 3.0, 40.0):
        epsilon = gaussian_epsilon(mu, 1e-6)
        exact = losses.GaussianPrivacyLoss(1.0 / mu).get_delta_for_epsilon(epsilon)
        assert exact == pytest.approx(1e-6, rel=1e-4) if epsilon > 0.0 else exact <= 1e-6
    assert gaussian_epsilon(0.0, 1e-6) == 0.0
    assert gaussian_epsilon(1e-9, 1e-6) == 0.0
    assert gaussian_epsilon(1e9, 1e-6) == float("inf")


@pytest.mark.parametrize(
    ("mu", "delta", "exact"),  # computed with 120 digits
    [
        (1e-6, 1e-300, 3.6574312514249e-5),
        (1e-6, 1e-12, 4.4248927590895e-6),
        (1e-8, 1e-300, 3.6448370690464e-7),
        (1e-10, 1e-30, 9.0219785782051e-10),
        (9.9e-5, 1e-300, 3.6332602433751e-3),
        (1.01e-4, 1e-300, 3.7067145026044e-3),
    ],
)
def test_gaussian_epsilon_keeps_its_digits_where_noise_is_large(mu, delta, exact):
    assert exact * (1.0 - 1e-13) <= gaussian_epsilon(mu, delta) <= exact * (1.0 + 1e-8)


@pytest.mark.parametrize(
    ("mu", "gap", "exact"),  # computed with 400 digits
    [
        (14.5, 1e-6, 34.992890412293),
        (14.5, 1e-9, 16.872211584056),
        (14.5, 1e-12, 1.7646844882632),
        (20.0, 1e-12, 58.08042457532),
        (40.0, 1e-9, 559.00461075828),
        (100.0, 1e-12, 4295.5144351885),
    ],
)
def test_gaussian_epsilon_is_never_below_where_delta_is_near_1(mu, gap, exact):
    assert gaussian_epsilon(mu, 1.0 - gap) >= exact * (1.0 - 1e-13)
    assert gap < 1e-6 or gaussian_epsilon(mu, 1.0 - gap) <= exact * (1.0 + 1e-9)


def test_noise_whose_inverse_square_vanishes_still_costs_something():
    run = {"sampling_probability": 1.0, "updates": 1}
    assert accounting.epsilon(noise_multiplier=1e200, delta=1e-300, **run) > 0.0
    assert accounting.risk(noise_multiplier=1e200, **run).mu > 0.0
    assert accounting.risk(noise_multiplier=1e-200, **run).advantage == 1.0
