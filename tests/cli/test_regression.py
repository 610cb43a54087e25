"""A number of a table on the command line: from the description to predictions in its unit."""

import csv
import json

import keras
import numpy as np
import pytest

from lipdp import data
from lipdp.cli import evaluation, main, predict, regression
from lipdp.report import content
from lipdp.report import folder as folders
from tests.helpers.commands import refusal

SHORT = ["--verbose", "0", "--seed", "3"]


def write(path, rows=3000, label="price"):
    rng = np.random.default_rng(0)
    size, rooms = rng.uniform(20, 200, rows), rng.integers(1, 7, rows)
    price = 100.0 + 8.0 * size + 40.0 * rooms
    lines = [f"{s:.2f},{r},{p:.3f}" for s, r, p in zip(size, rooms, price, strict=True)]
    path.write_text(f"size,rooms,{label}\n" + "\n".join(lines) + "\n")
    return path


def described(path, high=3000):
    content = json.loads(path.read_text())
    content["columns"]["size"]["range"] = [0, 250]
    content["columns"]["rooms"]["range"] = [0, 10]
    content["label"] |= {"range": [0, high], "unit": "euros"}
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    file = write(folder / "houses.csv")
    assert main(["table", str(file), "--task", "regression"]) == 0
    described(folder / "houses.json")
    words = ["train", "--dataset", str(file), "--validation-split", "0.2", "--output", str(folder / "run")]
    assert main([*words, "--epsilon", "8", *SHORT]) == 0
    return folder / "run"


def test_a_description_asks_for_the_range(tmp_path, capsys):
    file = write(tmp_path / "houses.csv")
    assert main(["table", str(file), "--label", "price", "--task", "regression"]) == 0
    out = capsys.readouterr().out
    assert "It is a number to predict: fill in its range" in out and "vocabularies and classes" not in out
    label = json.loads((tmp_path / "houses.json").read_text())["label"]
    assert label == {"column": "price", "range": [None, None], "unit": ""}
    text = refusal(capsys, "train", "--dataset", str(file), "--epsilon", "2")
    assert "the range of the label" in text


def test_errors_are_in_the_unit_of_the_target_beside_the_middle(run):
    found = folders.read(run)
    held_out, settings = found.results["held_out"], found.run["settings"]
    assert settings["task"] == "regression" and settings["target_range"] == [0.0, 3000.0] and settings["delta"] == 1e-5
    assert held_out["mean_absolute_error"] < 0.5 * held_out["middle_mean_absolute_error"]
    assert held_out["mean_absolute_error"] < held_out["root_mean_squared_error"] < 600
    assert 0.5 < held_out["r_squared"] < 1.0 and held_out["unit"] == "euros"
    assert found.privacy["epsilon"] <= 8.0 and "read_off_the_data" not in found.statement
    first, second, third = evaluation.lines(held_out)
    assert " euros on " in first and "the middle of the range for all of them: " in first
    assert second.startswith("root mean squared error") and third.startswith("R squared 0.")
    names = [name for _, name, _ in content.tiles(found)]
    assert names[-2:] == ["mean absolute error", "R squared"] and dict(content.terms(found))
    text = (run / "report.md").read_text()
    assert "mean absolute error" in text and "Errors are measured on" in text and "accuracy" not in text.lower()


def test_predictions_are_in_the_unit_and_in_the_range(run, tmp_path, capsys):
    file, out = write(tmp_path / "new.csv", rows=50), tmp_path / "out.csv"
    file.write_text(file.read_text() + "100000,900,0\n")
    assert main(["predict", str(run), "--data", str(file), "--output", str(out), "--keep", "price"]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert list(rows[0]) == ["price", "prediction"] and len(rows) == 51
    off = [abs(float(row["price"]) - float(row["prediction"])) for row in rows[:50]]
    assert np.mean(off) < 250 and all(0.0 <= float(row["prediction"]) <= 3000.0 for row in rows)
    assert "clipped to its range from 0 to 3000" in capsys.readouterr().out


@pytest.mark.backend_free
def test_rows_that_the_model_cannot_see_are_said_without_classes():
    columns = (data.Column("area", kind="category", vocabulary=("north",), missing=False),)
    table = data.Table(columns=columns, label="price", target_range=(0, 9))
    _, (note,) = predict._encoded(table, {"area": ["north", "abroad"]})
    assert note.endswith("its prediction for them means little") and "class" not in note


@pytest.mark.backend_free
def test_what_is_for_classes_is_refused(run, capsys):
    assert "predicts a number, and names no classes" in refusal(capsys, "certify", str(run))
    assert "nothing can be drawn" in refusal(capsys, "sample", str(run), "--output", "x.png")
    file = str(run.parent / "houses.csv")
    model = str(run / "model.keras")
    assert "takes data of classes" in refusal(capsys, "certify", model, "--dataset", file)
    words = [
        "predict",
        model,
        "--data",
        file,
        "--table",
        str(run / "table.json"),
        "--output",
        str(run.parent / "o.csv"),
    ]
    assert "pass the run folder" in refusal(capsys, *words)
    for option in (["--recipe", "robust"], ["--radii", "0.1"], ["--front-end", "accurate"], ["--strategy", "clipless"]):
        assert option[0] in refusal(capsys, "train", "--dataset", file, "--epsilon", "2", *option)


def test_report_and_export_work(run, tmp_path, capsys):
    assert main(["report", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held_out"]["r_squared"] > 0.5
    assert main(["export", str(run), "--output", str(tmp_path / "plain")]) == 0
    plain = keras.saving.load_model(tmp_path / "plain" / "model.keras")
    x = np.zeros((1, plain.input_shape[-1]), "float32")
    ours = keras.saving.load_model(run / "model.keras").predict(x, verbose=0)
    np.testing.assert_allclose(plain.predict(x, verbose=0), ours, rtol=1e-4)


@pytest.mark.backend_free
def test_the_range_is_never_read_off_the_rows(tmp_path, capsys):
    file = write(tmp_path / "houses.csv")
    text = refusal(capsys, "train", "--dataset", str(file), "--task", "regression", "--epsilon", "2")
    assert "Pass --target-range LOW HIGH, or describe the table: `lipdp table" in text and "--task regression`" in text
    text = refusal(capsys, "train", "--dataset", str(file), "--epsilon", "2")
    assert "For a number to predict give its public range (--target-range" in text


@pytest.mark.backend_free
def test_where_a_range_is_given_it_is_given_once(run, capsys):
    file = str(run.parent / "houses.csv")
    text = refusal(capsys, "train", "--dataset", file, "--epsilon", "2", "--target-range", "0", "5")
    assert "stands in the description" in text
    text = refusal(capsys, "train", "--dataset", "digits", "--epsilon", "2", "--target-range", "0", "5")
    assert "rows of a .csv file" in text
    text = refusal(capsys, "train", "--task", "text", "--dataset", file, "--epsilon", "2", "--target-range", "0", "5")
    assert "--task regression" in text


@pytest.mark.slow
def test_without_a_description_the_range_is_an_option(tmp_path, capsys):
    file, run = write(tmp_path / "houses.csv"), tmp_path / "run"
    words = ["train", "--dataset", str(file), "--target-range", "0", "3000", "--validation-split", "0.2"]
    assert main([*words, "--epsilon", "8", "--output", str(run), *SHORT]) == 0
    captured = capsys.readouterr()
    assert "(or --label) as the number to predict" in captured.err and "NOT covered" not in captured.err + captured.out
    assert "R squared" in captured.out and (run / "table.json").is_file()
    out = tmp_path / "out.csv"
    assert main(["predict", str(run), "--data", str(file), "--output", str(out)]) == 0


@pytest.mark.backend_free
def test_a_model_that_learned_nothing_is_said(capsys):
    same = {"mean_absolute_error": 5.0, "middle_mean_absolute_error": 5.0, "r_squared": None}
    regression.warn(same)
    assert "no better than one number for all" in capsys.readouterr().err
    for held_out in (None, {"accuracy": 0.5}, {**same, "mean_absolute_error": 4.0, "r_squared": 0.3}):
        regression.warn(held_out)
    assert not capsys.readouterr().err
