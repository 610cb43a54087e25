"""Clipless DP-SGD: noise calibrated to propagated bounds, nothing clipped per example."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from lipdp import bounds, checks, gradients, isolation, losses
from lipdp.bounds.propagate import disproportionate
from lipdp.losses import penalties
from lipdp.strategies.base import Calibration, Strategy
from lipdp.strategies.clipping import refuse_probabilities
from lipdp.strategies.quantile import FOLLOWING, FollowsQuantile

ALLOCATIONS = ("global", "per_layer", "optimal")
# The threshold never falls below this part of the first one.
_LEAST = 1e-6


@keras.saving.register_keras_serializable(package="lipdp")
@checks.known_arguments()
@dataclasses.dataclass(frozen=True)
class Clipless(FollowsQuantile, Strategy):
    """Trains on the ordinary gradient of a Lipschitz network.

    Args:
        noise: How the noise is shared between variables of gradient bound `D_i` and size `d_i`.
            `"global"`: the same standard deviation everywhere, in proportion to `sqrt(sum D_i^2)`.
            `"per_layer"`: `sqrt(n) D_i` for n variables. `"optimal"`: the split of least total energy,
            `s_i^2 = (sum_j D_j sqrt(d_j)) D_i / sqrt(d_i)`.
        quantile: None, or the fraction in (0, 1) of examples whose gradient at the logits should stay
            unclipped: the loss' `clip` is then where a threshold starts that follows a private quantile.
        quantile_noise: Standard deviation of the noise on the count of unclipped examples; default B / 20.
        quantile_rate: Learning rate of the logarithm of the threshold.

    Guarantee:
        With per-example gradients bounded by `D_i / B` after division by the constant B, the variables
        divided by `s_i` form one vector of sensitivity `sqrt(sum (D_i / s_i)^2) / B = 1 / B` under
        adding or removing one example, so one update is one Gaussian mechanism of the plan's noise
        multiplier, whatever the split. Source: Bethune et al. 2024, section 3; the least-energy split
        by a Lagrange multiplier (d/ds_i of `d_i s_i^2 + l D_i^2 / s_i^2`). With `quantile` the gradient at
        the logits is limited to the current threshold, inside the compiled step, and the noise is
        scaled with it: bounds are in proportion to that limit, which is checked. The count is part of
        the same Gaussian vector, as in `DPSGD` (Andrew et al. 2021). Not covered: losses without a
        Lipschitz constant and layers without bounds, which are refused.

    Example:
        >>> from lipdp import strategies
        >>> strategies.Clipless(noise="optimal").get_config()["noise"]
        'optimal'
        >>> strategies.Clipless(quantile=0.5).get_config()["quantile"]
        0.5
    """

    name: ClassVar[str] = "clipless"
    averages_persons: ClassVar[bool] = True
    noise: str = "global"
    quantile: float | None = None
    quantile_noise: float | None = None
    quantile_rate: float = 0.2

    def __post_init__(self):
        checks.choice("noise", self.noise, ALLOCATIONS)
        self._assign(**self._check_quantile())

    @property
    def noise_allocation(self) -> str:
        return self.noise if self.quantile is None else f"{self.noise}, {FOLLOWING}"

    @property
    def uses_own_step(self) -> bool:
        return self.quantile is not None

    def calibrate(self, model: keras.Model, loss: Any, batch_size: int) -> Calibration:
        gradients.refuse_untrainable(model)
        refuse_probabilities(model, loss)
        outputs = model.output_shape[-1]
        first = loss.lipschitz(outputs)
        with naming_both_ways(model):
            propagated = bounds.propagate(model, first)
        _refuse_drawing(model)
        gradients.once(isolation.refuse_mixing, model)
        isolation.refuse_keeping(model)
        variables = model.trainable_variables
        sensitivities = [propagated.gradient(v) / batch_size for v in variables]
        sizes = [math.prod(v.shape) for v in variables]
        noise_std = allocate(sensitivities, sizes, self.noise)
        calibration = Calibration(noise_std, math.sqrt(sum(s * s for s in sensitivities)), propagated)
        if self.quantile is None:
            return calibration
        _refuse_disproportion(model, first)
        # Above its Lipschitz constant a loss has nothing to clip.
        limits = (first, _LEAST, loss.exact_lipschitz(outputs) / first)
        return dataclasses.replace(calibration, count_noise_std=self.count_noise_std(batch_size), limits=limits)

    def microbatch(
        self, calibration: Any, forward: Any, state: Any, index: Any, secret: Any, data: Any, batch_size: Any
    ) -> Any:
        x, y, weight = data
        loss = forward.model.loss
        limit = calibration.limits[0] * state[0] if state else None

        def total(y_pred, added):
            penalties.refuse_additional(forward.model, added)
            if limit is None:
                values, norms = losses.example_values(loss, y, y_pred), ()
            else:
                values, norms = losses.limited_values(loss, y, y_pred, limit)
            values = ops.where(weight > 0, values * weight, 0.0)
            return ops.sum(values) / batch_size, norms

        sums, value, norms, y_pred, updated = forward.gradient(x, total)
        return (sums, self.counts(state, norms, limit, weight), value), (x, y, y_pred, weight), updated

    def average(self, sums: Any, state: Any, batch_size: Any) -> Any:
        return sums  # the loss is divided already, as in Keras' own step

    def advance(
        self, calibration: Any, state: Any, released: Any, noise_stddevs: Any, count: Any, batch_size: Any
    ) -> Any:
        return self.next_factor(state, count, batch_size, *(calibration.limits or (0.0, 0.0, 0.0))[1:])


@contextlib.contextmanager
def naming_both_ways(model: keras.Model) -> Iterator[None]:
    """Adds to a refusal that DP-SGD would take the model as it is, where it would."""
    try:
        yield
    except ValueError as refusal:
        if "dpsgd" in str(refusal):
            raise
        try:
            gradients.supported(model, probe=False)
        except ValueError:
            raise refusal from None
        raise ValueError(f"{refusal} Or train this model as it is with fit(strategy='dpsgd').") from refusal


def _refuse_drawing(model: keras.Model) -> None:
    """A row more moves the others under other numbers, by which no bound says how far their gradients move."""
    for operation, _ in isolation.foreign(model):
        if isolation.seeds_of(operation):
            raise ValueError(
                f"Layer '{operation.name}' draws random numbers by position in the batch, so one more example changes "
                f"the gradients of others. Received: {type(operation).__name__} under a strategy without clipping. "
                "Leave it out, or train with a strategy that clips, such as strategy='dpsgd', whose numbers are secret."
            )


def _refuse_disproportion(model: keras.Model, first: float) -> None:
    """A smaller limit must shrink every bound by as much, or noise scaled with it would be too small."""
    variable = disproportionate(model, first, _LEAST)
    if variable is not None:
        raise ValueError(
            f"The gradient bound of '{variable.path}' is not in proportion to the gradient at the logits, so "
            "noise cannot follow a quantile of it. Remove ClipGradient, or leave `quantile` out."
        )


def allocate(sensitivities: Sequence[float], sizes: Sequence[int], noise: str) -> tuple[float, ...]:
    """Returns the split of noise of multiplier 1 between variables: `sum (sensitivity / std)^2 = 1`.

    Args:
        sensitivities: One L2 sensitivity per variable, >= 0.
        sizes: Number of entries of each variable.
        noise: One of `ALLOCATIONS`.

    Returns:
        One standard deviation per variable. A variable of sensitivity 0 gets 0 under `"per_layer"` and
        `"optimal"`: it carries nothing about the data.
    """
    if noise == "global":
        return (math.sqrt(sum(s * s for s in sensitivities)),) * len(sensitivities)
    if noise == "per_layer":
        used = sum(s > 0 for s in sensitivities)
        return tuple(math.sqrt(used) * s for s in sensitivities)
    energy = math.sqrt(sum(s * math.sqrt(d) for s, d in zip(sensitivities, sizes, strict=True)))
    return tuple(energy * math.sqrt(s) / d**0.25 for s, d in zip(sensitivities, sizes, strict=True))
