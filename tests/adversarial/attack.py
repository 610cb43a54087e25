"""Attacks whole updates as `fit` makes them: what one row more moves, over the noise that is really there.

An update releases `gradient + noise`. Whatever strategy, bounds or clipping are behind it, the ledger says that it is
a Gaussian mechanism of multiplier z: with noise of standard deviation `s` in each coordinate, one row moves the
released vector by at most 1 / z in the norm of `difference / s`. This is measured from outside: an optimizer that keeps
what it is given shows the release, and updates with and without noise show `s`.
"""

import contextlib
from unittest import mock

import keras
import numpy as np
from keras import ops

from lipdp import _keras, backend, sampling
from lipdp.optimizer import PrivateOptimizer
from lipdp.sampling import randomness
from lipdp.training import guards

# Rounding of float32 in sums of some thousand terms.
TOLERANCE = 1e-4
ROWS = 20
FIT = {"batch_size": ROWS, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp", "verbose": 0}


def watched(optimizer_class):
    """Returns the optimizer class, with a variable for each weight that keeps the gradient of the last update."""

    def build(self, variables):
        if not self.built:
            super(cls, self).build(variables)
            self.seen = [self.add_variable(v.shape, "zeros", dtype="float32", name="seen") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        self.seen[_keras.variable_index(self, variable)].assign(gradient)
        super(cls, self).update_step(gradient, variable, learning_rate)

    cls = type(f"Watched{optimizer_class.__name__}", (optimizer_class,), {"build": build, "update_step": update_step})
    return cls


class Draws:
    """Stands for every sampler: each update takes the first rows, the last one of a `fit` those of `chosen`."""

    def __init__(self):
        self.chosen, self.last = np.arange(ROWS), 0

    def draw(self, update):
        return self.chosen if update == self.last else np.arange(ROWS)


@contextlib.contextmanager
def fixed(draws):
    """Gives each `fit` the same randomness: `draws` for batches, one key for copies and noisings, noise of ones."""

    def ones(size, key, generator="chacha20"):
        return ops.ones((size,), "float32")

    with (
        mock.patch.object(sampling, "make_sampler", lambda *arguments: draws),
        mock.patch.object(randomness, "fresh", lambda: b"0" * 32),
        mock.patch.object(backend, "normal", ones),
        # The same noise again, or none: on purpose.
        mock.patch.object(guards, "FreshNoise", lambda *_: keras.callbacks.Callback()),
    ):
        yield


class Target:
    """A model whose updates are attacked.

    Args:
        model: Compiled with a `watched` optimizer.
        x, y: Arrays; the rows behind the first `ROWS` are hostile.
        strategy, microbatch: As `fit` takes them.
        warm: Ordinary updates before the attack, so that weights and the state of the strategy are on their way.
    """

    def __init__(self, model, x, y, strategy, microbatch=None, warm=0):
        self.model, self.data, self.draws = model, (x, y) if y is not None else (x,), Draws()
        self.arguments = {**FIT, "strategy": strategy, "microbatch_size": microbatch}
        for _ in range(warm + 1):
            self._fit()
        self.variables = [*model.variables, *(v for v in model.optimizer.variables if v is not model.optimizer.budget)]
        self.start = [np.array(ops.convert_to_numpy(v.value)) for v in self.variables]

    def _fit(self):
        model, steps = self.model, self.model.steps_per_execution
        self.draws.last = model.run.ledger.updates + steps - 1
        with fixed(self.draws):
            model.fit(*self.data, steps_per_epoch=steps, **self.arguments)

    def release(self, chosen, noise=True):
        """Returns what the last update hands to the optimizer, one array per weight, and the strategy's state."""
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)
        self.draws.chosen = np.asarray(chosen)
        silent = mock.patch.object(PrivateOptimizer, "set_noise", _no_noise)
        with contextlib.nullcontext() if noise else silent:
            self._fit()
        optimizer = self.model.optimizer
        seen = [ops.convert_to_numpy(v.value).astype("float64") for v in optimizer.seen]
        return seen, [ops.convert_to_numpy(v.value).astype("float64") for v in optimizer.strategy_state]

    def ratios(self):
        """Returns, for each hostile row, how far it moves the release, over what the ledger charges for."""
        usual = np.arange(ROWS)
        before, state = self.release(usual)
        stddevs = self._stddevs(usual, before)
        multiplier = self.model.run.ledger.entries[-1].noise_multiplier
        found = []
        for row in range(ROWS, len(keras.tree.flatten(self.data)[0])):
            after, moved = self.release([*usual, row])
            square = sum(_square(a - b, s) for a, b, s in zip(after, before, stddevs, strict=True))
            found.append(multiplier * np.sqrt(square + self._count(state, moved)))
        return np.array(found)

    def _stddevs(self, usual, noisy):
        """Returns the standard deviation of the noise in each coordinate of the last update."""
        optimizer = self.model.optimizer
        if self.model.steps_per_execution == 1:
            quiet, _ = self.release(usual, noise=False)
            return [a - b for a, b in zip(noisy, quiet, strict=True)]
        # Without noise the updates before the last one would have led elsewhere.
        if optimizer.strategy_state:
            raise ValueError("Noise that follows a state is measured in executions of one update.")
        return [np.full(a.shape, std) for a, std in zip(noisy, optimizer.noise_std.numpy(), strict=True)]

    def _count(self, state, moved):
        """Returns the square of what a private count has moved, in units of its noise."""
        strategy, calibration = self.model.optimizer.strategy, self.model.optimizer.calibration
        if getattr(strategy, "quantile", None) is None:
            return 0.0
        count = -ROWS * np.log(moved[0] / state[0]) / strategy.quantile_rate
        return float(count / calibration.count_noise_std) ** 2


def _no_noise(optimizer, noise_stddevs):
    optimizer.noise_std.assign(np.zeros(len(noise_stddevs), "float32"))


def _square(difference, stddev):
    """What has no noise must not move at all."""
    if (difference[stddev <= 0.0] != 0.0).any():
        return np.inf
    return float(np.sum(np.square(difference[stddev > 0.0] / stddev[stddev > 0.0])))
