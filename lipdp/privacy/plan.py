"""Plan: everything that fixes the privacy of one training run, decided before it starts."""

import dataclasses
import warnings
from collections.abc import Iterable
from typing import Any

from lipdp import accounting, checks
from lipdp.accounting import Accountant, Sampling, schemes
from lipdp.privacy.release import Release, current_keys


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One frozen description of a private run; sampler, noise, cost and statement derive from it.

    Args:
        sampling: who is in a batch, bound to the data: `Sampling(name).bind(num_examples, batch_size)`.
        updates: number of noisy updates, an int of at least 1.
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, above 0.
        delta: in (0, 1); a `UserWarning` from 1 / num_examples on.
        epsilon: the budget the noise was chosen for, above 0, or None.
        accountant: an `Accountant` or its name; kept as the object.

    Raises:
        ValueError: when an argument is out of range.

    **Guarantee.**
    Conditions: those of `accounting.Mechanism`; the run samples, divides and adds noise as written here.
    Bound: `cost()` at `delta`.
    Not covered: anything else the run does with the data; see `Privacy.statement`.
    Source: `accounting.compose`.

    Example:
        >>> plan = Plan(sampling=Sampling().bind(60000, 256), updates=2350, noise_multiplier=1.1, delta=1e-5)
        >>> round(plan.cost(), 2), plan.accountant.name
        (0.92, 'pld')
    """

    sampling: Sampling
    updates: int
    noise_multiplier: float
    delta: float
    epsilon: float | None = None
    accountant: str | Accountant = "pld"

    def __post_init__(self):
        values = {
            "sampling": schemes.check_bound(self.sampling),
            "updates": checks.integer("updates", self.updates, minimum=1),
            "noise_multiplier": checks.positive("noise_multiplier", self.noise_multiplier),
            "delta": checks.delta(self.delta),
            "epsilon": checks.positive("epsilon", self.epsilon, optional=True),
            "accountant": accounting.get_accountant(self.accountant),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        num_examples = self.sampling.num_examples
        if self.delta >= 1.0 / num_examples:
            warnings.warn(
                "delta is not below 1 / num_examples: publishing one whole example would be allowed. "
                f"Received: delta={self.delta!r}, num_examples={num_examples}. "
                f"Pass a delta well below {1.0 / num_examples:.1e}.",
                UserWarning,
                stacklevel=checks.users_line(),
            )

    def mechanism(self, updates: int | None = None) -> accounting.Mechanism:
        """Returns what `updates` updates release (all of the plan's by default)."""
        count = self.updates if updates is None else updates
        return accounting.Mechanism.of_updates(None, self.noise_multiplier, count, self.sampling)

    def cost(self, updates: int | None = None, spent: Iterable[accounting.Mechanism] = ()) -> float:
        """Returns epsilon after `updates` updates (all by default), `spent` included."""
        return accounting.compose([*spent, self.mechanism(updates)], self.delta, self.accountant)

    def release(self, *, sensitivity: float, strategy: str, noise_allocation: str, stream: int = 0) -> Release:
        """Returns what one update of this plan charges to the ledger; see `Release` for the arguments."""
        return Release(
            sampling=self.sampling,
            noise_multiplier=self.noise_multiplier,
            sensitivity=sensitivity,
            strategy=strategy,
            noise_allocation=noise_allocation,
            stream=stream,
        )

    @classmethod
    def calibrated(
        cls,
        *,
        sampling: Sampling,
        updates: int,
        epsilon: float,
        delta: float,
        accountant: str | Accountant = "pld",
        spent: Iterable[accounting.Mechanism] = (),
    ) -> "Plan":
        """Returns the plan whose noise spends the budget `epsilon`, `spent` included.

        Args:
            sampling, updates, delta, accountant: as in `Plan`.
            epsilon: the budget, above 0.
            spent: releases already made; for groups of `sampling.group_size`.

        Returns:
            A `Plan` with `cost(spent=spent)` at most `epsilon` and at least 99 % of it.

        Raises:
            ValueError: when an argument is out of range or the budget is already spent.

        Example:
            >>> plan = Plan.calibrated(sampling=Sampling().bind(60000, 256), updates=2350, epsilon=3.0, delta=1e-5)
            >>> 2.97 <= plan.cost() <= 3.0
            True
        """
        shared: dict[str, Any] = {"updates": updates, "epsilon": epsilon, "delta": delta, "accountant": accountant}
        noise = accounting.calibrate(sampler=schemes.check_bound(sampling), spent=spent, **shared)
        return cls(sampling=sampling, noise_multiplier=noise, **shared)

    def to_dict(self) -> dict:
        """Returns the plan as JSON-serializable values, flat."""
        values = self.sampling.to_dict() | vars(self) | {"accountant": self.accountant.name}  # type: ignore[union-attr]
        del values["sampling"], values["sampling_probability"]
        return values

    @classmethod
    def from_dict(cls, values: dict) -> "Plan":
        """Returns the plan that `to_dict` wrote; ValueError for missing or unknown fields."""
        keys = {*schemes.KEYS, *cls.__dataclass_fields__} - {"sampling", "sampling_probability"}
        if isinstance(values, dict):  # files of earlier versions lack these
            values = {"examples_per_person": 1, "capacity": None, "rows_per_person": None} | current_keys(values)
        if not isinstance(values, dict) or set(values) != keys:
            raise ValueError(
                f"This is not a plan. Received: values={values!r}. Pass what Plan.to_dict wrote, a dict with "
                f"exactly the keys {', '.join(sorted(keys))}."
            )
        own = {name: value for name, value in values.items() if name not in schemes.KEYS}
        return cls(sampling=Sampling.from_dict(values), **own)
