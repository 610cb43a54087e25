"""One run: canaries among the data of an ordinary training, each there or not by a coin of its own."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import backend, checks
from lipdp.audit import training
from lipdp.audit.observe import Watcher, observe
from lipdp.audit.result import Audit, roc
from lipdp.audit.training import Fit, Rows
from lipdp.audit.white_box import GUESSES, one_run_bounds

_ASSUMES = (
    "nothing but the coins, which are fair, independent and secret; the numbers of guesses, {guesses} of the canaries, "
    "were fixed before, at a third of the error each"
)


def one_run(
    make_model: Callable[[], keras.Model],
    x: Any,
    y: Any,
    *,
    fit: Mapping[str, Any],
    canaries: Any = 200,
    others: Any = None,
    score: str | Callable = "loss",
    confidence: float = 0.95,
    seed: int | None = None,
) -> Audit:
    """Audits one training of your own model, with canaries among the data.

    Args:
        make_model: Returns a new compiled `DP_Model` or `DP_Sequential`, or a model with the same `fit`.
        x, y: Data, arrays or trees of arrays.
        fit: Arguments of `fit`, with `epsilon` or `noise_multiplier`, and without `person_ids` and `sample_weight`.
        canaries: A number, of rows of the data with wrong labels; or rows `(x, y)` of your own. More are sharper, as
            long as they do not change what the model learns; a few hundred to a few thousand.
        others: Rows `(x, y)` that stand for canaries that are not there, for samplers that are not charged for adding
            or removing a row; default: rows of the data.
        score: `"loss"`, how much the final model has learned the canary: the attacker sees the model only.
            `"gradient"`, how much all released gradients agree with that of the canary: the attacker sees all updates.
            It costs one gradient for each canary and update. Or a function of `(model, x, y)` that returns a number
            for each row, lower for rows that it knows, such as an error.
        confidence: Of each lower bound, in (0, 1).
        seed: Of coins, canaries and `fit`, for a repeatable audit; default: the operating system's entropy.

    Returns:
        An `Audit` with `"one_run_curve"`, the headline, and `"one_run"`.

    Raises:
        ValueError: an argument is out of range.

    Guarantee:
        Conditions: coins are fair, and nothing of the training depends on them but the data. Bound: for any score, and
        whatever canaries do to each other. Three numbers of guesses are tried, each at a third of the error. Samplers
        charged for adding or removing a row are audited so; with all others a canary that is not there is replaced,
        and epsilon is that of replacing one row. Not covered: attacks that are better; with ordinary canaries the
        bound is far below epsilon. Sources: Steinke, Nasr & Jagielski 2023; Mahloujifar, Melis & Chaudhuri 2025.

    Example:
        >>> import keras, lipdp
        >>> from lipdp import layers, losses
        >>> def make_model():
        ...     model = lipdp.DP_Sequential([layers.BoundedInput((8,), norm=1.0), layers.SpectralDense(2)])
        ...     model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
        ...     return model
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.standard_normal((100, 8)), rng.integers(2, size=100)
        >>> found = one_run(make_model, x, y, fit={"epsilon": 2.0, "batch_size": 50}, canaries=20, seed=0)
        >>> found.epsilon_lower <= found.epsilon <= 2.0
        True
    """
    training_run, confidence = Fit(make_model, fit), checks.fraction("confidence", confidence)
    training_run.refuse_facts_of_rows()
    if not callable(score):
        checks.choice("score", score, ("loss", "gradient"))
    rng = np.random.default_rng(seed)
    rows = Rows.of(x, y)
    marked, substitutes = training.canaries_of(canaries, rows, rng, others)
    members = rng.random(len(marked)) < 0.5
    model = training_run.model()
    worlds = training_run.worlds
    replaced = worlds.relation != "add_or_remove_one"
    data, callbacks = worlds.data(rows, marked, substitutes, members), ()
    if score == "gradient":
        observe(model)
        agreement = Agreement(model, marked, substitutes if replaced else None)
        callbacks = (agreement,)
    training_run.train(model, data[rng.permutation(len(data))], callbacks, seed)
    if score == "gradient":
        scores = agreement.total
    else:
        measure = training.row_losses if score == "loss" else lambda model, part: score(model, part.x, part.y)  # type: ignore[operator]
        scores = -np.asarray(measure(model, marked), "float64")
        if replaced:
            scores = scores + np.asarray(measure(model, substitutes), "float64")
    family, stated = worlds.family(model, training_run.delta)
    bounds = one_run_bounds(scores, members, family, 1.0 - confidence)
    details = {
        "score": training.name_of(score),
        "canaries": len(marked),
        "members": int(members.sum()),
        "num_examples": len(data),
        "updates": int(model.run.ledger.updates),
        "assumes": _ASSUMES.format(guesses=", ".join(f"{100 * g:g} %" for g in GUESSES)),
    }
    points = roc(scores[members], scores[~members]) if 0 < members.sum() < len(members) else None
    common = training_run.strategy_name(model), training_run.sampler, worlds.relation, stated, training_run.delta
    return Audit("one_run", *common, confidence, bounds, "one_run_curve", details, points, family.curve().risk)


class Agreement(Watcher):
    """Adds up how much each released gradient agrees with that of each canary, at the weights where both are taken.

    Args:
        model: The model, before its `fit`.
        canaries: Rows.
        others: What stands in their place where they are not there; None: nothing.
    """

    def __init__(self, model: keras.Model, canaries: Rows, others: Rows | None):
        super().__init__(self._seen_one, self._before_one)
        self.total = np.zeros(len(canaries))
        self._rows, self._gradient = [canaries] if others is None else [canaries, others], backend.loss_gradient(model)
        self._present: list[np.ndarray] = []

    def _before_one(self, update: int) -> None:
        with backend.full_precision():
            self._present = [np.stack([self._flat(rows[i : i + 1]) for i in range(len(rows))]) for rows in self._rows]

    def _flat(self, row: Rows) -> np.ndarray:
        found = self._gradient(keras.tree.map_structure(lambda leaf: leaf.astype("float32"), row.x), row.y)
        return np.concatenate([np.asarray(ops.convert_to_numpy(g), "float64").reshape(-1) for g in found])

    def _seen_one(self, update: int, released: np.ndarray, noise: np.ndarray) -> None:
        release = self.model.run.ledger.entries[-1]
        quiet, most = noise > 0.0, 1.0 / max(release.noise_multiplier, 1e-12)
        size = self.model.run.plan.sampling.batch_size
        parts = []
        for gradients in self._present:
            whitened = gradients[:, quiet] / noise[quiet] / size
            norms = np.linalg.norm(whitened, axis=1, keepdims=True)
            # No strategy lets one example add more than this; those that clip cut it to that.
            parts.append(whitened * np.minimum(1.0, most / np.maximum(norms, 1e-30)))
        canary = parts[0] if len(parts) == 1 else parts[0] - parts[1]
        squares = np.sum(parts[0] ** 2, axis=1) - (0.0 if len(parts) == 1 else np.sum(parts[1] ** 2, axis=1))
        rate = release.sampling.sampling_probability
        self.total += canary @ (released[quiet] / noise[quiet]) - 0.5 * rate * squares
