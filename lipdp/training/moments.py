"""Moments that layers need of the data: planned with the updates, charged, then released with noise."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import _keras, accounting, backend, isolation, sampling
from lipdp.layers.released import ReleasedConstants
from lipdp.privacy import Release
from lipdp.sampling import randomness
from lipdp.sampling.columns import columns_of, read
from lipdp.training.outputs import OneByOne, Outputs
from lipdp.training.request import FitRequest
from lipdp.training.state import Run

_AT_ONCE = 2**22  # entries of the inputs and of what the layer reads
_KEPT = 2**28  # entries of what the layer reads that are kept from the first pass for the second


@dataclasses.dataclass(frozen=True)
class Moments:
    """The layers whose moments a `fit` still has to release, in the order of the graph, and what that costs.

    Args:
        model: The model.
        layers: The layers.
        releases: One for each of their queries.
        shares: `(N,)`, what each row counts, such that the rows of one person count at most 1 together; None: 1 each.

    **Guarantee.** Conditions: one `fit` at a time trains the model. Bound: each release is charged before it is
    drawn, and moves by at most its sensitivity with one example, or person: rows are clipped one by one, and count at
    most 1 in all. Rows that are not finite count as zero.
    """

    model: keras.Model
    layers: tuple[ReleasedConstants, ...]
    releases: tuple[Release, ...]
    shares: np.ndarray | None = None

    @contextlib.contextmanager
    def planned(self, run: Run) -> Iterator[None]:
        """A context in which the ledger is as it will be, so that the updates are planned for what is left."""
        before, request = run.ledger.copy(), run.request
        try:
            if self.layers:
                run.request = None  # no plan goes on that did not know of them
            for release in self.releases:
                run.ledger.charge(release)
            run.planned_moments = len(self.releases)
            yield
        finally:
            run.planned_moments = 0
            run.ledger.become(before)
            run.request = request

    def variables(self) -> list:
        """Returns what is about to hold private moments."""
        return [variable for layer in self.layers for variable in layer.variables]

    def release(self, x: Any) -> None:
        """Charges and releases all of them, and gives them to their layers."""
        releases = iter(self.releases)
        for layer in self.layers:
            rows = _Rows(self.model, layer, x, self.shares)
            for query in layer.queries():
                release = next(releases)
                average = self._noisy(rows.sum(query.total), release, x)
                deviation = release.noise_multiplier * release.sensitivity
                query.take(average, deviation, release.sampling.num_examples or 1)

    def _noisy(self, total: np.ndarray, release: Release, x: Any) -> np.ndarray:
        """Charges an average, then returns it with noise."""
        run = self.model.run
        run.charge(release)
        # The key of a seed has seen some rows of a source only: there the sum counts as well. What stays in the secret,
        # and in files, does not give the noise again.
        seen = [total.tobytes()] if columns_of(x) else []
        rng = randomness.generator(run.secret.draws, "moments", *seen)
        run.secret.draws = randomness.derive(run.secret.draws, "next")
        noise = rng.normal(size=total.shape)
        return total / (release.sampling.num_examples or 1) + release.noise_multiplier * release.sensitivity * noise

    def announcement(self) -> list[str]:
        """Returns what `fit` says about them."""
        return [
            f"{layer.released} of what layer '{layer.name}' reads are released first, with noise multiplier "
            f"{layer.noise_multiplier:.6g} each. They are charged."
            for layer in self.layers
        ]


def pending(model: keras.Model, request: FitRequest, persons: sampling.Persons | None) -> Moments:
    """Returns what is still to be released before the model trains.

    Raises:
        ValueError: a layer that stands where its moments would not be those of single examples or would change while
            the model trains, or a request under which their cost is not known.
    """
    _check_persons(model, persons)
    layers = [layer for layer in _keras.walk(model) if isinstance(layer, ReleasedConstants)]
    layers = [layer for layer in layers if not layer.adapted]
    if not layers:
        return Moments(model, (), ())
    graph = _keras.graph(model)
    order = [node.operation for node in _keras.nodes(graph)]
    for layer in layers:
        _check(layer, order, model)
    layers.sort(key=order.index)
    scheme = request.sampling
    if backend.processes()[1] > 1:
        raise ValueError(
            f"Moments are released by one process, which reads all rows. Received: {backend.processes()[1]} processes. "
            "Fit the model in one process first, for one update, and save it."
        )
    if getattr(request.strategy, "count_noise", None) is not None:
        raise ValueError(
            "Moments are averages over a public number of examples. Received: a strategy with `count_noise`. Leave out "
            f"`count_noise`, or the layer {type(layers[0]).__name__}."
        )
    count = int(scheme.num_examples or 1)
    # All of them at once: who else is in a batch says nothing here, whatever draws the batches of the updates.
    whole = accounting.Sampling("poisson", relation=scheme.relation, rows_per_person=scheme.rows_per_person)
    whole = whole.bind(count, count)
    releases = [
        Release(
            sampling=whole,
            noise_multiplier=layer.noise_multiplier,
            sensitivity=query.sensitivity / count,
            strategy=layer.mechanism,
            noise_allocation="global",
            kind="moments",
        )
        for layer in layers
        for query in layer.queries()
    ]
    return Moments(model, tuple(layers), tuple(releases), None if persons is None else persons.shares())


def _check_persons(model: keras.Model, persons: sampling.Persons | None) -> None:
    """Refuses persons that the moments which were released before cannot have been those of."""
    for entry in model.run.total.entries:
        if entry.kind == "moments" and persons is not None and entry.sampling.num_examples != persons.count:
            raise ValueError(
                f"The moments of this model are those of {entry.sampling.num_examples} persons. Received: person_ids "
                f"of {persons.count}. Pass the same ids, or build a new model."
            )


def _check(layer: ReleasedConstants, order: list, model: keras.Model) -> None:
    if order.count(layer) != 1:
        raise ValueError(
            f"Layer '{layer.name}' needs a place of its own in the graph of the model that is fitted, so that it has "
            f"one input. Received: {order.count(layer)} places (0: inside of another layer). Use it once, on the top "
            "level of the model. If it is part of a classifier that the model was given, train that first."
        )
    front = keras.Model(_keras.structures(_keras.graph(model))[0], _read_by(layer, model))
    trained = [inner.name for inner in _keras.walk(front) if inner.trainable_variables]
    if trained:
        raise ValueError(
            f"The moments that layer '{layer.name}' needs would change while the layers in front of it train. "
            f"Received: {', '.join(trained)}. Move it in front of them, or freeze them (trainable = False)."
        )
    mixing = [operation.name for operation, _ in isolation.foreign(front)]
    if mixing:
        raise ValueError(
            f"The moments that layer '{layer.name}' releases must be those of single rows. Received: layers in front "
            f"of it that are not known to keep rows apart: {', '.join(mixing)}. Move it in front of them, or declare "
            "your own layers with lipdp.row_wise if they treat each row alone."
        )


def _read_by(layer: ReleasedConstants, model: keras.Model) -> Any:
    """Returns the tensor that a layer reads in this model: `input` is that of its first call, maybe in another one."""
    return next(node for node in _keras.nodes(_keras.graph(model)) if node.operation is layer).input_tensors[0]


class _Rows:
    """What reaches a layer, a part of the rows at a time."""

    def __init__(self, model: keras.Model, layer: ReleasedConstants, x: Any, shares: np.ndarray | None):
        inputs, read_by = _keras.structures(_keras.graph(model))[0], _read_by(layer, model)
        # Nothing to compute where the layer comes first.
        first = len(tree.flatten(inputs)) == 1 and tree.flatten(inputs)[0] is read_by
        front = None if first else keras.Model(inputs, read_by)
        if front is not None:
            front = Outputs(OneByOne(front) if layer.counts else front, 256)
        self._outputs = front
        self._x, self._shares, self._count = x, shares, len(tree.flatten(x)[0])
        # Of the data: inputs of the model may leave sizes open.
        sizes = [math.prod(shape[1:]) for shape in (*(leaf.shape for leaf in tree.flatten(x)), read_by.shape)]
        self._step = max(1, _AT_ONCE // max(sizes))
        self._kept: dict[int, np.ndarray] | None = {} if not first and self._count * sizes[-1] <= _KEPT else None

    def sum(self, function: Any) -> np.ndarray:
        """Returns the sum of a function of the rows and of what each of them counts."""
        total: Any = 0.0
        for start in range(0, self._count, self._step):
            index = np.arange(start, min(start + self._step, self._count))
            total = total + function(self._part(index), None if self._shares is None else self._shares[index])
        return total

    def _part(self, index: np.ndarray) -> np.ndarray:
        start = int(index[0])
        if self._kept is not None and start in self._kept:
            return self._kept[start]
        rows = tree.map_structure(lambda leaf: np.asarray(leaf, "float32"), read(self._x, index))
        if self._outputs is not None:
            with backend.full_precision():
                rows = self._outputs(rows)
        rows = np.asarray(tree.flatten(rows)[0])
        if self._kept is not None:
            self._kept[start] = rows
        return rows
