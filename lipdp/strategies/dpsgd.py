"""DP-SGD: each example's gradient is clipped to a norm, and the noise is calibrated to that norm."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from lipdp import checks
from lipdp._deprecated import renamed_arguments
from lipdp.strategies.base import Calibration
from lipdp.strategies.clipping import (
    LEAST_CLIP,
    MARGIN,
    PerExample,
    checked_clip_norm,
    clip_factors,
    layer_groups,
    masked,
    total_norm,
)
from lipdp.strategies.quantile import FOLLOWING, FollowsQuantile

CLIPPINGS = ("flat", "per_layer", "automatic")
_LARGEST = 1e30  # of what automatic clipping multiplies a gradient of zeros by
# The threshold stays within these factors of the first one, and above the least clip norm.
_RANGE = (1e-6, 1e6)


@keras.saving.register_keras_serializable(package="lipdp")
@renamed_arguments(views="augmentation_multiplicity")
@checks.known_arguments()
@dataclasses.dataclass(frozen=True)
class DPSGD(FollowsQuantile, PerExample):
    """Trains any Keras model by clipping each example's gradient.

    Args:
        clip_norm: L2 norm C of one example's contribution, at least 1e-12. With `clipping="per_layer"` also a sequence
            of one norm per layer; a number C is then shared as `C / sqrt(layers)`.
        clipping: `"flat"`: the whole gradient g becomes `g min(1, C / ||g||)`. `"per_layer"`: each layer's by
            itself. `"automatic"`: `g C / (||g|| + stability)`, which needs no tuning of C: it only scales
            the learning rate.
        quantile: None, or the fraction in (0, 1) of examples whose gradient should stay unclipped: C then
            follows a private quantile of the norms. For flat clipping.
        quantile_noise: Standard deviation of the noise on the count of unclipped examples; default B / 20.
        quantile_rate: Learning rate of log C.
        stability: Added to the norm in automatic clipping.
        augmentation_multiplicity: Copies of each example, averaged before clipping. They differ by `augmentation`, and
            by random layers of the model, from which each copy has a draw of its own.
        augmentation: What makes the copies differ, such as `RandomShift(4)`.

    Guarantee:
        Conditions: no layer, loss or augmentation mixes examples (checked). Bound: an example contributes
        at most C to the sum and C / B to the averaged gradient, in L2 norm over all variables, in float32
        too (the clip norm is undercut by 1e-4; norms are at most 7e-5 below the exact ones for layers of up to a
        million weights and `sqrt(weights) 2^-24` beyond, whatever the order of summation, and above them by what
        rounding may have taken where positions of a sequence or image cancel); the noise has standard deviation
        `z C / B` in every coordinate, so an update is one Gaussian mechanism of multiplier z. With
        `quantile`, gradient and count are one Gaussian vector: the gradient gets the multiplier
        `(z^-2 - (2 quantile_noise)^-2)^-1/2`, and the noise follows C inside the compiled step; C depends on
        released numbers only. An example whose gradient or its norm overflows float32 contributes nothing.
        Not covered: how the float32 sum over the examples of an update rounds. Where the gradients of many
        thousands are alike, one of them can move it by about `B 2^-25` C more: 1.0013 C in all at B = 60,000.
        Sources: Abadi et al. 2016; Bu et al. 2023 (automatic); Andrew et al. 2021 (quantile).

    Example:
        >>> from lipdp import strategies
        >>> strategies.DPSGD(clip_norm=0.5, clipping="automatic").noise_allocation
        'global'
    """

    name: ClassVar[str] = "dpsgd"
    full_precision: ClassVar[bool] = False
    clip_norm: float | Sequence[float] = 1.0
    clipping: str = "flat"
    quantile: float | None = None
    quantile_noise: float | None = None
    quantile_rate: float = 0.2
    stability: float = 0.01
    augmentation_multiplicity: int = 1
    augmentation: Any = None

    def __post_init__(self):
        checks.choice("clipping", self.clipping, CLIPPINGS)
        if isinstance(self.clip_norm, (list, tuple)):
            if self.clipping != "per_layer" or not self.clip_norm:
                raise ValueError(
                    f"A sequence of norms needs clipping='per_layer'. Received: clip_norm={self.clip_norm!r} with "
                    f"clipping={self.clipping!r}."
                )
            self._assign(clip_norm=tuple(map(checked_clip_norm, self.clip_norm)))
        else:
            self._assign(clip_norm=checked_clip_norm(self.clip_norm))
        if self.quantile is not None and self.clipping != "flat":
            raise ValueError(f"`quantile` needs clipping='flat'. Received: clipping={self.clipping!r}.")
        self._assign(stability=checks.positive("stability", self.stability), **self._check_quantile())
        if self.clipping == "automatic" and self.clip_norm > _LARGEST * self.stability:  # type: ignore[operator]
            raise ValueError(
                f"`stability` is too small beside the clip norm. Received: stability={self.stability!r}, "
                f"clip_norm={self.clip_norm!r}. Their ratio must be a normal float32: keep the default."
            )
        self._check_copies()

    @property
    def total_clip_norm(self) -> float:
        norms: Any = self.clip_norm
        return math.sqrt(sum(c * c for c in norms)) if isinstance(norms, tuple) else norms

    @property
    def noise_allocation(self) -> str:
        return "global" if self.quantile is None else f"global, {FOLLOWING}"

    def calibrate(self, model: keras.Model, loss: Any, batch_size: int) -> Calibration:
        calibration = super().calibrate(model, loss, batch_size)
        groups = layer_groups(model)
        if isinstance(self.clip_norm, tuple) and len(self.clip_norm) != len(groups):
            raise ValueError(
                f"`clip_norm` must hold one norm per layer with trainable weights. Received: {len(self.clip_norm)} "
                f"norms for {len(groups)} layers."
            )
        return dataclasses.replace(calibration, groups=groups, count_noise_std=self.count_noise_std(batch_size))

    def contributions(self, calibration: Any, record: Any, weight: Any, state: Any) -> Any:
        squared = record.squared_norms()
        norms = total_norm(squared)
        finite = ops.isfinite(norms)
        if self.clipping == "per_layer":
            factors = self._per_layer(calibration.groups, squared, masked(1.0, norms, weight))
            return record.weighted_sum(factors, finite), []
        if self.clipping == "automatic":
            # Factors of at most 1 keep finite cotangents finite: infinity times an input of zeros would be NaN.
            factors = masked(MARGIN * self.stability / (norms + self.stability), norms, weight)
            scale = self.clip_norm / self.stability  # type: ignore[operator]
            return [scale * total for total in record.weighted_sum(factors, finite)], []
        threshold = self.clip_norm * state[0] if state else self.clip_norm
        counts = self.counts(state, norms, threshold, weight)
        return record.weighted_sum(clip_factors(norms, threshold, weight), finite), counts

    def _per_layer(self, groups, squared, weight):
        norms = self.clip_norm
        if not isinstance(norms, tuple):
            norms = [norms / math.sqrt(len(groups))] * len(groups)
        factors = [None] * len(squared)
        for group, clip_norm in zip(groups, norms, strict=True):
            factor = clip_factors(total_norm([squared[i] for i in group]), clip_norm, weight)
            for i in group:
                factors[i] = factor
        return factors

    def advance(
        self, calibration: Any, state: Any, released: Any, noise_stddevs: Any, count: Any, batch_size: Any
    ) -> Any:
        if not state:
            return state
        least = max(_RANGE[0], LEAST_CLIP / self.clip_norm)  # type: ignore[operator]
        return self.next_factor(state, count, batch_size, least, _RANGE[1])
