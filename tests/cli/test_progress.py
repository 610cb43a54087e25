"""What `lipdp train` shows on the way where there is no terminal."""

import argparse
import sys

import pytest

from lipdp.cli import main, output, train_tell

pytestmark = pytest.mark.backend_free


def lines(capsys, epochs, logs):
    asked = argparse.Namespace(json=False, verbose=None)
    (callback,) = train_tell.progress(asked, epochs)
    for epoch in range(epochs):
        callback.on_epoch_end(epoch, logs)
    return capsys.readouterr().out.splitlines()


def test_long_runs_have_about_ten_lines(capsys):
    found = lines(capsys, 66, {"epsilon": 0.92021, "loss": 0.5, "val_accuracy": 0.75})
    assert len(found) == 10
    assert found[0] == "epoch 7 of 66: epsilon 0.9203, loss (not private) 0.5000, val_accuracy 0.7500"
    assert found[-1].startswith("epoch 66 of 66: ")
    assert len(lines(capsys, 3, {})) == 3


@pytest.mark.parametrize(
    ("asked", "terminal", "shown", "of_features"),
    [
        ({"json": True, "verbose": 2}, False, 0, 0),
        ({"json": False, "verbose": 2}, False, 2, 2),
        ({"json": False, "verbose": 0}, True, 0, 0),
        ({"json": False, "verbose": None}, True, 1, 1),
        ({"json": False, "verbose": None}, False, 0, 2),
    ],
)
def test_keras_shows_what_was_asked_for(monkeypatch, asked, terminal, shown, of_features):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    options = argparse.Namespace(**asked)
    assert train_tell.verbosity(options) == shown and output.verbosity(options) == of_features
    assert bool(train_tell.progress(options, 5)) == (shown != of_features)


@pytest.mark.slow
def test_a_run_shows_them(tmp_path, capsys):
    words = ["train", "--dataset", "digits", "--epsilon", "3", "--epochs", "2", "--batch-size", "700"]
    assert main([*words, "--strategy", "clipless", "--output", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("epoch 1 of 2: ") and "val_accuracy" in out[0]
    assert out[1].startswith("epoch 2 of 2: ") and "epsilon 3" in out[1] and "Epoch" not in "".join(out)
