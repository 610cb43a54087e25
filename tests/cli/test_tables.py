"""Described tables on the command line: template, training, predictions, export; what is read off the rows is said."""

import csv
import json
import re
import shlex

import keras
import numpy as np
import pytest

from lipdp import callbacks, data
from lipdp.cli import evaluation, main
from lipdp.report import folder as folders
from tests.helpers.commands import refusal

pytestmark = pytest.mark.backend_free

SHORT = ["--noise-multiplier", "2", "--epochs", "1", "--verbose", "0"]


def write(path, rows=60):
    lines = [f"p{i},{i % 7 or ''},{'yes' if i % 3 else 'no'},{'sick' if i % 7 > 3 else 'well'}" for i in range(rows)]
    path.write_text("id,age,smoker,ill\n" + "\n".join(lines) + "\n")
    return path


def described(path):
    content = json.loads(path.read_text())
    content["columns"]["id"] = {"kind": "ignore"}
    content["columns"]["age"]["range"] = [0, 6]
    content["columns"]["smoker"]["vocabulary"] = ["no", "yes"]
    content["label"]["classes"] = ["well", "sick"]
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a described table."""
    folder = tmp_path_factory.mktemp("tables")
    file = write(folder / "people.csv")
    assert main(["table", str(file)]) == 0
    described(folder / "people.json")
    words = ["train", "--dataset", str(file), "--validation-split", "0.3", "--output", str(folder / "run")]
    assert main([*words, *SHORT, "--seed", "1"]) == 0
    return folder / "run"


@pytest.mark.parametrize("constant", [1.0, 242.0])
def test_certify_says_what_trains_for_certificates(run, capsys, monkeypatch, constant):
    """Radii of 0.0 % stood there alone."""
    measure = evaluation.measure
    monkeypatch.setattr(evaluation, "measure", lambda *args: measure(*args) | {"lipschitz": constant})
    assert main(["certify", str(run)]) == 0
    assert ("--strategy clipless, or --recipe robust" in capsys.readouterr().out) == (constant > 2)


@pytest.mark.parametrize("folder", [".", "/", ""])
def test_folders_without_a_name_are_refused_as_others_are(folder, capsys):
    assert "A folder is not a data set" in refusal(capsys, "train", "--dataset", folder, "--epsilon", "1")
    assert "A folder is no file of rows" in refusal(capsys, "table", folder)


def test_a_template_is_written_once_and_has_to_be_filled_in(tmp_path, capsys):
    file = write(tmp_path / "people.csv")
    assert main(["table", str(file)]) == 0
    out = capsys.readouterr().out
    assert "epsilon does not cover" in out and "Kinds follow from all rows, so that one row can change them" in out
    assert "Its values are classes; for a number to predict, pass --task regression" in out
    assert "already exists" in refusal(capsys, "table", file)
    assert main(["table", str(file), "--label", "smoker", "--output", str(tmp_path / "o.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(tmp_path / "o.json")}
    assert "does not describe a table" in refusal(capsys, "train", "--dataset", file, "--epsilon", "1")
    assert "no such file" in refusal(capsys, "table", tmp_path / "none.csv")


def test_a_table_of_text_leads_to_the_command_that_describes_it(tmp_path, capsys):
    file = write(tmp_path / "my people.csv")
    words = ["train", "--dataset", file, "--label", "smoker", "--person-column", "id", "--epsilon", "2"]
    line = refusal(capsys, *words)
    command = re.search("`(lipdp table .*?)`", line).group(1)
    assert "'ill'" not in command and command.endswith("people.csv' --label smoker --person-column id")
    assert main(shlex.split(command)[1:]) == 0
    out = capsys.readouterr().out
    assert f"Then: lipdp train --dataset '{file}' --epsilon 2 --person-column id" in out
    assert "To fill in as well: 'ill', the classes of the label." in refusal(capsys, *words)
    content = json.loads((tmp_path / "my people.json").read_text())
    content["columns"]["age"] = {"kind": "number", "range": [0, 6], "missing": False}
    content["columns"]["ill"]["vocabulary"], content["label"]["classes"] = ["well", "sick"], ["no", "yes"]
    (tmp_path / "my people.json").write_text(json.dumps(content))
    line = refusal(capsys, "train", "--dataset", file, "--epsilon", "2")
    assert f'set "missing": true for the column in {tmp_path / "my people.json"}.' in line and "lipdp table" not in line


@pytest.mark.slow
def test_a_described_table_is_trained_without_reading_anything_off_it(run):
    content = folders.read(run)
    assert data.Table.from_json(run / folders.TABLE).classes == ("well", "sick")
    assert content.run["settings"]["table"].endswith("people.json")
    assert content.run["settings"]["classes"] == ["well", "sick"] and content.run["settings"]["input_shape"] == [6]
    assert content.run["settings"]["input_norm"] == pytest.approx(2**0.5)
    assert "read_off_the_data" not in content.privacy and "READ OFF" not in content.statement


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_description(tmp_path, monkeypatch, capsys):
    def stop(self, epoch, logs=None):
        raise KeyboardInterrupt

    file, run = write(tmp_path / "people.csv"), tmp_path / "run"
    main(["table", str(file)])
    described(tmp_path / "people.json")
    before = (tmp_path / "people.json").read_text()
    words = ["train", "--dataset", str(file), "--output", str(run), "--noise-multiplier", "2", "--epochs", "2"]
    with monkeypatch.context() as patched:
        patched.setattr(callbacks.Checkpoint, "on_epoch_end", stop)
        assert main([*words, "--verbose", "0"]) == 130
    content = json.loads(before)
    content["columns"]["age"]["range"] = [0, 60]
    (tmp_path / "people.json").write_text(json.dumps(content))
    line = refusal(capsys, "train", "--resume", run)
    assert "goes on with the table it began with: the file beside the data, SHA-256" in line
    (tmp_path / "people.json").write_text(before)
    assert main(["train", "--resume", str(run), "--verbose", "0"]) == 0


@pytest.mark.slow
def test_moments_of_groups_have_the_noise_of_groups(tmp_path):
    file, out = write(tmp_path / "people.csv"), tmp_path / "run"
    assert main(["table", str(file)]) == 0
    described(tmp_path / "people.json")
    words = ["train", "--dataset", str(file), "--epsilon", "2", "--epochs", "1", "--examples-per-person", "10"]
    assert main([*words, "--verbose", "0", "--output", str(out)]) == 0
    found = folders.read(out)
    assert found.run["settings"]["moments_noise"] == 120.0 and found.privacy["epsilon"] <= 2.0


@pytest.mark.slow
def test_certify_and_predict_use_the_description_of_the_run(run, tmp_path, capsys):
    capsys.readouterr()
    assert main(["certify", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == folders.read(run).results["held_out"]["accuracy"]
    file = tmp_path / "new.csv"  # without label, columns in another order, nothing beside it
    file.write_text("smoker,age,id\nyes,3,x\n?,,y\nat times,99,z\n")
    assert main(["predict", str(run), "--data", str(file), "--output", str(tmp_path / "p.csv")]) == 0
    assert "no more privacy" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    model, table = keras.saving.load_model(run / folders.MODEL), data.Table.from_json(run / folders.TABLE)
    logits = model.predict(table.encode(file), verbose=0)
    assert [row["class"] for row in rows] == [("well", "sick")[i] for i in logits.argmax(axis=1)]
    found = [[float(row["logit well"]), float(row["logit sick"])] for row in rows]
    assert np.allclose(found, logits, atol=1e-4) and all(float(row["radius"]) >= 0.0 for row in rows)
    heads = ["class", "radius", "logit well", "logit sick", "probability well", "probability sick"]
    assert list(rows[0]) == heads
    sharp = model.loss.temperature * (logits[:, 1] - logits[:, 0])
    assert [float(row["probability sick"]) for row in rows] == pytest.approx(1 / (1 + np.exp(-sharp)), rel=1e-3)
    copied = ["--keep", "id", "smoker", "--output", str(tmp_path / "p.csv"), "--overwrite"]
    assert main(["predict", str(run), "--data", str(file), *copied]) == 0
    found = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert list(found[0]) == ["id", "smoker", *heads] and [row["id"] for row in found] == ["x", "y", "z"]
    assert [{name: row[name] for name in heads} for row in found] == rows
    words = ["predict", run, "--data", file, "--output"]
    assert "--keep ids, and" in refusal(capsys, *words, tmp_path / "q.csv", "--keep", "ids")
    assert "already exists" in refusal(capsys, *words, tmp_path / "p.csv")
    assert "folder of the output" in refusal(capsys, *words, tmp_path / "no" / "p.csv")
    file.write_text("smoker,id\nyes,x\n")
    line = refusal(capsys, *words, tmp_path / "q.csv")
    assert "no column of that name. Received: 'age'. Its columns: smoker, id." in line
    file.write_text("smoker,Age\nyes,3\n")
    assert "Received: 'age'. Did you mean 'Age'?" in refusal(capsys, *words, tmp_path / "q.csv")
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3)))
    line = refusal(capsys, "predict", run, "--data", tmp_path / "x.npz", "--output", tmp_path / "q.csv")
    assert "no classifier of such examples" in line
    words = ["predict", run, "--data", tmp_path / "x.npz", "--output", tmp_path / "q.csv", "--keep", "id"]
    assert "--keep names arrays with one value for each example. Received: --keep id, and" in refusal(capsys, *words)
    line = refusal(capsys, "predict", run / folders.MODEL, "--data", file, "--output", tmp_path / "q.csv")
    assert "Pass --table" in line


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [2**20, 5])
def test_what_a_model_cannot_see_of_new_rows_is_said(at_once, run, tmp_path, capsys, monkeypatch):
    """However many rows of the file are read at a time."""
    monkeypatch.setattr("lipdp.data.rows._AT_ONCE", at_once)
    file, clean, out = tmp_path / "new.csv", tmp_path / "clean.csv", tmp_path / "p.csv"
    file.write_text("name,age,smoker,mail,ill\nx,-inf,Yes,a,well\ny,,No,b,sick\nz,1e999,,c,sick\n")
    clean.write_text("age,smoker\n0,other\n,other\n6,\n")
    capsys.readouterr()
    assert main(["predict", str(run), "--data", str(file), "--output", str(out)]) == 0
    notes, found = capsys.readouterr().err.splitlines(), out.read_text()
    assert len(notes) == 3 and all(note.startswith("lipdp predict: note: ") for note in notes)
    assert notes[0].endswith("columns that the description does not have are left out: 'name', 'mail'.")
    assert notes[1].endswith("column 'age' is infinite in 2 of 3 rows, which counts as the end of its range.")
    assert "no row of column 'smoker' holds a word of its vocabulary, as 'no': 'Yes' and the like count" in notes[2]
    assert main(["predict", str(run), "--data", str(clean), "--output", str(out), "--overwrite"]) == 0
    assert out.read_text() == found
    clean.write_text("age,smoker\n0,no\n,at times\n6,\n")
    capsys.readouterr()
    assert main(["predict", str(run), "--data", str(clean), "--output", str(out), "--overwrite"]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert "1 of 3 rows of column 'smoker' hold no word of its vocabulary, as 'at times': if no row" in note
    clean.write_text("age,smoker\n0,no\n,yes\n6,\n")
    assert main(["predict", str(run), "--data", str(clean), "--output", str(out), "--overwrite"]) == 0
    assert capsys.readouterr().err == ""
    # Columns are then known by their places.
    content = json.loads((run / folders.TABLE).read_text())
    content |= {"header": False, "label": None, "columns": {"0": content["columns"]["age"]}}
    (tmp_path / "t.json").write_text(json.dumps(content))
    clean.write_text("3,1\n4,0\n")
    words = ["predict", run, "--data", clean, "--output", out, "--overwrite", "--table", tmp_path / "t.json"]
    assert "not described. Received: '1'. Leave it out, or describe it" in refusal(capsys, *words)
    file.write_text("age,smoker\nold,no\n")
    line = refusal(capsys, "predict", run, "--data", file, "--output", out, "--overwrite")
    assert '"ignore" it in the description, and train the model again, or list' in line


def test_export_writes_stock_layers_and_the_statement(run, tmp_path, capsys):
    assert main(["export", str(run), "--output", str(tmp_path / "out")]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {folders.MODEL, folders.PRIVACY, folders.STATEMENT, folders.TABLE}
    assert (tmp_path / "out" / folders.STATEMENT).read_text() == folders.read(run).statement
    assert (tmp_path / "out" / folders.STATEMENT).stat().st_mode & 0o077 == 0  # it names a seed
    plain, model = (keras.saving.load_model(path / folders.MODEL) for path in (tmp_path / "out", run))
    assert type(plain).__module__.startswith("keras.")
    x = np.random.default_rng(0).uniform(-1, 1, (5, 6)).astype("float32")
    assert np.allclose(plain.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5)
    assert "not new or empty" in refusal(capsys, "export", run, "--output", tmp_path / "out")


@pytest.mark.slow
def test_what_is_read_off_the_rows_is_said_everywhere(tmp_path, capsys):
    file = tmp_path / "t.csv"
    file.write_text("".join(f"{i % 7},{i % 5},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(60)))
    words = ["train", "--dataset", str(file), "--no-header", *SHORT, "--output", str(tmp_path / "run")]
    assert main(words) == 0
    captured, said = capsys.readouterr(), "the list of classes: those that occur in column '2'"
    assert f"NOT covered by epsilon: {said}." in captured.err and f"`lipdp table {file} --no-header`" in captured.err
    assert f"NOT covered: read off the private rows: {said}" in captured.out
    content = folders.read(tmp_path / "run")
    assert content.privacy["read_off_the_data"] == [said]
    assert "READ OFF THE PRIVATE ROWS" in content.statement
    assert keras.saving.load_model(tmp_path / "run" / folders.MODEL).privacy.to_dict()["read_off_the_data"] == [said]
    for report in (folders.HTML, folders.MARKDOWN):
        assert "outside the guarantee: the list of classes" in (tmp_path / "run" / report).read_text()
    out = tmp_path / "p.csv"
    assert main(["predict", str(tmp_path / "run"), "--data", str(file), "--output", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["no", "yes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["dpsgd", pytest.param("adaclip", marks=pytest.mark.slow), pytest.param("dpis", marks=pytest.mark.slow)]
)
def test_every_strategy_trains_the_same_network(tmp_path, capsys, strategy):
    words = ["train", "--dataset", "digits", "--epsilon", "3", "--epochs", "2", "--verbose", "0", "--json"]
    assert main([*words, "--strategy", strategy, "--clip-norm", "0.5", "--output", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {release["strategy"] for release in found["privacy"]["releases"]} == {strategy}
    assert 2.9 < found["privacy"]["epsilon"] <= 3.0 and found["held_out"]["lipschitz"] <= 1.001
    settings = folders.read(tmp_path / "run").run["settings"]
    assert settings["strategy"] == strategy and settings["clip_norm"] == 0.5


@pytest.mark.slow
def test_a_front_end_is_part_of_the_model(tmp_path, capsys):
    words = ["train", "--dataset", "digits", "--epsilon", "3", "--epochs", "1", "--verbose", "0", "--json"]
    assert main([*words, "--front-end", "robust", "--output", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["held_out"]["lipschitz"] <= 1.001
    model = keras.saving.load_model(tmp_path / "run" / folders.MODEL)
    assert model.input_shape == (None, 8, 8, 1) and model.layers[0].name == "scattering"


def test_help_has_groups_and_examples(capsys):
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    for text in ("privacy:", "classifiers:", "diffusion models:", "examples:", "--epsilon EPSILON [options]"):
        assert text in out
    for command in ("table", "predict", "export"):
        assert main([command, "--help"]) == 0


def in_units(path, rows):
    """A table of which nothing is known: the class follows the column of the smallest numbers."""
    rng = np.random.default_rng(0)
    small, large = rng.normal(5e-4, 1e-5, rows), rng.normal(3e6, 1e6, rows)
    lines = [f"{a:.9g},{b:.9g},{'high' if a > 5e-4 else 'low'}" for a, b in zip(small, large, strict=True)]
    path.write_text("small,large,level\n" + "\n".join(lines) + "\n")
    return str(path)


@pytest.mark.slow
def test_ranges_of_columns_in_unknown_units_are_released_as_part_of_epsilon(tmp_path, capsys):
    words = ["train", "--dataset", in_units(tmp_path / "t.csv", 3000), "--validation-split", "0.2"]
    assert main([*words, "--epsilon", "4", "--seed", "1", "--verbose", "0", "--output", str(tmp_path / "run")]) == 0
    assert "the ranges of columns are released first, with noise, as part of epsilon" in capsys.readouterr().err
    content = folders.read(tmp_path / "run")
    assert content.results["held_out"]["accuracy"] > 0.9
    first = content.privacy["releases"][0]
    assert (first["kind"], first["count"], first["strategy"]) == ("moments", 3, "private_rescaling")
    assert content.privacy["epsilon"] <= 4.0


@pytest.mark.slow
def test_few_rows_and_clipless_training_take_columns_as_they_are(tmp_path, capsys):
    few, many = in_units(tmp_path / "few.csv", 500), in_units(tmp_path / "many.csv", 3000)
    others = ["--dataset", many, "--strategy", "clipless"], ["--dataset", many, "--examples-per-person", "20"]
    for number, words in enumerate((["--dataset", few], *others)):
        assert main(["train", *words, *SHORT, "--output", str(tmp_path / f"run{number}")]) == 0
        assert "large numbers hides the others" in capsys.readouterr().err
