"""Hostile numbers: each answer is right, or an error that names what was received and the cure."""

import math

import pytest

from lipdp import accounting
from lipdp.accounting import Mechanism, solve
from lipdp.cli import main

pytestmark = pytest.mark.backend_free

NAN, INF = float("nan"), float("inf")
RUN = dict(delta=1e-5, sampling_probability=0.01)
POSITIVE = r"`epsilon` must be a finite number above 0. Received: epsilon=|from a budget or .* Received: epsilon=None"


@pytest.mark.parametrize("epsilon", [0, -1, NAN, INF, True, "1", None])
@pytest.mark.parametrize(
    "ask",
    [
        lambda epsilon: accounting.calibrate(epsilon=epsilon, updates=10, **RUN),
        lambda epsilon: accounting.max_updates(epsilon=epsilon, noise_multiplier=1.0, **RUN),
    ],
)
def test_no_budget(ask, epsilon):
    with pytest.raises(ValueError, match=POSITIVE):
        ask(epsilon)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("budget", "updates"), [(1e-9, 1), (1e-9, 1000), (1e-4, 1), (1e-4, 1000)])
def test_tiny_budgets_get_noise(budget, updates, accountant):
    """They were refused as budgets that need no noise: epsilon jumps to 0 before it gets so small."""
    noise = accounting.calibrate(epsilon=budget, updates=updates, accountant=accountant, **RUN)
    assert accounting.compose([Mechanism(0.01, noise, updates)], 1e-5, accountant) <= budget
    assert accounting.compose([Mechanism(0.01, 0.98 * noise, updates)], 1e-5, accountant) > budget


def test_a_tiny_budget_for_too_many_updates():
    with pytest.raises(ValueError, match=r"No noise multiplier up to 100000.*epsilon=1e-09.*fewer updates"):
        accounting.calibrate(epsilon=1e-9, updates=10**6, **RUN)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"epsilon": 1e-9}, 0),
        ({"noise_multiplier": 0.0}, 0),
        ({"noise_multiplier": 1e-9}, 0),
        ({"epsilon": 1e300}, 10**9),
        ({"noise_multiplier": 1e300}, 10**9),
    ],
)
def test_most_updates(change, found):
    assert (
        accounting.max_updates(**({"epsilon": 1.0, "noise_multiplier": 1.0, "accountant": "rdp"} | RUN | change))
        == found
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": None, "epsilon": 1e-9}, r"Not even one epoch fits.*epsilon=1e-09.*larger epsilon"),
        ({"batch_size": None, "epsilon": 1e-9}, r"Not even a batch of one.*epsilon=1e-09.*larger epsilon"),
        ({"noise_multiplier": None, "epsilon": 1e300}, r"needs no noise at all.*epsilon=1e\+300"),
        ({"noise_multiplier": None, "epsilon": -1}, POSITIVE + "-1"),
        ({"epsilon": None, "noise_multiplier": NAN}, r"`noise_multiplier` must be.*nan"),
        ({"epsilon": None, "batch_size": 10**9}, r"larger than the data.*batch_size=1000000000"),
    ],
)
def test_plans(change, message):
    plan = dict(num_examples=600, delta=1e-5, epsilon=1.0, noise_multiplier=1.0, epochs=3, batch_size=25)
    with pytest.raises(ValueError, match=message):
        solve(**(plan | change), accountant="rdp")


def test_a_plan_of_no_privacy_says_so():
    plan = dict(num_examples=600, delta=1e-5, noise_multiplier=1e-9, epochs=3, batch_size=25)
    assert solve(**plan)["epsilon"] == math.inf


@pytest.mark.slow
def test_the_largest_batch_is_the_largest():
    plan = dict(num_examples=2000, delta=1e-5, epsilon=3.0, noise_multiplier=2.0, epochs=3, accountant="rdp")
    largest = solve(**plan)["batch_size"]

    def cost(size):
        return solve(**(plan | {"epsilon": None}), batch_size=size)["epsilon"]

    assert cost(largest) <= 3.0
    assert all(cost(size) > 3.0 for size in (*range(largest + 1, largest + 60), *range(largest + 60, 2001, 97)))


SAMPLED = ["--sampling-probability", "0.01", "--updates", "10", "--accountant", "rdp"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["epsilon", "--noise-multiplier", "nan", *SAMPLED], "`noise_multiplier` must be"),
        (["epsilon", "--noise-multiplier", "-1", *SAMPLED], "Received: noise_multiplier=-1.0"),
        (["epsilon", "--noise-multiplier", "1", *SAMPLED, "--delta", "0"], "`delta` must be"),
        (["epsilon", "--noise-multiplier", "1", *SAMPLED, "--delta", "inf"], "`delta` must be"),
        (["calibrate", "--epsilon", "0", *SAMPLED], "Received: epsilon=0.0"),
        (["calibrate", "--epsilon", "nan", *SAMPLED], "Received: epsilon=nan"),
        (["calibrate", "--epsilon", "inf", *SAMPLED], "Received: epsilon=inf"),
        (["calibrate", "--epsilon", "1e300", *SAMPLED], "needs no noise at all"),
        (["group", "-3", "--noise-multiplier", "1", *SAMPLED[:4]], "Received: group_size=-3"),
        (["plan", "--num-examples", "600", "--epsilon", "-1", "--epochs", "2", "--batch-size", "25"], "epsilon=-1.0"),
        (["plan", "--num-examples", "0", "--epsilon", "1", "--epochs", "2", "--batch-size", "25"], "num_examples=0"),
    ],
)
def test_commands(arguments, text, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert text in captured.err and "Traceback" not in captured.err and not captured.out


def test_a_command_says_that_there_is_no_guarantee(capsys):
    assert main(["epsilon", "--noise-multiplier", "0", *SAMPLED]) == 0
    assert "infinite" in capsys.readouterr().out
