"""The comparison with other libraries: what a process reports, what stops it, how rows are made of it."""

import argparse
import importlib
import json
import pathlib
import sys
import time

import pytest

pytestmark = pytest.mark.backend_free
FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("peers")


@pytest.fixture
def protocol(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER / "peers")
    return importlib.import_module("protocol")


def report(peers, monkeypatch, tmp_path, code, limit=60.0, memory=10.0):
    """What is recorded of a script with this code."""
    (tmp_path / "made_step.py").write_text(code)
    monkeypatch.setattr(peers, "SCRIPTS", tmp_path)
    asked = argparse.Namespace(steps=3, limit=limit, memory=memory, patience=None)
    return peers.process(sys.executable, "made", "m", "mlp", 8, asked)


def test_a_line_of_json_is_read_whatever_stands_before(peers, monkeypatch, tmp_path):
    code = "import json, os\nprint('noise')\nprint(json.dumps({'threads': os.environ['OMP_NUM_THREADS']}))"
    assert report(peers, monkeypatch, tmp_path, code) == {"threads": "1"}


@pytest.mark.parametrize(
    ("code", "limits", "note"),
    [
        ("raise SystemExit('no rule for this layer')", {}, "no rule for this layer"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", {}, "ended by signal 11"),
        ("import time; time.sleep(60)", {"limit": 0.05}, "no result within 0.5 s"),
        ("import time; b = b'1' * 2**28; time.sleep(60)", {"memory": 0.125}, "needs more than 0.125 GiB"),
    ],
)
def test_what_does_not_run_is_recorded(peers, monkeypatch, tmp_path, code, limits, note):
    assert report(peers, monkeypatch, tmp_path, code, **limits) == {"note": note}


def counted(protocol, steps, limit):
    """The report of two short steps, and how often each was called."""
    calls = {"private": 0, "plain": 0}

    def step(name):
        calls[name] += 1
        time.sleep(0.001)

    return protocol.timed({name: lambda name=name: step(name) for name in calls}, steps, limit), calls


def test_the_first_steps_are_not_counted(protocol):
    found, calls = counted(protocol, 4, 60.0)
    assert found["steps"] == 4 and "note" not in found
    assert calls == {"private": 1 + protocol.WARM + 4, "plain": 1 + protocol.WARM + 4}


def test_a_slow_method_stops_and_says_so(protocol):
    found, calls = counted(protocol, 4, 0.0)
    assert found["note"] == "3 steps take more than 0 s"
    assert found["steps"] == 1 and calls["private"] == 2


def run(private, plain, **more):
    times = {"private": private, "plain": plain}
    return {"times": times, "peak_mib": 10.0, "first_call_seconds": {"private": 1.0}, **more}


def test_rows_join_the_steps_of_all_processes(peers):
    row = peers.combined([run([2.0, 4.0], [1.0, 2.0]), run([6.0], [2.0], peak_mib=30.0)], [(3.0, None)])
    assert row["milliseconds"]["private"]["median"] == 4.0
    assert row["ratio"]["median"] == 2.0 and row["steps"] == 3 and row["processes"] == 2
    assert row["peak_mib"] == 30.0 and row["beside_lipdp"]["median"] == 3.0 and "by_row" not in row


def test_times_of_draws_are_divided_by_their_rows(peers):
    times = {"times": {"private": [4.0, 8.0, 6.0], "plain": [4.0, 4.0, 4.0]}}
    ours = run([1.0] * 3, [1.0] * 3, batch=4, drawn=[2, 4, 3], cpu=times, milliseconds={"private": {"median": 6.0}})
    milliseconds = {"milliseconds": {"private": {"median": 12.0}}}
    assert peers.beside_of(ours, {"batch": 4, **milliseconds, "cpu": milliseconds}) == (2.0, 1.5)
    row = peers.combined([ours], [])
    assert row["ratio_by_row"]["median"] == 2.0 and row["drawn"] == [2, 4, 3]
    assert row["cpu"]["milliseconds"]["private"]["median"] == 6.0


def test_a_table_of_fine_tuning_has_a_line_of_each_kind(peers):
    place = {"network": "transformer-lora", "batch": 4, "library": "x", "method": "m"}
    cpu = {"times": {"private": [2.0], "plain": [1.0]}}
    measured = peers.combined([run([2.0], [1.0], trainable=1234, cpu=cpu)], [(3.0, 2.5)])
    head, _, *lines = peers.finetune_table([{**place, **measured}, {**place, "note": "too large"}]).splitlines()
    assert "| lora | 4 | x | m | 1,234 |" in lines[0] and "| 2.50 |" in lines[0] and "too large" in lines[1]
    assert {line.count("|") for line in lines} == {head.count("|")}


def test_rows_of_other_networks_are_kept(peers, monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    rows = [{"network": "mlp", "batch": batch} for batch in (8, 16)]
    (tmp_path / "made.json").write_text(json.dumps({"command": "c", "results": rows, "libraries": {"x": {}}}))
    asked = argparse.Namespace(name="made", network=["mlp", "cnn"], batch=[16])
    assert peers.kept(asked) == ([{"command": "c", "network": "mlp", "batch": 8}], {"x": {}})


def test_words_of_the_transformer_are_in_its_table(protocol):
    ((words, labels), *_) = protocol.batches(3, "transformer-lora")
    assert words.shape == (3, protocol.TRANSFORMER["length"]) and words.max() < protocol.TRANSFORMER["words"]
    assert labels.shape == (3,)


def test_the_transformer_is_that_of_the_benchmark_of_fine_tuning(protocol, peers):
    finetune, t = importlib.import_module("finetune"), protocol.TRANSFORMER
    ours = (finetune.LENGTH, finetune.WIDTH, finetune.HEADS, finetune.BLOCKS, finetune.WORDS, finetune.RANK)
    assert ours == tuple(t[name] for name in ("length", "width", "heads", "blocks", "words", "rank"))
    assert peers.NETWORKS == protocol.NETWORKS


def test_a_refused_method_keeps_its_row(peers):
    row = {"network": "cnn", "batch": 8, "library": "x", "method": "m", **peers.combined([{"note": "too large"}], [])}
    last = peers.table([row]).splitlines()[-1]
    assert "too large" in last and json.loads(json.dumps(row))["note"] == "too large"
    assert last.count("|") == peers.table([]).splitlines()[0].count("|")
