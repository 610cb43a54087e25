"""What audits of a network of the user's share: canaries, data with and without them, one `fit`, losses of rows."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import accounting, checks, losses, strategies
from lipdp.accounting.schemes import ADD_OR_REMOVE, REPLACE, SCHEMES
from lipdp.audit.family import Family
from lipdp.sampling import Source
from lipdp.sampling import get as get_sampling
from lipdp.training import same_rows

# Rows of one pass that computes losses.
_ROWS = 1024
_TRIES = 100


@dataclasses.dataclass(frozen=True)
class Rows:
    """Examples: x a tree of arrays `(n, ...)`, y an array or a tree of them."""

    x: Any
    y: Any

    def __len__(self) -> int:
        return len(tree.flatten(self.x)[0])

    def __getitem__(self, index: Any) -> "Rows":
        return Rows(*tree.map_structure(lambda leaf: leaf[index], (self.x, self.y)))

    def __add__(self, other: "Rows") -> "Rows":
        return Rows(*tree.map_structure(lambda a, b: np.concatenate([a, b]), (self.x, self.y), (other.x, other.y)))

    def only(self, members: np.ndarray) -> "Rows":
        """Returns as many rows, with NaN for the inputs of those that are not members."""

        def kept(leaf):
            return np.where(_beside(members, leaf), leaf, np.nan).astype("float32")

        return Rows(tree.map_structure(kept, self.x), self.y)

    @classmethod
    def of(cls, x: Any, y: Any) -> "Rows":
        found = cls(_arrays(x), _arrays(y))
        counts = {leaf.shape[:1] for leaf in tree.flatten((found.x, found.y))}
        if len(counts) != 1 or () in counts:
            raise ValueError(
                "All arrays of inputs and labels must have as many rows. Received: shapes "
                f"{[leaf.shape for leaf in tree.flatten((found.x, found.y))]}."
            )
        return found

    def check_like(self, rows: "Rows") -> None:
        """Refuses rows that cannot stand among others."""
        kinds = [tree.map_structure(lambda leaf: str(leaf.shape[1:]), (one.x, one.y)) for one in (self, rows)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                "Canaries, and what stands in their place, must be rows like those of the data. Received: rows of "
                f"shapes {kinds[0]} for data of {kinds[1]}."
            )


def _beside(members: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    return members.reshape((-1,) + (1,) * (leaf.ndim - 1))


def _arrays(values: Any) -> Any:
    """Returns a tree of arrays; a list of plain numbers is one array."""
    if not any(hasattr(leaf, "shape") for leaf in tree.flatten(values)):
        return np.asarray(values)
    return tree.map_structure(np.asarray, values)


@dataclasses.dataclass(frozen=True)
class Worlds:
    """Where the sampler is charged for adding or removing a row, one that is not there keeps its place, but contributes
    nothing: with it left out N, which is public, would tell. Where it is not, another one stands in its place, and
    epsilon is that of replacing one row."""

    relation: str

    def data(self, rows: Rows, canaries: Rows, others: Rows, members: np.ndarray) -> Rows:
        """Returns the rows with the canaries that are there, and for each of the others NaN, or its substitute."""
        if self.relation == ADD_OR_REMOVE:
            return rows + canaries.only(members)

        def chosen(one, other):
            return np.where(_beside(members, one), one, other)

        mixed = tree.map_structure(chosen, (canaries.x, canaries.y), (others.x, others.y))
        return rows + Rows(*mixed)

    def family(self, model: keras.Model, delta: float) -> tuple[Family, float]:
        """Returns the curves of what a model has released, and the stated epsilon."""
        mechanisms = model.run.ledger.mechanisms()
        if self.relation == ADD_OR_REMOVE:
            return Family.of(mechanisms, delta), model.privacy.epsilon(delta)
        replaced = [
            dataclasses.replace(m, sampling=dataclasses.replace(m.sampling, relation=REPLACE)) for m in mechanisms
        ]
        return Family.of(replaced, delta), accounting.compose(replaced, delta, model.run.plan.accountant)


class Fit:
    """How models are made and trained.

    Args:
        make_model: Returns a new compiled private model.
        arguments: Of its `fit`, without data.
    """

    def __init__(self, make_model: Callable[[], keras.Model], arguments: Mapping[str, Any]):
        if not callable(make_model) or isinstance(make_model, keras.Model):  # a model can be called, too
            what = (
                f"the {type(make_model).__name__} itself" if isinstance(make_model, keras.Model) else repr(make_model)
            )
            raise ValueError(
                f"`make_model` must be a function that returns a new compiled model. Received: {what}. Pass a function "
                "that builds and compiles a new model: an audit trains it, and some audits train many."
            )
        refused = {"x", "y", "callbacks", "validation_split"} & set(arguments)
        if refused or not {"epsilon", "noise_multiplier"} & set(arguments):
            raise ValueError(
                "`fit` must hold the arguments of the model's fit, with `epsilon` or `noise_multiplier`, and without "
                f"data and callbacks. Received: fit={dict(arguments)!r}."
            )
        self._make, self._arguments = make_model, {"verbose": 0, "training_metrics": False, **arguments}
        self.delta = checks.delta(self._arguments.setdefault("delta", 1e-5))
        sampler = get_sampling(self._arguments.get("sampling", "poisson")).name
        first = SCHEMES[sampler].relations[0]
        self._made: tuple | None = None
        self.sampler, self.worlds = sampler, Worlds(ADD_OR_REMOVE if first == ADD_OR_REMOVE else REPLACE)

    def model(self) -> keras.Model:
        """Returns a new model."""
        model = self._make()
        if not hasattr(model, "run") or not getattr(model, "compiled", False):
            raise ValueError(
                f"`make_model` must return a compiled DP_Model or DP_Sequential. Received: {type(model).__name__}."
            )
        return model

    def train(self, model: keras.Model, rows: Rows, callbacks: tuple = (), seed: int | None = None) -> None:
        """Trains a model; refuses another plan than that of the models before."""
        arguments = self._arguments if seed is None else {**self._arguments, "seed": seed}
        x = rows.x
        if self.worlds.relation == ADD_OR_REMOVE:
            # Of a source rows that are not finite count as zero.
            x = tree.map_structure(lambda leaf: Source(leaf.astype("float32"), readers=1), x)
        with same_rows.meant():
            model.fit(x, rows.y, callbacks=list(callbacks), **arguments)
        made = model.run.plan.sampling, model.run.ledger.updates
        if self._made not in (None, made):
            raise ValueError(
                "All models of an audit must be trained by one plan, or the plan tells who was there. Received: "
                f"{self._made} and {made}. Return models alike from `make_model`."
            )
        self._made = made

    def refuse_facts_of_rows(self) -> None:
        """Refuses ids and weights of the rows of the data, where rows that have none are put among them."""
        if self._arguments.get("person_ids") is not None:
            raise ValueError(
                "Canaries are rows of nobody, and rows are put in another order. Received: `person_ids` in `fit`. "
                "Leave it out, or audit the strategy with white_box(rows_per_person=...)."
            )
        if self._arguments.get("sample_weight") is not None:
            raise ValueError(
                "Canaries have no weights, and rows are put in another order. Received: `sample_weight` in `fit`. "
                "Leave it out: clipping bounds what a row contributes, whatever its weight."
            )

    def refuse_one_seed(self) -> None:
        """Refuses a seed that all trainings would have: each of them would draw the same noise."""
        if self._arguments.get("seed") is not None:
            raise ValueError(
                "Trainings with one seed draw the same noise, so that they are one trial and not many. Received: "
                f"seed={self._arguments['seed']!r} in `fit`. Pass seed= to the audit, which gives each its own."
            )

    def strategy_name(self, model: keras.Model) -> str:
        """Returns the name of the strategy that trained a model."""
        return strategies.get(model.run.request.strategy).name


def made_up(rows: Rows, count: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Returns canaries, which are rows of the data with a wrong label, and those rows as they are.

    A row that is learned although it contradicts the others is remembered best.
    """
    if count > len(rows):
        raise ValueError(
            f"Canaries are made of rows of the data, of which there are too few. Received: canaries={count}, "
            f"{len(rows)} rows. Pass fewer, or rows of your own."
        )
    chosen, labels = rng.choice(len(rows), count, replace=False), tree.flatten(rows.y)
    wrong = rng.integers(len(rows), size=count)
    for _ in range(_TRIES):
        same = [i for i in range(count) if all(np.array_equal(y[chosen[i]], y[wrong[i]]) for y in labels)]
        if not same:
            break
        wrong[same] = rng.integers(len(rows), size=len(same))
    return Rows(rows[chosen].x, rows[wrong].y), rows[chosen]


def canaries_of(given: Any, rows: Rows, rng: np.random.Generator, others: Any = None) -> tuple[Rows, Rows]:
    """Returns the canaries that `given` asks for: a number, or `(x, y)`; and their substitutes."""
    if not isinstance(given, (tuple, list)):
        return made_up(rows, checks.integer("canaries", given, minimum=1), rng)
    canaries = _pair(given, rows)
    if others is None:
        return canaries, rows[rng.integers(len(rows), size=len(canaries))]
    substitutes = _pair(others, rows)
    if len(substitutes) != len(canaries):
        raise ValueError(
            f"One row must stand in the place of each canary. Received: {len(substitutes)} rows for {len(canaries)} "
            "canaries."
        )
    return canaries, substitutes


def _pair(given: Any, rows: Rows) -> Rows:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        parts = f"{len(given)} parts" if isinstance(given, (tuple, list)) else f"a {type(given).__name__}"
        raise ValueError(f"Rows of your own are a pair (x, y). Received: {parts}.")
    found = Rows.of(*given)
    found.check_like(rows)
    return found


def row_losses(model: keras.Model, rows: Rows) -> np.ndarray:
    """Returns the loss of each row at the present weights, float64 `(n,)`."""
    found = []
    for start in range(0, len(rows), _ROWS):
        part = rows[slice(start, start + _ROWS)]
        x = tree.map_structure(lambda leaf: ops.convert_to_tensor(leaf, "float32"), part.x)
        values = losses.example_values(model.loss, part.y, model(x, training=False))
        found.append(np.asarray(ops.convert_to_numpy(values), "float64"))
    return np.concatenate(found)


def name_of(score: str | Callable) -> str:
    """Returns how a result calls a score."""
    return score if isinstance(score, str) else getattr(score, "__name__", "function")
