"""`lipdp features` and `lipdp train --backbone`: a frozen network in front of the one that trains."""

import csv
import json

import keras
import numpy as np
import pytest

import lipdp
from lipdp import data
from lipdp.cli import backbone, main
from lipdp.privacy import files
from lipdp.report import folder as folders
from tests.helpers.commands import refusal

pytestmark = pytest.mark.backend_free


def network(path, seed=0, shape=(8, 8, 1)):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input(shape), keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.MaxPooling2D(2)]
    keras.Sequential(layers).save(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backbones")
    file = network(folder / "public.keras")
    words = ["train", "--dataset", "digits", "--backbone", str(file), "--epsilon", "8", "--verbose", "0"]
    assert main([*words, "--output", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.slow
def test_a_head_on_features(run):
    content = folders.read(run)
    settings = content.run["settings"]
    assert settings["backbone"]["sha256"] == files.digest(settings["backbone"]["name"])
    assert settings["input_shape"] == [16] and content.privacy["epsilon"] <= 8.0
    assert content.results["held_out"]["accuracy"] > 0.5
    assert "public.keras" in (run / folders.MARKDOWN).read_text()


@pytest.mark.slow
def test_certify_and_predict_compute_the_features_again(run, tmp_path, capsys):
    assert main(["certify", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == folders.read(run).results["held_out"]["accuracy"] and "features of" in found["remark"]
    digits = data.load("digits")
    np.savez(tmp_path / "x.npz", x=digits.x_test)
    assert main(["predict", str(run), "--data", str(tmp_path / "x.npz"), "--output", str(tmp_path / "p.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    right = np.mean([int(row["class"]) == y for row, y in zip(rows, digits.y_test, strict=True)])
    assert right == pytest.approx(found["accuracy"], abs=1e-6)
    other = network(tmp_path / "other.keras", seed=1)
    words = ["predict", run, "--data", tmp_path / "x.npz", "--output", tmp_path / "q.csv", "--backbone"]
    digest = folders.read(run).run["settings"]["backbone"]["sha256"]
    assert f"SHA-256 {digest}. Received" in refusal(capsys, *words, other)
    assert f"SHA-256 {digest}. There is no such" in refusal(capsys, *words, tmp_path / "none.keras")
    assert main(["export", str(run), "--output", str(tmp_path / "out")]) == 0
    assert "features of" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_head_on_features_that_were_written(tmp_path, capsys):
    file, target = network(tmp_path / "public.keras"), tmp_path / "features.npz"
    assert main(["features", "--backbone", str(file), "--dataset", "digits", "--output", str(target)]) == 0
    words = ["train", "--dataset", str(target), "--recipe", "head", "--epsilon", "8", "--verbose", "0"]
    assert "certifies is nothing" in refusal(capsys, *words, "--radii", "0.1")
    assert "'dpsgd'" in refusal(capsys, *words, "--strategy", "clipless")
    assert "takes rows of features" in refusal(capsys, "train", "--dataset", "digits", *words[3:])
    assert main([*words, "--output", str(tmp_path / "run")]) == 0
    assert "hides the others" not in capsys.readouterr().err
    content = folders.read(tmp_path / "run")
    assert content.results["held_out"]["accuracy"] > 0.6 and content.run["settings"]["standardized"]


def test_few_rows_are_filled_up_for_training_alone(tmp_path, monkeypatch):
    frozen, seen, features = backbone.load(str(network(tmp_path / "public.keras"))), [], lipdp.features
    monkeypatch.setattr(
        lipdp, "features", lambda *given, **how: seen.append(how["batch_size"]) or features(*given, **how)
    )
    x = np.random.default_rng(0).uniform(size=(3, 8, 8, 1)).astype("float32")
    np.testing.assert_allclose(frozen.rows(x), frozen.rows(x, len(x)), atol=1e-4)
    assert seen == [256, 3]


@pytest.mark.slow
def test_features_are_written_once(tmp_path, capsys):
    file, target = network(tmp_path / "public.keras"), tmp_path / "features.npz"
    words = ["features", "--backbone", str(file), "--dataset", "digits", "--output", str(target)]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["shape"] == [1437, 16] and said["sha256"] == files.digest(file)
    found, digits = data.files.read_npz(target), data.load("digits")
    expected = lipdp.features(keras.saving.load_model(file), digits.x_test).mean(axis=(1, 2))
    assert np.allclose(found.x_test, expected, atol=1e-5) and np.array_equal(found.y_test, digits.y_test)
    assert target.stat().st_mode & 0o077 == 0  # as private as the rows
    assert "already exists" in refusal(capsys, *words)
    assert main([*words, "--overwrite"]) == 0 and "They cost no privacy" in capsys.readouterr().out
    assert ".npz" in refusal(capsys, *words[:-1], tmp_path / "features.csv")
    assert "folder of the output" in refusal(capsys, *words[:-1], tmp_path / "no" / "features.npz")


@pytest.mark.slow
def test_backbones_that_do_not_fit(run, tmp_path, capsys):
    own = ["train", "--dataset", "digits", "--epsilon", "2", "--backbone"]
    assert "There is no such backbone" in refusal(capsys, *own, tmp_path / "none.keras")
    (tmp_path / "text.keras").write_text("no network")
    assert "not a network that Keras can read" in refusal(capsys, *own, tmp_path / "text.keras")
    assert "takes other rows" in refusal(capsys, *own, network(tmp_path / "large.keras", shape=(28, 28, 1)))
    assert "no backbone" in refusal(capsys, "certify", run / folders.MODEL, "--dataset", "digits", *own[-1:], "x.keras")


@pytest.mark.slow
def test_presets(tmp_path, capsys, monkeypatch):
    hub = pytest.importorskip("keras_hub")
    own = ["train", "--dataset", "digits", "--epsilon", "2", "--backbone"]
    line = refusal(capsys, *own, tmp_path / "nowhere")
    assert "preset cannot be loaded" in line and "pass the folder of a preset" in line
    tiny = hub.models.ResNetBackbone([64], [1], [64], [1], [1], "basic_block", image_shape=(8, 8, 1))
    tiny.save_to_preset(tmp_path / "tiny")
    out = tmp_path / "features.npz"
    assert main(["features", "--backbone", str(tmp_path / "tiny"), "--dataset", "digits", "--output", str(out)]) == 0
    assert data.files.read_npz(out).input_shape == (64,)
    monkeypatch.setitem(__import__("sys").modules, "keras_hub", None)
    assert "Install keras-hub" in refusal(capsys, *own, "resnet_18_imagenet")
