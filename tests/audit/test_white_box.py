"""White-box audits: near epsilon, never above it, for every strategy and sampler."""

import numpy as np
import pytest

from lipdp import audit
from lipdp.accounting import SAMPLERS
from lipdp.audit import Canaries, networks
from lipdp.model import DP_Model
from lipdp.strategies import DPSGD, AdaCliP, Clipless
from lipdp.training.fitting import Fitting

QUICK = {"epsilon": 4.0, "canaries": 128, "runs": 100, "seed": 1}


_SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("strategy", "least"), [("dpsgd", 0.6), ("clipless", 0.4), pytest.param("adaclip", 0.4, marks=_SLOW)]
)
def test_the_bound_comes_near_to_epsilon(strategy, least):
    found = audit.white_box(strategy, **QUICK | {"canaries": 256, "runs": 240})
    assert least <= found.ratio <= 1.0
    assert not found.flagged
    assert found.bounds["rates"] <= found.bounds["curve"]
    assert found.details["hits"] > found.details["false_alarms"]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(sampler, marks=() if sampler == "random_allocation" else _SLOW)
        for sampler in SAMPLERS
        if sampler != "poisson"
    ],
)
def test_every_sampler_is_scored_as_it_draws(sampler):
    found = audit.white_box("dpsgd", sampling=sampler, **QUICK)
    assert 0.3 <= found.ratio <= 1.0
    relations = {"fixed_size": "replace_one", "random_allocation": "add_or_remove_one"}
    assert found.relation == relations.get(sampler, "zero_out_one")


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "strategy",
    [
        DPSGD(clip_norm=0.3, clipping="automatic"),
        DPSGD(clip_norm=5.0, clipping="per_layer"),
        DPSGD(quantile=0.5),
        pytest.param(AdaCliP(clip_norm=0.5, granularity="layer"), marks=_SLOW),
        pytest.param(Clipless(noise="optimal"), marks=_SLOW),
    ],
    ids=["automatic", "per layer", "quantile", "adaclip by layer", "clipless optimal"],
)
def test_ways_to_clip(strategy):
    found = audit.white_box(strategy, epsilon=8.0, canaries=64, runs=60, seed=0)
    assert 0.05 <= found.ratio <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["clipless", pytest.param("dpsgd", marks=_SLOW)])
def test_canaries_that_are_persons(strategy, monkeypatch):
    seen, fit = [], DP_Model.fit

    def noted(self, x, y, **arguments):
        seen.append((len(x), np.unique(arguments["person_ids"], return_counts=True)[1], arguments["rows_per_person"]))
        return fit(self, x, y, **arguments)

    monkeypatch.setattr(Fitting, "fit", noted)
    found = audit.white_box(strategy, rows_per_person=2, **QUICK)
    assert 0.4 <= found.ratio <= 1.0 and found.details["rows_per_person"] == 2
    # Each has twice as many rows as an update takes.
    assert [(count, sizes.tolist(), most) for count, sizes, most in seen] == [(512, [4] * 128, 2)]


@pytest.mark.slow
def test_dpis_is_fitted_again_for_each_run():
    found = audit.white_box("dpis", epsilon=10.0, canaries=128, runs=3, seed=0)
    assert 0.2 <= found.ratio <= 1.0
    assert sum(found.details["trials"]) == pytest.approx(0.75 * 3 * 128, abs=4)


@pytest.mark.slow
@pytest.mark.backend_free
def test_one_run_has_the_bounds_for_one_run():
    found = audit.white_box("dpsgd", epsilon=10.0, canaries=256, runs=1, updates=2, seed=0)
    assert set(found.bounds) == {"curve", "rates", "one_run", "one_run_curve"}
    assert 0.0 < found.bounds["one_run"] <= found.bounds["one_run_curve"] <= 10.0


@pytest.mark.slow
@pytest.mark.backend_free
def test_an_audit_with_a_seed_repeats():
    settings = {"noise_multiplier": 1.0, "canaries": 16, "runs": 8}
    one, same, other = (audit.white_box("dpsgd", **settings, seed=seed).points for seed in (3, 3, 4))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.backend_free
@_SLOW
def test_a_crowd_sees_no_more_than_is_charged():
    full = audit.white_box("dpsgd", epsilon=4.0, crowd=16, sampling_probability=1.0, updates=1, runs=500, seed=0)
    assert 0.2 <= full.ratio <= 1.0
    part = audit.white_box("dpsgd", noise_multiplier=1.0, crowd=100, updates=1, runs=300, seed=0)
    assert part.epsilon_lower < 0.5 * part.epsilon


@pytest.mark.backend_free
@_SLOW
def test_microbatches_and_the_other_generator():
    found = audit.white_box("dpsgd", **QUICK, microbatch_size=16, noise_generator="chacha20")
    assert 0.5 <= found.ratio <= 1.0


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("network", ["convolution", "feature_map_bias"])
def test_networks_reach_the_bound_of_their_layer(network):
    found = audit.white_box("clipless", epsilon=8.0, network=network, canaries=16, runs=150, seed=0)
    assert 0.25 <= found.ratio <= 1.0


@pytest.mark.backend_free
@_SLOW
def test_few_canaries_are_all_there_or_none():
    found = audit.white_box("clipless", epsilon=8.0, network="convolution", canaries=8, runs=40, seed=0)
    network = networks.dense(DPSGD(), 3)
    few = audit.white_box("dpsgd", epsilon=8.0, network=network, runs=100, seed=0)
    assert few.details["trials"] == [225, 225] and 0.2 < few.ratio <= 1.0
    assert found.details["canaries"] == 8


@pytest.mark.backend_free
def test_canaries_with_a_common_direction_are_refused():
    made = networks.dense(DPSGD(), 8)
    twice = Canaries(made.make, made.x[[0, 0, *range(2, 8)]], made.y, made.null, made.null_y, made.opposite_y)
    with pytest.raises(ValueError, match="orthogonal"):
        audit.white_box("dpsgd", epsilon=1.0, network=twice)
    silent = Canaries(made.make, 0.0 * made.x, made.y, made.null, made.null_y, made.opposite_y)
    with pytest.raises(ValueError, match="Each canary must have a gradient"):
        audit.white_box("dpsgd", epsilon=1.0, network=silent)


@pytest.mark.backend_free
def test_replacing_needs_an_opposite():
    made = networks.dense(DPSGD(), 8)
    bare = Canaries(made.make, made.x, made.y, made.null, made.null_y)
    with pytest.raises(ValueError, match="opposite"):
        audit.white_box("dpsgd", epsilon=1.0, network=bare, relation="replace_one")


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of `epsilon` and `noise_multiplier`"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "one of `epsilon` and `noise_multiplier`"),
        ({"strategy": "dpis", "noise_multiplier": 1.0}, "for DPIS `epsilon`"),
        ({"epsilon": 1.0, "confidence": 1.0}, "confidence"),
        ({"epsilon": 1.0, "canaries": 4}, "canaries"),
        ({"epsilon": 1.0, "runs": 0}, "runs"),
        ({"epsilon": 1.0, "network": "lstm"}, "network"),
        ({"epsilon": 1.0, "network": "convolution"}, "is for bounds"),
        ({"epsilon": 1.0, "sampling": "shuffle", "updates": 3}, "multiple of the updates of an epoch"),
        ({"epsilon": 1.0, "crowd": 10}, "`crowd` must be at least"),
        ({"epsilon": 1.0, "crowd": 10, "sampling": "fixed_size"}, "A crowd is for Poisson"),
        ({"strategy": "clipless", "epsilon": 1.0, "network": "feature_map_bias", "canaries": 12}, "power of 2"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        audit.white_box(**arguments)
