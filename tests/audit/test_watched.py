"""What the white-box audit puts into the data, what it reads off an update, and on which trials it counts."""

from types import SimpleNamespace

import numpy as np
import pytest

from lipdp import accounting
from lipdp.accounting import Sampling
from lipdp.audit import intervals, networks, watched, white_box
from lipdp.audit.family import Family
from lipdp.audit.scores import NAMES
from lipdp.privacy import Plan
from lipdp.strategies import DPSGD

pytestmark = pytest.mark.backend_free

FAMILY = Family.of([accounting.Mechanism(1.0, 1.0, 1)], 1e-5)
# `lipdp.audit.white_box` is the function, not its module.
MODULE = __import__("sys").modules["lipdp.audit.white_box"]


def plan(**arguments):
    sampling = Sampling(**arguments).bind(num_examples=20, batch_size=10)
    return Plan(sampling=sampling, updates=2, noise_multiplier=1.0, delta=1e-5)


class Unfitted:
    """Stands for a `Setting`: keeps the data that it would train on."""

    def __init__(self, plan):
        self.plan, self.network, self.data = plan, networks.dense(DPSGD(), 8), None

    def fit(self, x, y, plan, runs, scores, budget):
        self.data = x, y
        return {name: np.zeros((runs, 8)) for name in NAMES}, None


@pytest.mark.parametrize("seed", range(3))
def test_members_are_in_the_data_and_the_others_are_not(seed):
    setting = Unfitted(plan())
    trials, _, stated = watched.coins(setting, 5, None, np.random.default_rng(seed))
    x, _ = setting.data
    assert x.shape == (20, 8) and stated == setting.plan.cost()
    assert 0 < trials.members[0].sum() < 8 and (trials.members == trials.members[0]).all()
    # Canary i is the i-th input alone.
    assert ((x != 0.0).sum(axis=0) == trials.members[0]).all()


def test_who_is_replaced_points_the_other_way():
    setting = Unfitted(plan(relation="replace_one"))
    trials, _, _ = watched.coins(setting, 5, None, np.random.default_rng(0))
    x, y = setting.data
    assert ((x != 0.0).sum(axis=0) == 1).all()
    assert ((y[np.argmax(x != 0.0, axis=0), 0] > 0.0) == trials.members[0]).all()


def test_an_update_is_read_in_units_of_what_one_example_may_add():
    """Noise of multiplier 2 over a sensitivity of 0.25: a canary that is drawn adds 0.25, which is one."""
    seen = []

    class Kept:
        def __init__(self):
            self.updates = []
            seen.append(self.updates)

        def add(self, update, observed, noise_multiplier, rate):
            self.updates.append((update, observed.tolist(), noise_multiplier, rate))

        def values(self):
            return {name: np.zeros(2) for name in NAMES}

    release = SimpleNamespace(kind="gradient", noise_multiplier=2.0, sampling=SimpleNamespace(sampling_probability=0.5))
    model = SimpleNamespace(run=SimpleNamespace(ledger=SimpleNamespace(entries=[release])))
    found = watched._Watched(model, 7.0 * np.eye(2, 3), 2, Kept)
    for update in range(4):
        found.add(update, np.array([0.25, -0.5, 9.0]), np.array([0.5, 0.5, 0.0]))
    one = [([1.0, -2.0], 2.0, 0.5)] * 2
    # Each two updates are a run of their own.
    assert [[rest for _, *rest in run] for run in seen[:2]] == [[list(o) for o in one]] * 2 and seen[2:] == [[]]
    assert [[update for update, *_ in run] for run in seen[:2]] == [[0, 1], [0, 1]]
    assert len(found.found[NAMES[0]]) == 2


def test_gradients_are_computed_again_for_other_weights():
    network = networks.dense(DPSGD(), 8)
    setting = watched.Setting(network, DPSGD(), plan(), {})
    model = network.make("sgd")
    first = setting._gradients(model)
    assert setting._gradients(network.make("sgd")) is first
    model.set_weights([w + 1.0 for w in model.get_weights()])
    assert setting._gradients(model) is not first


def test_nothing_is_chosen_on_what_is_counted():
    """The first quarter of the runs says that members score high, and all that are counted say the opposite."""
    members = np.tile(np.arange(8) < 4, (40, 1))
    scores = np.where(members, 1.0, 0.0)
    scores[10:] *= -1.0
    trials = watched.Trials(dict.fromkeys(NAMES, scores + np.linspace(0.0, 0.1, 320).reshape(40, 8)), members)
    bounds, details, _ = MODULE._bounds(trials, FAMILY, 0.05)
    assert details["trials"] == [120, 120] and details["hits"] == 0
    assert set(bounds) == {"curve", "rates"} and bounds["curve"] == 0.0
    assert details["true_positive_rate_at_least"] == 0.0


def test_of_few_runs_some_canaries_are_not_counted():
    chosen = MODULE.choice((1, 20))
    assert chosen.sum() == 5 and not MODULE.choice((40, 2))[10:].any()


def test_rates_are_bounded_at_half_of_the_error_each():
    inside, outside = np.arange(200) < 150, np.arange(200) < 40
    bounds, details = MODULE.rate_bounds(1.0 * inside, 1.0 * outside, 1.0, FAMILY, 0.06)
    assert (details["hits"], details["false_alarms"]) == (150, 40)
    low, high = intervals.clopper_pearson(150, 200, 0.03)[0], intervals.clopper_pearson(40, 200, 0.03)[1]
    assert details["true_positive_rate_at_least"] == low and details["false_positive_rate_at_most"] == high
    assert bounds["rates"] == intervals.epsilon_of_rates(low, high, 1e-5)


def test_three_numbers_of_guesses_share_the_error():
    rng = np.random.default_rng(0)
    members = rng.random(400) < 0.5
    scores = 2.0 * members + rng.standard_normal(400)
    bounds = MODULE.one_run_bounds(scores, members, FAMILY, 0.06)
    tried = [(intervals.guess(scores, members, number), number) for number in (20, 80, 400)]
    assert bounds["one_run"] == max(intervals.one_run_epsilon(right, n, 400, 1e-5, 0.02) for right, n in tried)


@pytest.mark.slow
def test_the_bound_that_a_run_states_is_that_of_its_plan():
    found = white_box("dpsgd", noise_multiplier=1.0, canaries=8, runs=4, updates=2, seed=0)
    assert found.epsilon == accounting.epsilon(
        noise_multiplier=1.0, sampling_probability=0.5, updates=2, delta=1e-5, num_examples=8
    )
