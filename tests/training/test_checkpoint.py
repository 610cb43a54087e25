"""`callbacks.Checkpoint`: what a process that was killed leaves behind, and how the same `fit` goes on."""

import dataclasses
import json
import os
import pathlib
import stat
import warnings

import keras
import numpy as np
import pytest

import lipdp
from lipdp import accounting, backend, callbacks, checks, diffusion, layers, losses, strategies
from lipdp.diffusion import toy
from lipdp.privacy import journal
from lipdp.training import seeding
from tests.helpers.models import DELTA, blobs, mlp, weights

FIT = {"batch_size": 40, "epochs": 3, "steps_per_epoch": 4, "noise_multiplier": 1.0, "delta": DELTA, "verbose": 0}


class Killed(BaseException):
    """Stands for SIGKILL: `killed` lets nothing be written after it."""


class At(keras.callbacks.Callback):
    """Calls a function once the model has made so many updates."""

    def __init__(self, updates, action):
        super().__init__()
        self.updates, self.action = updates, action

    def on_train_batch_end(self, batch, logs=None):
        if self.model.run.ledger.updates >= self.updates:
            self.action()


def kill():
    raise Killed


def lost(keep, model):
    """What the end of a process does, and nothing more."""
    model.run.journal = None
    keep._stack.close()


def fit(model, path, every="epoch", stop=None, action=kill, more=(), data=None, **arguments):
    """The call of `fit` that every process makes; `stop` kills this one after so many updates."""
    keep = callbacks.Checkpoint(path, every)
    given = [keep, *more, *([At(stop, action)] if stop is not None else [])]
    with pytest.MonkeyPatch.context() as patch:
        if action is kill and stop is not None:
            patch.setattr(keep, "close", lambda model, whole: lost(keep, model))
        x, y = blobs() if data is None else data
        try:
            return model.fit(x, y, callbacks=given, **FIT | arguments)
        except (Killed, RuntimeError):
            return None


def plain():
    keras.utils.set_random_seed(0)
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]))
    model.compile(keras.optimizers.SGD(0.3, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture(params=["c.weights.h5", pytest.param("c.keras", marks=pytest.mark.slow)])
def path(tmp_path, request):
    return tmp_path / request.param


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "stop"),
    [("epoch", 6), pytest.param(1, 6, marks=pytest.mark.slow), pytest.param(3, 2, marks=pytest.mark.slow)],
)
def test_a_seeded_run_that_was_killed_repeats_an_uninterrupted_one(path, every, stop):
    whole = mlp()
    whole.fit(*blobs(), seed=5, **FIT)
    fit(mlp(), path, every, stop, seed=5)
    resumed = mlp()
    fit(resumed, path, every, seed=5)
    assert resumed.run.ledger == whole.run.ledger
    assert all(np.array_equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))


def test_what_was_lost_is_charged(path):
    """Twelve updates are planned; the seven of the first process count among them."""
    fit(mlp(), path, stop=7)
    left = journal.read(f"{path}.journal")
    assert 7 <= left.ledger.updates <= 12
    model = mlp()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        history = fit(model, path)
    said, *rest = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    assert len(rest) == (left.ledger.updates == 12) and all("nothing was trained" in text for text in rest)
    assert f"up to {left.ledger.updates - 4} updates that were made since are lost. They stay charged" in said
    made = int(model.optimizer.iterations.numpy())
    assert model.privacy.updates == 12
    assert made == 4 + 12 - left.ledger.updates  # the file held four
    assert history.epoch == list(range(left.ledger.updates // 4, 3))


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_budget_holds_however_often_a_run_is_killed(path):
    for _ in range(3):
        fit(mlp(), path, stop=2, epsilon=2.0, noise_multiplier=None, action=kill)
        before = journal.read(f"{path}.journal").ledger.updates
        fit(mlp(), path, stop=before + 1, epsilon=2.0, noise_multiplier=None)
    model = mlp()
    fit(model, path, epsilon=2.0, noise_multiplier=None)
    assert model.privacy.epsilon() <= 2.0 and model.privacy.updates == 12
    assert int(model.optimizer.iterations.numpy()) < 12


@pytest.mark.slow
def test_a_finished_run_returns_at_once(path):
    model = mlp()
    fit(model, path)
    again = mlp()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        history = fit(again, path)
    (said,) = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    assert said.startswith("The checkpoint holds a finished run of this plan: nothing was trained.")
    assert said.endswith("Pass another path to train anew.") and path.name in said
    assert history.epoch == [] and again.history is history
    assert again.run.ledger == model.run.ledger
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), weights(again), strict=True))


@pytest.mark.backend_free
def test_a_finished_run_is_not_taken_for_one_on_other_data(path):
    """The file knows the plan: other labels, or another learning rate, are the same to it."""
    few = {"epochs": 1, "steps_per_epoch": 1}
    fit(mlp(), path, **few)
    x, y = blobs()
    for data, model in (((x, 2 - y), mlp()), (None, mlp(optimizer=keras.optimizers.SGD(0.01, momentum=0.9)))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            fit(model, path, data=data, **few)
        assert any("nothing was trained" in str(one.message) for one in caught) and model.privacy.updates == 1


@pytest.mark.slow
@pytest.mark.backend_free
def test_more_epochs_than_a_finished_run_had_are_a_second_plan(path):
    fit(mlp(), path)
    model = mlp()
    fit(model, path, epochs=4)
    assert model.privacy.updates == 12 + 16


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_seeded_run_that_has_paid_once_pays_again(path):
    """Its noise is no longer that of a run without a stop, so a second kill is not repeated from the file."""
    fit(mlp(), path, stop=3, seed=5)
    fit(mlp(), path, 1, stop=6, seed=6)
    owed, held = journal.read(f"{path}.journal").ledger.updates, mlp()
    held.load_weights(path)
    model = mlp()
    fit(model, path, seed=6)
    assert model.privacy.updates == 12
    assert int(model.optimizer.iterations.numpy()) == int(held.optimizer.iterations.numpy()) + 12 - owed


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_model_in_memory_goes_on_by_itself(path):
    """A second fit of the same model is a second plan, as without the callback."""
    model = mlp()
    fit(model, path)
    fit(model, path)
    assert model.privacy.updates == 24
    other = mlp()
    fit(other, path)
    assert other.privacy.updates == 24


@pytest.mark.slow
@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_an_error_between_two_updates_loses_nothing(path, stop):
    def fail():
        raise RuntimeError("a callback")

    first = mlp()
    fit(first, path, stop=stop, action=fail, seed=5)
    assert first.privacy.updates == stop
    resumed, whole = mlp(), mlp()
    fit(resumed, path, seed=5)
    whole.fit(*blobs(), seed=5, **FIT)
    assert all(np.array_equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))
    # Nothing was reserved in vain, either.
    fit(first, path, seed=5)
    assert first.privacy.updates == 12


@pytest.mark.slow
@pytest.mark.backend_free
def test_an_unseeded_run_pays_nothing_after_an_error(path):
    def fail():
        raise RuntimeError("a callback")

    fit(mlp(), path, stop=6, action=fail)
    model = mlp()
    fit(model, path)
    assert model.privacy.updates == 12 == int(model.optimizer.iterations.numpy())


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "change",
    [
        pytest.param("seed", marks=pytest.mark.slow),
        "data",
        pytest.param("no seed", marks=pytest.mark.slow),
        "momentum",
        "devices",
    ],
)
def test_a_seeded_run_that_is_gone_on_with_in_another_way_pays_for_what_was_lost(path, change, monkeypatch):
    fit(mlp(), path, stop=6, seed=5)
    if change == "devices":  # sums in another order: the same noise would be added to other numbers
        monkeypatch.setattr(backend, "row_shards", lambda: (2, (0, 1)))
    model = mlp(optimizer=keras.optimizers.SGD(0.3, momentum=0.5)) if change == "momentum" else mlp()
    data = blobs(seed=1) if change == "data" else None
    fit(model, path, seed={"seed": 6, "no seed": None}.get(change, 5), data=data)
    assert model.privacy.updates == 12 and int(model.optimizer.iterations.numpy()) < 12 - 1


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_seeded_run_killed_again_while_it_repeats_still_owes_what_was_lost(path):
    """Killed at 8; repeated from 4 up to 6; then gone on with by others."""
    fit(mlp(), path, stop=8 - 1, seed=5)
    owed = journal.read(f"{path}.journal").ledger.updates
    assert owed >= 7
    fit(mlp(), path, stop=5, seed=5)
    assert journal.read(f"{path}.journal").ledger.updates >= owed

    def fail():
        raise RuntimeError("a callback")

    fit(mlp(), path, stop=6, action=fail, seed=5)
    assert journal.read(f"{path}.journal").ledger.updates >= owed
    model = mlp()
    fit(model, path)
    made = int(model.optimizer.iterations.numpy())
    assert model.privacy.updates == 12 and made <= 6 + 12 - owed


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_fit_of_a_model_with_releases_of_its_own_is_refused(path):
    fit(mlp(), path, stop=6)
    model = mlp()
    model.fit(*blobs(), **FIT | {"epochs": 1})
    before = model.run.ledger.to_json()
    with pytest.raises(ValueError, match="Load the file into a new model"):
        fit(model, path)
    assert model.run.ledger.to_json() == before


@pytest.mark.slow
@pytest.mark.backend_free
def test_file_and_journal_belong_together(path, tmp_path):
    fit(mlp(), path, stop=6)
    kept = (tmp_path / f"{path.name}.journal").rename(tmp_path / "kept")
    with pytest.raises(ValueError, match="journal of the checkpoint is missing"):
        fit(mlp(), path)
    other = path.with_name("other." + path.name.split(".", 1)[1])
    fit(mlp(), other, stop=6)
    os.replace(f"{other}.journal", f"{path}.journal")
    with pytest.raises(ValueError, match="of different runs"):
        fit(mlp(), path)
    kept.rename(f"{path}.journal")
    path.unlink()
    with pytest.raises(ValueError, match="checkpoint of this journal is missing"):
        fit(mlp(), path)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_journal_alone_is_no_obstacle_before_the_first_release(path, monkeypatch):
    monkeypatch.setattr(callbacks.Checkpoint, "_save", lambda *_, **__: kill())
    fit(mlp(), path, stop=1)
    monkeypatch.undo()
    assert not path.exists() and os.path.exists(f"{path}.journal")
    model = mlp()
    fit(model, path)
    assert model.privacy.updates == 12


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_corrupt_journal_is_refused(path):
    fit(mlp(), path, stop=6)
    file = f"{path}.journal"
    text = pathlib.Path(file).read_text(encoding="utf-8")
    content = json.loads(text)
    content["ledger"]["entries"][0]["count"] = 4
    for wrong in (json.dumps(content), text[: len(text) // 2], "[" * 100_000, "[]", ""):
        pathlib.Path(file).write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match="journal .* is corrupt"):
            fit(mlp(), path)


@pytest.mark.slow
@pytest.mark.backend_free
def test_two_processes_do_not_share_a_file(path):
    seen = []

    def inner():
        if not seen:
            seen.append(1)
            with pytest.raises(BlockingIOError, match="Another `fit` trains with the checkpoint"):
                fit(mlp(), path)

    model = mlp()
    fit(model, path, stop=1, action=inner)
    assert seen and model.privacy.updates == 12


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_checkpoint_that_is_refused_does_not_unlock_the_fit_that_has_it(path):
    """The same object given to a second `fit` took the lock of the first one away."""
    keep, seen = callbacks.Checkpoint(path), []

    def again():
        for one in [] if seen else [keep, callbacks.Checkpoint(path)]:
            seen.append(one)
            with pytest.raises(BlockingIOError, match="Another `fit` trains with the checkpoint"):
                mlp().fit(*blobs(), callbacks=[one], **FIT)

    model = mlp()
    model.fit(*blobs(), callbacks=[keep, At(1, again)], **FIT)
    assert len(seen) == 2 and model.privacy.updates == 12
    assert journal.read(f"{path}.journal").ledger == model.run.ledger


@pytest.mark.slow
@pytest.mark.backend_free
def test_files_of_seeded_runs_are_for_their_owner(tmp_path):
    fit(mlp(), tmp_path / "secret.keras", seed=1)
    fit(mlp(), tmp_path / "open.keras")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.suffix != ".lock"}
    assert modes["secret.keras"] == modes["secret.keras.journal"] == 0o600
    assert modes["open.keras"] & 0o400 and modes["open.keras"] == modes["open.keras.journal"] != 0o600
    assert json.loads((tmp_path / "open.keras.journal").read_text())["replay"] is None


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("strategy", [pytest.param("dpsgd", marks=pytest.mark.slow), "adaclip"])
def test_strategies_that_clip_go_on(tmp_path, strategy):
    path = tmp_path / "c.weights.h5"
    whole = plain()
    whole.fit(*blobs(), seed=5, strategy=strategy, **FIT)
    fit(plain(), path, 2, stop=7, seed=5, strategy=strategy)
    resumed = plain()
    fit(resumed, path, 2, seed=5, strategy=strategy)
    assert all(np.array_equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))


DPIS = {"strategy": strategies.DPIS(clip_norm=1.0), "epsilon": 4.0, "noise_multiplier": None}


@pytest.mark.slow
@pytest.mark.parametrize("every", ["epoch", pytest.param(1, marks=pytest.mark.slow)])
def test_seeded_importance_sampling_repeats_from_the_end_of_an_epoch(tmp_path, every):
    path = tmp_path / "c.weights.h5"
    whole = plain()
    whole.fit(*blobs(), seed=5, **FIT | DPIS)
    fit(plain(), path, every, stop=7, seed=5, **DPIS)
    resumed = plain()
    fit(resumed, path, every, seed=5, **DPIS)
    assert resumed.run.ledger == whole.run.ledger
    assert all(np.array_equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(6, marks=pytest.mark.slow)])
def test_what_importance_sampling_has_lost_is_charged(tmp_path, stop):
    """Also the noisy sums of epochs that were begun."""
    path = tmp_path / "c.weights.h5"
    fit(plain(), path, stop=stop, **DPIS)
    left = journal.read(f"{path}.journal").ledger
    assert left.updates >= stop
    model = plain()
    fit(model, path, **DPIS)
    kinds = [release.kind for release in model.run.ledger.entries for _ in range(release.count)]
    assert model.privacy.updates == 12 and kinds.count("norm_sum") >= 3
    assert model.run.ledger.continues(left)
    assert model.privacy.spent() <= 4.0
    made = int(model.optimizer.iterations.numpy())
    assert made < 12


@pytest.mark.slow
def test_updates_of_importance_sampling_that_were_lost_are_not_planned_again(tmp_path):
    path = tmp_path / "c.weights.h5"
    # Within an epoch of four updates, some of which were reserved.
    fit(plain(), path, every=2, stop=6, **DPIS)
    charged, left = journal.read(f"{path}.journal").ledger.updates, []
    look = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: left.append(model.run.driver.budget.updates_left))
    model = plain()
    fit(model, path, every=2, more=[look], **DPIS)
    assert left == [8 - charged]


@pytest.mark.backend_free
@pytest.mark.parametrize(("every", "stop"), [("epoch", 5), pytest.param(1, 4, marks=pytest.mark.slow)])
def test_importance_sampling_ends_when_what_was_lost_has_used_up_the_budget(tmp_path, every, stop):
    path, model = tmp_path / "c.weights.h5", plain()
    fit(model, path, every, stop, **DPIS)
    # As if it had been killed again and again just after a noisy sum.
    ledger = journal.read(f"{path}.journal").ledger
    release = next(release for release in ledger.entries if release.kind == "norm_sum")
    budget = model.run.driver.budget
    rdp = accounting.Filter(budget.order, covers_adaptive=True).rdp
    for _ in range(1000):
        if rdp((*ledger.mechanisms(), *2 * [release.mechanism()])) > budget._total:
            break
        ledger.charge(dataclasses.replace(release, count=0))
    journal.Journal(f"{path}.journal").settle(ledger)
    model = plain()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, path, every, **DPIS)
    assert any("does not pay for another epoch" in str(warning.message) for warning in caught)
    assert model.privacy.spent() <= 4.0 and model.privacy.updates < 12
    assert np.isfinite(model.get_weights()[0]).all()


def normalized():
    """A model whose first `fit` releases two moments of what it reads."""
    keras.utils.set_random_seed(0)
    model = lipdp.DP_Sequential(
        [
            keras.Input((8,)),
            layers.PrivateNormalization(2.0, 8.0),
            layers.BoundedInput(norm=1.0),
            layers.SpectralDense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(0.3, momentum=0.9), losses.SparseCategoricalCrossentropy())
    return model


MOMENTS = [
    {"strategy": "clipless"},
    pytest.param({"strategy": "dpsgd", "accountant": "filter", "epsilon": 8.0}, marks=pytest.mark.slow),
    pytest.param({**DPIS, "epsilon": 8.0}, marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", MOMENTS, ids=lambda settings: str(settings["strategy"]))
def test_a_seeded_run_that_was_killed_between_its_moments_repeats_them(path, monkeypatch, settings):
    """It could never go on with its seed."""
    whole = normalized()
    whole.fit(*blobs(), seed=5, **FIT | settings)
    means = []
    with monkeypatch.context() as patch:

        def stop(layer, *_):
            means.append(layer.mean.numpy())
            raise Killed

        patch.setattr(checks, "replaced", lambda thing: [])  # as if it stood in the source
        patch.setattr(layers.PrivateNormalization, "set_variance", stop)
        for _ in range(2):
            fit(normalized(), path, stop=99, seed=5, **settings)
    left = journal.read(f"{path}.journal").ledger
    assert left.releases == 2
    resumed = normalized()
    fit(resumed, path, seed=5, **settings)
    # The same noise for the same values, hence paid once.
    assert all(np.array_equal(mean, resumed.layers[0].mean.numpy()) for mean in means)
    assert resumed.run.ledger == whole.run.ledger
    assert all(np.array_equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("change", ["data", "weights", "seed"])
def test_moments_of_something_else_are_not_taken_for_those_of_a_killed_run(path, monkeypatch, change):
    x, y = blobs()
    first, second = normalized(), normalized()
    with monkeypatch.context() as patch:

        def stop(layer, *_):
            raise Killed

        patch.setattr(checks, "replaced", lambda thing: [])  # as if it stood in the source
        patch.setattr(layers.PrivateNormalization, "set_variance", stop)
        fit(first, path, stop=99, seed=5)
    key = first.optimizer.noise_key.numpy()
    other = x + np.float32(0.01) * (np.arange(len(x)) == 3)[:, None]
    given = {"data": (other, y)} if change == "data" else {}
    if change == "weights":
        begin = seeding.begin

        def changed(driver):
            driver.model.layers[2].kernel.assign(0.5 * driver.model.layers[2].kernel)
            return begin(driver)

        monkeypatch.setattr(seeding, "begin", changed)
        with pytest.raises(ValueError, match="was to repeat"):
            fit(second, path, seed=5)
        assert not second.run.ledger.releases
        return
    fit(second, path, seed=6 if change == "seed" else 5, **given)
    assert [entry.count for entry in second.run.ledger.entries if entry.kind == "moments"] == [1, 1, 1, 1]
    assert not np.array_equal(second.optimizer.noise_key.numpy(), key)


def points():
    keras.utils.set_random_seed(0)
    model = diffusion.DiffusionModel(toy.point_network(width=16, depth=1), noise_multiplicity=2, average=0.5)
    model.compile(keras.optimizers.Adam(0.01))
    return model


@pytest.mark.slow
@pytest.mark.backend_free
def test_diffusion_goes_on(path):
    x = blobs(features=2)[0]
    arguments = {k: v for k, v in FIT.items() if k != "noise_multiplier"} | {"noise_multiplier": 1.0, "seed": 5}

    def trained(path=None, stop=None):
        model = points()
        keep = callbacks.Checkpoint(path, 3) if path else None
        if stop:
            keep.close = lambda model, whole: lost(keep, model)
        given = [c for c in (keep, At(stop, kill) if stop else None) if c]
        try:
            model.fit(x, callbacks=given, **arguments)
        except Killed:
            pass
        return model

    whole = trained()
    trained(path, stop=7)
    resumed = trained(path)
    for a, b in ((whole, resumed), (whole.averaged_network(), resumed.averaged_network())):
        assert all(np.array_equal(p, q) for p, q in zip(weights(a), weights(b), strict=True))


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "c.h5"}, "a .weights.h5 or a .keras file"),
        ({"path": "c.keras", "every": 0}, "`every` must be a positive integer"),
        ({"path": "c.keras", "every": "batch"}, "`every` must be"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        callbacks.Checkpoint(**arguments)


@pytest.mark.backend_free
def test_the_folder_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder of the checkpoint does not exist"):
        fit(mlp(), tmp_path / "none" / "c.keras")


@pytest.mark.backend_free
def test_one_checkpoint_is_enough(tmp_path):
    two = [callbacks.Checkpoint(tmp_path / name) for name in ("a.keras", "b.keras")]
    with pytest.raises(ValueError, match="goes on from one checkpoint. Received: 2"):
        mlp().fit(*blobs(), callbacks=two, **FIT)


@pytest.mark.backend_free
def test_models_of_keras_are_not_for_it(tmp_path):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="the `fit` of a private model"):
        model.fit(*blobs(), verbose=0, callbacks=[callbacks.Checkpoint(tmp_path / "c.keras")])


@pytest.mark.slow
@pytest.mark.backend_free
def test_leftovers_of_a_killed_save_are_swept(path):
    leftover = path.with_name(f".~1-x~{path.name}")
    leftover.write_bytes(b"half")
    fit(mlp(), path)
    assert not leftover.exists()


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_checkpoint_that_cannot_be_written_stops_training_and_charges_what_was_made(path, monkeypatch):
    model, saves = mlp(), []

    def full(self, store):
        saves.append(1)
        if len(saves) > 1:
            raise OSError(28, "No space left on device")
        store["lipdp"] = self.run.to_array()

    monkeypatch.setattr(lipdp.DP_Sequential, "save_own_variables", full)
    with pytest.raises(OSError, match="No space"):
        fit(model, path, every=2)
    assert model.privacy.updates == 2 == int(model.optimizer.iterations.numpy())
    monkeypatch.undo()
    other = mlp()
    fit(other, path)
    assert other.privacy.updates == 12 and int(other.optimizer.iterations.numpy()) == 10


@pytest.mark.slow
@pytest.mark.backend_free
def test_losses_keep_out_of_the_file(path):
    """The history of private losses is nobody's business but the caller's."""
    fit(mlp(), path, training_metrics=False)
    assert "loss" not in pathlib.Path(f"{path}.journal").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::UserWarning:keras.*")
@pytest.mark.parametrize(("columns", "classes"), [(8, 4), pytest.param(9, 3, marks=pytest.mark.slow)])
def test_a_checkpoint_of_another_network_is_refused_in_words(tmp_path, columns, classes):
    path = tmp_path / "c.weights.h5"
    fit(plain(), path, stop=2)
    other = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((columns,)), keras.layers.Dense(classes)]))
    other.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = blobs()
    with pytest.raises(ValueError, match="does not fit the model.*same columns and classes") as caught:
        fit(other, path, data=(np.resize(x, (len(x), columns)), y))
    assert len(str(caught.value)) < 600 and not other.run.ledger.releases
