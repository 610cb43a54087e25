"""The regimes of AdaCliP and DPIS: rows from a seed, settings from held-out rows, tests of pairs."""

import dataclasses
import importlib
import pathlib

import numpy as np
import pytest

pytestmark = pytest.mark.backend_free
FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def regimes(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("regimes")


def tried(seed, rate, score, **changes):
    place = {"regime": "scales", "epsilon": 1.0, "method": "dpsgd", "seed": seed, "rate": rate, "clip_norm": 0.4}
    return place | {"score": score, "rows": 100, "batch": 8, "seconds": 1.0} | changes


@pytest.mark.parametrize("name", ["categories", "scales", "imbalance"])
def test_a_seed_makes_the_same_rows_again(regimes, name):
    x, y, x_test, y_test = regimes.parts(name, 0, False)
    again, other = regimes.parts(name, 0, False), regimes.parts(name, 1, False)
    assert len(x_test) == len(y_test) == 10000 and len(x) == len(y)
    assert np.array_equal(x, again[0]) and np.array_equal(y_test, again[3])
    assert not np.array_equal(x, other[0])
    # Settings are chosen on rows that no test sees.
    assert not np.array_equal(regimes.parts(name, 0, True)[2], x_test)


def test_settings_of_public_data_are_chosen_on_training_rows(regimes, monkeypatch):
    x = np.arange(100.0)[:, None]
    whole = x[:80], x[:80, 0], x[80:], x[80:, 0]
    monkeypatch.setitem(regimes.REGIMES, "magic", dataclasses.replace(regimes.REGIMES["magic"], source=lambda: whole))
    assert [len(part) for part in regimes.parts("magic", 0, False)] == [80, 80, 20, 20]
    held_out = regimes.parts("magic", 0, True)
    assert [len(part) for part in held_out] == [64, 64, 16, 16] and held_out[2].max() == 79.0


def test_settings_with_two_seeds_are_compared(regimes, monkeypatch):
    runs = [tried(0, 0.1, 0.9), tried(0, 0.2, 0.8), tried(1, 0.2, 0.7), tried(0, 0.3, 0.7), tried(1, 0.3, 0.75)]
    assert regimes.chosen(runs, "scales", 1.0, "dpsgd") == (0.2, 0.4)
    assert regimes.chosen(runs, "scales", 1.0, "adaclip") is None

    def run(name, epsilon, method, seed, rate, clip_norm, held_out):
        assert held_out
        return tried(seed, rate, rate - seed * (rate > 1.0), clip_norm=clip_norm, method=method)

    monkeypatch.setattr(regimes, "run", run)
    few = dataclasses.replace(regimes.REGIMES["scales"], rates=(0.5, 0.9, 1.1))
    monkeypatch.setitem(regimes.REGIMES, "scales", few)
    series = importlib.import_module("common").Series(None, regimes.PLACE)
    regimes.choose(series, "scales", 1.0, "dpsgd")
    assert len(series.runs) == 3 * len(regimes.CLIP_NORMS) + 2
    assert regimes.chosen(series.runs, "scales", 1.0, "dpsgd")[0] == 1.1


def test_the_table_pairs_runs_of_a_seed(regimes):
    first = [tried(seed, 0.1, 0.8 + 0.01 * seed) for seed in range(4)]
    other = [tried(seed, 0.1, 0.81 + 0.01 * seed + 0.001 * (seed % 2), method="adaclip") for seed in range(6)]
    (row,) = regimes.table([*first, *other]).splitlines()[2:]
    cells = row.strip("| ").split(" | ")
    assert cells[5:11] == ["0.8150 (0.0129)", "AdaCliP", "0.8255 (0.0132)", "+0.0105", "< 0.001", "4"]


def test_p_values_are_of_pairs(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    common = importlib.import_module("common")
    first = [{"seed": seed, "accuracy": value} for seed, value in enumerate([0.5, 0.6, 0.7])]
    other = [{"seed": seed, "accuracy": value} for seed, value in enumerate([0.51, 0.62, 0.73, 0.9])]
    # t = 0.02 / (0.01 / sqrt(3)) with two degrees of freedom.
    assert common.p_value(first, other) == pytest.approx(0.0742, abs=1e-4)
    assert common.p_value(first, first) is None and common.p_value(first[:2], other) is None
    assert [common.p_text(p) for p in (None, 0.0001, 0.0742)] == ["-", "< 0.001", "0.074"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adaclip", "dpis"])
def test_a_way_runs(regimes, monkeypatch, method):
    def source(seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(400, 5))
        return x, x[:, 0] > 0.0

    small = regimes.Regime(source, "small", ("dpsgd", method), batch=64, updates=8, blocks=(2, 3))
    monkeypatch.setitem(regimes.REGIMES, "small", small)
    monkeypatch.setattr(importlib.import_module("regimes_data"), "TESTED", 100)
    found = regimes.run("small", 4.0, method, 0, 0.4, 1.6, False)
    assert 0.5 < found["score"] <= 1.0 and found["spent"] <= 4.0 + 1e-6 and found["rows"] == 300
