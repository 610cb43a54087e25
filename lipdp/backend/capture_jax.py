"""What the engine of per-example gradients needs from JAX."""

import jax
import jax.numpy as jnp


def cotangents(forward):
    """Runs `forward(mark)`, which returns a scalar and anything else, and differentiates the scalar.

    Args:
        forward: Function of a function `mark(tensor) -> tensor`, to be applied to tensors on the way. It is traced
            twice, the first time for shapes only.

    Returns:
        The derivatives with respect to the marked tensors, in the order of marking, and what came with the scalar.
    """

    def shapes():
        marked = []

        def mark(tensor):
            marked.append(tensor)
            return tensor

        forward(mark)
        return marked

    def perturbed(perturbations):
        left = iter(perturbations)
        return forward(lambda tensor: tensor + next(left))

    zeros = [jnp.zeros(s.shape, s.dtype) for s in jax.eval_shape(shapes)]
    total, pull_back, results = jax.vjp(perturbed, zeros, has_aux=True)
    return pull_back(jnp.ones_like(total))[0], results


def local_gradients(function, values, rows, vectorised: bool):
    """Gradients of `function(values, *row)` with respect to `values`, for each row of the tensors in `rows`."""
    one = jax.grad(lambda values, row: function(values, *row))
    return jax.vmap(one, in_axes=(None, 0))(list(values), tuple(rows))


def contract(a, b):
    """`a^T b` over the last but one axis: (..., p, i) and (..., p, o) to (..., i, o)."""
    return jnp.matmul(jnp.swapaxes(a, -1, -2), b)


def in_turn(function, items) -> list:
    """`[function(item) for item in items]`; XLA orders its work itself."""
    return [function(item) for item in items]


def gram(a):
    """`a a^T` over the last axis: (..., p, i) to (..., p, p)."""
    return jnp.matmul(a, jnp.swapaxes(a, -1, -2))


def probe(model, batches, loss, capture):
    """For each batch: squared norms and sum of the gradients that `capture` finds, and the ordinary gradient."""
    trainable = [v.value for v in model.trainable_variables]
    non_trainable = [v.value for v in model.non_trainable_variables]

    training = {"training": True} if model._call_has_training_arg else {}

    def run(trainable, non_trainable, x):
        ones = jnp.ones((jax.tree.leaves(x)[0].shape[0],))
        record = capture(model, x, None, ones, loss_values=loss, trainable=trainable, non_trainable=non_trainable)

        def total(trainable):
            return jnp.sum(loss(None, model.stateless_call(trainable, non_trainable, x, **training)[0]))

        return record.squared_norms(), record.weighted_sum(ones), jax.grad(total)(trainable)

    batches = [jax.tree.map(jnp.asarray, x) for x in batches]
    # It runs a few times on a few rows: what counts is the time to compile.
    quick = {"xla_backend_optimization_level": "0"}
    compiled = jax.jit(run).lower(trainable, non_trainable, batches[0]).compile(compiler_options=quick)
    return [jax.device_get(compiled(trainable, non_trainable, x)) for x in batches]
