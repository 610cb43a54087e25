"""`lipdp train --task diffusion` and `lipdp sample`: what they write and what they refuse."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from lipdp import accounting, callbacks, data, diffusion
from lipdp.cli import certify, main, parser
from lipdp.cli import diffusion as task
from lipdp.diffusion import labels
from lipdp.report import folder as folders
from lipdp.report import place
from tests.helpers.commands import refusal

pytestmark = pytest.mark.backend_free


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, x=rng.integers(0, 256, (120, 4, 4, 1), dtype="uint8"), y=np.arange(120) % 3)
    return str(path)


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    words = ["train", "--task", "diffusion", "--dataset", images, "--epsilon", "3", "--output", str(folder)]
    words += ["--epochs", "2", "--batch-size", "40", "--delta", "1e-3", "--multiplicity", "2"]
    assert main([*words, "--validation-split", "0.2", "--verbose", "0"]) == 0
    return folder


@pytest.mark.slow
def test_a_run_folder_holds_a_model_its_statement_and_samples(run, capsys):
    assert {path.name for path in run.iterdir()} == {*folders.FILES, folders.SAMPLES}
    content = folders.read(run)
    assert 0.99 * 3.0 <= content.privacy["epsilon"] <= 3.0
    settings = content.run["settings"]
    assert (settings["task"], settings["multiplicity"], settings["network"]) == ("diffusion", 2, "small")
    assert settings["updates"] == content.privacy["updates"] == 2 * -(-settings["num_examples"] // 40)
    assert set(content.history[0]) == {"epoch", "epsilon", "val_loss"}, "the loss on private images is left out"
    assert "dpsgd" in content.statement
    assert content.samples[1:4] == b"PNG"
    page = (run / folders.HTML).read_text()
    assert "data:image/png;base64," in page and "Bounds of the layers" not in page
    assert f"({folders.SAMPLES})" in (run / folders.MARKDOWN).read_text()
    model = keras.saving.load_model(run / folders.MODEL)
    assert isinstance(model, diffusion.DiffusionModel) and model.noise_multiplicity == 2
    assert main(["report", str(run)]) == 0


@pytest.mark.slow
def test_what_is_printed_does_not_say_that_an_image_is_out_of_range(tmp_path, capfd):
    x = np.random.default_rng(0).uniform(size=(60, 4, 4, 1)).astype("float32")
    x[7] = 9.0
    np.savez(tmp_path / "tiny.npz", x=x, y=np.arange(60) % 3)
    words = ["train", "--task", "diffusion", "--dataset", str(tmp_path / "tiny.npz"), "--noise-multiplier", "9"]
    words += ["--epochs", "1", "--batch-size", "60", "--delta", "1e-3", "--output", str(tmp_path / "run")]
    assert main([*words, "--verbose", "0"]) == 0
    said = capfd.readouterr().err
    assert "images of another type than uint8 are taken as they are" in said and "entries" not in said


@pytest.mark.slow
def test_samples_are_a_data_set(run, tmp_path, capsys):
    target = tmp_path / "drawn.npz"
    words = ["sample", str(run), "--num", "7", "--labels", "2", "0", "--steps", "3", "--seed", "1"]
    assert main([*words, "--output", str(tmp_path / "told.npz")]) == 0
    assert not set(capsys.readouterr().out) & {"\x1b", "\r", "\b"}, "Keras' bar where nobody looks on"
    assert main([*words, "--output", str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shape"] == [7, 4, 4, 1] and 2.9 < found["epsilon"] <= 3.0
    with np.load(target) as arrays:
        assert arrays["x"].dtype == np.uint8 and arrays["x"].std() > 5
        assert arrays["y"].tolist() == [2, 0, 2, 0, 2, 0, 2]
    with pytest.warns(data.UnchargedWarning):
        again = data.load(str(target))
    model = keras.saving.load_model(run / folders.MODEL)
    expected = model.sample(7, np.array([2, 0, 2, 0, 2, 0, 2]), diffusion.DDIM(3), seed=1)
    np.testing.assert_allclose(2 * again.x_train - 1, np.clip(expected, -1, 1), atol=1.01 / 255)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [[1, 2, 7], ["bag", "coat", "shoe"]])
def test_samples_have_the_labels_of_the_data(run, tmp_path, monkeypatch, capsys, classes):
    """What learns from them is judged on images whose labels are these."""
    path, recorded = certify.find(str(run))
    monkeypatch.setattr(certify, "find", lambda run: (path, {**recorded, "classes": classes}))
    target = tmp_path / "drawn.npz"
    capsys.readouterr()
    assert main(["sample", str(run), "--num", "4", "--steps", "2", "--labels", "2", "0", "--output", str(target)]) == 0
    assert f"Classes 0 to 2 stand for {', '.join(map(str, classes))}." in capsys.readouterr().out
    with np.load(target) as arrays:
        assert arrays["y"].tolist() == [classes[2], classes[0], classes[2], classes[0]]
    with pytest.warns(data.UnchargedWarning):
        assert data.load(str(target)).classes == (classes[0], classes[2])


@pytest.mark.slow
def test_samples_are_a_picture(run, tmp_path, capsys):
    target = tmp_path / "drawn.png"
    model = str(run / folders.MODEL)
    words = ["sample", model, "--num", "6", "--sampler", "churn", "--steps", "3", "--guidance", "1.5"]
    assert main([*words, "--output", str(target)]) == 0
    assert target.read_bytes()[1:4] == b"PNG"
    assert "churn with 3 steps, guidance 1.5" in capsys.readouterr().out
    before = target.read_bytes()
    assert "The output already exists" in refusal(capsys, *words, "--output", str(target))
    assert target.read_bytes() == before
    assert main([*words, "--output", str(target), "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--radii", "0.1"], "--radii with --task diffusion"),
        (["--recipe", "robust"], "--recipe with --task diffusion"),
        (["--preset", "huge"], "`network` must be one of"),
        (["--preset", "cpu-14"], "do not fit the network"),
        (["--multiplicity", "0"], "multiplicity"),
        (["--clip-norm", "-1"], "clip_norm"),
        (["--epsilon", "0"], "epsilon"),
    ],
)
def test_train_refuses_in_one_line(images, tmp_path, capsys, words, message):
    options = ["train", "--task", "diffusion", "--dataset", images, "--output", str(tmp_path / "new")]
    options += [] if "--epsilon" in words else ["--epsilon", "1"]
    assert message in refusal(capsys, *options, *words)
    assert not (tmp_path / "new").exists()


def test_options_of_the_other_task_and_tables_are_refused(images, tmp_path, capsys):
    train = ["train", "--epsilon", "1", "--output", str(tmp_path / "new")]
    assert "It is for --task diffusion" in refusal(capsys, *train, "--dataset", images, "--multiplicity", "4")
    assert "Pass --recipe robust" in refusal(capsys, *train, "--dataset", images, "--radius", "0.5")
    persons = [*train, "--task", "diffusion", "--dataset", images, "--rows-per-person", "2"]
    assert "--task classifier, regression, text or language: pass that task, or leave" in refusal(capsys, *persons)
    both = [*train, "--dataset", images, "--recipe", "robust", "--front-end", "accurate"]
    assert "Pass --front-end robust, or leave --front-end out." in refusal(capsys, *both)
    robust = [*train, "--dataset", images, "--recipe", "robust"]
    assert "--clip-norm with --strategy clipless" in refusal(capsys, *robust, "--clip-norm", "1")  # few images
    assert "`radius`" in refusal(capsys, *robust, "--radius", "3")
    table = tmp_path / "t.csv"
    table.write_text("a,b,ill\n" + "".join(f"{i},{-i},{i % 2}\n" for i in range(40)))
    assert "draw images" in refusal(capsys, *train, "--task", "diffusion", "--dataset", str(table))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num", "0"], "num"),
        (["--labels", "3"], "A label is out of range"),
        (["--steps", "1"], "steps"),
        (["--guidance", "-1"], "`guidance` must be a finite number of at least 0"),
        (["--seed", "-1"], "seed"),
        (["--output", "samples.gif"], "Unsupported file extension"),
        (["--output", "nowhere/samples.png"], "The folder of the output does not exist"),
    ],
)
def test_sample_refuses_in_one_line(run, tmp_path, capsys, words, message):
    output = [] if "--output" in words else ["--output", str(tmp_path / "new.npz")]
    assert message in refusal(capsys, "sample", str(run), *output, *words)
    assert not (tmp_path / "new.npz").exists()


@pytest.mark.slow
def test_a_diffusion_model_has_no_classes_and_no_export(run, images, tmp_path, capsys):
    file, target = run / folders.MODEL, tmp_path / "new"
    for words in (
        ("certify", run),
        ("certify", file, "--dataset", images),
        ("predict", run, "--data", images, "--output", target),
        ("predict", file, "--data", images, "--output", target),
    ):
        said = refusal(capsys, *words)
        assert "This run is a diffusion model, which has no classes" in said
        assert f"`lipdp sample {words[1]}` draws from it" in said
    for model in (run, file):
        said = refusal(capsys, "export", model, "--output", target)
        assert "layers of lipdp, not of Keras" in said and f"`lipdp sample {model}`" in said
    assert not target.exists()


def test_only_diffusion_models_draw(tmp_path, capsys):
    path = tmp_path / "plain.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    output = ["--output", str(tmp_path / "new.npz")]
    assert "Not a diffusion model" in refusal(capsys, "sample", str(path), *output)
    assert "There is no such model" in refusal(capsys, "sample", str(tmp_path / "none"), *output)


def test_moments_of_persons_with_several_images_have_their_noise():
    words = ["train", "--task", "diffusion", "--dataset", "x.npz", "--epsilon", "1", "--output", "run"]
    x, y, classes = np.zeros((600, 28, 28, 1), "float32"), np.arange(600, dtype="int32") % 10, tuple("0123456789")
    rows = data.Dataset(x, y, None, None, classes, "digits")
    found = [task.recipe(parser.parse([*words, *more]), rows) for more in ([], ["--examples-per-person", "4"])]
    assert [recipe.moments_noise for recipe in found] == [7.0, 28.0]


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size", "shuffle"])
def test_what_comes_first_leaves_budget_whatever_the_sampling(sampling):
    words = ["train", "--task", "diffusion", "--dataset", "x.npz", "--epsilon", "1", "--output", "run"]
    x, y, classes = np.zeros((6000, 28, 28, 1), "float32"), np.arange(6000, dtype="int32") % 10, tuple("0123456789")
    rows = data.Dataset(x, y, None, None, classes, "clothes")
    recipe = task.recipe(parser.parse([*words, "--sampling", sampling]), rows)
    spent = recipe.first_releases(accounting.Sampling(sampling).bind(6000, recipe.batch_size))
    assert len(spent) == 3 and 0.6 < accounting.compose(spent, 1e-5, "pld") < 0.8


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def with_moments(monkeypatch):
    """Has the recipe learn moments first, of few images, and a classifier."""
    usual, few = diffusion.recipe, {"moments_noise": 6.0, "moments_images": 64, "moments_epochs": 1}

    def recipe(shape, classes, count, *args, **kwargs):
        own = dataclasses.replace(labels.label_recipe(shape, classes, count, 1.5), batch_size=count // 2, epochs=2)
        return dataclasses.replace(usual(shape, classes, count, *args, **kwargs), classifier=own, **few)

    monkeypatch.setattr(diffusion, "recipe", recipe)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the first file", "after the first epoch"])
def test_a_killed_run_that_learns_moments_first_goes_on(images, tmp_path, monkeypatch, with_moments, when, capsys):
    folder = tmp_path / "run"

    def die(self, model, *_, **__):
        if when == "after the first epoch" and model.run.ledger.updates == 0:
            return saved(self, model, *_, **__)
        if model.run.ledger.updates:
            saved(self, model, *_, **__)
        raise Killed

    saved = callbacks.Checkpoint._save
    words = ["train", "--task", "diffusion", "--dataset", images, "--epsilon", "3", "--output", str(folder), "--epochs"]
    with monkeypatch.context() as patch:
        patch.setattr(callbacks.Checkpoint, "_save", die)
        patch.setattr(callbacks.Checkpoint, "close", lambda *_: None)
        patch.setattr(place, "abandon", lambda *_: None)
        with pytest.raises(Killed):
            main([*words, "3", "--batch-size", "40", "--delta", "1e-3", "--json"])
    said = "it trains a classifier for its labels and learns moments of each class first"
    assert said in capsys.readouterr().err
    code = main(["train", "--resume", str(folder), "--json"])
    assert code == 0, capsys.readouterr()
    content = folders.read(folder)
    found = sorted((release["kind"], release["count"]) for release in content.privacy["releases"])
    assert found == [("gradient", 4), ("gradient", 9), ("moments", 1), ("moments", 2)]
    assert 2.9 < content.privacy["epsilon"] <= 3.0
    assert "3 noisy moments of the data and 13 noisy updates" in " ".join(content.statement.split())
    model = keras.saving.load_model(folder / "model.keras")
    assert model.privacy.epsilon() == content.privacy["epsilon"]
    assert (said in capsys.readouterr().err) == (when == "before the first file")
    # Its last layer starts at zeros: what has trained tells images apart, by however little.
    logits = model.classifier.predict(np.load(images)["x"] / 127.5 - 1.0, verbose=0)
    assert logits.std(axis=0).min() > 0.0


@pytest.mark.slow
def test_a_killed_run_whose_checkpoint_is_lost_does_not_start_anew(images, tmp_path, monkeypatch, with_moments, capsys):
    folder, learned = tmp_path / "run", []
    monkeypatch.setattr(diffusion.Recipe, "learn_moments", lambda self, *_, **__: learned.append(self))
    words = ["train", "--task", "diffusion", "--dataset", images, "--epsilon", "3", "--output", str(folder), "--epochs"]

    def die(self, epoch, logs=None):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.Checkpoint, "on_epoch_end", die)
        patch.setattr(callbacks.Checkpoint, "close", lambda self, *_, **__: self._stack.close())  # the lock goes
        with pytest.raises(Killed):
            main([*words, "3", "--batch-size", "40", "--delta", "1e-3", "--json"])
    assert len(learned) == 1
    work = place.unfinished(str(folder))
    (work / place.CHECKPOINT).unlink()
    kept = work / f"{place.CHECKPOINT}.journal"
    whole = kept.read_text()
    for content, message in ((whole, "The checkpoint of this journal is missing"), (whole[:-40], "is corrupt")):
        kept.write_text(content)
        assert main(["train", "--resume", str(folder), "--json"]) == 2
        assert message in capsys.readouterr().err
        assert kept.read_text() == content and len(learned) == 1
