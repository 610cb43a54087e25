"""One call of `fit`: everything is checked first, then charged, then executed."""

import contextlib
import gc
import hashlib
import json
import math
import sys
from dataclasses import dataclass

import keras
import numpy as np
from keras import tree

from lipdp import backend, gradients, losses, strategies
from lipdp import sampling as samplers
from lipdp.layers import ClipGradient
from lipdp.privacy import statement
from lipdp.privacy.ledger import Ledger, Release
from lipdp.privacy.plan import Plan
from lipdp.training import model_checks
from lipdp.training.callbacks import Charge
from lipdp.training.importance import Conductor, plan_for
from lipdp.training.state import Settings


@dataclass(frozen=True)
class Session:
    """A checked call of `fit`, ready to run.

    Attributes:
        model: The model to train.
        plan: What fixes the privacy of the run.
        request: The arguments that asked for the plan.
        x, y: Training data as arrays.
        sampler: Who is in each update.
        layout: How many rows a batch is padded to.
        updates: How many updates this call may execute.
        settings: Constants of the compiled step.
        calibration: Noise of one update at noise multiplier 1.
        steps_per_epoch: Updates per epoch.
        validation_data: As given, or the part that was split off.
        strategy: The strategy.
        seed: The user's seed, or None.
        conductor: What carries out the updates of an adaptive strategy; None for the others.
    """

    model: object
    plan: Plan
    request: dict
    x: object
    y: np.ndarray
    sampler: object
    layout: samplers.Layout
    updates: int
    settings: Settings
    calibration: strategies.Calibration
    steps_per_epoch: int
    validation_data: object
    strategy: strategies.Strategy
    seed: int | None
    conductor: Conductor | None

    @classmethod
    def prepare(
        cls,
        model,
        x,
        y,
        *,
        batch_size,
        epochs,
        initial_epoch,
        steps_per_epoch,
        validation_split,
        validation_data,
        epsilon,
        noise_multiplier,
        delta,
        strategy,
        accountant,
        physical_batch_size,
        training_metrics,
        seed,
        sampling,
        examples_per_person,
    ) -> "Session":
        """Checks every argument and plans the run. Changes nothing; see `DP_Model.fit` for the arguments."""
        model_checks.check_model(model)
        model_checks.check_numbers(batch_size, epochs, initial_epoch, steps_per_epoch, physical_batch_size, seed)
        strategy = strategies.get(strategy)
        sampling = samplers.get(sampling)
        x, y = samplers.as_arrays(x, y, len(tree.flatten(model.inputs)[0].shape))
        model_checks.check_shapes(model, x)
        if validation_split and validation_data is None:
            (x, y), validation_data = samplers.split(x, y, validation_split)
        if not strategy.per_example:
            losses.get(model.loss)  # the others have no Lipschitz constant; this says what to use instead
        losses.check_per_example(model.loss, y, model_checks.output_shape(model))
        calibration = strategy.calibrate(model, model.loss, batch_size)
        model_checks.check_weights(model)

        steps = steps_per_epoch or math.ceil(len(y) / batch_size)
        strategy.check_fit(
            sampling=sampling.name,
            examples_per_person=examples_per_person,
            steps_per_epoch=steps_per_epoch,
            steps_per_execution=model.steps_per_execution,
        )
        bound = sampling.bind(strategy.declared_examples(len(y)), batch_size, examples_per_person)
        request = {
            "num_examples": bound.num_examples,
            "batch_size": batch_size,
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
            "delta": delta,
            "accountant": accountant,
            "strategy": [strategy.name, strategy.get_config()],
            "sampler": sampling.name,
            "capacity": bound.capacity,
            "examples_per_person": examples_per_person,
        }
        wanted = steps * (epochs - initial_epoch)
        if strategy.adaptive:
            plan = plan_for(model.run, strategy, request, wanted, steps)
        else:
            plan = model.run.plan_for(request, wanted)
        calibration.deviations(plan.noise_multiplier)
        left = model.run.updates_left if plan is model.run.plan else plan.updates
        updates = min(wanted, left)
        if updates % model.steps_per_execution or steps % model.steps_per_execution:
            raise ValueError(
                "`steps_per_execution` must divide the updates of an epoch and of the whole run, so that the last "
                f"execution stops at the budget. Received: steps_per_execution={model.steps_per_execution}, "
                f"{steps} updates an epoch, {updates} in all."
            )
        chunk = physical_batch_size
        if chunk is None and strategy.per_example:
            chunk = gradients.default_rows(model, strategy.views)
            # Gradients of rows can be larger than their activations: never more at once than an update has, which
            # with importance sampling is more than a batch.
            chunk = chunk and min(chunk, 2 * batch_size if strategy.adaptive else batch_size)
        conductor = None
        if strategy.adaptive:
            compiles = backend.compiles(model)
            conductor = Conductor(model, strategy, plan, request, x, y, steps, chunk, compiles, seed)
        chunk = chunk if chunk and chunk < batch_size else None
        return cls(
            model=model,
            plan=plan,
            request=request,
            x=x,
            y=y,
            sampler=samplers.make_sampler(plan.sampling, seed, model.run.pass_key if plan is model.run.plan else None),
            layout=samplers.Layout(
                plan.sampling.batch_size, chunk, backend.compiles(model), plan.sampling.largest_batch
            ),
            updates=updates,
            settings=Settings(
                plan.sampling.batch_size, chunk, training_metrics, json.dumps(request["strategy"]), _traced(model)
            ),
            calibration=calibration,
            steps_per_epoch=steps,
            validation_data=validation_data,
            strategy=strategy,
            seed=seed,
            conductor=conductor,
        )

    @contextlib.contextmanager
    def armed(self, verbose):
        """Makes the optimizer ready for exactly the planned updates, and no more afterwards."""
        run, optimizer = self.model.run, self.model.optimizer
        before = run.ledger.to_json()
        noise_std = self.calibration.deviations(self.plan.noise_multiplier)
        optimizer.build(self.model.trainable_variables)
        iterations = int(optimizer.iterations.numpy())
        # A continued, uninterrupted stream of noise stays as it is, so that a resumed run repeats.
        resumed = self.seed is not None and 0 < run.ledger.updates == iterations and optimizer.noise_key.numpy().any()
        key = None if resumed else samplers.noise_key(self.seed, run.ledger.updates)
        _project(self.model)
        _set_clips(self.model, 1 if self.strategy.own_step else self.plan.sampling.batch_size)
        if self.settings != run.settings:
            self.model.train_function = None
        same = run.request is not None and run.request["strategy"] == self.request["strategy"]
        initial = self.strategy.initial_state(self.model.trainable_variables)
        optimizer.attach(self.strategy, self.plan.sampling.batch_size, initial, keep=same)
        run.strategy, run.conductor = self.strategy, self.conductor
        if self.conductor is not None:
            # From here on the ledger stays as it is whatever happens: numbers are released on the host.
            before = None
        run.adopt(self.plan, self.request)
        run.pass_key = getattr(self.sampler, "key", None)  # a resumed pass goes on with the same permutation
        run.executing = False
        run.settings, run.noise_std = self.settings, tuple(noise_std)
        run.seeded = run.seeded or self.seed is not None
        optimizer.arm(noise_std, self.updates, key, repeatable=self.seed is not None)
        if self.conductor is not None:
            self.conductor.begin()
        if verbose:
            announce = statement.importance_announcement if self.strategy.adaptive else statement.announcement
            sys.stdout.write(announce(self.plan, self.updates) + "\n")
            if self.settings.training_metrics:
                sys.stdout.write(statement.TRAINING_METRICS + "\n")
        untouched = _fingerprint(self.model)
        run.armed = True
        try:
            yield self
        except BaseException:
            # A first update that left no trace, as when it fails while it is compiled, has released nothing. The
            # counter alone would not show it: an update can be cut short between the weights and the counter.
            unchanged = before is not None and untouched is not None and _fingerprint(self.model) == untouched
            if unchanged and not run.executing:
                run.ledger = Ledger.from_json(before)
            raise
        finally:
            optimizer.disarm()
            run.armed, run.conductor = False, None
            # Keras leaves the data iterator in a cycle, and TensorFlow warns when it outlives Python.
            gc.collect()

    @contextlib.contextmanager
    def batches(self):
        """Endless padded batches; Keras takes as many as there are updates."""
        if self.conductor is not None:
            yield backend.feed(self.conductor.placeholders(), self.x, self.y)
            return
        run = self.model.run
        by_epoch = self.plan.sampling.by_epoch
        start = run.ledger.position(self._release()) if by_epoch else run.ledger.updates
        with contextlib.closing(samplers.Batches(self.sampler, self.x, self.y, self.layout, start)) as batches:
            yield backend.feed(iter(batches), self.x, self.y)

    def callbacks(self, given) -> list:
        """The user's callbacks behind the one that charges, so that they find epsilon in their logs."""
        given = [] if given is None else given if isinstance(given, (list, tuple)) else [given]
        # A conductor charges on its own.
        release = self._release() if self.conductor is None else None
        return [Charge(self.model.run, release, self.updates), *given]

    def _release(self) -> Release:
        return self.plan.release(
            sensitivity=self.calibration.sensitivity,
            strategy=self.strategy.name,
            noise_allocation=self.strategy.noise,
            stream=self.model.run.plan_start if self.plan.sampling.by_epoch else 0,
        )


def _traced(model) -> str:
    """A digest of what a compiled step keeps from when it was traced, and what may change without `compile`."""
    parts = [model.loss, model.steps_per_execution]
    for layer in model._flatten_layers(include_self=False):
        try:
            parts.append(layer.get_config())
        except NotImplementedError:  # a layer of the user's without one
            parts.append(id(layer))
    try:
        parts[0] = keras.saving.serialize_keras_object(model.loss)
    except Exception:  # a function that cannot be written
        parts[0] = id(model.loss)
    return hashlib.sha256(json.dumps(parts, default=repr).encode()).hexdigest()


def _fingerprint(model) -> bytes | None:
    """A digest of all weights and optimizer variables, or None where one cannot be read."""
    digest = hashlib.sha256()
    for variable in (*model.weights, *model.optimizer.variables):
        try:
            digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable.value)).tobytes())
        except Exception:  # JAX takes the values out of the variables while it trains
            return None
    return digest.digest()


def _project(model) -> None:
    """Brings weights that were set by hand back into their balls; leaves the others bit for bit."""
    for variable in model.weights:
        constraint = getattr(variable, "constraint", None)
        if constraint is None:
            continue
        value = keras.ops.convert_to_numpy(variable)
        if not (hasattr(constraint, "holds") and constraint.holds(value)):
            variable.assign(constraint(variable))


def _set_clips(model, batch_size: int) -> None:
    """Tells the layers that clip cotangents by what the loss of one example is divided."""
    for layer in model._flatten_layers():
        if isinstance(layer, ClipGradient):
            layer.scale.assign(1.0 / batch_size)
