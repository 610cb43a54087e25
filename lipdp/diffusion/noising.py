"""The layer and the loss that turn a network into something that trains on clean examples."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, backend, checks, isolation, strategies
from lipdp.diffusion import denoisers
from lipdp.sampling import randomness


class _Ratchet(keras.random.SeedGenerator):
    """A seed generator whose state, 256 bits, does not give its earlier seeds: see `backend.ratchet`."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._dtype = self.state.dtype  # of the seeds that the framework takes
        self.state: Any = keras.Variable(self._fresh(), dtype="uint32", trainable=False, name="noising_state")

    @staticmethod
    def _fresh() -> np.ndarray:
        return randomness.words(backend.of_first(randomness.fresh()), "noising")

    def reseed(self, words: np.ndarray | None) -> None:
        """Begins anew from eight secret words, by default from the operating system's."""
        self.state.assign(self._fresh() if words is None else words)

    def next(self, ordered=True):
        key, following = backend.ratchet(self.state.value)
        self.state.assign(following)
        return ops.cast(key[:2], self._dtype)


@_keras.serializable
class Noising(keras.layers.Layer):
    """Turns clean examples into what a network sees, and what it should return, with fresh noise at each call.

    Args:
        denoiser: a `Denoiser` or its name.
        num_classes: number of classes C, or None without labels; C stands for "no label".
        label_dropout: probability in [0, 1) with which a label becomes "no label".

    Inputs: `x`, `(rows, ...)`, or `[x, labels]` with labels `(rows,)`. Outputs: `(x_in, c_noise, target)` or
    `(x_in, c_noise, target, labels)`.

    **Guarantee.** Row i of the outputs is a function of row i of the inputs and of randomness of its own. That
    randomness is independent from row to row, comes from the secret of the run, and is not in a model file: only that
    of a run with a seed holds the state for the next call. A release needs it secret: which noise belongs to an example
    depends on its place among the others. Not covered: a seed that others can guess; each call draws with the
    framework's generator, under a key of 64 bits that ChaCha20 gave.
    """

    def __init__(
        self, denoiser: Any = "edm", num_classes: int | None = None, label_dropout: float = 0.1, **kwargs: Any
    ):
        # In bfloat16 the noise and its level would not be those that samplers go by.
        super().__init__(**{"dtype": "float32", "autocast": False, **kwargs})
        if isinstance(denoiser, dict):
            denoiser = keras.saving.deserialize_keras_object(denoiser)
        self.denoiser, self.num_classes = denoisers.get(denoiser), num_classes
        self.label_dropout = checks.below_one("label_dropout", label_dropout)
        self.seeds = _Ratchet()

    def call(self, inputs: Any) -> Any:
        x, labels = (inputs, None) if self.num_classes is None else inputs
        rows = ops.shape(x)[0]
        u = keras.random.uniform((rows,), seed=self.seeds)
        noise = keras.random.normal(ops.shape(x), seed=self.seeds)
        training_pair = self.denoiser.training_pair
        if isolation.root(type(self.denoiser)) != "lipdp":
            training_pair = isolation.alone(training_pair, f"Denoiser {type(self.denoiser).__name__}")
        outputs = training_pair(x, noise, u)
        if labels is None:
            return outputs
        dropped = keras.random.uniform((rows,), seed=self.seeds) < self.label_dropout
        labels = ops.where(dropped, self.num_classes, ops.cast(labels, "int32"))
        return (*outputs, labels)


@keras.saving.register_keras_serializable(package="lipdp")
class DenoisingLoss(keras.losses.Loss):
    """Mean square of the model's output, which is already the error; labels are not looked at."""

    def __init__(self, name: str = "denoising_loss", reduction: str = "sum_over_batch_size", dtype: Any = None):
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_pred), axis=tuple(range(1, len(y_pred.shape))))


def with_copies(strategy: strategies.Strategy, noise_multiplicity: int) -> strategies.Strategy:
    """Returns a strategy that clips the gradient of an example over its noisy copies.

    Raises:
        ValueError: it does not clip, remembers norms, or asks for other copies.
    """
    if not strategy.per_example:
        raise ValueError(
            f"A diffusion model needs a strategy that clips. Received: strategy={strategy.name!r}. Use 'dpsgd', "
            "'adaclip' or an object of lipdp.strategies."
        )
    if not isinstance(strategy, strategies.PerExample):
        raise ValueError(
            f"Strategy {strategy.name!r} remembers gradient norms, which here change with the noise of a copy. "
            "Use 'dpsgd', 'adaclip' or an object of lipdp.strategies that clips."
        )
    copies, augmentation = strategy.augmentation_multiplicity, strategy.augmentation
    if augmentation is not None or copies not in (1, noise_multiplicity):
        raise ValueError(
            "The copies of an example differ by their noise: set `noise_multiplicity` on the model. Received: "
            f"augmentation_multiplicity={copies!r}, augmentation={augmentation!r}."
        )
    found: Any = strategy
    return dataclasses.replace(found, augmentation_multiplicity=noise_multiplicity)
