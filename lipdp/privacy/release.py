"""Release: one kind of what was released, its cost, and what the statement says about it."""

import dataclasses

from lipdp import accounting, checks
from lipdp.accounting import Sampling, schemes

KINDS = ("gradient", "norm_sum", "clip_sum", "count", "moments")
# Noise, sampling and clip norm of later releases follow from these, which plans cannot know.
ADAPTIVE = ("norm_sum", "clip_sum", "count")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
    """One kind of release: its cost, and the public facts that the privacy statement needs.

    Args:
        sampling: who is in a batch, bound to the data. The ledger is read for groups of any size, so it is kept as the
            sampling of single examples.
        noise_multiplier: standard deviation of the noise over the sensitivity, at least 0.
        sensitivity: L2 norm, above 0, by which one example can move what is released.
        strategy: name of what computed the gradient, "clipless" say.
        noise_allocation: how the noise is spread over the layers, "global" say.
        kind: "gradient": a noisy averaged gradient. "norm_sum", "clip_sum" and "count": noisy sums from which noise,
            sampling and clip norm of later updates follow. "moments": noisy averages of inputs, of their
            squares, or of how often values occur.
        stream: which sequence of epochs, for the samplers that go through the data. A stream begins with a whole
            epoch, and its updates go on where the last one of the same stream stopped.
        count: how many were made; 0 for a description that is not charged yet.

    Raises:
        ValueError: when an argument is out of range.

    Example:
        >>> update = Release(sampling=Sampling().bind(1000, 10), noise_multiplier=1.0, sensitivity=0.1,
        ...                  strategy="clipless", noise_allocation="global")
        >>> update.count
        0
    """

    sampling: Sampling
    noise_multiplier: float
    sensitivity: float
    strategy: str
    noise_allocation: str
    kind: str = "gradient"
    stream: int = 0
    count: int = 0

    def __post_init__(self):
        values = {
            "sampling": schemes.check_bound(self.sampling).for_group(1),
            "kind": checks.choice("kind", self.kind, KINDS),
            "noise_multiplier": checks.not_negative("noise_multiplier", self.noise_multiplier),
            "sensitivity": checks.positive("sensitivity", self.sensitivity),
            "stream": checks.integer("stream", self.stream),
            "count": checks.integer("count", self.count),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for name in ("strategy", "noise_allocation"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"`{name}` must be a non-empty string. Received: {name}={value!r}.")

    def mechanism(self, group_size: int = 1, epochs: int | None = None) -> accounting.Mechanism:
        """Returns the cost of all `count` releases, for groups of `group_size` examples.

        Args:
            group_size: at least 1.
            epochs: to how many epochs they belong, for the samplers that are charged by the epoch; default: those of
                `count` updates from the start of an epoch.
        """
        sampling = self.sampling.for_group(group_size)
        one = accounting.Mechanism.of_updates(None, self.noise_multiplier, self.count, sampling)
        return one if epochs is None else dataclasses.replace(one, count=epochs)

    @property
    def stream_key(self) -> tuple:
        """Returns what the releases of one sequence of epochs have in common."""
        return self.stream, self.sampling.name, self.sampling.num_examples, self.sampling.batch_size

    def to_dict(self) -> dict:
        """Returns the release as JSON-serializable values, flat."""
        values = self.sampling.to_dict() | vars(self)
        del values["sampling"], values["examples_per_person"]
        return values

    @classmethod
    def from_dict(cls, values: dict) -> "Release":
        """Returns the release that `to_dict` wrote; ValueError for missing or unknown fields, or out of range."""
        keys = {*schemes.KEYS, *cls.__dataclass_fields__} - {"sampling", "examples_per_person"}
        # Files of earlier versions lack these.
        values = {"capacity": None, "rows_per_person": None, "stream": 0} | current_keys(values)
        if set(values) != keys:
            raise ValueError(f"it does not hold exactly the fields of a release: {values!r}")
        own = {name: value for name, value in values.items() if name not in schemes.KEYS}
        return cls(sampling=Sampling.from_dict(values), **own)


def current_keys(values: dict) -> dict:
    """Returns the content of a file by the names of today: version 0.1.0 spelled one of them differently."""
    if not isinstance(values, dict):
        raise ValueError(f"it is not a dictionary: {values!r}")
    if {"neighboring_relation", "neighbouring_relation"} <= set(values):
        raise ValueError("it holds the relation twice, in two spellings")
    return {"neighboring_relation" if name == "neighbouring_relation" else name: v for name, v in values.items()}
