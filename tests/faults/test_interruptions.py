"""Exceptions wherever Keras calls back, data that fail, full disks: the ledger is right and nothing is lost."""

import errno

import keras
import numpy as np
import pytest

from lipdp import callbacks
from lipdp.privacy import Release, files, journal
from lipdp.sampling import Sampling
from tests.helpers.models import DELTA, blobs, mlp, weights

FIT = {"batch_size": 40, "epochs": 2, "steps_per_epoch": 3, "noise_multiplier": 1.0, "delta": DELTA, "verbose": 0}
HOOKS = [
    "on_epoch_end",
    *(
        pytest.param(f"on_{name}", marks=pytest.mark.slow)
        for name in (
            *("train_begin", "train_end", "epoch_begin", "train_batch_begin", "train_batch_end"),
            *("test_begin", "test_end", "test_batch_begin", "test_batch_end"),
        )
    ),
]


@pytest.fixture(scope="module")
def whole():
    model = mlp()
    model.fit(*blobs(), validation_data=blobs(40, seed=1), seed=5, **FIT)
    return weights(model)


def raising(hook, error, calls):
    """A callback whose `hook` raises at its call of that number."""

    class Raise(keras.callbacks.Callback):
        pass

    seen = []

    def fail(self, *args, **kwargs):
        seen.append(1)
        if len(seen) == calls:
            raise error

    setattr(Raise, hook, fail)
    return Raise()


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "error",
    [RuntimeError("a callback"), pytest.param(KeyboardInterrupt(), marks=pytest.mark.slow)],
    ids=["error", "interrupt"],
)
def test_an_exception_in_any_callback_loses_nothing(hook, error, whole, tmp_path):
    """The model in memory goes on, and so does a new process, both to the end of an uninterrupted run."""
    path, model = tmp_path / "c.weights.h5", mlp()
    arguments = {"validation_data": blobs(40, seed=1), "seed": 5, **FIT}
    calls = 2 if "batch" in hook and "train" in hook else 1
    with pytest.raises(type(error)):
        model.fit(*blobs(), callbacks=[callbacks.Checkpoint(path), raising(hook, error, calls)], **arguments)
    made = int(model.optimizer.iterations.numpy())
    # An update that was charged and then not made stays charged: `on_train_batch_begin` comes between the two.
    assert made <= model.privacy.updates <= made + 1
    assert journal.read(f"{path}.journal").ledger.updates >= made
    again = mlp()
    again.fit(*blobs(), callbacks=[callbacks.Checkpoint(path)], **arguments)
    assert all(np.array_equal(a, b) for a, b in zip(weights(again), whole, strict=True)), "a new process"
    assert again.privacy.updates == 6


@pytest.mark.backend_free
def test_data_that_fail_charge_nothing(tmp_path):
    class Broken(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 2:
                raise OSError("the disk with the data is gone")
            x, y = blobs(40)
            return x, y

    model = mlp()
    before = weights(model)
    keep = callbacks.Checkpoint(tmp_path / "c.keras")
    with pytest.raises(OSError, match="the disk with the data is gone"):
        model.fit(Broken(), callbacks=[keep], **FIT)
    assert model.privacy.updates == 0
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), before, strict=True))
    model.fit(*blobs(), callbacks=[keep], **FIT)
    assert model.privacy.updates == 6


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_earlier_file(name, at, tmp_path, monkeypatch):
    model = mlp()
    path, save = tmp_path / name, model.save if name == "m.keras" else model.save_weights
    save(path)
    content = path.read_bytes()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    if at == "write":
        monkeypatch.setattr(model.layers[-1], "save_own_variables", full)
    else:
        monkeypatch.setattr(files.os, at, full)
    with pytest.raises(OSError, match="No space left"):
        save(path, overwrite=True)
    monkeypatch.undo()
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.backend_free
def test_a_full_disk_in_a_callback_of_keras_leaves_the_earlier_file(tmp_path, monkeypatch):
    path, model, writes = tmp_path / "m.keras", mlp(), []
    fsync = files.os.fsync

    def full(handle):
        writes.append(handle)
        if len(writes) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        model.fit(*blobs(), callbacks=[keras.callbacks.ModelCheckpoint(path, save_freq=2)], **FIT)
    monkeypatch.undo()
    assert keras.saving.load_model(path).privacy.updates == 2 and model.privacy.updates == 4


def test_a_journal_that_cannot_be_written_lets_no_update_happen(tmp_path, monkeypatch):
    """What is not reserved is not released."""
    model, path = mlp(), tmp_path / "c.weights.h5"

    def full(self, ledger, *_, **__):
        if ledger.updates >= 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal.Journal, "cover", full)
    with pytest.raises(OSError, match="No space left"):
        model.fit(*blobs(), callbacks=[callbacks.Checkpoint(path)], **FIT)
    assert model.privacy.updates == 2 == int(model.optimizer.iterations.numpy())


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_hundred_thousand_charges_take_no_more_room_than_ten(tmp_path, monkeypatch):
    update = Release(
        sampling=Sampling().bind(1000, 10),
        noise_multiplier=1.0,
        sensitivity=0.1,
        strategy="x",
        noise_allocation="global",
    )
    model = mlp()
    model.run.journal = journal.Journal(tmp_path / "j")
    # Those of a plan; without one each charge is written by itself.
    monkeypatch.setattr(type(model.run), "updates_left", 10**6)
    sizes = []
    for count in (10, 100_000):
        for _ in range(count):
            model.run.charge(update, most=10**6)
        sizes.append(((tmp_path / "j").stat().st_size, len(model.run.to_array()), len(model.run.ledger)))
    assert model.run.ledger.updates == 100_010
    assert all(last - first < 20 for first, last in zip(*sizes, strict=True)), sizes
    assert journal.read(tmp_path / "j").ledger.updates >= 100_010
