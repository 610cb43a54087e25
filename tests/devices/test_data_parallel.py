"""`fit` on several devices: the same weights and the same ledger as on one, and no rows that are moved about."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

from tests.devices.worker import STRATEGIES

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow trains on one device")
ROOT = pathlib.Path(__file__).parents[2]


def run(devices, cases):
    """Returns what a process with so many virtual devices found, case by case."""
    command = [sys.executable, "-m", "tests.devices.worker", str(devices), json.dumps(cases)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("CASE ")]
    assert len(found) == len(cases), done.stderr[-3000:]
    for case in found:
        assert "error" not in case, case
    return found


def check(devices, cases):
    for case in run(devices, cases):
        assert case["devices"] == devices, case
        assert case["weights"] < 1e-6 and case["logs"] < 1e-5, case
        # The noise of DPIS follows from sums of norms, which are rounded in another order.
        assert case["key"] and (case["ledger"] or case["strategy"] == "dpis"), case
        assert case["spent"][0] == pytest.approx(case["spent"][1], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategies", [("clipless", "dpsgd", "dpis"), pytest.param(("quantile", "adaclip"), marks=pytest.mark.slow)]
)
def test_eight_devices_train_as_one(strategies):
    # 18 is rounded up to 24 rows, which changes nothing but their order.
    cases = [{"strategy": strategy, "microbatch": 18 if i % 2 else None} for i, strategy in enumerate(strategies)]
    # 299 rows are none that eight devices share.
    more = {"strategy": strategies[1]}
    check(8, [*cases, more | {"moments": True, "rows": 299}, more | {"words": 60}])


@pytest.mark.slow
def test_persons_on_three_devices_train_as_on_one():
    """The rows of a person stay on one device, also where their number is none that three devices share."""
    check(3, [{"strategy": s, "rows_per_person": 4, "microbatch": m} for s, m in (("clipless", None), ("dpsgd", 25))])


@pytest.mark.slow
@pytest.mark.parametrize("devices", [3, 8, 16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_way_to_train_on_several_devices(strategy, devices):
    samplings = (
        ["poisson"] if strategy == "dpis" else ["poisson", "truncated_poisson", "fixed_size", "shuffle", "fixed_order"]
    )
    ways = itertools.product(samplings, (None, 16, 25), ("threefry", "chacha20"))
    check(devices, [{"strategy": strategy, "sampling": s, "microbatch": m, "generator": g} for s, m, g in ways])


@pytest.mark.slow
def test_rows_with_random_numbers_have_noise_of_their_own():
    """On several devices an example gets another noising than on one: the same noise would give the difference away."""
    (case,) = run(8, [{"strategy": "diffusion"}])
    assert case["ledger"] and not case["key"] and case["devices"] == 8


WAYS = {"whole": {"microbatch": None}, "parts": {"microbatch": 16}, "words": {"microbatch": 16, "words": 60}}


@pytest.mark.parametrize(
    ("strategy", "ways"),
    [
        ("dpsgd", ["parts"]),
        pytest.param("dpsgd", ["whole", "words"], marks=pytest.mark.slow),
        pytest.param("clipless", ["whole", "parts"], marks=pytest.mark.slow),
    ],
)
def test_only_the_sum_of_the_gradients_is_exchanged(strategy, ways):
    cases = [{"strategy": strategy, "program": True, **WAYS[way]} for way in ways]
    for case in run(8, cases):
        # The branch for gradients that are not finite adds them up anew.
        times = 1 if strategy == "clipless" else 2
        assert case["programs"]
        for program in case["programs"]:
            assert {kind for kind, _ in program} == {"all-reduce"}, program  # no rows are gathered
            large = [size for _, size in program if size >= case["parameters"]]
            # Beside the gradients only a few scalars, for loss and metrics.
            assert len(large) == times and max(large) <= case["parameters"] + 8, program
            assert all(size <= 8 for _, size in program if size < case["parameters"]), program
