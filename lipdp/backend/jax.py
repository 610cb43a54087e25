"""The functions of `lipdp.backend` for JAX."""

import contextlib
import gc
import os
from functools import partial

import jax
import jax.numpy as jnp
import keras

from lipdp import _keras
from lipdp.backend import noise, switches
from lipdp.backend.convolutions_jax import channels_last
from lipdp.backend.devices_jax import row_shards
from lipdp.backend.unread import unread_metrics

_MANY_PARTS = 16_000
_TOO_MANY_PARTS = 30_000
_needed = {"parts": 0}  # what was left the last time


@partial(jax.jit, static_argnums=(0, 2))
def normal(size, key, generator="chacha20"):
    """Draws independent standard normals: see `noise.normal`."""
    return noise.normal(size, key, generator)


normal_at = noise.normal_at
ratchet = jax.jit(noise.ratchet)
subkey = jax.jit(noise.subkey)


class Forward:
    """The forward pass of a training step.

    Args:
        model: The model.
        trainable, non_trainable: Values of the model's variables; default: the present ones.
    """

    def __init__(self, model, trainable=None, non_trainable=None):
        self.model = model
        self._trainable = [v.value for v in model.trainable_variables] if trainable is None else list(trainable)
        self._rest = [v.value for v in model.non_trainable_variables] if non_trainable is None else list(non_trainable)

    def __call__(self, x):
        """Returns the outputs, the losses that layers added, and the new non-trainable values."""
        return self._run(self._trainable, x)

    def _run(self, trainable, x):
        training = {"training": True} if _keras.takes(self.model, "training") else {}
        y_pred, updated, added = self.model.stateless_call(trainable, self._rest, x, return_losses=True, **training)
        return y_pred, added, updated

    def gradient(self, x, total):
        """Differentiates `total(y_pred, added_losses)`, a scalar and anything else, by the trainable variables.

        Returns:
            The gradients, the scalar, what came with it, the outputs, and the new non-trainable values.
        """

        def run(trainable):
            y_pred, added, updated = self._run(trainable, x)
            value, results = total(y_pred, added)
            return value, (results, y_pred, updated)

        (value, (results, y_pred, updated)), gradients = jax.value_and_grad(run, has_aux=True)(self._trainable)
        return gradients, value, results, y_pred, updated


def private_train_step(model, state, data, *, strategy, calibration, batch_size: int, microbatch: int | None):
    """One update: the sums of a strategy over all microbatches, applied once.

    Called inside the compiled step in place of Keras' own `train_step`.
    """
    trainable, non_trainable, optimizer_variables, metrics = state
    optimizer = model.optimizer
    with keras.StatelessScope(state_mapping=zip(optimizer.variables, optimizer_variables, strict=True)):
        strategy_state = [jnp.asarray(v.value) for v in optimizer.strategy_state]
        secret = jnp.asarray(optimizer.noise_key.value)
    number = _to_compute(data[2], microbatch) if microbatch else 1

    def part(i, non_trainable, metrics, data):
        forward = Forward(model, trainable, non_trainable)
        with unread_metrics():
            totals, seen, non_trainable = strategy.microbatch(
                calibration, forward, strategy_state, i, secret, data, batch_size
            )
        # The mean over microbatches of number * loss is the sum over them, which is the loss of the update.
        if model.run.driver.request.training_metrics:
            metrics = _keras.update_metrics(model, metrics, totals[2] * number, *seen)
        return totals, list(non_trainable), metrics

    if microbatch is None:
        (sums, counts, _), non_trainable, metrics = part(0, non_trainable, metrics, data)
    else:

        def body(i, carry):
            totals, non_trainable, metrics = carry
            rows = jax.tree.map(partial(_rows_of, i, microbatch), data)
            new, non_trainable, metrics = part(i, non_trainable, metrics, rows)
            return jax.tree.map(jnp.add, totals, new), non_trainable, metrics

        body = channels_last(body) if _on_cpu() else body
        # In float32 also where JAX computes in float64 by default: the state of the optimizer is.
        counts = [] if calibration.count_noise_std is None else [jnp.zeros((), "float32")]
        zeros = ([jnp.zeros_like(v) for v in trainable], counts, jnp.zeros(()))
        start = (zeros, list(non_trainable), list(metrics))
        (sums, counts, _), non_trainable, metrics = jax.lax.fori_loop(0, number, body, start)
    gradients = [*strategy.average(sums, strategy_state, batch_size), *counts]
    trainable, optimizer_variables = optimizer.stateless_apply(optimizer_variables, gradients, trainable)
    with keras.StatelessScope(state_mapping=zip(model.metrics_variables, metrics, strict=True)):
        logs = model.get_metrics_result()
    return logs, (trainable, non_trainable, optimizer_variables, metrics)


def untracked(model, state, result):
    """Returns what Keras' own training step has returned, with the metrics as they were before it."""
    logs, (*changed, _) = result
    return logs, (*changed, state[0][-1])


def metrics_written(model):
    """Metrics of a compiled step keep nothing that it does not hand on."""
    return contextlib.nullcontext()


def _to_compute(weight, microbatch):
    """Returns the number of microbatches up to the last row that counts: drawn rows come first.

    A sum of the weights would be too few where some drawn rows do not count.
    """
    shards, _ = row_shards()
    shared = weight.reshape(shards, -1)
    filled = jnp.max(jnp.where(shared > 0, jnp.arange(1, shared.shape[1] + 1), 0))
    return jnp.maximum(1, -(-filled // (microbatch // shards)))


def _rows_of(number, microbatch, leaf):
    """Returns the rows of a microbatch: the next ones of each device, so that none is moved to another."""
    shards, _ = row_shards()
    shared = leaf.reshape(shards, leaf.shape[0] // shards, *leaf.shape[1:])
    each = microbatch // shards
    rows = jax.lax.dynamic_slice_in_dim(shared, number * each, each, axis=1)
    return rows.reshape(microbatch, *leaf.shape[1:])


def loss_gradient(model):
    """Returns a function of a batch `(x, y)` of one example: its gradient for each trainable variable."""

    @jax.jit
    def gradient(trainable, other, x, y):
        def loss(trainable):
            y_pred, _ = model.stateless_call(trainable, other, x, training=True)
            return jnp.sum(model.loss.call(y, *jax.tree.leaves(y_pred)))

        return jax.grad(loss)(trainable)

    def present(x, y):
        trainable, other = ([v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables))
        return gradient(trainable, other, x, y)

    return present


def gradient_norms(model):
    """Returns a function of a batch `(x, y)` of one example: the gradient norm for each trainable variable."""
    gradient = loss_gradient(model)
    lengths = jax.jit(lambda gradients: jnp.stack([jnp.linalg.norm(g.reshape(-1)) for g in gradients]))
    return lambda x, y: lengths(gradient(x, y))


def compiles(model) -> bool:
    """Returns whether a new batch shape costs a compilation."""
    return True


def release_programs():
    """Gives back the programs of models that are gone, before they are too many.

    They stay in memory until Python looks for cycles, which has nothing to do with how many there are; those of single
    operations, which eager code makes, stay for good. Linux allows a process 65530 parts of memory, a program takes
    dozens of them, and where no more can be had XLA ends the process.
    """
    if _parts() <= max(_MANY_PARTS, _needed["parts"] + _MANY_PARTS // 2):
        return  # looking for garbage at each `fit` would cost more than a short one
    gc.collect()
    if _parts() > _TOO_MANY_PARTS:
        jax.clear_caches()  # what is still needed is compiled again
    _needed["parts"] = _parts()


def _parts() -> int:
    """Returns how many parts the memory of this process has."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: maps.read(2**16), b""))
    except OSError:  # not Linux
        return 0


def microbatch_bytes(model, clips: bool = True) -> int | None:
    """Returns the bytes of activations that one microbatch should have, or None for no limit.

    Measured on CPUs with one and two cores, where a loop is one call and few rows stay in the cache.
    """
    return 2 * 2**20 if _on_cpu() else None


def cpu_threads() -> int | None:
    """Returns how many threads an operation may use where it runs on a CPU; None where it does not."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return available or 1 if _on_cpu() else None


def _on_cpu() -> bool:
    return jax.devices()[0].platform == "cpu"


def feed(batches, example):
    """Returns endless batches in the form in which `fit` takes them; `example` is one of them."""
    return batches


def value_of(variable):
    """Returns what a variable holds, as a NumPy array."""
    return jax.device_get(variable.value)


def mixed_products() -> bool:
    """Returns whether products of one step may differ in precision."""
    return True


def full_precision():
    """Returns a context in which float32 products are computed in float32: TF32 exceeds the slack of the bounds."""
    switches.refuse_fast_math()
    return jax.default_matmul_precision("highest")


def concrete():
    """Returns a context in which operations on numbers give numbers, also while a step is traced around it."""
    return jax.ensure_compile_time_eval()


def large_products() -> bool:
    """Returns whether one large product beats many small ones, though its factor has to be put together first.

    A GPU starts each one anew, and its compiler tries tens of ways for each.
    """
    return jax.devices()[0].platform == "gpu"


def rows_alike() -> int:
    """Returns of what numbers of rows have to be multiples so that products round all rows alike: see `in_tiles`."""
    return 1


def in_tiles(function, rows, size: int = 48):
    """Returns what a function makes of rows. XLA rounds those on the left of a product alike, the last ones too."""
    return function(rows)


def pullback(model, xla: bool = False, training: bool = False):
    """Returns the function from inputs and a cotangent to outputs and the gradients of inputs and trainable variables.

    Integer inputs have no gradient; None stands in its place. `training`: what the model is called with.
    """
    real = [not jnp.issubdtype(t.dtype, jnp.integer) for t in model.inputs]

    @jax.jit
    def pull(trainable, other, xs, cotangent):
        def outputs(trainable, floats):
            floats = iter(floats)
            given = [next(floats) if r else x for r, x in zip(real, xs, strict=True)]
            return model.stateless_call(trainable, other, given if len(given) > 1 else given[0], training=training)[0]

        y, back = jax.vjp(outputs, trainable, [x for r, x in zip(real, xs, strict=True) if r])
        variables, inputs = back(cotangent)
        return y, inputs, variables

    def call(xs, cotangent):
        state = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]
        y, inputs, variables = pull(*state, xs, cotangent)
        inputs = iter(inputs)
        return y, [next(inputs) if r else None for r in real], variables

    return call


def compiled(function, variables):
    """Returns `function`, whose arguments are tensors, compiled.

    Args:
        function: reads `variables` and changes none.
        variables: the Keras variables that it reads.
    """

    @jax.jit
    def with_values(values, *arguments):
        # As arguments: read from the variables, values would become constants of the compiled function.
        with keras.StatelessScope(state_mapping=zip(variables, values, strict=True)):
            return function(*arguments)

    return lambda *arguments: with_values([v.value for v in variables], *arguments)


@contextlib.contextmanager
def state_kept(model, state):
    """Inside, a train function of Keras that fails leaves a model the state that it was given.

    Keras takes it off the variables before an update, and puts back only what an update has returned. What an update
    has begun to compute with is used up; what was never compiled is whole. A step that is not compiled leaves its state
    whole wherever it fails, and the user's code in it may have seen the noisy gradient: its charge stays.
    """
    try:
        yield
    except BaseException:
        if model.run_eagerly or not model.jit_compile:
            model.run.executing = True
        if not any(value.is_deleted() for value in jax.tree.leaves(state)):
            kinds = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
            for variables, values in zip((*kinds, model.metrics_variables), state, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)
        raise


def train_function(model, function):
    """Returns the train function that Keras has made, which leaves a model its weights when it cannot be compiled."""

    def guarded(state, iterator):
        with state_kept(model, state):
            return function(state, iterator)

    return guarded


def untuned():
    """Returns a context in which Keras reads arrays without tuning at run time: here it does not tune."""
    return contextlib.nullcontext()


@contextlib.contextmanager
def weights_kept(model):
    """Inside, `evaluate` and `predict` of Keras leave a model its weights when they fail.

    They take them off the variables until the end. Buffers that a step has used up are in what it has returned.
    """
    model.jax_state_sync()  # a callback may call this between two updates, when the variables are empty
    before = [(variable, variable.value) for variable in (*model.variables, *model.metrics_variables)]
    try:
        yield
    except BaseException as error:
        model.jax_state_sync()
        for variable, value in before:
            if not value.is_deleted():
                variable.assign(value)
        shards, _ = row_shards()
        if shards > 1 and isinstance(error, ValueError) and "partitioned" in str(error):
            raise ValueError(
                f"Devices take as many rows of a batch each. Received: {shards} of them, and a batch that they cannot "
                "share. Call this after the scope of the distribution has ended, or after "
                f"keras.distribution.set_distribution(None); or make rows and batch_size multiples of {shards}."
            ) from error
        raise
