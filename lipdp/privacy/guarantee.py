"""Privacy: what was released so far and what that guarantees, in words and numbers."""

import importlib.resources
import json
import math
import textwrap
from collections.abc import Callable, Iterable

from lipdp import accounting, checks
from lipdp.accounting import Accountant
from lipdp.privacy import assumptions, limits, statement
from lipdp.privacy.ledger import Ledger

_WIDTH = 90
_MEANINGLESS = 100.0


class Privacy:
    """The privacy of one model, read from its ledger.

    Args:
        ledger: the releases so far; read each time, never copied.
        delta: in (0, 1).
        accountant: an `Accountant` or its name; for adaptive releases (DPIS) one that covers them.
        seeded: True when the user fixed a random seed.
        seeded_by_sample: whether the key of such a run followed from some rows of the data only.
        generators: names of what has made the noise, of `privacy.GENERATORS`.
        training_metrics: names of metrics computed on the training data that were shown or logged.
        steered: what followed from such metrics.
        watched: names of callbacks of the user's own that could see such metrics.
        updates_of_others: how many of the updates other models made, which share weights with this one.
        row_wise: names of own layers, losses and functions that were declared to treat each row alone.
        bounded: names of classes of own layers and losses whose bounds were declared.
        unchecked: strategies and accountants of the user's own, as "strategy" and the name of the class.
        adapted: names of layers that hold what `adapt` has read.
        uncharged: what was read off the data before training without a charge, in words.
        ids_differ: whether releases are known to be of persons by several ids.
        unfinished: returns how many updates of the last plan were made, out of how many, and the ledger with all of
            them; None where none are left.
        examples_per_person: most rows that one person has; epsilon is then that of a person.

    Raises:
        ValueError: when an argument is out of range.

    **Guarantee.**
    Conditions: the ledger is complete; every plan was fixed before the first release.
    Bound: `(epsilon(), delta)`-differential privacy for what `statement.COVERED` lists, under the relation that
    `to_dict()["neighboring_relation"]` names: that of the sampler, or what several samplers have in common.
    Not covered: what `statement.NOT_COVERED` lists.
    Source: `accounting.compose`.

    Example:
        >>> privacy = Privacy(Ledger(), delta=1e-5)
        >>> privacy
        Privacy(epsilon=0, delta=1e-05, updates=0)
        >>> "Nothing has been released" in privacy.statement()
        True
    """

    def __init__(
        self,
        ledger: Ledger,
        delta: float,
        accountant: str | Accountant = "pld",
        *,
        seeded: bool = False,
        seeded_by_sample: bool = False,
        generators: Iterable[str] = ("threefry",),
        training_metrics: Iterable[str] = (),
        steered: Iterable[str] = (),
        watched: Iterable[str] = (),
        updates_of_others: int = 0,
        row_wise: Iterable[str] = (),
        bounded: Iterable[str] = (),
        unchecked: Iterable[str] = (),
        adapted: Iterable[str] = (),
        uncharged: Iterable[str] = (),
        ids_differ: bool = False,
        unfinished: Callable[[], tuple[int, int, Ledger] | None] = lambda: None,
        examples_per_person: int = 1,
    ):
        if not isinstance(ledger, Ledger):
            raise ValueError(f"`ledger` must be a Ledger. Received: ledger={ledger!r}.")
        if isinstance(training_metrics, str):
            raise ValueError(
                f"`training_metrics` must be a list of names. Received: training_metrics={training_metrics!r}."
            )
        self._ledger = ledger
        self._delta = checks.delta(delta)
        self._accountant = accounting.get_accountant(accountant)
        self._persons = checks.integer("examples_per_person", examples_per_person, minimum=1)
        self._seeded, self._by_sample = bool(seeded), bool(seeded_by_sample)
        self._generators = tuple(checks.choice("generators", name, limits.GENERATORS) for name in generators)
        self._training_metrics = tuple(str(name) for name in training_metrics)
        self._steered, self._watched = tuple(steered), tuple(map(str, watched))
        self._updates_of_others = checks.integer("updates_of_others", updates_of_others)
        self._row_wise, self._bounded, self._adapted = (tuple(map(str, n)) for n in (row_wise, bounded, adapted))
        self._uncharged, self._ids_differ = tuple(map(str, uncharged)), bool(ids_differ)
        self._unchecked, self._unfinished = tuple(map(str, unchecked)), unfinished

    @property
    def ledger(self) -> Ledger:
        """Returns the ledger."""
        return self._ledger

    @property
    def delta(self) -> float:
        """Returns delta."""
        return self._delta

    @property
    def updates(self) -> int:
        """Returns the number of gradient updates released."""
        return self._ledger.updates

    def epsilon(self, delta: float | None = None, group_size: int | None = None) -> float:
        """Returns epsilon of everything released.

        Args:
            delta: in (0, 1); default: that of the last plan.
            group_size: how many examples change together; default: all those of one person, usually 1.

        Returns:
            A float of at least 0; for a filter and for DPIS the budget, which also covers what was chosen on the way;
            infinity where more than a filter's budget was released.

        Raises:
            ValueError: when an argument is out of range, no cost is known for groups under this sampler or accountant,
                or the accountant does not cover adaptive releases.
        """
        delta = self._delta if delta is None else delta
        return accounting.guarantee(self._charged(group_size), delta, self._accountant)

    def risk(self, group_size: int | None = None) -> accounting.Risk:
        """Returns what an attacker can do at most with everything released: rates of attacks, not an epsilon.

        Args:
            group_size: how many examples change together; default: all those of one person, usually 1.

        Returns:
            An `accounting.Risk`.

        Raises:
            ValueError: as `epsilon`.
        """
        return accounting.risk_of(self._charged(group_size), self._accountant)

    def _charged(self, group_size: int | None) -> tuple[accounting.Mechanism, ...]:
        size = self._persons if group_size is None else checks.integer("group_size", group_size)
        if size == 0:
            return ()
        if assumptions.keeps_budget(self._accountant) and size != self._persons:
            raise ValueError(
                "No cost is known for groups under a filter: it kept its budget for one unit, and other groups may "
                f"have cost more on other paths. Received: group_size={size}. Ask for group_size={self._persons}."
            )
        self._ledger.check_accountant(self._accountant)
        return tuple(self._ledger.mechanisms(size))

    def spent(self, delta: float | None = None) -> float:
        """Returns the part of the budget that is used up: `epsilon()`, unless a filter or DPIS keeps the budget."""
        return self._ledger.epsilon(self._delta if delta is None else delta, self._accountant, self._persons)

    def to_dict(self, groups: Iterable[int] | None = None) -> dict:
        """Returns the facts of `statement` as JSON-serializable values, as `schema` describes them.

        Args:
            groups: further group sizes to state epsilon for; default: 2, 4 and 8 persons.

        Returns:
            A dict; None is an infinite epsilon.
        """
        mechanisms = self._ledger.mechanisms(self._persons)
        alone = assumptions.keeps_budget(self._accountant) and not self._accountant.shared
        unamplified = [mechanism.without_amplification() for mechanism in mechanisms]
        releases = [_facts(release) for release in self._ledger.entries]
        by_person = [release for release in releases if "rows_per_person" in release]
        drawn = [each["rows_per_person"] for each in by_person if each["kind"] != "moments"]
        drawn = drawn or [each["rows_per_person"] for each in by_person]
        ids_differ = bool(by_person) and (self._ids_differ or len(statement.sizes(by_person)[0]) > 1)
        return {
            "unit": "person" if self._persons > 1 else self._ledger.unit or "example",
            "examples_per_person": self._persons,
            **({"rows_per_person": max(drawn)} if drawn else {}),
            **({"ids_of_persons_differ": True} if ids_differ else {}),
            "neighboring_relation": accounting.common_relation(mechanisms),
            "sampler": sorted({release["sampler"] for release in releases}),
            "amplification_by_sampling": any(m.sampling.amplified for m in mechanisms),
            "num_examples_is_public": bool(statement.sizes(releases)[0]) or not releases,
            "adaptive": self._ledger.adaptive,
            "epsilon": _finite(self.epsilon()),
            "epsilon_spent": _finite(self.spent()),
            "delta": self._delta,
            "epsilon_without_amplification": _finite(self._without_amplification(unamplified)),
            "risk": self.risk().to_dict(),
            "groups": self._groups(groups),
            "delta_is_large": any(self._delta >= 1.0 / release["num_examples"] for release in releases),
            "updates": self.updates,
            "updates_of_other_models": self._updates_of_others,
            "accountant": accounting.describe(mechanisms, self._delta, self._accountant),
            "releases": releases,
            "plans": len(set(self._descriptions())),
            **self._stopped(),
            "plans_fixed_in_advance": "not needed" if alone else "assumed",
            "covered": statement.covered(releases),
            "not_covered": list(statement.NOT_COVERED),
            "training_metrics_outside_the_guarantee": list(self._training_metrics),
            "steered_by_training_metrics": list(self._steered),
            **({"callbacks_that_saw_training_metrics": list(self._watched)} if self._watched else {}),
            "seed_fixed_by_user": self._seeded,
            **({"key_from_a_sample_of_rows": True} if self._by_sample else {}),
            **({"declared_row_wise": list(self._row_wise)} if self._row_wise else {}),
            **({"declared_bounds": list(self._bounded)} if self._bounded else {}),
            **({"unchecked": list(self._unchecked)} if self._unchecked else {}),
            **({"adapted_layers": list(self._adapted)} if self._adapted else {}),
            **({"read_off_the_data": list(self._uncharged)} if self._uncharged else {}),
            "noise_generators": list(self._generators),
        }

    def _without_amplification(self, unamplified: list) -> float:
        """Returns epsilon where everybody sees who is in each batch; infinity where that has no bound."""
        if self._ledger.adaptive:  # who is in a batch follows from norms of gradients, and the noise from their sums
            return math.inf
        if assumptions.keeps_budget(self._accountant) and len(set(self._descriptions())) > 1:
            # Later plans may follow from the results of earlier ones.
            return accounting.guarantee(unamplified, self._delta, self._accountant)
        return accounting.compose(unamplified, self._delta, self._accountant)

    def _stopped(self) -> dict:
        stand = None if self._accountant.budget is not None else self._unfinished()
        if stand is None:
            return {}
        made, planned, whole = stand
        epsilon = accounting.guarantee(whole.mechanisms(self._persons), self._delta, self._accountant)
        values = {"updates": made, "planned_updates": planned, "epsilon_of_whole_plan": _finite(epsilon)}
        return {"stopped_early": values}

    def _groups(self, groups) -> list[dict]:
        sizes = [n * self._persons for n in (2, 4, 8)] if groups is None else list(groups)
        stated = []
        for size in sizes if len(self._ledger) else ():
            try:
                mechanisms = self._ledger.mechanisms(checks.integer("groups", size, minimum=1))
                plain = [mechanism.without_amplification() for mechanism in mechanisms]
                values = {
                    **({"unit": "person"} if self._ledger.unit == "person" else {}),
                    "neighboring_relation": accounting.common_relation(mechanisms),
                    "epsilon": _finite(self.epsilon(group_size=size)),
                    "epsilon_without_amplification": _finite(accounting.compose(plain, self._delta, self._accountant)),
                }
            except ValueError:  # no cost is known for groups under this sampler, relation or accountant
                if groups is not None:
                    raise
                continue
            stated.append({"group_size": size, **values})
        return stated

    def statement(self, format: str = "text", groups: Iterable[int] | None = None) -> str:
        """Returns the guarantee in plain words, to hand to a data-protection officer.

        Args:
            format: "text", "markdown" or "json"; the last one holds the facts, see `schema`.
            groups: further group sizes to state epsilon for; default: 2, 4 and 8 persons.

        Returns:
            The statement.

        Raises:
            ValueError: an unknown format, or groups for which nothing is known.
        """
        checks.choice("format", format, ("text", "markdown", "json"))
        facts = self.to_dict(groups)
        if format == "json":
            return json.dumps(facts, indent=2, allow_nan=False) + "\n"
        section = _section if format == "text" else _markdown
        plain = [words for words in (statement.in_plain_words(facts), statement.delta_in_words(facts)) if words]
        sections = [section("Privacy statement", [self._headline(facts), *plain])]
        if facts["releases"]:
            sections.append(section("Meaning", statement.meaning(facts)))
            sections.append(section("Releases charged", statement.releases(facts)))
            sections.append(section("Accounting", self._method(facts)))
        sections.append(section("Covered", facts["covered"]))
        sections.append(section("Not covered", limits.not_covered(facts)))
        return "\n\n".join(sections) + "\n"

    def _descriptions(self):
        entries = (entry for entry in self._ledger.entries if entry.kind != "moments")  # they belong to the plan
        return ((r.sampling.sampling_probability, r.noise_multiplier, r.sampling.name, r.stream) for r in entries)

    def _headline(self, facts) -> str:
        if not facts["releases"]:
            return f"Nothing has been released yet: epsilon = 0 at delta = {self._delta:g}."
        if facts["epsilon"] is None and self._accountant.budget is not None:
            return f"There is NO finite guarantee at delta = {self._delta:g}: the filter's budget was exceeded."
        if facts["epsilon"] is None:
            return f"There is NO finite guarantee at delta = {self._delta:g}: the noise is too small."
        return (
            f"{statement.released(facts)} were released. Together they are (epsilon, delta)-differentially "
            f"private with epsilon = {statement.shown(facts['epsilon'])} and delta = {self._delta:g}."
            + ("" if facts["epsilon"] <= _MEANINGLESS else " An epsilon of this size is no meaningful guarantee.")
        )

    def _method(self, facts) -> list[str]:
        how = facts["accountant"]
        lines = [f"Accountant: {how['name']}, {how['library']} {how['version']}, {how['settings']}."]
        if facts["amplification_by_sampling"] and facts["adaptive"]:
            lines.append(
                "Amplification by sampling was used. Where somebody knows who was in which batch there is no guarantee."
            )
        elif facts["amplification_by_sampling"]:
            plain = statement.shown(facts["epsilon_without_amplification"])
            lines.append(f"Amplification by sampling was used. Without it epsilon would be {plain}.")
        elif facts["sampler"] != ["poisson"]:
            lines.append("No amplification by sampling was used.")
        lines += [statement.group(group) for group in facts["groups"]]
        if facts["updates_of_other_models"]:
            lines.append(
                f"{facts['updates_of_other_models']} of the updates were made by other models that hold some of the "
                "same weights. They are charged here as if all of them were about this model."
            )
        lines += [assumptions.in_words(facts, self._accountant), *assumptions.of_stopping(facts)]
        if facts["delta_is_large"]:
            lines.append(f"WARNING: delta is not below 1 / N, so it permits publishing a whole {self._ledger.unit}.")
        return lines

    def __repr__(self) -> str:
        return f"Privacy(epsilon={statement.shown(self.epsilon())}, delta={self._delta:g}, updates={self.updates})"


def _facts(release) -> dict:
    facts = release.to_dict()
    del facts["stream"]
    return facts | {"expected_batch_size": facts.pop("batch_size"), "largest_batch_size": facts.pop("capacity")}


def schema() -> dict:
    """Returns the JSON schema of `Privacy.to_dict`, which is shipped as `lipdp/privacy/schema.json`."""
    text = importlib.resources.files("lipdp.privacy").joinpath("schema.json").read_text(encoding="utf-8")
    return json.loads(text)


def _section(title: str, lines) -> str:
    wrapped = [
        textwrap.fill(line, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for line in lines
    ]
    return "\n".join([title, "-" * len(title), *wrapped])


def _markdown(title: str, lines) -> str:
    level = "#" if title == "Privacy statement" else "##"
    return "\n".join([f"{level} {title}", "", *(f"- {statement.escape(line)}" for line in lines)])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
