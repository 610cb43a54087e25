"""The callback that charges each update to the ledger before it is executed."""

import keras


class Charge(keras.callbacks.Callback):
    """Charges each update before it is executed, and stops after the last one allowed."""

    def __init__(self, run, release, updates: int):
        super().__init__()
        self._run, self._release, self._left = run, release, updates

    def on_train_batch_begin(self, batch, logs=None):
        count = self.model.steps_per_execution
        if count > self._left:
            raise RuntimeError("The privacy budget of this run is spent; no update was executed.")
        self._left -= count
        if self._release is not None:
            self._run.charge(self._release, count)

    def on_train_batch_end(self, batch, logs=None):
        self._run.executing = True
        if logs is not None and "updates" in logs:
            logs["updates"] = self._run.ledger.updates
        if not self._left:
            self.model.stop_training = True
        if self._run.settings.training_metrics and not self._run.logged:
            self._run.logged = tuple(logs or ())

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs.pop("updates", None)
            logs["epsilon"] = self._run.privacy().spent()
