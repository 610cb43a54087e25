"""One call of `fit`: everything is checked first, then charged, then executed."""

import contextlib
import difflib
import gc
import hashlib
import inspect
import json
import math
import sys
from dataclasses import dataclass

import keras
import numpy as np
from keras import tree

from lipdp import backend, losses, strategies
from lipdp import sampling as samplers
from lipdp.accounting.mechanism import EPOCH_SAMPLERS
from lipdp.importance import Conductor, plan_for
from lipdp.layers import ClipGradient
from lipdp.ledger import Ledger, Release
from lipdp.plan import Plan
from lipdp.run import Settings

_SAMPLING = {
    "poisson": "Poisson sampling",
    "truncated_poisson": "truncated Poisson sampling",
    "fixed_size": "batches of constant size",
    "shuffle": "shuffled epochs, NOT amplified",
    "fixed_order": "epochs in fixed order, NOT amplified",
}


def refuse_arguments(unknown: dict, *, shuffle, class_weight, sample_weight) -> None:
    """Refuses what Keras' `fit` knows and a private one cannot do, and what nobody knows."""
    for name in unknown:
        known = [p for p in inspect.signature(_fit_signature()).parameters if p not in ("self", "unknown")]
        close = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean `{close[0]}`?" if close else f" It takes: {', '.join(known)}."
        raise TypeError(f"fit() got an unexpected keyword argument '{name}'.{hint}")
    for name, value in (("sample_weight", sample_weight), ("class_weight", class_weight)):
        if value is not None:
            raise ValueError(
                f"`{name}` multiplies an example's gradient and so its sensitivity. Received: {name} given. Leave it "
                "out; to weight classes, declare priors in the loss where it has them."
            )
    if shuffle is not None:
        raise ValueError(
            "`shuffle` has no meaning here: who is in a batch is what the accountant charges for. Received: "
            f"shuffle={shuffle!r}. Leave it out for Poisson samples; `sampling='shuffle'` shuffles, at its price."
        )


def _fit_signature():
    from lipdp.model import DP_Model

    return DP_Model.fit


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
        if not model.compiled or model.loss is None:
            raise ValueError("Call `compile(optimizer, loss=...)` with a lipdp loss before `fit`.")
        if backend.replicas(model) > 1:
            raise ValueError(
                "Noise would be drawn once per replica instead of once per update. Received: a distribution over "
                f"{backend.replicas(model)} devices. Build and train the model without a distribution strategy."
            )
        for name, value in (
            ("batch_size", batch_size),
            ("epochs", epochs),
            ("steps_per_epoch", steps_per_epoch),
            ("physical_batch_size", physical_batch_size),
        ):
            _positive_integer(name, value, optional=name in ("steps_per_epoch", "physical_batch_size"))
        if initial_epoch < 0 or initial_epoch >= epochs:
            raise ValueError(
                "`initial_epoch` must lie before the last epoch. Received: "
                f"initial_epoch={initial_epoch!r}, epochs={epochs!r}."
            )
        if seed is not None and (not isinstance(seed, int) or seed < 0):
            raise ValueError(f"`seed` must be a non-negative integer or None. Received: seed={seed!r}.")
        strategy = strategies.get(strategy)
        sampling = samplers.get(sampling)
        x, y = samplers.as_arrays(x, y, len(tree.flatten(model.inputs)[0].shape))
        _check_shapes(model, x)
        if validation_split and validation_data is None:
            (x, y), validation_data = samplers.split(x, y, validation_split)
        if not strategy.per_example:
            losses.get(model.loss)  # the others have no Lipschitz constant; this says what to use instead
        losses.check_per_example(model.loss, y, _output_shape(model))
        calibration = strategy.calibrate(model, model.loss, batch_size)
        _check_weights(model)

        steps = steps_per_epoch or math.ceil(len(y) / batch_size)
        declared = len(y)
        if strategy.adaptive:
            if sampling.name != "poisson" or examples_per_person != 1:
                raise ValueError(
                    f"{type(strategy).__name__} draws by the norms of gradients, independently for each example, and "
                    f"no cost is known for persons with several. Received: sampling={sampling.name!r}, "
                    f"examples_per_person={examples_per_person!r}. Leave both out, or use another strategy."
                )
            declared = strategy.declared_examples(len(y))
            if strategy.count_noise is not None and steps_per_epoch is None:
                raise ValueError(
                    "The number of examples is private (`count_noise`), so the updates of an epoch cannot follow "
                    "from it. Pass a number of your own to fit(steps_per_epoch=...)."
                )
            if model.steps_per_execution != 1:
                raise ValueError(
                    f"{type(strategy).__name__} conducts each update on its own. Received: steps_per_execution="
                    f"{model.steps_per_execution}. Leave it out in `compile`."
                )
        request = {
            "num_examples": declared,
            "batch_size": batch_size,
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
            "delta": delta,
            "accountant": accountant,
            "strategy": [strategy.name, strategy.get_config()],
            "sampler": sampling.name,
            "capacity": sampling.largest(batch_size) if sampling.name == "truncated_poisson" else None,
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
        conductor = None
        if strategy.adaptive:
            compiles = backend.compiles(model)
            conductor = Conductor(model, strategy, plan, request, x, y, steps, physical_batch_size, compiles, seed)
        chunk = physical_batch_size if physical_batch_size and physical_batch_size < batch_size else None
        return cls(
            model=model,
            plan=plan,
            request=request,
            x=x,
            y=y,
            sampler=sampling.sampler(
                plan.num_examples, plan.batch_size, seed, model.run.pass_key if plan is model.run.plan else None
            ),
            layout=samplers.Layout(plan.batch_size, chunk, backend.compiles(model), sampling.largest(batch_size)),
            updates=updates,
            settings=Settings(plan.batch_size, chunk, training_metrics, json.dumps(request["strategy"])),
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
        _set_clips(self.model, 1 if self.strategy.per_example else self.plan.batch_size)
        if self.settings != run.settings:
            self.model.train_function = None
        same = run.request is not None and run.request["strategy"] == self.request["strategy"]
        initial = self.strategy.initial_state(self.model.trainable_variables)
        optimizer.attach(self.strategy, self.plan.batch_size, initial, keep=same)
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
            sys.stdout.write(self._announcement() + "\n")
        untouched = _fingerprint(self.model)
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
            run.conductor = None
            # Keras leaves the data iterator in a cycle, and TensorFlow warns when it outlives Python.
            gc.collect()

    @contextlib.contextmanager
    def batches(self):
        """Endless padded batches; Keras takes as many as there are updates."""
        if self.conductor is not None:
            yield self.conductor.placeholders()
            return
        run = self.model.run
        passes = self.plan.sampler in EPOCH_SAMPLERS
        start = run.ledger.position(self._release()) if passes else run.ledger.updates
        with contextlib.closing(samplers.Batches(self.sampler, self.x, self.y, self.layout, start)) as batches:
            yield iter(batches)

    def callbacks(self, given) -> list:
        """The user's callbacks behind the one that charges, so that they find epsilon in their logs."""
        given = [] if given is None else given if isinstance(given, (list, tuple)) else [given]
        # A conductor charges on its own.
        release = self._release() if self.conductor is None else None
        return [_Charge(self.model.run, release, self.updates, self.plan), *given]

    def _release(self) -> Release:
        return Release(
            sampling_probability=self.plan.sampling_probability,
            noise_multiplier=self.plan.noise_multiplier,
            sampler=self.plan.sampler,
            num_examples=self.plan.num_examples,
            batch_size=self.plan.batch_size,
            neighbouring_relation=self.plan.neighbouring_relation,
            strategy=self.strategy.name,
            noise_allocation=self.strategy.noise,
            sensitivity=self.calibration.sensitivity,
            capacity=self.plan.capacity,
            stream=self.model.run.plan_start if self.plan.sampler in EPOCH_SAMPLERS else 0,
        )

    def _announcement(self) -> str:
        plan = self.plan
        budget = "" if plan.epsilon is None else f" for epsilon={plan.epsilon:g}, delta={plan.delta:g}"
        most = plan.examples_per_person
        persons = "" if most == 1 else f" Epsilon is for a person with at most {most} examples."
        lines = [
            f"Private training: noise multiplier {plan.noise_multiplier:.5g}{budget}; {self.updates} updates of "
            f"{plan.batch_size} expected examples out of {plan.num_examples} ({_SAMPLING[plan.sampler]}).{persons}"
        ]
        if self.conductor is not None:
            lines = [
                f"Private training by importance sampling, noise multiplier at most about {plan.noise_multiplier:.5g}"
                f"{budget}; {self.updates} updates of about {plan.batch_size} examples out of {plan.num_examples}."
            ]
        if self.settings.training_metrics:
            lines.append(
                "The loss and metrics shown without the prefix val_ are computed on the private training data and "
                "are NOT covered by epsilon; fit(training_metrics=False) leaves them out."
            )
        return "\n".join(lines)


class _Charge(keras.callbacks.Callback):
    """Charges each update before it is executed, and stops after the last one allowed."""

    def __init__(self, run, release, updates: int, plan):
        super().__init__()
        self._run, self._release, self._left, self._plan = run, release, updates, plan

    def on_train_batch_begin(self, batch, logs=None):
        count = self.model.steps_per_execution
        if count > self._left:
            raise RuntimeError("The privacy budget of this run is spent; no update was executed.")
        self._left -= count
        if self._release is not None:
            self._run.ledger.charge(self._release, count)

    def on_train_batch_end(self, batch, logs=None):
        self._run.executing = True
        if logs is not None and "updates" in logs:
            logs["updates"] = self._run.ledger.updates
        if not self._left:
            self.model.stop_training = True
        if self._run.settings.training_metrics and not self._run.logged:
            self._run.logged = tuple(logs or ())

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs.pop("updates", None)
            logs["epsilon"] = self._run.privacy().spent()


def _positive_integer(name: str, value, optional: bool) -> None:
    if value is None and optional:
        return
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}.")


def _output_shape(model) -> tuple:
    shape = model.output_shape
    if not isinstance(shape, tuple) or len(model.outputs) != 1:
        raise ValueError(f"The model must have one output. Received: model '{model.name}' with {len(model.outputs)}.")
    return shape


def _check_shapes(model, x) -> None:
    expected = [tuple(t.shape) for t in tree.flatten(model.inputs)]
    received = [leaf.shape for leaf in tree.flatten(x)]
    fits = len(expected) == len(received) and all(
        len(e) == len(r) and all(a is None or a == b for a, b in zip(e[1:], r[1:], strict=True))
        for e, r in zip(expected, received, strict=False)
    )
    if not fits:
        raise ValueError(f"The data do not fit the model's inputs. Expected shapes: {expected}. Received: {received}.")


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


def _check_weights(model) -> None:
    optimizer = model.optimizer
    if optimizer.built and [id(v) for v in optimizer._trainable_variables] != [
        id(v) for v in model.trainable_variables
    ]:
        raise ValueError(
            "The trainable weights are not those the optimizer was built for: a layer was frozen or released since. "
            "Call `compile` again; the ledger is kept."
        )
    for variable in model.weights:
        if not np.isfinite(keras.ops.convert_to_numpy(variable)).all():
            raise ValueError(f"Weight '{variable.path}' holds NaN or infinity. Build the model anew.")
