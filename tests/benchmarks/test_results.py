"""The benchmarks of cost still call what `fit` calls, and no run of a series is lost."""

import importlib
import json
import pathlib

import numpy as np
import pytest

import lipdp

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "network", "steps"),
    [
        ("step_cost", "mlp", ("clipless", "plain", "ordinary")),
        ("per_example", "cnn", ("private", "plain")),
    ],
)
def test_steps_can_be_timed(monkeypatch, module, network, steps):
    monkeypatch.syspath_prepend(FOLDER)
    made = {step: importlib.import_module(module).stepper(network, step, 8) for step in steps}
    before = {step: [v.numpy().copy() for v in one.model.trainable_variables] for step, one in made.items()}
    times = importlib.import_module("stepping").interleaved(made, 1)
    for step, one in made.items():
        assert len(times[step]) == 1 and times[step][0] > 0.0
        if not one._jax:
            assert any((v.numpy() != b).any() for v, b in zip(one.model.trainable_variables, before[step], strict=True))


@pytest.mark.backend_free
def test_series_go_on_where_they_stopped(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    common = importlib.import_module("common")
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    series = common.Series("some", ("epsilon", "seed"))
    assert series.missing(1.0, 0)
    series.add({"epsilon": 1.0, "seed": 1, "accuracy": 0.5}, table=len, delta=1e-5)
    series.add({"epsilon": 1.0, "seed": 0, "accuracy": 0.6}, table=len, delta=1e-5)
    again = common.Series("some", ("epsilon", "seed"))
    assert not again.missing(1.0, 0) and again.missing(2.0, 0)
    again.add({"epsilon": 1.0, "seed": 1, "accuracy": 0.7}, table=len, delta=1e-5)
    kept = json.loads((tmp_path / "some.json").read_text())
    assert [run["accuracy"] for run in kept["runs"]] == [0.6, 0.7] and kept["table"] == 2
    assert common.Series("some", ("epsilon", "seed"), again=True).missing(1.0, 0)
    nowhere = common.Series(None, ("epsilon",))
    nowhere.add({"epsilon": 1.0})
    assert list(tmp_path.iterdir()) == [tmp_path / "some.json"]


@pytest.mark.backend_free
def test_tables_far_from_trees_are_named(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    tables = importlib.import_module("unseen_tables")
    facts = {"examples": 800, "anomalies": 80, "columns": 4}

    def runs(table, recipe, boosting):
        private = [
            {"table": table, "method": "recipe", "epsilon": 1.0, "seed": seed, "auroc": recipe + gap, **facts}
            for seed, gap in enumerate((-0.01, 0.01))
        ]
        return [*private, {**private[0], "method": "boosting", "epsilon": None, "auroc": boosting}]

    found = [*runs("near", 0.92, 0.95), *runs("Far", 0.7, 0.95)]
    assert "| near | 800 | 80 | 4 | 0.920 (0.014) | - | 0.950 | - | 2 |" in tables.render(found)
    assert tables.render(found).splitlines()[2].startswith("| Far |")
    assert "on 1 of 2 tables" in tables.summary(found) and "Far (-0.25)" in tables.summary(found)


@pytest.mark.backend_free
def test_only_seeds_of_one_setting_share_a_row_of_diffusion(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    diffusion = importlib.import_module("diffusion")

    def run(seed, cnn, **changes):
        settings = {"batch_size": 8, "multiplicity": 1, "learning_rate": changes.pop("learning_rate", 0.1)}
        accuracy = {"cnn": cnn, "mlp": cnn - 0.1, "logistic_regression": cnn - 0.2}
        place = {"dataset": "mnist", "preset": "cpu-28", "epsilon": 1.0, "seed": seed, "settings": settings}
        rest = {"samples": 100, "epochs": 5, "updates": 3, "processor_seconds": 60.0}
        return place | rest | {"accuracy": accuracy} | changes

    runs = [run(1, 0.95), run(2, 0.9, learning_rate=0.2), run(0, 0.93), run(3, 0.8, epochs=2)]
    assert [[one["seed"] for one in same] for same in diffusion.by_setting({"runs": runs})] == [[3], [0, 1], [2]]
    rows = diffusion.table({"runs": runs}).splitlines()[2:]
    assert [row.split(" | ")[4] for row in rows] == ["80.00", "94.00 (1.41)", "90.00"]
    assert all("DPDM 89.2" in row for row in rows)
    assert [row.split(" | ")[3] for row in rows] == ["drawn for"] * 3
    # Distances were not measured at first.
    assert [row.split(" | ")[8] for row in rows] == [""] * 3
    runs[0]["frechet_distance"] = 12.34
    assert diffusion.table({"runs": runs}).splitlines()[3].split(" | ")[8] == "12.3"
    # Runs with another classifier are a row of their own.
    for number, run in enumerate(runs[:2]):
        run["accuracy"]["wider_cnn"] = 0.9 + 0.01 * number
    rows = diffusion.table({"runs": runs}).splitlines()[2:]
    assert [row.split(" | ")[4:6] for row in rows] == [
        ["80.00", ""],
        ["93.00", ""],
        ["95.00", "90.00"],
        ["90.00", "91.00"],
    ]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["wider_cnn", "coarse_cnn"])
def test_classifiers_of_our_own_are_such_that_drawn_images_can_train(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    network = importlib.import_module("diffusion").own_cnn(name, (28, 28, 1), 10, steps=2)
    x, y = np.random.default_rng(0).normal(size=(20, 28, 28, 1)).astype("float32"), np.arange(20) % 10
    found = lipdp.diffusion.downstream_accuracy(x, y, x, y, [network], epochs=1, batch_size=9)
    assert list(found) == [name] and 0.0 <= found[name] <= 1.0
