"""What an audit found: a lower bound on epsilon beside the stated one."""

import dataclasses
import math
from typing import Any

import numpy as np

from lipdp import checks
from lipdp.accounting import round_down, round_up

# What each bound rests on, in the words of the statement.
BOUNDS = {
    "curve": "rates of the attack (Clopper-Pearson), on the trade-off curve of the plan",
    "rates": "rates of the attack (Clopper-Pearson), no curve assumed",
    "one_run_curve": "right guesses in one run, on the trade-off curve of the plan (Mahloujifar et al. 2025)",
    "one_run": "right guesses in one run, no curve assumed (Steinke et al. 2023)",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """A lower bound on epsilon by experiment; the functions of `lipdp.audit` make it.

    Args:
        kind: Which audit.
        strategy: Name of the strategy.
        sampler: Name of the sampler.
        relation: Neighboring relation of the stated epsilon.
        epsilon: What is stated: an upper bound.
        delta: Of both.
        confidence: Of each lower bound by itself, in (0, 1).
        bounds: Lower bounds by name, see `BOUNDS`.
        headline: Name of the one that was chosen before the audit.
        details: Trials, rates, settings, as JSON-serializable values.
        points: False and true positive rates of the attack at all thresholds, for the plot, `(2, n)`.
        risk: The stated trade-off curve.

    **Guarantee.**
    Conditions: `assumes`, in `details`.
    Bound: if everything is as stated, `epsilon_lower` exceeds `epsilon` in at most a fraction `1 - confidence` of
    audits. Above, something is wrong with that confidence: noise, sensitivity, sampler or accountant.
    Not covered: a lower bound below `epsilon` proves nothing; faults that this attack does not see.

    Example:
        >>> found = Audit("white_box", "dpsgd", "poisson", "add_or_remove_one", 4.0, 1e-5, 0.95, {"curve": 3.4})
        >>> found.epsilon_lower, found.flagged, found.ratio
        (3.4, False, 0.85)
    """

    kind: str
    strategy: str
    sampler: str
    relation: str
    epsilon: float
    delta: float
    confidence: float
    bounds: dict[str, float]
    headline: str = "curve"
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    points: Any = None
    risk: Any = None

    def __post_init__(self):
        checks.choice("headline", self.headline, self.bounds)
        for name in self.bounds:
            checks.choice("bounds", name, BOUNDS)

    @property
    def epsilon_lower(self) -> float:
        """Returns the lower bound that was chosen before the audit."""
        return self.bounds[self.headline]

    @property
    def ratio(self) -> float:
        """Returns the lower bound over the stated epsilon: 1 where both meet."""
        return self.epsilon_lower / self.epsilon

    @property
    def flagged(self) -> bool:
        """Returns whether the lower bound exceeds the stated epsilon."""
        return self.epsilon_lower > self.epsilon

    def statement(self) -> str:
        """Returns what was found, in words."""
        sure = f"{100.0 * self.confidence:g} %"
        lines = [
            f"Audit ({self.kind.replace('_', ' ')}) of {self.strategy}, sampler {self.sampler}, relation "
            f"{self.relation}, delta {self.delta:g}.",
            f"epsilon is at most {_most(self.epsilon)} as stated, and at least {_number(self.epsilon_lower)} by this "
            f"attack, with confidence {sure}.",
        ]
        if self.flagged:
            lines.append(
                "THE LOWER BOUND IS ABOVE THE STATED EPSILON: at this confidence something does not do what it says. "
                "Please report it."
            )
        else:
            lines.append("The attack found nothing wrong. That proves nothing about attacks that are better.")
        lines += [f"  {_number(value):>8}  {BOUNDS[name]}" for name, value in self.bounds.items()]
        before = "; which one the second line states was chosen before the audit" if len(self.bounds) > 1 else ""
        lines.append(f"Each of these holds by itself with confidence {sure}{before}.")
        if "assumes" in self.details:
            lines.append(f"Assumed: {self.details['assumes']}.")
        return "\n".join(lines)

    __str__ = statement

    def __repr__(self) -> str:
        return f"Audit({self.kind}: {round_down(self.epsilon_lower):.4g} <= epsilon <= {_most(self.epsilon)})"

    def to_dict(self) -> dict[str, Any]:
        """Returns everything but the curves, as JSON-serializable values; None is infinite."""
        return {
            "kind": self.kind,
            "strategy": self.strategy,
            "sampler": self.sampler,
            "neighboring_relation": self.relation,
            "epsilon": _finite(self.epsilon),
            "epsilon_lower": _finite(self.epsilon_lower),
            "flagged": self.flagged,
            "delta": self.delta,
            "confidence": self.confidence,
            "headline": self.headline,
            "bounds": {name: _finite(value) for name, value in self.bounds.items()},
            **self.details,
        }

    def plot(self) -> Any:
        """Draws the attack beside what the stated curve allows, and the bounds beside the stated epsilon.

        Returns:
            A `matplotlib.figure.Figure`; a notebook shows it after `%matplotlib inline`, `savefig` writes it to a file.
        """
        from lipdp.audit.plot import draw

        return draw(self)


def roc(inside: np.ndarray, outside: np.ndarray, most: int = 400) -> np.ndarray:
    """Returns false and true positive rates at all thresholds, `(2, n)`, at most `most` of them."""
    cuts = np.unique(np.concatenate([inside, outside]))[::-1]
    if len(cuts) > most:
        cuts = cuts[np.unique(np.geomspace(1, len(cuts), most).astype(int)) - 1]
    sides = (np.sort(outside), np.sort(inside))
    found = [1.0 - np.searchsorted(side, cuts) / len(side) for side in sides]
    return np.concatenate([np.zeros((2, 1)), np.stack(found), np.ones((2, 1))], axis=1)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    return f"{round_down(value):.4g}" if math.isfinite(value) else "no noise at all explains it"


def _most(value: float) -> str:
    return f"{round_up(value):.4g}"
