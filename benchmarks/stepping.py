"""The training step that `fit` runs, called one at a time: what the benchmarks of cost compare."""

import itertools
import os
import subprocess
import sys
import time

# Steps before those that are timed: they compile.
WARM = 3


class Stepper:
    """Calls the compiled training step of a compiled model, on a few prepared batches in turn.

    Args:
        model: a `DP_Model` where a strategy is given, else a plain Keras model.
        x, y: the data.
        batch: expected rows of a batch with a strategy, which draws Poisson samples and pads them; exact rows without.
        strategy: a strategy or its name; None: the plain step of Keras.
        microbatch: `microbatch_size` of the private step.
        prepared: number of batches.
        options: further arguments of `fit` for the private step.
    """

    def __init__(
        self, model, x, y, batch: int, strategy=None, microbatch: int | None = None, prepared: int = 4, **options
    ):
        import keras

        # Held as `fit` holds it, with and without privacy.
        self._data = x, y
        self.model = model
        self._jax = keras.backend.backend() == "jax"
        if strategy is None:
            source = ((x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch]) for i in range(prepared))
            model.optimizer.build(model.trainable_variables)
        else:
            source = self._private(strategy, batch, microbatch, options)
        self._batches = [keras.tree.map_structure(keras.ops.convert_to_tensor, next(source)) for _ in range(prepared)]
        self._feed = self._iterator()
        model._symbolic_build(data_batch=self._batches[0])
        model.make_train_function()
        if self._jax:
            names = ("trainable", "non_trainable", "optimizer", "metrics")
            self._state = model._get_jax_state(**{f"{name}_variables": True for name in names})

    def _private(self, strategy, batch, microbatch, options):
        from lipdp import training

        request = training.FitRequest.of(
            strategy=strategy,
            sampling="poisson",
            batch_size=batch,
            examples_per_person=1,
            noise_multiplier=1.0,
            epochs=1000,
            microbatch_size=microbatch,
            **options,
        )
        driver = training.prepare(self.model, *self._data, 0.0, None, request)
        # Both stay open as long as the stepper lives.
        self._scopes = driver.armed(verbose=0), driver.batches()
        return iter([scope.__enter__() for scope in self._scopes][1])

    def _iterator(self):
        """An endless iterator as `fit` makes it; under TensorFlow with an unknown batch size."""
        if self._jax:
            return itertools.cycle(self._batches)
        import tensorflow as tf

        signature = tf.nest.map_structure(
            lambda t: tf.TensorSpec((None, *t.shape[1:]), t.dtype), tuple(self._batches[0])
        )
        source = tf.data.Dataset.from_generator(lambda: iter(self._batches), output_signature=signature)
        return iter(source.cache().repeat().prefetch(1))

    def rows(self, step: int) -> int:
        """Rows that count in the batch of a step."""
        import numpy as np

        batch = self._batches[step % len(self._batches)]
        return int((np.asarray(batch[2]) > 0).sum() if len(batch) == 3 else len(batch[1]))

    def __call__(self) -> float:
        batch = next(self._feed)
        start = time.perf_counter()
        if self._jax:
            import jax

            _, self._state = self.model.train_function(self._state, iter([batch]))
            jax.block_until_ready(self._state)
        else:
            self.model.train_function(iter([batch]))
        return time.perf_counter() - start


def interleaved(steppers: dict, rounds: int) -> dict:
    """Seconds of each stepper, in turn."""
    for _ in range(WARM):
        for stepper in steppers.values():
            stepper()
    found = [{name: stepper() for name, stepper in steppers.items()} for _ in range(rounds)]
    return {name: [one[name] for one in found] for name in steppers}


def peak_memory(expression: str) -> float:
    """MiB of a fresh process that does nothing but the steps of one stepper (Linux).

    Args:
        expression: makes the stepper, from the name of a module in this folder on.
    """
    # Not getrusage: its maximum is inherited from the process that forked.
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
        f"import {expression.split('.')[0]}\nstep = {expression}\nfor _ in range(4): step()\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "sys.stdout.write('PEAK %d' % int(status['VmHWM'].split()[0]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return round(int(out.rsplit("PEAK", 1)[1]) / 1024, 1)
