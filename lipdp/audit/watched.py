"""Runs of the audit's own networks, with everything that each update releases along each canary."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import backend
from lipdp.accounting.schemes import REPLACE, Sampling
from lipdp.audit.family import Family
from lipdp.audit.networks import Canaries
from lipdp.audit.observe import Watcher, observed_class
from lipdp.audit.scores import NAMES, Crowded, Scores
from lipdp.privacy import Plan
from lipdp.training import same_rows

# Largest cosine between the directions of two canaries.
_ORTHOGONAL = 1e-3


@dataclasses.dataclass(frozen=True)
class Trials:
    """Scores `(runs, canaries)` by name, and which of them were in the data, `(runs, canaries)`."""

    scores: dict[str, np.ndarray]
    members: np.ndarray


@dataclasses.dataclass(frozen=True)
class Setting:
    """How to train: network, strategy, plan of one run, other arguments of `fit`, and what seeds it, if anything.

    Where the plan draws persons, each row stands for a person with twice as many rows as an update takes. `kept` holds
    gradients of the canaries and the weights that they are of: with many canaries they take longer than a fit.
    """

    network: Canaries
    strategy: Any
    plan: Plan
    options: dict[str, Any]
    seeds: np.random.Generator | None = None
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def sampling(self) -> Sampling:
        return self.plan.sampling

    def fit(self, x: np.ndarray, y: np.ndarray, plan: Plan, runs: int, scores: Callable, budget: Any = None) -> tuple:
        """Trains for `runs` runs in one `fit` whose learning rate is 0, so that all of them see the same weights.

        Returns:
            Scores `(runs, canaries)` by name, and the model.
        """
        model = self.network.make(observed_class(keras.optimizers.SGD)(0.0))
        watched = _Watched(model, self._gradients(model), plan.updates, scores)
        steps, options = plan.updates * runs, dict(self.options)
        if (most := plan.sampling.rows_per_person) is not None:
            options |= {"person_ids": np.repeat(np.arange(len(x)), 2 * most), "rows_per_person": most}
            x, y = np.repeat(x, 2 * most, axis=0), np.repeat(y, 2 * most, axis=0)
        budgeted = {"noise_multiplier": plan.noise_multiplier} if budget is None else {"epsilon": budget}
        with same_rows.meant():
            model.fit(
                x,
                y,
                batch_size=plan.sampling.batch_size,
                steps_per_epoch=steps,
                sampling=Sampling(plan.sampling.name, plan.sampling.capacity),
                strategy=self.strategy,
                delta=plan.delta,
                training_metrics=False,
                verbose=0,
                callbacks=[Watcher(watched.add, restart=plan.updates)],
                seed=None if self.seeds is None else int(self.seeds.integers(2**31)),
                **budgeted,
                **options,
            )
        return {name: np.array(values) for name, values in watched.found.items()}, model

    def _gradients(self, model: keras.Model) -> np.ndarray:
        weights = [w.tobytes() for w in model.get_weights()]
        if self.kept.get("weights") != weights:
            self.kept.update(weights=weights, gradients=gradients(model, self.network))
        return self.kept["gradients"]


def coins(setting: Setting, runs: int, budget: float | None, rng: np.random.Generator) -> tuple[Trials, Family, float]:
    """Returns trials in which each canary is in the data or not by a coin, the curves, and the stated epsilon.

    With a budget (DPIS) each run is a `fit` of its own, because its updates follow from those before.
    """
    plan, network, count = setting.plan, setting.network, len(setting.network.x)
    rows, replaced = plan.sampling.num_examples, plan.sampling.relation == REPLACE
    found, members, families = [], [], []
    # Few canaries would fall on one side only: they are all there in one half of the runs, and in the other none.
    sides = [None] if count >= 8 else [True, False]
    for fit in range(len(sides) if budget is None else runs):
        side = sides[fit % len(sides)]
        there = rng.random(count) < 0.5 if side is None else np.full(count, side)
        places = rng.permutation(rows)[:count]
        x, y = np.repeat(network.null, rows, axis=0), np.repeat(network.null_y, rows, axis=0)
        if replaced:
            x[places], y[places] = network.x, np.where(there[:, None], network.y, network.opposite())
        else:
            x[places[there]], y[places[there]] = network.x[there], network.y[there]

        def scores(places=places):
            return Scores(plan.sampling, places)

        seen, model = setting.fit(x, y, plan, runs if budget is None else 1, scores, budget)
        found.append(seen)
        members.append(np.broadcast_to(there, seen[NAMES[0]].shape))
        charged = [plan.mechanism()] if budget is None else model.run.ledger.mechanisms()
        families.append((Family.of(charged, plan.delta), plan.cost() if budget is None else model.privacy.epsilon()))
    # In turn, so that the first quarter of the trials holds both sides.
    trials = Trials({name: _in_turn([one[name] for one in found]) for name in NAMES}, _in_turn(members))
    # DPIS draws by what it has seen: of its runs the one that was charged most has the curve that allows most.
    family = max((family for family, _ in families), key=lambda one: one.epsilon() if len(families) > 1 else 0.0)
    return trials, family, families[0][1]


def crowded(setting: Setting, runs: int, rng: np.random.Generator) -> tuple[Trials, Family, float]:
    """Returns trials on two data sets, of which one has a row more, in a crowd of rows of the opposite gradient.

    The plan is that of the crowd alone. Where all rows are in each batch, batches are as large as the data.
    """
    plan, network = setting.plan, setting.network
    crowd, places = plan.sampling.num_examples, np.zeros(1, int)
    found, members = [], []
    for there in (False, True):
        rows = crowd + there
        x = np.repeat(network.x[:1], rows, axis=0)
        y = np.repeat(network.opposite()[:1], rows, axis=0)
        if there:
            y[int(rng.integers(rows))] = network.y[0]
        size = rows if plan.sampling.batch_size == crowd else plan.sampling.batch_size
        present = dataclasses.replace(plan, sampling=plan.sampling.bind(rows, size))
        seen, _ = setting.fit(x, y, present, runs, lambda: Crowded(len(places)))
        found.append(seen)
        members.append(np.full((runs, 1), there))
    trials = Trials({name: _in_turn([one[name] for one in found]) for name in NAMES}, _in_turn(members))
    return trials, Family.of([plan.mechanism()], plan.delta), plan.cost()


def _in_turn(parts: list) -> np.ndarray:
    """Returns the first rows of all parts, then the second ones, and so on."""
    return np.stack(parts, axis=1).reshape(-1, parts[0].shape[1])


class _Watched:
    """Turns released gradients into what is seen along each canary, and that into scores."""

    def __init__(self, model: keras.Model, contributions: np.ndarray, updates: int, scores: Callable):
        self._model, self._contributions = model, contributions
        self._updates, self._make, self._scores = updates, scores, scores()
        self._noise: Any = None
        self._unit = contributions
        self.found: dict[str, list] = {name: [] for name in NAMES}

    def add(self, update: int, released: np.ndarray, noise: np.ndarray) -> None:
        quiet = noise > 0.0  # without noise nothing is released there
        if self._noise is None or not np.array_equal(self._noise, noise):
            whitened = self._contributions[:, quiet] / noise[quiet]
            self._noise, self._unit = noise, whitened / np.linalg.norm(whitened, axis=1, keepdims=True)
        release = next(r for r in reversed(self._model.run.ledger.entries) if r.kind == "gradient")
        observed = self._unit @ (released[quiet] / noise[quiet]) * release.noise_multiplier
        rate = release.sampling.sampling_probability
        self._scores.add(update % self._updates, observed, release.noise_multiplier, rate)
        if (update + 1) % self._updates == 0:
            for name, values in self._scores.values().items():
                self.found[name].append(values)
            self._scores = self._make()


def gradients(model: keras.Model, network: Canaries) -> np.ndarray:
    """Returns the gradient of each canary, flat; refuses canaries that do not have directions of their own."""
    gradient = backend.loss_gradient(model)
    with backend.full_precision():
        rows = [gradient(network.x[i : i + 1], network.y[i : i + 1]) for i in range(len(network.x))]
    found = np.array([np.concatenate([ops.convert_to_numpy(g).reshape(-1) for g in row]) for row in rows], "float64")
    norms = np.linalg.norm(found, axis=1)
    if not norms.all():
        raise ValueError(f"Each canary must have a gradient. Received: {int(np.sum(norms == 0.0))} without.")
    cosines = np.abs((found @ found.T) / np.outer(norms, norms)) - np.eye(len(found))
    if len(found) > 1 and cosines.max() > _ORTHOGONAL:
        raise ValueError(
            "The gradients of canaries must be orthogonal, or one would be seen in the other's direction. Received: "
            f"a cosine of {cosines.max():.3g}. Pass `Canaries` with gradients of their own, or fewer."
        )
    return found
