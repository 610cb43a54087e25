"""Scores are the likelihood ratios of what is drawn."""

import itertools

import numpy as np
import pytest

from lipdp.accounting import Sampling
from lipdp.audit.scores import Crowded, Scores

pytestmark = pytest.mark.backend_free

Z = 0.8


def density(observed, shift):
    return np.exp(-((observed - shift) ** 2) / (2 * Z * Z))


def ratio(observed, draws, absent):
    """Likelihood ratio of a sequence, by going through all that can be drawn."""
    total = [0.0, 0.0]
    for chance, drawn in draws:
        for world, shift in enumerate((1.0, absent)):
            total[world] += chance * np.prod([density(x, shift * d) for x, d in zip(observed, drawn, strict=True)])
    return np.log(total[0] / total[1])


def scored(sampling, places, observed, rate):
    scores = Scores(sampling, np.array(places))
    for update, row in enumerate(observed):
        scores.add(update, np.array(row), Z, rate)
    return scores.values()


OBSERVED = [[0.3, -1.0], [1.4, 0.2], [0.9, 0.7], [-0.6, 1.1]]


@pytest.mark.parametrize(("relation", "absent"), [("add_or_remove_one", 0.0), ("replace_one", -1.0)])
def test_poisson(relation, absent):
    sampling = Sampling(relation=relation).bind(10, 3)
    draws = [(0.3 ** sum(d) * 0.7 ** (4 - sum(d)), d) for d in itertools.product((0, 1), repeat=4)]
    found = scored(sampling, [0, 5], OBSERVED, 0.3)["likelihood"]
    assert found == pytest.approx([ratio(column, draws, absent) for column in np.transpose(OBSERVED)])


@pytest.mark.parametrize(("relation", "absent"), [("zero_out_one", 0.0), ("replace_one", -1.0)])
def test_shuffled_epochs(relation, absent):
    sampling = Sampling("shuffle", relation=relation).bind(10, 5)
    once = [(0.5, (1, 0)), (0.5, (0, 1))]
    draws = [(a * b, (*first, *second)) for (a, first), (b, second) in itertools.product(once, once)]
    found = scored(sampling, [0, 5], OBSERVED, 0.5)["likelihood"]
    assert found == pytest.approx([ratio(column, draws, absent) for column in np.transpose(OBSERVED)])


def test_epochs_in_fixed_order_look_at_the_own_batch_only():
    sampling = Sampling("fixed_order").bind(10, 5)
    found = scored(sampling, [0, 5], OBSERVED, 0.5)["likelihood"]
    draws = [[(1.0, (1, 0, 1, 0))], [(1.0, (0, 1, 0, 1))]]
    assert found == pytest.approx([ratio(c, d, 0.0) for c, d in zip(np.transpose(OBSERVED), draws, strict=True)])


def test_the_spread_does_not_change_when_noise_is_the_same_in_all_updates():
    drawn = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    for noise in (0.0, -7.0):
        assert scored(Sampling().bind(10, 5), [0, 5], drawn + noise, 0.5)["spread"].tolist() == [1.0, 0.0]


def test_a_crowd_is_summed():
    scores = Crowded(1)
    for update, value in enumerate((-3.0, 5.0)):
        scores.add(update, np.array([value]), Z, 0.5)
    assert scores.values()["likelihood"].tolist() == [2.0]
    assert scores.values()["spread"].tolist() == [8.0]
