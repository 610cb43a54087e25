"""Denoisers: what the output of a network means at each noise level, and at which levels it is trained."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from lipdp import _keras, checks

# Uniform draws of float32 reach 0, where the normal quantile is infinite.
_SMALLEST = 2.0**-24

# Standard deviation of a uniform law on [-1, 1].
SIGMA_DATA = math.sqrt(1 / 3)


class Denoiser:
    """Base of the four configurations: `D(x; s) = c_skip x + c_out F(c_in x, c_noise)` for noise level s.

    F is the network, D(x; s) estimates the clean example behind `x = clean + s * noise`. Data are expected in
    [-1, 1]. A subclass gives `scalings`, `target`, `sigma` and `density`.

    The loss of one example, `weight(s) |D(x; s) - clean|^2` averaged over its entries, is the mean squared error of
    F against `target`, because `weight = 1 / c_out^2` in all four: networks are trained as plain regressions.

    Source: Karras et al. 2022, table 1; Dockhorn et al. 2023, table 7.
    """

    def scalings(self, sigma: Any) -> tuple:
        """Returns `(c_skip, c_out, c_in, c_noise)`, each of the shape of `sigma`."""
        raise NotImplementedError

    def target(self, x: Any, noise: Any, sigma: Any) -> Any:
        """Returns `(x - c_skip (x + sigma noise)) / c_out`, what F should give, without cancellation.

        Args:
            x: clean examples, `(batch, ...)`.
            noise: standard normals of the same shape.
            sigma: noise levels that broadcast against `x`.
        """
        raise NotImplementedError

    def sigma(self, u: Any) -> Any:
        """Returns the noise levels of training at the quantiles `u`, uniform in [0, 1)."""
        raise NotImplementedError

    def level(self, c_noise: Any) -> Any:
        """Returns the noise levels of which `scalings` makes `c_noise`."""
        raise NotImplementedError

    def density(self, sigma: np.ndarray) -> np.ndarray:
        """Returns the density of the natural logarithm of the noise levels of training, at `sigma`."""
        raise NotImplementedError

    def weight(self, sigma: Any) -> Any:
        """Returns the weight of the squared error of D at `sigma`, `1 / c_out^2`."""
        return 1.0 / ops.square(self.scalings(sigma)[1])

    def training_pair(self, x: Any, noise: Any, u: Any) -> tuple[Any, Any, Any]:
        """Returns `(network_input, c_noise, target)` of a regression step.

        Args:
            x: clean examples `(batch, ...)`, entries in [-1, 1].
            noise: standard normals of the same shape.
            u: uniforms in [0, 1), `(batch,)`.

        Returns:
            The network's first two inputs, of shapes `(batch, ...)` and `(batch,)`, and what it should return.
        """
        sigma = self.sigma(u)
        _, _, c_in, c_noise = self.scalings(sigma)
        wide, c_in = _wide(sigma, x), _wide(c_in, x)
        return c_in * (x + wide * noise), c_noise, self.target(x, noise, wide)

    def denoise(
        self,
        network: Callable,
        x: Any,
        sigma: Any,
        labels: Any = None,
        guidance: float = 0.0,
        no_label: int | None = None,
    ) -> Any:
        """Returns the estimate D(x; sigma) of the clean examples.

        Args:
            network: maps `[x, c_noise]` or `[x, c_noise, labels]` to the shape of x.
            x: noisy examples, `(batch, ...)`.
            sigma: noise levels, `(batch,)`.
            labels: class ids `(batch,)`, for a network that takes them.
            guidance: scale w >= 0 of classifier-free guidance: `(1 + w) D(x; s, label) - w D(x; s)`.
            no_label: the id that stands for "no label"; needed with guidance.
        """
        if guidance and (labels is None or no_label is None):
            raise ValueError(
                "Guidance compares a prediction with and without a label. Received: "
                f"guidance={guidance!r}, labels={'None' if labels is None else 'given'}, no_label={no_label!r}. "
                "Pass both `labels` and `no_label`, or guidance=0."
            )
        c_skip, c_out, c_in, c_noise = self.scalings(sigma)
        inputs = [_wide(c_in, x) * x, c_noise]
        if labels is not None:
            inputs.append(labels)
        if guidance:
            without = ops.full_like(labels, no_label)
            # One call of twice the batch.
            twice = [ops.concatenate([a, b]) for a, b in zip(inputs, [*inputs[:2], without], strict=True)]
            both = network(twice)
            labeled, unlabeled = both[: ops.shape(x)[0]], both[ops.shape(x)[0] :]
            output = (1.0 + guidance) * labeled - guidance * unlabeled
        else:
            output = network(inputs)
        return _wide(c_skip, x) * x + _wide(c_out, x) * ops.cast(output, x.dtype)

    @classmethod
    def from_config(cls, config: dict) -> "Denoiser":
        return cls(**config)


@_keras.serializable
class EDM(Denoiser):
    """The configuration of Karras et al. 2022: log-normal noise levels, unit variance at both ends of F.

    Args:
        sigma_data: standard deviation of the data, a public constant; default: that of a uniform law on [-1, 1].
        p_mean: mean of the logarithm of the noise level in training.
        p_std: standard deviation of that logarithm, above 0.

    Example:
        >>> from lipdp import diffusion
        >>> c_skip, c_out, c_in, c_noise = diffusion.EDM(sigma_data=0.5).scalings(0.5)
        >>> float(c_skip), round(float(c_out), 4), round(float(c_in), 4), round(float(c_noise), 4)
        (0.5, 0.3536, 1.4142, -0.1733)
    """

    def __init__(self, sigma_data: Any = SIGMA_DATA, p_mean: float = -1.2, p_std: float = 1.2):
        self.sigma_data = checks.positive("sigma_data", sigma_data)
        self.p_mean, self.p_std = checks.real("p_mean", p_mean), checks.positive("p_std", p_std)

    def scalings(self, sigma: Any) -> tuple[Any, Any, Any, Any]:
        total = sigma**2 + self.sigma_data**2
        root = ops.sqrt(total)
        return self.sigma_data**2 / total, sigma * self.sigma_data / root, 1.0 / root, ops.log(sigma) / 4.0

    def target(self, x: Any, noise: Any, sigma: Any) -> Any:
        return (x * sigma / self.sigma_data - self.sigma_data * noise) / ops.sqrt(sigma**2 + self.sigma_data**2)

    def sigma(self, u: Any) -> Any:
        u = ops.clip(u, _SMALLEST, 1.0 - _SMALLEST)
        return ops.exp(self.p_mean + self.p_std * math.sqrt(2.0) * ops.erfinv(2.0 * u - 1.0))

    def level(self, c_noise: Any) -> Any:
        return ops.exp(4.0 * c_noise)

    def density(self, sigma: np.ndarray) -> np.ndarray:
        z = (np.log(sigma) - self.p_mean) / self.p_std
        return np.exp(-(z**2) / 2.0) / (self.p_std * math.sqrt(2.0 * math.pi))


@_keras.serializable
class VPrediction(Denoiser):
    """The v-prediction of Salimans and Ho 2022: `sigma = tan(pi t / 2)` with t uniform between two bounds.

    F estimates the clean example less the noise, each with its share; the weight is "SNR + 1".

    Args:
        log_snr_min: lowest `-2 ln(sigma)` of training.
        log_snr_max: highest `-2 ln(sigma)` of training, above `log_snr_min`.
    """

    def __init__(self, log_snr_min: float = -9.0, log_snr_max: float = 13.0):
        self.log_snr_min = checks.real("log_snr_min", log_snr_min)
        self.log_snr_max = checks.real("log_snr_max", log_snr_max)
        if not self.log_snr_min < self.log_snr_max:
            raise ValueError(
                "`log_snr_min` must be below `log_snr_max`. Received: "
                f"log_snr_min={log_snr_min!r}, log_snr_max={log_snr_max!r}."
            )
        self.eps_min, self.eps_max = (
            2.0 / math.pi * math.atan(math.exp(-snr / 2.0)) for snr in (self.log_snr_max, self.log_snr_min)
        )

    def scalings(self, sigma: Any) -> tuple[Any, Any, Any, Any]:
        total = sigma**2 + 1.0
        root = ops.sqrt(total)
        return 1.0 / total, sigma / root, 1.0 / root, 2.0 / math.pi * ops.arctan(sigma)

    def target(self, x: Any, noise: Any, sigma: Any) -> Any:
        return (x * sigma - noise) / ops.sqrt(sigma**2 + 1.0)

    def sigma(self, u: Any) -> Any:
        return ops.tan(math.pi / 2.0 * (self.eps_min + (self.eps_max - self.eps_min) * u))

    def level(self, c_noise: Any) -> Any:
        return ops.tan(math.pi / 2.0 * c_noise)

    def density(self, sigma: np.ndarray) -> np.ndarray:
        t = 2.0 / math.pi * np.arctan(sigma)
        slope = math.pi / 2.0 * (1.0 + np.square(sigma)) / sigma
        return _inside(t, self.eps_min, self.eps_max) / (slope * (self.eps_max - self.eps_min))


@_keras.serializable
class VP(Denoiser):
    """The variance-preserving configuration of Song et al. 2021: F estimates the noise, t is uniform.

    Args:
        beta_d: slope of the noise rate, above 0.
        beta_min: noise rate at time 0, above 0.
        epsilon: lowest time of training, in (0, 1).
        num_steps: number of times M that c_noise counts in, above 1.
    """

    def __init__(self, beta_d: float = 19.9, beta_min: float = 0.1, epsilon: float = 1e-5, num_steps: int = 1000):
        self.beta_d, self.beta_min = checks.positive("beta_d", beta_d), checks.positive("beta_min", beta_min)
        self.epsilon = checks.fraction("epsilon", epsilon)
        self.num_steps = checks.integer("num_steps", num_steps, minimum=2)

    def scalings(self, sigma: Any) -> tuple[Any, Any, Any, Any]:
        # Both forms of ln(1 + sigma^2) and of the root avoid cancellation at small levels.
        growth = ops.log1p(ops.square(sigma))
        time = 2.0 * growth / (self.beta_min + ops.sqrt(self.beta_min**2 + 2.0 * self.beta_d * growth))
        return ops.ones_like(sigma), -sigma, 1.0 / ops.sqrt(sigma**2 + 1.0), (self.num_steps - 1) * time

    def target(self, x: Any, noise: Any, sigma: Any) -> Any:
        return noise + ops.zeros_like(x * sigma)

    def sigma(self, u: Any) -> Any:
        return self._at(self.epsilon + (1.0 - self.epsilon) * u)

    def level(self, c_noise: Any) -> Any:
        return self._at(c_noise / (self.num_steps - 1))

    def density(self, sigma: np.ndarray) -> np.ndarray:
        square = np.square(sigma)
        t = (np.sqrt(self.beta_min**2 + 2.0 * self.beta_d * np.log1p(square)) - self.beta_min) / self.beta_d
        slope = (square + 1.0) * (self.beta_d * t + self.beta_min) / (2.0 * square)
        return _inside(t, self.epsilon, 1.0) / (slope * (1.0 - self.epsilon))

    def _at(self, t):
        return ops.sqrt(ops.expm1(0.5 * self.beta_d * t**2 + self.beta_min * t))


@_keras.serializable
class VE(Denoiser):
    """The variance-exploding configuration of Song et al. 2021: the logarithm of the noise level is uniform.

    Args:
        sigma_min: lowest noise level of training, above 0.
        sigma_max: highest noise level of training, above `sigma_min`.
    """

    def __init__(self, sigma_min: float = 0.002, sigma_max: float = 80.0):
        self.sigma_min, self.sigma_max = sigma_range(sigma_min, sigma_max)

    def scalings(self, sigma: Any) -> tuple[Any, Any, Any, Any]:
        one = ops.ones_like(sigma)
        return one, 1.0 * sigma, one, ops.log(sigma / 2.0)

    def target(self, x: Any, noise: Any, sigma: Any) -> Any:
        return -noise + ops.zeros_like(x * sigma)

    def sigma(self, u: Any) -> Any:
        low, high = math.log(self.sigma_min), math.log(self.sigma_max)
        return ops.exp(low + (high - low) * u)

    def level(self, c_noise: Any) -> Any:
        return 2.0 * ops.exp(c_noise)

    def density(self, sigma: np.ndarray) -> np.ndarray:
        log_sigma, low, high = np.log(sigma), math.log(self.sigma_min), math.log(self.sigma_max)
        return _inside(log_sigma, low, high) / (high - low)


DENOISERS = {"edm": EDM, "v": VPrediction, "vp": VP, "ve": VE}


def get(identifier: str | Denoiser) -> Denoiser:
    """Returns a denoiser from its name (`"edm"`, `"v"`, `"vp"`, `"ve"`) or itself."""
    return named(identifier, DENOISERS, Denoiser)


def named(identifier: Any, known: dict[str, type], base: type) -> Any:
    """Returns an object of `base`: itself, or from its name; ValueError otherwise."""
    if isinstance(identifier, base):
        return identifier
    if isinstance(identifier, str) and identifier in known:
        return known[identifier]()
    raise ValueError(
        f"Unknown {base.__name__.lower()}. Received: {identifier!r}. Use one of {sorted(known)} or an object of "
        "lipdp.diffusion."
    )


def sigma_range(sigma_min: float, sigma_max: float) -> tuple[float, float]:
    """Returns two noise levels, the lower one first; ValueError otherwise."""
    low, high = checks.positive("sigma_min", sigma_min), checks.positive("sigma_max", sigma_max)
    if not low < high:
        raise ValueError(
            f"`sigma_min` must be below `sigma_max`. Received: sigma_min={sigma_min!r}, sigma_max={sigma_max!r}."
        )
    return low, high


def noise_level_importance(denoiser: Denoiser, sigma: np.ndarray, reference: Denoiser | None = None) -> np.ndarray:
    """Returns `p(s) weight(s) / weight_reference(s)`: how much a configuration trains each noise level.

    With the ratio of the weights the loss of one configuration is, level by level, that of the reference, so the
    configurations can be compared. p is the density of ln(s). Not normalized. Source: Dockhorn et al. 2023,
    figure 3.

    Args:
        denoiser: the configuration.
        sigma: noise levels, a NumPy array.
        reference: the configuration whose weight all share; default: `EDM()`.

    Returns:
        An array of the shape of `sigma`.
    """
    weights = [ops.convert_to_numpy(d.weight(np.asarray(sigma, "float32"))) for d in (denoiser, reference or EDM())]
    return denoiser.density(np.asarray(sigma, float)) * weights[0].astype(float) / weights[1]


def _wide(values, like):
    """Shape `(batch,)` to `(batch, 1, ...)`, to broadcast against `like`."""
    return ops.reshape(values, (-1,) + (1,) * (len(like.shape) - 1))


def _inside(values, low, high):
    return (values >= low) & (values <= high)
