"""What was (or will be) released, in the terms the accountants need."""

import dataclasses
import math
from collections.abc import Iterable

from dp_accounting import dp_event

from lipdp import checks

ADD_OR_REMOVE, ZERO_OUT, REPLACE = "add_or_remove_one", "zero_out_one", "replace_one"
RELATIONS = (ADD_OR_REMOVE, ZERO_OUT, REPLACE)
# The neighbouring relations under which each sampler can be charged; the first one is what `fit` states.
_RELATIONS_OF = {
    "poisson": (ADD_OR_REMOVE, ZERO_OUT, REPLACE),
    "truncated_poisson": (ZERO_OUT, REPLACE),
    "fixed_size": (REPLACE, ZERO_OUT, ADD_OR_REMOVE),
    "shuffle": (ZERO_OUT, REPLACE),
    "fixed_order": (ZERO_OUT, REPLACE),
}
SAMPLERS = tuple(_RELATIONS_OF)
EPOCH_SAMPLERS = ("shuffle", "fixed_order")
# Refused by name, with the reason.
WITHOUT_ACCOUNTANT = {
    "balls_in_bins": "only Monte Carlo estimates of its cost are known, which certify nothing",
}


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """`count` releases of a Gaussian on a sampled batch.

    Args:
        sampling_probability: chance, in (0, 1], that one example enters one release; 1 for "shuffle" and
            "fixed_order", which are not amplified.
        noise_multiplier: standard deviation of the noise over the norm that one example can contribute, at least
            0. Replacing an example moves the sum by twice that norm, which is taken care of here.
        count: number of releases, an int of at least 0; for "shuffle" and "fixed_order" the number of passes over
            the data, begun ones included.
        sampler: "poisson": every example enters every release independently of all else. "truncated_poisson": the
            same, and from a draw above `capacity` uniformly random examples are dropped. "fixed_size": a uniform
            subset of constant size. "shuffle", "fixed_order": each example once per pass.
        relation: "add_or_remove_one", "zero_out_one" (the gradient of one example becomes zero, its place in the
            batch stays) or "replace_one"; default: that of the sampler, which `default_relation` gives.
        group_size: how many examples change together, at least 1.
        num_examples: number of examples, needed by "truncated_poisson", and by "fixed_size" under
            "add_or_remove_one", where it is that of the LARGER of the two data sets.
        capacity: largest batch, for "truncated_poisson".

    Raises:
        ValueError: when an argument is out of range, or no sound cost is known for the combination.

    **Guarantee.**
    Conditions: batches are drawn as the sampler says, independently between releases (or passes); one example
    contributes at most one unit of norm, in which the noise multiplier is measured; the noise is Gaussian,
    independent, of the same covariance whatever is drawn.
    Bound: the pairs of `lipdp.accounting.pairs`, in both directions, dominate one release.
    Not covered: any other sampler or relation.
    Source: see `lipdp.accounting.pairs`.

    Example:
        >>> Mechanism(sampling_probability=0.01, noise_multiplier=1.0, count=100).without_amplification()
        Mechanism(1.0, 1.0, 100, 'poisson', 'add_or_remove_one')
    """

    sampling_probability: float
    noise_multiplier: float
    count: int
    sampler: str = "poisson"
    relation: str | None = None
    group_size: int = 1
    num_examples: int | None = None
    capacity: int | None = None

    def __post_init__(self):
        check_sampler(self.sampler)
        relation = self.relation or default_relation(self.sampler, self.group_size)
        values = {
            "sampling_probability": checks.probability("sampling_probability", self.sampling_probability),
            "noise_multiplier": checks.not_negative("noise_multiplier", self.noise_multiplier),
            "count": checks.integer("count", self.count),
            "relation": checks.choice("relation", relation, RELATIONS),
            "group_size": checks.integer("group_size", self.group_size, minimum=1),
        }
        for name in ("num_examples", "capacity"):
            if getattr(self, name) is not None:
                values[name] = checks.integer(name, getattr(self, name), minimum=1)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self):
        known = _RELATIONS_OF[self.sampler]
        if self.relation not in known:
            raise ValueError(
                f"The sampler has no known cost under this relation. Received: sampler={self.sampler!r}, "
                f"relation={self.relation!r}. Use one of {', '.join(map(repr, known))}."
            )
        needs = ()
        if self.sampler == "truncated_poisson":
            needs = ("num_examples", "capacity")
        elif self.sampler == "fixed_size" and self.relation == ADD_OR_REMOVE:
            needs = ("num_examples",)
        for name in ("num_examples", "capacity"):
            value = getattr(self, name)
            if name in needs and value is None:
                raise ValueError(
                    f"{name} is missing. Received: sampler={self.sampler!r}, {name}=None. Pass {name}: the cost "
                    "depends on it."
                )
            if name not in needs and value is not None:  # equal releases must compare as equal
                object.__setattr__(self, name, None)
        if self.sampler in EPOCH_SAMPLERS and self.sampling_probability != 1.0:
            raise ValueError(
                "Passes over the data are not amplified by sampling. Received: "
                f"sampler={self.sampler!r}, sampling_probability={self.sampling_probability!r}. Pass "
                "sampling_probability=1.0 and the number of passes as count, or use Mechanism.of_updates."
            )
        if self.group_size > 1 and self.sampler not in EPOCH_SAMPLERS:
            allowed = {"poisson": (ADD_OR_REMOVE, ZERO_OUT), "fixed_size": (ADD_OR_REMOVE,)}.get(self.sampler, ())
            if self.relation not in allowed:
                raise ValueError(
                    f"No sound cost is known for groups here. Received: sampler={self.sampler!r}, "
                    f"relation={self.relation!r}, group_size={self.group_size}. Use the sampler 'poisson' (add or "
                    "remove), 'fixed_size' (add or remove), 'shuffle' or 'fixed_order', or group_size=1."
                )
        if self.sampler == "fixed_size" and self.relation == ADD_OR_REMOVE:
            size = self.draw_size
            if size < 1 or not math.isclose(size, self.sampling_probability * self.num_examples, rel_tol=1e-6):
                raise ValueError(
                    "The batch size is not a whole number. Received: "
                    f"sampling_probability={self.sampling_probability!r}, num_examples={self.num_examples}. Pass "
                    "sampling_probability = batch size / num_examples."
                )
            if self.num_examples - self.group_size < size:
                raise ValueError(
                    "Without the group the data are smaller than one batch. Received: "
                    f"group_size={self.group_size}, num_examples={self.num_examples}, batch size {size}. Use a "
                    "smaller batch, or the sampler 'poisson'."
                )

    @classmethod
    def of_updates(
        cls,
        sampling_probability: float,
        noise_multiplier: float,
        updates: int,
        sampler: str = "poisson",
        **settings,
    ) -> "Mechanism":
        """Returns the mechanism of a run of `updates` updates, from its first one.

        Args:
            sampling_probability: batch size / number of examples, in (0, 1].
            noise_multiplier: standard deviation of the noise over the norm of one contribution, at least 0.
            updates: number of updates, at least 0.
            sampler: one of the samplers; "shuffle" and "fixed_order" are charged by the pass.
            **settings: the other arguments of `Mechanism`.

        Returns:
            A `Mechanism`.

        Example:
            >>> Mechanism.of_updates(256 / 60000, 1.1, 2350, "shuffle").count
            10
        """
        updates = checks.integer("updates", updates)
        if check_sampler(sampler) not in EPOCH_SAMPLERS:
            return cls(sampling_probability, noise_multiplier, updates, sampler, **settings)
        in_one = updates_per_pass(checks.probability("sampling_probability", sampling_probability))
        return cls(1.0, noise_multiplier, -(-updates // in_one), sampler, **settings)

    @property
    def draw_size(self) -> int:
        """Returns the batch size of "fixed_size" when the number of examples is known."""
        return round(self.sampling_probability * self.num_examples)

    @property
    def shift(self) -> float | None:
        """Returns how far a release without sampling can move, in contributions; None when it is sampled."""
        if self.sampling_probability < 1.0 or self.sampler == "truncated_poisson":
            return None
        doubled = self.relation == REPLACE or (self.sampler == "fixed_size" and self.relation == ADD_OR_REMOVE)
        return self.group_size * (2.0 if doubled else 1.0)

    def event(self) -> dp_event.DpEvent:
        """Returns the same as a dp_accounting event, for the relation add or remove one and for "shuffle"."""
        if self.count == 0:
            return dp_event.NoOpDpEvent()
        gaussian = dp_event.GaussianDpEvent(self.noise_multiplier)
        if self.sampler in EPOCH_SAMPLERS:
            return dp_event.SelfComposedDpEvent(gaussian, self.count)
        sampled = dp_event.PoissonSampledDpEvent(self.sampling_probability, gaussian)
        return dp_event.SelfComposedDpEvent(sampled, self.count)

    def without_amplification(self) -> "Mechanism":
        """Returns the same releases when everybody sees who is in each batch."""
        relation = self.relation
        if self.sampler == "fixed_size" and relation == ADD_OR_REMOVE:  # one comes in, another one leaves
            relation = REPLACE
        noise, group = self.noise_multiplier, self.group_size
        if relation == REPLACE and self.sampler not in EPOCH_SAMPLERS:
            noise, relation = noise / 2.0, None
        sampler = self.sampler if self.sampler in EPOCH_SAMPLERS else "poisson"
        return Mechanism(1.0, noise, self.count, sampler, relation, group)

    def for_group(self, size: int, num_examples: int | None = None) -> "Mechanism":
        """Returns the same releases when up to `size` examples change together.

        Args:
            size: at least 1.
            num_examples: number of examples, which "fixed_size" needs.

        Returns:
            A `Mechanism`. For "fixed_size" and size above 1 its relation is add or remove.
        """
        size = checks.integer("group_size", size, minimum=1)
        if size == self.group_size:
            return self
        if self.sampler == "fixed_size" and size > 1:
            known = self.num_examples or num_examples
            return dataclasses.replace(self, group_size=size, relation=ADD_OR_REMOVE, num_examples=known)
        return dataclasses.replace(self, group_size=size)

    def __repr__(self) -> str:
        values = [self.sampling_probability, self.noise_multiplier, self.count, self.sampler, self.relation]
        extra = {"group_size": 1, "num_examples": None, "capacity": None}
        named = [f"{k}={getattr(self, k)}" for k, v in extra.items() if getattr(self, k) != v]
        return f"Mechanism({', '.join([*map(repr, values), *named])})"


def check_sampler(sampler: str) -> str:
    """Returns the name of a sampler; ValueError when it is unknown or has no sound accountant."""
    if isinstance(sampler, str) and sampler in WITHOUT_ACCOUNTANT:
        raise ValueError(
            f"The sampler has no sound accountant: {WITHOUT_ACCOUNTANT[sampler]}. Received: sampler={sampler!r}. "
            "Use 'poisson', or 'shuffle' without amplification."
        )
    return checks.choice("sampler", sampler, SAMPLERS)


def default_relation(sampler: str, group_size: int = 1) -> str:
    """Returns the neighbouring relation that a sampler is charged under unless another one is named."""
    if sampler == "fixed_size" and group_size != 1:
        return ADD_OR_REMOVE
    return _RELATIONS_OF[sampler][0]


def updates_per_pass(sampling_probability: float) -> int:
    """Returns ceil(N / B) from B / N, one less at most where rounding hides by how little it misses a whole number.

    The quotient and its inverse are rounded once each, so a whole N / B comes out within 2 units in the last place.
    Fewer updates in a pass mean more passes charged, never fewer.
    """
    inverse = 1.0 / sampling_probability
    return max(1, math.ceil(inverse * (1.0 - 2.0**-51)))


def common_relation(mechanisms: Iterable[Mechanism]) -> str:
    """Returns the relation for which the costs of all `mechanisms` may be added up.

    Args:
        mechanisms: releases; all for groups of one size.

    Returns:
        The relation of all of them; for a mixture "zero_out_one", which costs no more than what each is charged.

    Raises:
        ValueError: when there is no such relation or the groups differ in size.

    Example:
        >>> common_relation([Mechanism(0.1, 1.0, 5), Mechanism(1.0, 1.0, 2, "shuffle")])
        'zero_out_one'
    """
    mechanisms = list(mechanisms)
    if len({m.group_size for m in mechanisms}) > 1:
        raise ValueError(
            "Releases for groups of different sizes cannot be added up. Received: group sizes "
            f"{sorted({m.group_size for m in mechanisms})}. Use one size."
        )
    found = {m.relation for m in mechanisms}
    if len(found) <= 1:
        return found.pop() if found else ADD_OR_REMOVE
    for mechanism in mechanisms:
        # A zeroed example is a special replacement, and for Poisson sampling the same as a removed one.
        if mechanism.relation == ADD_OR_REMOVE and mechanism.sampler != "poisson":
            raise ValueError(
                "These releases have no neighbouring relation in common. Received: "
                f"{', '.join(sorted({f'{m.sampler} ({m.relation})' for m in mechanisms}))}. Train with one sampler, or "
                "ask for group_size=1."
            )
    return ZERO_OUT


def canonical(mechanisms: Iterable[Mechanism]) -> tuple[Mechanism, ...]:
    """Merges equal mechanisms and sorts them, so that equal content gives equal numbers.

    Args:
        mechanisms: the releases, in any order.

    Returns:
        One `Mechanism` per distinct kind of release, none with count 0.

    Raises:
        ValueError: when an entry is not a `Mechanism`, or they have no neighbouring relation in common.
    """
    counts = {}
    for mechanism in mechanisms:
        if not isinstance(mechanism, Mechanism):
            raise ValueError(
                f"An entry is not a Mechanism. Received: mechanism={mechanism!r}. "
                "Pass lipdp.accounting.Mechanism objects."
            )
        key = dataclasses.replace(mechanism, count=0)
        counts[key] = counts.get(key, 0) + mechanism.count
    kinds = sorted((kind for kind in counts if counts[kind]), key=lambda kind: [*map(str, dataclasses.astuple(kind))])
    common_relation(kinds)
    return tuple(dataclasses.replace(kind, count=counts[kind]) for kind in kinds)
