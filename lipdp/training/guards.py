"""Guards of what the user's callbacks may not change while `fit` runs: the noise, and what it was made for."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import _keras, backend
from lipdp.training.callbacks import Charge, acts_on_updates, names_of_own
from lipdp.training.model_checks import refuse_own_steps

# Rows of the training data that are looked at.
_ROWS = 64


class _Guard(keras.callbacks.Callback):
    """Looks before each update, or before the first of an epoch where no callback acts within one."""

    def __init__(self, within_epochs: bool):
        super().__init__()
        self._within_epochs, self._first = within_epochs, True
        self.others: list = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._first = True
        # Those in front may have got such a hook since.
        self._within_epochs = self._within_epochs or any(map(acts_on_updates, self.others))

    def _looks(self) -> bool:
        looks, self._first = self._first or self._within_epochs, False
        return looks


class FreshNoise(_Guard):
    """Refuses an update whose noise would be that of an earlier one, too little of it, or none that is secret.

    Key and size of the noise are variables of the optimizer, which a callback can set back with all others, also to
    what they were in an earlier `fit`. Comes behind the user's callbacks, so that it sees what the next update takes.

    Args:
        run: The model's `Run`.
        within_epochs: Whether a callback acts before each update, and not only before the first of an epoch.

    **Guarantee.** No two updates of the fits of one model object without a seed, and of one `fit` with a seed, begin
    with the same key, none with the key of zeros that files hold, and none with less noise than the plan's. Not
    covered: a callback that changes the state of the optimizer in another thread while an update runs.
    """

    def __init__(self, run: Any, within_epochs: bool = True):
        super().__init__(within_epochs)
        # A seed may repeat a `fit`, with all of its keys.
        self._run, self._seen = run, set() if run.repeatable else run.keys

    def on_train_batch_begin(self, batch: Any, logs: dict[str, Any] | None = None) -> None:
        optimizer: Any = self.model.optimizer
        if not self._looks() or not _keras.variables_are_current(self.model):
            return  # nobody can have set them
        key = backend.value_of(optimizer.noise_key).tobytes()
        if not np.all(backend.value_of(optimizer.noise_std) >= np.asarray(self._run.noise_std)):
            raise RuntimeError(
                "The noise of an update would not be what the plan charges. Received: a state of the optimizer that a "
                "callback has set back while `fit` runs, to less noise. Go back to earlier weights alone, with "
                "`set_weights`; or end this `fit`, load a file, and call `fit` again."
            )
        if key in self._seen or not any(key):
            raise RuntimeError(
                "Noise that was drawn already, or that everybody knows, would be added to other batches. Received: a "
                "state of the optimizer that a callback has set back while `fit` runs. Go back to earlier weights "
                "alone, with `set_weights`; or end this `fit`, load a file, and call `fit` again."
            )
        self._seen.add(key)


class SameData(_Guard):
    """Refuses training data that the user's callbacks change in place while `fit` runs.

    Rows are known by their place: whose they are, what DPIS has seen of them, which weight they have, and who had a
    turn in a pass. After a shuffle of the arrays one row would have the part of another one beside its own.

    Args:
        data: Training data. Columns of a source are left out: a source may draw a row anew each time.
        within_epochs: Whether a callback acts before each update, and not only before the first of an epoch.

    **Guarantee.** Rows at fixed places are those that `fit` was given, before each update. Not covered: changes of
    other rows alone, rows of a source, and other threads.
    """

    def __init__(self, data: Any, within_epochs: bool = False):
        super().__init__(within_epochs)
        arrays = [leaf for leaf in tree.flatten(data) if isinstance(leaf, np.ndarray)]
        places = [np.unique(np.linspace(0, len(array) - 1, _ROWS).round().astype(int)) for array in arrays]
        self._rows = [(array, index, array[index]) for array, index in zip(arrays, places, strict=True)]

    def _check(self) -> None:
        for array, index, rows in self._rows:
            if not np.array_equal(array[index], rows):
                raise ValueError(
                    "Training data must stay as they are while `fit` runs: whose a row is, and what was seen of it, "
                    "goes by its place. Received: arrays that a callback has changed in place. Leave the order of rows "
                    "to `fit`, and put augmentation into the model or the strategy; to go on with other rows, call "
                    "`fit` again: the ledger goes on."
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch)
        self._check()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._check()

    def on_train_batch_begin(self, batch: Any, logs: dict[str, Any] | None = None) -> None:
        if self._looks():
            self._check()


class SameModel(_Guard):
    """Refuses or mends what the user's callbacks change of a model while `fit` runs.

    Which layers train, in which precision, the optimizer, what a step does and how many are made at once are those that
    the noise was made for: other ones are refused.
    Weights may be set; where bounds follow from them, these are made to hold again. Comes behind the user's callbacks.

    Args:
        model: The model, before `fit`.
        charge: The callback in front, which tells when an update has been made.
        bound: Function that makes the bounds hold for the present weights, or refuses them; None where no bound counts.
        within_epochs: Whether a callback acts before each update, and not only before the first of an epoch.
    """

    def __init__(
        self,
        model: keras.Model,
        charge: Charge,
        bound: Callable[[], None] | None = None,
        within_epochs: bool = False,
    ):
        super().__init__(within_epochs)
        self._flags = [(layer, layer.trainable) for layer in _keras.walk(model, include_self=True)]
        self._policies = [(layer, layer.dtype_policy.name) for layer, _ in self._flags]
        self._optimizer, self._bound, self._steps = model.optimizer, bound, model.steps_per_execution
        self._kept: list[np.ndarray] | None = None
        if bound is not None and within_epochs:
            charge.after_update = self._keep

    def _keep(self) -> None:
        """Keeps a copy of what an update has made; nothing where JAX holds it, as then nobody can have changed it."""
        self._kept = None
        if _keras.variables_are_current(self.model):
            self._kept = [np.array(keras.ops.convert_to_numpy(variable)) for variable in self.model.weights]

    def _check(self, *args: Any, **kwargs: Any) -> None:
        if self.model.optimizer is not self._optimizer:
            raise ValueError(
                "The optimizer of a model is fixed when `fit` begins: it adds the noise. Received: another one, by "
                "`compile` or by hand, while `fit` runs. End this `fit`, call `compile` and then `fit` again: the "
                "ledger goes on."
            )
        refuse_own_steps(self.model)
        received = self.model.steps_per_execution
        if received != self._steps:
            self.model.steps_per_execution = self._steps
            raise ValueError(  # the compiled step goes on to make as many, and others would be charged
                "How many updates are made at once is fixed when `fit` begins. Received: another "
                f"`steps_per_execution`, {received!r}, set while it runs; it has been set back to {self._steps}. End "
                "this `fit`, call `compile` with it and then `fit` again: the ledger goes on."
            )
        if other := [layer.name for layer, policy in self._policies if layer.dtype_policy.name != policy]:
            raise ValueError(  # microbatches have one size only where precision was low from the beginning
                "In which precision layers compute is fixed when `fit` begins. Received: another `dtype_policy` for "
                f"{', '.join(map(repr, other))}, set while it runs. End this `fit`, and then call `fit` again: the "
                "ledger goes on."
            )
        changed = [(layer, flag) for layer, flag in self._flags if layer.trainable != flag]
        if not changed:
            return
        for layer, flag in self._flags:  # from the outside in: setting one sets those inside
            layer.trainable = flag
        names = ", ".join(f"'{layer.name}'" for layer, _ in changed)
        raise ValueError(
            f"Which layers train is fixed when `fit` begins. Received: another value of `trainable` for {names}, set "
            "while it runs; it has been set back. End this `fit`, set `trainable`, call `compile` and then `fit` "
            "again: the ledger goes on."
        )

    on_epoch_end = _check

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch)
        self._check()

    def on_train_batch_begin(self, batch: Any, logs: dict[str, Any] | None = None) -> None:
        if not self._looks():
            return
        self._check()
        if self._bound is None or not _keras.variables_are_current(self.model):
            return
        if self._kept is None or not all(map(np.array_equal, self._kept, self.model.get_weights())):
            self._bound()

    def on_train_batch_end(self, batch: Any, logs: dict[str, Any] | None = None) -> None:
        if self._within_epochs:
            self._check()


def behind(
    model: keras.Model, charge: Charge, callbacks: list, bound: Callable[[], None] | None, data: Any = ()
) -> list:
    """Returns what comes behind the user's callbacks; nothing without any, as nobody else changes a model.

    Args:
        model: The model, before `fit`.
        charge: The callback in front.
        callbacks: Those of the user.
        bound: See `SameModel`; those of Keras set no weights that are out of bounds.
        data: Training data, which those of Keras do not know.
    """
    if not callbacks:
        return []
    within = any(map(acts_on_updates, callbacks))
    same = SameModel(model, charge, bound if names_of_own(callbacks) else None, within)
    found: list = [same, FreshNoise(model.run, within)]
    if names_of_own(callbacks):
        found.append(SameData(data, within))
    for guard in found:
        guard.others = callbacks
    return found
