"""The compiled pieces of an importance-sampled update, for JAX."""

import jax
import jax.numpy as jnp
import keras
import numpy as np

from lipdp import _keras
from lipdp.backend.devices_jax import shared_out
from lipdp.backend.jax import Forward, state_kept
from lipdp.backend.unread import step_of, unread_metrics


class ImportanceStep:
    """A train function for `fit` whose updates the host puts together from compiled pieces.

    Args:
        model: The model to train.
        strategy: Object with `norms(forward, data)` and `proposed(forward, data)`.
        training_metrics: Whether to compute metrics on what was proposed.

    Attributes:
        update: Function of this object that carries out one update; set by the present `fit`.
    """

    def __init__(self, model, strategy, training_metrics: bool):
        self._model, self._with_metrics, self.update = model, training_metrics, None

        def norms(trainable, non_trainable, data):
            with step_of(model), unread_metrics():
                found, non_trainable = strategy.norms(Forward(model, trainable, non_trainable), data)
            return found, list(non_trainable)

        def part(trainable, non_trainable, metrics, data, totals):
            forward = Forward(model, trainable, non_trainable)
            with step_of(model), unread_metrics():
                (sums, norms, loss), seen, non_trainable = strategy.proposed(forward, data)
            if training_metrics:
                # The loss of the update is known at its end; here only the metrics count.
                with model.run.step_traced(), step_of(model):
                    metrics = _keras.update_metrics(model, metrics, jnp.zeros(()), *seen)
            return jax.tree.map(jnp.add, totals, (sums, loss)), norms, list(non_trainable), list(metrics)

        def apply(trainable, optimizer_variables, totals, factor):
            sums = [s * factor for s in totals[0]]
            with step_of(model):
                return model.optimizer.stateless_apply(optimizer_variables, sums, trainable)

        def track(metrics, before, loss):
            """Puts the loss tracker back to before the microbatches and counts the update's loss once."""
            with keras.StatelessScope(state_mapping=zip(model.metrics_variables, metrics, strict=True)) as scope:
                for variable, value in zip(_keras.loss_tracker(model).variables, before, strict=True):
                    variable.assign(value)
                _keras.loss_tracker(model).update_state(loss)
                logs = model.get_metrics_result()
            current = [scope.get_current_value(v) for v in model.metrics_variables]
            return logs, [m if c is None else c for m, c in zip(metrics, current, strict=True)]

        compiled = (norms, part, apply, track)
        if not model.run_eagerly and model.jit_compile:
            compiled = tuple(map(jax.jit, compiled))
        self._norms, self._part, self._apply, self._track = compiled

    def __call__(self, state, iterator):
        with state_kept(self._model, state):
            return self._updated(state, iterator)

    def _updated(self, state, iterator):
        next(iterator)  # the number of the update
        model = self._model
        self._trainable, self._non_trainable, self._optimizer, self._metrics = map(list, state)
        tracked = {id(v) for v in _keras.loss_tracker(model).variables}
        before = [m for v, m in zip(model.metrics_variables, self._metrics, strict=True) if id(v) in tracked]
        self._totals = ([jnp.zeros_like(v) for v in self._trainable], jnp.zeros(()))
        self.update(self)
        logs = {"updates": np.zeros(())}
        if self._with_metrics:
            logs, self._metrics = self._track(self._metrics, before, self._totals[1])
        return logs, (self._trainable, self._non_trainable, self._optimizer, self._metrics)

    def set_noise(self, noise_stddevs) -> None:
        """Sets the standard deviations of the noise, one per trainable variable."""
        optimizer = self._model.optimizer
        with keras.StatelessScope(state_mapping=zip(optimizer.variables, self._optimizer, strict=True)) as scope:
            optimizer.set_noise(noise_stddevs)
            noise = scope.get_current_value(optimizer.noise_std)
        index = [v is optimizer.noise_std for v in optimizer.variables].index(True)
        self._optimizer[index] = jnp.asarray(noise)

    def norms(self, data) -> np.ndarray:
        """Returns the gradient norms of a microbatch `(x, y, weight)`."""
        norms, self._non_trainable = self._norms(self._trainable, self._non_trainable, shared_out(data))
        return np.asarray(norms)

    def add(self, data) -> np.ndarray:
        """Adds what a microbatch of proposed examples contributes to the update; returns its gradient norms."""
        self._totals, norms, self._non_trainable, self._metrics = self._part(
            self._trainable, self._non_trainable, self._metrics, shared_out(data), self._totals
        )
        return np.asarray(norms)

    def release(self, factor: float) -> None:
        """Releases the sum times `factor`, with noise, and updates the weights."""
        trainable, optimizer = self._apply(
            self._trainable, self._optimizer, self._totals, jnp.asarray(factor, "float32")
        )
        self._trainable, self._optimizer = list(trainable), list(optimizer)
