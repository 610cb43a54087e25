"""Samplers: from noise to data, given a denoiser."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, backend, checks
from lipdp.diffusion import denoisers


@_keras.configured
class Sampler:
    """Base of the samplers: a walk down N noise levels and a last step to noise level 0.

    The levels are `s_i = (s_max^(1/rho) + i / (N - 1) (s_min^(1/rho) - s_max^(1/rho)))^rho` for i = 0, ..., N - 1.

    Args:
        steps: number N of noise levels, at least 2.
        rho: bend of the schedule, above 0; larger values spend more steps at low noise.
        sigma_min: lowest noise level, above 0.
        sigma_max: highest noise level, above `sigma_min`.

    Raises:
        ValueError: when an argument is out of its range.

    Source: Karras et al. 2022, equation 5.
    """

    def __init__(self, steps: int = 50, rho: float = 7.0, sigma_min: float = 0.002, sigma_max: float = 80.0):
        self.steps, self.rho = checks.integer("steps", steps, minimum=2), checks.positive("rho", rho)
        self.sigma_min, self.sigma_max = denoisers.sigma_range(sigma_min, sigma_max)

    def levels(self) -> np.ndarray:
        """Returns the N noise levels, highest first."""
        high, low = self.sigma_max ** (1.0 / self.rho), self.sigma_min ** (1.0 / self.rho)
        return np.linspace(high, low, self.steps) ** self.rho

    def coefficients(self) -> np.ndarray:
        """Returns what each step needs to know, `(N, k)` numbers; the last row is the step to noise level 0."""
        raise NotImplementedError

    def step(self, denoise: Callable, x: Any, coefficients: Any, noise: Any) -> Any:
        """Returns the examples at the next noise level.

        Args:
            denoise: maps examples and a scalar noise level to clean estimates.
            x: examples at this noise level.
            coefficients: this step's row.
            noise: function that draws standard normals of the shape of x.
        """
        raise NotImplementedError

    def finish(self, denoise: Callable, x: Any, coefficients: Any, noise: Any) -> Any:
        """Returns the clean examples, from the lowest noise level."""
        return denoise(x, coefficients[0])

    @classmethod
    def from_config(cls, config: dict) -> "Sampler":
        return cls(**config)


@_keras.serializable
class DDIM(Sampler):
    """First order, one evaluation of the network per step: deterministic, or with a share of fresh noise.

    From level s to t: `x' = D + (down / s) (x - D) + up * noise` with `up = eta t sqrt(1 - t^2 / s^2)` and
    `down = sqrt(t^2 - up^2)`; for one-point data each level is reached exactly.

    Args:
        steps: see `Sampler`.
        eta: 0, deterministic, to 1, stochastic ("ancestral").
        rho: see `Sampler`.
        sigma_min: see `Sampler`.
        sigma_max: see `Sampler`.

    Source: Song et al. 2021, *Denoising diffusion implicit models*, in terms of noise levels.
    """

    def __init__(
        self, steps: int = 50, eta: float = 0.0, rho: float = 7.0, sigma_min: float = 0.002, sigma_max: float = 80.0
    ):
        super().__init__(steps, rho, sigma_min, sigma_max)
        self.eta = checks.between("eta", eta, 0, 1)

    def coefficients(self) -> np.ndarray:
        s = self.levels()
        t = np.append(s[1:], 0.0)
        up = self.eta * t * np.sqrt(1.0 - np.square(t / s))
        return np.stack([s, np.sqrt(np.square(t) - np.square(up)) / s, up], axis=1)

    def step(self, denoise: Callable, x: Any, coefficients: Any, noise: Any) -> Any:
        clean = denoise(x, coefficients[0])
        x = clean + coefficients[1] * (x - clean)
        return x + coefficients[2] * noise() if self.eta else x


@_keras.serializable
class Churn(Sampler):
    """Second order (Heun), two evaluations per step, with noise put back before each step ("churn").

    Args:
        steps: see `Sampler`.
        s_churn: total amount of noise to put back, >= 0, in units of the noise levels passed; 0: deterministic.
        s_min: lowest noise level at which noise is put back.
        s_max: highest of these.
        s_noise: standard deviation of the noise put back, above 0; a little above 1 makes up for a network that
            removes too much.
        rho: see `Sampler`.
        sigma_min: see `Sampler`.
        sigma_max: see `Sampler`.

    Source: Karras et al. 2022, algorithm 2.
    """

    def __init__(
        self,
        steps: int = 50,
        s_churn: float = 0.0,
        s_min: float = 0.0,
        s_max: Any = math.inf,
        s_noise: float = 1.0,
        rho: float = 7.0,
        sigma_min: float = 0.002,
        sigma_max: float = 80.0,
    ):
        super().__init__(steps, rho, sigma_min, sigma_max)
        self.s_churn, self.s_noise = checks.not_negative("s_churn", s_churn), checks.positive("s_noise", s_noise)
        if not 0.0 <= s_min <= s_max:
            raise ValueError(f"`s_min` must be between 0 and `s_max`. Received: s_min={s_min!r}, s_max={s_max!r}.")
        self.s_min, self.s_max = float(s_min), float(s_max)

    def coefficients(self) -> np.ndarray:
        s = self.levels()
        inside = (s >= self.s_min) & (s <= self.s_max)
        raised = s * (1.0 + inside * min(self.s_churn / self.steps, math.sqrt(2.0) - 1.0))
        return np.stack([raised, np.append(s[1:], 0.0), self.s_noise * np.sqrt(raised**2 - s**2)], axis=1)

    def step(self, denoise: Callable, x: Any, coefficients: Any, noise: Any) -> Any:
        here, there = coefficients[0], coefficients[1]
        x = self._raise(x, coefficients, noise)
        slope = (x - denoise(x, here)) / here
        ahead = x + (there - here) * slope
        return x + (there - here) * 0.5 * (slope + (ahead - denoise(ahead, there)) / there)

    def finish(self, denoise: Callable, x: Any, coefficients: Any, noise: Any) -> Any:
        return denoise(self._raise(x, coefficients, noise), coefficients[0])

    def _raise(self, x, coefficients, noise):
        return x + coefficients[2] * noise() if self.s_churn else x


SAMPLERS = {"ddim": DDIM, "churn": Churn}


def get(identifier: str | Sampler) -> Sampler:
    """Returns a sampler from its name (`"ddim"`, `"churn"`) or itself."""
    return denoisers.named(identifier, SAMPLERS, Sampler)


def sample(
    denoise: Callable,
    shape: tuple[int, ...],
    num_samples: int,
    sampler: str | Sampler = "ddim",
    labels: np.ndarray | None = None,
    variables: Sequence[keras.Variable] = (),
    batch_size: int = 256,
    seed: int | None = None,
    verbose: int = 0,
) -> np.ndarray:
    """Draws examples, in batches of one size, each step compiled.

    Args:
        denoise: `denoise(x, sigma, labels)` returns the estimate of the clean examples; sigma is `(batch,)`, labels
            None when none are given.
        shape: shape of one example.
        num_samples: how many to draw, at least 1.
        sampler: a `DDIM`, a `Churn` or their name.
        labels: class ids, `(num_samples,)`, or None.
        variables: the Keras variables that `denoise` reads.
        batch_size: examples at once.
        seed: non-negative integer that makes the draw repeatable, or None.
        verbose: 1 shows a progress bar.

    Returns:
        Float32 array `(num_samples, *shape)`.

    Raises:
        ValueError: when an argument is out of its range.

    Example:
        >>> from lipdp import diffusion
        >>> points = diffusion.sample(lambda x, sigma, labels: 0.0 * x + 3.0, (2,), num_samples=5)
        >>> points.shape, float(points.min()), float(points.max())
        ((5, 2), 3.0, 3.0)
    """
    sampler = get(sampler)
    num_samples = checks.integer("num_samples", num_samples, minimum=1)
    batch_size = min(checks.integer("batch_size", batch_size, minimum=1), num_samples)
    seed, labels = checks.integer("seed", seed, optional=True), _class_ids(labels, num_samples)
    size, full = math.prod(shape) * batch_size, (batch_size, *shape)

    def walk(advance):
        def step(x, batch_labels, coefficients, key):
            def clean(x, level):
                return denoise(x, ops.broadcast_to(level, (batch_size,)), batch_labels)

            return advance(clean, x, coefficients, lambda: ops.reshape(backend.normal(size, key, "threefry"), full))

        return backend.compiled(step, list(variables))

    step, finish = walk(sampler.step), walk(sampler.finish)
    rows = [ops.convert_to_tensor(row, "float32") for row in sampler.coefficients()]
    words = np.random.default_rng(seed)
    batches = -(-num_samples // batch_size)
    progress = keras.utils.Progbar(batches * sampler.steps, verbose=verbose, unit_name="step")
    result = np.empty((batches * batch_size, *shape), "float32")
    for batch in range(batches):
        # A padded last batch keeps the shape, hence the compiled step.
        part = slice(batch * batch_size, (batch + 1) * batch_size)
        batch_labels = None if labels is None else ops.convert_to_tensor(np.resize(labels[part], batch_size))
        # Nothing secret: two words are enough, the others are zero.
        keys = np.pad(words.integers(0, 2**32, size=(sampler.steps + 1, 2), dtype="uint32"), ((0, 0), (0, 6)))
        x = sampler.sigma_max * ops.reshape(backend.normal(size, ops.convert_to_tensor(keys[0]), "threefry"), full)
        for i, row in enumerate(rows):
            advance = finish if i == sampler.steps - 1 else step
            x = advance(x, batch_labels, row, ops.convert_to_tensor(keys[i + 1]))
            progress.add(1)
        result[part] = ops.convert_to_numpy(x)
    return result[:num_samples]


def generate(
    network: keras.Model,
    num_samples: int,
    denoiser: Any = "edm",
    sampler: str | Sampler = "ddim",
    labels: np.ndarray | None = None,
    num_classes: int | None = None,
    guidance: float = 0.0,
    batch_size: int = 256,
    seed: int | None = None,
    verbose: int = 0,
) -> np.ndarray:
    """Draws examples from a trained network.

    Args:
        network: a `keras.Model` of `[x, c_noise]` or `[x, c_noise, label]`, such as `unet` returns.
        num_samples: how many to draw.
        denoiser: the `Denoiser` that it was trained with, or its name.
        sampler: see `sample`.
        labels: class ids `(num_samples,)`; default: all classes in turn. Frequencies counted in private data would
            be one more release.
        num_classes: number of classes C of a network with labels; C itself stands for "no label".
        guidance: scale >= 0 of classifier-free guidance.
        batch_size: see `sample`.
        seed: see `sample`.
        verbose: see `sample`.

    Returns:
        Float32 array `(num_samples, ...)`.

    Raises:
        ValueError: when an argument is out of its range, or labels do not fit the network.
    """
    guidance = checks.not_negative("guidance", guidance)
    conditional = len(network.inputs) > 2
    if conditional and num_classes is None or not conditional and (labels is not None or guidance):
        raise ValueError(
            f"The network {'takes' if conditional else 'has no'} labels. Received: num_classes={num_classes!r}, "
            f"labels={'None' if labels is None else 'given'}, guidance={guidance!r}. Pass `num_classes` for a network "
            "with labels, neither labels nor guidance for one without."
        )
    if conditional:
        labels = _within(labels, num_samples, num_classes)
    denoiser = denoisers.get(denoiser)

    def denoise(x, sigma, labels):
        return denoiser.denoise(network, x, sigma, labels, guidance, num_classes)

    shape, weights = tuple(network.inputs[0].shape[1:]), network.variables
    return sample(denoise, shape, num_samples, sampler, labels, weights, batch_size, seed, verbose)


def _class_ids(labels, num_samples: int) -> np.ndarray | None:
    if labels is None:
        return None
    labels = np.asarray(labels)
    if labels.shape != (num_samples,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"`labels` must be one class id per example. Received: shape {labels.shape}, dtype {labels.dtype}, for "
            f"num_samples={num_samples}. Pass an array of whole numbers; of one class alone np.full({num_samples}, "
            f"{labels if labels.shape == () and labels.dtype.kind in 'iu' else 0})."
        )
    return labels.astype("int32")


def _within(labels, num_samples: int, num_classes: int) -> np.ndarray:
    """Returns class ids that the network knows: of others TensorFlow fails, and JAX draws NaN."""
    if labels is None:
        return np.arange(checks.integer("num_samples", num_samples, minimum=1)) % num_classes
    labels = _class_ids(labels, num_samples)
    if labels.min() < 0 or labels.max() >= num_classes:
        wrong = labels[(labels < 0) | (labels >= num_classes)][0]
        raise ValueError(
            f"`labels` must be class ids from 0 to {num_classes - 1}. Received: {wrong}. Number the classes from 0, as "
            "in training."
        )
    return labels
