"""AdaCliP: gradients are centred and scaled coordinate by coordinate before they are clipped."""

import math

import keras
import numpy as np
from keras import ops

from lipdp.strategies.base import PerExample, clip_factors, total_norm

GRANULARITIES = ("coordinate", "layer")
# Variances stay below this factor of the first one, whatever the noise makes of their estimates.
_LARGEST = 1e8


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
        caution: How many standard errors are added to each estimated variance, >= 0: where the noise hides the
            variance, weights are then treated alike, as in DP-SGD.
        floor: Least deviation of a weight, relative to the root mean square of its variable, and of a
            variable relative to all weights, in (0, 1].
        views: Copies of each example, averaged before clipping.
        augmentation: What makes the copies differ, such as `RandomShift(4)`.

    Guarantee:
        Conditions: as for `DPSGD`. Bound: for the transform of the present update, which depends on earlier
        releases only, the sum of the clipped w has sensitivity 1; the gradient `a + b (sum w + N(0, z^2)) / B`
        therefore is one Gaussian mechanism of multiplier z, with noise of standard deviation `b z / B`,
        coordinate by coordinate. The mean is added once with the constant B, and padding is left out after
        the transform. Mean and variance are functions of released gradients. An example whose gradient or its norm
        overflows float32 is left out like padding. Source: Pichapati et al. 2019. Their equation 5 for the variance
        holds for a batch of one; here it is `B / 2 ((g - g')^2 - both noise variances)` from two consecutive
        releases g and g' of batches of B (a mean that moves would count B-fold), averaged over updates by
        precision before it is limited.

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
        caution: float = 1.0,
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
        if not isinstance(caution, (int, float)) or not 0.0 <= caution < math.inf:
            raise ValueError(f"`caution` must be finite and at least 0. Received: caution={caution!r}.")
        self.granularity, self.caution = granularity, float(caution)
        self.mean_momentum, self.variance_momentum = float(mean_momentum), float(variance_momentum)
        self.floor, self.adapt_norm = float(floor), bool(adapt_norm)

    @property
    def noise(self) -> str:
        return f"in proportion to the transform of each {self.granularity} (sensitivity: of the first update)"

    def initial_state(self, variables) -> list:
        """Means; weighted sums and weights of variances, in units of the first; last releases and their noise."""
        shapes = [tuple(v.shape) for v in variables]
        narrow = shapes if self.granularity == "coordinate" else [()] * len(shapes)
        return [
            *(np.zeros(shape, "float32") for shape in shapes),
            # The first deviation counts like an estimate with an error of 100 %.
            *(np.ones(shape, "float32") for shape in narrow),
            *(np.ones(shape, "float32") for shape in narrow),
            *(np.zeros(shape, "float32") for shape in shapes),
            # Below 0: nothing has been released yet.
            *(np.full(shape, -1.0, "float32") for shape in narrow),
        ]

    def scales(self, state):
        return [b / self.clip_norm for b in self._transform(state)[1]]

    def contributions(self, record, weight, state):
        means, widths = self._transform(state)
        norms = total_norm(record.squared_norms(center=means, inverse_scale=[1.0 / b for b in widths]))
        factors = clip_factors(norms, 1.0, weight)
        count = ops.sum(factors)
        sums = record.weighted_sum(factors, ops.isfinite(norms))
        return [s - a * count for s, a in zip(sums, means, strict=True)], []

    def average(self, sums, state, batch_size: int) -> list:
        return [a + s / batch_size for a, s in zip(self._transform(state)[0], sums, strict=True)]

    def advance(self, state, released, deviations, query, batch_size: int) -> list:
        means, sums, weights, last, noises = _fifths(state)
        present = [ops.square(s) for s in self._deviations(state)]
        narrow = (lambda t: t) if self.granularity == "coordinate" else ops.mean
        first = self.clip_norm**2 / sum(math.prod(m.shape) for m in means)
        for i, (gradient, deviation) in enumerate(zip(released, deviations, strict=True)):
            noise = narrow(ops.square(deviation))
            variance = 0.5 * batch_size * (narrow(ops.square(gradient - last[i])) - noise - noises[i]) / first
            # Squared differences of normals vary by 2 (their variance)^2, and neighbours share half of their terms.
            # Weighted by precision: releases from before the noise shrank must not outweigh those after it.
            spread = present[i] / first + 0.5 * batch_size * (noise + noises[i]) / first
            weight = (1.0 if len(noise.shape) else float(math.prod(gradient.shape))) / (3.0 * ops.square(spread))
            weight = (1.0 - self.variance_momentum**2) * ops.where(noises[i] < 0.0, 0.0, weight)
            keep = ops.where(noises[i] < 0.0, 1.0, self.variance_momentum)
            sums[i] = keep * sums[i] + weight * variance
            weights[i] = keep * weights[i] + weight
            means[i] = self.mean_momentum * means[i] + (1.0 - self.mean_momentum) * gradient
            last[i], noises[i] = gradient, noise
        return [*means, *sums, *weights, *last, *noises]

    def _deviations(self, state) -> list:
        """Estimated deviations s, each of the shape of its variable or a number."""
        means, sums, weights, _, _ = _fifths(state)
        first, found = self.clip_norm**2 / sum(math.prod(m.shape) for m in means), []
        for total, weight in zip(sums, weights, strict=True):
            variance = total / weight + self.caution / ops.sqrt(weight)
            # An estimate below 0 means that the noise hides the variance.
            level = ops.clip(ops.mean(variance), self.floor**2, _LARGEST)
            found.append(ops.sqrt(first * ops.clip(variance, self.floor**2 * level, _LARGEST)))
        return found

    def _transform(self, state) -> tuple[list, list]:
        """Means a and widths b, each of the shape of its variable or a number."""
        means, deviations = _fifths(state)[0], self._deviations(state)
        sizes = [math.prod(m.shape) for m in means]
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
            "caution": self.caution,
            "floor": self.floor,
            "adapt_norm": self.adapt_norm,
        }


def _fifths(state) -> tuple[list, ...]:
    n = len(state) // 5
    return tuple(list(state[i * n : (i + 1) * n]) for i in range(5))
