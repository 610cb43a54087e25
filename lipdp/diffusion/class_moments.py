"""Noisy moments of the images of each class, and images that are drawn from them."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import keras
import numpy as np

from lipdp import checks
from lipdp.accounting import Sampling
from lipdp.diffusion.noisy import NoisyBatches
from lipdp.layers.frequencies import cosines
from lipdp.privacy import Ledger, Release
from lipdp.sampling import randomness
from lipdp.sampling.columns import read

# Weights of an image in the count of its class, and of its coefficients, beside products of norm 1: those need the
# least noise.
_COUNT, _MEAN = 0.25, 0.5
_AT_ONCE = 4096
# What the ledger calls them.
STRATEGY = "class_moments"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassMoments:
    """What is summed up of images, for each class: how many there are, their coefficients, and products of these.

    Args:
        image_shape: `(height, width, channels)`.
        num_classes: number of classes; 1 where there are none.
        frequencies: lowest frequencies of the cosine transform that are kept along each side.
        norm: L2 norm to which the kept coefficients of an image are clipped.
        center: constant that is subtracted from each entry.

    **Guarantee.** Conditions: the arguments are public. Bound: one image changes the sums by at most `sensitivity` in
    the L2 norm, taken together: it adds to its own class alone `(1/4, f/2, products of f)`, where the coefficients f,
    divided by `norm`, have norm at most 1, and the distinct products of them, those of two different ones times
    `sqrt(2)`, have the norm of f squared. An image that is not finite adds nothing.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    frequencies: int
    norm: float
    center: float

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Returns the shape of the kept coefficients."""
        height, width, channels = self.image_shape
        return min(self.frequencies, height), min(self.frequencies, width), channels

    @property
    def size(self) -> int:
        """Returns how many coefficients are kept."""
        return math.prod(self.sizes)

    @property
    def products(self) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Returns the places of the distinct products in their matrix, and what each is multiplied by."""
        rows, columns = np.triu_indices(self.size)
        return (rows, columns), np.where(rows == columns, 1.0, math.sqrt(2.0))

    @property
    def sensitivity(self) -> float:
        """Returns by how much one image can change the sums."""
        return math.sqrt(_COUNT**2 + _MEAN**2 + 1.0)

    def coefficients(self, x: np.ndarray) -> np.ndarray:
        """Returns the kept coefficients of images, `(n, size)`, of norm at most 1; zeros for one that is not finite."""
        (rows, columns, _), (height, width, _) = self.sizes, self.image_shape
        finite = np.isfinite(x).all(axis=(1, 2, 3))
        with np.errstate(over="ignore"):
            x = np.where(finite[:, None, None, None], x, 0.0).astype("float64") - self.center
        found = np.einsum("ij,njwc->niwc", cosines(rows, height), x, optimize=True)
        found = np.einsum("kw,niwc->nikc", cosines(columns, width), found, optimize=True).reshape(len(x), -1)
        lengths = np.sqrt(np.square(found).sum(axis=1))
        return np.where(finite, 1.0 / np.maximum(lengths, self.norm), 0.0)[:, None] * found

    def images(self, coefficients: np.ndarray) -> np.ndarray:
        """Returns the images of coefficients, `(n, height, width, channels)` in float32."""
        (rows, columns, channels), (height, width, _) = self.sizes, self.image_shape
        found = coefficients.reshape(-1, rows, columns, channels) * self.norm
        found = np.einsum("ij,nikc->njkc", cosines(rows, height), found, optimize=True)
        found = np.einsum("kw,njkc->njwc", cosines(columns, width), found, optimize=True)
        return (found + self.center).astype("float32")

    def sums(self, x: Any, labels: np.ndarray, shares: np.ndarray | None) -> np.ndarray:
        """Returns the sums over all images, `(num_classes, 1 + size + size (size + 1) / 2)` in float64.

        Args:
            x: images, or a column of a source of them.
            labels: `(N,)`, class ids.
            shares: `(N,)`, what each image counts, such that those of one person count at most 1; None: 1 each.
        """
        size, (places, scale) = self.size, self.products
        total = np.zeros((self.num_classes, 1 + size + len(scale)))
        for start in range(0, len(labels), _AT_ONCE):
            index = np.arange(start, min(start + _AT_ONCE, len(labels)))
            images = np.asarray(read(x, index), "float32")
            finite = np.isfinite(images).all(axis=(1, 2, 3))
            found = self.coefficients(images)
            counted = finite * (1.0 if shares is None else shares[index])
            for one in np.unique(labels[index]):
                mine = labels[index] == one
                part, count = found[mine], counted[mine]
                products = (part * count[:, None]).T @ part
                total[one] += np.concatenate([[_COUNT * count.sum()], _MEAN * (count @ part), scale * products[places]])
        return total


@dataclasses.dataclass(frozen=True)
class Gaussians:
    """A normal distribution of coefficients for each class, from noisy sums.

    Args:
        moments: what was summed.
        means: `(num_classes, size)`.
        roots: `(num_classes, size, size)`: a normal vector times its root has the covariance of its class.
    """

    moments: ClassMoments
    means: np.ndarray
    roots: np.ndarray

    @classmethod
    def from_sums(cls, moments: ClassMoments, sums: np.ndarray, deviation: float) -> Gaussians:
        """Returns what noisy sums say.

        What is smaller than the noise in it is left out: variance along a direction below the largest that noise
        alone makes, and as much of a mean as noise adds to its square.

        Args:
            moments: what was summed.
            sums: with noise, see `ClassMoments.sums`.
            deviation: standard deviation of that noise.
        """
        size, (places, scale) = moments.size, moments.products
        means, roots = np.zeros((len(sums), size)), np.zeros((len(sums), size, size))
        for one, row in enumerate(sums):
            count = max(row[0] / _COUNT, deviation / _COUNT)
            mean, noise = row[1 : 1 + size] / (_MEAN * count), deviation / count
            square = float(mean @ mean)
            mean = mean * max(0.0, 1.0 - size * (noise / _MEAN) ** 2 / square) if square else mean
            second = np.zeros((size, size))
            second[places] = row[1 + size :] / count / scale
            second = second + np.triu(second, 1).T
            values, vectors = np.linalg.eigh(second - np.outer(mean, mean))
            # Largest eigenvalue of a symmetric matrix of such noise: off the diagonal it is sqrt(2) smaller.
            kept = np.where(values > noise * math.sqrt(2.0 * size), values, 0.0)
            means[one], roots[one] = mean, np.sqrt(kept)[:, None] * vectors.T
        return cls(moments, means, roots)

    def draw(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns an image for each label, entries in [-1, 1]."""
        found = rng.standard_normal((len(labels), self.moments.size))
        for one in np.unique(labels):
            mine = labels == one
            found[mine] = self.means[one] + found[mine] @ self.roots[one]
        return np.clip(self.moments.images(found), -1.0, 1.0)


def released(
    moments: ClassMoments, x: Any, labels: np.ndarray, shares: np.ndarray | None, deviation: float, secret: bytes
) -> Gaussians:
    """Returns the distributions that the sums over private images say, with noise of this standard deviation."""
    sums = moments.sums(x, labels, shares)
    noise = randomness.generator(secret, "moments", sums.tobytes()).normal(size=sums.shape)
    return Gaussians.from_sums(moments, sums + deviation * noise, deviation)


def release(moments: ClassMoments, noise_multiplier: float, scheme: Sampling, rows_per_person: int | None) -> Release:
    """Returns what the moments cost under the neighboring relation of a scheme that is bound to the data."""
    count = int(scheme.num_examples or 1)
    whole = Sampling("poisson", relation=scheme.relation, rows_per_person=rows_per_person)
    return Release(
        sampling=whole.bind(count, count),
        noise_multiplier=checks.between("noise_multiplier", noise_multiplier, 1e-3, 1e6),
        sensitivity=moments.sensitivity,
        strategy=STRATEGY,
        noise_allocation="global",
        kind="moments",
    )


def learned(ledger: Ledger) -> bool:
    """Whether a ledger holds moments of classes."""
    return any(entry.strategy == STRATEGY for entry in ledger.entries)


def refuse_split(validation_split: float | None) -> None:
    """Refuses to hold out rows of which the moments know."""
    if validation_split:
        raise ValueError(
            "Moments are learned from all rows, so that figures of held-out ones would not be those of new rows. "
            f"Received: validation_split={validation_split!r}. Split the rows first, and pass validation_data."
        )


def secret_of(seed: int | None, moments: ClassMoments, noise_multiplier: float, data: bytes, ledger: str) -> bytes:
    """Returns what the noise derives from: fresh, or of the seed, the data and all that was asked for."""
    asked = json.dumps([dataclasses.asdict(moments), noise_multiplier])
    return randomness.from_seed(seed, "moments of classes", asked, data, ledger)


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

    def learn(self, model: Any, found: Gaussians, secret: bytes, verbose: Any) -> keras.callbacks.History:
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
        network = keras.models.clone_model(model.network)
        network.set_weights(model.network.get_weights())
        rate = keras.optimizers.schedules.CosineDecay(self.learning_rate, self.epochs * len(batches))
        network.compile(keras.optimizers.Adam(rate), loss="mse")
        history = network.fit(batches, epochs=self.epochs, verbose=verbose)
        model.network.set_weights(network.get_weights())
        return history
