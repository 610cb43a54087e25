"""`lipdp train --task language`: from raw texts to a model that writes others."""

import json

import numpy as np
import pytest

from lipdp import callbacks
from lipdp.cli import main
from lipdp.report import folder as folders
from tests.helpers.commands import refusal

pytestmark = pytest.mark.backend_free


def write(path, rows=120):
    rng = np.random.default_rng(0)
    said = [f"{rng.choice(['we', 'you'])} {rng.choice(['run', 'sing', 'eat'])} now" for _ in range(rows)]
    path.write_text("said,author\n" + "".join(f"{text},p{i // 3}\n" for i, text in enumerate(said)))
    return path


def train(file, folder, *words):
    own = ["--task", "language", "--dataset", str(file), "--text", "said", "--output", str(folder), "--length", "12"]
    return main(["train", *own, "--verbose", "0", *words])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    words = [
        "--epsilon",
        "50",
        "--epochs",
        "2",
        "--learning-rate",
        "0.1",
        "--validation-split",
        "0.2",
        "--person-column",
        "author",
    ]
    assert train(write(folder / "said.csv"), folder / "run", *words) == 0
    return folder / "run"


@pytest.mark.slow
def test_a_run_says_what_it_has_learned_and_what_a_unit_is(run, capsys):
    content = folders.read(run)
    held_out = content.results["held_out"]
    assert 0.0 < held_out["bits_per_byte"] < 8.0 == held_out["uniform_bits_per_byte"]
    assert held_out["examples"] == 3 * held_out["persons"] > 0
    assert content.privacy["unit"] == "person" and content.privacy["epsilon"] <= 50.0
    statement = " ".join(content.statement.split())
    assert "whatever number of texts they wrote: column 'author' says whose each text is" in statement
    assert "first 12 bytes of what one row of the data has in column 'said'." in statement
    markdown = (run / folders.MARKDOWN).read_text()
    assert "| bits per byte | held-out texts; a uniform guess needs 8 |" in markdown and "accuracy" not in markdown
    assert "read_off_the_data" not in content.privacy and content.run["settings"]["length"] == 12
    assert main(["report", str(run)]) == 0


@pytest.mark.slow  # what differs is in the statement alone
def test_one_text_is_one_example_without_persons(tmp_path, capsys):
    file = write(tmp_path / "said.csv", 60)
    assert train(file, tmp_path / "run", "--noise-multiplier", "2", "--epochs", "1", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["held_out"] is None
    content = folders.read(tmp_path / "run")
    statement = " ".join(content.statement.split())
    assert "One example is one text: the first 12 bytes of what one row of the data has in column 'said'." in statement
    assert "A person who wrote several texts is several examples." in statement
    assert "bits per byte" not in (tmp_path / "run" / folders.MARKDOWN).read_text()


@pytest.mark.slow
def test_texts_are_drawn(run, tmp_path, capsys):
    words = ["sample", str(run), "--num", "3", "--prompt", "we ", "--seed", "1", "--temperature", "0.5", "--output"]
    for name in ("a.jsonl", "b.jsonl"):
        assert main([*words, str(tmp_path / name)]) == 0
        assert "3 texts. They cost no privacy beyond" in capsys.readouterr().out
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert len(lines) == 3 and all(json.loads(line)["said"].startswith("we ") for line in lines)
    assert (tmp_path / "b.jsonl").read_text().splitlines() == lines
    assert "Use .jsonl" in refusal(capsys, *words, tmp_path / "a.png")
    assert "already exists" in refusal(capsys, *words, tmp_path / "a.jsonl")
    assert "An option of other models. Received: --steps" in refusal(
        capsys, *words, tmp_path / "c.jsonl", "--steps", "5"
    )
    assert "fills the whole text" in refusal(capsys, *words, tmp_path / "c.jsonl", "--prompt", "x" * 12)
    assert "temperature" in refusal(capsys, *words, tmp_path / "c.jsonl", "--temperature", "-1")


@pytest.mark.slow
def test_the_other_commands(run, tmp_path, capsys):
    assert "names no classes" in refusal(capsys, "certify", run)
    line = refusal(capsys, "predict", run, "--data", run.parent / "said.csv", "--output", tmp_path / "p.csv")
    assert "lipdp sample draws texts" in line
    assert main(["export", str(run), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / folders.TEXTS).is_file()
    for name in ("x.png", "x.jsonl"):
        line = refusal(capsys, "sample", run / folders.MODEL, "--output", tmp_path / name, "--prompt", "we")
        assert f"the run folder of --task language, which is likely {run}: it says" in line


@pytest.mark.slow  # `test_text.py` has one that goes on
def test_a_run_goes_on(tmp_path, monkeypatch):
    def stop(self, batch, logs=None):
        if self._model.run.ledger.updates == 2:
            raise KeyboardInterrupt

    file = write(tmp_path / "said.csv", 60)
    with monkeypatch.context() as patched:
        patched.setattr(callbacks.Checkpoint, "on_train_batch_end", stop)
        assert train(file, tmp_path / "run", "--noise-multiplier", "2", "--epochs", "1") == 130
    assert main(["train", "--resume", str(tmp_path / "run"), "--verbose", "0"]) == 0
    content = folders.read(tmp_path / "run")
    assert content.privacy["updates"] == content.run["settings"]["updates"] > 2


def test_refusals(tmp_path, capsys):
    own = ["train", "--dataset", write(tmp_path / "said.csv", 20), "--epsilon", "2"]
    task = [*own, "--task", "language", "--text", "said"]
    needs = refusal(capsys, *own, "--task", "language")
    assert "needs the column of its texts" in needs and "with one of the columns of" in needs and "said" in needs
    assert "names no classes. Received: --label author" in refusal(capsys, *task, "--label", "author")
    assert "finetune.md, under Language models" in refusal(capsys, *task, "--backbone", "gpt2_base_en")
    assert "no useful Lipschitz constant" in refusal(capsys, *task, "--strategy", "clipless")
    assert "It is for --task text: pass that task, or leave the option out" in refusal(
        capsys, *task, "--vocabulary", "words.txt"
    )
    assert "It is for --task classifier or text" in refusal(capsys, *task, "--recipe", "attention")
    assert "header" in refusal(capsys, *task, "--no-header")
    assert "length" in refusal(capsys, *task, "--length", "1")
    assert "must not be that of the texts" in refusal(capsys, *task, "--person-column", "said")
    assert "no text column" in refusal(capsys, *task[:-1], "siad")
