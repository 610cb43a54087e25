"""Where noise is added and the budget stops, and what the backends add up."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "optimizer.py",
        "test_optimizer.py",
        ("the deviation is rounded down", "_ROUND_UP = 1.0 + 1e-6", "_ROUND_UP = 1.0 - 1e-6"),
        (
            "no noise",
            "noisy.append(gradient + stddev * ops.reshape(noise[start : start + size], gradient.shape))",
            "noisy.append(gradient)",
            "test_optimizer.py training/test_fit.py",
        ),
        (
            "half of the noise",
            "noisy.append(gradient + stddev * ops.reshape(noise[start : start + size], gradient.shape))",
            "noisy.append(gradient + 0.5 * stddev * ops.reshape(noise[start : start + size], gradient.shape))",
        ),
        ("the pieces of the noise overlap", "start += size", "start += 0"),
        ("the key stays as it is", "self.noise_key.assign(next_key)", "pass"),
        (
            "one update more than allowed",
            "self.iterations < ops.cast(self.budget, self.iterations.dtype)",
            "self.iterations <= ops.cast(self.budget, self.iterations.dtype)",
        ),
        (
            "five updates more than allowed",
            "self.budget.assign(int(self.iterations.numpy()) + updates)",
            "self.budget.assign(int(self.iterations.numpy()) + updates + 5)",
            "test_optimizer.py training/test_plan_in_graph.py",
        ),
        (
            "the budget of earlier updates is left out",
            "self.budget.assign(int(self.iterations.numpy()) + updates)",
            "self.budget.assign(updates)",
            "test_optimizer.py training/test_plan_in_graph.py training/test_fit.py",
        ),
        (
            "without a budget the gradient goes through",
            "lambda: [*(ops.zeros_like(gradient) for gradient in gradients), *state]",
            "lambda: [*gradients, *state]",
        ),
        (
            "disarmed, it goes on",
            "self.budget.assign(0)",
            "pass",
            "test_optimizer.py training/test_fit.py training/test_plan_in_graph.py",
        ),
        (
            "an unseeded run stores its key",
            "value if self.repeatable or variable is not self.noise_key else np.zeros_like(value)",
            "value",
            "training/test_saving.py",
        ),
        (
            "the noise of variables that are left out of a step is given to others",
            "noise_stddevs = [std[i] for i in indices]",
            "noise_stddevs = [std[0] for i in indices]",
            "test_optimizer.py strategies/test_clipless.py training/test_fit.py",
        ),
        (
            "scales are ignored",
            "noise_stddevs = [std[i] * scales[i] for i in indices]",
            "pass",
            "strategies/test_adaclip.py strategies/test_dpsgd.py",
        ),
        (
            "scales are squared",
            "noise_stddevs = [std[i] * scales[i] for i in indices]",
            "noise_stddevs = [std[i] * scales[i] * scales[i] for i in indices]",
            "strategies/test_adaclip.py strategies/test_dpsgd.py",
        ),
        (
            "the state of a strategy is forgotten",
            "variable.assign(value)\n        super().apply",
            "pass\n        super().apply",
            "strategies/test_adaclip.py strategies/test_dpsgd.py",
        ),
        (
            "an `apply` of one's own is taken",
            'for name in ("apply", *_keras.OPTIMIZER_ENTRIES):',
            "for name in _keras.OPTIMIZER_ENTRIES:",
        ),
        (
            "an `apply_gradients` of one's own is taken",
            'for name in ("apply", *_keras.OPTIMIZER_ENTRIES):',
            'for name in ("apply",):',
        ),
        (
            "what is refused in the constructor may be set afterwards",
            "if getattr(self, argument, None):",
            "if False:",
            "training/test_refusals.py",
        ),
        (
            "the constructor takes what changes the noise",
            "if kwargs.get(argument):",
            "if False:",
            "training/test_refusals.py test_optimizer.py",
        ),
        (
            "LossScaleOptimizer is taken",
            "if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):",
            "if False:",
        ),
        (
            "a private optimizer is not checked again",
            "if isinstance(optimizer, PrivateOptimizer):\n        optimizer.check()",
            "if isinstance(optimizer, PrivateOptimizer):",
            "test_optimizer.py training/test_refusals.py",
        ),
    ),
    *faults(
        "backend/tensorflow.py",
        "strategies/test_dpsgd.py training/test_fit.py",
        (
            "the last microbatch is left out",
            "number = -(-tf.shape(data[2])[0] // microbatch)",
            "number = tf.shape(data[2])[0] // microbatch",
        ),
        (
            "microbatches overlap",
            "t[i * microbatch : (i + 1) * microbatch]",
            "t[i * microbatch : (i + 2) * microbatch]",
        ),
        (
            "each microbatch is noised by itself: the last one counts",
            "return i + 1, tf.nest.map_structure(tf.add, totals, part(i, rows))",
            "return i + 1, part(i, rows)",
        ),
        (
            "TF32 stays on",
            "tf.config.experimental.enable_tensor_float_32_execution(False)",
            "pass",
            "training/test_fit.py backend/test_choice.py backend/test_feed.py",
        ),
        (
            "copies of all microbatches get the key of the first",
            "totals, seen, _ = strategy.microbatch(calibration, forward, state, i, secret, rows, batch_size)",
            "totals, seen, _ = strategy.microbatch(calibration, forward, state, 0, secret, rows, batch_size)",
        ),
    ),
    *faults(
        "backend/importance_tensorflow.py",
        "strategies/test_dpis.py",
        (
            "only the last microbatch is released",
            "return tf.nest.map_structure(tf.add, totals, (sums, loss)), norms",
            "return (sums, loss), norms",
        ),
        ("the sum is not scaled", "[s * factor for s in sums]", "[s for s in sums]"),
        ("the noise of an epoch is that of the first", "self._model.optimizer.set_noise(noise_stddevs)", "pass"),
    ),
    *faults(
        "diffusion/model.py",
        "diffusion/test_model.py",
        (
            "the multiplicity is ignored",
            "return dataclasses.replace(strategy, augmentation_multiplicity=self.noise_multiplicity)",
            "return strategy",
        ),
        (
            "a strategy that remembers norms is taken",
            "if not isinstance(strategy, strategies.PerExample):",
            "if False:",
        ),
        ("a strategy that does not clip is taken", "if not strategy.per_example:", "if False:"),
        (
            "an augmentation beside the noise is taken",
            "if augmentation is not None or copies not in (1, self.noise_multiplicity):",
            "if False:",
        ),
    ),
    *faults(
        "diffusion/noising.py",
        "diffusion/test_model.py",
        (
            "every copy of a row has the same noise",
            "noise = keras.random.normal(ops.shape(x), seed=self.seeds)",
            "noise = keras.random.normal((1, *ops.shape(x)[1:]), seed=self.seeds) + ops.zeros_like(x)",
        ),
        (
            "labels are never dropped",
            "dropped = keras.random.uniform((rows,), seed=self.seeds) < self.label_dropout",
            "dropped = keras.random.uniform((rows,), seed=self.seeds) < 0.0",
        ),
    ),
]
