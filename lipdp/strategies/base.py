"""What every strategy answers: the noise one update needs, and how its gradient is made."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras

from lipdp.bounds import Bounds


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Everything that the updates of one model need from a strategy, which itself stays as it is.

    Args:
        noise_std: Standard deviation for each trainable variable at noise multiplier 1, in the order of the model,
            for the state that the strategy starts from.
        sensitivity: L2 sensitivity of the averaged gradient, all variables together, for that state.
        bounds: The propagated bounds it comes from; None where gradients are clipped.
        count_noise_std: Standard deviation of the noise on a private count that each update releases beside the
            gradient, or None. One example moves the centered count by 1/2.
        groups: Indices of the variables that are clipped together, for clipping by layer.
        limits: Threshold at the logits that a quantile starts from, and the factors that it stays between.
        rows: How many rows of one person lie together, for strategies that average before they clip.
    """

    noise_std: tuple[float, ...]
    sensitivity: float
    bounds: Bounds | None = dataclasses.field(default=None, compare=False, repr=False)
    count_noise_std: float | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    limits: tuple[float, float, float] | None = None
    rows: int = 1

    def noise_stddevs(self, noise_multiplier: float) -> list[float]:
        """Returns the standard deviation per variable of one update of `noise_multiplier`, its count included.

        Gradient and count are one Gaussian vector: `1 / z^2 = 1 / z_gradient^2 + 1 / z_count^2`
        (Andrew et al. 2021, theorem 1).
        """
        if self.count_noise_std is not None:
            count = 2.0 * self.count_noise_std
            if count <= noise_multiplier:
                raise ValueError(
                    "The private quantile alone costs more than the update may. Received: a count noise of "
                    f"{self.count_noise_std:.4g} with a noise multiplier of {noise_multiplier:.4g}. `quantile_noise` "
                    "must exceed half of the noise multiplier: raise it, or leave `quantile` out."
                )
            noise_multiplier = (noise_multiplier**-2 - count**-2) ** -0.5
        return [noise_multiplier * s for s in self.noise_std]


class Strategy:
    """Turns a batch into a gradient of bounded sensitivity. The optimizer alone adds the noise.

    A strategy is a frozen dataclass: its fields are what the user chose, and one object may serve any number of
    models. What depends on a model is in the `Calibration` that `calibrate` returns.

    Attributes:
        name: Name in the ledger.
        noise_allocation: How the noise is spread, in the words of the statement.
        per_example: Whether it clips per-example gradients, so that any Keras model will do.
        full_precision: Whether the passes need float32 products. Bounds do; where per-example gradients are clipped,
            norms and sums alone do, and the passes take the precision of the backend: TF32 on a GPU, with JAX.
        augmentation_multiplicity: Copies of each example in an update.
        averages_persons: Whether `fit(person_ids=)` may use it: a person's rows then have weights that add up to 1. A
            strategy that clips must average the `Calibration.rows` rows of a person before, one that does not clip
            multiplies by the weights.
        weighs_losses: Whether `fit(class_weight=)` and `fit(sample_weight=)` may use it: the loss is weighted before
            gradients are clipped.
    """

    name: ClassVar[str] = ""
    per_example: ClassVar[bool] = False
    full_precision: ClassVar[bool] = True
    averages_persons: ClassVar[bool] = False
    weighs_losses: ClassVar[bool] = False
    augmentation_multiplicity = 1

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"A strategy is frozen, as one object may serve several models. Received: {type(self).__name__}.{name} = "
            "... Make it a `dataclasses.dataclass(frozen=True)`, and return from `calibrate` what a step needs."
        )

    @property
    def noise_allocation(self) -> str:
        return "global"

    def calibrate(self, model: keras.Model, loss: Any, batch_size: int) -> Calibration:
        """Returns what updates of `model` need, for an expected batch of `batch_size`."""
        raise NotImplementedError(f"{type(self).__name__} must implement `calibrate`.")

    def check_fit(self, request: Any, steps_per_execution: int) -> None:
        """Refuses what was asked of `fit` and `compile` and this strategy cannot do."""

    def declared_examples(self, num_examples: int) -> int:
        """Returns the number of examples that plan and ledger name: the true one, which is public."""
        return num_examples

    @property
    def uses_own_step(self) -> bool:
        """Returns whether a whole update, too, goes through `microbatch` instead of Keras' own step."""
        return True

    def initial_state(self, variables: list) -> list:
        """Returns the arrays that the optimizer keeps for the strategy, as float32."""
        return []

    def noise_scales(self, state: list) -> Any:
        """Returns factors on the noise of each variable, all 1 for the initial state; None when they never change."""
        return None

    def advance(
        self, calibration: Any, state: list, released: list, noise_stddevs: list, count: Any, batch_size: int
    ) -> list:
        """Returns the next state, from what one update has released: post-processing."""
        return state

    def microbatch(
        self, calibration: Any, forward: Any, state: list, index: Any, secret: Any, data: tuple, batch_size: int
    ) -> tuple:
        """Returns what one microbatch contributes to an update. Called inside the compiled step.

        Args:
            calibration: What `calibrate` returned for this model.
            forward: `backend.Forward` of the model.
            state: Tensors, as in `initial_state`.
            index: Number of the microbatch.
            secret: Two uint32 words that the noise of this update comes from.
            data: `(x, y, weight)`.
            batch_size: Expected batch size.

        Returns:
            `(sums, counts, loss)`, to be added up over the microbatches; `(x, y, y_pred, weight)` for metrics;
            the model's new non-trainable values (JAX).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `microbatch`.")

    def average(self, sums: list, state: list, batch_size: int) -> list:
        """Returns the gradient that the optimizer adds noise to."""
        return [s / batch_size for s in sums]

    def after_noise(self, released: list, state: list) -> list:
        """Returns the gradient that weights follow, from what was released with noise and what was known before."""
        return released

    def get_config(self) -> dict:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, config: dict) -> Strategy:
        return cls(**config)

    def _assign(self, **values: Any) -> None:
        """Stores arguments in the form in which they were checked, while the object is made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
