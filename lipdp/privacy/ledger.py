"""Ledger: the append-only list of what was released."""

import dataclasses
import json
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lipdp import accounting, checks
from lipdp.accounting import Accountant, Sampling
from lipdp.privacy import files
from lipdp.privacy.release import ADAPTIVE, Release, current_keys

if TYPE_CHECKING:
    from lipdp.privacy.plan import Plan

_FORMAT, _VERSION = "lipdp.ledger", 1


class Ledger:
    """Append-only list of releases. Charge first, release afterwards: a crash then errs on the safe side.

    **Guarantee.**
    Conditions: every release is charged before it is made, with the event it really costs.
    Bound: `epsilon(delta)` covers everything charged, whatever stopped, resumed or crashed in between.
    Not covered: what was never charged; several runs planned in view of earlier results.
    Source: `accounting.compose`.

    Attributes:
        plan: The plan that was charged last, or None.
        origins: Where the releases come from: pairs of the random name of a `Run` that charged them, and how many
            releases there were before. Copies of one model share it until one of them goes on.
        seeded: Whether any of the releases used a fixed seed.
        seeded_by_sample: Whether the key of one of these follows from some rows of the data only.
        logged: Names of training metrics that were logged, which the guarantee does not cover.
        steered: What followed from such metrics while the releases were made.
        watched: Names of callbacks of the user's own that could see such metrics.
        generators: Names of what has made the noise, see `privacy.GENERATORS`.
        row_wise: Names of own layers, losses and functions that were declared to treat each row alone.
        bounded: Names of classes of own layers and losses whose bounds were declared.
        unchecked: Strategies and accountants of the user's own, as "strategy" and the name of the class.
        adapted: Names of layers that hold what `adapt` has read, from data that nobody knows.
        uncharged: What was read off the data before training without a charge, in words.
        ids: Digests of the ids of the persons, as far as they are known. No file holds them for the ledger's sake.
        ids_differ: Whether releases are known to be of persons by several ids.
        examples_per_person: The most rows of one person that releases before the first plan were told of.

    Example:
        >>> update = Release(sampling=Sampling().bind(1000, 10), noise_multiplier=1.0, sensitivity=0.1,
        ...                  strategy="clipless", noise_allocation="global")
        >>> ledger = Ledger()
        >>> for _ in range(3):
        ...     ledger.charge(update)
        >>> ledger
        Ledger(updates=3, entries=1)
        >>> Ledger.from_json(ledger.to_json()) == ledger
        True
    """

    def __init__(self):
        self._descriptions: list[Release] = []
        self._counts: list[int] = []
        self.plan: Plan | None = None
        self.origins: list[list] = []
        self.seeded = self.seeded_by_sample = False
        self.logged: tuple[str, ...] = ()
        self.steered: tuple[str, ...] = ()
        self.watched: tuple[str, ...] = ()
        self.row_wise: tuple[str, ...] = ()
        self.bounded: tuple[str, ...] = ()
        self.unchecked: tuple[str, ...] = ()
        self.adapted: tuple[str, ...] = ()
        self.uncharged: tuple[str, ...] = ()
        self.generators: tuple[str, ...] = ()
        self.ids: frozenset[str] = frozenset()
        self.ids_differ = False
        self.examples_per_person = 1

    @classmethod
    def joined(cls, ledgers: "Iterable[Ledger]") -> "Ledger":
        """Returns one ledger that holds what several hold, which are about different releases.

        Raises:
            ValueError: when releases of one of them followed from earlier ones (DPIS): its budget is kept at one order
                for what it knew of, and says nothing about more.
        """
        total, ledgers = cls(), [ledger for ledger in ledgers if ledger.releases]
        if len(ledgers) > 1 and any(ledger.adaptive for ledger in ledgers):
            raise ValueError(
                "Several models have trained these weights, one of them with an adaptive strategy (DPIS), whose budget "
                f"covers its own releases only: their costs cannot be added up. Received: {len(ledgers)} ledgers. "
                "Train with DPIS only weights that no other model has trained."
            )
        for ledger in ledgers:
            # Two streams of epochs must stay two: an example may be in an open epoch of each.
            first = 1 + max((release.stream for release in total._descriptions), default=-1)
            total._descriptions += [dataclasses.replace(r, stream=r.stream + first) for r in ledger._descriptions]
            total._counts += ledger._counts
            total.plan = total.plan or ledger.plan
            total.seeded = total.seeded or ledger.seeded
            total.seeded_by_sample = total.seeded_by_sample or ledger.seeded_by_sample
            total.logged = tuple(dict.fromkeys([*total.logged, *ledger.logged]))
            total.steered = tuple(dict.fromkeys([*total.steered, *ledger.steered]))
            total.watched = tuple(dict.fromkeys([*total.watched, *ledger.watched]))
            total.generators = tuple(dict.fromkeys([*total.generators, *ledger.generators]))
            total.row_wise = tuple(sorted({*total.row_wise, *ledger.row_wise}))
            total.bounded = tuple(sorted({*total.bounded, *ledger.bounded}))
            total.unchecked = tuple(sorted({*total.unchecked, *ledger.unchecked}))
            total.adapted = tuple(sorted({*total.adapted, *ledger.adapted}))
            total.uncharged = tuple(dict.fromkeys([*total.uncharged, *ledger.uncharged]))
            total.examples_per_person = max(total.examples_per_person, ledger.examples_per_person)
            total.ids |= ledger.ids
            total.ids_differ = total.ids_differ or ledger.ids_differ or len(total.ids) > 1
        return total

    def become(self, other: "Ledger") -> None:
        """Takes over what `other` holds; whoever refers to this ledger finds it here."""
        vars(self).update(vars(other))

    def hold(self, other: "Ledger") -> None:
        """Takes over the releases of `other`, and nothing else."""
        self._descriptions, self._counts = list(other._descriptions), list(other._counts)

    def covers(self, other: "Ledger") -> bool:
        """Returns whether this ledger is `other`, by the same runs, with nothing or more charged to it."""
        # Equal releases are not enough: two copies may have made the same ones, each with noise of its own.
        origins = ([part for part in each.origins if part[1] < other.releases] for each in (self, other))
        return self.continues(other) and operator.eq(*origins)

    def charge(self, release: Release, updates: int = 1) -> None:
        """Adds `updates` releases like `release`; merges with the last entry when only the count differs.

        Args:
            release: a description, with count 0.
            updates: how many, an int of at least 1.

        Raises:
            ValueError: when `release` is not such a description or `updates` is below 1.
        """
        updates = checks.integer("updates", updates, minimum=1)
        last = self._descriptions[-1] if self._descriptions else None
        if release is last and last is not None:  # the usual case, once per training update
            self._counts[-1] += updates
            return
        if not isinstance(release, Release) or release.count != 0:
            raise ValueError(
                f"This is not a release to charge. Received: release={release!r}. "
                "Pass a Release with count=0 and the number in updates."
            )
        if release == last:
            self._counts[-1] += updates
            return
        self._descriptions.append(release)
        self._counts.append(updates)

    def copy(self) -> "Ledger":
        """Returns a ledger that holds the same and goes on by itself."""
        other = Ledger()
        vars(other).update(vars(self))
        other.hold(self)
        return other

    def ahead(self, updates: int) -> "Ledger":
        """Returns the ledger as it will be after more releases like the last one."""
        other = self.copy()
        if updates and other._counts:
            other._counts[-1] += updates
        return other

    @property
    def entries(self) -> tuple[Release, ...]:
        """Returns the releases with their counts, oldest first."""
        pairs = zip(self._descriptions, self._counts, strict=True)
        return tuple(dataclasses.replace(release, count=count) for release, count in pairs)

    @property
    def updates(self) -> int:
        """Returns the number of gradient updates charged."""
        pairs = zip(self._descriptions, self._counts, strict=True)
        return sum(count for release, count in pairs if release.kind == "gradient")

    @property
    def releases(self) -> int:
        """Returns the number of releases of all kinds."""
        return sum(self._counts)

    @property
    def adaptive(self) -> bool:
        """Returns whether releases followed from earlier ones, which only a filter at a fixed order covers."""
        return any(release.kind in ADAPTIVE for release in self._descriptions)

    @property
    def unit(self) -> str | None:
        """Returns what the releases protect, "example" or "person"; None where there are none.

        Raises:
            ValueError: some drew examples and others persons, and nothing is known of their sum.
        """
        units = {release.sampling.unit for release in self._descriptions}
        if len(units) > 1:
            raise ValueError(
                "Releases on drawn examples and on drawn persons (`person_ids`) cannot be added up: the ones say "
                "nothing about a person, the others nothing about an example. Received: both in one ledger. Train "
                "weights of their own."
            )
        return units.pop() if units else None

    def check_unit(self, sampling: Sampling) -> None:
        """Refuses to go on with releases for another unit.

        Raises:
            ValueError: the ledger holds releases on drawn examples and `sampling` draws persons, or the reverse.
        """
        before = self.unit
        if before not in (None, sampling.unit):
            received = "..." if sampling.unit == "person" else "None"
            raise ValueError(
                f"What is drawn and protected cannot change: epsilon so far is for one {before}, and nothing is known "
                f"about the sum for one {sampling.unit}. Received: person_ids={received} after {self.updates} updates "
                f"on drawn {before}s. Go on as before, or build a new model (its cost adds up outside of this ledger)."
            )

    def note_ids(self, digest: str | None) -> None:
        """Notes by which ids the persons of the next releases are drawn, where persons are."""
        if digest is None:
            return
        before = self.ids if self.releases else frozenset()
        self.ids = before | {digest}
        self.ids_differ = (self.releases > 0 and self.ids_differ) or len(self.ids) > 1

    def of_other_ids(self, digest: str, persons: int) -> bool:
        """Returns whether releases are known to be of persons by other ids: other digests, or numbers of persons."""
        if self.releases and self.ids - {digest}:
            return True
        if any(release.kind == "count" for release in self._descriptions):
            return False  # their number is private, and noisy wherever it stands
        gradients = (each.sampling for each in self._descriptions if each.kind == "gradient")
        return any(each.unit == "person" and each.num_examples != persons for each in gradients)

    def check_accountant(self, accountant: str | Accountant) -> None:
        """Refuses an accountant that does not cover what was charged.

        Raises:
            ValueError: when the releases are adaptive and the accountant has no order fixed in advance.
        """
        accountant = accounting.get_accountant(accountant)
        if self.adaptive and not accountant.covers_adaptive:
            raise ValueError(
                "Noise and sampling followed from earlier releases, which this accountant does not cover. Received: "
                f'accountant={accountant.name!r}. Use "rdp_order:..." with the order of the plan.'
            )

    def mechanisms(self, group_size: int = 1) -> tuple[accounting.Mechanism, ...]:
        """Returns the cost of everything charged, for groups of `group_size` examples.

        Raises:
            ValueError: when nothing is known for such groups.
        """
        if group_size > 1 and self.adaptive:
            raise ValueError(
                "No cost is known for groups when noise and sampling followed from earlier releases (DPIS). "
                f"Received: group_size={group_size}. Ask for group_size=1."
            )
        mechanisms, streams = [], {}
        if self.unit is None:
            return ()
        for release in self.entries:
            if release.sampling.by_epoch:
                streams.setdefault(release.stream_key, []).append(release)
            else:
                mechanisms.append(release.mechanism(group_size))
        for releases in streams.values():
            mechanisms += _epochs(releases, group_size)
        return tuple(mechanisms)

    def continues(self, other: "Ledger") -> bool:
        """Returns whether this ledger is `other` with nothing or more charged to it."""
        earlier, mine = other.entries, self.entries
        if not earlier:
            return True
        last = len(earlier) - 1
        if len(mine) <= last or mine[:last] != earlier[:last] or mine[last].count < earlier[last].count:
            return False
        # Later charges may have been added to the last entry.
        return dataclasses.replace(mine[last], count=earlier[last].count) == earlier[last]

    def position(self, release: Release) -> int:
        """Returns how many updates the stream of `release` has made: where a resumed epoch goes on."""
        stream = (entry for entry in self.entries if entry.stream_key == release.stream_key)
        return sum(entry.count for entry in stream if entry.kind == "gradient")

    def epsilon(self, delta: float, accountant: str | Accountant = "pld", group_size: int = 1) -> float:
        """Returns epsilon of everything charged; `accounting` remembers the result by content.

        Raises:
            ValueError: when an argument is out of range, or accountant or group do not fit adaptive releases.
        """
        self.check_accountant(accountant)
        return accounting.compose(self.mechanisms(group_size), delta, accountant)

    def to_json(self) -> str:
        """Returns the ledger as text from which `from_json` restores every bit."""
        entries = [release.to_dict() for release in self.entries]
        return json.dumps({"format": _FORMAT, "version": _VERSION, "entries": entries}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Returns the ledger that `to_json` wrote.

        Args:
            text: the JSON text.

        Returns:
            A `Ledger` equal to the one written.

        Raises:
            ValueError: when the text is not JSON, not a ledger, of another version or out of range.
        """
        try:
            content = files.parse(text)
        except (TypeError, ValueError) as error:
            raise _refused(text, f"it is not JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise _refused(text, f'it lacks "format": "{_FORMAT}"')
        if content.get("version") != _VERSION:
            raise _refused(text, f"its version is {content.get('version')!r}, this lipdp reads {_VERSION}")
        if set(content) != {"format", "version", "entries"} or not isinstance(content["entries"], list):
            raise _refused(text, "it does not hold exactly format, version and a list of entries")
        ledger = cls()
        for entry in content["entries"]:
            try:
                checks.integer("count", current_keys(entry).get("count", 1), minimum=1)
                release = Release.from_dict(entry)
            except ValueError as error:
                raise _refused(text, f"an entry is out of range: {error}") from error
            ledger._descriptions.append(dataclasses.replace(release, count=0))
            ledger._counts.append(release.count)
        return ledger

    def __eq__(self, other) -> bool:
        return self.entries == other.entries if isinstance(other, Ledger) else NotImplemented

    __hash__ = None

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return f"Ledger(updates={self.updates}, entries={len(self)})"


def _epochs(releases: list[Release], group_size: int) -> list[accounting.Mechanism]:
    """Returns the cost of one stream of epochs: one example takes part at most once in each epoch."""
    if len({dataclasses.replace(release, count=0) for release in releases}) == 1:
        whole = dataclasses.replace(releases[0], count=sum(release.count for release in releases))
        return [whole.mechanism(group_size)]
    if releases[0].sampling.scheme.allocates:
        # An epoch with several noises is one with the least of them, and noise added to it: it says no more.
        least = min(releases, key=lambda release: release.noise_multiplier)
        whole = dataclasses.replace(least, count=sum(release.count for release in releases))
        return [whole.mechanism(group_size)]
    # The noise changed somewhere: each part may begin and end within an epoch.
    in_epoch = releases[0].sampling.updates_per_epoch
    counts = [min(r.count, -(-(r.count - 1) // in_epoch) + 1) for r in releases]
    return [r.mechanism(group_size, epochs=count) for r, count in zip(releases, counts, strict=True)]


def _refused(text, reason: str) -> ValueError:
    shown = repr(text) if len(repr(text)) <= 80 else repr(text)[:77] + "..."
    return ValueError(
        f"This is not a ledger: {reason}. Received: text={shown}. Pass what Ledger.to_json wrote, unchanged."
    )
