"""`lipdp train --person-column`: persons are drawn, held out and stated; the column is no input."""

import contextlib
import json

import numpy as np
import pytest

from lipdp import callbacks, data
from lipdp.accounting.held_out import held_out_persons
from lipdp.cli import main
from lipdp.report import folder as folders
from tests.helpers.commands import refusal

pytestmark = pytest.mark.backend_free

SHORT = ["--noise-multiplier", "2", "--epochs", "2", "--verbose", "0", "--seed", "1"]
SIZES = np.random.default_rng(0).integers(1, 6, 60)
IDS = np.repeat([f"p{i}" for i in range(60)], SIZES)


def write(path, ids=IDS):
    """Visits of patients; numbers alone, but for the ids."""
    lines = [f"{i % 7},{one},{i % 5},{int(i % 7 > 3)}" for i, one in enumerate(ids)]
    path.write_text("age,patient,dose,ill\n" + "\n".join(lines) + "\n")
    return path


def describe(path):
    content = json.loads(path.read_text())
    for name in ("age", "dose"):
        content["columns"][name]["range"] = [0, 6]
    content["label"]["classes"] = [0, 1]
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on the visits of persons, of which a part was held out."""
    folder = tmp_path_factory.mktemp("persons")
    file = write(folder / "visits.csv")
    assert main(["table", str(file), "--person-column", "patient"]) == 0
    assert json.loads((folder / "visits.json").read_text())["columns"]["patient"] == {"kind": "ignore"}
    describe(folder / "visits.json")
    words = ["train", "--dataset", str(file), "--person-column", "patient", "--rows-per-person", "3"]
    assert main([*words, *SHORT, "--validation-split", "0.25", "--output", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.slow
def test_everything_is_about_persons(run, capsys):
    content, out = folders.read(run), held_out_persons(IDS, 0.25)
    persons, held = len(set(IDS[~out])), len(set(IDS[out]))
    assert persons + held == 60 and persons > held > 0
    assert content.privacy["unit"] == "person" and content.privacy["rows_per_person"] == 3
    assert {release["num_examples"] for release in content.privacy["releases"]} == {persons}
    settings = content.run["settings"]
    # How many rows they have is private.
    assert settings["num_persons"] == persons and "num_examples" not in settings
    assert settings["input_shape"] == [4] and settings["person_column"] == "patient"  # two numbers, perhaps missing
    assert content.results["held_out"]["examples"] == out.sum() and content.results["held_out"]["persons"] == held
    assert "Unit: one person, with any number of rows" in content.statement
    assert f"{out.sum()} held-out examples of {held} persons" in (run / folders.MARKDOWN).read_text()
    assert "| add or remove one person |" in (run / folders.MARKDOWN).read_text()
    capsys.readouterr()
    assert main(["certify", str(run)]) == 0
    assert f"on {out.sum()} examples of {held} persons of visits" in capsys.readouterr().out


@pytest.mark.slow
def test_new_rows_need_no_ids(run, tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("age,dose\n3,1\n5,2\n")
    assert main(["predict", str(run), "--data", str(file), "--output", str(tmp_path / "classes.csv")]) == 0
    assert data.Table.from_json(run / folders.TABLE).encode(file).shape == (2, 4)


@pytest.mark.parametrize("described", [True, False])
def test_the_column_is_no_input_whatever_is_said_of_it(tmp_path, described):
    file = write(tmp_path / "t.csv", ids=np.unique(IDS, return_inverse=True)[1])
    table = None
    if described:
        columns = [
            data.Column(name, kind="number", range=(0, 60), missing=False) for name in ("age", "patient", "dose")
        ]
        table = data.Table(columns=columns, label="ill", classes=(0, 1))
        assert data.load(file, table=table).columns == ("age", "patient", "dose")
    with contextlib.nullcontext() if described else pytest.warns(data.UnchargedWarning):
        found = data.load(file, table=table, person="patient")
    assert found.columns == ("age", "dose") and found.num_persons == 60 and found.num_examples == len(IDS)
    scaled = data.scale(found, {"age": (0, 6)}) if not described else found
    part = scaled.held_out(0.3)
    assert not set(part.person_ids) & set(part.person_ids_test) and len(part.person_ids) == len(part.x_train)
    assert scaled.table.encode({"age": [0], "dose": [0]}).shape == (1, 2)


@pytest.mark.slow
def test_what_persons_are_told_at_the_end(tmp_path, capsys):
    file = write(tmp_path / "t.csv")
    words = ["train", "--dataset", str(file), "--person-column", "patient", "--strategy", "dpsgd"]
    assert main([*words, *SHORT, "--output", str(tmp_path / "run")]) == 0
    assert "updates on 60 persons (add or remove one person, whatever number of rows" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_persons_goes_on(tmp_path, capsys, monkeypatch):
    def stop(self, batch, logs=None):
        if self._model.run.ledger.updates == 2:
            raise KeyboardInterrupt

    words = ["--dataset", str(write(tmp_path / "t.csv")), "--person-column", "patient", *SHORT[:-2]]
    with monkeypatch.context() as patched:
        patched.setattr(callbacks.Checkpoint, "on_train_batch_end", stop)
        assert main(["train", *words, "--validation-split", "0.25", "--output", str(tmp_path / "run")]) == 130
    assert main(["train", "--resume", str(tmp_path / "run"), "--verbose", "0"]) == 0
    content = folders.read(tmp_path / "run")
    assert content.privacy["unit"] == "person" and content.run["settings"]["person_column"] == "patient"
    assert content.privacy["updates"] == content.run["settings"]["updates"] > 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--person-column", "patent"],
            "no column of persons of that name. Received: 'patent'. Did you mean 'patient'",
        ),
        (["--person-column", "ill"], "must not be the label"),
        (["--rows-per-person", "3"], "without --person-column"),
        (["--person-column", "patient", "--rows-per-person", "0"], "rows_per_person"),
        (["--person-column", "patient", "--examples-per-person", "3"], "whatever number of rows"),
        (["--person-column", "patient", "--batch-size", "61"], "batch_size"),
        (["--person-column", "patient", "--dataset", "digits"], "has a label column or one of persons"),
        (["--person-column", "patient", "--task", "diffusion"], "of another task"),
    ],
)
def test_what_is_refused(tmp_path, capsys, more, message):
    file = write(tmp_path / "t.csv")
    assert message in refusal(capsys, "train", "--dataset", file, *SHORT, "--output", tmp_path / "run", *more)
    assert not (tmp_path / "run").exists()


def test_ids_must_not_be_missing(tmp_path, capsys):
    file = write(tmp_path / "t.csv", ids=["", *IDS[1:5], "NA", *IDS[6:]])
    line = refusal(capsys, "train", "--dataset", file, "--person-column", "patient", *SHORT)
    assert "has no id in 2 of" in line and "first in row 1. Received: ''" in line and "an id of its own" in line
    line = refusal(capsys, "table", file, "--person-column", "patient")
    assert "has no id in 2 of" in line and not (tmp_path / "t.json").exists()
