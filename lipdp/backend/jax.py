"""The functions of `lipdp.backend` for JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import keras

from lipdp.backend import threefry


@partial(jax.jit, static_argnums=0)
def normal(size, key):
    """Draws independent standard normals: see `threefry.normal`."""
    return threefry.normal(size, key)


ratchet = jax.jit(threefry.ratchet)


def chunked_train_step(model, state, data, chunk: int):
    """One update from a batch of several chunks: gradients are summed, then applied once.

    Called inside the compiled step in place of Keras' own `train_step`.
    """
    trainable, non_trainable, optimizer_variables, metrics = state
    x, y, weight = data
    # Drawn rows come first: chunks of nothing but padding are skipped.
    count = jnp.maximum(1, jnp.ceil(jnp.sum(weight) / chunk).astype("int32"))
    gradient = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

    def body(i, carry):
        sums, non_trainable, metrics = carry
        part_x, part_y, part_weight = jax.tree.map(
            lambda t: jax.lax.dynamic_slice_in_dim(t, i * chunk, chunk), (x, y, weight)
        )
        (_, (loss, y_pred, non_trainable, metrics)), gradients = gradient(
            trainable,
            non_trainable,
            metrics,
            part_x,
            part_y,
            part_weight,
            training=True,
            optimizer_variables=optimizer_variables,
        )
        # The mean over chunks of count * loss is the sum over chunks, which is the loss of the update.
        _, metrics = model._update_metrics_variables(metrics, loss * count, part_x, part_y, y_pred, part_weight)
        return [a + b for a, b in zip(sums, gradients, strict=True)], list(non_trainable), list(metrics)

    zeros = [jnp.zeros_like(v) for v in trainable]
    start = (zeros, list(non_trainable), list(metrics))
    sums, non_trainable, metrics = jax.lax.fori_loop(0, count, body, start)
    trainable, optimizer_variables = model.optimizer.stateless_apply(optimizer_variables, sums, trainable)
    with keras.StatelessScope(state_mapping=zip(model.metrics_variables, metrics, strict=True)):
        logs = model.get_metrics_result()
    return logs, (trainable, non_trainable, optimizer_variables, metrics)


def gradient(model, x, total, trainable, non_trainable):
    """Gradient of `total(y_pred, added_losses)`, a scalar and anything else, for the trainable variables.

    Returns:
        The gradients, the scalar, what came with it, the outputs, and the model's new non-trainable values (JAX).
    """

    def run(trainable):
        y_pred, updated, added = model.stateless_call(trainable, non_trainable, x, training=True, return_losses=True)
        value, results = total(y_pred, added)
        return value, (results, y_pred, updated)

    (value, (results, y_pred, updated)), gradients = jax.value_and_grad(run, has_aux=True)(trainable)
    return gradients, value, results, y_pred, updated


def strategy_train_step(model, state, data, strategy, chunk: int | None):
    """One update of a strategy with a step of its own: its sums over all chunks, applied once.

    Called inside the compiled step in place of Keras' own `train_step`.
    """
    trainable, non_trainable, optimizer_variables, metrics = state
    optimizer, batch_size = model.optimizer, model.run.settings.batch_size
    with keras.StatelessScope(state_mapping=zip(optimizer.variables, optimizer_variables, strict=True)):
        strategy_state = [jnp.asarray(v.value) for v in optimizer.strategy_state]
        secret = jnp.asarray(optimizer.noise_key.value)
    rows = chunk or data[2].shape[0]
    # Drawn rows come first: chunks of nothing but padding are skipped.
    count = jnp.maximum(1, jnp.ceil(jnp.sum(data[2]) / rows).astype("int32")) if chunk else 1

    def part(i, non_trainable, metrics, data):
        totals, seen, non_trainable = strategy.chunk(
            model, strategy_state, i, secret, data, list(trainable), list(non_trainable)
        )
        x, y, y_pred, weight = seen
        # The mean over chunks of count * loss is the sum over chunks, which is the loss of the update.
        _, metrics = model._update_metrics_variables(metrics, totals[2] * count, x, y, y_pred, weight)
        return totals, list(non_trainable), list(metrics)

    if chunk is None:
        (sums, query, _), non_trainable, metrics = part(0, non_trainable, metrics, data)
    else:

        def body(i, carry):
            totals, non_trainable, metrics = carry
            part_data = jax.tree.map(lambda t: jax.lax.dynamic_slice_in_dim(t, i * chunk, chunk), data)
            new, non_trainable, metrics = part(i, non_trainable, metrics, part_data)
            return jax.tree.map(jnp.add, totals, new), non_trainable, metrics

        size = 0 if strategy.query_noise(batch_size) is None else 1
        zeros = ([jnp.zeros_like(v) for v in trainable], [jnp.zeros(())] * size, jnp.zeros(()))
        start = (zeros, list(non_trainable), list(metrics))
        (sums, query, _), non_trainable, metrics = jax.lax.fori_loop(0, count, body, start)
    gradients = [*strategy.average(sums, strategy_state, batch_size), *query]
    trainable, optimizer_variables = optimizer.stateless_apply(optimizer_variables, gradients, trainable)
    with keras.StatelessScope(state_mapping=zip(model.metrics_variables, metrics, strict=True)):
        logs = model.get_metrics_result()
    return logs, (trainable, non_trainable, optimizer_variables, metrics)


def gradient_norms(model):
    """Function of a batch `(x, y)` of one example: the gradient norm of its loss for each trainable variable."""
    trainable = [v.value for v in model.trainable_variables]
    other = [v.value for v in model.non_trainable_variables]

    @jax.jit
    def norms(x, y):
        def loss(trainable):
            y_pred, _ = model.stateless_call(trainable, other, x, training=True)
            return jnp.sum(model.loss.call(y, y_pred))

        return jnp.stack([jnp.linalg.norm(g.reshape(-1)) for g in jax.grad(loss)(trainable)])

    return norms


def replicas(model) -> int:
    """On how many devices a step of the model runs side by side."""
    distribution = keras.distribution.distribution()
    return 1 if distribution is None else distribution.device_mesh.devices.size


def compiles(model) -> bool:
    """Whether a new batch shape costs a compilation."""
    return True


def chunk_bytes(model) -> int | None:
    """Bytes of activations that one chunk of an update should have, or None for no limit."""
    return None  # chunks are padded here, and have not been measured to pay


def feed(batches, x, y):
    """Endless batches of the data `x`, `y` in the form in which `fit` takes them."""
    return batches


def full_precision():
    """A context in which float32 products are computed in float32: TF32 exceeds the slack of the bounds."""
    return jax.default_matmul_precision("highest")


def pullback(model, xla: bool = False):
    """Function from inputs and a cotangent to outputs and the gradients of inputs and trainable variables.

    Integer inputs have no gradient; None stands in its place.
    """
    real = [not jnp.issubdtype(t.dtype, jnp.integer) for t in model.inputs]

    @jax.jit
    def pull(trainable, other, xs, cotangent):
        def outputs(trainable, floats):
            floats = iter(floats)
            given = [next(floats) if r else x for r, x in zip(real, xs, strict=True)]
            return model.stateless_call(trainable, other, given if len(given) > 1 else given[0])[0]

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
