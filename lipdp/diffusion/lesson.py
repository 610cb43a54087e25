"""How a network learns from images that are drawn from noisy moments, before `fit`."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from lipdp import checks
from lipdp.diffusion.class_moments import Mixtures
from lipdp.diffusion.copies import copied
from lipdp.diffusion.noisy import NoisyBatches
from lipdp.sampling import randomness


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesson:
    """How a network learns from drawn images, by stock Keras.

    Args:
        num_images: how many are drawn.
        epochs: passes over them.
        batch_size: how many make a step, at most all.
        learning_rate: of Adam, at the start; it falls to zero.
    """

    num_images: int
    epochs: int
    batch_size: int
    learning_rate: float

    def __post_init__(self):
        for name in ("num_images", "epochs", "batch_size"):
            checks.integer(name, getattr(self, name), minimum=1)
        checks.positive("learning_rate", self.learning_rate)
        if self.batch_size > self.num_images:
            raise ValueError(
                f"`batch_size` must be at most the number of images that are drawn. Received: batch_size="
                f"{self.batch_size!r}, num_images={self.num_images!r}."
            )

    def learn(self, model: Any, found: Mixtures, secret: bytes, verbose: Any) -> keras.callbacks.History:
        """Trains the network of a `DiffusionModel` on images that are drawn from `found`."""
        rng, classes = randomness.generator(secret, "images"), model.num_classes
        labels = np.arange(self.num_images) % found.moments.num_classes
        batches = NoisyBatches(
            found.draw(labels, rng),
            None if classes is None else labels,
            model.denoiser,
            self.batch_size,
            0.0 if classes is None else model.noising.label_dropout,
            classes,
            seed=int(rng.integers(2**63)),
        )
        # A copy: the user may have compiled the network for something else.
        network = copied(model.network)
        rate = keras.optimizers.schedules.CosineDecay(self.learning_rate, self.epochs * len(batches))
        network.compile(keras.optimizers.Adam(rate), loss="mse")
        history = network.fit(batches, epochs=self.epochs, verbose=verbose)
        model.network.set_weights(network.get_weights())
        return history
