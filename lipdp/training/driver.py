"""What carries out one checked call of `fit`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import backend, gradients, isolation, losses, sampling
from lipdp.accounting import risk_budget
from lipdp.bounds import registry
from lipdp.callbacks import Checkpoint
from lipdp.losses import penalties
from lipdp.losses.base import fixed
from lipdp.privacy import Ledger, Plan, Release, statement
from lipdp.sampling import columns, randomness
from lipdp.strategies import Calibration
from lipdp.training import advice, budget, compiling, guards, model_checks, processes, resuming, seeding, weights
from lipdp.training import validation as validations
from lipdp.training.callbacks import Charge, check_monitors, names_of_own, private_monitors
from lipdp.training.moments import Moments
from lipdp.training.progress import in_terminal
from lipdp.training.request import FitRequest
from lipdp.training.shares import shared_out
from lipdp.training.unchanged import Unchanged


def whole_shares(count: int, rows: int = 1, alike: int = 0) -> int:
    """Returns a number of examples of so many rows rounded up: all devices have as many, and `alike` divides rows."""
    step = math.lcm(backend.row_shards()[0], (alike or 1) // math.gcd(alike or 1, rows))
    return math.ceil(count / step) * step


class Driver:
    """Carries out a `fit` whose batches can be drawn before the updates that use them.

    A kind of training that needs something else answers six questions differently: `make_plan`, `batches`, `charge`,
    `train_function`, `announcement` and `repeats_from_here`.

    Args:
        model: The model to train.
        request: What was asked for, bound to the data.
        calibration: What the strategy returned for the model.
        x, y: Training data as arrays or columns of a source.
        validation_data: As given, or the part that was split off.
        persons: Who is drawn, where that is not rows; else None.
        moments: What layers need to know of the data before the first update.
        checkpoint: What keeps a file of the run, if anything does.

    Attributes:
        plan: What fixes the privacy of the run.
        continued: Whether that is the plan of the `fit` before.
        updates: How many updates this call may execute.
        sampler: Who is in a batch, from when `fit` runs.
        in_terminal: Whether somebody looks on at a terminal, from when `fit` runs.
        microbatch: Examples processed at once, or None for a whole update.
    """

    def __init__(
        self,
        model: keras.Model,
        request: FitRequest,
        calibration: Calibration,
        x: Any,
        y: Any,
        validation_data: Any,
        persons: sampling.Persons | None = None,
        moments: Moments | None = None,
        checkpoint: Checkpoint | None = None,
    ):
        self.moments, self.checkpoint = moments or Moments(model, (), ()), checkpoint
        self.unchanged = Unchanged(model, calibration)
        self.persons, self._together = persons, 1  # rows of a person that are averaged before they are clipped
        if persons is not None and request.strategy.per_example:
            self._together = persons.width
            calibration = dataclasses.replace(calibration, rows=persons.width)
        self.model, self.request, self.calibration = model, request, calibration
        self.x, self.y, self.validation_data = x, y, validation_data
        self.strategy: Any = request.strategy
        self.run = model.run
        if self.run.continued(request) is None:
            budget.check_earlier_budgets(self.run, request)
        self.plan = self.make_plan()
        self.noise_std = tuple(calibration.noise_stddevs(self.plan.noise_multiplier))
        self.continued = self.plan is self.run.plan
        self.order = resuming.order_of_rows(self)
        left = self.run.updates_left if self.continued else self.plan.updates
        self.forgone = resuming.forgone(self, left)
        if self.forgone and checkpoint is not None and checkpoint.reserved is not None:
            self.request = request = resuming.after_forgone(request, self.forgone, self.run)
        self.updates = min(request.updates, left - self.forgone)
        steps = model.steps_per_execution
        common = math.gcd(self.updates, request.updates_per_epoch)
        if common % steps:
            raise ValueError(
                "`steps_per_execution` must divide the updates of an epoch and of the whole run, so that the last "
                f"execution stops at the budget. Received: steps_per_execution={steps}, "
                f"{request.updates_per_epoch} updates an epoch, {self.updates} in all. Compile with "
                f"steps_per_execution={max(k for k in range(1, steps) if common % k == 0)}, or pass another "
                "steps_per_epoch."
            )
        self.of_one_size = gradients.of_one_size(self.model, self.strategy.full_precision)
        self.microbatch = self._microbatch()
        self.sampler: Any = None
        self.in_terminal = False
        # Whether the validation data are among the training data.
        self.measures_training_rows = False
        self.adapted = model_checks.adapted(model)
        processes.agree(self)

    def make_plan(self) -> Plan:
        """Returns the plan under which the updates may run; changes nothing."""
        return budget.plan_for(self.run, self.request)

    @contextlib.contextmanager
    def batches(self) -> Iterator[Any]:
        """Endless padded batches; Keras takes as many as there are updates."""
        scheme, run = self.plan.sampling, self.run
        start = run.ledger.position(self.release()) if scheme.by_epoch else run.ledger.updates
        compiles = backend.compiles(self.model)
        shards, held = backend.row_shards()
        expected, deviation = self._drawn()
        largest = scheme.largest_batch if deviation is None else None
        microbatch = self.microbatch and self.microbatch // self._together
        size = sampling.PaddedSize(expected, microbatch, compiles, largest, shards, deviation, bool(self.of_one_size))
        labels, chooser = self.allowed_labels(), self._chooser()
        batches = sampling.Batches(self.sampler, self.x, self.y, size, start, held, labels, chooser)
        with contextlib.closing(batches), batches.reader.telling():
            yield backend.feed(iter(batches), (self.x, self.y, np.zeros(1, "float32")))

    def allowed_labels(self) -> Callable[[Any], Any] | None:
        """Returns what refuses labels for which the bounds of the loss do not hold; None where all are allowed."""
        return losses.label_check(self.model.loss, model_checks.output_shapes(self.model))

    def charge(self) -> Callable[[int], None] | None:
        """Returns the function that charges a number of updates before they are executed."""
        release = self.release()
        return lambda count: self.run.charge(release, count)

    def train_function(self, present: Callable | None, force: bool) -> Callable | None:
        """Returns a train function of its own, `present` if that still serves, or None for Keras'."""
        return None

    def announcement(self) -> str:
        """Returns what `fit` says before it trains."""
        goal = None if self.request.risk is None else risk_budget.words(self.request.risk)
        return statement.announcement(self.plan, self.updates, self.strategy.name, goal)

    def repeats_from_here(self) -> bool:
        """Whether a run with a fixed seed goes on from a file of this moment as if it had not stopped."""
        return True

    def begin(self) -> None:
        """Releases what has to be known before the first update."""

    def default_microbatch(self, largest: int) -> int | None:
        """Returns the examples to process at once when the user does not say: `largest`, or as many as are fastest."""
        strategy, (shards, _) = self.strategy, backend.row_shards()
        inputs = [np.shape(leaf)[1:] for leaf in tree.flatten(columns.first_row(self.x))]
        copies, clips = strategy.augmentation_multiplicity, strategy.per_example
        rows = gradients.default_microbatch(self.model, copies, clips, inputs)
        # Gradients of rows can be larger than their activations: never more at once than an update has.
        return rows and min(rows * shards, largest)

    def _microbatch(self) -> int | None:
        expected, together = math.ceil(self._drawn()[0]), self._together
        size, large = expected * together, math.ceil(expected + 2.5 * math.sqrt(expected)) * together
        rows = self.request.microbatch_size or self.default_microbatch(size)
        if self.of_one_size and not (rows and rows < size):
            # One for almost all draws, a second one for the others.
            large = min(large, (self.plan.sampling.largest_batch or large) * together)
            rows = min(self.request.microbatch_size or large, large)
        elif not rows or rows >= size:
            return None
        elif not self.request.microbatch_size:
            # The last one that a large draw needs is to be nearly full; compiled ones have one shape.
            parts = math.ceil(large / rows) if backend.compiles(self.model) else round(large / rows)
            rows = math.ceil(large / parts)
        return whole_shares(max(1, rows // together), together, self.of_one_size) * together

    def _drawn(self) -> tuple[float, float | None]:
        """Returns how many rows, or persons whose rows lie together, an update is expected to have, and how far off."""
        scheme = self.plan.sampling
        if self.persons is None or self.strategy.per_example:
            return scheme.batch_size, None
        return self.persons.expected_rows(scheme.sampling_probability)

    def _chooser(self) -> sampling.Chooser | None:
        """Returns what chooses the rows of persons."""
        if self.persons is None:
            return None
        secret = randomness.derive(self.run.secret.draws, "rows of persons")
        return sampling.Chooser(self.persons, secret, together=self.strategy.per_example)

    def details(self) -> dict:
        """Returns what fixes the releases beside the plan, as JSON-serializable values."""
        return {}

    def _sampler(self) -> Any:
        seed = int.from_bytes(randomness.derive(self.run.secret.draws, "sampler"), "little")
        # An epoch that goes on has the same permutation.
        return sampling.make_sampler(self.plan.sampling, seed, self.run.epoch_key if self.continued else None)

    def release(self) -> Release:
        """Returns what an update is charged as."""
        return self.plan.release(
            sensitivity=self.calibration.sensitivity,
            strategy=self.strategy.name,
            noise_allocation=self.strategy.noise_allocation,
            stream=self.run.plan_start if self.plan.sampling.by_epoch else 0,
        )

    def fit(self, keras_fit: Callable, callbacks: list, verbose: Any, **validation: Any) -> keras.callbacks.History:
        """Calls Keras' `fit` with batches, callbacks and an optimizer that are ready for the planned updates."""
        validation = validations.check_options(**validation)
        # One that validates more often, or longer, would be waited for.
        processes.compare({"when and how long to validate": repr(sorted(validation.items()))})
        trains, validates = self.request.training_metrics, self.measures_training_rows
        steered = private_monitors(callbacks, trains, validates)
        watched = names_of_own(callbacks) if trains or validates else ()
        ledger, sensitivity = self.run.ledger, self.calibration.sensitivity
        size, (shards, held) = self.plan.sampling.batch_size, backend.row_shards()
        # Of one process.
        validation["validation_batch_size"] = whole_shares(validation["validation_batch_size"]) * len(held) // shards
        backend.release_programs()
        advice.advise(self.model, sensitivity, self.plan.noise_multiplier, self.updates, size)
        verbose = 0 if backend.processes()[0] else verbose
        noted = [] if self.strategy.per_example else losses.parts(self.model.loss)
        with fixed(noted), self.armed(verbose, callbacks), self.batches() as batches, self._precision():
            ledger.steered = tuple(dict.fromkeys([*ledger.steered, *steered]))
            ledger.watched = tuple(dict.fromkeys([*ledger.watched, *watched]))
            if self.measures_training_rows:
                ledger.logged = tuple(dict.fromkeys([*ledger.logged, statement.VALIDATED]))
            return keras_fit(
                batches,
                epochs=self.request.epochs,
                initial_epoch=self.request.initial_epoch,
                steps_per_epoch=self.request.updates_per_epoch,
                callbacks=self._around(callbacks, verbose),
                verbose=verbose,
                shuffle=False,
                validation_data=shared_out(self.validation_data, shards, **validation),
                **validation,
            )

    def _around(self, callbacks: list, verbose: Any) -> list:
        """Returns the user's callbacks behind the one that charges, whose epsilon they log, before those that guard."""
        charge = Charge(
            self.run, self.updates, self.charge(), self.request.training_metrics, bar=verbose in ("auto", 1)
        )
        bound = None if self.calibration.bounds is None else self._hold
        behind = guards.behind(self.model, charge, callbacks, bound, (self.x, self.y))
        if backend.processes()[1] > 1:
            behind.append(processes.Agreement(self.run, [other for other in callbacks if other is not self.checkpoint]))
        return [charge, *callbacks, *behind]

    def _hold(self) -> None:
        """Makes the bounds hold for weights that somebody has set, those of a `fit` of other batches among them."""
        weights.set_loss_divisor(self.model, self.plan.sampling.batch_size)
        self.unchanged.hold()

    def _precision(self) -> contextlib.AbstractContextManager:
        """Returns the context in which the steps are traced and run."""
        # TensorFlow has one switch for all products.
        if self.strategy.full_precision or not backend.mixed_products():
            return backend.full_precision()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def armed(self, verbose: Any, callbacks: Sequence = ()) -> Iterator[None]:
        """Makes the optimizer ready for exactly the planned updates, and no more afterwards."""
        run, optimizer, request = self.run, self.model.optimizer, self.request
        before = run.ledger.to_json()
        example = columns.first_row((self.x, sampling.weight_and_labels(self.y)[1]))
        with compiling.whole_weights():
            validations.build_metrics(self.model, example)
            validations.rehearse(self.model, self.validation_data, example if request.training_metrics else None)
        if request.training_metrics:
            validations.refuse_whole_metrics(self.model, self.persons is not None, self.strategy)
        validates = self.validation_data is not None
        check_monitors(callbacks, self.model, trains=request.training_metrics, validates=validates)
        optimizer.build(self.model.trainable_variables)
        batch_size = self.plan.sampling.batch_size
        weights.project(self.model)
        weights.set_loss_divisor(self.model, 1 if self.strategy.per_example else batch_size)
        declared = isolation.used(
            self.model, *losses.parts(self.model.loss), getattr(self.strategy, "augmentation", None)
        )
        traced = (
            (type(self.strategy), request.strategy_text()),
            self.calibration,
            batch_size,
            self.microbatch,
            request.training_metrics,
            request.noise_generator,
            request.class_weight,
            backend.row_shards(),
            (weights.traced(self.model), penalties.described(self.model)),
            declared,
        )
        if traced != run.traced:
            self.model.train_function = None
        same = request.keeps_strategy(run.request)
        optimizer.attach(self.strategy, self.calibration, batch_size, keep=same)
        key = seeding.begin(self)
        if key is not None and run.journal is not None:
            run.journal.refuse_other_noise(run.ledger)
        run.driver, run.traced, run.executing = self, traced, False
        run.adopt(self.plan, request)
        if self.forgone:
            run.charge(self.release(), self.forgone)
            before = run.ledger.to_json()  # even if no update is made: who is left was never found out
        run.attribute([*self.model.trainable_variables, *self.moments.variables()])
        run.noise_std, run.ledger.seeded = self.noise_std, run.ledger.seeded or request.seed is not None
        by_sample = request.seed is not None and bool(columns.columns_of((self.x, self.y)))
        run.ledger.seeded_by_sample = run.ledger.seeded_by_sample or by_sample
        run.ledger.note_ids(request.persons)
        run.ledger.generators = tuple(dict.fromkeys((*run.ledger.generators, request.noise_generator)))
        run.ledger.adapted = tuple(sorted({*run.ledger.adapted, *self.adapted}))
        run.ledger.row_wise = tuple(sorted({*run.ledger.row_wise, *declared}))
        own_parts = budget.unchecked(self.strategy, self.plan.accountant)
        run.ledger.unchecked = tuple(sorted({*run.ledger.unchecked, *own_parts}))
        if self.calibration.bounds is not None:
            own = registry.declared(self.model, self.model.loss)
            run.ledger.bounded = tuple(sorted({*run.ledger.bounded, *own}))
        untouched, self.in_terminal = None, in_terminal(verbose)
        try:
            optimizer.arm(self.noise_std, self.updates, key, run.repeatable, request.noise_generator)
            if self.moments.layers:
                self._release_moments(verbose)
                before = run.ledger.to_json()
            self.sampler = self._sampler()
            run.epoch_key, run.order = getattr(self.sampler, "key", None), self.order
            self.begin()
            if verbose:
                notice = [statement.TRAINING_METRICS] if request.training_metrics else []
                if self.forgone:
                    notice.append(resuming.notice_of_forgone(self.forgone))
                notice += advice.of_speed(self.model, self.strategy)
                if self.in_terminal and self.model.train_function is None and not self.model.run_eagerly:
                    notice.append("The first update waits until it is compiled.")
                sys.stdout.write("\n".join([self.announcement(), *notice]) + "\n")
            untouched = weights.fingerprint(self.model)
            yield
        except BaseException:
            # A first update that left no trace, as when it fails while it is compiled, has released nothing. The
            # counter alone would not show it: an update can be cut short between the weights and the counter.
            if untouched is not None and weights.fingerprint(self.model) == untouched and not run.executing:
                self.forget(before)
            raise
        finally:
            optimizer.disarm()
            seeding.end(self.model, run.secret)
            run.secret.stand = run.secret.basis and seeding.stand_of(self.model)
            self.x = self.y = self.validation_data = self.checkpoint = None

    def _release_moments(self, verbose: Any) -> None:
        if verbose:
            sys.stdout.write("\n".join(self.moments.announcement()) + "\n")
            sys.stdout.flush()
        if self.checkpoint is not None:
            self.checkpoint.begin(self.model)  # a file from which to go on, should this be stopped
        self.moments.release(self.x)

    def forget(self, ledger: str) -> None:
        """Takes back what was charged for an update that was never made."""
        self.run.ledger.hold(Ledger.from_json(ledger))

    def _by_keras(self) -> bool:
        """Whether Keras' own step makes the updates: not where a gradient of the user's could read metrics in it."""
        plain = self.microbatch is None and not self.strategy.uses_own_step
        return plain and not registry.declared(self.model, self.model.loss)

    def step(self, state_and_data: tuple, keras_step: Callable) -> Any:
        """Traces one training step: Keras' own, or that of the strategy."""
        self.unchanged.check()
        self.model.optimizer.check()  # callbacks may have set what scales the loss
        *state, (x, y, weight) = state_and_data
        # Bytes go to the device as they are.
        x = tree.map_structure(lambda leaf: keras.ops.cast(leaf, "float32"), x)
        state_and_data = (*state, (x, y, weight))
        with isolation.isolated(self.model):
            if self._by_keras():
                result = keras_step(*state_and_data)
                return result if self.request.training_metrics else backend.untracked(self.model, state, result)
            return backend.private_train_step(
                self.model,
                *state_and_data,
                strategy=self.strategy,
                calibration=self.calibration,
                batch_size=self.plan.sampling.batch_size,
                microbatch=self.microbatch,
            )
