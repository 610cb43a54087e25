"""AdaCliP: gradients are centered and scaled coordinate by coordinate before they are clipped."""

import dataclasses
import math
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from lipdp import checks
from lipdp._deprecated import renamed_arguments
from lipdp.strategies.clipping import PerExample, checked_clip_norm, clip_factors, total_norm

GRANULARITIES = ("coordinate", "layer")
# Variances stay below this factor of the first one, whatever the noise makes of their estimates.
_LARGEST = 1e8
_LONGEST_MEAN = 4.0  # in units of what clips


@keras.saving.register_keras_serializable(package="lipdp")
@renamed_arguments(views="augmentation_multiplicity")
@checks.known_arguments()
@dataclasses.dataclass(frozen=True)
class AdaCliP(PerExample):
    """Spends the noise where gradients vary: `w = (g - a) / b` is clipped to norm 1, not g.

    With `s` the standard deviation of one example's gradient, `b^2 = s sum(s)` adds the least noise among
    the transforms for which w has an expected squared norm of 1. Mean `a` and deviation s are estimated
    from the released gradients, so they cost nothing.

    Args:
        clip_norm: L2 norm C, at least 1e-12. The first update clips to it, with the deviations `C / sqrt(d)` for all d
            trainable weights; later ones share `sum(s^2) = C^2` among the weights, which never adds more noise
            than DP-SGD with the same C.
        adapt_norm: Whether `sum(s^2)` follows the estimates as well, as in the paper. What is estimated has been
            clipped, so it tends to shrink. The first update then clips to `C sqrt(1 + caution)`.
        granularity: `"coordinate"`: one deviation per weight. `"layer"`: one per variable, far less noisy
            when the noise per weight exceeds the gradient.
        mean_momentum: In [0, 1): how slowly the mean follows the released gradients.
        variance_momentum: In [0, 1): the same for the variance.
        caution: How many standard errors are added to each estimated variance, >= 0: where the noise hides the
            variance, weights are then treated alike, as in DP-SGD.
        floor: Least deviation of a weight, relative to the root mean square of its variable, and of a
            variable relative to all weights, in (0, 1].
        augmentation_multiplicity: Copies of each example, averaged before clipping. They differ by `augmentation`, and
            by random layers of the model, from which each copy has a draw of its own.
        augmentation: What makes the copies differ, such as `RandomShift(4)`.

    Guarantee:
        Conditions, and what is not covered: as for `DPSGD`. Bound: for the transform of the present update, which
        depends on earlier releases only, the sum of the clipped w has sensitivity 1; the gradient `a + b (sum w + N(0,
        z^2)) / B` therefore is one Gaussian mechanism of multiplier z, with noise of standard deviation `b z / B`,
        coordinate by coordinate. The mean is added once with the constant B, and padding is left out after the
        transform. Mean and variance are functions of released gradients; a mean of more than 4 clip norms (of w) is
        shortened to that, so that float32 sums keep what is clipped. An example whose gradient or its norm overflows
        float32 is left out like padding. Source: Pichapati et al. 2019. Their equation 5 for the variance holds for a
        batch of one; here it is `B / 2 ((g - g')^2 - both noise variances)` from two consecutive releases g and g' of
        batches of B (a mean that moves would count B-fold), averaged over updates by precision before it is limited.

    Example:
        >>> from lipdp import strategies
        >>> strategies.AdaCliP(granularity="layer").get_config()["granularity"]
        'layer'
    """

    name: ClassVar[str] = "adaclip"
    full_precision: ClassVar[bool] = False
    clip_norm: float = 1.0
    granularity: str = "coordinate"
    mean_momentum: float = 0.99
    variance_momentum: float = 0.99
    caution: float = 1.0
    floor: float = 0.01
    adapt_norm: bool = False
    augmentation_multiplicity: int = 1
    augmentation: Any = None

    def __post_init__(self):
        checks.choice("granularity", self.granularity, GRANULARITIES)
        self._assign(
            clip_norm=checked_clip_norm(self.clip_norm),
            mean_momentum=_momentum("mean_momentum", self.mean_momentum),
            variance_momentum=_momentum("variance_momentum", self.variance_momentum),
            caution=checks.not_negative("caution", self.caution),
            floor=checks.probability("floor", self.floor),
            adapt_norm=checks.boolean("adapt_norm", self.adapt_norm),
        )
        self._check_copies()

    @property
    def noise_allocation(self) -> str:
        return f"in proportion to the transform of each {self.granularity} (sensitivity: of the first update)"

    @property
    def total_clip_norm(self) -> float:
        """Returns the L2 norm that the first update clips to."""
        return self.clip_norm * (math.sqrt(1.0 + self.caution) if self.adapt_norm else 1.0)

    def initial_state(self, variables: Any) -> Any:
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

    def noise_scales(self, state: Any) -> Any:
        return [b / self.total_clip_norm for b in self._transform(state)[1]]

    def contributions(self, calibration: Any, record: Any, weight: Any, state: Any) -> Any:
        means, widths = self._transform(state)
        norms = total_norm(record.squared_norms(center=means, inverse_scale=[1.0 / b for b in widths]))
        factors = clip_factors(norms, 1.0, weight)
        count = ops.sum(factors)
        sums = record.weighted_sum(factors, ops.isfinite(norms))
        return [s - a * count for s, a in zip(sums, means, strict=True)], []

    def after_noise(self, released: Any, state: Any) -> Any:
        # Before it, noise below the spacing of floats at a would be lost.
        return [a + s for a, s in zip(self._transform(state)[0], released, strict=True)]

    def advance(
        self, calibration: Any, state: Any, released: Any, noise_stddevs: Any, count: Any, batch_size: Any
    ) -> Any:
        means, sums, weights, last, noises = _fifths(state)
        present = [ops.square(s) for s in self._stddevs(state)]
        narrow = (lambda t: t) if self.granularity == "coordinate" else ops.mean
        first = self.clip_norm**2 / sum(math.prod(m.shape) for m in means)
        for i, (gradient, stddev) in enumerate(zip(released, noise_stddevs, strict=True)):
            noise = narrow(ops.square(stddev))
            variance = 0.5 * batch_size * (narrow(ops.square(gradient - last[i])) - noise - noises[i]) / first
            # Squared differences of normals vary by 2 (their variance)^2, and neighbors share half of their terms.
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

    def _stddevs(self, state) -> list:
        """Returns the estimated deviations s, each of the shape of its variable or a number."""
        means, sums, weights, _, _ = _fifths(state)
        first, stddevs = self.clip_norm**2 / sum(math.prod(m.shape) for m in means), []
        for total, weight in zip(sums, weights, strict=True):
            variance = total / weight + self.caution / ops.sqrt(weight)
            # An estimate below 0 means that the noise hides the variance.
            level = ops.clip(ops.mean(variance), self.floor**2, _LARGEST)
            stddevs.append(ops.sqrt(first * ops.clip(variance, self.floor**2 * level, _LARGEST)))
        return stddevs

    def _transform(self, state) -> tuple[list, list]:
        """Returns means a and widths b, each of the shape of its variable or a number."""
        means, stddevs = _fifths(state)[0], self._stddevs(state)
        sizes = [math.prod(m.shape) for m in means]
        if not self.adapt_norm:
            squares = [ops.sum(s * s) * (n / math.prod(s.shape)) for s, n in zip(stddevs, sizes, strict=True)]
            factor = self.clip_norm / ops.sqrt(sum(squares[1:], squares[0]))
            stddevs = [s * factor for s in stddevs]
        parts = [ops.sum(s) * (n / math.prod(s.shape)) for s, n in zip(stddevs, sizes, strict=True)]
        total = sum(parts[1:], parts[0])
        widths = [ops.sqrt(s * total) for s in stddevs]
        lengths = [ops.sum(ops.square(a / b)) for a, b in zip(means, widths, strict=True)]
        # A longer mean would leave the clipped difference to the rounding of sums.
        share = ops.minimum(1.0, _LONGEST_MEAN / ops.sqrt(ops.maximum(sum(lengths[1:], lengths[0]), 1.0)))
        return [a * share for a in means], widths


def _fifths(state) -> tuple[list, ...]:
    n = len(state) // 5
    return tuple(list(state[i * n : (i + 1) * n]) for i in range(5))


def _momentum(name: str, value: Any) -> float:
    return checks.between(name, value, 0.0, math.nextafter(1.0, 0.0))
