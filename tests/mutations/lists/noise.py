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
        (
            "the stored key is the one that was used",
            "self.noise_key.assign(next_key)",
            "self.noise_key.assign(noise_key)",
            "training/test_seeding.py::test_the_stored_key_is_that_of_the_next_update_and_not_of_a_past_one",
        ),
        (
            "the count has no noise",
            "*(count_noise * _ROUND_UP for _ in counts)",
            "*(0.0 * count_noise for _ in counts)",
            "training/test_seeding.py::test_noise_of_the_private_count",
        ),
        (
            "the count has half of its noise",
            "*(count_noise * _ROUND_UP for _ in counts)",
            "*(0.5 * count_noise for _ in counts)",
            "training/test_seeding.py::test_noise_of_the_private_count",
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
            "training/test_fit.py::test_matrix_products_are_exact_while_a_model_trains",
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
    *faults(
        "training/importance.py",
        "training/test_seeding.py::test_what_dpis_releases_beside_its_gradients_has_the_noise_that_is_charged",
        (
            "sums without noise",
            "return float(value + noise_multiplier * sensitivity * rng.normal())",
            "return float(value)",
        ),
        (
            "sums with half of their noise",
            "return float(value + noise_multiplier * sensitivity * rng.normal())",
            "return float(value + 0.5 * noise_multiplier * sensitivity * rng.normal())",
        ),
        (
            "sums with noise of sensitivity one",
            "return float(value + noise_multiplier * sensitivity * rng.normal())",
            "return float(value + noise_multiplier * rng.normal())",
        ),
        (
            "the secret of the sums stays as it is",
            'secret.draws = randomness.derive(secret.draws, "next")',
            "pass",
            "training/test_seeding.py strategies/test_dpis.py",
        ),
    ),
    *faults(
        "training/seeding.py",
        "training/test_seeding.py",
        (
            "an unseeded run has the secret of seed 0",
            "root, basis = randomness.fresh(), None",
            "root, basis = randomness.from_seed(0), None",
            "training/test_seeding.py::test_unseeded_fits_have_noise_of_their_own",
        ),
        (
            "releases of one seed share noise",
            "root = randomness.from_seed(request.seed, basis, plan, run.ledger.to_json(), str(start))",
            "root = randomness.from_seed(request.seed)",
        ),
        (
            "the plan plays no part",
            "root = randomness.from_seed(request.seed, basis, plan, run.ledger.to_json(), str(start))",
            "root = randomness.from_seed(request.seed, basis, run.ledger.to_json(), str(start))",
        ),
        (
            "the weights play no part",
            "root = randomness.from_seed(request.seed, basis, plan, run.ledger.to_json(), str(start))",
            "root = randomness.from_seed(request.seed, basis, plan, run.ledger.to_json())",
        ),
        (
            "model and data play no part",
            "root = randomness.from_seed(request.seed, basis, plan, run.ledger.to_json(), str(start))",
            "root = randomness.from_seed(request.seed, plan, run.ledger.to_json(), str(start))",
        ),
        ("the data play no part", "data = randomness.digest((driver.x, driver.y))", "data = b''"),
        (
            "the labels play no part",
            "data = randomness.digest((driver.x, driver.y))",
            "data = randomness.digest(driver.x)",
        ),
        (
            "any stream is gone on with",
            "known = known and (before.basis, before.stand) == (basis, stand)",
            "known = known",
        ),
        (
            "batches have the key of the noise",
            'run.secret = Secret(randomness.derive(root, "draws"), basis)',
            'run.secret = Secret(randomness.derive(root, "noise"), basis)',
        ),
        (
            "noisings keep their state",
            'layer.seeds.reseed(randomness.words(root, "layer", number))',
            "pass",
            "diffusion/test_model.py training/test_seeding.py",
        ),
        (
            "an unseeded run stores its secret",
            "return None if self.basis is None else [self.draws.hex(), self.basis, self.stand]",
            'return [self.draws.hex(), self.basis or "", self.stand]',
        ),
    ),
    *faults(
        "sampling/randomness.py",
        "sampling/test_randomness.py",
        ("secrets are public", "return os.urandom(32)", "return bytes(32)"),
        (
            "secrets of 16 bits",
            "return os.urandom(32)",
            "return os.urandom(2) * 16",
            "sampling/test_randomness.py training/test_seeding.py",
        ),
        (
            "the secret plays no part",
            "found = hashlib.blake2b(digest_size=32, key=secret, person=_PERSON)",
            "found = hashlib.blake2b(digest_size=32, person=_PERSON)",
        ),
        ("parts run into each other", 'found.update(len(part).to_bytes(8, "little") + part)', "found.update(part)"),
        ("labels play no part", "for part in (label, *parts):", "for part in parts:"),
        ("shapes play no part", 'found.update(f"|{leaf.dtype.str}{leaf.shape}|".encode())', "pass"),
    ),
    *faults(
        "backend/noise.py",
        "backend/test_noise.py",
        ("the tail is cut", "* 2.0**-31 + 2.0**-32", "* 2.0**-31 + 2.0**-20"),
        (
            "normals of one sign",
            "return ratio * ops.where(ops.equal(ops.bitwise_and(words, _word(1)), _word(0)), x, -x)",
            "return ratio * x",
        ),
        (
            "normals of a smaller deviation",
            "return ratio * ops.where(ops.equal(ops.bitwise_and(words, _word(1)), _word(0)), x, -x)",
            "return 0.99 * ratio * ops.where(ops.equal(ops.bitwise_and(words, _word(1)), _word(0)), x, -x)",
        ),
        (
            "the tail has the fit of the center",
            "ratio = ratio * v + ops.where(central, center_coefficient, tail_coefficient)",
            "ratio = ratio * v + center_coefficient",
        ),
        ("more values than counters", "if not 1 <= size <= 2**33:", "if False:"),
    ),
    *faults(
        "backend/chacha.py",
        "backend/test_noise.py",
        (
            "eight rounds less",
            "mixed = ops.fori_loop(0, 10, _double_round, start)",
            "mixed = ops.fori_loop(0, 6, _double_round, start)",
        ),
        (
            "the key is not added at the end",
            "return ops.concatenate([one + two for one, two in zip(mixed, start, strict=True)], axis=0)",
            "return ops.concatenate([one for one, two in zip(mixed, start, strict=True)], axis=0)",
        ),
        ("one nonce for all uses", "NOISE, RATCHET, SUBKEY = 0, 1, 2", "NOISE, RATCHET, SUBKEY = 0, 0, 0"),
        ("subkeys are keys of the chain", "NOISE, RATCHET, SUBKEY = 0, 1, 2", "NOISE, RATCHET, SUBKEY = 0, 1, 1"),
        (
            "one block for all values",
            'counters = ops.cast(ops.arange(rows * _COLUMNS, dtype="int32"), "uint32")',
            'counters = ops.cast(0 * ops.arange(rows * _COLUMNS, dtype="int32"), "uint32")',
        ),
    ),
]
