"""DPIS: examples are drawn in proportion to the norm of their gradient."""

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from lipdp import checks, gradients
from lipdp.accounting.dpis import ImportanceFilter
from lipdp.sampling.proposal import kept
from lipdp.strategies.base import Calibration, Strategy
from lipdp.strategies.clipping import (
    LEAST_CLIP,
    MARGIN,
    check_clipping,
    check_traced,
    checked_clip_norm,
    example_losses,
    own_rows,
    present,
    total_norm,
)


@keras.saving.register_keras_serializable(package="lipdp")
@checks.known_arguments()
@dataclasses.dataclass(frozen=True)
class DPIS(Strategy):
    """Trains any Keras model by importance sampling: examples of small gradient are drawn less often.

    Each epoch begins with the gradient norms of all examples, and releases their noisy sum K. Each update then
    includes an example with probability `B |g| / K`, g its clipped gradient, by rejection from what its norm was
    when last seen; an included example contributes `g / |g|` times the constant `K / (N B)`. The mean is that of
    DP-SGD, and while gradients are shorter than the clip norm less noise is needed for the same privacy.

    Args:
        clip_norm: L2 norm C, at least 1e-12, that gradients are clipped to; with `clip_scale` the norm that they are
            clipped to for the sum from which C follows.
        growth: Factor k >= 1 by which a norm may have grown since it was last seen, before it is clipped to that
            bound. An update computes about `B N / K` times the mean of `min(k |g|, C)` gradients: as many as DP-SGD
            where all are longer than C, and on average at most `(1 + floor) k` times as many.
        floor: Fraction in (0, 1] of the mean norm K / N: an example of shorter gradient is proposed as if it had
            this norm.
        first_phase: Fraction of the epochs in [0, 1] during which later epochs are planned as costly as those of
            DP-SGD. What sampling saved is spent in the epochs after them.
        clip_scale: None for a constant C; or the factor lambda > 0 with which C follows the released mean of the
            norms at the beginning of each epoch.
        norm_sum_noise: Noise multiplier of the released sums; default 0.02 N.
        count_noise: None when the number of examples N is public. Otherwise the noise multiplier with which it is
            released, about 0.02 of what N is believed to be; `fit` then needs `steps_per_epoch`.

    Guarantee:
        Conditions: as for `DPSGD`; `fit(epsilon=...)`, which fixes one RDP order in advance and accounts at it,
        whatever `accountant` says. Bound: whatever norms are stored, an example is included with probability at most `B
        C / K` and contributes `K / (N B)`, so an update is a Poisson-sampled Gaussian mechanism; sums of norms have
        sensitivity C. Noise is solved at the beginning of each epoch from what is left of the budget, and no sequence
        of norm sums exceeds it (`accounting.dpis`). A run that stops early has cost its whole budget, as what it used
        up until then depended on the norms. Norms of examples are never released or saved: a resumed run computes them
        anew. An example whose gradient or its norm overflows float32 contributes nothing. Not covered: what `DPSGD`
        does not cover; raising the budget of a later `fit`, or turning to this strategy, in view of results; the number
        of gradients computed, which shows in the time an update takes. Source: Wei et al. 2022, with proposals capped
        (otherwise probabilities would be cut at 1 and contributions exceed what is accounted), sums of all norms
        instead of a subsample, and one order for the whole run.

    Example:
        >>> from lipdp import strategies
        >>> strategies.DPIS(clip_norm=0.5, growth=3.0).get_config()["growth"]
        3.0
    """

    name: ClassVar[str] = "dpis"
    per_example: ClassVar[bool] = True
    averages_persons: ClassVar[bool] = True
    weighs_losses: ClassVar[bool] = True
    clip_norm: float = 1.0
    growth: float = 5.0
    floor: float = 0.1
    first_phase: float = 0.8
    clip_scale: float | None = None
    norm_sum_noise: float | None = None
    count_noise: float | None = None

    def __post_init__(self):
        self._assign(
            clip_norm=checked_clip_norm(self.clip_norm),
            growth=checks.between("growth", self.growth, 1.0, 1e12),
            floor=checks.between("floor", self.floor, 1e-12, 1.0),
            first_phase=checks.between("first_phase", self.first_phase, 0.0, 1.0),
            clip_scale=checks.positive("clip_scale", self.clip_scale, optional=True),
            norm_sum_noise=checks.positive("norm_sum_noise", self.norm_sum_noise, optional=True),
            count_noise=checks.positive("count_noise", self.count_noise, optional=True),
        )
        if self.clip_scale is not None:
            checked_clip_norm(self.clip_scale * self.clip_norm, "clip_scale * clip_norm")

    @property
    def noise_allocation(self) -> str:
        return "global, solved anew in each epoch"

    def calibrate(self, model: keras.Model, loss: Any, batch_size: int) -> Calibration:
        check_clipping(model, loss)
        std = self.clip_norm / batch_size
        return Calibration((std,) * len(model.trainable_variables), std)

    def check_fit(self, request: Any, steps_per_execution: int) -> None:
        sampling, persons = request.sampling.name, request.sampling.group_size
        if sampling != "poisson" or persons != 1:
            raise ValueError(
                f"{type(self).__name__} draws by the norms of gradients, independently for each example, and "
                f"no cost is known for persons with several. Received: sampling={sampling!r}, "
                f"examples_per_person={persons!r}. Leave both out, draw persons with person_ids=, or use another "
                "strategy."
            )
        if self.count_noise is not None and request.steps_per_epoch is None:
            raise ValueError(
                "The number of examples is private (`count_noise`), so the updates of an epoch cannot follow "
                "from it. Pass a number of your own to fit(steps_per_epoch=...)."
            )
        if steps_per_execution != 1:
            raise ValueError(
                f"{type(self).__name__} does not support steps_per_execution > 1. Received: steps_per_execution="
                f"{steps_per_execution}. Leave it out in `compile`."
            )

    def declared_examples(self, num_examples: int) -> int:
        """Returns the number of examples that plan and ledger name: a guess from `count_noise` where it is private."""
        return num_examples if self.count_noise is None else max(1, round(50.0 * self.count_noise))

    def filter_arguments(self, *, num_examples: int, batch_size: int, updates_per_epoch: int, epochs: int) -> dict:
        """Returns what `ImportanceFilter` takes beside budget and order."""
        sums = 0.02 * num_examples if self.norm_sum_noise is None else self.norm_sum_noise
        return {
            "num_examples": num_examples,
            "batch_size": batch_size,
            "updates_per_epoch": updates_per_epoch,
            "epochs": epochs,
            "first_phase": self.first_phase,
            "norm_sum_noise": sums,
            "clip_sum_noise": None if self.clip_scale is None else sums,
            "count_noise": self.count_noise,
        }

    def next_clip_norm(self, noisy_sum: float, budget: ImportanceFilter) -> float:
        """Returns the clip norm of an epoch, from the released sum of norms: post-processing."""
        # Below one standard deviation of the noise the sum says nothing.
        least = self.clip_scale * self.clip_norm * min(1.0, budget.clip_sum_noise / budget.num_examples)
        least = max(least, LEAST_CLIP)
        return min(max(self.clip_scale * noisy_sum / budget.num_examples, least), self.clip_scale * self.clip_norm)

    def norms(self, forward: Any, data: tuple) -> Any:
        """Returns the gradient norms `(rows,)` of a microbatch `(x, y, weight)`; 0 where a gradient is not finite.

        Where persons are drawn, weights are `(persons, rows)`, the shares of the rows of each, and there is one norm
        for each person. Beside them the model's new non-trainable values (JAX): random layers draw anew for the next
        microbatch.
        """
        record = _record(forward, data)
        return _finite_norms(record)[0], record.non_trainable

    def proposed(self, forward: Any, data: tuple) -> tuple:
        """Returns what one microbatch of proposed examples contributes. Called inside a compiled function.

        Args:
            forward: `backend.Forward` of the model.
            data: `(x, y, weight, limits, thresholds, shares)`: beside the examples, for each row what its gradient
                is clipped to, the norm from which on it is kept (infinite for padding), and how many examples
                it stands for in metrics.

        Returns:
            `(sums, norms, loss)`; `(x, y, y_pred, shares)` for metrics; the new non-trainable values (JAX).
        """
        x, y, weight, limits, thresholds, shares = data
        record = _record(forward, (x, y, weight))
        if len(weight.shape) == 2:
            shares = ops.reshape(shares[:, None] * weight, (-1,))
            weight = present(weight)
        norms, finite = _finite_norms(record)
        chosen = ops.logical_and(weight > 0, kept(ops.minimum(norms, limits), thresholds))
        coefficients = ops.where(chosen, MARGIN / ops.maximum(norms, 1e-30), 0.0)
        loss = ops.sum(ops.where(shares > 0, ops.stop_gradient(record.values) * shares, 0.0))
        sums = record.weighted_sum(coefficients, finite)
        return (sums, norms, loss), (x, y, record.y_pred, shares), record.non_trainable


def _record(forward, data: tuple) -> gradients.Record:
    check_traced(forward.model)
    x, y, weight = data
    together: dict[str, Any] = {"loss_values": example_losses(forward.model)}
    if len(weight.shape) == 2:
        x, y = own_rows((x, y), weight)
        together |= {"copies": weight.shape[1], "shares": ops.reshape(weight, (-1,))}
        weight = present(weight)
    return gradients.capture(forward, x, y, weight, **together)


def _finite_norms(record):
    """Returns the norms, 0 where one is not finite, and where they are."""
    norms = total_norm(record.squared_norms())
    finite = ops.isfinite(norms)
    return ops.where(finite, norms, 0.0), finite
