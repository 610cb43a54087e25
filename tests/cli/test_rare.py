"""Rare classes on the command line: what accuracy is to be read beside, and scores to put a threshold on."""

import csv

import keras
import numpy as np
import pytest

from lipdp import losses
from lipdp.cli import evaluation, main, predict
from lipdp.report import folder as folders
from lipdp.report import numbers

pytestmark = pytest.mark.backend_free


def write(path, rows=2000, classes=2):
    """A table in which one row in twenty is of another class than 0, and its features say a little."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(rows) < 0.05, 1 + rng.integers(classes - 1, size=rows), 0)
    x = np.clip(rng.normal(0.3 * (y > 0), 0.3), -1, 1)
    path.write_text("a,b,kind\n" + "".join(f"{v:.4f},{-v:.4f},{k}\n" for v, k in zip(x, y, strict=True)))
    return path


def train(file, run, *words):
    own = ["train", "--dataset", str(file), "--validation-split", "0.5", "--output", str(run), "--verbose", "0"]
    return main([*own, "--epsilon", "8", "--seed", "5", *words])


def test_area_under_the_curve_counts_pairs():
    rng = np.random.default_rng(0)
    score, positive = rng.integers(0, 6, 60) / 5, rng.random(60) < 0.3  # with equal scores
    pairs = score[positive][:, None] - score[~positive]
    expected = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    assert evaluation.area_under_curve(score, positive) == pytest.approx(expected)
    assert evaluation.area_under_curve(score, positive) == pytest.approx(
        1 - evaluation.area_under_curve(-score, positive)
    )
    assert evaluation.area_under_curve(score, np.ones(60, bool)) is None


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [pytest.param("dpsgd", marks=pytest.mark.slow), "clipless"])
def test_a_model_that_names_one_class_is_said(tmp_path, capsys, strategy):
    run = tmp_path / "run"
    assert train(write(tmp_path / "t.csv"), run, "--strategy", strategy) == 0
    captured, found = capsys.readouterr(), folders.read(run).results["held_out"]
    assert found["accuracy"] == found["most_frequent_class"] > 0.9 and found["auc"] > 0.6
    assert "warning: on the held-out examples the model is no more accurate than always naming" in captured.err
    assert "always naming their most frequent class: 9" in captured.out
    assert f"area under the ROC curve {numbers.area(found['auc'])} (a guess: 0.5)" in captured.out


def test_an_area_is_not_rounded_in_its_own_favor():
    held_out = {"accuracy": 0.9, "examples": 9, "most_frequent_class": 0.5, "auc": 0.9996, "certified": []}
    assert evaluation.lines(held_out)[-1] == "area under the ROC curve 0.999 (a guess: 0.5)"


def test_no_warning_for_a_model_that_is_better():
    held_out = {"accuracy": 0.98, "most_frequent_class": 0.97}
    evaluation.warn_of_frequent(held_out)
    evaluation.warn_of_frequent(None)
    evaluation.warn_of_frequent({"bits_per_byte": 3.0})


@pytest.mark.slow
def test_several_classes_have_no_area(tmp_path, capsys):
    run = tmp_path / "run"
    assert train(write(tmp_path / "t.csv", classes=3), run, "--epochs", "1") == 0
    found = folders.read(run).results["held_out"]
    assert "auc" not in found and found["most_frequent_class"] > 0.9
    out = capsys.readouterr().out
    assert "always naming" in out and "ROC" not in out


def test_results_of_earlier_versions_are_told():
    held_out = {"examples": 5, "accuracy": 0.8, "certified": [], "curve": []}
    assert evaluation.lines(held_out) == ["accuracy 80.0 % on 5 held-out examples"]


@pytest.mark.slow
def test_a_threshold_on_the_probability_finds_rare_rows(tmp_path):
    file, run, out = write(tmp_path / "t.csv"), tmp_path / "run", tmp_path / "p.csv"
    assert train(file, run) == 0
    assert main(["predict", str(run), "--data", str(file), "--output", str(out)]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    score = np.array([float(row["probability 1"]) for row in rows])
    rare = np.array([line.endswith(",1") for line in file.read_text().splitlines()[1:]])
    found = score >= np.quantile(score, 0.8)
    assert found[rare].mean() > 0.25 > np.mean([row["class"] == "1" for row in rows])


@pytest.mark.parametrize(
    ("loss", "scale"),
    [
        (losses.SparseCategoricalCrossentropy(temperature=5.0, clip=0.2), 5.0),
        (losses.CategoricalCrossentropy(), 1.0),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), 1.0),
        (keras.losses.SparseCategoricalCrossentropy(), None),
        (losses.MulticlassHKR(), None),
        (None, None),
    ],
)
def test_probabilities_are_those_of_the_loss(loss, scale):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile("sgd", loss=loss)
    logits = np.array([[0.0, 1.0, -1.0], [900.0, 0.0, 1.0]], "float32")
    found = predict._probabilities(model, logits)
    if scale is None:
        assert found is None
        return
    assert np.allclose(found.sum(axis=1), 1.0) and found[1, 0] == 1.0
    assert np.allclose(np.log(found[0]) - np.log(found[0, 0]), scale * logits[0])
