"""`lipdp train --task text`: from raw texts to a run folder and predictions of raw texts."""

import argparse
import csv
import json
import pathlib
import re
import shlex

import keras
import numpy as np
import pytest

from lipdp import callbacks, data
from lipdp.accounting.held_out import held_out_persons
from lipdp.cli import main, parser, text
from lipdp.privacy import files
from lipdp.report import folder as folders
from lipdp.report import place
from tests.helpers.commands import refusal

GOOD, BAD = ("fine", "lovely", "great", "joy"), ("poor", "dull", "awful", "tedious")
OTHER = "the a film it was and with story of on this day they very".split()


def write(path, rows=1000, seed=0):
    """Texts of common words, of which one in four says what they are."""
    rng = np.random.default_rng(seed)
    lines = ["said,mood"]
    for kind in rng.integers(0, 2, rows):
        own = (GOOD if kind else BAD) if rng.random() < 0.95 else (BAD if kind else GOOD)
        words = [rng.choice(own if rng.random() < 0.25 else OTHER) for _ in range(rng.integers(8, 20))]
        lines.append(f"{' '.join(words)},{'glad' if kind else 'sad'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def train(file, folder, *words):
    own = ["--task", "text", "--dataset", str(file), "--text", "said", "--label", "mood", "--output", str(folder)]
    return main(["train", *own, "--verbose", "0", *words])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    file = write(folder / "said.csv")
    words = ["--epsilon", "4", "--validation-split", "0.2", "--length", "64", "--classes", "sad", "glad"]
    assert train(file, folder / "run", *words, "--seed", "3") == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_run_learns_and_says_what_it_protects(run):
    content = folders.read(run)
    assert content.results["held_out"]["accuracy"] > 0.8 and content.results["held_out"]["certified"] == []
    assert 3.9 < content.privacy["epsilon"] <= 4.0 and "read_off_the_data" not in content.privacy
    assert "One example is one text" in content.statement and "'said'" in content.statement
    assert (run / folders.STATEMENT).read_text() == content.statement
    assert content.run["settings"]["held_out_by"] == "label"
    assert content.run["settings"]["classes"] == ["sad", "glad"] and content.run["settings"]["text"] == "said"
    assert "certified" not in (run / folders.MARKDOWN).read_text()


@pytest.mark.backend_free
def test_raw_texts_are_predicted(run, tmp_path, capsys):
    good, bad = "fine lovely great joy and lovely great joy", "Poor DULL and awful: tedious dull awful"
    for name, content in (
        ("new.csv", f"said\n{good}\n{bad}\n"),
        ("new.jsonl", "".join(json.dumps({"said": said}) + "\n" for said in (good, bad))),
    ):
        (tmp_path / name).write_text(content)
        words = ["predict", str(run), "--data", str(tmp_path / name), "--output", str(tmp_path / f"{name}.out")]
        assert main(words) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "2 examples: class, logits and probabilities. They cost the training data no more privacy" in out
        rows = list(csv.DictReader((tmp_path / f"{name}.out").read_text().splitlines()))
        assert [row["class"] for row in rows] == ["glad", "sad"]
        assert list(rows[0]) == ["class", "logit sad", "logit glad", "probability sad", "probability glad"]
        odds = np.exp(float(rows[0]["logit sad"]) - float(rows[0]["logit glad"]))
        assert float(rows[0]["probability sad"]) == pytest.approx(odds / (1 + odds), rel=1e-4)
    (tmp_path / "new.csv").write_text("siad,x\na,b\n")
    line = refusal(capsys, "predict", run, "--data", tmp_path / "new.csv", "--output", tmp_path / "out.csv")
    assert "Did you mean 'siad'" in line


@pytest.mark.backend_free
def test_a_model_file_alone_does_not_read_texts(run, tmp_path, capsys):
    alone = tmp_path / "alone.keras"
    alone.write_bytes((run / folders.MODEL).read_bytes())
    for name in ("new.csv", "new.jsonl"):
        (tmp_path / name).write_text("said\nfine\n" if name == "new.csv" else '{"said": "fine"}\n')
        for model, words in ((run / folders.MODEL, f", which is likely {run}: it says"), (alone, "run folder.")):
            words = f"how to encode texts. Received: --data {tmp_path / name} and", words
            line = refusal(capsys, "predict", model, "--data", tmp_path / name, "--output", tmp_path / "out.csv")
            assert all(" ".join(part.split()) in line for part in words) and "--table" not in line


@pytest.mark.backend_free
def test_no_text_is_drawn_from_a_classifier(run, tmp_path, capsys):
    for name in ("t.jsonl", "t.png"):
        line = refusal(capsys, "sample", run, "--output", tmp_path / name)
        assert "Not a diffusion model, and no language model" in line and "a run of --task text" in line
    line = refusal(capsys, "sample", run / folders.MODEL, "--output", tmp_path / "t.jsonl", "--prompt", "we")
    assert "Not a diffusion model" in line and "Use .npz" not in line and "which is likely" not in line


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_other_commands(run, tmp_path, capsys):
    assert "no certificates" in refusal(capsys, "certify", run)
    assert main(["report", str(run)]) == 0 and "One example is one text" in capsys.readouterr().out
    assert main(["export", str(run), "--output", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(folders.MODEL, folders.PRIVACY, folders.STATEMENT, folders.TEXTS)
    }
    plain, model = (keras.saving.load_model(path / folders.MODEL) for path in (tmp_path / "out", run))
    assert type(plain).__module__.startswith("keras.")
    x = np.random.default_rng(0).integers(0, 100, (5, 64))
    assert np.allclose(plain.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-4)


@pytest.mark.slow
@pytest.mark.backend_free
def test_what_is_read_and_cut_is_said(tmp_path, capsys):
    (tmp_path / "words.txt").write_text("\n".join([*GOOD, *BAD]))
    file = write(tmp_path / "said.csv", 60)
    words = ["--noise-multiplier", "2", "--epochs", "1", "--vocabulary", str(tmp_path / "words.txt"), "--length", "3"]
    assert train(file, tmp_path / "run", *words, "--json") == 0
    captured = capsys.readouterr()
    assert "left out of " in captured.err and "do not publish it" in captured.err
    assert "words.txt must be public" in captured.err and "NOT covered by epsilon: the list of classes" in captured.err
    assert "read_off_the_data" in json.loads(captured.out)["privacy"]
    assert folders.read(tmp_path / "run").run["settings"]["vocabulary_size"] == 9


@pytest.mark.backend_free
def test_texts_without_a_known_word_are_said(tmp_path, capsys):
    file = write(tmp_path / "said.csv", 40)
    options = argparse.Namespace(command="train", dataset=str(file), backbone=None, vocabulary="words.txt")
    for words, known in ((["rien", "de"], False), ([*GOOD, *BAD, *OTHER], True)):
        tokenizer = data.WordTokenizer(words)
        dataset = data.load_text(file, "said", "mood", tokenizer, classes=("sad", "glad"))
        text.tell(options, dataset)
        found = capsys.readouterr().err
        assert ("40 of the texts hold no word of words.txt" in found) is not known
        assert ("do not publish it" in found) is not known
    dataset = data.load_text(file, "said", "mood", data.WordTokenizer(["fine"]), classes=("sad", "glad"))
    part = dataset.held_out(0.4)
    text.tell(options, part)
    empty = int((dataset.x_train == 0).all(axis=1).sum())
    assert f"{empty} of the texts hold no word" in capsys.readouterr().err


def whose(path, rows=240):
    """The same texts, four of each author."""
    lines = write(path, rows).read_text().splitlines()
    path.write_text("\n".join(f"{line},{'author' if not i else f'p{i // 4}'}" for i, line in enumerate(lines)) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.backend_free
def test_persons_are_what_is_protected(tmp_path, capsys):
    file = whose(tmp_path / "said.csv")
    ids = np.array([line.rsplit(",", 1)[1] for line in file.read_text().splitlines()[1:]], object)
    out = held_out_persons(ids, 0.25)
    words = ["--noise-multiplier", "2", "--epochs", "2", "--length", "32", "--classes", "sad", "glad"]
    words += ["--person-column", "author", "--rows-per-person", "2", "--validation-split", "0.25"]
    assert train(file, tmp_path / "run", *words) == 0
    assert "whatever number of rows they have" in capsys.readouterr().out
    content = folders.read(tmp_path / "run")
    assert content.privacy["unit"] == "person" and content.privacy["rows_per_person"] == 2
    assert content.results["held_out"]["examples"] == out.sum()
    assert content.results["held_out"]["persons"] == len(set(ids[out]))
    settings = content.run["settings"]
    assert settings["held_out_by"] == "person"
    assert settings["num_persons"] == len(set(ids[~out])) and "num_examples" not in settings
    statement = " ".join(content.statement.split())
    assert "Unit: one person, with any number of rows" in statement
    assert "The unit is one person, whatever number of texts they wrote: column 'author' says" in statement
    assert "several examples" not in statement
    (tmp_path / "new.csv").write_text("said\nfine lovely great joy\n")
    predict = ["predict", str(tmp_path / "run"), "--data", str(tmp_path / "new.csv")]
    assert main([*predict, "--output", str(tmp_path / "classes.csv")]) == 0


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_run_of_persons_goes_on(tmp_path, monkeypatch):
    def stop(self, batch, logs=None):
        if self._model.run.ledger.updates == 2:
            raise KeyboardInterrupt

    words = ["--noise-multiplier", "2", "--epochs", "2", "--length", "32", "--person-column", "author"]
    with monkeypatch.context() as patched:
        patched.setattr(callbacks.Checkpoint, "on_train_batch_end", stop)
        assert train(whose(tmp_path / "said.csv"), tmp_path / "run", *words) == 130
    assert main(["train", "--resume", str(tmp_path / "run"), "--verbose", "0"]) == 0
    content = folders.read(tmp_path / "run")
    assert content.privacy["updates"] == content.run["settings"]["updates"] > 2
    assert content.run["settings"]["style"] == "linear" and content.privacy["unit"] == "person"


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_run_goes_on_with_the_same_vocabulary(tmp_path, monkeypatch, capsys):
    def stop(self, batch, logs=None):
        if self._model.run.ledger.updates == 2:
            raise KeyboardInterrupt

    vocabulary, run = tmp_path / "words.txt", tmp_path / "run"
    vocabulary.write_text("\n".join([*GOOD, *BAD]))
    words = ["--noise-multiplier", "2", "--epochs", "2", "--vocabulary", str(vocabulary)]
    with monkeypatch.context() as patched:
        patched.setattr(callbacks.Checkpoint, "on_train_batch_end", stop)
        assert train(write(tmp_path / "said.csv", 60), run, *words) == 130
    vocabulary.write_text("\n".join([*BAD, *GOOD]))
    line = refusal(capsys, "train", "--resume", run)
    assert "goes on with the vocabulary it began with" in line and line.count("words.txt, SHA-256") == 2
    content = files.unstamped(json.loads((run / place.SETTINGS).read_text()))
    assert content.pop("digests")
    (run / place.SETTINGS).write_text(json.dumps(files.stamped(content)))  # as an earlier version began it
    assert main(["train", "--resume", str(run), "--verbose", "0"]) == 0


@pytest.mark.slow
@pytest.mark.backend_free
def test_attention(tmp_path):
    words = ["--noise-multiplier", "1", "--epochs", "1", "--length", "12", "--recipe", "attention"]
    assert train(write(tmp_path / "said.csv", 80), tmp_path / "run", *words, "--validation-split", "0.2") == 0
    content = folders.read(tmp_path / "run")
    assert content.run["settings"]["vocabulary_size"] == 4097 and "first 12 words" in content.statement
    (tmp_path / "new.csv").write_text("said\nfine lovely great joy\n")
    words = ["predict", str(tmp_path / "run"), "--data", str(tmp_path / "new.csv"), "--output", str(tmp_path / "p.csv")]
    assert main(words) == 0 and main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "out")]) == 0
    plain, model = (keras.saving.load_model(tmp_path / name / folders.MODEL) for name in ("out", "run"))
    x = np.array([[5, 6, 7, *[0] * 9]])
    assert np.allclose(plain.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-4)


@pytest.mark.backend_free
def test_refusals(tmp_path, capsys):
    file = write(tmp_path / "said.csv", 20)
    own = ["train", "--dataset", file, "--epsilon", "2"]
    task = [*own, "--task", "text", "--text", "said", "--label", "mood"]
    line = refusal(capsys, *own, "--task", "text", "--label", "mood")
    assert f"Pass --text with one of the columns of {file}: said, mood." in line
    line = refusal(capsys, *own, "--task", "text", "--text", "said")
    assert f"Pass --label with one of the columns of {file}: mood." in line
    line = refusal(capsys, "train", "--dataset", tmp_path / "none.csv", "--epsilon", "2", "--task", "text")
    assert "no such file" in line
    assert "Received: --text said and --label said" in refusal(capsys, *task[:-1], "said")
    assert "no useful Lipschitz constant" in refusal(capsys, *task, "--strategy", "clipless")
    assert "It is for --task text" in refusal(capsys, *own, "--text", "said")
    assert "It is for --task classifier" in refusal(capsys, *task, "--radii", "0.1")
    assert "--strategy with --task diffusion" in refusal(capsys, *own, "--task", "diffusion", "--strategy", "dpsgd")
    assert "without --epsilon" in refusal(capsys, *task, "--strategy", "dpis", "--noise-multiplier", "1")
    for share in ("1.0", "0", "nan"):
        line = refusal(capsys, *task, "--validation-split", share)
        assert "--validation-split must be" in line and f"Received: --validation-split {float(share)}" in line
    assert "header" in refusal(capsys, *task, "--no-header")
    assert "length" in refusal(capsys, *task, "--length", "0")
    assert "Pass --recipe linear or attention" in refusal(capsys, *task, "--recipe", "robust")
    assert "wrn or head, or --task text" in refusal(capsys, *own, "--recipe", "attention")
    assert "no column of persons" in refusal(capsys, *task, "--person-column", "who")
    assert "must not be that of the texts" in refusal(capsys, *task, "--person-column", "said")
    assert "must not be the label" in refusal(capsys, *task, "--person-column", "mood")
    assert "without --person-column" in refusal(capsys, *task, "--rows-per-person", "2")
    file.write_text("said,mood,who\na,sad,x\nb,glad,\n")
    assert "has no id in 1 of 2 rows, first in row 2" in refusal(capsys, *task, "--person-column", "who")
    assert not (tmp_path / "runs").exists()


@pytest.mark.backend_free
def test_a_file_of_texts_leads_to_the_task(tmp_path, capsys):
    """Taken for a table it is refused, as a table it may also be: of few words, or of numbers."""
    file = write(tmp_path / "said.csv", 20)
    hint = "If column 'said' holds texts to classify, pass --task text --text said --label COLUMN."
    own = ("train", "--dataset", file, "--epsilon", "2")
    assert hint in refusal(capsys, *own)
    assert hint.replace("COLUMN", "mood") in refusal(capsys, *own, "--label", "mood")
    table = tmp_path / "table.csv"
    table.write_text("said,age,mood\nwe were on time,3,glad\n")
    ignored, unknown = {"kind": "ignore"}, {"kind": "number"}  # without a range
    for said, age in ((ignored, unknown), (unknown, ignored)):
        description = {"columns": {"said": said, "age": age}, "label": {"column": "mood", "classes": ["glad", "sad"]}}
        table.with_suffix(".json").write_text(json.dumps(description))
        found = refusal(capsys, "train", "--dataset", table, "--epsilon", "2")
        assert ("--task text" in found) is (said is unknown)
    lines = tmp_path / "said.jsonl"
    lines.write_text('{"said": "we were on time", "mood": "glad"}\n')
    assert hint in refusal(capsys, "train", "--dataset", lines, "--epsilon", "2")
    file.write_text("age\tincome\twhere\tmood\n1\t2\tnorth\tsad\n3\t4\tsouth\tglad\n")
    assert "--task text" not in refusal(capsys, "train", "--dataset", file, "--epsilon", "2")
    file.write_text("where,mood\nnorth,sad\nsouth,glad\n")
    assert "--task text" not in refusal(capsys, "train", "--dataset", file, "--epsilon", "2")
    assert "--task text" not in refusal(capsys, "train", "--dataset", "digist", "--epsilon", "2")


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_page_on_texts_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """Less the commands that load a network; what they write is another folder or file each time."""
    monkeypatch.chdir(tmp_path)
    page = pathlib.Path(__file__).parents[2] / "docs" / "howto" / "text.md"
    for kind, block in re.findall(r"```(python|bash)\n(.*?)```", page.read_text(), flags=re.DOTALL):
        if kind == "python" and "open(" in block:
            before = set(tmp_path.iterdir())
            exec(compile(block, "text.md", "exec"), {})
            assert not before & {tmp_path / name for name in re.findall(r'open\("([^"]+)", "w"\)', block)}
        for line in block.splitlines() if kind == "bash" else ():
            words = shlex.split(line, comments=True)[1:]
            options = parser.parse(words)
            assert not (tmp_path / options.output).exists()
            if "--backbone" in words or words[:2] == ["predict", "runs/encoder"]:
                assert not any(name in line for name in ("runs/said", "classes.csv"))
                continue
            short = ["--epochs", "1", "--verbose", "0"] if words[0] == "train" else []
            assert main([*words, *short]) == 0
