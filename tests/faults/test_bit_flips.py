"""One flipped bit in any file: it is refused, or changes nothing."""

import json
import shutil

import keras
import numpy as np
import pytest

from lipdp import callbacks, report
from lipdp.privacy import journal
from tests.helpers.models import DELTA, blobs, mlp, weights

pytestmark = pytest.mark.backend_free

FLIPS = 160
FIT = {"batch_size": 40, "steps_per_epoch": 4, "noise_multiplier": 1.5, "delta": DELTA, "verbose": 0}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run folder with a checkpoint, and a weight file, of one small model."""
    folder, model = tmp_path_factory.mktemp("made"), mlp()
    model.fit(*blobs(), seed=1, callbacks=callbacks.Checkpoint(folder / "c.weights.h5"), **FIT)
    model.save(folder / "model.keras")
    model.save_weights(folder / "m.weights.h5")
    facts = {
        "command": "lipdp train",
        "argv": [],
        "settings": {"epsilon": None},
        "versions": {},
        "started": "",
        "seconds": 1,
    }
    history = tuple({"epoch": float(i), "epsilon": i / 7} for i in range(3))
    content = report.RunFolder(
        facts, {"held_out": None, "bounds": []}, model.privacy.to_dict(), model.privacy.statement(), history
    )
    report.write(folder, content)
    return folder, model


def facts(model):
    """Everything that a file of a model holds."""
    optimizer = [np.array(v) for v in model.optimizer.variables]
    return [*weights(model), *optimizer], json.loads(model.run.to_array().tobytes())


def equal(a, b) -> bool:
    return a[1] == b[1] and all(np.array_equal(p, q) for p, q in zip(a[0], b[0], strict=True))


def by_weights(path):
    model = mlp()
    model.load_weights(path)
    return facts(model)


READERS = {
    "model.keras": (lambda path: facts(keras.saving.load_model(path)), equal),
    "m.weights.h5": (by_weights, equal),
    "c.weights.h5.journal": (journal.read, lambda a, b: a == b),
    **dict.fromkeys(
        ("run.json", "privacy.json", "results.json", "history.csv", "privacy.txt"),
        (lambda path: report.read(path.parent), lambda a, b: a == b),
    ),
}


def flipped(path, rng, count):
    """Writes the file `count` times, each time with another bit flipped; then as it was."""
    content = path.read_bytes()
    bits = rng.choice(8 * len(content), min(count, 8 * len(content)), replace=False)
    for bit in bits:
        wrong = bytearray(content)
        wrong[bit // 8] ^= 1 << bit % 8
        path.write_bytes(wrong)
        yield int(bit)
    path.write_bytes(content)


def check(name, made, tmp_path, count):
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    read, same = READERS[name]
    expected, refused, without_effect, wrong = read(tmp_path / name), 0, 0, []
    for bit in flipped(tmp_path / name, np.random.default_rng(3), count):
        try:
            found = read(tmp_path / name)
        except Exception as error:
            assert not isinstance(error, (RecursionError, MemoryError)), bit
            refused += 1
            continue
        if same(found, expected):
            without_effect += 1
        else:
            wrong.append(bit)
    assert not wrong and refused + without_effect == count
    assert same(read(tmp_path / name), expected)
    return refused


TEXTS = [name for name in READERS if name not in ("model.keras", "m.weights.h5")]


@pytest.mark.parametrize("name", TEXTS)
def test_a_flipped_bit_in_a_text_is_refused_or_changes_nothing(name, made, tmp_path):
    assert check(name, made, tmp_path, FLIPS) > 0.5 * FLIPS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [12, pytest.param(FLIPS, marks=[pytest.mark.slow, pytest.mark.backend_free])])
@pytest.mark.parametrize("name", ["model.keras", "m.weights.h5"])
def test_a_flipped_bit_in_a_model_is_refused_or_changes_nothing(name, count, made, tmp_path):
    check(name, made, tmp_path, count)


@pytest.mark.parametrize("name", ["model.keras", *TEXTS[1:]])
def test_a_file_of_another_run_is_refused(name, made, tmp_path):
    """Cut short, emptied, replaced or taken away."""
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    content = (tmp_path / name).read_bytes()
    for wrong in (
        content[: len(content) // 2],
        b"",
        content + b" " * (name != "run.json") + b"\n1" * (name == "run.json"),
    ):
        (tmp_path / name).write_bytes(wrong)
        with pytest.raises(ValueError, match=f"{name} is corrupt"):
            report.read(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        report.read(tmp_path)


def test_deep_nesting_is_corrupt(made, tmp_path):
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="run.json is corrupt: it is nested too deeply"):
        report.read(tmp_path)


@pytest.mark.parametrize("place", ["weights", "optimizer", "ledger"])
def test_values_changed_inside_a_weight_file_are_refused(place, made, tmp_path):
    """By who knows the format: with the library that wrote it."""
    import h5py

    shutil.copy(made[0] / "m.weights.h5", tmp_path / "m.weights.h5")
    with h5py.File(tmp_path / "m.weights.h5", "r+") as file:
        names = []
        file.visit(lambda name: names.append(name) if isinstance(file[name], h5py.Dataset) else None)
        mine = [
            n for n in names if (n.endswith("lipdp"), "optimizer" in n) == (place == "ledger", place == "optimizer")
        ]
        item = file[mine[0]]
        item[...] = item[...] + np.ones((), item.dtype)
    model = mlp()
    before = weights(model)
    with pytest.raises(ValueError, match="is corrupt: its weights are not those that were written"):
        model.load_weights(tmp_path / "m.weights.h5")
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), before, strict=True))
    assert model.privacy.updates == 0
