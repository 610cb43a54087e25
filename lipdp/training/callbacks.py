"""The callback that charges each update to the ledger before it is executed, and what others may follow."""

import string
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from lipdp import _keras, checks, isolation
from lipdp.training.progress import EpsilonSoFar

# What is logged beside metrics is public.
_PUBLIC = ("epsilon", "learning_rate", "lr")
# Weights are looked at after updates 1, 2, 4, ..., and then every so many.
_LOOK_EVERY = 50


def as_list(values: Any) -> list:
    """Returns one value, several or none as a list."""
    if values is None:
        return []
    return list(values) if isinstance(values, (list, tuple)) else [values]


def unpacked(callbacks: Any) -> list:
    """Returns callbacks as one list, in whatever lists and `CallbackList`s they were given."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    if isinstance(callbacks, (list, tuple)):
        return [callback for part in callbacks for callback in unpacked(part)]
    return [callbacks]


def private_monitors(callbacks: list, trains: bool = True, validates: bool = False) -> tuple[str, ...]:
    """Returns the callbacks that act on a metric of the training data, as "EarlyStopping (loss)".

    Args:
        callbacks: Those of the user.
        trains: Whether metrics are computed on the training data.
        validates: Whether the validation data are among the training data.
    """
    found = []
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.TerminateOnNaN):  # it names no monitor
            found += [f"{type(callback).__name__} (loss)"] if trains else []
            continue
        monitor = getattr(callback, "monitor", None)
        acts = getattr(callback, "save_best_only", True)  # a ModelCheckpoint that saves always only names it
        if not isinstance(monitor, str) or not acts or monitor in _PUBLIC:
            continue
        if validates if monitor.startswith("val_") else trains:
            found.append(f"{type(callback).__name__} ({monitor})")
    return tuple(found)


def names_of_own(callbacks: list) -> tuple[str, ...]:
    """Returns the names of the callbacks whose code is the user's: what they do with what they see nobody knows."""
    own = (callback for callback in callbacks if _is_users(callback) or _has_own_schedule(callback))
    return tuple(dict.fromkeys(type(callback).__name__ for callback in own))


def acts_on_updates(callback: Any) -> bool:
    """Returns whether a callback does something before or after an update, and not between epochs only."""
    hooks = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    plain = [getattr(keras.callbacks.Callback, hook) for hook in hooks]
    return [getattr(getattr(callback, hook), "__func__", None) for hook in hooks] != plain


def refuse_private_monitors(callbacks: list, trains: bool = True, validates: bool = False) -> None:
    """Refuses callbacks that steer training by numbers that were computed on the private data without noise."""
    found = private_monitors(callbacks, trains)
    if not found and (on_held_out := private_monitors(callbacks, trains, validates)):
        raise ValueError(
            "The validation data are among the training data, so that a metric on them is one on private data, and may "
            f"not steer the training. Received: {', '.join(on_held_out)}. Pass rows of which none trains, or "
            "validation_split=. Or pass fit(allow_private_monitor=True), which the privacy statement then says."
        )
    if found:
        raise ValueError(
            "A metric on the private training data may not steer the training: what follows from it (when to stop, the "
            f"learning rate, which weights to keep) is outside the guarantee. Received: {', '.join(found)}. Monitor a "
            "metric on public data, such as 'val_loss'; where training diverges `fit` ends by itself, soon after the "
            "weights are no longer finite. Or pass fit(allow_private_monitor=True), which the privacy statement then "
            "says."
        )


def check_monitors(callbacks: Sequence, model: keras.Model, *, trains: bool, validates: bool) -> None:
    """Refuses, before anything is spent, callbacks of Keras that follow what nothing computes, or do not know how.

    Args:
        callbacks: Those of the user; where one of them is of the user's own, it may log what it likes.
        model: Its metrics are built.
        trains: Whether they are computed on the training data.
        validates: Whether there are validation data. Without them a metric on them is warned of, as in Keras.
    """
    averages = any(isinstance(callback, keras.callbacks.SwapEMAWeights) for callback in callbacks)
    if averages and not model.optimizer.use_ema:
        raise ValueError(
            "SwapEMAWeights takes averages that the optimizer keeps. Received: one with use_ema=False. Give it "
            "use_ema=True, and compile again."
        )
    if callable(_keras.learning_rate(model.optimizer)):  # a schedule; Keras would fail where the first epoch ends
        kinds = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
        setting = [type(each).__name__ for each in callbacks if isinstance(each, kinds) and not _is_users(each)]
        if setting:
            raise ValueError(
                "The optimizer has a schedule as its learning rate, which a callback cannot set. Received: "
                f"{', '.join(setting)}. Leave it out, or give the optimizer a number, and compile again."
            )
    if any(map(_is_users, callbacks)):
        return
    names = model.get_metrics_result()
    held_out = [f"val_{name}" for name in names]
    known = [*(names if trains else ()), *_PUBLIC]
    followed = [(type(callback).__name__, name) for callback in callbacks for name in _followed(callback)]
    unknown = [f"{kind} ({name})" for kind, name in followed if name not in (*known, *held_out)]
    if unknown:
        raise ValueError(
            f"A callback follows what nothing computes. Received: {', '.join(unknown)}. Computed are "
            f"{', '.join([*known, *(held_out if validates else ())])}. Name one of these, or pass the metric to "
            "`compile`."
        )
    missing = [f"{kind} ({name})" for kind, name in followed if name.startswith("val_")]
    if missing and not validates:
        warnings.warn(
            "A metric that nothing computes is followed, so that the callback will do nothing while the budget is "
            f"spent. Received: {', '.join(missing)}, and no validation data. Pass validation_data= of public rows, or "
            "validation_split=.",
            stacklevel=checks.users_line(),
        )
    for callback in callbacks:
        if getattr(callback, "save_best_only", True):
            _keras.check_direction(callback, model)


def _is_users(callback: Any) -> bool:
    """Returns whether the code of a callback is the user's, or a function that it was given."""
    given = any(name.startswith("on_") for name in vars(callback))
    return given or type(callback).__module__.split(".")[0] not in ("keras", "lipdp")


def _has_own_schedule(callback: Any) -> bool:
    """Returns whether a function of the user's sets the rate: it is shown no logs, and may read the model's history."""
    if not isinstance(callback, keras.callbacks.LearningRateScheduler):
        return False
    schedule = callback.schedule
    named = schedule if hasattr(schedule, "__qualname__") else type(schedule)
    return isolation.root(named) not in ("keras", "lipdp")


def _followed(callback: Any) -> list[str]:
    """Returns the names of the metrics that a callback acts on, or puts into names of files."""
    monitor = getattr(callback, "monitor", None)
    found = [monitor] if isinstance(monitor, str) and getattr(callback, "save_best_only", True) else []
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        fields = [field for _, field, _, _ in string.Formatter().parse(str(callback.filepath)) if field]
        found += [field for field in fields if field not in ("epoch", "batch")]
    return found


def refuse_public_names(names: Iterable[str]) -> None:
    """Refuses names under which a metric of the training data would pass for a number that is public."""
    for name in names:
        if name.startswith("val_") or name in _PUBLIC:
            raise ValueError(
                "What is logged under such a name is public, and callbacks may follow it, but metrics are computed on "
                f"the private training data as well. Received: {name!r}. Give the metric, or the output, another name."
            )


class Charge(keras.callbacks.Callback):
    """Charges each update before it is executed, and stops after the last one allowed.

    Args:
        run: The model's `Run`.
        updates: How many updates are allowed.
        charge: Function of a number of updates that charges them, or None if each update charges itself.
        training_metrics: Whether metrics on the training data are logged.
        bar: Whether a progress bar shows what is logged after each batch, which then has epsilon as well.
    """

    def __init__(
        self,
        run: Any,
        updates: int,
        charge: Callable[[int], None] | None,
        training_metrics: bool,
        bar: bool = False,
    ):
        super().__init__()
        self._epsilon = EpsilonSoFar(run) if bar else None
        self._in_epoch = 0
        self._run, self._left, self._charge, self._training_metrics = run, updates, charge, training_metrics
        self._made, self._next_look = 0, 1
        self._named, self._spent = False, None
        self.after_update: Callable[[], None] | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._in_epoch = 0

    def on_train_batch_begin(self, batch: Any, logs: dict[str, Any] | None = None) -> None:
        count = self.model.steps_per_execution
        if count > self._left:
            raise RuntimeError("The privacy budget of this run is spent; no update was executed.")
        self._left -= count
        if self._charge is not None:
            self._charge(count)

    def on_train_batch_end(self, batch: Any, logs: dict[str, Any] | None = None) -> None:
        self._run.executing = True
        if self.after_update is not None:
            self.after_update()
        self._made += self.model.steps_per_execution
        self._in_epoch += self.model.steps_per_execution
        if self._made >= self._next_look:
            self._next_look = self._made + min(self._made, _LOOK_EVERY)
            self._refuse_to_go_on()
        if not self._left:
            self.model.stop_training = True
        if self._training_metrics and not self._named:
            self._named = True
            ledger = self._run.ledger
            ledger.logged = tuple(dict.fromkeys([*ledger.logged, *(logs or ())]))
        if logs is not None:
            logs.pop("updates", None)  # Keras needs some log of a step
            if self._epsilon is not None:
                logs["epsilon"] = self._epsilon.value(min(self._left, self.params["steps"] - self._in_epoch))

    def _refuse_to_go_on(self) -> None:
        """Stops before the next charge when the weights are lost.

        **Guarantee.** It looks at what noisy updates have made, never at the loss or the data: post-processing.
        """
        broken = self.model.optimizer.not_finite()
        if broken is None:
            return
        text = (
            f"Training has diverged: after update {self._run.ledger.updates} of the model, '{broken}' is not finite. "
            f"Received: learning_rate={float(self.model.optimizer.learning_rate):g}. "
        )
        if not self._left:
            warnings.warn(
                f"{text}It was the last update of the plan. Train a new model with a lower rate.",
                stacklevel=checks.users_line(),
            )
            return
        raise FloatingPointError(
            f"{text}The {self._left} updates that were left are neither made nor charged. Bring back finite weights "
            "(`load_weights` of a checkpoint, or `set_weights`), call `compile` with a lower learning rate, and then "
            "the same `fit` again."
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._refuse_to_go_on()
        if logs is not None:
            logs.pop("updates", None)
            logs["epsilon"] = self._spent = self._run.privacy().epsilon()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        # Keras gives each of its calls a dictionary of its own.
        if logs is not None and self._spent is not None:
            logs["epsilon"] = self._spent
