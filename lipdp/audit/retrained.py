"""Many trainings: the final model only, and membership inference with shadow models."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from lipdp import checks
from lipdp.accounting.schemes import ADD_OR_REMOVE
from lipdp.audit import intervals, training
from lipdp.audit.result import Audit, roc
from lipdp.audit.training import Fit, Rows
from lipdp.audit.white_box import choice, one_run_bounds, rate_bounds

_ASSUMES = "trainings are independent; the threshold was chosen on the first quarter of them, none of which is counted"
_RATES = (0.001, 0.01, 0.1)
# Losses are compared on the scale of logits, where members and others are closest to normal; this far at most.
_FARTHEST = 30.0


def final_model(
    make_model: Callable[[], keras.Model],
    x: Any,
    y: Any,
    *,
    fit: Mapping[str, Any],
    canary: Any = 1,
    other: Any = None,
    runs: int = 100,
    score: str | Callable = "loss",
    confidence: float = 0.95,
    seed: int | None = None,
) -> Audit:
    """Audits what the final model alone reveals of one canary, by training again and again with it and without.

    Args:
        make_model, x, y, fit: As in `one_run`, but no `seed` in `fit`; the smaller the model and the data, the more
            runs.
        canary: 1, for a row of the data with a wrong label; or one row `(x, y)` of your own, as arrays of length 1.
        other: What stands in its place where it is not there; see `others` of `one_run`.
        runs: How many trainings, half of them with the canary; at least 16. With r of them no bound without a
            curve can exceed about log(r / 10).
        score: `"loss"`, or a function of `(model, x, y)`; see `one_run`.
        confidence: Of each lower bound, in (0, 1).
        seed: As in `one_run`; each training has one of its own.

    Returns:
        An `Audit` with `"curve"`, the headline, and `"rates"`.

    Raises:
        ValueError: an argument is out of range.

    Guarantee:
        Conditions: trainings are independent. Bound: the threshold is chosen on a quarter of the trainings and counted
        on the others. Source: Jagielski, Ullman & Oprea 2020; Clopper & Pearson 1934.
    """
    training_run, confidence = Fit(make_model, fit), checks.fraction("confidence", confidence)
    runs = checks.integer("runs", runs, minimum=16)
    training_run.refuse_facts_of_rows()
    if seed is None:
        training_run.refuse_one_seed()
    if not callable(score):
        checks.choice("score", score, ("loss",))
    measure = score if callable(score) else lambda model, x, y: training.row_losses(model, Rows(x, y))
    rng = np.random.default_rng(seed)
    rows = Rows.of(x, y)
    marked, substitute = training.canaries_of(canary, rows, rng, other)
    if len(marked) != 1:
        raise ValueError(f"`canary` must be one row, as arrays of length 1. Received: {len(marked)} rows.")
    present = rng.permutation(np.arange(runs) < runs // 2)
    scores: np.ndarray = np.zeros(runs)
    known: Any = None
    for run, there in enumerate(present):
        model = training_run.model()
        data = training_run.worlds.data(rows, marked, substitute, np.array([there]))
        training_run.train(model, data, seed=None if seed is None else int(rng.integers(2**31)))
        scores[run] = -float(np.asarray(measure(model, marked.x, marked.y)).reshape(-1)[0])
        if there and known is None:
            known = training_run.worlds.family(model, training_run.delta)
    family, stated = known
    error = 1.0 - confidence
    chosen = choice((runs, 1))[:, 0]
    tried = {"": (scores[chosen & present], scores[chosen & ~present])}
    _, cut = intervals.best_threshold(tried, family, error)
    inside, outside = scores[~chosen & present], scores[~chosen & ~present]
    bounds, details = rate_bounds(inside, outside, cut, family, error)
    details |= {"score": training.name_of(score), "runs": runs, "assumes": _ASSUMES}
    names = training_run.strategy_name(model), training_run.sampler, training_run.worlds.relation
    numbers = stated, training_run.delta, confidence
    points = roc(inside, outside)
    return Audit("final_model", *names, *numbers, bounds, "curve", details, points, family.curve().risk)


def lira(
    make_model: Callable[[], keras.Model],
    x: Any,
    y: Any,
    *,
    fit: Mapping[str, Any],
    shadow_models: int = 16,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Audit:
    """Audits one training by membership inference with likelihood ratios (LiRA): every row is a canary.

    The audited model and each shadow model train on a random half of the rows. From the shadow models follow, for each
    row, the losses to expect with it and without, as two normal distributions; the score of a row is the log of their
    ratio at its loss under the audited model.

    Args:
        make_model, fit: As in `one_run`, with a sampler that is charged for adding or removing a row.
        x, y: Rows; half of them train each model. The others keep their place, but contribute nothing: batch size and
            epochs are those of all rows.
        shadow_models: How many, at least 2; 16 are few, 64 are many.
        confidence: Of each lower bound, in (0, 1).
        seed: As in `one_run`.

    Returns:
        An `Audit` with `"one_run_curve"`, the headline, and `"one_run"`; `details` hold the true positive rates at
        false positive rates of 0.1 to 10 %, and the area under the curve, both without a confidence.

    Raises:
        ValueError: an argument is out of range, or the sampler is not charged for adding or removing a row.

    Guarantee:
        As `one_run`: the coins of the audited model are fair, and shadow models do not see them. Source: Carlini et al.
        2022, with one variance for all rows, as few shadow models need it.
    """
    training_run, confidence = Fit(make_model, fit), checks.fraction("confidence", confidence)
    shadow_models = checks.integer("shadow_models", shadow_models, minimum=2)
    if training_run.worlds.relation != ADD_OR_REMOVE:
        raise ValueError(
            "Rows come and go here, so the sampler must be charged for adding or removing one. Received: sampling="
            f"{training_run.sampler!r}. Leave it out, for Poisson sampling, or use `one_run`."
        )
    rng = np.random.default_rng(seed)
    rows = Rows.of(x, y)
    there, logits, model = [], [], None
    for _ in range(shadow_models + 1):  # the last one is audited
        members = rng.random(len(rows)) < 0.5
        model = training_run.model()
        training_run.train(model, rows.only(members), seed=None if seed is None else int(rng.integers(2**31)))
        there.append(members)
        logits.append(_logits(training.row_losses(model, rows)))
    scores = likelihood_ratios(np.array(logits[:-1]), np.array(there[:-1]), logits[-1])
    members = there[-1]
    family, stated = training_run.worlds.family(model, training_run.delta)
    bounds = one_run_bounds(scores, members, family, 1.0 - confidence)
    inside, outside = scores[members], scores[~members]
    points = roc(inside, outside)
    details = {
        "shadow_models": shadow_models,
        "canaries": len(rows),
        "members": int(members.sum()),
        "attack": [[rate, float(np.interp(rate, *points))] for rate in _RATES],
        "area_under_curve": float(np.trapezoid(points[1], points[0])),
        "assumes": "nothing but the coins of the audited model, which are fair, independent and secret",
    }
    common = training_run.strategy_name(model), training_run.sampler, ADD_OR_REMOVE, stated, training_run.delta
    return Audit("lira", *common, confidence, bounds, "one_run_curve", details, points, family.curve().risk)


def _logits(losses: np.ndarray) -> np.ndarray:
    """Returns log(p / (1 - p)) for losses -log p; the losses with the other sign where they are no such."""
    if losses.min(initial=0.0) < 0.0:
        return -losses
    return -np.log(np.expm1(np.clip(losses, math.exp(-_FARTHEST), _FARTHEST)))


def likelihood_ratios(shadows: np.ndarray, there: np.ndarray, audited: np.ndarray) -> np.ndarray:
    """Returns the score of each row, higher for members.

    Args:
        shadows: Logits of each row under each shadow model, `(s, n)`.
        there: Which rows trained it, `(s, n)`.
        audited: Logits under the audited model, `(n,)`.
    """
    means, spread, count = [], 0.0, 0
    for mask in (there, ~there):
        number = mask.sum(axis=0)
        total = np.where(mask, shadows, 0.0).sum(axis=0)
        # A row that is in all shadow models or in none has no mean of its own there.
        mean = np.where(number > 0, total / np.maximum(number, 1), shadows[mask].mean() if mask.any() else 0.0)
        spread += float(np.sum(np.where(mask, (shadows - mean) ** 2, 0.0)))
        count += int(np.sum(np.maximum(number - 1, 0)))
        means.append(mean)
    variance = max(spread / max(count, 1), 1e-12)
    return ((audited - means[1]) ** 2 - (audited - means[0]) ** 2) / (2.0 * variance)
