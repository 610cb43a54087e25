"""`lipdp train` that is stopped: what it leaves, how `--resume` goes on, and that an earlier run stays."""

import json
import os
import shutil
import signal
import stat

import keras
import numpy as np
import pytest

from lipdp import callbacks, report
from lipdp.cli import main
from lipdp.report import folder as folders
from lipdp.report import place


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 5)).astype("float32")
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(int))
    return str(path)


def words(file, folder, *more):
    options = ["--epsilon", "4", "--epochs", "3", "--batch-size", "40", "--delta", "1e-3", "--json"]
    return ["train", "--dataset", file, *options, "--validation-split", "0.25", "--output", str(folder), *more]


@pytest.fixture(scope="module")
def whole(file, tmp_path_factory):
    """A seeded run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert main(words(file, folder, "--seed", "7")) == 0
    return folder


@pytest.fixture
def at(monkeypatch):
    """Calls a function at the end of an update."""

    def plan(updates, action):
        def on_train_batch_end(self, batch, logs=None):
            if self._model.run.ledger.updates == updates:
                action()

        monkeypatch.setattr(callbacks.Checkpoint, "on_train_batch_end", on_train_batch_end)
        if action is kill:
            for owner, name in ((callbacks.Checkpoint, "close"), (place, "abandon")):
                monkeypatch.setattr(owner, name, lambda *_, **__: None)

    return plan


def kill():
    raise Killed


def killed(*argv):
    with pytest.raises(Killed):
        main(list(argv))


def model_of(folder):
    return keras.saving.load_model(folder / folders.MODEL)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_killed_run_is_gone_on_with_to_the_same_end(file, whole, tmp_path, at, monkeypatch, capsys):
    folder = tmp_path / "run"
    at(5, kill)
    killed(*words(file, folder, "--seed", "7"))
    monkeypatch.undo()
    assert main(["report", str(folder)]) == 2
    assert f"lipdp train --resume {folder}` goes on with it" in capsys.readouterr().err
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    found, expected = report.read(folder), report.read(whole)
    assert names(folder) == sorted(folders.FILES) and names(tmp_path) == ["run"]
    assert (found.privacy, found.history, found.results) == (expected.privacy, expected.history, expected.results)
    for a, b in zip(model_of(folder).get_weights(), model_of(whole).get_weights(), strict=True):
        assert np.array_equal(a, b)
    assert found.run["argv"] == words(file, folder, "--seed", "7")


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_killed_run_without_a_seed_pays_for_what_was_lost(file, tmp_path, at, monkeypatch):
    folder = tmp_path / "run"
    at(5, kill)
    killed(*words(file, folder))
    monkeypatch.undo()
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    content = report.read(folder)
    assert content.privacy["updates"] == 9 and content.privacy["epsilon"] <= 4.0
    assert int(model_of(folder).optimizer.iterations.numpy()) < 9


@pytest.mark.filterwarnings("default:Training goes on from an earlier state")
@pytest.mark.backend_free
def test_a_run_goes_on_with_as_many_examples_and_with_rows_that_can_be_read(file, tmp_path, at, monkeypatch, capsys):
    folder, own = tmp_path / "run", str(tmp_path / "own.npz")
    with np.load(file) as data:
        x, y = data["x"], data["y"]
    np.savez(own, x=x, y=y)
    at(5, kill)
    killed(*words(own, folder))
    monkeypatch.undo()
    np.savez(own, x=x[:-20], y=y[:-20])
    assert main(["train", "--resume", str(folder), "--json"]) == 2
    assert "goes on with the data it began with" in capsys.readouterr().err
    np.savez(own, x=x, y=y)
    history = folder / folders.HISTORY
    history.write_text("epoch\nno number\n")
    assert main(["train", "--resume", str(folder), "--json"]) == 2
    assert "history.csv is corrupt" in (said := capsys.readouterr().err) and "Or remove the file" in said
    history.unlink()
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    assert "updates that were made since are lost" in capsys.readouterr().err
    assert report.read(folder).privacy["updates"] == 9


@pytest.fixture
def interruptible():
    """A shell starts what runs in the background with this signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("sent", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_signals_keep_what_was_done(file, tmp_path, at, monkeypatch, capsys, sent, code):
    folder, before = tmp_path / "run", signal.getsignal(signal.SIGTERM)
    at(5, lambda: os.kill(os.getpid(), sent))
    assert main(words(file, folder)) == code
    *notes, line = capsys.readouterr().err.splitlines()
    assert line == f"lipdp train: error: interrupted; `lipdp train --resume {folder}` goes on with the run."
    assert all(note.startswith("lipdp train: note: ") for note in notes)
    assert signal.getsignal(signal.SIGTERM) == before
    monkeypatch.undo()
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    # Stopped between two updates: none was lost.
    assert int(model_of(folder).optimizer.iterations.numpy()) == 9 == report.read(folder).privacy["updates"]


@pytest.mark.slow
@pytest.mark.backend_free
def test_an_earlier_run_stays_until_the_next_one_is_whole(file, whole, tmp_path, at, monkeypatch, capsys):
    folder = tmp_path / "run"
    assert main(words(file, folder, "--noise-multiplier", "5")) == 0
    first = report.read(folder)
    at(5, kill)
    killed(*words(file, folder, "--overwrite", "--seed", "7"))
    monkeypatch.undo()
    assert report.read(folder) == first and names(tmp_path) == [".run.next", "run"]
    monkeypatch.setattr(keras.Model, "save", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    assert main(["train", "--resume", str(folder), "--json"]) == 1
    assert "No space left" in capsys.readouterr().err and report.read(folder) == first
    monkeypatch.undo()
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    assert report.read(folder).privacy == report.read(whole).privacy
    assert names(folder) == sorted(folders.FILES) and names(tmp_path) == ["run"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["exchange", "rmdir", "unlink"])
@pytest.mark.backend_free
def test_a_kill_on_the_last_steps_leaves_a_whole_run(file, tmp_path, monkeypatch, step):
    folder = tmp_path / "run"
    assert main(words(file, folder, "--noise-multiplier", "5")) == 0
    first = report.read(folder)
    exchange = place.files.exchange
    with monkeypatch.context() as patch:

        def last_steps(one, other):
            if step == "exchange":
                kill()
            exchange(one, other)
            if step == "rmdir":
                patch.setattr(place, "_remove", lambda *_, **__: kill())
            else:
                patch.setattr(place.files, "sweep", lambda _, name: kill() if name == place.SETTINGS else None)

        patch.setattr(place.files, "exchange", last_steps)
        killed(*words(file, folder, "--overwrite"))
    assert (report.read(folder) == first) == (step == "exchange")
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    assert names(folder) == sorted(folders.FILES)
    assert main(words(file, folder, "--overwrite", "--noise-multiplier", "5")) == 0
    assert names(tmp_path) == ["run"]


@pytest.mark.slow
@pytest.mark.backend_free
def test_files_of_seeded_runs_are_for_their_owner(whole, file, tmp_path):
    assert stat.S_IMODE(whole.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in whole.iterdir()} == {0o600}
    (tmp_path / "usual").write_text("")
    usual = stat.S_IMODE((tmp_path / "usual").stat().st_mode)
    assert main(words(file, tmp_path / "run")) == 0
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()} == {usual}
    assert main(["report", str(whole), "--json"]) == 0
    assert stat.S_IMODE((whole / folders.HTML).stat().st_mode) == 0o600


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_model_of_another_run_is_refused(whole, file, tmp_path, capsys):
    assert main(words(file, tmp_path / "run")) == 0
    (tmp_path / "run" / folders.MODEL).write_bytes((whole / folders.MODEL).read_bytes())
    for command in (["report"], ["certify"], ["sample", "--output", str(tmp_path / "x.png")]):
        assert main([command[0], str(tmp_path / "run"), *command[1:]]) == 2
        assert "model.keras is corrupt or of another run" in capsys.readouterr().err


@pytest.mark.backend_free
def test_one_folder_is_for_one_run(tmp_path):
    folder = report.claim(str(tmp_path / "run"), "toy")
    with place.working(folder):
        for overwrite in (False, True):
            with pytest.raises(FileExistsError):
                report.claim(str(tmp_path / "run"), "toy", overwrite)
    with pytest.raises(FileExistsError, match="--resume"):
        report.claim(str(tmp_path / "run"), "toy")
    assert report.claim(str(tmp_path / "run"), "toy", overwrite=True) == folder
    assert names(folder) == [folders.UNFINISHED]


@pytest.mark.backend_free
def test_of_many_that_claim_a_folder_one_gets_it(tmp_path):
    """However their steps are interleaved."""
    import threading

    for round in range(10):
        got, barrier = [], threading.Barrier(8)

        def claim(name=f"run{round}", got=got, barrier=barrier):
            barrier.wait()
            try:
                got.append(report.claim(str(tmp_path / name), "toy"))
            except FileExistsError:
                pass

        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["../../up", "a b\nc", "-rf", "", "x" * 300, ".hidden", "ünï/code"])
def test_default_folders_have_harmless_names(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = report.claim(None, name)
    assert folder.parent.name == "runs" and folder.name.isascii() and len(folder.name) < 100
    assert not set(folder.name) & set("/ \n") and folder.name[0] not in "-." and folder.is_dir()


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--epsilon", "1"], "goes on with the settings it began with. Received: --resume with --epsilon"),
        ([], "There is nothing to go on with. Received: --resume"),
    ],
)
def test_what_cannot_be_gone_on_with(whole, more, message, tmp_path, capsys):
    folder = whole
    if more:
        folder = report.claim(str(tmp_path / "run"), "toy")
    assert main(["train", "--resume", str(folder), *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.backend_free
def test_settings_that_are_corrupt_are_refused(tmp_path, capsys):
    folder = report.claim(str(tmp_path / "run"), "toy")
    for text in ("{", json.dumps({"options": {}}), "[" * 100_000):
        (folder / place.SETTINGS).write_text(text)
        assert main(["train", "--resume", str(folder)]) == 2
        assert "Start it again with --overwrite" in capsys.readouterr().err


@pytest.mark.backend_free
def test_a_folder_beside_that_holds_something_else_is_left_alone(whole, file, tmp_path, capsys):
    import shutil

    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / ".run.next").mkdir()
    (tmp_path / ".run.next" / "mine.txt").write_text("mine")
    assert main(words(file, tmp_path / "run", "--overwrite")) == 2
    assert "that place is taken" in capsys.readouterr().err
    assert names(tmp_path / ".run.next") == ["mine.txt"]


@pytest.mark.backend_free
def test_a_corrupt_mark_is_refused_before_anything_is_read(tmp_path, capsys):
    (tmp_path / folders.UNFINISHED).write_text("")
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "unfinished is corrupt" in capsys.readouterr().err


@pytest.mark.backend_free
def test_a_run_whose_folder_became_another_ones_writes_nothing_more(tmp_path):
    folder = report.claim(str(tmp_path / "run"), "toy")
    with place.working(folder):
        place.check_held(folder)
        shutil.rmtree(folder)
        with pytest.raises(FileExistsError, match="removed or replaced"):
            place.check_held(folder)
        assert report.claim(str(tmp_path / "run"), "toy") == folder
        for step in (place.check_held, place.finish):
            with pytest.raises(FileExistsError, match="removed or replaced"):
                step(folder)
    assert names(folder) == [folders.UNFINISHED]


@pytest.mark.backend_free
def test_an_unfinished_run_beside_a_folder_is_not_forgotten(tmp_path, capsys):
    folder, beside = tmp_path / "run", tmp_path / ".run.next"
    beside.mkdir()
    (beside / folders.UNFINISHED).write_text(json.dumps({"folder": "run"}))
    with pytest.raises(FileExistsError, match="An unfinished run was to take this place"):
        report.claim(str(folder), "toy")
    assert place.unfinished(folder) == beside
    assert report.claim(str(folder), "toy", overwrite=True) == beside
    folder.mkdir()
    (folder / folders.UNFINISHED).write_text(json.dumps({"folder": "run"}))
    assert main(["train", "--resume", str(folder)]) == 2
    assert "Two unfinished runs have this name" in capsys.readouterr().err


@pytest.mark.backend_free
def test_a_renamed_unfinished_run_is_not_called_corrupt(tmp_path):
    report.claim(str(tmp_path / "run"), "toy").rename(tmp_path / "other")
    with pytest.raises(ValueError, match="was renamed.* Give it that name again"):
        place.final(tmp_path / "other")
