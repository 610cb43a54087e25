"""What the engine of per-example gradients needs from JAX."""

import jax
import jax.numpy as jnp

from lipdp import _keras
from lipdp.backend.jax import Forward


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


def row_by_row(function, values, rows) -> list:
    """Runs `function(values, row)` for each row of the tensors in `rows`, as a batch of one row.

    Args:
        function: Returns a list of tensors with one row.
        values: Tensors that all rows share.
        rows: Tensors with an axis of rows first.

    Returns:
        The list, with all rows.
    """
    values = [jnp.asarray(v) for v in values]
    return jax.vmap(lambda *row: [t[0] for t in function(values, [t[None] for t in row])])(*map(jnp.asarray, rows))


def contract(a, b):
    """`a^T b` over the last but one axis: (..., p, i) and (..., p, o) to (..., i, o)."""
    return jnp.matmul(jnp.swapaxes(a, -1, -2), b)


def segment_sums(values, segments, number: int):
    """Sums values `(batch, positions, width)` by their segments `(batch, positions)` into `(batch, number, width)`."""
    # Row by row, not by numbers that run on over the batch: devices that share it out then need none of the others'.
    return jax.vmap(lambda v, s: jax.ops.segment_sum(v, s, number))(values, segments)


def made_once(tensors):
    """Returns tensors, or a nest of them, that the compiler may not make again, in another way, for another use.

    In low precision what two kernels make of one product differs by more than clipping leaves room for.
    """
    return jax.lax.optimization_barrier(tensors)


def in_turn(function, items) -> list:
    """`[function(item) for item in items]`; XLA orders its work itself."""
    return [function(item) for item in items]


def gram(a):
    """`a a^T` over the last axis: (..., p, i) to (..., p, p)."""
    return jnp.matmul(a, jnp.swapaxes(a, -1, -2))


def probe(model, batches, loss, capture, sums: bool = True, traced: bool = False):
    """What `capture` finds on small batches `(x, y)` of one size.

    Args:
        traced: of no use here, where everything is.

    Returns:
        Squared norms of the gradients, for each batch; with `sums`, sum of the gradients and the ordinary gradient of
        the first, else nothing twice; the variables that the forward pass changed. They get their values back.
    """
    trainable = [v.value for v in model.trainable_variables]
    non_trainable = [v.value for v in model.non_trainable_variables]

    training = {"training": True} if _keras.takes(model, "training") else {}

    def run(trainable, non_trainable, x, y):
        ones = jnp.ones((y.shape[0],))
        record = capture(Forward(model, trainable, non_trainable), x, y, ones, loss_values=loss)

        def total(trainable):
            return jnp.sum(loss(y, model.stateless_call(trainable, non_trainable, x, **training)[0]))

        kept = [jnp.all((a == b) | (a != a)) for a, b in zip(non_trainable, record.non_trainable, strict=True)]
        both = (record.weighted_sum(ones), jax.grad(total)(trainable)) if sums else ((), ())
        return record.squared_norms(), *both, kept

    batches = [jax.tree.map(jnp.asarray, batch) for batch in batches]
    # It runs a few times on a few rows: what counts is the time to compile.
    quick = {"xla_backend_optimization_level": "0"}
    compiled = jax.jit(run).lower(trainable, non_trainable, *batches[0]).compile(compiler_options=quick)
    norms, kept, first, ordinary = [], [], (), ()
    for i, batch in enumerate(batches):
        found = jax.device_get(compiled(trainable, non_trainable, *batch))
        norms.append(found[0])
        kept.append(found[3])
        if i == 0:  # as large as the model, so those of the other batches are not kept
            first, ordinary = found[1:3]
    changed = [v for v, *same in zip(model.non_trainable_variables, *kept, strict=True) if not all(same)]
    return norms, first, ordinary, changed
