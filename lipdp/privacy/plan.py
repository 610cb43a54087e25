"""Plan: everything that fixes the privacy of one training run, decided before it starts."""

import dataclasses
import warnings
from collections.abc import Iterable

from lipdp import accounting, checks
from lipdp.accounting.mechanism import RELATIONS, check_sampler, default_relation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One frozen description of a private run; sampler, noise, cost and statement derive from it.

    Args:
        num_examples: number of training examples, an int of at least 1. Treated as public.
        batch_size: EXPECTED batch size, an int from 1 to `num_examples`. A public constant and the divisor of
            the gradient; the batch drawn varies around it.
        updates: number of noisy updates, an int of at least 1.
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, above 0.
        delta: in (0, 1); a `UserWarning` from 1 / num_examples on.
        epsilon: the budget the noise was chosen for, above 0, or None.
        sampler: "poisson", "truncated_poisson", "fixed_size", "shuffle" or "fixed_order".
        neighbouring_relation: "add_or_remove_one", "zero_out_one" or "replace_one"; default: the sampler's.
        accountant: "pld", "rdp", "autodp", the filter's name with its order and budget, or "rdp_order:..." (DPIS).
        examples_per_person: most rows of one person, at least 1: cost and budget are those of a person.
        capacity: largest batch of "truncated_poisson".

    Raises:
        ValueError: when an argument is out of range, the batch is larger than the data, or nothing sound is known
            about the combination.

    **Guarantee.**
    Conditions: those of `accounting.Mechanism`; the run samples, divides and adds noise as written here.
    Bound: `cost()` at `delta`.
    Not covered: anything else the run does with the data; see `Privacy.statement`.
    Source: `accounting.compose`.

    Example:
        >>> plan = Plan(num_examples=60000, batch_size=256, updates=2350, noise_multiplier=1.1, delta=1e-5)
        >>> round(plan.sampling_probability, 6), round(plan.cost(), 2)
        (0.004267, 0.92)
    """

    num_examples: int
    batch_size: int
    updates: int
    noise_multiplier: float
    delta: float
    epsilon: float | None = None
    sampler: str = "poisson"
    neighbouring_relation: str | None = None
    accountant: str = "pld"
    examples_per_person: int = 1
    capacity: int | None = None

    def __post_init__(self):
        check_sampler(self.sampler)
        persons = checks.integer("examples_per_person", self.examples_per_person, minimum=1)
        relation = self.neighbouring_relation or default_relation(self.sampler, persons)
        values = {
            "num_examples": checks.integer("num_examples", self.num_examples, minimum=1),
            "batch_size": checks.integer("batch_size", self.batch_size, minimum=1),
            "updates": checks.integer("updates", self.updates, minimum=1),
            "noise_multiplier": checks.positive("noise_multiplier", self.noise_multiplier),
            "delta": checks.delta(self.delta),
            "epsilon": None if self.epsilon is None else checks.positive("epsilon", self.epsilon),
            "neighbouring_relation": checks.choice("neighbouring_relation", relation, RELATIONS),
            "accountant": accounting.check_name(self.accountant),
            "examples_per_person": persons,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        _check_batch(self.num_examples, self.batch_size)
        self.mechanism()  # refuses what has no sound cost
        if self.delta >= 1.0 / self.num_examples:
            warnings.warn(
                "delta is not below 1 / num_examples: publishing one whole example would be allowed. "
                f"Received: delta={self.delta!r}, num_examples={self.num_examples}. "
                f"Pass a delta well below {1.0 / self.num_examples:.1e}.",
                UserWarning,
                stacklevel=3,
            )

    @property
    def sampling_probability(self) -> float:
        """Returns the chance that one example enters one batch."""
        return self.batch_size / self.num_examples

    def mechanism(self, updates: int | None = None) -> accounting.Mechanism:
        """Returns what `updates` updates release (all of the plan's by default)."""
        count = self.updates if updates is None else updates
        return accounting.Mechanism.of_updates(
            self.sampling_probability, self.noise_multiplier, count, self.sampler, **self._settings()
        )

    def _settings(self) -> dict:
        return {
            "relation": self.neighbouring_relation,
            "group_size": self.examples_per_person,
            "num_examples": self.num_examples,
            "capacity": self.capacity,
        }

    def cost(self, updates: int | None = None, spent: Iterable[accounting.Mechanism] = ()) -> float:
        """Returns epsilon after `updates` updates (all by default), `spent` included."""
        return accounting.compose([*spent, self.mechanism(updates)], self.delta, self.accountant)

    @classmethod
    def calibrated(
        cls,
        *,
        num_examples: int,
        batch_size: int,
        updates: int,
        epsilon: float,
        delta: float,
        accountant: str = "pld",
        spent: Iterable[accounting.Mechanism] = (),
        sampler: str = "poisson",
        neighbouring_relation: str | None = None,
        examples_per_person: int = 1,
        capacity: int | None = None,
    ) -> "Plan":
        """Returns the plan whose noise spends the budget `epsilon`, `spent` included.

        Args:
            num_examples: number of training examples, an int of at least 1.
            batch_size: expected batch size, an int from 1 to `num_examples`.
            updates: number of updates, an int of at least 1.
            epsilon: the budget, above 0.
            delta: in (0, 1).
            accountant: as in `Plan`.
            spent: releases already made; for groups of `examples_per_person`.
            sampler, neighbouring_relation, examples_per_person, capacity: as in `Plan`.

        Returns:
            A `Plan` with `cost(spent=spent)` at most `epsilon` and at least 99 % of it.

        Raises:
            ValueError: when an argument is out of range or the budget is already spent.

        Example:
            >>> plan = Plan.calibrated(
            ...     num_examples=60000, batch_size=256, updates=2350, epsilon=3.0, delta=1e-5
            ... )
            >>> 2.97 <= plan.cost() <= 3.0
            True
        """
        _check_batch(
            checks.integer("num_examples", num_examples, minimum=1),
            checks.integer("batch_size", batch_size, minimum=1),
        )
        noise = accounting.calibrate(
            epsilon=epsilon,
            delta=delta,
            sampling_probability=batch_size / num_examples,
            updates=updates,
            accountant=accountant,
            spent=spent,
            sampler=sampler,
            relation=neighbouring_relation,
            group_size=examples_per_person,
            num_examples=num_examples,
            capacity=capacity,
        )
        return cls(
            num_examples=num_examples,
            batch_size=batch_size,
            updates=updates,
            noise_multiplier=noise,
            delta=delta,
            epsilon=epsilon,
            sampler=sampler,
            neighbouring_relation=neighbouring_relation,
            accountant=accountant,
            examples_per_person=examples_per_person,
            capacity=capacity,
        )

    def to_dict(self) -> dict:
        """Returns the fields as JSON-serialisable values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> "Plan":
        """Returns the plan that `to_dict` wrote; ValueError for missing or unknown fields."""
        fields = {field.name for field in dataclasses.fields(cls)}
        if isinstance(values, dict):  # files of earlier versions lack these
            values = {"examples_per_person": 1, "capacity": None} | values
        if not isinstance(values, dict) or set(values) != fields:
            raise ValueError(
                f"This is not a plan. Received: values={values!r}. Pass what Plan.to_dict wrote, a dict with "
                f"exactly the keys {', '.join(sorted(fields))}."
            )
        return cls(**values)


def _check_batch(num_examples: int, batch_size: int) -> None:
    if batch_size > num_examples:
        raise ValueError(
            f"The expected batch is larger than the data. Received: batch_size={batch_size}, "
            f"num_examples={num_examples}. Pass a batch_size of at most num_examples."
        )
