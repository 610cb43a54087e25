"""An attacker who sees every released gradient: optimizer and callback that record them."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras


class _Observed:
    """Keeps the last gradient that reached the optimizer's rule: after the noise, so all of it is released."""

    def build(self, variables: list) -> None:
        if self.built:  # type: ignore[attr-defined]
            return
        super().build(variables)  # type: ignore[misc]
        self.observed = [
            self.add_variable(v.shape, "zeros", dtype="float32", name=f"observed_{i}")  # type: ignore[attr-defined]
            for i, v in enumerate(variables)
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.observed[_keras.variable_index(self, variable)].assign(ops.cast(gradient, "float32"))
        super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]


@functools.cache
def observed_class(optimizer_class: type) -> type:
    """Returns a subclass of a Keras optimizer that also keeps the last gradient, in `observed`.

    **Guarantee.** `update_step` runs behind the noise (`lipdp.optimizer.private`), so nothing about training changes.
    """
    return type(f"Observed{optimizer_class.__name__}", (_Observed, optimizer_class), {})


def observe(model: keras.Model) -> None:
    """Compiles a private model again, with an optimizer of the same kind whose gradients can be seen."""
    optimizer = model.optimizer
    # Behind the private class and what makes it private stands the optimizer that was given.
    plain = type(optimizer).__bases__[1]
    config = _keras.optimizer_config(optimizer)
    config.pop("name", None)
    model.compile(
        optimizer=observed_class(plain)(**config),
        loss=model.loss,
        run_eagerly=model.run_eagerly,
        jit_compile=model.jit_compile,
    )


class Watcher(keras.callbacks.Callback):
    """Tells what each update released.

    Args:
        seen: Called after each update with `(update, released, noise)`: its number from 0 on, the released gradient and
            the standard deviation of its noise, both one flat float64 array.
        before: Called before each update with its number, if given.
        restart: After so many updates a strategy with a state begins anew, as in a new run; None: never.
    """

    def __init__(
        self,
        seen: Callable[[int, np.ndarray, np.ndarray], None],
        before: Callable[[int], None] | None = None,
        restart: int | None = None,
    ):
        super().__init__()
        self._seen, self._before, self._restart = seen, before, restart
        self._update, self._noise = 0, None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        model, optimizer = self.model, self.model.optimizer
        if self._restart and self._update % self._restart == 0 and optimizer.strategy_state:
            initial = optimizer.strategy.initial_state(_keras.optimizer_variables(optimizer))
            for variable, array in zip(optimizer.strategy_state, initial, strict=True):
                variable.assign(array)
        # The state moves with an update; without one, noise is constant, or DPIS solves it within the update.
        self._noise = noise_stddevs(model) if optimizer.strategy_state else None
        if self._before is not None:
            self._before(self._update)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model = self.model
        released = _flat([ops.convert_to_numpy(v.value) for v in model.optimizer.observed])
        self._seen(self._update, released, noise_stddevs(model) if self._noise is None else self._noise)
        self._update += 1


def noise_stddevs(model: keras.Model) -> np.ndarray:
    """Returns the standard deviation of the noise of the next update, one number for each weight."""
    optimizer = model.optimizer
    std = np.asarray(ops.convert_to_numpy(optimizer.noise_std.value), "float64")
    shapes = [tuple(v.shape) for v in _keras.optimizer_variables(optimizer)]
    scales = optimizer.strategy.noise_scales([ops.convert_to_tensor(v.value) for v in optimizer.strategy_state])
    scales = scales if isinstance(scales, list) else [1.0 if scales is None else scales] * len(shapes)
    return _flat(
        [
            s * np.broadcast_to(np.asarray(ops.convert_to_numpy(q), "float64"), shape)
            for s, q, shape in zip(std, scales, shapes, strict=True)
        ]
    )


def _flat(arrays: list) -> np.ndarray:
    return np.concatenate([np.asarray(a, "float64").reshape(-1) for a in arrays])
