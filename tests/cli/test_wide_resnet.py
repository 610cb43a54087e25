"""`lipdp train --recipe wrn`, and what the other commands make of such a run."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from lipdp import callbacks, models
from lipdp.cli import evaluation, main, parser
from lipdp.models import classifier
from lipdp.report import folder as folders
from lipdp.report import place
from tests.helpers.commands import refusal

pytestmark = pytest.mark.backend_free


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """A small network that sees few views."""

    def recipe(*args, **kwargs):
        found = models.wide_resnet_recipe(*args, **kwargs)
        return dataclasses.replace(found, depth=10, width=1, augmentation_multiplicity=2, microbatch_size=None)

    monkeypatch.setattr(classifier, "wide_resnet_recipe", recipe)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 90, (100, 8, 8, 1)).astype("uint8"), np.arange(100) % 2
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    return str(path)


def words(file, *more):
    options = ["--epsilon", "8", "--delta", "1e-3", "--epochs", "2", "--batch-size", "30", "--verbose", "0", "--json"]
    return ["train", "--dataset", file, "--recipe", "wrn", *options, *more]


@pytest.mark.slow
def test_a_run_and_what_it_is_used_for(file, tmp_path, capsys):
    run, classes, plain = tmp_path / "run", tmp_path / "classes.csv", tmp_path / "plain"
    assert main(words(file, "--microbatch-size", "8", "--output", str(run))) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [release["kind"] for release in found["privacy"]["releases"]] == ["gradient"]
    assert 7.9 < found["privacy"]["epsilon"] <= 8.0 and found["privacy"]["updates"] == 4
    assert found["held_out"]["certified"] == [] and 0.0 <= found["held_out"]["accuracy"] <= 1.0
    assert "note: 4 updates of a wide residual network (WRN-10-1), each on 2 views of about 30 images" in printed.err
    assert "made for a GPU" in printed.err and "--epochs" in printed.err and "in the benchmarks" not in printed.err
    settings = folders.read(run).run["settings"]
    assert settings["strategy"] == settings["method"] == "dpsgd" and settings["microbatch_size"] == 8
    assert (settings["depth"], settings["augmentation_multiplicity"], settings["mirrored"]) == (10, 2, False)
    assert (settings["learning_rate"], settings["ema_momentum"], settings["updates"]) == (2.0, None, 4)
    assert keras.saving.load_model(run / folders.MODEL).optimizer.use_ema
    assert main(["report", str(run)]) == 0
    assert main(["predict", str(run), "--data", file, "--output", str(classes)]) == 0
    assert "without certified radii" in capsys.readouterr().err
    assert classes.read_text().splitlines()[0] == "class,logit 0,logit 1,probability 0,probability 1"
    assert "StandardizedConv2D" in refusal(capsys, "certify", run)
    assert main(["export", str(run), "--output", str(plain)]) == 0
    exported = [keras.saving.load_model(path) for path in plain.rglob("*.keras")]
    assert len(exported) == 1 and "lipdp>" not in exported[0].to_json()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--strategy", "adaclip"], "Received: --strategy adaclip with --recipe wrn"),
        (["--strategy", "dpis"], "Received: --strategy dpis with --recipe wrn"),
        (["--strategy", "clipless"], "Received: --strategy clipless with --recipe wrn"),
        (["--front-end", "accurate"], "Received: --front-end with --recipe wrn"),
        (["--backbone", "net.keras"], "Received: --backbone with --recipe wrn"),
        (["--input-norm", "3"], "Received: --input-norm with --recipe wrn"),
        (["--radii", "0.1"], "certifies nothing. Received: --radii with --recipe wrn"),
        (["--radius", "0.1"], "Received: --radius 0.1 with --recipe wrn. Pass --recipe robust"),
        (["--table", "t.json"], "Received: --table with --recipe wrn"),
        (["--feature-ranges", "r.json"], "Received: --feature-ranges with --recipe wrn"),
        (["--person-column", "who"], "Received: --person-column with --recipe wrn"),
        (["--task", "text", "--text", "t", "--label", "l"], "Pass --recipe linear or attention"),
        (["--task", "diffusion"], "Received: --recipe with --task diffusion"),
    ],
)
def test_what_does_not_go_with_it_is_refused_at_once(more, message, tmp_path, capsys):
    assert message in refusal(capsys, *words(str(tmp_path / "not there.npz"), *more))


def test_tables_and_small_images_are_refused(tmp_path, capsys):
    for name, shape in (("rows.npz", (60, 5)), ("small.npz", (60, 4, 4, 1))):
        np.savez(tmp_path / name, x=np.zeros(shape, "float32"), y=np.arange(60) % 2)
        said = refusal(capsys, *words(str(tmp_path / name)))
        assert "images with sides from 8 pixels on" in said and "leave the recipe out" in said


def test_a_table_in_a_file_is_refused(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,c\n" + "\n".join(f"{i},{i % 7},{i % 2}" for i in range(200)))
    assert "leave the recipe out" in refusal(capsys, *words(str(path)))


def test_what_other_recipes_reached_is_not_promised(capsys):
    recipe = models.wide_resnet_recipe((32, 32, 3), 10, 50000, 8.0)
    evaluation.tell_reached(
        parser.parse(["train", "--dataset", "cifar10", "--epsilon", "8", "--recipe", "wrn"]), recipe
    )
    assert capsys.readouterr().err == ""


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.slow
def test_a_run_with_noise_and_a_killed_one_end_alike(file, tmp_path, capsys, monkeypatch):
    more = ["--noise-multiplier", "1", "--seed", "7", "--epochs", "3"]
    arguments = [word for word in words(file, *more) if word not in ("--epsilon", "8")]
    assert main([*arguments, "--output", str(tmp_path / "whole")]) == 0

    def at_third(self, batch, logs=None):
        if self._model.run.ledger.updates == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.Checkpoint, "on_train_batch_end", at_third)
        patch.setattr(callbacks.Checkpoint, "close", lambda *_, **__: None)
        patch.setattr(place, "abandon", lambda *_, **__: None)
        with pytest.raises(Killed):
            main([*arguments, "--output", str(tmp_path / "killed")])
    assert main(["train", "--resume", str(tmp_path / "killed"), "--json"]) == 0
    one, other = (keras.saving.load_model(tmp_path / name / folders.MODEL) for name in ("whole", "killed"))
    assert one.privacy.updates == other.privacy.updates == 6
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        assert np.array_equal(a, b)
