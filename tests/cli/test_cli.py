"""The command line, in this process: what it writes, what it answers, what it refuses."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import lipdp
from lipdp import data
from lipdp.cli import main
from lipdp.report import folder as folders

SHORT = ["--epochs", "2", "--batch-size", "700", "--verbose", "0"]


def train(folder, *words) -> int:
    return main(["train", "--dataset", "digits", "--epsilon", "3", "--output", str(folder), *SHORT, *words])


def table(path, rows=60, text=""):
    lines = [f"{i % 7},{i % 5},{'yes' if i % 7 > 3 else 'no'}" for i in range(rows)]
    path.write_text("a,b,ill\n" + "\n".join(lines) + "\n" + text)
    return str(path)


def answer(capsys, *words) -> dict:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *words, code=2) -> str:
    capsys.readouterr()
    assert main(list(words)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("lipdp")
    return captured.err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One seeded run on digits, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert train(folder, "--seed", "7") == 0
    return folder


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_run_folder_holds_everything(run):
    assert {path.name for path in run.iterdir()} == set(folders.FILES)
    content = folders.read(run)
    assert [row["epoch"] for row in content.history] == [1.0, 2.0]
    assert set(content.history[0]) == {"epoch", "epsilon", "val_accuracy", "val_loss"}
    assert content.history[1]["epsilon"] == content.privacy["epsilon"]
    assert 0.99 * 3.0 <= content.privacy["epsilon"] <= 3.0
    assert content.privacy["training_metrics_outside_the_guarantee"] == []
    assert content.statement.startswith("Privacy statement")
    assert content.run["settings"]["num_examples"] == 1437
    assert content.run["settings"]["updates"] == content.privacy["updates"] == 6
    assert content.run["versions"]["keras"] == keras.__version__
    assert set(content.run["versions"]) >= {"python", "lipdp", "backend", "numpy", "dp-accounting"}
    assert [c["radius"] for c in content.results["held_out"]["certified"]] == [0.1, 0.5, 1.0]


@pytest.mark.backend_free
def test_the_saved_model_is_the_trained_one(run):
    model = keras.saving.load_model(run / folders.MODEL)
    content = folders.read(run)
    assert model.privacy.to_dict()["updates"] == content.privacy["updates"]
    digits = data.load("digits")
    found = model.evaluate(digits.x_test, digits.y_test, verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(content.results["held_out"]["accuracy"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_recorded_command_repeats_the_run(run, tmp_path):
    words = shlex.split(folders.read(run).run["command"])
    assert words[0] == "lipdp"
    again = tmp_path / "again"
    shutil.copytree(run, again)
    for name in folders.FILES:
        (again / name).write_text("old" if name != folders.RUN else "{}")
    words[words.index("--output") + 1] = str(again)
    assert main([*words[1:], "--overwrite"]) == 0
    for name in (folders.PRIVACY, folders.STATEMENT, folders.HISTORY, folders.RESULTS):
        assert (again / name).read_text() == (run / name).read_text(), name
    for first, second in zip(_weights(run), _weights(again), strict=True):
        assert np.array_equal(first, second)


@pytest.mark.slow
@pytest.mark.backend_free
def test_without_a_seed_no_two_runs_are_alike_and_training_metrics_are_marked(run, tmp_path, capsys):
    folder = tmp_path / "new"
    assert train(folder, "--training-metrics", "--radii", "0.05", "0.2") == 0
    assert not np.array_equal(_weights(run)[0], _weights(folder)[0])
    assert folders.read(folder).privacy["seed_fixed_by_user"] is False
    assert folders.read(run).privacy["seed_fixed_by_user"] is True
    out = capsys.readouterr().out
    assert "epsilon 3 at delta 1e-05 after 6 updates on 1437 examples" in out
    assert "on 360 held-out examples" in out and "within 0.05" in out
    assert "NOT private" in out and f"Written to {folder}" in out
    marked = {"accuracy (not private)", "loss (not private)"}
    assert set(folders.read(folder).history[0]) == {"epoch", "epsilon", "val_accuracy", "val_loss"} | marked


def _weights(folder):
    return keras.saving.load_model(folder / folders.MODEL).get_weights()


@pytest.mark.slow
@pytest.mark.backend_free
def test_train_on_a_table_of_ones_own(tmp_path, capsys):
    file, ranges = table(tmp_path / "t.csv"), tmp_path / "ranges.json"
    ranges.write_text('{"a": [0, 6]}')
    words = ["train", "--dataset", file, "--noise-multiplier", "2", "--epochs", "1", "--seed", "3"]
    words += ["--label", "ill", "--feature-ranges", str(ranges), "--validation-split", "0.3"]
    found = answer(capsys, *words, "--output", str(tmp_path / "run"))
    settings = folders.read(tmp_path / "run").run["settings"]
    assert settings["classes"] == ["no", "yes"] and settings["label"] == "ill"
    assert settings["num_examples"] + found["held_out"]["examples"] == 60
    assert found["privacy"]["delta"] == 1e-5
    again = answer(capsys, "certify", str(tmp_path / "run"))
    assert again["accuracy"] == found["held_out"]["accuracy"]
    assert found["held_out"]["certified"] == [] and len(again["certified"]) == 3


@pytest.mark.slow
@pytest.mark.backend_free
def test_without_held_out_rows_nothing_is_measured(tmp_path, capsys):
    words = ["train", "--dataset", table(tmp_path / "t.csv"), "--noise-multiplier", "2", "--epochs", "1"]
    assert main([*words, "--output", str(tmp_path / "run"), "--verbose", "0"]) == 0
    assert "accuracy not measured: no examples were held out" in capsys.readouterr().out
    assert set(folders.read(tmp_path / "run").history[0]) == {"epoch", "epsilon"}
    assert "held out no examples" in refusal(capsys, "certify", str(tmp_path / "run"))


@pytest.mark.backend_free
def test_folders_that_hold_anything_else_are_left_alone(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    words = ["train", "--dataset", "digits", "--epsilon", "3", "--output", str(tmp_path)]
    assert "not empty. Received" in refusal(capsys, *words)
    # Before the data are read, which may take long.
    assert "not empty. Received" in refusal(capsys, *words[:2], "absent.csv", *words[3:])
    assert "Only the folder of an earlier run" in refusal(capsys, *words, "--overwrite")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_folder(tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(lipdp.DP_Sequential, "fit", interrupt)
    assert train(tmp_path / "run") == 130
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.backend_free
def test_certify_and_report_read_a_run(run, capsys):
    content = folders.read(run)
    found = answer(capsys, "certify", str(run), "--radii", "0", "0.1")
    assert found["certified"][0]["accuracy"] == found["accuracy"] == content.results["held_out"]["accuracy"]
    assert found["lipschitz"] <= 1.001 and found["remark"] == "held-out part"
    by_file = answer(capsys, "certify", str(run / folders.MODEL), "--dataset", "digits", "--radii", "0", "0.1")
    assert by_file["certified"] == found["certified"]
    assert main(["certify", str(run)]) == 0
    assert "certified accuracy within L2 radius 0.1: " in capsys.readouterr().out

    before = (run / folders.HTML).read_text()
    (run / folders.HTML).unlink()
    assert answer(capsys, "report", str(run))["privacy"] == content.privacy
    assert (run / folders.HTML).read_text() == before
    assert main(["report", str(run)]) == 0
    assert "Privacy statement" in capsys.readouterr().out


@pytest.mark.backend_free
def test_epsilon_and_calibrate_agree(capsys):
    plan = ["--batch-size", "256", "--num-examples", "60000"]
    found = answer(capsys, "epsilon", "--noise-multiplier", "1.1", "--updates", "2350", *plan)
    assert found["epsilon"] == pytest.approx(0.9202, abs=1e-3)
    assert found["accountant"]["library"] == "dp_accounting"
    same = ["--sampling-probability", str(256 / 60000), "--epochs", "10"]
    assert answer(capsys, "epsilon", "--noise-multiplier", "1.1", *same)["epsilon"] == found["epsilon"]
    back = answer(capsys, "calibrate", "--epsilon", "1", "--epochs", "10", *plan)
    assert back["updates"] == 2350 and 0.99 <= back["epsilon"] <= 1.0
    assert 1.04 < back["noise_multiplier"] < 1.06
    nothing = answer(capsys, "epsilon", "--noise-multiplier", "0.001", "--updates", "9", *plan)
    assert nothing["epsilon"] is None
    assert main(["epsilon", "--noise-multiplier", "0.001", "--updates", "9", *plan]) == 0
    assert capsys.readouterr().out.startswith("epsilon infinite at delta 1e-05")


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --dataset mnits --epsilon 1", "Received: 'mnits'. Did you mean 'mnist'"),
        ("train --dataset none.csv --epsilon 1", "There is no such file. Received: 'none.csv'"),
        ("train --dataset digits", "neither --epsilon nor --noise-multiplier"),
        ("train --dataset digits --epsilon 0", "`epsilon` must be a finite number above 0. Received: epsilon=0.0"),
        ("train --dataset digits --epsilon -1", "`epsilon` must be a finite number above 0. Received: epsilon=-1.0"),
        ("train --dataset digits --epsilon nan", "`epsilon` must be a finite number"),
        ("train --dataset digits --epsilon one", "invalid float value: 'one'"),
        ("train --dataset digits --epsilon 1 --delta 0", "`delta` must be a number in (0, 1)"),
        ("train --dataset digits --epsilon 1 --delta 1.5", "`delta` must be a number in (0, 1)"),
        ("train --dataset digits --epsilon 1 --batch-size 9999", "larger than the data"),
        ("train --dataset digits --epsilon 1 --epochs 0", "`epochs` must be a positive integer. Received: epochs=0"),
        ("train --dataset digits --epsilon 1 --seed -1", "`seed` must be an integer from 0 to 4294967295"),
        ("train --dataset digits --epsilon 1 --learning-rate -3", "`learning_rate` must be a finite number above 0"),
        ("train --dataset digits --epsilon 1 --radii -1", "`radii` must be a finite number of at least 0"),
        ("train --dataset digits --epsilon 1 --label y", "Only a .csv file has a label column"),
        ("train --dataset digits --epsilon 1 --validation-split 2", "--validation-split must be a number in (0, 1)"),
        ("train --dataset digits --epsilon 1e9", "needs no noise at all"),
        ("train --dataset digits --epsilom 1", "unknown argument '--epsilom'. Did you mean --epsilon?"),
        ("train --dataset mine.csv --epsilon 1 --lable sick", "unknown argument '--lable'. Did you mean --label?"),
        ("train --dataset digits --eps 1", "unknown argument '--eps'. Did you mean --epsilon?"),
        ("train --dataset mine.csv --epsilon 1 --target sick", "unknown argument '--target'. Did you mean --label?"),
        ("train --dataset digits --epsilon 1 --lr 1", "unknown argument '--lr'. Did you mean --learning-rate?"),
        ("calibrate --epsilon 1 --n 9 --batch-size 3 --epochs 3", "'--n'. Did you mean --num-examples?"),
        ("train --dataset m.csv --epsilon 1 --persons id", "'--persons'. Did you mean --person-column?"),
        ("train --dataset m.csv --epsilon 1 --classes a b", "of a table stand in its description"),
        ("train digits --epsilon 1", "unknown argument 'digits'. Did you mean --dataset digits?"),
        ("train --dataset digits mnist --epsilon 1", "unknown argument 'mnist'."),
        ("train --dataset digits --epsilon 1 --accountant moments", "invalid choice: 'moments'"),
        ("train --epsilon 1", "required: --dataset"),
        ("tain", "invalid choice: 'tain'"),
        ("", "required: COMMAND"),
        ("epsilon --noise-multiplier 1 --updates 9", "Pass either the first one or both of the others"),
        ("epsilon --noise-multiplier 1 --updates 9 --batch-size 9", "either the first one or both"),
        ("epsilon --noise-multiplier 1 --sampling-probability 0.1", "Pass one of them"),
        ("epsilon --noise-multiplier 1 --sampling-probability 2 --updates 9", "must be a number in (0, 1]"),
        ("epsilon --noise-multiplier -1 --sampling-probability 0.1 --updates 9", "at least 0"),
        ("epsilon --noise-multiplier 1 --batch-size 9 --num-examples 8 --updates 9", "larger than the data"),
        ("calibrate --epsilon 0 --sampling-probability 0.1 --updates 9", "`epsilon` must be a finite number above 0"),
        ("calibrate --epsilon 1 --sampling-probability 0.1 --updates 0", "`updates` must be a positive integer"),
        ("certify nothing", "no such model. Received: 'nothing'"),
        ("certify nothing.keras --dataset digits", "no such model"),
        ("report nothing", "no such run folder. Received: 'nothing'"),
    ],
)
def test_bad_words_get_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, *words.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("red,1,no\n", [], "Column 'a' of .* not a finite number in 1 of 61 rows, first in row 61"),
        ("nan,1,no\n", [], "Column 'a' of .* missing value"),
        ("1,no\n", [], "Line 62 of .* has 2 values"),
        ("", ["--label", "sick"], "no label column of that name. Received: 'sick'"),
        ("", ["--feature-ranges", "none.json"], "no such file of ranges"),
        ("", ["--table", "none.json"], "no such description of a table. Received: 'none.json'"),
        ("", ["--table", "a.json", "--feature-ranges", "b.json"], "--table and --feature-ranges. Leave the second"),
        ("", ["--no-header"], "Column '0' of .* not a finite number in 1 of 61 rows, first in row 1"),
        ("", ["--front-end", "robust"], "A front end is for images"),
        ("", ["--clip-norm", "1", "--strategy", "clipless"], "--clip-norm with --strategy clipless"),
        ("", ["--strategy", "dpis", "--noise-multiplier", "1"], "Pass --epsilon alone"),
    ],
)
def test_bad_tables_get_one_line(tmp_path, capsys, text, words, message):
    file = table(tmp_path / "t.csv", text=text)
    line = refusal(capsys, "train", "--dataset", file, "--epsilon", "1", "--output", str(tmp_path / "r"), *words)
    assert re.search(message, line)
    assert not (tmp_path / "r").exists()


@pytest.mark.backend_free
def test_models_of_others_are_refused(tmp_path, capsys, run):
    words = ["certify", str(tmp_path / "m.keras"), "--dataset", "digits"]
    (tmp_path / "m.keras").write_bytes(b"not a model")
    assert "is not a model that lipdp can read" in refusal(capsys, *words)

    content = bytearray((run / folders.MODEL).read_bytes())
    content[len(content) // 2 :] = b"\0" * (len(content) - len(content) // 2)
    (tmp_path / "m.keras").write_bytes(content)
    assert "is not a model that lipdp can read" in refusal(capsys, *words)

    foreign = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.BatchNormalization(), keras.layers.Dense(10)]
    )
    foreign.save(tmp_path / "m.keras")
    assert "BatchNormalization" in refusal(capsys, *words)

    assert "Pass --dataset as well" in refusal(capsys, *words[:2])
    assert "read from .keras files" in refusal(capsys, "certify", __file__, "--dataset", "digits")

    small = lipdp.DP_Sequential([keras.Input((3,)), lipdp.layers.SpectralDense(2)])
    small.save(tmp_path / "m.keras")
    assert "The model does not fit the data" in refusal(capsys, *words)


@pytest.mark.slow
def test_a_broken_run_folder_is_named(tmp_path, capsys, run):
    for name in folders.FILES:
        (tmp_path / name).write_bytes((run / name).read_bytes())
    (tmp_path / folders.RUN).write_text("{")
    assert "run.json is corrupt" in refusal(capsys, "report", str(tmp_path))
    (tmp_path / folders.RUN).unlink()
    assert "lacks run.json" in refusal(capsys, "report", str(tmp_path))
    assert "lacks run.json" in refusal(capsys, "certify", str(tmp_path))


@pytest.mark.backend_free
def test_a_table_for_a_run_on_arrays_is_refused(tmp_path, capsys, run):
    """The refusal asked for the run folder that it had been given."""
    line = refusal(capsys, "predict", str(run), "--data", "new.csv", "--output", str(tmp_path / "p.csv"))
    assert "Received: --data new.csv and a run on arrays, digits. Pass a .npz file with x" in line


@pytest.mark.backend_free
def test_other_classes_are_refused(tmp_path, capsys, run):
    np.savez(tmp_path / "two.npz", x=np.zeros((4, 8, 8)), y=[0, 1, 0, 1])
    line = refusal(capsys, "certify", str(run), "--dataset", str(tmp_path / "two.npz"))
    assert "has other classes than the run was trained on" in line


@pytest.mark.backend_free
@pytest.mark.filterwarnings("default:delta is not below")
def test_a_large_delta_is_a_warning_on_standard_error(capsys):
    words = ["epsilon", "--noise-multiplier", "1", "--batch-size", "9", "--num-examples", "90", "--epochs", "1"]
    found = answer(capsys, *words)
    assert found["epsilon"] > 0
    assert main([*words, "--delta", "0.1"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("lipdp epsilon: warning: delta is not below 1 / N")
    assert captured.out.startswith("epsilon ")


@pytest.mark.backend_free
def test_help_and_version_are_answers(capsys):
    assert main(["--help"]) == 0
    assert "train a private classifier" in capsys.readouterr().out
    assert main(["train", "--help"]) == 0
    assert "released with noise as part of the budget" in " ".join(capsys.readouterr().out.split())
    assert main(["--version"]) == 0
    assert lipdp.__version__ in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_installed_command_is_quick_and_quiet(tmp_path):
    script = tmp_path / "lipdp"
    script.write_text(
        "import sys\nfrom lipdp.cli import main\ncode = main()\n"
        "heavy = {'keras', 'tensorflow', 'jax'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    words = ["epsilon", "--noise-multiplier", "1", "--sampling-probability", "0.1", "--updates", "10", "--json"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["updates"] == 10


@pytest.mark.backend_free
def test_group(capsys):
    run = ["--noise-multiplier", "1", "--updates", "2000", "--sampling-probability", "0.01", "--delta", "1e-6"]
    found = answer(capsys, "group", "1", "4", *run)["groups"]
    assert [row["group_size"] for row in found] == [1, 4]
    assert found[1]["epsilon"] == pytest.approx(14.535, rel=1e-3) and found[1]["vadhan"] > 23.0
    assert main(["group", "16", *run]) == 0
    assert "no meaningful guarantee" not in capsys.readouterr().out
    assert main(["group", "32", *run]) == 0
    assert "no meaningful guarantee" in capsys.readouterr().out
    fixed = ["--noise-multiplier", "4", "--updates", "2000", "--sampler", "fixed_size", "--delta", "1e-6"]
    sizes = ["--batch-size", "500", "--num-examples", "50000"]
    assert answer(capsys, "group", "4", *fixed, *sizes)["groups"][0]["epsilon"] == pytest.approx(4.768, rel=1e-3)


@pytest.mark.slow
@pytest.mark.backend_free
def test_samplers_and_persons_on_the_command_line(capsys):
    run = ["--batch-size", "256", "--num-examples", "60000", "--updates", "2350"]
    epsilon = answer(capsys, "epsilon", "--noise-multiplier", "1.1", *run, "--sampler", "shuffle")
    assert epsilon["epsilon"] == pytest.approx(15.783, rel=1e-3)
    noise = answer(capsys, "calibrate", "--epsilon", "3", *run, "--examples-per-person", "4")["noise_multiplier"]
    found = answer(capsys, "epsilon", "--noise-multiplier", str(noise), *run, "--examples-per-person", "4")["epsilon"]
    assert 2.97 <= found <= 3.0
    assert main(["epsilon", "--noise-multiplier", "1.1", *run, "--sampler", "truncated_poisson"]) == 0
    assert "truncated_poisson, zero out one)" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.backend_free
def test_plan(capsys, tmp_path, run):
    words = ["--num-examples", "6000", "--delta", "1e-4"]
    found = answer(capsys, "plan", *words, "--epsilon", "2", "--epochs", "5", "--batch-size", "256", "--output",
                   str(tmp_path / "plan"), "--model", str(run / folders.MODEL))  # fmt: skip
    assert found["found"] == "noise_multiplier" and 1.98 <= found["epsilon"] <= 2.0
    assert [5, found["epsilon"]] in found["tables"]["epochs"]
    assert [5, found["noise_multiplier"]] in found["tables"]["noise_by_epochs"]
    noises = [noise for _, noise in found["tables"]["noise_by_epochs"]]
    assert noises == sorted(noises) and len(noises) > 3
    assert 0.5 < found["risk"]["right_guesses"] < 0.7
    assert found["signal_to_noise"]["aligned"] > found["signal_to_noise"]["independent"] > 0.0
    assert {path.suffix for path in (tmp_path / "plan").iterdir()} == {".svg", ".json"}
    for path in (tmp_path / "plan").glob("*.svg"):
        assert path.read_text().lstrip().startswith("<?xml") and "</svg>" in path.read_text()
        # What is drawn, for which data, and where the plan stands in it.
        assert "N = 6000, delta = 0.0001" in path.read_text() and "this plan" in path.read_text()
    noise = str(found["noise_multiplier"])
    assert main(["plan", *words, "--epsilon", "2", "--noise-multiplier", noise, "--batch-size", "256"]) == 0
    assert "found: epochs" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.backend_free
def test_training_with_another_sampler(capsys, tmp_path):
    words = ["--sampling", "shuffle", "--examples-per-person", "2"]
    assert train(tmp_path / "run", *words) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(zero out one person with at most 2, shuffle sampling, pld)" in out
    content = folders.read(tmp_path / "run")
    assert content.privacy["sampler"] == ["shuffle"] and content.privacy["unit"] == "person"
    assert content.run["settings"]["sampling"] == "shuffle"
    assert "one person with at most 2 examples" in content.statement
    assert "zero out one person, at most 2 examples" in (tmp_path / "run" / folders.HTML).read_text()


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("group --noise-multiplier 1 --updates 9 --sampling-probability 0.1", "required: K"),
        ("group x --noise-multiplier 1 --updates 9 --sampling-probability 0.1", "invalid int value: 'x'"),
        ("group -1 --noise-multiplier 1 --updates 9 --sampling-probability 0.1", "unknown argument|integer"),
        ("group 4 --noise-multiplier 1 --updates 9", "sampling probability is not determined"),
        ("group 4 --noise-multiplier 1 --updates 9 --sampler fixed_size --batch-size 9", "--num-examples None"),
        ("group 4 --noise-multiplier 1 --updates 9 --batch-size 9", "--num-examples None"),
        (
            "group 4 --noise-multiplier 1 --updates 9 --sampling-probability 0.1 --batch-size 9 --num-examples 10",
            "Pass either the first one or both of the others",
        ),
        ("group 4 --noise-multiplier 1 --updates 9 --batch-size -5 --num-examples -10", "integer"),
        ("group 4 --noise-multiplier 1 --updates 9 --batch-size 5 --num-examples 0", "integer"),
        ("group 4 --noise-multiplier 1 --updates 9 --batch-size 50 --num-examples 10", "larger than the data"),
        ("group 4 --noise-multiplier 1 --updates 9 --sampling-probability 0.1 --delta 1e-12", "rounding noise"),
        ("group 4 --noise-multiplier 1 --updates 9 --sampling-probability 0.1 --accountant rdp", "has no bound"),
        ("plan --num-examples 100 --epsilon 1", "needs three of"),
        ("plan --num-examples 100 --epsilon 1 --epochs 1 --batch-size 101", "larger than the data"),
        ("plan --epsilon 1 --epochs 1 --batch-size 10", "required: --num-examples"),
        ("plan --num-examples 100 --epsilon 1 --epochs 1 --batch-size 10 --sampler balls_in_bins", "invalid choice"),
        ("epsilon --noise-multiplier 1 --sampling-probability 0.1 --updates 9 --sampler truncated_poisson",
         "`num_examples` must be given"),
        ("epsilon --noise-multiplier 1 --sampling-probability 0.1 --updates 9 --examples-per-person 0", "positive int"),
    ],
)  # fmt: skip
def test_accounting_commands_refuse_in_one_line(capsys, words, message):
    assert re.search(message, refusal(capsys, *shlex.split(words)))


@pytest.mark.backend_free
def test_a_full_disk_gets_one_line_and_an_error_of_the_program_a_traceback(monkeypatch, capsys):
    def failing(options, argv):
        raise RuntimeError(message)

    monkeypatch.setattr("lipdp.cli.epsilon.run", failing)
    words = ["epsilon", "--noise-multiplier", "1", "--num-examples", "100", "--batch-size", "10", "--updates", "1"]
    message = "Can't decrement id ref count (file write failed: errno = 28, error message = 'No space left on device')"
    assert main(words) == 1
    assert capsys.readouterr().err == f"lipdp epsilon: error: {message}\n"
    message = "something else"
    with pytest.raises(RuntimeError, match="something else"):
        main(words)


@pytest.mark.backend_free
def test_a_link_that_leads_nowhere_is_refused_in_words(tmp_path, capsys):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    words = ["plan", "--num-examples", "1000", "--epsilon", "1", "--epochs", "1", "--batch-size", "100"]
    assert main([*words, "--output", str(tmp_path / "link")]) == 2
    assert "a link that leads nowhere" in capsys.readouterr().err


@pytest.mark.backend_free
def test_training_that_has_diverged_gets_one_line(capsys, monkeypatch):
    def diverged(options, argv):
        raise FloatingPointError("Training has diverged.")

    monkeypatch.setattr("lipdp.cli.epsilon.run", diverged)
    words = ["epsilon", "--noise-multiplier", "1", "--num-examples", "100", "--batch-size", "10", "--updates", "1"]
    assert main(words) == 1
    assert capsys.readouterr().err == "lipdp epsilon: error: Training has diverged.\n"
