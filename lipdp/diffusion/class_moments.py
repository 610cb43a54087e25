"""Noisy moments of the images of each class, mixtures of normal distributions that have them, and what these draw."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np

from lipdp import _keras, checks
from lipdp.accounting import Sampling
from lipdp.diffusion.class_mixture import ClassMixture
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
        # One product for each image, see `nearest`.
        found = cosines(rows, height).astype("float64") @ np.moveaxis(x, 3, 1) @ cosines(columns, width).T
        found = np.moveaxis(found, 1, 3).reshape(len(x), -1)
        lengths = np.sqrt(np.square(found).sum(axis=1))
        return np.where(finite, 1.0 / np.maximum(lengths, self.norm), 0.0)[:, None] * found

    def images(self, coefficients: np.ndarray) -> np.ndarray:
        """Returns the images of coefficients, `(n, height, width, channels)` in float32."""
        (rows, columns, channels), (height, width, _) = self.sizes, self.image_shape
        found = coefficients.reshape(-1, rows, columns, channels) * self.norm
        found = np.einsum("ij,nikc->njkc", cosines(rows, height), found, optimize=True)
        found = np.einsum("kw,njkc->njwc", cosines(columns, width), found, optimize=True)
        return (found + self.center).astype("float32")

    def sums(
        self, x: Any, labels: np.ndarray, shares: np.ndarray | None, centers: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the sums over all images, a row for each class, in float64.

        Each image is counted beside the center of its class that is nearest to it: a row holds M counts, M times the
        sum of coefficients, and the products of all images of the class, `(num_classes, M + M size + size (size + 1) /
        2)`.

        Args:
            x: images, or a column of a source of them.
            labels: `(N,)`, class ids.
            shares: `(N,)`, what each image counts, such that those of one person count at most 1; None: 1 each.
            centers: `(num_classes, M, size)`, which nothing but earlier releases decides; default: one for each class.
        """
        centers = np.zeros((self.num_classes, 1, self.size)) if centers is None else centers
        (places, scale), components = self.products, centers.shape[1]
        total = np.zeros((self.num_classes, components * (1 + self.size) + len(scale)))
        for start in range(0, len(labels), _AT_ONCE):
            index = np.arange(start, min(start + _AT_ONCE, len(labels)))
            images = np.asarray(read(x, index), "float32")
            finite = np.isfinite(images).all(axis=(1, 2, 3))
            found = self.coefficients(images)
            counted = finite * (1.0 if shares is None else shares[index])
            for one in np.unique(labels[index]):
                mine = labels[index] == one
                part, center = found[mine], centers[one]
                members = (nearest(part, center) == np.arange(components)[:, None]) * counted[mine]
                products = (part * counted[mine][:, None]).T @ part
                added = _COUNT * members.sum(axis=1), _MEAN * (members @ part).ravel(), scale * products[places]
                total[one] += np.concatenate(added)
        return total


def nearest(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Returns which center is nearest to each row, by nothing but this row and the centers.

    No product of matrices, which is rounded otherwise for another number of rows, or another place in memory: where
    centers are alike, one image more could then move others to another center.
    """
    return np.square(rows[:, None] - centers).sum(axis=2).argmin(axis=1)


@dataclasses.dataclass(frozen=True)
class Sums:
    """What noisy sums of one class say, see `ClassMoments.sums`: noise of `deviation` was added to each.

    Args:
        counts: `(M,)`, images beside each center; at least what noise makes of none.
        means: `(M, size)`, of these images.
        second: `(size, size)`, mean products of all of them.
        noise: standard deviation of an entry of `second`.
        noises: `(M, 1)`, of an entry of each mean.
    """

    counts: np.ndarray
    means: np.ndarray
    second: np.ndarray
    noise: float
    noises: np.ndarray

    @classmethod
    def of(cls, moments: ClassMoments, row: np.ndarray, components: int, deviation: float) -> Sums:
        """Returns what a row of the sums says."""
        size, (places, scale) = moments.size, moments.products
        counts, means, products = np.split(row, [components, components * (1 + size)])
        least = deviation / _COUNT
        counts = np.maximum(counts / _COUNT, least)
        # Products are those of the class, whatever its components.
        whole = float(max(row[:components].sum() / _COUNT, least))
        second = np.zeros((size, size))
        second[places] = products / whole / scale
        means = means.reshape(components, size) / (_MEAN * counts[:, None])
        noises = deviation / (_MEAN * counts[:, None])
        return cls(counts, means, second + np.triu(second, 1).T, deviation / whole, noises)


@dataclasses.dataclass(frozen=True)
class Mixtures:
    """A mixture of normal distributions of coefficients for each class; those of one class vary alike.

    Args:
        moments: what was summed.
        shares: `(num_classes, M)`, how much of its class each component is.
        centers: `(num_classes, M, size)`.
        variances: `(num_classes, size)`, along the rows of `axes`.
        axes: `(num_classes, size, size)`, orthonormal rows.
    """

    moments: ClassMoments
    shares: np.ndarray
    centers: np.ndarray
    variances: np.ndarray
    axes: np.ndarray

    def draw(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns an image for each label from mixtures of one component, entries in [-1, 1]."""
        found = rng.standard_normal((len(labels), self.moments.size))
        for one in np.unique(labels):
            mine = labels == one
            root = np.sqrt(self.variances[one])[:, None] * self.axes[one]
            found[mine] = self.centers[one, 0] + found[mine] @ root
        return np.clip(self.moments.images(found), -1.0, 1.0)


def _principal(covariance: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the variances along the axes of noisy covariances, 0 where noise alone makes as much, and the axes."""
    values, vectors = np.linalg.eigh(covariance)
    # Largest eigenvalue of a symmetric matrix of such noise: off the diagonal it is sqrt(2) smaller.
    return np.where(values > noise * math.sqrt(2.0 * len(values)), values, 0.0), vectors.T


def mixtures(
    moments: ClassMoments, query: Any, components: int, rounds: int, deviation: float, rng: np.random.Generator
) -> Mixtures:
    """Returns the distributions that noisy sums say; all that is private comes from the `1 + rounds` calls of `query`.

    The first call gives a normal distribution for each class. Centers are drawn from it, and each further call moves
    them to the means of the images nearest to them, as in k-means. What is smaller than the noise in it is left out:
    variance along a direction below the largest that noise alone makes, as much of the mean of a class as noise adds
    to its square, and of the distance of a center to it the part that noise is expected to be.

    Args:
        moments: what is summed.
        query: maps centers `(num_classes, M, size)`, or None, to noisy sums.
        components: M.
        rounds: how often centers are moved; 0 with one component.
        deviation: standard deviation of the noise in each sum.
        rng: draws the first centers; none of it needs to be secret.
    """
    classes, size = moments.num_classes, moments.size
    shares, centers = np.full((classes, components), 1.0 / components), np.zeros((classes, components, size))
    variances, axes = np.zeros((classes, size)), np.zeros((classes, size, size))
    seconds, noises, means = np.zeros((classes, size, size)), np.zeros(classes), np.zeros((classes, size))
    for one, row in enumerate(query(None)):
        sums = Sums.of(moments, row, 1, deviation)
        square = float(sums.means[0] @ sums.means[0])
        left = max(0.0, 1.0 - size * sums.noises[0, 0] ** 2 / square) if square else 1.0
        means[one], seconds[one], noises[one] = sums.means[0] * left, sums.second, sums.noise
        variances[one], axes[one] = _principal(sums.second - np.outer(means[one], means[one]), sums.noise)
        centers[one] = means[one]
    if components == 1:
        return Mixtures(moments, shares, centers, variances, axes)
    for one in range(classes):
        centers[one] += rng.standard_normal((components, size)) * np.sqrt(variances[one]) @ axes[one]
    for done in range(1, rounds + 1):
        for one, row in enumerate(query(centers)):
            sums = Sums.of(moments, row, components, deviation)
            kept = variances[one] / (variances[one] + np.square(sums.noises))
            centers[one] = means[one] + (kept * ((sums.means - means[one]) @ axes[one].T)) @ axes[one]
            shares[one] = sums.counts / sums.counts.sum()
            # Each query has asked for the products of all images.
            seconds[one] += (sums.second - seconds[one]) / (done + 1)
            noises[one] = math.hypot(noises[one] * done, sums.noise) / (done + 1)
    for one in range(classes):
        between = (centers[one] * shares[one][:, None]).T @ centers[one]
        variances[one], axes[one] = _principal(seconds[one] - between, noises[one])
    return Mixtures(moments, shares, centers, variances, axes)


def released(
    moments: ClassMoments,
    x: Any,
    labels: np.ndarray,
    shares: np.ndarray | None,
    deviation: float,
    secret: bytes,
    components: int = 1,
    rounds: int = 0,
) -> Mixtures:
    """Returns the distributions that `1 + rounds` sums over private images say, each with noise of this deviation."""
    done = 0

    def query(centers):
        nonlocal done
        sums = moments.sums(x, labels, shares, centers)
        name = "moments" if done == 0 else f"moments {done}"
        done += 1
        return sums + deviation * randomness.generator(secret, name, sums.tobytes()).normal(size=sums.shape)

    return mixtures(moments, query, components, rounds, deviation, randomness.generator(secret, "centers"))


def queries(components: int, rounds: int) -> int:
    """Returns how often the data are asked, for a network with that many components, or with none."""
    return 1 + rounds if components > 1 else 1


def noise(epsilon: float, times: int = 1) -> float:
    """Returns a noise multiplier of each query that suits a budget: all of them cost about half of epsilon.

    Chosen on held-out images of MNIST, one query at 1 and three at 10.
    """
    return 7.0 * epsilon**-0.7 * times ** (0.5 - 0.4 * math.log10(epsilon))


def asked(
    model: Any, frequencies: int | None, center: float | None, norm: float | None, rounds: int
) -> tuple[ClassMixture | None, ClassMoments, int]:
    """Returns the layer of a model that takes mixtures, if it has one, what to sum up for it, and how often anew."""
    num_classes, shape = model.num_classes, tuple(model.network.inputs[0].shape[1:])
    layers = [layer for layer in _keras.walk(model.network) if isinstance(layer, ClassMixture)]
    if len(layers) > 1:
        raise ValueError(f"A network has one ClassMixture at most. Received: {len(layers)}.")
    own = layers[0] if layers else ClassMixture(num_classes)
    for name, value in (("frequencies", frequencies), ("center", center)):
        if layers and value not in (None, getattr(own, name)):
            raise ValueError(
                f"Layer '{own.name}' has `{name}`={getattr(own, name)!r}. Received: {value!r}. Leave it out."
            )
    if layers and own.image_shape != shape:
        raise ValueError(
            f"Layer '{own.name}' must see the images of the network, of shape {shape}. Received: a layer that sees "
            f"{own.image_shape}. Call it on the inputs of the network."
        )
    if own.num_classes != num_classes:
        raise ValueError(
            f"Layer '{own.name}' must have the classes of the model. Received: {own.num_classes!r} and {num_classes!r}."
        )
    if layers and not own.understands(model.denoiser):
        raise ValueError(
            f"Layer '{own.name}' must have the denoiser of the model. Received: {type(own.denoiser).__name__} and "
            f"{type(model.denoiser).__name__}. Pass ClassMixture(denoiser=) what DiffusionModel has."
        )
    moments = ClassMoments(
        image_shape=shape,
        num_classes=num_classes or 1,
        frequencies=checks.integer("frequencies", frequencies, minimum=1, optional=True) or own.frequencies,
        norm=checks.between("norm", norm, 1e-6, 1e6, optional=True) or 0.6 * math.sqrt(math.prod(shape)),
        center=own.center if center is None else checks.between("center", center, -1e6, 1e6),
    )
    rounds = checks.integer("rounds", rounds, minimum=1)
    return (own if layers else None), moments, queries(own.components, rounds) - 1


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


def secret_of(
    seed: int | None, moments: ClassMoments, noise_multiplier: float, data: bytes, ledger: str, queries: tuple = ()
) -> bytes:
    """Returns what the noise derives from: fresh, or of the seed, the data and all that was asked for."""
    wanted = json.dumps([dataclasses.asdict(moments), noise_multiplier, *queries])
    return randomness.from_seed(seed, "moments of classes", wanted, data, ledger)
