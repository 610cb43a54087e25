"""The compiled pieces of an importance-sampled update, for TensorFlow."""

import numpy as np
import tensorflow as tf

from lipdp import _keras
from lipdp.backend.tensorflow import Forward
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
        self._model, self._metrics, self.update = model, training_metrics, None
        forward = Forward(model)

        def norms(data):
            with step_of(model), unread_metrics():
                return strategy.norms(forward, data)[0]

        def part(data, totals):
            with step_of(model), unread_metrics():
                (sums, norms, loss), seen, _ = strategy.proposed(forward, data)
            if training_metrics:
                with model.run.step_traced(), step_of(model):
                    model.compute_metrics(*seen)
            return tf.nest.map_structure(tf.add, totals, (sums, loss)), norms

        def apply(totals, factor):
            sums, loss = totals
            if training_metrics:
                _keras.loss_tracker(model).update_state(loss)
            with step_of(model):
                model.optimizer.apply([s * factor for s in sums], model.trainable_variables)

        if model.run_eagerly:
            self._norms, self._part, self._apply = norms, part, apply
        else:
            self._norms, self._part, self._apply = (
                tf.function(f, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False)
                for f in (norms, part, apply)
            )

    def __call__(self, iterator):
        next(iterator)  # the number of the update
        self._totals = ([tf.zeros(v.shape) for v in self._model.trainable_variables], tf.zeros(()))
        self.update(self)
        return self._model.get_metrics_result() if self._metrics else {"updates": np.zeros(())}

    def set_noise(self, noise_stddevs) -> None:
        """Sets the standard deviations of the noise, one per trainable variable."""
        self._model.optimizer.set_noise(noise_stddevs)

    def norms(self, data) -> np.ndarray:
        """Returns the gradient norms of a microbatch `(x, y, weight)`."""
        return self._norms(data).numpy()

    def add(self, data) -> np.ndarray:
        """Adds what a microbatch of proposed examples contributes to the update; returns its gradient norms."""
        self._totals, norms = self._part(data, self._totals)
        return norms.numpy()

    def release(self, factor: float) -> None:
        """Releases the sum times `factor`, with noise, and updates the weights."""
        self._apply(self._totals, tf.constant(factor, tf.float32))
