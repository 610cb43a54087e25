"""The callback that charges each update to the ledger before it is executed."""

from collections.abc import Callable
from typing import Any

import keras


class Charge(keras.callbacks.Callback):
    """Charges each update before it is executed, and stops after the last one allowed.

    Args:
        run: The model's `Run`.
        updates: How many updates are allowed.
        charge: Function of a number of updates that charges them, or None if each update charges itself.
        training_metrics: Whether metrics on the training data are logged.
    """

    def __init__(self, run: Any, updates: int, charge: Callable[[int], None] | None, training_metrics: bool):
        super().__init__()
        self._run, self._left, self._charge, self._training_metrics = run, updates, charge, training_metrics

    def on_train_batch_begin(self, batch: Any, logs: dict[str, Any] | None = None) -> None:
        count = self.model.steps_per_execution
        if count > self._left:
            raise RuntimeError("The privacy budget of this run is spent; no update was executed.")
        self._left -= count
        if self._charge is not None:
            self._charge(count)

    def on_train_batch_end(self, batch: Any, logs: dict[str, Any] | None = None) -> None:
        self._run.executing = True
        if logs is not None and "updates" in logs:
            logs["updates"] = self._run.ledger.updates
        if not self._left:
            self.model.stop_training = True
        if self._training_metrics and not self._run.ledger.logged:
            self._run.ledger.logged = tuple(logs or ())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs.pop("updates", None)
            logs["epsilon"] = self._run.privacy().spent()
