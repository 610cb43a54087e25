"""Privacy: what was released so far and what that guarantees, in words and numbers."""

import math
import textwrap
from collections.abc import Iterable

from lipdp import accounting
from lipdp.accounting import checks
from lipdp.ledger import KINDS, Ledger

_WIDTH = 90

COVERED = (
    "the weights after every update, hence every checkpoint and the final model;",
    "the state of the optimizer;",
    "averages of the weights;",
    "whatever is computed from these without looking at the training data again.",
)

NOT_COVERED = (
    "Hyper-parameter search: each run on the same data spends its own budget.",
    "Early stopping, learning-rate control and model selection that look at private data, such as training metrics "
    "or a private validation set.",
    "Preprocessing fitted to the data: means, vocabularies, class weights, removed outliers.",
    "Floating-point arithmetic: the Gaussian noise is a float32 approximation, and its generator "
    "is not cryptographic. Rounding of matrix products is covered as independent errors (1e-5 per layer).",
    "Seeds, the state of the random generators (model files contain it) and who was in which batch: keep "
    "them secret. Who knows a generator's state can subtract the noise.",
    "Side channels: running time, memory, and the realised size of each batch.",
)


class Privacy:
    """The privacy of one model, read from its ledger.

    Args:
        ledger: the releases so far; read each time, never copied.
        delta: in (0, 1).
        accountant: "pld" or "rdp".
        seeded: True when the user fixed a random seed.
        training_metrics: names of metrics computed on the training data that were shown or logged.

    Raises:
        ValueError: when an argument is out of range.

    **Guarantee.**
    Conditions: the ledger is complete; every plan was fixed before the first release.
    Bound: `(epsilon(), delta)`-differential privacy, add or remove one example, for what `COVERED` lists.
    Not covered: what `NOT_COVERED` lists.
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
        accountant: str = "pld",
        *,
        seeded: bool = False,
        training_metrics: Iterable[str] = (),
    ):
        if not isinstance(ledger, Ledger):
            raise ValueError(f"ledger is not a Ledger. Received: ledger={ledger!r}. Pass lipdp.ledger.Ledger.")
        if isinstance(training_metrics, str):
            raise ValueError(
                f"training_metrics is one string. Received: training_metrics={training_metrics!r}. "
                "Pass a list of names."
            )
        self._ledger = ledger
        self._delta = checks.delta(delta)
        self._accountant = accounting.check_name(accountant)
        self._seeded = bool(seeded)
        self._training_metrics = tuple(str(name) for name in training_metrics)

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

    def epsilon(self, delta: float | None = None) -> float:
        """Returns epsilon of everything released, at `delta` or at the default delta."""
        return self._ledger.epsilon(self._delta if delta is None else delta, self._accountant)

    def to_dict(self) -> dict:
        """Returns the facts of `statement` as JSON-serialisable values; None is an infinite epsilon."""
        mechanisms = self._ledger.mechanisms()
        unamplified = [mechanism.without_amplification() for mechanism in mechanisms]
        releases = [
            {
                "kind": release.kind,
                "strategy": release.strategy,
                "count": release.count,
                "sampler": release.sampler,
                "neighbouring_relation": release.neighbouring_relation,
                "num_examples": release.num_examples,
                "expected_batch_size": release.batch_size,
                "sampling_probability": release.sampling_probability,
                "noise_multiplier": release.noise_multiplier,
                "sensitivity": release.sensitivity,
                "noise_allocation": release.noise_allocation,
            }
            for release in self._ledger.entries
        ]
        return {
            "unit": "example",
            "neighbouring_relation": "add_or_remove_one",
            "sampler": sorted({release["sampler"] for release in releases}),
            "amplification_by_sampling": any(m.sampling_probability < 1.0 for m in mechanisms),
            "num_examples_is_public": all(release["kind"] != "count" for release in releases),
            "adaptive": self._ledger.adaptive,
            "epsilon": _finite(self.epsilon()),
            "delta": self._delta,
            "epsilon_without_amplification": _finite(accounting.compose(unamplified, self._delta, self._accountant)),
            "delta_is_large": any(self._delta >= 1.0 / release["num_examples"] for release in releases),
            "updates": self.updates,
            "accountant": accounting.describe(mechanisms, self._delta, self._accountant),
            "releases": releases,
            "plans": len(set(self._descriptions())),
            "plans_fixed_in_advance": "assumed",
            "covered": list(COVERED),
            "not_covered": list(NOT_COVERED),
            "training_metrics_outside_the_guarantee": list(self._training_metrics),
            "seed_fixed_by_user": self._seeded,
        }

    def statement(self) -> str:
        """Returns the guarantee in plain words, to hand to a data-protection officer."""
        facts = self.to_dict()
        sections = [_section("Privacy statement", [self._headline(facts)])]
        if facts["releases"]:
            sections.append(_section("Meaning", _meaning(facts)))
            sections.append(_section("Releases charged", _lines(facts["releases"])))
            sections.append(_section("Accounting", self._method(facts)))
        sections.append(_section("Covered", facts["covered"]))
        sections.append(_section("Not covered", [*self._metrics(), *facts["not_covered"], self._seed()]))
        return "\n\n".join(sections) + "\n"

    def _descriptions(self):
        return ((m.sampling_probability, m.noise_multiplier, m.sampler) for m in self._ledger.mechanisms())

    def _headline(self, facts) -> str:
        if not facts["releases"]:
            return f"Nothing has been released yet: epsilon = 0 at delta = {self._delta:g}."
        if facts["epsilon"] is None:
            return f"There is NO finite guarantee at delta = {self._delta:g}: the noise is too small."
        return (
            f"{facts['updates']} noisy updates were released. Together they are "
            "(epsilon, delta)-differentially private with "
            f"epsilon = {_up(facts['epsilon'])} and delta = {self._delta:g}."
        )

    def _method(self, facts) -> list[str]:
        how = facts["accountant"]
        lines = [f"Accountant: {how['name']}, {how['library']} {how['version']}, {how['settings']}."]
        if facts["amplification_by_sampling"]:
            plain = facts["epsilon_without_amplification"]
            plain = "infinite" if plain is None else _up(plain)
            lines.append(f"Amplification by sampling was used. Without it epsilon would be {plain}.")
        if facts["adaptive"]:
            lines.append(
                "Noise, sampling and clip norm of each epoch followed from noisy sums released before. A privacy "
                "filter covers that: costs add up at one order, and order and budget were fixed in advance."
            )
        elif facts["plans"] > 1:
            lines.append(
                f"{facts['plans']} plans were run. The stated epsilon assumes that all of them were fixed in "
                "advance, not chosen in view of earlier results."
            )
        else:
            lines.append("The stated epsilon assumes that the plan was fixed in advance.")
        if facts["delta_is_large"]:
            lines.append("WARNING: delta is not below 1 / N, so it permits publishing a whole example.")
        return lines

    def _metrics(self) -> list[str]:
        if not self._training_metrics:
            return ["Metrics computed on the training data, should any be shown: none were logged."]
        names = ", ".join(self._training_metrics)
        return [f"Metrics computed on the training data. These were logged, without any noise: {names}."]

    def _seed(self) -> str:
        if self._seeded:
            return (
                "A FIXED SEED was used. The guarantee holds only towards people who do not know it; "
                "for a release, train again without a seed."
            )
        return "No fixed seed was given: the noise was seeded by the operating system."

    def __repr__(self) -> str:
        return f"Privacy(epsilon={_up(self.epsilon())}, delta={self._delta:g}, updates={self.updates})"


def _meaning(facts) -> list[str]:
    sizes = ", ".join(str(n) for n in sorted({r["num_examples"] for r in facts["releases"] if r["kind"] == "gradient"}))
    sampler = "Sampler: Poisson, as executed: each example enters each batch independently, with probability q."
    if facts["adaptive"]:
        sampler = (
            "Sampler: importance sampling, as executed: each example enters each batch independently, with a "
            "probability in proportion to the norm of its clipped gradient, at most q."
        )
    number = f"N = {sizes} training examples. N is treated as public, so is the expected batch size B."
    if not facts["num_examples_is_public"]:
        number = f"N = {sizes} training examples, a noisy count that was released. B is public."
    return [
        "Unit: one example (one row of the training data). A person with several rows is protected less.",
        "Neighbouring relation: add or remove one example.",
        sampler,
        number,
    ]


def _lines(releases) -> list[str]:
    """One line per release, and one per kind for those whose noise followed from earlier releases."""
    adaptive = {r["strategy"] for r in releases if r["kind"] != "gradient"}
    groups = {}
    for i, release in enumerate(releases):
        joined = release["strategy"] in adaptive
        key = (release["kind"], release["num_examples"], release["expected_batch_size"]) if joined else i
        groups.setdefault(key, []).append(release)
    return [_line(group) for group in groups.values()]


def _range(group, name: str) -> str:
    low, high = min(r[name] for r in group), max(r[name] for r in group)
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


def _line(group) -> str:
    release = group[0] | {"count": sum(r["count"] for r in group)}
    return (
        f"{release['count']} x {release['kind']} ({release['strategy']}): N = {release['num_examples']}, "
        f"B = {release['expected_batch_size']}, q = {_range(group, 'sampling_probability')}, "
        f"noise multiplier = {_range(group, 'noise_multiplier')}, L2 sensitivity of the {KINDS[release['kind']]} = "
        f"{_range(group, 'sensitivity')}, noise allocation = {release['noise_allocation']}."
    )


def _section(title: str, lines) -> str:
    wrapped = [
        textwrap.fill(line, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for line in lines
    ]
    return "\n".join([title, "-" * len(title), *wrapped])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _up(value: float) -> str:
    """Returns four significant digits, rounded up: a printed epsilon is never too small."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    text = f"{value:.4g}"
    return text if float(text) >= value else f"{value + 0.5 * unit:.4g}"
