"""What the engine of per-example gradients needs from JAX."""

import contextlib
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lipdp import _keras
from lipdp.backend.jax import Forward

# What a vectorized map can hand whole batches, by a rule that is not JAX' own, and what can keep rows on the host.
_BATCHED = ("custom_vmap_call", "ffi_call", "io_callback", "pure_callback")
# The last programs of `probe`: each `fit` makes one, and that of a model that did not change is the same.
_programs: dict[tuple, Any] = {}
_KEPT_PROGRAMS = 4


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
    values, rows = list(map(jnp.asarray, values)), tuple(map(jnp.asarray, rows))
    _refuse(_primitives(jax.make_jaxpr(one)(values, tuple(map(_of_one, rows))).jaxpr), "A layer with weights calls ")
    return jax.vmap(one, in_axes=(None, 0))(values, rows)


def row_by_row(function, values, rows) -> list:
    """Runs `function(values, row)` for each row of the tensors in `rows`, as a batch of one row.

    Args:
        function: Returns a list of tensors with one row.
        values: Tensors that all rows share.
        rows: Tensors with an axis of rows first.

    Returns:
        The list, with all rows.

    Raises:
        ValueError: the function, or its derivative, calls what a vectorized map can hand all rows at once.
    """
    values, rows = [jnp.asarray(v) for v in values], list(map(jnp.asarray, rows))

    def one(values, *row):
        return [t[0] for t in function(values, [t[None] for t in row])]

    _refuse_batched(one, values, rows)
    return jax.vmap(lambda *row: one(values, *row))(*rows)


def _refuse_batched(one, values, rows) -> None:
    """Refuses what sees a whole batch under a vectorized map; reads the programs of one row and of its derivatives."""
    arguments = values, *map(_of_one, rows)
    flat, structure = jax.tree.flatten(arguments)

    def derivative(places):
        def program(*leaves):
            def of(*chosen):
                given = dict(enumerate(leaves)) | dict(zip(places, chosen, strict=True))
                return one(*jax.tree.unflatten(structure, given.values()))

            outputs, pull_back = jax.vjp(of, *(leaves[place] for place in places))
            ones = [jnp.ones_like(t) if jnp.issubdtype(t.dtype, jnp.inexact) else _no_cotangent(t) for t in outputs]
            return pull_back(ones)

        return _primitives(jax.make_jaxpr(program)(*flat).jaxpr)

    found = _primitives(jax.make_jaxpr(one)(*arguments).jaxpr)
    try:
        found |= derivative(range(len(flat)))
    except Exception:
        # Some loops have no derivative. A step may leave out those arguments, and take that by each other one.
        for place in range(len(flat)):
            with contextlib.suppress(Exception):
                found |= derivative([place])
    _refuse(found)


def _refuse(found: set[str], who: str = "") -> None:
    if names := sorted(found.intersection(_BATCHED)):
        raise ValueError(
            f"{who}{', '.join(names)}, which can see other rows of the batch under jax.vmap too. Compute with "
            "jax.numpy or keras.ops instead"
        )


def _of_one(tensor):
    """Returns the shape and dtype of one row."""
    return jax.ShapeDtypeStruct(tensor.shape[1:], tensor.dtype)


def _no_cotangent(tensor):
    return np.zeros(tensor.shape, jax.dtypes.float0)


def _primitives(jaxpr) -> set[str]:
    """Returns the names of the primitives of a program, and of the programs in it."""
    found, left = set(), [jaxpr]
    while left:
        for equation in left.pop().eqns:
            found.add(equation.primitive.name)
            for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "jaxpr")):
                inner = getattr(leaf, "jaxpr", leaf)  # closed over constants, or not
                if hasattr(inner, "eqns"):
                    left.append(inner)
    return found


def _finite(norms, sums) -> bool:
    """Whether what `probe` has found is finite, but for the last row of the last batch, which may be an outlier."""
    *usual, last = norms
    return all(np.isfinite(part).all() for part in jax.tree.leaves((usual, [n[:-1] for n in last], sums)))


def _compiled(lowered, options: dict[str, str], arguments):
    """Compiles a program, unless one with the very same text was compiled for the same nest in the same places."""
    text = lowered.as_text()
    # It does not hold the host's functions, nor, in some versions of JAX, constants.
    if "callback" in text or getattr(jax.config, "jax_use_simplified_jaxpr_constants", True):
        return lowered.compile(compiler_options=options)
    # Nor which devices, in which order, nor whether an argument may move to those of others.
    places = [(leaf.sharding, leaf.committed) for leaf in jax.tree.leaves(arguments)]
    # Nor names of arguments: a list, a tuple and a dictionary of inputs look alike in it.
    key = hashlib.sha256(text.encode()).digest(), jax.tree.structure(arguments), *places, *options.items()
    program = _programs.pop(key, None) or lowered.compile(compiler_options=options)
    _programs[key] = program
    for oldest in list(_programs)[:-_KEPT_PROGRAMS]:
        _programs.pop(oldest, None)
    return program


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


@jax.disable_jit(False)  # who looks for an error in a step may have set it, and JAX runs no compiled program then
def probe(model, batches, loss, capture, sums: bool = True, traced: bool = False, within=contextlib.nullcontext):
    """What `capture` finds on small batches `(x, y)` of one size.

    Args:
        traced: of no use here, where everything is.
        within: makes a context for the ordinary forward pass.

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
            with within():
                return jnp.sum(loss(y, model.stateless_call(trainable, non_trainable, x, **training)[0]))

        kept = [jnp.all((a == b) | (a != a)) for a, b in zip(non_trainable, record.non_trainable, strict=True)]
        both = (record.weighted_sum(ones), jax.grad(total)(trainable)) if sums else ((), ())
        return record.squared_norms(), *both, kept

    batches = [jax.tree.map(jnp.asarray, batch) for batch in batches]
    # With arguments of which the result does not depend: `_compiled` tells programs apart by them.
    lowered = jax.jit(run, keep_unused=True).lower(trainable, non_trainable, *batches[0])

    def executed(options):
        norms, kept, sums = [], [], ((), ())
        program = _compiled(lowered, options, (trainable, non_trainable, batches[0]))
        for i, batch in enumerate(batches):
            found = jax.device_get(program(trainable, non_trainable, *batch))
            norms.append(found[0])
            kept.append(found[3])
            if i == 0:  # as large as the model, so those of the other batches are not kept
                sums = found[1:3]
        return norms, kept, sums

    # It runs a few times on a few rows: what counts is the time to compile.
    norms, kept, (first, ordinary) = executed({"xla_backend_optimization_level": "0"})
    if not _finite(norms, (first, ordinary)):
        # Without optimization XLA may compute twice, rounded in two ways, what a maximum is taken of: no entry is the
        # largest one then, and gradients are NaN that in training are not.
        norms, kept, (first, ordinary) = executed({})
    changed = [v for v, *same in zip(model.non_trainable_variables, *kept, strict=True) if not all(same)]
    return norms, first, ordinary, changed
