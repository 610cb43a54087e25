"""Several processes that train one model: one secret, one ledger, and an end for all when one of them stops."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.devices import test_data_parallel

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow trains in one process")
ROOT = pathlib.Path(__file__).parents[2]
# How the others end when one has.
CLEAR = "has stopped, or cannot be reached", "another task died"


def run(count, **case):
    """Returns what each process found, and what it said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "tests.devices.process"]
    started = [
        subprocess.Popen(
            [*words, str(rank), str(count), port, json.dumps(case)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
        )
        for rank in range(count)
    ]  # fmt: skip
    found, said = [], []
    for process in started:
        out, err = process.communicate(timeout=300)
        lines = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("FOUND ")]
        found.append(lines[0] if lines else {"code": process.returncode})
        said.append(err)
    return found, said


def whole(found):
    """Returns what all processes agree on."""
    assert all("digest" in one for one in found), found
    assert len({(one["digest"], one["ledger"], str(one["key"])) for one in found}) == 1
    return found[0]


def test_two_processes_train_as_one():
    """Byte-equal to each other; as one process with as many devices, but for the order of sums."""
    together = whole(run(2, strategy="dpsgd", microbatch=18)[0])
    (alone,) = test_data_parallel.run(4, [{"strategy": "dpsgd", "microbatch": 18, "values": True}])
    for a, b in zip(together["weights"], alone["values"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for name, values in alone["history"].items():
        np.testing.assert_allclose(together["history"][name], values, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("strategy", ["clipless", "quantile", "adaclip", "diffusion"])
def test_processes_without_a_seed_share_one_secret(strategy, count):
    first = whole(run(count, strategy=strategy, seed=None)[0])
    second = whole(run(count, strategy=strategy, seed=None)[0])
    assert first["digest"] != second["digest"]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        pytest.param({"rows": 299}, "the size of the data", marks=pytest.mark.slow),
        pytest.param({"shift": 1.0}, "Received: the data, not the same", marks=pytest.mark.slow),
        pytest.param({"epsilon": 2.0}, "the plan", marks=pytest.mark.slow),
        pytest.param({"seed": 8}, "the seed", marks=pytest.mark.slow),
    ],
)
def test_processes_must_agree(other, what):
    found, _ = run(2, strategy="dpsgd", of={"1": other})
    for one in found:
        assert "must agree" in one["error"] and what in one["error"], one


@pytest.mark.slow
def test_processes_that_train_apart_are_refused():
    for one in run(2, strategy="dpsgd", distribution=False)[0]:
        assert "share one draw" in one["error"]
    for one in run(2, strategy="dpis")[0]:
        assert "norms of all examples in one process" in one["error"]


@pytest.mark.slow
@pytest.mark.parametrize("fails", [0, 1])
def test_all_end_when_one_of_them_fails(fails):
    """That one waited for the others in the end, and these for it."""
    found, said = run(2, strategy="dpsgd", fails=fails, at=2)
    other = found[1 - fails]
    assert found[fails] == {"error": "OSError: a callback"}
    assert any(text in other.get("error", said[1 - fails]) for text in CLEAR), (other, said[1 - fails][-2000:])


@pytest.mark.slow
@pytest.mark.parametrize("stops", [0, 1])
def test_all_end_when_a_callback_stops_one_within_an_epoch(stops):
    found = whole(run(2, strategy="dpsgd", stops=stops, at=2)[0])
    assert found["updates"] == found["made"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("seed", [None, 7])
def test_all_end_when_one_is_killed_and_go_on_together(tmp_path, killed, seed):
    keep = {"strategy": "dpsgd", "seed": seed, "checkpoint": str(tmp_path / "c.weights.h5"), "every": 2}
    found, said = run(2, **keep, killed=killed, at=5)
    assert found[killed] == {"code": -9}
    other = found[1 - killed]
    assert any(text in other.get("error", said[1 - killed]) for text in CLEAR), (other, said[1 - killed][-2000:])
    again = whole(run(2, **keep)[0])
    assert json.loads(again["ledger"])
    if seed is None:
        # What was lost stays charged: fewer updates were made than were planned. The first process, where it is left,
        # may wait between two updates, when its weights are whole and its file has them all.
        assert again["updates"] == 6
        assert again["made"] < 6 or (killed == 1 and again["made"] == 6)
    else:
        assert again["digest"] == whole(run(2, strategy="dpsgd", seed=seed)[0])["digest"]
    # Nothing is left: all return at once.
    assert whole(run(2, **keep)[0])["digest"] == again["digest"]
