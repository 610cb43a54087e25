"""What was (or will be) released, in the terms the accountants need."""

import dataclasses
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from dp_accounting import dp_event

from lipdp import checks
from lipdp.accounting import schemes
from lipdp.accounting.schemes import ADD_OR_REMOVE, REPLACE, ZERO_OUT, Sampling


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Mechanism:
    """`count` releases of a Gaussian on a sampled batch.

    Args:
        sampling_probability: chance, in (0, 1], that one example enters one release; 1 for "shuffle" and
            "fixed_order", which are not amplified, and 1 over the updates of an epoch for "random_allocation".
        noise_multiplier: standard deviation of the noise over the norm that one example can contribute, at least
            0. Replacing an example moves the sum by twice that norm, which is taken care of here.
        count: number of releases, an int of at least 0; for "shuffle", "fixed_order" and "random_allocation" the number
            of epochs, begun ones included.
        sampler: a name in `SAMPLERS`; see `Sampling`.
        relation, group_size, capacity: as in `Sampling`.
        num_examples: needed where the cost depends on it: by "fixed_size" under "add_or_remove_one", where it is that
            of the LARGER of the two data sets, and with a capacity.
        sampling: a `Sampling` in the place of all of these but `noise_multiplier` and `count`.

    Raises:
        ValueError: when an argument is out of range, or no sound cost is known for the combination.

    **Guarantee.**
    Conditions: batches are drawn as the sampler says, independently between releases (or epochs); one example
    contributes at most one unit of norm, in which the noise multiplier is measured; the noise is Gaussian,
    independent, of the same covariance whatever is drawn.
    Bound: the pairs of `lipdp.accounting.dominating_pairs`, in both directions, dominate one release.
    Not covered: any other sampler or relation.
    Source: see `lipdp.accounting.dominating_pairs`.

    Example:
        >>> Mechanism(sampling_probability=0.01, noise_multiplier=1.0, count=100).without_amplification()
        Mechanism(1.0, 1.0, 100, 'poisson', 'add_or_remove_one')
    """

    sampling: Sampling
    noise_multiplier: float
    count: int

    def __init__(
        self,
        sampling_probability: float | None = None,
        noise_multiplier: float | None = None,
        count: int | None = None,
        sampler: str = "poisson",
        relation: str | None = None,
        group_size: int = 1,
        num_examples: int | None = None,
        capacity: int | None = None,
        *,
        sampling: Sampling | None = None,
    ):
        if sampling is not None and sampler != "poisson":
            raise ValueError(f"`sampler` must be left out beside `sampling`. Received: sampler={sampler!r}.")
        flat: dict[str, Any] = {"relation": relation, "num_examples": num_examples, "capacity": capacity}
        drawn = sampler if sampling is None else sampling
        sampling = schemes.get(sampling_probability, drawn, group_size=group_size, **flat)
        charged = sampling.scheme.allocates or not sampling.by_epoch or sampling.batch_size is not None
        if not charged and sampling.sampling_probability != 1.0:
            raise ValueError(
                "Epochs are not amplified by sampling. Received: "
                f"sampler={sampling.name!r}, sampling_probability={sampling.sampling_probability!r}. Pass "
                "sampling_probability=1.0 and the number of epochs as count, or use Mechanism.of_updates."
            )
        object.__setattr__(self, "sampling", sampling.charged())
        object.__setattr__(self, "noise_multiplier", checks.not_negative("noise_multiplier", noise_multiplier))
        object.__setattr__(self, "count", checks.integer("count", count))

    @classmethod
    def of_updates(
        cls,
        sampling_probability: float | None = None,
        noise_multiplier: float | None = None,
        updates: int | None = None,
        sampler: str | Sampling = "poisson",
        **settings: Any,
    ) -> "Mechanism":
        """Returns the mechanism of a run of `updates` updates, from its first one.

        Args:
            sampling_probability: batch size / number of examples, in (0, 1]; left out where `sampler` is a `Sampling`.
            noise_multiplier, **settings: as in `Mechanism`.
            updates: number of updates, at least 0.
            sampler: a name in `SAMPLERS`, or a bound `Sampling`; by-epoch samplers are charged by the epoch.

        Example:
            >>> Mechanism.of_updates(256 / 60000, 1.1, 2350, "shuffle").count
            10
        """
        updates = checks.integer("updates", updates)
        sampling = schemes.get(sampling_probability, sampler, **settings)
        count = -(-updates // sampling.updates_per_epoch) if sampling.by_epoch else updates
        return cls(noise_multiplier=noise_multiplier, count=count, sampling=sampling.charged())

    sampling_probability = property(attrgetter("sampling.sampling_probability"), doc="As in `Sampling`.")
    sampler = property(attrgetter("sampling.name"), doc="Name of the sampler.")
    relation = property(attrgetter("sampling.relation"), doc="As in `Sampling`.")
    group_size = property(attrgetter("sampling.group_size"), doc="As in `Sampling`.")
    num_examples = property(attrgetter("sampling.num_examples"), doc="None where the cost does not depend on it.")
    capacity = property(attrgetter("sampling.capacity"), doc="As in `Sampling`.")

    @property
    def plain(self) -> bool:
        """Returns whether this is the textbook case: Poisson samples, one example added, removed or zeroed."""
        return self.sampler == "poisson" and self.group_size == 1 and self.relation != REPLACE

    @property
    def shift(self) -> float | None:
        """Returns how far a release without sampling can move, in contributions; None when it is sampled."""
        if self.sampling_probability < 1.0 or self.capacity is not None:
            return None
        doubled = self.relation == REPLACE or (self.sampler == "fixed_size" and self.relation == ADD_OR_REMOVE)
        return self.group_size * (2.0 if doubled else 1.0)

    def event(self) -> dp_event.DpEvent:
        """Returns the same as a dp_accounting event, for the relation add or remove one and for "shuffle"."""
        if self.count == 0:
            return dp_event.NoOpDpEvent()
        gaussian = dp_event.GaussianDpEvent(self.noise_multiplier)
        if self.sampling.by_epoch:
            return dp_event.SelfComposedDpEvent(gaussian, self.count)
        sampled = dp_event.PoissonSampledDpEvent(self.sampling_probability, gaussian)
        return dp_event.SelfComposedDpEvent(sampled, self.count)

    def without_amplification(self) -> "Mechanism":
        """Returns the same releases when everybody sees who is in each batch."""
        by_epoch, relation, noise = self.sampling.by_epoch, self.relation, self.noise_multiplier
        if self.sampler == "fixed_size" and relation == ADD_OR_REMOVE:  # one comes in, another one leaves
            relation = REPLACE
        if relation == REPLACE and not by_epoch:
            noise, relation = noise / 2.0, None
        return Mechanism(1.0, noise, self.count, self.sampler if by_epoch else "poisson", relation, self.group_size)

    def for_group(self, size: int, num_examples: int | None = None) -> "Mechanism":
        """Returns the same releases when up to `size` examples change together; see `Sampling.for_group`."""
        return dataclasses.replace(self, sampling=self.sampling.for_group(size, num_examples))

    def flat(self) -> tuple:
        """Returns the flat arguments that make this mechanism."""
        s = self.sampling
        cost = s.sampling_probability, self.noise_multiplier, self.count
        return *cost, s.name, s.relation, s.group_size, s.num_examples, s.capacity

    def __repr__(self) -> str:
        values, extra = self.flat(), {"group_size": 1, "num_examples": None, "capacity": None}
        named = [f"{k}={v}" for (k, usual), v in zip(extra.items(), values[5:], strict=True) if v != usual]
        return f"Mechanism({', '.join([*map(repr, values[:5]), *named])})"


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
    relations = {m.relation for m in mechanisms}
    if len(relations) <= 1:
        return relations.pop() if relations else ADD_OR_REMOVE
    for mechanism in mechanisms:
        # A zeroed example is a special replacement, and where all are drawn by themselves the same as a removed one.
        by_itself = mechanism.sampler == "poisson" or mechanism.sampling.scheme.allocates
        if mechanism.relation == ADD_OR_REMOVE and not by_itself:
            raise ValueError(
                "These releases have no neighboring relation in common. Received: "
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
        ValueError: when an entry is not a `Mechanism`, or they have no neighboring relation in common.
    """
    counts = {}
    for mechanism in mechanisms:
        if not isinstance(mechanism, Mechanism):
            raise ValueError(
                f"`mechanisms` must hold lipdp.accounting.Mechanism objects. Received: mechanism={mechanism!r}."
            )
        key = dataclasses.replace(mechanism, count=0)
        counts[key] = counts.get(key, 0) + mechanism.count
    kinds = sorted((kind for kind in counts if counts[kind]), key=lambda kind: [*map(str, kind.flat())])
    common_relation(kinds)
    return tuple(dataclasses.replace(kind, count=counts[kind]) for kind in kinds)
