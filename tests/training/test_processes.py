"""What processes that train together compare; `tests/devices` starts real ones."""

import contextlib

import keras
import numpy as np
import pytest

import lipdp
from lipdp import backend, callbacks
from lipdp.privacy import journal
from lipdp.training.shares import shared_out
from tests.helpers.models import blobs, mlp, same, state

pytestmark = pytest.mark.backend_free
FIT = {"batch_size": 40, "steps_per_epoch": 2, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}


@pytest.fixture
def two(monkeypatch):
    """This process is the first of two; the other one has the digests that a function returns."""

    def other(digests):
        monkeypatch.setattr(backend, "processes", lambda: (0, 2))
        monkeypatch.setattr(backend, "of_each", lambda digest: [digest, digests(digest)])

    return other


PARTS = ["the plan", "what `fit`", "the seed", "the settings", "the ledger", "the model", "the size", "the data"]
PARTS += ["the validation data", "the versions of numpy"]


@pytest.mark.parametrize(("place", "name"), list(enumerate(PARTS)))
def test_what_differs_is_named_and_nothing_is_charged(two, place, name):
    two(lambda d: d[: 32 * place] + bytes(32) + d[32 * place + 32 :] if len(d) == 32 * len(PARTS) else d)
    model = mlp()
    before = state(model)
    with pytest.raises(ValueError, match=f"must agree. Received: {name}.*, not the same in process 0 and process 1"):
        model.fit(*blobs(), **FIT)
    assert same(before, state(model))


class Enough(Exception):
    pass


def enough(logs=None):
    raise Enough


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 1.1},
        pytest.param({"epochs": 2}, marks=pytest.mark.slow),
        pytest.param({"seed": 3}, marks=pytest.mark.slow),
        pytest.param({"data": lambda x, y: (x[:-1], y[:-1])}, marks=pytest.mark.slow),
        {"data": lambda x, y: (x + np.float32(1e-3), y)},
        pytest.param({"data": lambda x, y: (x, y[::-1])}, marks=pytest.mark.slow),
        # Neighbors somewhere in between: one of them could be fed by two processes.
        {"data": lambda x, y: (np.concatenate([x[:1], x[2:0:-1], x[3:]]), np.concatenate([y[:1], y[2:0:-1], y[3:]]))},
        pytest.param({"model": lambda: mlp(optimizer="adam")}, marks=pytest.mark.slow),
        {"model": lambda: mlp(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))},
        pytest.param({"noise_generator": "chacha20"}, marks=pytest.mark.slow),
        {"microbatch_size": 8},
        pytest.param({"training_metrics": False}, marks=pytest.mark.slow),
        {"sampling": "fixed_size"},
        {"epochs": 2, "steps_per_epoch": 1},
        pytest.param({"validation_data": blobs()}, marks=pytest.mark.slow),
        pytest.param({"validation_freq": 2}, marks=pytest.mark.slow),
    ],
)
def test_each_change_shows_in_the_digests(two, change):
    seen, starts = [], []
    two(lambda digest: seen.append(digest) or digest)
    for given in ({}, {}, change):
        given = dict(given)
        starts.append(len(seen))
        model, data = given.pop("model", mlp)(), given.pop("data", lambda x, y: (x, y))(*blobs())
        with contextlib.suppress(Enough):
            model.fit(*data, callbacks=[keras.callbacks.LambdaCallback(on_train_begin=enough)], **FIT | given)
    # What is compared before the first update.
    first, second, third = (b"".join(seen[start : start + 4]) for start in starts)
    assert first == second != third


@pytest.mark.parametrize(("place", "name"), list(enumerate(["the network", "the weights"])))
def test_another_network_is_named(two, place, name):
    two(lambda d: d[: 32 * place] + bytes(32) + d[32 * place + 32 :] if len(d) == 2 * 32 else d)
    with pytest.raises(ValueError, match=f"must agree. Received: {name}, not the same"):
        mlp().fit(*blobs(), **FIT)


@pytest.mark.slow
def test_ledgers_are_compared_at_the_end_of_each_epoch(two):
    calls = []

    def other(digest):
        calls.extend([digest] if len(digest) > 1 else [])
        return digest if len(calls) < 6 else bytes(32) + digest[32:]

    two(other)
    model = mlp()
    with pytest.raises(ValueError, match="the ledger, not the same"):
        model.fit(*blobs(), epochs=3, **FIT)
    assert model.privacy.updates == 4


@pytest.mark.slow
@pytest.mark.parametrize(("nth", "updates"), [(1, 1), (2, 2), (3, 3), (4, 4)])
def test_what_a_callback_stops_in_another_process_ends_here(two, nth, updates):
    """The other process would not come to the next update, and this one would wait for it."""
    shared = []

    def other(digest):
        if len(digest) > 1:
            return digest
        shared.append(digest)
        # After the first word, of what callbacks do; each epoch has two updates between words of its own.
        return b"\x01" if len(shared) == 1 or len(shared) > nth + 1 + 2 * (nth > 2) else b"\x00"

    two(other)
    model = mlp()
    model.fit(*blobs(), epochs=3, **FIT)
    assert model.privacy.updates == updates


@pytest.mark.slow
@pytest.mark.parametrize(("word", "updates"), [(2, 1), (3, 2), (4, 3), (5, 4)])
def test_what_a_callback_stops_around_an_epoch_ends_here(two, word, updates):
    """At its beginning as well: Keras makes one more update then, and nobody acts on updates here."""
    shared = []

    def other(digest):
        shared.extend([digest] if len(digest) == 1 else [])
        return b"\x01" if len(digest) == 1 and len(shared) == word else digest

    two(other)
    model = mlp()
    model.fit(*blobs(), epochs=3, **FIT)
    assert model.privacy.updates == updates


@pytest.mark.slow
def test_a_callback_that_follows_updates_is_known_to_all_processes(two):
    said = []
    two(lambda digest: said.append(digest) or digest)
    for follows in (False, True):
        said.clear()
        hook = {"on_train_batch_end" if follows else "on_epoch_end": lambda *_, **__: None}
        mlp().fit(*blobs(), epochs=1, callbacks=[keras.callbacks.LambdaCallback(**hook)], **FIT)
        words = [digest for digest in said if len(digest) == 1]
        # The beginning of the epoch, two updates and its end; the plan itself stops at its last update.
        within = [b"\x00", b"\x01"] if follows else []
        assert words == [b"\x01" if follows else b"\x00", b"\x00", *within, b"\x01"]


def test_the_secret_is_that_of_the_first_process(monkeypatch):
    monkeypatch.setattr(backend, "of_first", lambda secret: bytes(32))
    models = [mlp(), mlp()]
    for model in models:
        model.fit(*blobs(), **FIT)
    assert np.array_equal(models[0].optimizer.noise_key, models[1].optimizer.noise_key)


@pytest.mark.slow
def test_a_process_goes_on_beside_the_file_that_the_first_one_has_written(two, tmp_path, monkeypatch):
    two(lambda digest: digest)
    monkeypatch.setattr(backend, "of_first", lambda own: bytes(range(len(own))))
    first, other = mlp(), mlp()
    for rank, model in ((1, other), (0, first), (1, other)):  # who does not write begins before there is a file
        monkeypatch.setattr(backend, "processes", lambda rank=rank: (rank, 2))
        model.run.keys.clear()  # all secrets are one here
        model.fit(*blobs(), callbacks=callbacks.Checkpoint(tmp_path / "c.weights.h5"), **FIT)
    assert other.privacy.updates == 4
    assert other.run.ledger.origins == first.run.ledger.origins


@pytest.mark.slow
def test_a_checkpoint_is_read_when_the_first_process_has_written_it(two, tmp_path, monkeypatch):
    """That one ends its earlier `fit` later, and until then its journal may list more than was released."""
    monkeypatch.setattr(backend, "of_first", lambda own: bytes(range(len(own))))
    path, first, other = tmp_path / "c.weights.h5", mlp(), mlp()
    two(lambda digest: digest)
    for rank, model in ((1, other), (0, first)):
        monkeypatch.setattr(backend, "processes", lambda rank=rank: (rank, 2))
        model.fit(*blobs(), callbacks=callbacks.Checkpoint(path), **FIT)
    reserved = first.run.ledger.copy()
    reserved.charge(first.run.plan.release(sensitivity=0.1, strategy="clipless", noise_allocation="global"))
    written = callbacks.Checkpoint(path).journal_path
    ended = written.read_bytes()
    journal.Journal(written).settle(reserved)

    def meets(digest):
        written.write_bytes(ended)
        return digest

    two(meets)
    monkeypatch.setattr(backend, "processes", lambda: (1, 2))
    other.run.keys.clear()  # all secrets are one here
    other.fit(*blobs(), callbacks=callbacks.Checkpoint(path), **FIT)
    assert other.privacy.updates == 4


@pytest.mark.slow
@pytest.mark.parametrize("every", ["epoch", 1])
def test_all_processes_have_the_same_checkpoint_or_none(two, tmp_path, every):
    """One that the first process lacks would never be written."""
    said = []
    two(lambda digest: said.append(digest) or digest)
    mlp().fit(*blobs(), **FIT)
    none = said[0]
    two(lambda digest: none)
    model = mlp()
    with pytest.raises(ValueError, match="must agree. Received: the checkpoint, not the same"):
        model.fit(*blobs(), callbacks=callbacks.Checkpoint(tmp_path / "c.weights.h5", every), **FIT)
    assert not list(tmp_path.iterdir()) and not model.run.ledger.releases


@pytest.mark.parametrize(("place", "name"), [(0, "the data"), (1, "the earlier")])
def test_with_a_seed_all_rows_are_compared_before_there_is_a_key(two, place, name):
    """Keys that differ would be shown by an error of JAX, and one of them is that of the run that follows."""

    calls = []

    def other(digest):
        calls.append(digest)
        if len(calls) != 5:  # the checkpoint, the plan, validation, the network, and then this
            return digest
        return digest[: 32 * place] + bytes(32) + digest[32 * place + 32 :]

    two(other)
    model = mlp()
    with pytest.raises(ValueError, match=f"must agree. Received: {name}.*, not the same"):
        model.fit(*blobs(), seed=3, **FIT)
    assert not model.run.ledger.releases and not np.asarray(model.optimizer.noise_key).any()


@pytest.mark.parametrize("weights", [(), (np.linspace(0.5, 1.0, 30).astype("float32"),)])
@pytest.mark.parametrize("held", [[(0, 1, 2, 3), (4, 5, 6, 7)], [(0,), (1, 2, 3, 4, 5, 6, 7)]])
def test_validation_rows_are_shared_out(monkeypatch, weights, held):
    x, y = np.arange(60.0).reshape(30, 2), np.arange(30)
    parts = []
    for shares in held:
        monkeypatch.setattr(backend, "row_shards", lambda shares=shares: (8, shares))
        parts.append(shared_out((x, y, *weights), 8))
        assert {len(leaf) for leaf in parts[-1]} == {4 * len(shares)}
    rows = {int(n): (tuple(v), w) for part in parts for v, n, w in zip(*part, strict=True) if w}
    assert rows == {i: (tuple(x[i]), weights[0][i] if weights else 1.0) for i in range(30)}


def test_processes_that_share_a_group_of_devices_feed_it_the_same(monkeypatch):
    x, y = np.arange(60.0).reshape(30, 2), np.arange(30)
    monkeypatch.setattr(backend, "row_shards", lambda: (8, tuple(range(8))))
    parts = []
    for index in range(2):
        monkeypatch.setattr(backend, "processes", lambda index=index: (index, 2))
        parts.append(shared_out((x, y), 8))
    for one, other in zip(*parts, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("method", ["predict", "evaluate", "features"])
def test_outputs_of_all_rows_are_refused(two, monkeypatch, method):
    """Keras names a switch, with which JAX fails in a way of its own."""
    model, (x, y) = mlp(), blobs()
    two(lambda digests: digests)
    present = keras.distribution.DataParallel() if keras.backend.backend() == "jax" else object()
    monkeypatch.setattr(keras.distribution, "distribution", lambda: present)

    def refused(*arguments, **more):
        raise ValueError("When using a multi-worker distribution with auto-sharding enabled, the data must be")

    monkeypatch.setattr(keras.Model, method, refused, raising=False)
    with pytest.raises(ValueError, match=f"`{method}` needs the outputs of all rows.*2 processes.*in one process"):
        lipdp.features(model, x) if method == "features" else getattr(model, method)(*[x, y][: 1 + (method[0] == "e")])
