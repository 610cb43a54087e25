"""What processes that train together have to agree on, before and while they release anything."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import backend
from lipdp.sampling import columns, randomness
from lipdp.training.callbacks import acts_on_updates


def agree(driver: Any) -> None:
    """Refuses to train when another process has another plan, ledger, model or other data.

    **Guarantee.** Conditions: every process calls `fit`. Bound: plan, settings, ledger, names and shapes of weights,
    all rows of arrays and the sample of a source, shapes of validation arrays, and the versions of what draws are the
    same in all of them. What `seeding.begin` compares besides: configuration and weights. Not covered: other rows of
    sources, and what configurations do not tell. A process reads the rows of its own devices only, so those in another
    process stand in for those of the same number; a source in another order would have a row fed by two processes.
    """
    if backend.processes()[1] == 1:
        return
    model, request = driver.model, driver.request
    leaves = tree.flatten((driver.x, driver.y))
    parts = {
        "the plan": json.dumps([driver.plan.to_dict(), driver.details(), driver.updates], sort_keys=True),
        "what `fit` was asked for": json.dumps(
            [request.to_dict(), request.updates_per_epoch], sort_keys=True, default=repr
        ),
        "the seed": repr(request.seed),
        "the settings": repr(
            [
                request.noise_generator,
                driver.microbatch,
                request.training_metrics,
                driver.noise_std,
                backend.row_shards()[0],
            ]
        ),
        "the ledger": driver.run.ledger.to_json(),
        "the model": repr([(v.name, v.shape) for v in model.variables]),
        "the size of the data": repr([(leaf.shape, str(leaf.dtype)) for leaf in leaves]),
        # All rows of arrays: in another order a row would be fed by two processes to one update.
        "the data": columns.digest((driver.x, driver.y)).hex(),
        "the validation data": repr(_shapes(driver.validation_data)),
        # The numbers that numpy draws rows with are those of its version.
        "the versions of numpy and keras": repr([np.__version__, keras.version()]),
    }
    compare(parts)


def _shapes(data: Any) -> Any:
    """Returns what says how many steps a validation has, as far as that is known."""
    return tree.map_structure(np.shape, data) if isinstance(data, (tuple, list)) else type(data).__name__


def compare(parts: dict[str, str]) -> None:
    """Refuses to go on when another process has other texts; all processes call this."""
    if backend.processes()[1] == 1:
        return
    digests = b"".join(randomness.derive(b"", "agree", part) for part in parts.values())
    found = backend.of_each(digests)
    other = [i for i, digest in enumerate(found) if digest != found[0]]
    names = [name for k, name in enumerate(parts) if len({digest[32 * k : 32 * (k + 1)] for digest in found}) > 1]
    if other:
        raise ValueError(
            f"Processes that train together must agree. Received: {', '.join(names)}, not the same in process 0 and "
            f"process {', '.join(map(str, other))}. Call the same `fit` on the same model in all of them, each with "
            "all of the data and, where it goes on from a file, with the same file."
        )


class Agreement(keras.callbacks.Callback):
    """Compares the ledgers of all processes at the end of each epoch, and ends training in all when one ends it.

    One that a callback stops would leave the others to wait for it. Comes behind the user's callbacks.
    """

    def __init__(self, run: Any, callbacks: Iterable[Any]):
        super().__init__()
        self._run = run
        self._within_epochs = any(map(acts_on_updates, callbacks))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._within_epochs = _in_any(self._within_epochs)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Keras ends such an epoch after its first update, also where no callback acts on updates.
        self.model.stop_training = _in_any(self.model.stop_training)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._within_epochs:
            self.model.stop_training = _in_any(self.model.stop_training)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        compare({"the ledger": self._run.ledger.to_json()})
        self.model.stop_training = _in_any(self.model.stop_training)


def _in_any(here: bool) -> bool:
    """Returns whether something holds in at least one process; all processes call this."""
    return b"\x01" in backend.of_each(b"\x01" if here else b"\x00")


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Says in an error that another process has stopped, where that is what stopped this one."""
    try:
        with backend.own_rows():
            yield
    except Exception as error:
        if backend.processes()[1] > 1 and type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
            raise RuntimeError(
                "A process that trains together with this one has stopped, or cannot be reached; nothing more is "
                "released. What was charged stays in the ledger. Start all processes again; with a "
                f"lipdp.callbacks.Checkpoint they go on. The devices said: {error}"
            ) from error
        raise
