"""Who is in a batch: the one value that mechanism, plan and release hold."""

import dataclasses
import math

from lipdp import checks
from lipdp.accounting.scheme import ADD_OR_REMOVE as ADD_OR_REMOVE
from lipdp.accounting.scheme import RELATIONS as RELATIONS
from lipdp.accounting.scheme import REPLACE as REPLACE
from lipdp.accounting.scheme import SAMPLERS as SAMPLERS
from lipdp.accounting.scheme import SCHEMES as SCHEMES
from lipdp.accounting.scheme import WITHOUT_ACCOUNTANT as WITHOUT_ACCOUNTANT
from lipdp.accounting.scheme import ZERO_OUT as ZERO_OUT
from lipdp.accounting.scheme import Scheme as Scheme

# The expected batch size of `fit` where neither the user nor the data say one.
BATCH_SIZE = 256

# Fields of a `Sampling` by their names in files.
KEYS = {
    "sampler": "name",
    "num_examples": "num_examples",
    "batch_size": "batch_size",
    "sampling_probability": "sampling_probability",
    "neighboring_relation": "relation",
    "capacity": "capacity",
    "examples_per_person": "group_size",
    "rows_per_person": "rows_per_person",
}


@dataclasses.dataclass(frozen=True, repr=False)
class Sampling:
    """Who is in a batch. A user names the scheme; `bind` adds the sizes of the data, the batch and the group.

    Args:
        name: a name in `SAMPLERS`. "poisson": every example enters every batch independently of all else.
            Truncated: the same, and from a draw above `capacity` uniformly random examples are dropped.
            "fixed_size": a uniform subset of constant size. "random_allocation": each example in one update of each
            epoch, drawn uniformly. "shuffle", "fixed_order": each example once per epoch, without amplification.
        capacity: largest batch, of truncated Poisson samples; default: B + 6 sqrt(B), which costs nothing.
        num_examples: number of examples N, at least 1, public.
        batch_size: EXPECTED batch size B, from 1 to N, public: the divisor of the gradient.
        relation: "add_or_remove_one", "zero_out_one" (one example keeps its place in the batches, but contributes
            nothing to any release) or "replace_one"; default: the first one with a known cost.
        group_size: how many examples change together, at least 1: those of one person.
        sampling_probability: chance q, in (0, 1], that one example enters one batch; default: B / N. Only importance
            sampling has another one, which is never below.
        rows_per_person: None where examples are drawn. Otherwise persons are: N and B count persons, wherever "example"
            stands here a person is meant, and one that is drawn contributes the average of at most so many rows.

    Raises:
        ValueError: an unknown name, a sampler without a sound accountant, an argument that is out of range or has no
            meaning, or no sound cost is known for the combination.

    Example:
        >>> Sampling("fixed_size", relation="zero_out_one")
        Sampling('fixed_size', relation='zero_out_one')
        >>> bound = Sampling().bind(num_examples=60000, batch_size=256)
        >>> round(bound.sampling_probability, 6), bound.relation
        (0.004267, 'add_or_remove_one')
    """

    name: str = "poisson"
    capacity: int | None = None
    num_examples: int | None = None
    batch_size: int | None = None
    relation: str | None = None
    group_size: int = 1
    sampling_probability: float | None = None
    rows_per_person: int | None = None

    def __post_init__(self):
        check_sampler(self.name)
        self._set("group_size", checks.integer("group_size", self.group_size, minimum=1))
        for name in ("capacity", "num_examples", "batch_size", "rows_per_person"):
            self._set(name, checks.integer(name, getattr(self, name), minimum=1, optional=True))
        if self.relation is not None:
            checks.choice("relation", self.relation, RELATIONS)
        if self.capacity is not None and not self.scheme.has_capacity:
            raise ValueError(
                "`capacity` must be None: only truncated Poisson sampling has one. Received: "
                f"sampler={self.name!r}, capacity={self.capacity!r}."
            )
        if self.num_examples is not None and self.batch_size is not None:
            self._complete_sizes()
        if self.sampling_probability is not None:
            self._complete_cost()

    _set = object.__setattr__

    def _complete_sizes(self) -> None:
        check_batch(self.num_examples, self.batch_size)
        rate = self.batch_size / self.num_examples
        if self.sampling_probability is None:
            self._set("sampling_probability", rate)
        claimed = checks.probability("sampling_probability", self.sampling_probability)
        if claimed < rate * (1.0 - 1e-5) or (self.name != "poisson" and claimed > rate * (1.0 + 1e-9)):
            raise ValueError(
                "`sampling_probability` must be batch_size / num_examples, above it only for Poisson samples. "
                f"Received: sampling_probability={claimed!r}, batch_size={self.batch_size}, "
                f"num_examples={self.num_examples}."
            )
        if self.name != "poisson":
            # Older files may hold it rounded down. That of importance sampling is a little below where norms are equal.
            self._set("sampling_probability", max(claimed, rate))
        if self.scheme.has_capacity and self.capacity is None:
            self._set("capacity", math.ceil(self.batch_size + 6.0 * math.sqrt(self.batch_size)))

    def _complete_cost(self) -> None:
        """Fills in the relation and refuses what has no sound cost."""
        self._set("sampling_probability", checks.probability("sampling_probability", self.sampling_probability))
        if self.relation is None:
            of_groups = self.scheme.group_relations if self.group_size > 1 else ()
            self._set("relation", (of_groups or self.scheme.relations)[0])
        if self.relation not in self.scheme.relations:
            raise ValueError(
                f"`relation` must be one of {', '.join(map(repr, self.scheme.relations))}: the sampler has no known "
                f"cost under this relation. Received: sampler={self.name!r}, relation={self.relation!r}."
            )
        needed = ("num_examples",) * self._costs_by_size + ("capacity",) * self.scheme.has_capacity
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(
                    f"`{name}` must be given: the cost depends on it. Received: sampler={self.name!r}, {name}=None."
                )
        if self.group_size > 1 and self.relation not in self.scheme.group_relations:
            raise ValueError(
                f"No sound cost is known for groups here. Received: sampler={self.name!r}, "
                f"relation={self.relation!r}, group_size={self.group_size}. Use the sampler 'poisson' (add or "
                "remove), 'fixed_size' (add or remove), 'shuffle' or 'fixed_order', or group_size=1."
            )
        if self._costs_by_size and not self.scheme.has_capacity:
            self._check_subset()

    def _check_subset(self) -> None:
        size = self.draw_size
        if size < 1 or not math.isclose(size, self.sampling_probability * self.num_examples, rel_tol=1e-6):
            raise ValueError(
                "`sampling_probability` must be batch size / num_examples, but the batch size is not a whole number. "
                f"Received: sampling_probability={self.sampling_probability!r}, num_examples={self.num_examples}."
            )
        if self.num_examples - self.group_size < size:
            raise ValueError(
                "`group_size` must leave a whole batch: without the group the data are smaller than one batch. "
                f"Received: group_size={self.group_size}, num_examples={self.num_examples}, batch size {size}. "
                "Use a smaller batch, or the sampler 'poisson'."
            )

    def bind(self, num_examples: int, batch_size: int, examples_per_person: int = 1) -> "Sampling":
        """Returns this sampling of `num_examples` examples in batches of `batch_size`.

        Args:
            num_examples: N, at least 1.
            batch_size: B, from 1 to N.
            examples_per_person: most examples of one person: `group_size`.

        Returns:
            A `Sampling` with every field filled in that has a meaning for this sampler.

        Raises:
            ValueError: when an argument is out of range, or no sound cost is known for the combination.
        """
        num_examples = checks.integer("num_examples", num_examples, minimum=1)
        size = checks.integer("examples_per_person", examples_per_person, minimum=1)
        if size > num_examples:
            raise ValueError(
                "`examples_per_person` must not be larger than the data. Received: "
                f"examples_per_person={size}, num_examples={num_examples}. Pass the most rows that one person has."
            )
        return dataclasses.replace(
            self,
            num_examples=num_examples,
            batch_size=checks.integer("batch_size", batch_size, minimum=1),
            group_size=size,
            sampling_probability=None,
        )

    def for_group(self, size: int, num_examples: int | None = None) -> "Sampling":
        """Returns the same sampling when up to `size` examples change together.

        Args:
            size: at least 1.
            num_examples: number of examples, which "fixed_size" needs where it is not known yet.

        Returns:
            A `Sampling`. For "fixed_size" and size above 1 its relation is add or remove.
        """
        size = checks.integer("group_size", size, minimum=1)
        if size == self.group_size:
            return self
        if self.name == "fixed_size" and size > 1:
            known = self.num_examples or num_examples
            return dataclasses.replace(self, group_size=size, relation=ADD_OR_REMOVE, num_examples=known)
        return dataclasses.replace(self, group_size=size)

    def charged(self) -> "Sampling":
        """Returns the sampling without what the cost of one release does not depend on: equal costs compare equal."""
        plain = self.batch_size is None and self.rows_per_person is None and not self.by_epoch
        probability = self.sampling_probability
        if self.scheme.allocates:
            probability = 1.0 / self.updates_per_epoch
        elif self.by_epoch:
            probability = 1.0
        if plain and (self.num_examples is None or self._costs_by_size):
            return self
        return dataclasses.replace(
            self,
            num_examples=self.num_examples if self._costs_by_size else None,
            batch_size=None,
            rows_per_person=None,
            sampling_probability=probability,
        )

    def to_dict(self) -> dict:
        """Returns the fields by the names that plans, ledgers and statements give them."""
        values = {key: getattr(self, name) for key, name in KEYS.items()}
        if self.rows_per_person is None:  # files where no persons are drawn stay as they were
            del values["rows_per_person"]
        return values

    @classmethod
    def from_dict(cls, values: dict) -> "Sampling":
        """Returns the sampling that `to_dict` wrote, from what is there of it; other keys are left alone."""
        fields = {name: values[key] for key, name in KEYS.items() if key in values}
        if not SCHEMES[check_sampler(fields["name"])].has_capacity:  # earlier versions took one and ignored it
            fields["capacity"] = None
        return cls(**fields)

    @property
    def scheme(self) -> Scheme:
        """Returns what the library knows about this way to draw."""
        return SCHEMES[self.name]

    @property
    def unit(self) -> str:
        """Returns what is drawn and protected: "example" or "person"."""
        return "example" if self.rows_per_person is None else "person"

    @property
    def by_epoch(self) -> bool:
        """Returns whether each example comes once per epoch, and is charged by the epoch."""
        return self.scheme.by_epoch

    @property
    def amplified(self) -> bool:
        """Returns whether sampling makes a release cheaper."""
        return (self.scheme.allocates or not self.by_epoch) and self.sampling_probability < 1.0

    @property
    def _costs_by_size(self) -> bool:
        """Whether the cost depends on N, and not on q alone."""
        return self.scheme.has_capacity or (self.name == "fixed_size" and self.relation == ADD_OR_REMOVE)

    @property
    def largest_batch(self) -> int | None:
        """Returns the largest batch that can occur; None where there is no other than N."""
        if self.scheme.has_capacity:
            return self.capacity
        return None if self.name == "poisson" or self.scheme.allocates else self.batch_size

    @property
    def draw_size(self) -> int:
        """Returns the size of a draw from `num_examples` examples: expected, or constant."""
        return self.batch_size or round(self.sampling_probability * self.num_examples)

    @property
    def updates_per_epoch(self) -> int:
        """Returns ceil(N / B); from B / N where only that is known.

        There, one less at most where rounding hides by how little it misses a whole number: the quotient and its
        inverse are rounded once each, so a whole N / B comes out within 2 units in the last place. Fewer updates in an
        epoch mean more epochs charged, never fewer.
        """
        if self.num_examples is not None and self.batch_size is not None:
            return -(-self.num_examples // self.batch_size)
        return max(1, math.ceil(1.0 / self.sampling_probability * (1.0 - 2.0**-51)))

    def __repr__(self) -> str:
        unusual = [f for f in dataclasses.fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"Sampling({', '.join([repr(self.name), *(f'{f.name}={getattr(self, f.name)!r}' for f in unusual)])})"


def check_sampler(name: str, argument: str = "sampler") -> str:
    """Returns the name of a sampler, an argument; ValueError when it is unknown or has no sound accountant."""
    if isinstance(name, str) and name in WITHOUT_ACCOUNTANT:
        raise ValueError(
            f"The sampler has no sound accountant: {WITHOUT_ACCOUNTANT[name]}. Received: {argument}={name!r}. "
            "Use 'poisson' or 'random_allocation', or 'shuffle' without amplification."
        )
    return checks.choice(argument, name, tuple(SCHEMES))


def check_bound(sampling: Sampling) -> Sampling:
    """Returns a `Sampling` whose sizes are known; ValueError otherwise."""
    if not isinstance(sampling, Sampling) or None in (sampling.num_examples, sampling.batch_size):
        raise ValueError(
            f"`sampling` must be a bound Sampling. Received: sampling={sampling!r}. Pass "
            "Sampling(...).bind(num_examples, batch_size)."
        )
    return sampling


def check_batch(num_examples: int, batch_size: int) -> None:
    """Refuses an expected batch that is larger than the data."""
    if batch_size > num_examples:
        default = f" ({BATCH_SIZE} is what `fit` takes where none is given)" if batch_size == BATCH_SIZE else ""
        raise ValueError(
            f"`batch_size` must not be larger than the data. Received: batch_size={batch_size}{default}, "
            f"num_examples={num_examples}. Pass at most {num_examples}; an eighth of the data is a good start."
        )


def get(
    sampling_probability: float | None = None,
    sampler: str | Sampling = "poisson",
    *,
    relation: str | None = None,
    group_size: int = 1,
    num_examples: int | None = None,
    capacity: int | None = None,
) -> Sampling:
    """Returns the sampling that flat arguments describe, as those of `Mechanism` and `epsilon`.

    Args:
        sampling_probability: in (0, 1]; leave it out where `sampler` is a bound `Sampling`.
        sampler: a name in `SAMPLERS`, or a bound `Sampling`, which holds all the other arguments.
        relation, group_size, num_examples, capacity: as in `Sampling`.

    Raises:
        ValueError: when an argument is out of range, or given beside a `Sampling`.
    """
    if isinstance(sampler, Sampling):
        beside = (sampling_probability, relation, group_size, num_examples, capacity)
        if sampler.sampling_probability is None or beside != (None, None, 1, None, None):
            raise ValueError(
                f"`sampler` must be a name, or a bound Sampling alone. Received: sampler={sampler!r}, "
                f"sampling_probability={sampling_probability!r}. Pass Sampling(...).bind(num_examples, batch_size), "
                "which holds relation, sizes and group."
            )
        return sampler
    capacity = capacity if SCHEMES[check_sampler(sampler)].has_capacity else None
    probability = checks.probability("sampling_probability", sampling_probability)
    return Sampling(sampler, capacity, num_examples, None, relation, group_size, probability)
