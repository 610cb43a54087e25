"""What one call of `fit` asks for."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from lipdp import accounting, checks, strategies
from lipdp import sampling as samplers
from lipdp.accounting import risk_budget


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitRequest:
    """The arguments of one call of `fit` that fix noise, batches and updates; see `DP_Model.fit`.

    Args:
        strategy: How the gradient is made.
        sampling: Who is in a batch: bound to the data, it also holds N, B and the most examples of a person.
        epsilon: Budget, or None.
        noise_multiplier: Noise over sensitivity, or None to calibrate it.
        delta: Probability parameter of the guarantee.
        accountant: Name or object.
        epochs, initial_epoch: As in Keras.
        steps_per_epoch: Updates per epoch; None: N / B, rounded up.
        microbatch_size: Examples processed at once, or None.
        training_metrics: Whether to compute loss and metrics on the training data.
        seed: The user's seed, or None.
        noise_generator: What makes the noise, a name of `privacy.GENERATORS`.
        risk: Bound on what attacks can do, from which the noise follows, see `accounting.risk_budget`; or None.
        persons: Digest of the ids of the persons, where they are drawn, or None where it is not known: a file holds it
            after a `fit` with a seed only, as it says who is in the data.
        class_weight: Public weights of classes, as pairs in order, or None.

    Raises:
        ValueError: an argument is out of range.
    """

    strategy: strategies.Strategy
    sampling: samplers.Sampling
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    accountant: str | accounting.Accountant = "pld"
    epochs: int = 1
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    microbatch_size: int | None = None
    training_metrics: bool = True
    seed: int | None = None
    noise_generator: str = "threefry"
    risk: dict | None = None
    persons: str | None = None
    class_weight: tuple[tuple[int, float], ...] | None = None

    def __post_init__(self):
        values = {
            "strategy": strategies.get(self.strategy),
            "epochs": checks.integer("epochs", self.epochs, minimum=1),
            "initial_epoch": checks.integer("initial_epoch", self.initial_epoch),
            "steps_per_epoch": checks.integer("steps_per_epoch", self.steps_per_epoch, minimum=1, optional=True),
            "microbatch_size": checks.integer("microbatch_size", self.microbatch_size, minimum=1, optional=True),
            "training_metrics": checks.boolean("training_metrics", self.training_metrics),
            "seed": checks.integer("seed", self.seed, optional=True),
            "noise_generator": checks.choice("noise_generator", self.noise_generator, ("threefry", "chacha20")),
            "epsilon": checks.budget(self.epsilon, optional=True),
            "noise_multiplier": checks.positive("noise_multiplier", self.noise_multiplier, optional=True),
            "delta": checks.delta(self.delta),
            "risk": None if self.risk is None else risk_budget.check_risk(self.risk),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.risk is not None and (self.epsilon, self.noise_multiplier) != (None, None):
            raise ValueError(
                "Noise follows from a bound on risk, a budget or a noise multiplier. Received: "
                f"risk={self.risk!r}, epsilon={self.epsilon!r}, noise_multiplier={self.noise_multiplier!r}. Pass one."
            )
        if self.initial_epoch >= self.epochs:
            raise ValueError(
                "`initial_epoch` must lie before the last epoch. Received: "
                f"initial_epoch={self.initial_epoch!r}, epochs={self.epochs!r}."
            )

    @classmethod
    def of(
        cls,
        *,
        sampling: Any,
        batch_size: int,
        examples_per_person: int = 1,
        rows_per_person: int | None = None,
        **arguments: Any,
    ) -> FitRequest:
        """Returns the request that the arguments of `fit` make; without persons `rows_per_person` is None."""
        scheme = samplers.get(sampling)
        if scheme != samplers.Sampling(scheme.name, scheme.capacity):
            raise ValueError(
                "`sampling` must be a name, or a `Sampling` of a name and a capacity: `fit` knows the rest. Received: "
                f"sampling={scheme!r}. Pass `batch_size` and `examples_per_person` to `fit`."
            )
        scheme = dataclasses.replace(
            scheme,
            batch_size=checks.integer("batch_size", batch_size, minimum=1),
            group_size=checks.integer("examples_per_person", examples_per_person, minimum=1),
            rows_per_person=checks.integer("rows_per_person", rows_per_person, minimum=1, optional=True),
        )
        if rows_per_person is not None and scheme.group_size > 1:
            raise ValueError(
                "With `person_ids` persons are drawn, and epsilon is that of a person whatever number of rows they "
                f"have. Received: examples_per_person={examples_per_person!r} as well, which is for rows whose persons "
                "are not known. Leave it out; `rows_per_person` bounds what a person brings into an update."
            )
        return cls(sampling=scheme, **arguments)

    def bind(self, num_examples: int, persons: str | None = None) -> FitRequest:
        """Returns the request for data of `num_examples` examples, or persons of that digest."""
        here = self.sampling
        bound = here.bind(num_examples, here.batch_size, here.group_size)
        return dataclasses.replace(self, sampling=bound, persons=persons)

    @property
    def updates_per_epoch(self) -> int:
        return self.steps_per_epoch or math.ceil(self.sampling.num_examples / self.sampling.batch_size)

    @property
    def updates(self) -> int:
        """Returns the number of updates asked for."""
        return self.updates_per_epoch * (self.epochs - self.initial_epoch)

    def continues(self, other: FitRequest | None) -> bool:
        """Returns whether this request goes on with the plan that `other` made."""
        if other is None:
            return False
        known = None not in (self.persons, other.persons)
        return self._text(persons=known) == other._text(persons=known)

    def strategy_text(self) -> str:
        """Returns the strategy as text, for comparison."""
        return self._text("strategy")

    def keeps_strategy(self, other: FitRequest | None) -> bool:
        """Returns whether `other` asked for the same strategy, so that its state goes on."""
        return other is not None and self._text("strategy") == other._text("strategy")

    def _text(self, key: str | None = None, persons: bool = True) -> str:
        values = self.to_dict(persons)
        return json.dumps(values if key is None else values[key], sort_keys=True)

    def to_dict(self, persons: bool = True) -> dict:
        """Returns what a plan follows from, but for its length, as JSON-serializable values.

        Args:
            persons: Whether the digest of the persons is among them, which is as private as the data.
        """
        drawn = {
            "rows_per_person": self.sampling.rows_per_person,
            "persons": self.persons if persons else None,
            "risk": self.risk,
            "class_weight": self.class_weight,
        }
        return {
            "num_examples": self.sampling.num_examples,
            "batch_size": self.sampling.batch_size,
            "epsilon": self.epsilon,
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            "accountant": getattr(self.accountant, "name", self.accountant),
            "strategy": [self.strategy.name, self.strategy.get_config()],
            "sampler": self.sampling.name,
            "capacity": self.sampling.capacity,
            "examples_per_person": self.sampling.group_size,
            **{key: value for key, value in drawn.items() if value is not None},
        }

    @classmethod
    def from_dict(cls, values: dict) -> FitRequest:
        """Returns the request that `to_dict` wrote."""
        name, config = values["strategy"]
        try:
            strategy = strategies.get(name).from_config(config)
        except Exception:  # a class that this process does not know must not cost the weights
            strategy = _Unknown(name, config)
        weights = values.get("class_weight")
        unbound = samplers.Sampling(
            values["sampler"], values["capacity"], rows_per_person=values.get("rows_per_person")
        )
        return cls(
            strategy=strategy,
            sampling=unbound.bind(values["num_examples"], values["batch_size"], values["examples_per_person"]),
            persons=values.get("persons"),
            risk=values.get("risk"),
            class_weight=None if weights is None else tuple((int(label), float(value)) for label, value in weights),
            **{key: values[key] for key in ("epsilon", "noise_multiplier", "delta", "accountant")},
        )


@dataclasses.dataclass(frozen=True)
class _Unknown(strategies.Strategy):
    """Stands for a strategy of a user's own in a file: a request for the same one continues the plan."""

    name: str = ""  # type: ignore[misc]
    config: dict = dataclasses.field(default_factory=dict)

    def get_config(self) -> dict:
        return self.config
