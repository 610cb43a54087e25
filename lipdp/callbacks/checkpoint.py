"""A file from which training goes on, whatever stopped it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import warnings
from typing import Any

import keras

from lipdp import backend, checks
from lipdp.privacy import files, journal


class Checkpoint(keras.callbacks.Callback):
    """Keeps a file from which the same `fit` goes on after the process was stopped, by whatever.

    Call the same `fit` again, on a model that was built and compiled alike: it loads the file first, and makes the
    updates that are left of the plan. When none is left it says so and returns. The file stays when training ends.

    Args:
        path: file that ends in `.weights.h5` or `.keras`. Beside it come `<path>.journal`, which belongs to it, and
            `<path>.lock`.
        every: `"epoch"`, or a number of updates. The file is also written when training begins, ends, or is stopped by
            an error between two updates. Of several processes that train together the first one writes; all of them
            read it when training goes on.

    Raises:
        ValueError: an argument is wrong. By `fit`: the file is corrupt, its journal is missing, or both are of another
            run than the model.
        BlockingIOError: by `fit`, when another process trains with this file.

    **Guarantee.**
        Conditions: the file is loaded by `fit`, together with its journal.
        Bound: after a crash at any time the ledger holds everything that was released, also what is lost because it
        came after the file was written. It may hold about a second's worth of updates more, which were reserved. All
        of them count as updates of the plan, so a budget holds. A `fit` with a fixed seed repeats what was lost bit by
        bit and pays nothing for it; when data, seed, network, settings, the number of devices, or the code of losses
        and layers differ, it pays. Under DPIS with a seed the file is written at the ends of epochs only, because the
        norms that it remembers are private. Noisy sums of DPIS that were lost are made and paid again; when they leave
        too little of the budget, training ends with a warning.
        Without a seed no file tells whether the rows still have their order. Where `sampling` goes through epochs, the
        rest of the epoch within which the file was written is left out, and the next epoch begins.
        Not covered: older copies of the file; rows of a source in another order when such a `fit` goes on within an
        epoch; a `fit` with a fixed seed whose other callbacks change the training in another way the second time.

    Example:
        >>> import os, tempfile
        >>> import numpy as np
        >>> import lipdp
        >>> from lipdp import callbacks, layers, losses
        >>> def trained(path):
        ...     model = lipdp.DP_Sequential([layers.BoundedInput((4,)), layers.SpectralDense(3)])
        ...     model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
        ...     x, y = np.zeros((64, 4), "float32"), np.zeros(64, int)
        ...     model.fit(x, y, batch_size=16, epsilon=2.0, delta=1e-3, verbose=0, callbacks=callbacks.Checkpoint(path))
        ...     return model.privacy.updates
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [trained(os.path.join(folder, "run.weights.h5")) for _ in range(2)]
        [4, 4]
    """

    def __init__(self, path: str | os.PathLike, every: str | int = "epoch"):
        super().__init__()
        self.path = pathlib.Path(path)
        if not self.path.name.endswith((".weights.h5", ".keras")):
            raise ValueError(
                f"A checkpoint is a .weights.h5 or a .keras file. Received: path={str(path)!r}. Pass such a name."
            )
        self.every = every if every == "epoch" else checks.integer("every", every, minimum=1)
        self.journal_path = self.path.with_name(self.path.name + ".journal")
        # What the journal said when the file was loaded; None when nothing was.
        self.reserved: journal.Reserved | None = None
        self._stack = contextlib.ExitStack()
        self._offset: int | None = None
        self._saved = 0

    def open(self, model: Any) -> None:
        """Locks the file, and loads it into a model that is behind it; `fit` calls this before it plans."""
        run = model.run
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"The folder of the checkpoint does not exist. Received: path={str(self.path)!r}. Create it first."
            )
        # The same object in two threads: who is refused leaves the lock, and what is known, to the other.
        with contextlib.ExitStack() as opening:
            if self._writes:
                self._lock(opening, run.ledger.seeded)
            self.reserved, self._offset, self._saved = None, None, 0
            self._load(model)
            self._stack = opening.pop_all()

    def _load(self, model: Any) -> None:
        """Loads the file into a model that is behind it."""
        run = model.run
        if not self.journal_path.exists() and not self.path.exists():
            return
        self._check_journal()
        reserved = journal.read(self.journal_path)
        if not self.path.exists() and not reserved.ledger.releases:
            return  # stopped before the first checkpoint was there
        self._check_file(reserved)
        if run.ledger.releases and run.ledger == reserved.ledger and run.ledger.origins == reserved.ledger.origins:
            return  # the model that wrote the file goes on
        try:
            model.load_weights(self.path)
        except ValueError as error:
            # Keras lists all values of the variables that do not fit, and no way out.
            if "could not be loaded" not in str(error):
                raise
            raise ValueError(
                f"The checkpoint does not fit the model: other layers, sizes or another optimizer wrote it. Received: "
                f"{self.path} for model '{model.name}'. Build and compile the model as before, on data with the same "
                "columns and classes, or train with a new path: what was released before adds up outside of the new "
                "ledger."
            ) from error
        if not reserved.ledger.covers(run.ledger):
            raise ValueError(
                f"Checkpoint and journal are of different runs. Received: {self.path} with {run.ledger!r} and its "
                f"journal with {reserved.ledger!r}. Keep the two files together, and train a new model."
            )
        self.reserved = reserved

    @property
    def _writes(self) -> bool:
        """Whether this process writes: of those that train together the first, for all of them."""
        return backend.processes()[0] == 0

    def _lock(self, stack: contextlib.ExitStack, private: bool) -> None:
        try:
            stack.enter_context(files.locked(self.path.with_name(self.path.name + ".lock"), private))
        except BlockingIOError as error:
            raise BlockingIOError(
                f"Another `fit` trains with the checkpoint {self.path}. Wait for it, or pass another path."
            ) from error
        for path in (self.path, self.journal_path):
            files.sweep(path.parent, path.name)

    def _check_journal(self) -> None:
        if not self.journal_path.exists():
            raise ValueError(
                f"The journal of the checkpoint is missing, so what was released after it is not known. Received: "
                f"{self.path} without {self.journal_path.name}. Put it back; or load the file by hand with "
                "`load_weights`, and train with a new path: what was lost is then not in the ledger."
            )

    def _check_file(self, reserved: journal.Reserved) -> None:
        if not self.path.exists():
            raise ValueError(
                "The checkpoint of this journal is missing, or training was stopped before there was one. Received: "
                f"{self.journal_path} without {self.path.name}. Put it back; or remove the journal to start anew: what "
                f"it lists was released ({reserved.ledger!r}) and adds up outside of the new ledger."
            )

    def settle(self, model: Any, replay: str | None, private: bool) -> None:
        """Charges what was released after the file was written, unless this `fit` repeats it.

        Args:
            model: the model that `open` has seen.
            replay: digest of what the releases of this `fit` follow from, or None when it draws new ones.
            private: whether the journal is to be read by its owner only.
        """
        run, reserved, least = model.run, self.reserved, None
        if reserved is not None and replay is not None and reserved.replay == replay and _continues_noise(model):
            least = reserved.ledger
        elif reserved is not None:
            self._warn_of_lost(reserved.ledger.updates - run.ledger.updates)
            run.ledger.hold(reserved.ledger)
            run.ledger.origins = reserved.ledger.origins
        run.journal = journal.Journal(self.journal_path, replay, private, least, self._writes)

    def _warn_of_lost(self, updates: int) -> None:
        if updates:
            warnings.warn(
                f"Training goes on from an earlier state. Received: {self.path}, and up to {updates} updates that were "
                "made since are lost. They stay charged, and a budget has as many fewer. A `fit` with a seed repeats "
                "such updates and does not pay again.",
                stacklevel=checks.users_line(),
            )

    def close(self, model: Any, whole: bool) -> None:
        """Saves what an error has interrupted, if it did so between two updates, and ends the reservations."""
        run = model.run
        try:
            if run.journal is not None and self._offset is not None:
                # What cannot be written now leaves more in the journal than was released, never less.
                with contextlib.suppress(OSError):
                    if not whole and run.ledger.updates - _iterations(model) == self._offset:
                        self._save(model)
                    run.journal.settle(run.ledger)
        finally:
            run.journal = None
            self._stack.close()

    def _save(self, model: Any, always: bool = False) -> None:
        if not always and not model.run.driver.repeats_from_here():
            return
        if model.optimizer.not_finite() is not None:
            return  # the file keeps the last weights from which training can go on
        save = model.save if self.path.suffix == ".keras" else model.save_weights
        if self._writes:
            save(self.path, overwrite=True)
        self._saved = model.run.ledger.updates

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        if getattr(getattr(model, "run", None), "journal", None) is None:
            raise ValueError("A `Checkpoint` works in the `fit` of a private model. Received: another model.")
        self.begin(model)

    def begin(self, model: Any) -> None:
        """Writes the file and its journal as the model is now; `fit` calls this before the first release."""
        # A journal without a file is taken back when it is empty; a file without a journal is not.
        steps = [lambda: model.run.journal.settle(model.run.ledger), lambda: self._save(model, always=True)]
        for step in reversed(steps) if self.path.exists() else steps:
            step()
        self._offset = model.run.ledger.updates - _iterations(model)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # Not `self.model`, which on JAX copies the whole state.
        if self.every != "epoch" and self._model.run.ledger.updates - self._saved >= self.every:
            self._save(self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.every == "epoch":
            self._save(self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        # Keras puts its averages in the place of the weights after the last epoch.
        if self._model.run.ledger.updates > self._saved or getattr(self.model.optimizer, "use_ema", False):
            self._save(self.model)


def _continues_noise(model) -> bool:
    """Whether `fit` takes up the stream of noise of the file: elsewhere it begins a new one."""
    return model.run.ledger.updates == _iterations(model)


def _iterations(model) -> int:
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))
