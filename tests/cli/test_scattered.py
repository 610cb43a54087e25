"""The default recipe of larger sets of images on the command line."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from lipdp import data, models
from lipdp.cli import datasets, evaluation, main, parser, train, train_check
from lipdp.models import classifier
from lipdp.report import folder as folders
from tests.helpers.commands import refusal

pytestmark = pytest.mark.backend_free


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A set of images that counts as large."""
    monkeypatch.setattr(classifier, "_SMALL", 100)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 90, (3000, 16, 16, 1)).astype("uint8"), np.arange(3000) % 2
    x[y == 0, :8] += 150
    path = tmp_path / "images.npz"
    np.savez(path, x_train=x[:2400], y_train=y[:2400], x_test=x[2400:], y_test=y[2400:])
    return path


@pytest.mark.slow
def test_images_are_trained_on_features_and_used_as_images(file, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["train", "--dataset", str(file), "--epsilon", "8", "--epochs", "3", "--verbose", "0", "--json"]
    assert main([*words, "--output", str(run)]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = [release["kind"] for release in found["privacy"]["releases"]]
    assert kinds == ["moments", "moments", "gradient"] and 7.9 < found["privacy"]["epsilon"] <= 8.0
    assert found["held_out"]["accuracy"] > 0.8
    # The same pixels as floats are others: it says so.
    with np.load(file) as arrays:
        for name, dtype in (("bytes", "uint8"), ("floats", "float32")):
            np.savez(tmp_path / f"{name}.npz", x=arrays["x_test"].astype(dtype))
    for name, told in (("bytes", False), ("floats", True)):
        words = [
            "predict",
            str(run),
            "--data",
            str(tmp_path / f"{name}.npz"),
            "--output",
            str(tmp_path / f"{name}.csv"),
        ]
        assert main(words) == 0
        assert ("numbers up to 2" in capsys.readouterr().err) is told
    settings = folders.read(run).run["settings"]
    assert settings["strategy"] == settings["method"] == "dpsgd" and settings["hidden"] == 0
    assert keras.saving.load_model(run / folders.MODEL).input_shape == (None, 16, 16, 1)
    assert "private_normalization" in (run / "privacy.txt").read_text()
    assert main(["predict", str(run), "--data", str(file), "--output", str(tmp_path / "classes.csv")]) == 0
    assert main(["report", str(run)]) == 0


@pytest.mark.slow
def test_a_set_of_digits_is_deskewed_and_used_without_certificates(file, tmp_path, capsys, monkeypatch):
    read = data.load
    monkeypatch.setattr(
        data, "load", lambda *args, **kwargs: dataclasses.replace(read(*args, **kwargs), handwritten=True)
    )
    run, classes = tmp_path / "run", tmp_path / "classes.csv"
    words = ["train", "--dataset", str(file), "--epsilon", "8", "--epochs", "1", "--verbose", "0", "--json"]
    assert main([*words, "--output", str(run)]) == 0
    assert folders.read(run).run["settings"]["deskewed"] is True
    assert keras.saving.load_model(run / folders.MODEL).layers[0].name == "deskewing"
    capsys.readouterr()
    assert main(["predict", str(run), "--data", str(file), "--output", str(classes)]) == 0
    assert "without certified radii. Layer 'deskewing'" in capsys.readouterr().err
    assert classes.read_text().splitlines()[0] == "class,logit 0,logit 1,probability 0,probability 1"
    assert main(["report", str(run)]) == 0
    capsys.readouterr()
    assert "--strategy clipless" in refusal(capsys, "certify", run)
    assert main(["export", str(run), "--output", str(tmp_path / "plain")]) == 0
    radii = refusal(capsys, *words, "--radii", "0.2", "--output", tmp_path / "other")
    assert "--strategy clipless" in radii and "or leave --radii out." in radii and "lipdp certify" not in radii
    # Other recipes for the same data know of no such thing.
    for more in (["--strategy", "clipless"], ["--recipe", "robust"]):
        options = parser.parse([*words, *more])
        train_check.check(options)
        dataset = datasets.read(options)
        recipe = train._recipe(options, dataset)
        assert dataset.handwritten
        assert recipe.bounded


def test_what_was_reached_is_said_where_nothing_was_changed(capsys):
    recipe = models.scattered_recipe((32, 32, 3), 10, 50000, 2.0)
    words = ["train", "--dataset", "cifar10", "--epsilon", "2.5"]

    def said(*more):
        evaluation.tell_reached(parser.parse([*words, *more]), recipe)
        return capsys.readouterr().err

    assert "on the test set of cifar10 at epsilon 2 (runs: 5)" in said()
    for more in (["--epochs", "3"], ["--examples-per-person", "2"], ["--noise-multiplier", "2"], ["--delta", "1e-6"]):
        assert said(*more) == ""
    assert said("--sampling", "shuffle") == "" and said("--backbone", "public.keras") == ""
    evaluation.tell_reached(parser.parse(words), dataclasses.replace(recipe, method="dpis"))
    assert capsys.readouterr().err == ""


def test_an_input_norm_is_for_other_recipes(file, capsys):
    words = ("train", "--dataset", file, "--epsilon", "1")
    assert "--strategy clipless or --recipe robust." in refusal(capsys, *words, "--input-norm", "3")
    # The way out leads there: clipless training of the features has no such norm, and no radii.
    for asked in (["--input-norm", "3"], ["--radii", "0.1"]):
        behind = refusal(capsys, *words, "--strategy", "clipless", "--front-end", "accurate", *asked)
        assert "without --front-end" in behind


@pytest.mark.slow
def test_small_images_are_told_which_network_they_have(tmp_path, capsys):
    words = ["train", "--dataset", "digits", "--epsilon", "8", "--epochs", "1", "--verbose", "0"]
    assert main([*words, "--output", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().err
    assert "note: 1437 images of 8 x 8 x 1 have a clipless network" in told and "from 16 pixels on" in told
    assert main([*words, "--strategy", "clipless", "--output", str(tmp_path / "other")]) == 0
    assert "have a clipless network" not in capsys.readouterr().err
