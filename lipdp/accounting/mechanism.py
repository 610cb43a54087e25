"""What was (or will be) released, in the terms the accountants need."""

import dataclasses
from collections.abc import Iterable

from dp_accounting import dp_event

from lipdp.accounting import checks

SAMPLERS = ("poisson",)


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """`count` releases of a Poisson-sampled Gaussian.

    Args:
        sampling_probability: chance, in (0, 1], that one example enters one release.
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, at least 0.
        count: number of releases, an int of at least 0.
        sampler: "poisson": every example enters every release independently of all else.

    Raises:
        ValueError: when an argument is out of range.

    **Guarantee.**
    Conditions: examples are drawn by Poisson sampling, independently between releases; adding or removing one
    example moves the released sum by at most the sensitivity in L2 norm; the noise is Gaussian, independent.
    Bound: the pair N(0, z^2) and (1-q) N(0, z^2) + q N(1, z^2), in both directions, dominates one release.
    Not covered: any other sampler (shuffled epochs, fixed batch sizes), any other neighbouring relation.
    Source: Abadi et al. 2016; Zhu, Dong and Wang 2022.

    Example:
        >>> Mechanism(sampling_probability=0.01, noise_multiplier=1.0, count=100).without_amplification()
        Mechanism(sampling_probability=1.0, noise_multiplier=1.0, count=100, sampler='poisson')
    """

    sampling_probability: float
    noise_multiplier: float
    count: int
    sampler: str = "poisson"

    def __post_init__(self):
        values = {
            "sampling_probability": checks.probability("sampling_probability", self.sampling_probability),
            "noise_multiplier": checks.not_negative("noise_multiplier", self.noise_multiplier),
            "count": checks.integer("count", self.count),
            "sampler": checks.choice("sampler", self.sampler, SAMPLERS),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def event(self) -> dp_event.DpEvent:
        """Returns the same as a dp_accounting event."""
        if self.count == 0:
            return dp_event.NoOpDpEvent()
        gaussian = dp_event.GaussianDpEvent(self.noise_multiplier)
        sampled = dp_event.PoissonSampledDpEvent(self.sampling_probability, gaussian)
        return dp_event.SelfComposedDpEvent(sampled, self.count)

    def without_amplification(self) -> "Mechanism":
        """Returns the same releases when every example is in every batch."""
        return dataclasses.replace(self, sampling_probability=1.0)


def canonical(mechanisms: Iterable[Mechanism]) -> tuple[Mechanism, ...]:
    """Merges equal mechanisms and sorts them, so that equal content gives equal numbers.

    Args:
        mechanisms: the releases, in any order.

    Returns:
        One `Mechanism` per distinct (sampler, rate, noise), none with count 0.

    Raises:
        ValueError: when an entry is not a `Mechanism`.
    """
    counts = {}
    for mechanism in mechanisms:
        if not isinstance(mechanism, Mechanism):
            raise ValueError(
                f"An entry is not a Mechanism. Received: mechanism={mechanism!r}. "
                "Pass lipdp.accounting.Mechanism objects."
            )
        key = (mechanism.sampling_probability, mechanism.noise_multiplier, mechanism.sampler)
        counts[key] = counts.get(key, 0) + mechanism.count
    return tuple(Mechanism(q, z, counts[q, z, s], s) for q, z, s in sorted(counts) if counts[q, z, s])
