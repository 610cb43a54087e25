"""DP-SGD: each example's gradient is clipped to a norm, and the noise is calibrated to that norm."""

import math

import keras
from keras import ops

from lipdp.strategies.arguments import positive
from lipdp.strategies.base import (
    MARGIN,
    Calibration,
    PerExample,
    clip_factors,
    layer_groups,
    masked,
    total_norm,
)
from lipdp.strategies.quantile import FOLLOWING, optional

CLIPPINGS = ("flat", "per_layer", "automatic")
# The threshold stays within these factors of the first one.
_RANGE = (1e-6, 1e6)


@keras.saving.register_keras_serializable(package="lipdp")
class DPSGD(PerExample):
    """Trains any Keras model by clipping each example's gradient.

    Args:
        clip_norm: L2 norm C > 0 of one example's contribution. With `clipping="per_layer"` also a sequence of
            one norm per layer; a number C is then shared as `C / sqrt(layers)`.
        clipping: `"flat"`: the whole gradient g becomes `g min(1, C / ||g||)`. `"per_layer"`: each layer's by
            itself. `"automatic"`: `g C / (||g|| + stability)`, which needs no tuning of C: it only scales
            the learning rate.
        quantile: None, or the fraction in (0, 1) of examples whose gradient should stay unclipped: C then
            follows a private quantile of the norms. For flat clipping.
        quantile_noise: Standard deviation of the noise on the count of unclipped examples; default B / 20.
        quantile_rate: Learning rate of log C.
        stability: Added to the norm in automatic clipping.
        views: Copies of each example, averaged before clipping.
        augmentation: What makes the copies differ, such as `RandomShift(4)`.

    Guarantee:
        Conditions: no layer, loss or augmentation mixes examples (checked). Bound: an example contributes
        at most C to the sum and C / B to the averaged gradient, in L2 norm over all variables, in float32
        too (the clip norm is undercut by 1e-4; norms are 1e-5 below the exact ones at most, and above them by what
        rounding may have taken where positions of a sequence or image cancel); the noise has standard deviation
        `z C / B` in every coordinate, so an update is one Gaussian mechanism of multiplier z. With
        `quantile`, gradient and count are one Gaussian vector: the gradient gets the multiplier
        `(z^-2 - (2 quantile_noise)^-2)^-1/2`, and the noise follows C inside the compiled step; C depends on
        released numbers only. An example whose gradient or its norm overflows float32 contributes nothing.
        Sources: Abadi et al. 2016; Bu et al. 2023 (automatic); Andrew et al. 2021 (quantile).

    Example:
        >>> from lipdp import strategies
        >>> strategies.DPSGD(clip_norm=0.5, clipping="automatic").noise
        'global'
    """

    name = "dpsgd"

    def __init__(
        self,
        clip_norm=1.0,
        clipping: str = "flat",
        quantile: float | None = None,
        quantile_noise: float | None = None,
        quantile_rate: float = 0.2,
        stability: float = 0.01,
        views: int = 1,
        augmentation=None,
    ):
        if clipping not in CLIPPINGS:
            raise ValueError(f"`clipping` must be one of {CLIPPINGS}. Received: clipping={clipping!r}.")
        self.clip_norms = None
        if isinstance(clip_norm, (list, tuple)):
            if clipping != "per_layer" or not clip_norm:
                raise ValueError(
                    f"A sequence of norms needs clipping='per_layer'. Received: clip_norm={clip_norm!r} with "
                    f"clipping={clipping!r}."
                )
            self.clip_norms = [positive("clip_norm", c) for c in clip_norm]
            clip_norm = math.sqrt(sum(c * c for c in self.clip_norms))
        super().__init__(clip_norm, views, augmentation)
        self.clipping = clipping
        if quantile is not None:
            if clipping != "flat":
                raise ValueError(f"`quantile` needs clipping='flat'. Received: clipping={clipping!r}.")
        self.quantile, self.quantile_noise, self.quantile_rate = quantile, quantile_noise, quantile_rate
        self._quantile = optional(quantile, quantile_noise, quantile_rate)
        self.stability = positive("stability", stability)
        self._groups = None

    @property
    def noise(self) -> str:
        return "global" if self._quantile is None else f"global, {FOLLOWING}"

    def query_noise(self, batch_size: int) -> float | None:
        return None if self._quantile is None else self._quantile.noise_std(batch_size)

    def calibrate(self, model, loss, batch_size: int) -> Calibration:
        calibration = super().calibrate(model, loss, batch_size)
        self._groups = layer_groups(model)
        if self.clip_norms is not None and len(self.clip_norms) != len(self._groups):
            raise ValueError(
                f"`clip_norm` must hold one norm per layer with trainable weights. Received: {len(self.clip_norms)} "
                f"norms for {len(self._groups)} layers."
            )
        return calibration

    def initial_state(self, variables) -> list:
        return [] if self._quantile is None else self._quantile.initial_state()

    def scales(self, state):
        return state[0] if state else None

    def contributions(self, record, weight, state):
        squared = record.squared_norms()
        norms = total_norm(squared)
        finite = ops.isfinite(norms)
        if self.clipping == "per_layer":
            return record.weighted_sum(self._per_layer(squared, masked(1.0, norms, weight)), finite), []
        if self.clipping == "automatic":
            factors = masked(MARGIN * self.clip_norm / (norms + self.stability), norms, weight)
            return record.weighted_sum(factors, finite), []
        threshold = self.clip_norm * state[0] if state else self.clip_norm
        query = [self._quantile.count(norms, threshold, weight)] if state else []
        return record.weighted_sum(clip_factors(norms, threshold, weight), finite), query

    def _per_layer(self, squared, weight):
        norms = self.clip_norms or [self.clip_norm / math.sqrt(len(self._groups))] * len(self._groups)
        factors = [None] * len(squared)
        for group, clip_norm in zip(self._groups, norms, strict=True):
            factor = clip_factors(total_norm([squared[i] for i in group]), clip_norm, weight)
            for i in group:
                factors[i] = factor
        return factors

    def advance(self, state, released, deviations, query, batch_size: int) -> list:
        if not state:
            return state
        return [self._quantile.advance(state[0], query, batch_size, *_RANGE)]

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "clip_norm": self.clip_norms or self.clip_norm,
            "clipping": self.clipping,
            "quantile": self.quantile,
            "quantile_noise": self.quantile_noise,
            "quantile_rate": self.quantile_rate,
            "stability": self.stability,
        }
