"""AdaCliP: gradients are centred and scaled coordinate by coordinate before they are clipped."""

import math

import keras
import numpy as np
from keras import ops

from lipdp.strategies.base import PerExample, clip_factors, total_norm

GRANULARITIES = ("coordinate", "layer")
# Deviations stay within these factors of the first one, whatever the noise makes of their estimates.
_RANGE = (1e-4, 1e4)


@keras.saving.register_keras_serializable(package="lipdp")
class AdaCliP(PerExample):
    """Spends the noise where gradients vary: `w = (g - a) / b` is clipped to norm 1, not g.

    With `s` the standard deviation of one example's gradient, `b^2 = s sum(s)` adds the least noise among
    the transforms for which w has an expected squared norm of 1. Mean `a` and deviation s are estimated
    from the released gradients, so they cost nothing.

    Args:
        clip_norm: L2 norm C > 0. The first update clips to it, with the deviations `C / sqrt(d)` for all d
            trainable weights; later ones share `sum(s^2) = C^2` among the weights, which never adds more noise
            than DP-SGD with the same C.
        adapt_norm: Whether `sum(s^2)` follows the estimates as well, as in the paper. What is estimated has been
            clipped, so it tends to shrink.
        granularity: `"coordinate"`: one deviation per weight. `"layer"`: one per variable, far less noisy
            when the noise per weight exceeds the gradient.
        mean_momentum: In [0, 1): how slowly the mean follows the released gradients.
        variance_momentum: In [0, 1): the same for the variance.
        floor: Least deviation of a weight, relative to the root mean square of its variable, in (0, 1].
        views: Copies of each example, averaged before clipping.
        augmentation: What makes the copies differ, such as `RandomShift(4)`.

    Guarantee:
        Conditions: as for `DPSGD`. Bound: for the transform of the present update, which depends on earlier
        releases only, the sum of the clipped w has sensitivity 1; the gradient `a + b (sum w + N(0, z^2)) / B`
        therefore is one Gaussian mechanism of multiplier z, with noise of standard deviation `b z / B`,
        coordinate by coordinate. The mean is added once with the constant B, and padding is left out after
        the transform. Mean and variance are functions of released gradients. Not covered: an example
        whose gradient overflows float32. Source: Pichapati et al. 2019. Their equation 5 for the variance
        holds for a batch of one; here it is `B / 2 ((g - g')^2 - both noise variances)` from two consecutive
        releases g and g' of batches of B (a mean that moves would count B-fold), averaged over updates
        before it is limited.

    Example:
        >>> from lipdp import strategies
        >>> strategies.AdaCliP(granularity="layer").get_config()["granularity"]
        'layer'
    """

    name = "adaclip"

    def __init__(
        self,
        clip_norm: float = 1.0,
        granularity: str = "coordinate",
        mean_momentum: float = 0.99,
        variance_momentum: float = 0.99,
        floor: float = 0.01,
        adapt_norm: bool = False,
        views: int = 1,
        augmentation=None,
    ):
        super().__init__(clip_norm, views, augmentation)
        if granularity not in GRANULARITIES:
            raise ValueError(f"`granularity` must be one of {GRANULARITIES}. Received: granularity={granularity!r}.")
        for name, value in (("mean_momentum", mean_momentum), ("variance_momentum", variance_momentum)):
            if not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
                raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value!r}.")
        if not isinstance(floor, (int, float)) or not 0.0 < floor <= 1.0:
            raise ValueError(f"`floor` must be in (0, 1]. Received: floor={floor!r}.")
        self.granularity = granularity
        self.mean_momentum, self.variance_momentum = float(mean_momentum), float(variance_momentum)
        self.floor, self.adapt_norm = float(floor), bool(adapt_norm)

    @property
    def noise(self) -> str:
        return f"in proportion to the transform of each {self.granularity} (sensitivity: of the first update)"

    def initial_state(self, variables) -> list:
        """Means, variances, last releases and the variances of their noise, one of each per variable."""
        shapes = [tuple(v.shape) for v in variables]
        narrow = shapes if self.granularity == "coordinate" else [()] * len(shapes)
        variance = self.clip_norm**2 / sum(math.prod(shape) for shape in shapes)
        return [
            *(np.zeros(shape, "float32") for shape in shapes),
            *(np.full(shape, variance, "float32") for shape in narrow),
            *(np.zeros(shape, "float32") for shape in shapes),
            # Below 0: nothing has been released yet.
            *(np.full(shape, -1.0, "float32") for shape in narrow),
        ]

    def scales(self, state):
        return [b / self.clip_norm for b in self._transform(state)[1]]

    def contributions(self, record, weight, state):
        means, widths = self._transform(state)
        norms = total_norm(record.squared_norms(centre=means, inverse_scale=[1.0 / b for b in widths]))
        factors = clip_factors(norms, 1.0, weight)
        count = ops.sum(factors)
        return [s - a * count for s, a in zip(record.weighted_sum(factors), means, strict=True)], []

    def average(self, sums, state, batch_size: int) -> list:
        return [a + s / batch_size for a, s in zip(self._transform(state)[0], sums, strict=True)]

    def advance(self, state, released, deviations, query, batch_size: int) -> list:
        means, variances, last, noises = _quarters(state)
        narrow = (lambda t: t) if self.granularity == "coordinate" else ops.mean
        keep_mean, keep_variance = self.mean_momentum, self.variance_momentum
        for i, (gradient, deviation) in enumerate(zip(released, deviations, strict=True)):
            noise = narrow(ops.square(deviation))
            variance = 0.5 * batch_size * (narrow(ops.square(gradient - last[i])) - noise - noises[i])
            averaged = keep_variance * variances[i] + (1.0 - keep_variance) * variance
            variances[i] = ops.where(noises[i] < 0.0, variances[i], averaged)
            means[i] = keep_mean * means[i] + (1.0 - keep_mean) * gradient
            last[i], noises[i] = gradient, noise
        return [*means, *variances, *last, *noises]

    def _transform(self, state) -> tuple[list, list]:
        """Means a and widths b, each of the shape of its variable or a number."""
        means, variances, _, _ = _quarters(state)
        sizes = [math.prod(m.shape) for m in means]
        first = self.clip_norm**2 / sum(sizes)
        deviations = []
        for variance in variances:
            # An estimate below 0 means that the noise hides the variance.
            level = ops.clip(ops.mean(variance), _RANGE[0] ** 2 * first, _RANGE[1] ** 2 * first)
            deviations.append(ops.sqrt(ops.clip(variance, self.floor**2 * level, _RANGE[1] ** 2 * first)))
        if not self.adapt_norm:
            squares = [ops.sum(s * s) * (n / math.prod(s.shape)) for s, n in zip(deviations, sizes, strict=True)]
            factor = self.clip_norm / ops.sqrt(sum(squares[1:], squares[0]))
            deviations = [s * factor for s in deviations]
        parts = [ops.sum(s) * (n / math.prod(s.shape)) for s, n in zip(deviations, sizes, strict=True)]
        total = sum(parts[1:], parts[0])
        return means, [ops.sqrt(s * total) for s in deviations]

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "granularity": self.granularity,
            "mean_momentum": self.mean_momentum,
            "variance_momentum": self.variance_momentum,
            "floor": self.floor,
            "adapt_norm": self.adapt_norm,
        }


def _quarters(state) -> tuple[list, list, list, list]:
    n = len(state) // 4
    return tuple(list(state[i * n : (i + 1) * n]) for i in range(4))
