"""Conducts a run of DPIS: norm passes, released sums, proposals and updates, each charged before it is made."""

import dataclasses
import itertools
import math

import numpy as np
from keras import tree

from lipdp import accounting, sampling
from lipdp.accounting.dpis import ImportanceFilter
from lipdp.privacy.ledger import Release
from lipdp.privacy.plan import Plan
from lipdp.sampling import Proposal

# Rows of a chunk are a multiple of this, so that few shapes occur.
_STEP = 64
_LARGEST_CHUNK = 256


def plan_for(run, strategy, request: dict, wanted: int, steps: int) -> Plan:
    """The plan under which `wanted` updates may run, without changing anything; see `Run.plan_for`."""
    if request == run.request and run.updates_left > 0:
        return run.plan
    if request["accountant"] != "filter":
        accounting.get_accountant(request["accountant"])  # not used, but a misspelt name is an error
    if request["epsilon"] is None or request["noise_multiplier"] is not None:
        raise ValueError(
            "DPIS chooses its noise anew in each epoch, from what is left of a budget. Received: "
            f"epsilon={request['epsilon']!r}, noise_multiplier={request['noise_multiplier']!r}. Pass "
            "fit(epsilon=1.0, delta=1e-5) and no noise_multiplier."
        )
    if run.ledger.releases and not run.ledger.adaptive:
        _check_history(run)
    run._refuse_spent(request["epsilon"], request["delta"], run.plan.accountant if run.ledger.adaptive else "rdp", 1)
    if run.ledger.adaptive:
        _check_budget(run, request["epsilon"], request["delta"])
    budget = _budget(run, strategy, request, wanted, steps)
    return Plan(
        sampling=accounting.Sampling().bind(request["num_examples"], request["batch_size"]),
        updates=wanted,
        noise_multiplier=budget.planned_noise,
        delta=request["delta"],
        epsilon=request["epsilon"],
        accountant=accounting.Filter(budget.order, request["epsilon"], request["delta"], covers_adaptive=True),
    )


def _check_history(run) -> None:
    """Refuses to go on after releases that cannot be charged at the order of DPIS."""
    samplers = {release.sampling.name for release in run.ledger.entries}
    accountant = run.plan.accountant
    if samplers != {"poisson"} or (accountant.budget is not None and not accountant.covers_adaptive):
        raise ValueError(
            "DPIS goes on only after Poisson-sampled updates of plans that were fixed in advance. Received: a model "
            f"trained with sampling {', '.join(sorted(samplers))} and accountant={accountant.name!r}. Go on with "
            "that strategy, or build a new model (its cost adds up outside of this ledger)."
        )


def _check_budget(run, epsilon: float, delta: float) -> None:
    """Refuses a smaller budget: how much was used up depended on the releases, so all of it is stated.

    A larger one is taken. The statement says that it is assumed to be chosen without regard to results, as for plans of
    other strategies.
    """
    before = accounting.guarantee(run.ledger.mechanisms(), delta, run.plan.accountant)
    if epsilon < before * (1.0 - 1e-9):
        raise ValueError(
            "The budget of an adaptive run cannot shrink: what was used up depended on the releases themselves. "
            f"Received: epsilon={epsilon!r} at delta={delta!r} after a budget of {before:.6g}. Pass no less."
        )


def _budget(run, strategy, request, wanted, steps) -> ImportanceFilter:
    arguments = strategy.filter_arguments(
        num_examples=request["num_examples"],
        batch_size=request["batch_size"],
        updates_per_epoch=min(steps, wanted),
        epochs=math.ceil(wanted / steps),
    )
    return ImportanceFilter(
        epsilon=request["epsilon"],
        delta=request["delta"],
        order=run.plan.accountant.order if run.ledger.adaptive else None,  # which must not change
        spent=run.ledger.mechanisms(),
        **arguments,
    )


class Conductor:
    """Carries out the updates of one `fit` with `strategies.DPIS`.

    Args:
        model: The model.
        strategy: A `DPIS`.
        plan: The plan; with a private number of examples, `plan` afterwards holds the released one.
        request: What asked for the plan.
        x, y: The training data.
        steps: Updates per epoch.
        rows: Rows of a chunk, or None.
        static: Whether each new shape costs a compilation.
        seed: The user's seed, or None.

    Guarantee:
        Conditions: one conductor at a time per model. Bound: each noisy sum and each update is charged to filter and
        ledger before it is drawn; stored norms of one example follow from the example, the released weights and
        its own coins. The norms stay in memory: after an interruption they are computed anew, which
        `sampling.Proposal` allows. Not covered: how many examples are proposed, which shows in the time taken.
    """

    def __init__(self, model, strategy, plan, request, x, y, steps, rows, static, seed):
        self._model, self._strategy, self.plan, self._request = model, strategy, plan, request
        self._x, self._y, self._seed = x, y, seed
        chunk = min(plan.sampling.batch_size, _LARGEST_CHUNK) if rows is None else rows
        self._rows, self._static = chunk, static
        self._norms = self._gradient = None
        run = model.run
        new = plan is not run.plan or run.adaptive is None
        self.filter = _budget(run, strategy, request, plan.updates, steps) if new else self._resumed(run)
        self._clip_norm = None if new else run.adaptive["clip_norm"]

    def _resumed(self, run) -> ImportanceFilter:
        budget = ImportanceFilter(**run.adaptive["arguments"])
        budget.resume(run.adaptive["state"], run.ledger.mechanisms())
        return budget

    def begin(self) -> None:
        """Releases the number of examples, if that is private, and notes where the plan stands."""
        budget = self.filter
        if budget.count_noise is not None and not budget.count_charged:
            noisy = self._release("count", budget.charge_count, len(self._y), budget.count_noise, 1.0)
            sampling = self.plan.sampling.bind(budget.declare_count(noisy), self.plan.sampling.batch_size)
            self.plan = dataclasses.replace(self.plan, sampling=sampling)
            self._model.run.adopt(self.plan, self._request)
        self._note()

    def placeholders(self):
        """Endless batches without content, for Keras to count updates by."""
        empty = tree.map_structure(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), (self._x, self._y))
        # TensorFlow keeps an iterator as long as the process lives: this one does not hold the data.
        return ((*empty, np.zeros(1, "float32")) for _ in itertools.count())

    def _note(self) -> None:
        self._model.run.adaptive = {
            "arguments": self.filter.arguments(),
            "state": self.filter.state(),
            "clip_norm": self._clip_norm,
        }

    def update(self, step) -> None:
        """One update, through the compiled pieces in `step`; at the beginning of an epoch its norm pass as well."""
        budget, run = self.filter, self._model.run
        if budget.updates_left < 1:
            self._open_epoch(step)
        elif self._norms is None:  # resumed within an epoch
            self._norms = np.minimum(self._all_norms(step), budget.clip_norm)
            self._set_noise(step)
        proposal = Proposal.capped(
            self._norms,
            growth=self._strategy.growth,
            floor=self._strategy.floor * budget.norm_sum / budget.num_examples,
            norm_sum=budget.norm_sum,
            batch_size=budget.batch_size,
            clip_norm=budget.clip_norm,
        )
        rng = sampling.proposal_rng(self._seed, run.ledger.updates)
        proposed = proposal.draw(rng)
        thresholds, limits = proposal.thresholds(rng, proposed), proposal.limits[proposed].astype("float32")
        shares = (1.0 / (proposal.probabilities[proposed] * budget.num_examples)).astype("float32")
        budget.charge_update()
        run.charge(self._gradient)
        self._note()
        norms = np.empty(len(proposed), "float32")
        for rows, part in self._chunks(len(proposed)):
            x, y, weight = self._padded(proposed[part], rows)
            given = len(proposed[part])
            extra = [_filled(a[part], rows, v) for a, v in ((limits, 1.0), (thresholds, np.inf), (shares, 0.0))]
            norms[part] = step.add((x, y, weight, *extra))[:given]
        # What the next proposal follows from: the norms as they were clipped.
        self._norms[proposed] = np.minimum(norms, limits)
        # Rounded towards zero: the noise was calibrated for this factor.
        factor = np.nextafter(np.float32(budget.norm_sum / budget.num_examples / budget.batch_size), np.float32(0.0))
        step.release(float(factor))

    def _open_epoch(self, step) -> None:
        """Computes all norms, and releases what the epoch's clip norm, noise and probabilities follow from."""
        budget, strategy = self.filter, self._strategy
        self._norms = self._all_norms(step)
        clip_norm = strategy.clip_norm
        if budget.clip_sum_noise is not None:
            if self._clip_norm is None:
                total = self._clipped_sum(clip_norm)
                noisy = self._release("clip_sum", budget.charge_clip_sum, total, budget.clip_sum_noise, clip_norm)
                self._clip_norm = strategy.next_clip_norm(noisy, budget)
            clip_norm = self._clip_norm
        total = self._clipped_sum(clip_norm)
        noisy = self._release("norm_sum", budget.charge_norm_sum, total, budget.norm_sum_noise, clip_norm)
        budget.begin_epoch(noisy, clip_norm)
        self._norms = np.minimum(self._norms, budget.clip_norm)
        self._clip_norm = None
        self._note()
        self._set_noise(step)

    def _clipped_sum(self, clip_norm: float) -> float:
        return float(np.minimum(self._norms, clip_norm).sum())

    def _set_noise(self, step) -> None:
        budget, run = self.filter, self._model.run
        deviation = budget.noise_multiplier * budget.clip_norm / budget.batch_size
        run.noise_std = (deviation,) * len(self._model.trainable_variables)
        step.set_noise(run.noise_std)
        update = budget.update
        self._gradient = self._described(
            "gradient",
            update.noise_multiplier,
            budget.norm_sum / (budget.num_examples * budget.batch_size),
            sampling_probability=update.sampling_probability,
        )

    def _release(self, kind: str, charge, value: float, noise_multiplier: float, sensitivity: float) -> float:
        """Charges a number, then draws it with noise."""
        run = self._model.run
        rng = sampling.statistics_rng(self._seed, run.ledger.releases)
        charge()
        run.charge(self._described(kind, noise_multiplier, sensitivity))
        self._note()
        return float(value + noise_multiplier * sensitivity * rng.normal())

    def _described(self, kind, noise_multiplier, sensitivity, sampling_probability=1.0) -> Release:
        return Release(
            kind=kind,
            sampling=dataclasses.replace(self.plan.sampling, sampling_probability=sampling_probability),
            noise_multiplier=noise_multiplier,
            sensitivity=sensitivity,
            strategy=self._strategy.name,
            noise_allocation=self._strategy.noise,
        )

    def _all_norms(self, step) -> np.ndarray:
        """The gradient norms of all examples at the present weights, chunk by chunk."""
        norms = np.empty(len(self._y), "float64")
        for rows, part in self._chunks(len(self._y)):
            index = np.arange(part.start, min(part.stop, len(self._y)))
            norms[index] = step.norms(self._padded(index, rows))[: len(index)]
        return norms

    def _chunks(self, count: int):
        """Rows and slices of the chunks that hold `count` examples: all of them, however many."""
        for start in range(0, count, self._rows):
            here = min(self._rows, count - start)
            yield (self._rows if self._static else math.ceil(here / _STEP) * _STEP), slice(start, start + here)

    def _padded(self, index, rows: int):
        x, y = tree.map_structure(lambda leaf: _taken(leaf, index, rows), (self._x, self._y))
        return x, y, _filled(np.ones(len(index), "float32"), rows, 0.0)


def _taken(values: np.ndarray, index: np.ndarray, rows: int) -> np.ndarray:
    """Rows `index` of the array with zeros behind them, copied once: examples can be large."""
    taken = np.empty((rows, *values.shape[1:]), values.dtype)
    # The clip mode writes straight into the array; all indices are in range.
    np.take(values, index, axis=0, out=taken[: len(index)], mode="clip")
    taken[len(index) :] = 0
    return taken


def _filled(values: np.ndarray, rows: int, fill) -> np.ndarray:
    """The array with `fill` behind it, up to `rows` rows."""
    if len(values) == rows:
        return values
    full = np.full((rows, *values.shape[1:]), fill, values.dtype)
    full[: len(values)] = values
    return full
