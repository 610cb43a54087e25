"""Risk: what an attacker can do at most with all that was released."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import special

from lipdp import checks
from lipdp.accounting.accountant import Accountant, get_accountant
from lipdp.accounting.mechanism import Mechanism, canonical
from lipdp.accounting.pld import PldAccountant, mu_of
from lipdp.accounting.rounding import round_up
from lipdp.accounting.schemes import Sampling

# Where an accountant is asked for one delta after the other.
_DELTAS = (*(10.0 ** (-k / 2.0) for k in range(2, 21)), *(0.05 * k for k in range(3, 20)))
_POINTS = 2001
# Of the curves that reports draw.
_SHOWN_RATES = (0.0, *(float(f"{10.0 ** (k / 4.0):.3g}") for k in range(-16, -3)), *(k / 20.0 for k in range(3, 21)))
_SHOWN_DELTAS = (0.1, 0.01, *(10.0**-k for k in range(3, 10)))
# Rounding of the closed form, relative to the larger of its two terms: of these, and of an exponent near epsilon.
_ROUNDING, _OF_EXPONENT = 1e-12, 1e-14
_RAREST = 1e-300  # of a prior: its inverse is a float


@dataclasses.dataclass(frozen=True, eq=False)
class Risk:
    """What an attacker can do at most; `accounting.risk` and `model.privacy.risk()` make it.

    The attacker sees all that was released, knows all training data but for one example (or one person's), and asks
    whether that one was used. The *true positive rate* is how often a test says so when it was, the *false positive
    rate* how often it says so when it was not.

    Args:
        epsilons: At least 0, increasing, `(n,)`.
        deltas: The releases are (epsilons[i], deltas[i])-differentially private for every i, `(n,)`.
        mu: Of Gaussian differential privacy, where nothing is sampled; else None, as no tight one is known.

    Raises:
        ValueError: when an argument is out of range.

    **Guarantee.**
    Conditions: those of the pairs, all of which hold at once.
    Bound: no test does better, whatever it computes. For "pld" the numbers are within 1e-3 of those of its whole curve.
    Not covered: attacks on many examples, of which some succeed by chance.
    Source: Wasserman & Zhou 2010, theorem 2.4; Kairouz, Oh & Viswanath 2015; Dong, Roth & Su 2022, proposition 2.12.

    Example:
        >>> found = risk(noise_multiplier=1.1, sampling_probability=256 / 60000, updates=2350)
        >>> round(found.advantage, 3), round(found.true_positive_rate(0.01), 3), round(found.right_guesses(), 3)
        (0.093, 0.019, 0.546)
    """

    epsilons: np.ndarray
    deltas: np.ndarray
    mu: float | None = None

    def __post_init__(self):
        e, d = (np.asarray(values, dtype="float64") for values in (self.epsilons, self.deltas))
        fits = e.ndim == 1 and e.shape == d.shape and np.isfinite(e).all() and np.all((d >= 0.0) & (d <= 1.0))
        if not fits or np.any(e < 0.0) or np.any(np.diff(e) < 0.0):
            raise ValueError(
                "`epsilons` and `deltas` must be pairs: epsilons of at least 0 in increasing order, deltas in [0, 1]. "
                f"Received: epsilons={self.epsilons!r}, deltas={self.deltas!r}."
            )
        object.__setattr__(self, "epsilons", e)
        object.__setattr__(self, "deltas", d)

    @property
    def advantage(self) -> float:
        """Returns the largest true positive rate less false positive rate: 0 for a coin, 1 for certainty."""
        return self.delta(0.0)

    @property
    def rho(self) -> float | None:
        """Returns rho of zero-concentrated differential privacy, where nothing is sampled; else None."""
        return None if self.mu is None else self.mu * self.mu / 2.0

    def delta(self, epsilon: float) -> float:
        """Returns the least delta at `epsilon` that follows from the pairs.

        **Guarantee.** Bound: delta is convex in e^epsilon, so between two pairs it is below their chord; an
        (e, d)-private release is (e', d + (1 - d) (e^e - e^e') / (1 + e^e))-private for e' < e.
        """
        epsilon = checks.not_negative("epsilon", epsilon)
        above = self.epsilons > epsilon
        e, d = self.epsilons[above], self.deltas[above]
        small = np.exp(-e)
        bounds = [1.0, *(d + (1.0 - d) * -np.expm1(epsilon - e) / (1.0 + small))]
        if not above.all():
            i = np.flatnonzero(~above)[-1]
            bounds.append(self.deltas[i])
            if above.any():
                # (e^epsilon - e^left) / (e^right - e^left), without overflow
                left, right = self.epsilons[i], e[0]
                share = math.exp(epsilon - right) * math.expm1(left - epsilon) / math.expm1(left - right)
                bounds.append((1.0 - share) * self.deltas[i] + share * d[0])
        return float(min(bounds))

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon of the pairs with at most this delta; infinity where there is none.

        Example:
            >>> round(risk(noise_multiplier=1.0, sampling_probability=1.0, updates=1).epsilon(1e-5), 2)
            4.38
        """
        fits = np.flatnonzero(self.deltas <= checks.delta(delta))
        return float(self.epsilons[fits[0]]) if len(fits) else math.inf

    def trade_off(self, false_positive_rate: Any) -> Any:
        """Returns f, the least false negative rate of a test with this false positive rate, or for an array of them."""
        return 1.0 - self.true_positive_rate(false_positive_rate)

    def true_positive_rate(self, false_positive_rate: Any) -> Any:
        """Returns the largest true positive rate of a test with this false positive rate, or for an array of them.

        Example:
            >>> found = risk(noise_multiplier=1.0, sampling_probability=1.0, updates=1)
            >>> [round(float(found.true_positive_rate(rate)), 3) for rate in (0.001, 0.01, 0.1)]
            [0.018, 0.092, 0.389]
        """
        rates = np.asarray(false_positive_rate, dtype="float64")
        if not np.all((rates >= 0.0) & (rates <= 1.0)):
            raise ValueError(f"`false_positive_rate` must be in [0, 1]. Received: {false_positive_rate!r}.")
        rate = rates[..., None]
        with np.errstate(over="ignore", divide="ignore"):
            above = np.exp(self.epsilons + np.log(rate)) + self.deltas
        below = 1.0 - np.exp(-self.epsilons) * np.maximum(1.0 - rate - self.deltas, 0.0)
        best = np.clip(np.minimum(above, below).min(axis=-1, initial=1.0), rates, 1.0)
        return float(best) if rates.ndim == 0 else best

    def right_guesses(self, prior: float = 0.5) -> float:
        """Returns the largest probability of a right guess on whether the example was used.

        Args:
            prior: How likely that is before the release, in (0, 1).

        Example:
            >>> found = risk(noise_multiplier=1.0, sampling_probability=1.0, updates=1)
            >>> round(found.right_guesses(), 3), round(found.right_guesses(prior=0.1), 3)
            (0.691, 0.901)
        """
        prior = checks.fraction("prior", prior)
        rare = max(min(prior, 1.0 - prior), _RAREST)
        # rare * tpr + (1 - rare) (1 - fpr), where tpr <= e^epsilon fpr + delta with e^epsilon = (1 - rare) / rare.
        return 1.0 - rare + rare * self.delta(math.log((1.0 - rare) / rare))

    def precision(self, false_positive_rate: float, prior: float = 0.5) -> float:
        """Returns how likely it is at most that the example was used, once a test of this rate has said so.

        Args:
            false_positive_rate: In (0, 1).
            prior: How likely that is before the release, in (0, 1).

        Example:
            >>> found = risk(noise_multiplier=1.0, sampling_probability=1.0, updates=1)
            >>> round(found.precision(0.01), 3), round(found.precision(0.01, prior=0.1), 3)
            (0.902, 0.506)
        """
        prior, rate = checks.fraction("prior", prior), checks.fraction("false_positive_rate", false_positive_rate)
        hit = prior * self.true_positive_rate(rate)
        return hit / (hit + (1.0 - prior) * rate)

    def reconstruction(self, baseline: float) -> float:
        """Returns the largest probability with which an attacker reconstructs the example.

        Args:
            baseline: That of the best guess without the release, in [0, 1].

        **Guarantee.**
        Conditions: relations that take the example away (add or remove, zero out).
        Bound: the largest true positive rate at the false positive rate `baseline`.
        Source: Hayes, Mahloujifar & Balle 2023, theorem 2.

        Example:
            >>> round(risk(noise_multiplier=2.0, sampling_probability=1.0, updates=1).reconstruction(0.001), 4)
            0.0048
        """
        return self.true_positive_rate(checks.between("baseline", baseline, 0.0, 1.0))

    def __str__(self) -> str:
        guesses, found = (_up(100.0 * value) for value in (self.right_guesses(), self.true_positive_rate(0.01)))
        return (
            f"who knows all other data is right in at most {guesses} of 100 guesses on who is in it (a coin: 50), "
            f"and finds at most {found} % of them at 1 % false alarms"
        )

    def __repr__(self) -> str:
        advantage, guesses = round_up(self.advantage), round_up(self.right_guesses())
        return f"Risk(advantage={advantage:.4g}, right_guesses={guesses:.4g}, mu={self.mu})"

    def to_dict(self) -> dict[str, Any]:
        """Returns the headline numbers as JSON-serializable values."""
        rates = (0.001, 0.01, 0.1)
        found = {delta: self.epsilon(delta) for delta in _SHOWN_DELTAS}
        return {
            "advantage": self.advantage,
            "right_guesses": self.right_guesses(),
            "true_positive_rates": [[rate, self.true_positive_rate(rate)] for rate in rates],
            "trade_off": [[rate, self.trade_off(rate)] for rate in _SHOWN_RATES],
            "deltas": [[e, delta] for delta, e in found.items() if math.isfinite(e)],
            "mu": self.mu,
            "rho": self.rho,
        }


def _up(percent: float) -> str:
    return f"{min(100.0, math.ceil(percent * 10.0 - 1e-9) / 10.0):g}"


@checks.known_arguments("relation", "group_size", "num_examples", "capacity")
def risk(
    *,
    noise_multiplier: float,
    sampling_probability: float | None = None,
    updates: int,
    accountant: str | Accountant = "pld",
    sampler: str | Sampling = "poisson",
    **settings: Any,
) -> Risk:
    """Returns what an attacker can do at most with all updates of a training run.

    Args:
        noise_multiplier: standard deviation of the noise over the norm one example can contribute, at least 0.
        sampling_probability: expected batch size / number of examples, in (0, 1]; left out with a `Sampling`.
        updates: number of noisy updates released, an int of at least 0.
        accountant: "pld" (tight, default), "rdp", "autodp", or an `Accountant`.
        sampler: a name in `SAMPLERS`, or a bound `Sampling`.
        **settings: `relation`, `group_size`, `num_examples`, `capacity`, as in `Mechanism`; with a group size it is
            the risk of all of a group together.

    Returns:
        A `Risk`.

    Raises:
        ValueError: when an argument is out of range, or the accountant has no bound for the sampler.

    Example:
        >>> found = risk(noise_multiplier=1.0, sampling_probability=1.0, updates=4)
        >>> found.mu, round(found.advantage, 4)
        (2.0, 0.6827)
    """
    mechanism = Mechanism.of_updates(sampling_probability, noise_multiplier, updates, sampler, **settings)
    return risk_of([mechanism], accountant)


def risk_of(mechanisms: Iterable[Mechanism], accountant: str | Accountant = "pld") -> Risk:
    """Returns the risk of a list of releases, as `compose` returns their epsilon."""
    mechanisms, accountant = canonical(mechanisms), get_accountant(accountant)
    mu = mu_of(mechanisms)
    if mu is not None and accountant.budget is None:
        epsilons = np.linspace(0.0, mu * (mu / 2.0 + 8.0), _POINTS) if mu > 0.0 else np.zeros(1)
        return Risk(epsilons, _gaussian(mu, epsilons), mu)
    if isinstance(accountant, PldAccountant):
        return Risk(*accountant.curve(mechanisms, _POINTS))
    pairs = {}
    for delta in _DELTAS:
        epsilon = accountant.guarantee(mechanisms, delta)
        if math.isfinite(epsilon):
            pairs[epsilon] = min(delta, pairs.get(epsilon, 1.0))
    epsilons = np.array(sorted(pairs))
    return Risk(epsilons, np.array([pairs[epsilon] for epsilon in epsilons]))


def _gaussian(mu: float, epsilons: np.ndarray) -> np.ndarray:
    """Returns delta(epsilon) of the Gaussian mechanism, rounded up."""
    if mu == 0.0:
        return np.zeros(len(epsilons))
    first = special.ndtr(mu / 2.0 - epsilons / mu)
    second = np.exp(epsilons + special.log_ndtr(-mu / 2.0 - epsilons / mu))
    return np.clip(first - second + (_ROUNDING + _OF_EXPONENT * epsilons) * first, 0.0, 1.0)
