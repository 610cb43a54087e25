"""The compiled pieces of an update that the host puts together, for TensorFlow."""

import numpy as np
import tensorflow as tf


class ConductedStep:
    """A train function for `fit` whose updates are carried out by `model.run.conductor`.

    Args:
        model: The model to train.
        strategy: An adaptive strategy: `norms(model, data)`, `part(model, data)`.
    """

    def __init__(self, model, strategy):
        self._model = model

        def norms(data):
            return strategy.norms(model, data)

        def part(data, totals):
            (sums, norms, loss), seen, _ = strategy.part(model, data)
            if model.run.settings.training_metrics:
                model.compute_metrics(*seen)
            return tf.nest.map_structure(tf.add, totals, (sums, loss)), norms

        def apply(totals, factor):
            sums, loss = totals
            model._loss_tracker.update_state(loss)
            model.optimizer.apply([s * factor for s in sums], model.trainable_variables)

        if model.run_eagerly:
            self._norms, self._part, self._apply = norms, part, apply
        else:
            self._norms, self._part, self._apply = (
                tf.function(f, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False)
                for f in (norms, part, apply)
            )

    def __call__(self, iterator):
        next(iterator)  # the batches of `fit` are empty: the conductor has the data
        self._totals = ([tf.zeros(v.shape) for v in self._model.trainable_variables], tf.zeros(()))
        self._model.run.conductor.update(self)
        if not self._model.run.settings.training_metrics:
            return {"updates": np.zeros(())}
        return self._model.get_metrics_result()

    def set_noise(self, deviations) -> None:
        """Sets the standard deviations of the noise, one per trainable variable."""
        self._model.optimizer.set_noise(deviations)

    def norms(self, data) -> np.ndarray:
        """Gradient norms of a chunk `(x, y, weight)`."""
        return self._norms(data).numpy()

    def add(self, data) -> np.ndarray:
        """Adds what a chunk of proposed examples contributes to the update; returns its gradient norms."""
        self._totals, norms = self._part(data, self._totals)
        return norms.numpy()

    def release(self, factor: float) -> None:
        """Releases the sum times `factor`, with noise, and updates the weights."""
        self._apply(self._totals, tf.constant(factor, tf.float32))
