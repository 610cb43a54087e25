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


def full_precision():
    """A context in which float32 products are computed in float32: TF32 exceeds the slack of the bounds."""
    return jax.default_matmul_precision("highest")
