"""Carries out a `fit` with DPIS: norm passes, released sums, proposals and updates, each charged before it is made."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from keras import tree

from lipdp import accounting, backend, checks, sampling
from lipdp.accounting import Filter
from lipdp.accounting.dpis import ImportanceFilter
from lipdp.privacy import Plan, Release, statement
from lipdp.sampling import Proposal, randomness
from lipdp.training.driver import Driver, whole_shares
from lipdp.training.progress import Line

# Rows of a microbatch are a multiple of this, so that few shapes occur.
_STEP = 64
_LARGEST_MICROBATCH = 256
_MOST_EXAMPLES = 10**8
# With more noise than so many times that of the plan, updates would only spoil the weights.
_MOST_NOISE = 10.0


class ImportanceDriver(Driver):
    """Carries out a `fit` whose batches follow from the norms that the update before them has seen.

    Keras reads batches ahead of the updates that use them, so it gets the numbers of the updates, and each update draws
    its examples when its turn has come.

    **Guarantee.** Conditions: one driver at a time per model. Bound: each noisy sum and each update is charged to
    filter and ledger before it is drawn; stored norms of one example follow from the example, the released weights and
    its own coins. The norms stay in memory: after an interruption they are computed anew, which
    `sampling.Proposal` allows. Not covered: how many examples are proposed, which shows in the time taken.
    """

    @property
    def _examples(self) -> int:
        """The true number of examples, or of persons where they are drawn; it may be private."""
        return len(tree.flatten(self.y)[0]) if self.persons is None else self.persons.count

    def make_plan(self) -> Plan:
        run, request, strategy = self.run, self.request, self.strategy
        run.total.check_unit(request.sampling)
        if backend.processes()[1] > 1:
            raise ValueError(
                "DPIS keeps the norms of all examples in one process, which puts each update together. Received: "
                f"{backend.processes()[1]} processes. Train on the devices of one, or with strategy='dpsgd'."
            )
        if self._examples > _MOST_EXAMPLES:
            raise ValueError(
                "DPIS reads all rows in each epoch and keeps numbers for each of them, so it is meant for up to 1e8 "
                "examples. Received: more. Use strategy='dpsgd', whose cost does not depend on them."
            )
        if len(run.ledgers) > 1:
            raise ValueError(
                "DPIS keeps a budget for everything released about the weights, and does not see what other models "
                f"release. Received: model '{self.model.name}', some of whose weights another model has trained. Train "
                "them with another strategy, or weights of your own."
            )
        continued = run.continued(request)
        self._norms: Any = None
        self._release_of_updates = self._clip_norm = None
        if continued is not None and run.importance is not None:
            self.budget = ImportanceFilter(**run.importance["arguments"])
            state, steps = run.importance["state"], run.importance["arguments"]["updates_per_epoch"]
            made = (state["epoch"] - 1) * steps + state["updates"] if state["epoch"] else 0
            lost = run.ledger.updates - run.plan_start - made
            self.budget.resume(state, run.ledger.mechanisms(), lost if 0 < state["updates"] < steps else 0)
            self._clip_norm = run.importance["clip_norm"]
            return continued
        if request.accountant != "filter":
            accounting.get_accountant(request.accountant)  # not used, but a misspelt name is an error
        if request.epsilon is None or request.noise_multiplier is not None:
            raise ValueError(
                "DPIS chooses its noise anew in each epoch, from what is left of a budget. Received: "
                f"epsilon={request.epsilon!r}, noise_multiplier={request.noise_multiplier!r}, risk={request.risk!r}. "
                "Pass fit(epsilon=1.0, delta=1e-5) and neither noise_multiplier nor risk."
            )
        # The order of a ledger that goes on must not change.
        present = run.plan.accountant if run.ledger.adaptive else None
        if run.ledger.entries and present is None:
            self._check_history()
        self._check_count()
        run.refuse_spent(request.epsilon, request.delta, present or "rdp", 1)
        if present is not None:
            self._check_budget(present)
        scheme, steps = request.sampling, request.updates_per_epoch
        # A plan that was interrupted before its first release is made again as it was.
        updates = request.updates if continued is None else continued.updates
        self.budget = ImportanceFilter(
            epsilon=request.epsilon,
            delta=request.delta,
            order=None if present is None else present.order,
            spent=run.ledger.mechanisms(),
            **strategy.filter_arguments(
                num_examples=scheme.num_examples,
                batch_size=scheme.batch_size,
                updates_per_epoch=min(steps, updates),
                epochs=math.ceil(updates / steps),
            ),
        )
        return continued or Plan(
            sampling=scheme,
            updates=updates,
            noise_multiplier=self.budget.planned_noise,
            delta=request.delta,
            epsilon=request.epsilon,
            accountant=Filter(self.budget.order, request.epsilon, request.delta, covers_adaptive=True),
        )

    def _check_history(self) -> None:
        """Refuses to go on after releases that cannot be charged at the order of DPIS."""
        ledger, plan = self.run.ledger, self.run.plan
        samplers = sorted({release.sampling.name for release in ledger.entries})
        relations = sorted({release.sampling.relation for release in ledger.entries})
        filtered = bool(ledger.updates) and isinstance(plan.accountant, Filter)
        if samplers != ["poisson"] or "replace_one" in relations or filtered:
            accountant = f" and accountant={plan.accountant.name!r}" if ledger.updates else ""
            raise ValueError(
                "DPIS goes on only after Poisson-sampled releases of plans that were fixed in advance, under any "
                f"relation but 'replace_one'. Received: a model with releases under sampling {', '.join(samplers)}, "
                f"relation {', '.join(relations)}{accountant}. Go on with another strategy, or build a new model (its "
                "cost adds up outside of this ledger)."
            )

    def _check_count(self) -> None:
        """Refuses to keep a number of examples private that the ledger names, or to name one that it does not."""
        entries, noise = self.run.ledger.entries, self.strategy.count_noise
        if not entries or (entries[0].kind == "count") is (noise is not None):
            return
        so_far = "holds a noisy count" if noise is None else "names the number of examples"
        raise ValueError(
            f"The first release fixes whether the number of examples is private, and the ledger {so_far}. Received: "
            f"count_noise={noise!r} after {self.run.ledger.releases} releases. Go on as before, or build a new model "
            "(its cost adds up outside of this ledger)."
        )

    def _check_budget(self, accountant: Filter) -> None:
        """Refuses a smaller budget: how much was used up depended on the releases, so all of it is stated.

        A larger one is taken. The statement says that it is assumed to be chosen without regard to results, as for
        plans of other strategies.
        """
        epsilon, delta = self.request.epsilon, self.request.delta
        before = accounting.guarantee(self.run.ledger.mechanisms(), delta, accountant)
        if epsilon < before * (1.0 - 1e-9):
            raise ValueError(
                "The budget of an adaptive run cannot shrink: what was used up depended on the releases themselves. "
                f"Received: epsilon={epsilon!r} at delta={delta!r} after a budget of {before:.6g}. Pass no less."
            )

    @contextlib.contextmanager
    def batches(self) -> Iterator[Any]:
        """Endless numbers of updates."""
        first = self.run.ledger.updates
        shards, _ = backend.row_shards()  # Keras shares these out as well
        self._reader = sampling.Reader((self.x, self.y), self.allowed_labels())
        with contextlib.closing(self._reader), self._reader.telling():
            yield backend.feed(((np.full(shards, i),) for i in itertools.count(first)), (np.zeros(shards, int),))

    def charge(self) -> None:
        """Returns None: each update charges itself."""

    def details(self) -> dict:
        return self.budget.arguments()

    def train_function(self, present: Any, force: bool) -> Any:
        if force or present is None:
            present = backend.ImportanceStep(self.model, self.strategy, self.request.training_metrics)
        present.update = self.update
        return present

    def announcement(self) -> str:
        return statement.importance_announcement(self.plan, self.updates, self.strategy.name)

    def repeats_from_here(self) -> bool:
        return self.request.seed is None or self.budget.updates_left == 0

    def forget(self, ledger: str) -> None:
        """Leaves the ledger as it is: numbers are released on the host, and leave no trace in weights."""

    def _microbatch(self) -> int:
        width = 1 if self.persons is None else self.persons.width
        size = self.plan.sampling.batch_size * width
        rows = self.request.microbatch_size or self.default_microbatch(2 * size) or min(size, _LARGEST_MICROBATCH)
        return whole_shares(max(1, rows // width), width, self.of_one_size)

    def begin(self) -> None:
        """Releases the number of examples, if that is private, and notes where the plan stands."""
        budget = self.budget
        if budget.count_noise is not None and not budget.count_charged:
            noisy = self._released("count", budget.charge_count, self._examples, budget.count_noise, 1.0)
            scheme = self.plan.sampling.bind(budget.declare_count(noisy), self.plan.sampling.batch_size)
            self.plan = dataclasses.replace(self.plan, sampling=scheme)
            self.run.adopt(self.plan, self.request)
        self._note()

    def _note(self) -> None:
        self.run.importance = {
            "arguments": self.budget.arguments(),
            "state": self.budget.state(),
            "clip_norm": self._clip_norm,
        }

    def update(self, step: Any) -> None:
        """Makes one update, by the compiled pieces in `step`; at the beginning of an epoch its norm pass as well."""
        budget, run = self.budget, self.run
        if budget.updates_left < 1:
            if not budget.affords_epoch(_MOST_NOISE * self.plan.noise_multiplier):
                self._stop()
                return
            self._open_epoch(step)
        elif self._norms is None:  # resumed within an epoch
            self._norms = np.minimum(self._all_norms(step), budget.clip_norm)
            self._set_noise(step)
        proposal = Proposal.capped(
            self._norms,
            growth=self.strategy.growth,
            floor=self.strategy.floor * budget.norm_sum / budget.num_examples,
            norm_sum=budget.norm_sum,
            batch_size=budget.batch_size,
            clip_norm=budget.clip_norm,
        )
        rng = self._generator("proposal")
        proposed = proposal.draw(rng)
        thresholds, limits = proposal.thresholds(rng, proposed), proposal.limits[proposed].astype("float32")
        shares = (1.0 / (proposal.probabilities[proposed] * budget.num_examples)).astype("float32")
        budget.charge_update()
        run.charge(self._release_of_updates, most=budget.updates_left + 1)
        self._note()
        norms = np.empty(len(proposed), "float32")
        chosen = self._chosen(proposed)
        for rows, part in self._parts(len(proposed)):
            x, y, weight = self._padded(proposed[part], rows, chosen and tuple(values[part] for values in chosen))
            size = len(proposed[part])
            extra = [_filled(a[part], rows, fill) for a, fill in ((limits, 1.0), (thresholds, np.inf), (shares, 0.0))]
            norms[part] = step.add((x, y, weight, *extra))[:size]
        # What the next proposal follows from: the norms as they were clipped.
        self._norms[proposed] = np.minimum(norms, limits)
        # Rounded towards zero: the noise was calibrated for this factor.
        factor = np.nextafter(np.float32(budget.norm_sum / budget.num_examples / budget.batch_size), np.float32(0.0))
        step.release(float(factor))

    def _stop(self) -> None:
        """Ends training where releases that were lost have used up what further ones need."""
        self.model.stop_training = True
        warnings.warn(
            "What is left of the budget does not pay for another epoch of DPIS, because releases that were lost after "
            f"a crash stay charged. Training ends {self.run.updates_left} updates before the plan; the budget holds.",
            stacklevel=checks.users_line(),
        )

    def _open_epoch(self, step) -> None:
        """Computes all norms, and releases what the epoch's clip norm, noise and probabilities follow from."""
        budget, strategy = self.budget, self.strategy
        self._norms = self._all_norms(step)
        clip_norm = strategy.clip_norm
        if budget.clip_sum_noise is not None:
            if self._clip_norm is None:
                total = self._clipped_sum(clip_norm)
                noisy = self._released("clip_sum", budget.charge_clip_sum, total, budget.clip_sum_noise, clip_norm)
                self._clip_norm = strategy.next_clip_norm(noisy, budget)
            clip_norm = self._clip_norm
        total = self._clipped_sum(clip_norm)
        noisy = self._released("norm_sum", budget.charge_norm_sum, total, budget.norm_sum_noise, clip_norm)
        budget.begin_epoch(noisy, clip_norm)
        self._norms = np.minimum(self._norms, budget.clip_norm)
        self._clip_norm = None
        self._note()
        self._set_noise(step)

    def _clipped_sum(self, clip_norm: float) -> float:
        return float(np.minimum(self._norms, clip_norm).sum())

    def _set_noise(self, step) -> None:
        budget, run = self.budget, self.run
        stddev = budget.noise_multiplier * budget.clip_norm / budget.batch_size  # type: ignore[operator]
        run.noise_std = (stddev,) * len(self.model.trainable_variables)
        step.set_noise(run.noise_std)
        update = budget.update
        self._release_of_updates = self._described(
            "gradient",
            update.noise_multiplier,
            budget.norm_sum / (budget.num_examples * budget.batch_size),
            sampling_probability=update.sampling_probability,
        )

    def _released(self, kind: str, charge, value: float, noise_multiplier: float, sensitivity: float) -> float:
        """Charges a number, then returns it with noise."""
        run = self.run
        rng = self._generator("sum")
        charge()
        run.charge(self._described(kind, noise_multiplier, sensitivity))
        self._note()
        return float(value + noise_multiplier * sensitivity * rng.normal())

    def _generator(self, label: str) -> np.random.Generator:
        """Returns the generator of one draw. What stays in the secret does not give it again, also not in a file."""
        secret = self.run.secret
        rng = randomness.generator(secret.draws, label)
        secret.draws = randomness.derive(secret.draws, "next")
        return rng

    def _described(self, kind, noise_multiplier, sensitivity, sampling_probability=1.0) -> Release:
        return Release(
            sampling=dataclasses.replace(self.plan.sampling, sampling_probability=sampling_probability),
            noise_multiplier=noise_multiplier,
            sensitivity=sensitivity,
            strategy=self.strategy.name,
            noise_allocation=self.strategy.noise_allocation,
            kind=kind,
        )

    def _all_norms(self, step) -> np.ndarray:
        """Returns the gradient norms of all examples at the present weights."""
        norms, line = np.empty(self._examples, "float64"), Line(self.in_terminal)
        chosen = self._chosen(np.arange(self._examples))
        for rows, part in self._parts(self._examples):
            # A share: the number of examples may be private.
            line.show(f"Gradient norms: {part.start / self._examples:.0%} of the examples")
            index = np.arange(part.start, min(part.stop, self._examples))
            some = chosen and tuple(values[part] for values in chosen)
            norms[index] = step.norms(self._padded(index, rows, some))[: len(index)]
        line.wipe()
        return norms

    def _parts(self, count: int) -> Iterator[tuple[int, slice]]:
        """Rows and slices of the microbatches that hold `count` examples: all of them, however many."""
        static = backend.compiles(self.model) or self.of_one_size
        for start in range(0, count, self.microbatch):
            size = min(self.microbatch, count - start)
            rows = self.microbatch if static else math.ceil(size / _STEP) * _STEP
            yield rows, slice(start, start + size)

    def _chosen(self, drawn: np.ndarray) -> Any:
        """Returns which rows of persons take part, and their shares; None where rows are drawn.

        Afresh each time, by coins of each person's own: what was proposed by other rows stays sound.
        """
        return None if self.persons is None else self.persons.rows(drawn, self._generator("rows"))

    def _padded(self, index: np.ndarray, rows: int, chosen: Any) -> tuple:
        weight = _filled(np.ones(len(index), "float32"), rows, 0.0)
        if self.persons is None:
            return (*self._reader.rows((self.x, self.y), index, weight), weight)
        chosen, shares = chosen
        used = np.flatnonzero(shares)
        weight = np.ones(len(used), "float32")
        found = self._reader.rows((self.x, self.y), chosen.reshape(-1)[used], weight)
        flat = np.zeros(rows * self.persons.width, "float32")
        flat[used] = shares.reshape(-1)[used] * weight
        return (*tree.map_structure(lambda leaf: _spread(leaf, used, len(flat)), found), flat.reshape(rows, -1))


def _spread(rows: np.ndarray, places: np.ndarray, size: int) -> np.ndarray:
    """Returns an array of `size` rows that holds `rows` at their places, and zeros elsewhere."""
    full = np.zeros((size, *rows.shape[1:]), rows.dtype)
    full[places] = rows
    return full


def _filled(values: np.ndarray, rows: int, fill: float) -> np.ndarray:
    """Returns the array with `fill` behind it, up to `rows` rows."""
    if len(values) == rows:
        return values
    full = np.full(rows, fill, values.dtype)
    full[: len(values)] = values
    return full
