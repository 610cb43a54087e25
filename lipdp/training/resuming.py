"""A `fit` that goes on from a checkpoint: what it loads, what it charges, where it begins."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import keras

from lipdp import backend
from lipdp.callbacks import Checkpoint
from lipdp.sampling import columns, randomness
from lipdp.training import processes, seeding
from lipdp.training.request import FitRequest


@contextlib.contextmanager
def checkpointed(model: keras.Model, callbacks: Any) -> Iterator[Checkpoint | None]:
    """Loads the checkpoint among the callbacks of `fit`, if there is one, and leaves it in order."""
    given = [] if callbacks is None else callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    found = [callback for callback in given if isinstance(callback, Checkpoint)]
    if len(found) > 1:
        raise ValueError(f"`fit` goes on from one checkpoint. Received: {len(found)} `Checkpoint`s. Pass one.")
    if model.run.armed:  # a `fit` inside of another one is refused later
        yield None
        return
    if not backend.left_out():  # processes that train apart are refused later
        # Nobody reads before the first process has come here: it may still write what an earlier `fit` has left.
        processes.compare({"the checkpoint": repr(found and found[0].every)})
    if not found:
        yield None
        return
    whole = False
    found[0].open(model)
    try:
        yield found[0]
        whole = True
    finally:
        found[0].close(model, whole)


def resumed(
    model: keras.Model, request: FitRequest, x: Any, y: Any, checkpoint: Checkpoint | None
) -> tuple[FitRequest, bool]:
    """Charges what was lost, and returns the request from where it goes on, and whether nothing is left of it."""
    if checkpoint is None:
        return request, False
    run, seeded = model.run, request.seed is not None
    checkpoint.settle(model, _replay(model, request, x, y) if seeded else None, private=seeded or run.ledger.seeded)
    if checkpoint.reserved is None or not request.continues(run.request) or run.plan is None:
        return request, False
    if run.updates_left < 1:
        # A longer one asks for more, which a budget does not give.
        return request, request.epsilon is not None or request.updates <= run.plan.updates
    epochs = (run.ledger.updates - run.plan_start) // request.updates_per_epoch
    first = min(request.initial_epoch + epochs, request.epochs - 1)
    return dataclasses.replace(request, initial_epoch=first), False


def order_of_rows(driver: Any) -> bytes | None:
    """Returns a digest of the rows in their order, where an epoch goes by it, and of whose they are.

    None where nobody reads them all, and no ids are known.
    """
    scheme, run, persons = driver.plan.sampling, driver.run, driver.request.persons
    read = not columns.columns_of((driver.x, driver.y))
    if not scheme.by_epoch or not (read or persons):
        return None
    order = randomness.digest((driver.x, driver.y)) if read else b""
    order += bytes.fromhex(persons or "")
    begun = driver.continued and run.ledger.position(driver.release()) % scheme.updates_per_epoch
    if begun and run.order not in (None, order):
        raise ValueError(
            "An epoch was begun, and who is left for the rest of it goes by the places of the rows, or the ids of "
            "persons. Received: other rows or ids, or the same in another order. Pass the data as before; another "
            "`batch_size` begins a new epoch, which costs as much as a whole one."
        )
    return order


def forgone(driver: Any, left: int) -> int:
    """Returns how many updates of a begun epoch cannot be made, as nobody knows any more which rows are left for them.

    Their epoch is charged in full already, so counting them as made costs nothing.
    """
    scheme, run = driver.plan.sampling, driver.run
    forgotten = scheme.scheme.allocates and run.epoch_key is None
    # Rows in another order would have some of them twice in this epoch, which is charged for once.
    moved = driver.order is not None and run.order is None
    if not driver.continued or not (forgotten or moved):
        return 0
    rest = min(-run.ledger.position(driver.release()) % scheme.updates_per_epoch, left)
    if rest == left and left:
        raise AtItsEnd(
            "Nothing tells which rows are left for the rest of the last epoch, and no epoch comes after it. Received: "
            f"a plan of which {left} updates are left. Training is at its end; to make all updates of a plan, save at "
            "the end of an epoch, or pass a seed."
        )
    return rest


def after_forgone(request: FitRequest, forgone: int, run: Any) -> FitRequest:
    """Returns a request that begins in the epoch behind the updates that are left out."""
    made, each = run.ledger.updates - run.plan_start, request.updates_per_epoch
    epochs = (made + forgone) // each - made // each
    return dataclasses.replace(request, initial_epoch=min(request.initial_epoch + epochs, request.epochs - 1))


class AtItsEnd(ValueError):
    """Of a plan only the rest of its last epoch is left, which cannot be made."""


def notice_of_forgone(updates: int) -> str:
    """Returns what `fit` says of updates that it leaves out."""
    return (
        f"An epoch was begun, and nothing tells which rows are left for the rest of it: {updates} updates are left "
        "out. Their epoch is charged as a whole; the next one begins now. To make all of them, save at the ends of "
        "epochs, or pass a seed."
    )


class Finished:
    """Carries out a `fit` of which nothing is left."""

    def __init__(self, model: keras.Model):
        self._model = model

    def fit(self, *_: Any, **__: Any) -> keras.callbacks.History:
        history = keras.callbacks.History()
        history.set_model(self._model)
        history.on_train_begin()
        self._model.history = history
        return history


def _replay(model, request: FitRequest, x: Any, y: Any) -> str | None:
    """Returns a digest of all that the updates of a `fit` with a seed follow from; None where they are not repeated.

    It stands in files that are as secret as the seed.
    """
    importance = model.run.importance
    if importance is not None and _within_epoch(importance):
        return None
    if columns.columns_of((x, y)):
        return None  # that a source still has the same rows is not known, and other ones under the same noise cost more
    facts = [
        request.to_dict(),
        request.updates_per_epoch,
        request.microbatch_size,
        keras.backend.backend(),
        keras.version(),
        seeding.described(model),
        backend.row_shards()[0],  # sums in another order are other sums, and differences grow with each update
        model.run.bodies,
        backend.compiles(model),
        *seeding.everywhere(),
    ]
    text = json.dumps(facts, sort_keys=True, default=repr)
    return randomness.from_seed(request.seed, "replay", text, randomness.digest((x, y))).hex()


def _within_epoch(importance: dict) -> bool:
    """Whether DPIS has stopped where its norms, which no file holds, cannot be computed again as they were."""
    state = importance["state"]
    return 0 < state["epoch"] and state["updates"] < importance["arguments"]["updates_per_epoch"]
