"""Which models have per-example gradients."""

import functools

import keras
import numpy as np
from keras import ops, tree

from lipdp import _keras, backend, isolation
from lipdp.gradients import rules
from lipdp.gradients.capture import Tape, capture, overridden
from lipdp.gradients.leaves import leaves
from lipdp.gradients.memory import give_back
from lipdp.gradients.microbatch import floats, heavy, low_precision
from lipdp.gradients.refused import refuse, refuse_random, refuse_untrainable
from lipdp.gradients.rows import Rows
from lipdp.gradients.tried import once

# Numbers of rows without a common factor: what leaves the rows of one batch in place moves those of the other. Layers
# that are known not to mix or reorder rows are run on the first alone.
_ROWS = (5, 11)
# Where a row is heavy all those at once would take more memory than training does.
_ROWS_HEAVY = (3, 5)
# One version of the last row is this many times as large: what follows the largest row of a batch shows.
_OUTLIER = 1e6
# Tried in turn where an inner size of the input is not known: some models need some length, others allow few positions.
# A single position would hide what depends on the others.
_SIZES = (8, 32, 128, 4, 2)
_DRAWN = "; one that draws random numbers needs a keras.random.SeedGenerator that is its attribute"


def supported(model, probe: bool = True) -> None:
    """Refuses a model whose per-example gradients do not exist or cannot be had.

    Args:
        model: A built Keras model.
        probe: Whether to run the model on a few random rows as well (see Guarantee). Where an inner size of the
            input is not known 8, 32, 128, 4 and 2 are tried, and a model that runs on none of them is refused.

    Raises:
        ValueError: names the layer and what to use in its place.

    **Guarantee.** Layers of Keras that mix the examples of a batch are refused by type. Layers of your own cannot, as
    they run one row at a time when a model trains. The probe is a help beside that: a layer that mixes would then
    compute something else than it was written for. It runs the engine on random inputs and targets, 5 rows and 11, or
    3 and 5 where a row has more than 4 MiB of activations, and compares: the gradient norms of one row must not move
    when any other row and its target are replaced, one of them by a row a million times as large, and the sum of all
    gradients must be the ordinary gradient. Where all code is that of Keras and lipdp, and known to keep rows apart,
    the smaller number of rows is run alone; so it is where other code is tried, forward, on 11 rows, whose outputs must
    be those that each has alone. This finds layers that mix examples or reorder the rows of a batch, and weights that
    are used where they cannot be seen. Layers whose `call` changes a weight are refused. Not found: layers that mix for
    some inputs or numbers of rows only, or below a thousandth of the largest gradient.

    Example:
        >>> import keras
        >>> from lipdp import gradients
        >>> gradients.supported(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    """
    if not model.built:
        raise ValueError(f"Model '{model.name}' has no weights yet. Build it, or give it an `Input`.")
    refuse_untrainable(model)
    for layer in _keras.walk(model, include_self=True):
        refuse(layer)
    if low_precision(model) and keras.backend.backend() == "tensorflow" and getattr(model, "jit_compile", False):
        raise ValueError(
            "XLA may leave out roundings to bfloat16 in one use of a value and not in another: a norm would not be "
            f"that of what is added. Received: model '{model.name}', which computes in bfloat16 or float16, with "
            "jit_compile=True on TensorFlow. Call compile(..., jit_compile=False), or use the JAX backend."
        )
    for tensor in tree.flatten(getattr(model, "inputs", None) or []):
        if getattr(tensor, "ragged", False) or getattr(tensor, "sparse", False):
            raise ValueError(
                f"Input '{tensor.name}' is ragged or sparse. Received: shape {tuple(tensor.shape)}. Pad it to a fixed "
                "size and let `Embedding(mask_zero=True)` or `Masking` hide the padding."
            )
    for operation, _ in isolation.foreign(model):
        if isolation.advice(operation):
            raise ValueError(isolation.advice(operation))
    # These run one row at a time, and a row can draw again what it has drawn.
    foreign = {id(operation) for operation, _ in isolation.foreign(model) if isolation.seeds_of(operation)}
    for layer, rule in leaves(model):
        if rule is rules.fallback and id(layer) not in foreign:
            refuse_random(layer)
    if probe:
        once(_try, model)


def _try(model) -> None:
    """Runs a model on random rows and refuses it where that shows what its gradients would not be."""
    # What is looked for does not depend on the precision; in a low one it is lost in the rounding.
    with backend.full_precision(), _keras.computing_in_float32(model):
        _probe(model)
        if heavy(model):
            give_back()
        isolation.refuse_mixing(model)


def _probe(model) -> None:
    graph = _keras.graph(model)
    if graph is None:
        return
    structure, _ = _keras.structures(graph)
    unknown = any(None in t.shape[1:] for t in tree.flatten(structure))
    # `refuse_mixing` tries what runs one row at a time on more rows, forward: quicker than to trace all of it twice.
    once = _is_known(model) or (isolation.foreign(model) and not isolation.used(model))
    failure, numbers = None, (_ROWS_HEAVY if heavy(model) else _ROWS)[: 1 if once else None]
    for size in _SIZES if unknown else _SIZES[:1]:
        for draw in (_normal, _positive):
            if draw is _normal and not _takes_floats(model, structure, size, numbers[0]):
                continue
            results = []
            try:
                for rows in numbers:
                    sums = rows == numbers[0]
                    results.append(_run(model, structure, size, rows, draw, sums))
            except Exception as error:
                failure = error
            finite = all(np.isfinite(n).all() for norms, *_ in results for one in norms for n in one)
            if results and finite:
                # With one number of rows only, what fails with the other may have a clear reason.
                _judge(model, results)
                # In a deep network rounding may cross the kink of an activation: what is wrong is so on other rows too.
                if (unseen := _unseen(model, results[0])) is not None:
                    unseen = _unseen(model, _run(model, structure, size, numbers[0], draw, True, seed=1))
                if unseen is not None:
                    if behind := _on_integers(graph, unseen):
                        raise ValueError(behind)
                    raise ValueError(
                        f"Weight '{unseen.path}' is used outside of the `call` of the layers that own it, where its "
                        "per-example gradients cannot be seen. Give the layer that uses it an attribute that holds it."
                    )
            if finite and len(results) == len(numbers):
                return
    # What holds neither gradients nor activations of `mixed_bfloat16`.
    other = sorted(floats(model) - {"float32", "bfloat16"})
    if failure is not None and other:
        raise ValueError(
            f"Model '{model.name}' computes in {', '.join(other)}, where the norms of its gradients cannot be had. "
            "Leave out casts, `reverse_dtype` and `autocast=False`, so that layers compute in float32. Received: "
            f"{failure}"
        ) from failure
    if failure is not None and not unknown:
        if behind := _on_integers(graph):
            raise ValueError(f"{behind} Received: {failure}") from failure
        raise failure
    raise ValueError(
        f"Model '{model.name}' cannot be tested for cross-example dependence: it does not run on random inputs"
        + (f" whose unknown sizes are {', '.join(map(str, _SIZES))}" if unknown else "")
        + ", or its gradients there are not finite. Give the `Input` its full shape, and keep the model finite for "
        f"inputs of order one. Received: {failure or 'NaN or infinite gradients'}"
    ) from failure


def _is_known(model) -> bool:
    """Whether all that a model computes is code of Keras and lipdp that is known to keep the rows apart."""
    if isolation.foreign(model) or isolation.used(model):
        return False
    return all(isolation.root(type(layer)) in ("keras", "lipdp") for layer in _keras.walk(model, include_self=True))


def _on_integers(graph, weight: keras.Variable | None = None) -> str:
    """Returns what to do about a layer with weights, or with this one, that gets integers; "" where none does."""
    for node in _keras.nodes(graph):
        layer = node.operation
        weights = _keras.own_variables(layer) if isinstance(layer, keras.Layer) else []
        # Numbers of rows are what an Embedding takes: a weight of one is used elsewhere as well.
        held = any(each is weight for each in weights) and not isinstance(layer, keras.layers.Embedding)
        if weight is None:  # of the layers in which such inputs fail, those whose message would not say so
            stock = type(layer).__module__.startswith(("keras.", "lipdp."))
            held = bool(weights) and stock and not isinstance(layer, (keras.layers.Embedding, keras.layers.Dense))
        kinds = {keras.backend.standardize_dtype(tensor.dtype) for tensor in node.input_tensors}
        if held and not any(map(keras.backend.is_float_dtype, kinds)):
            return (
                f"Layer '{layer.name}' ({type(layer).__name__}) gets {', '.join(sorted(kinds))}, and its weights have "
                "no gradient there, in Keras neither. Give the `Input` dtype='float32', which it has by default."
            )
    return ""


def _takes_floats(model, structure, size, rows) -> bool:
    """Whether a model runs on any floats; where an embedding reads them TensorFlow stops, after all has been traced."""
    tokens = isolation.tokens(_keras.graph(model))
    given = [t for t in tree.flatten(structure) if keras.backend.is_float_dtype(t.dtype)]
    if keras.backend.backend() != "tensorflow" or tokens.isdisjoint(map(id, given)):
        return True
    try:
        with keras.StatelessScope():  # a layer may count its calls
            model(_batches(model, structure, size, rows, _normal)[-1][0], training=False)
    except Exception:
        return False
    return True


def _batches(model, structure, size, rows, draw, seed=0) -> list[tuple]:
    """Returns batches `(x, y)` in which each row and its target are one of two versions, see `_run`."""
    rng = np.random.default_rng(seed)
    tables = [layer.input_dim for layer in _keras.walk(model) if isinstance(layer, keras.layers.Embedding)]
    last = min(1, *(rows - 1 for rows in tables)) if tables else 1  # a table may have one row only

    def versions(tensor):
        shape = (rows, *(size if s is None else s for s in tensor.shape[1:]))
        if keras.backend.is_float_dtype(tensor.dtype):
            return [draw(rng, shape).astype(tensor.dtype) for _ in range(2)]
        bits = rng.integers(0, last + 1, shape)
        pair = [bits, last - bits]
        if draw is _positive and len(shape) > 1 and last:
            # Keras' mean over a sequence that is masked throughout is NaN.
            for one in pair:
                one[:, 0] = 1
        return [one.astype(tensor.dtype) for one in pair]

    drawn = [versions(t) for t in tree.flatten(structure)]
    targets = [rng.normal(size=(rows, 2)).astype("float32") for _ in range(2)]
    batches = []
    for version in _versions(rows):
        *x, y = (np.stack([pair[v][i] for i, v in enumerate(version)]) for pair in (*drawn, targets))
        batches.append((tree.pack_sequence_as(structure, x), y))
    for tensor in tree.flatten(batches[-1][0]):
        if draw is _normal and keras.backend.is_float_dtype(tensor.dtype):
            tensor[-1] *= _OUTLIER
    return batches


def _run(model, structure, size, rows, draw, sums, seed=0):
    """Returns what `backend.probe` finds on a few batches, in which each row and its target are one of two versions.

    The binary digits of a row's number say which. So for any two rows there are two batches between which one of them
    changes and the other does not. The last batch is the first with an outlier for its last row.
    """
    batches = _batches(model, structure, size, rows, draw, seed)
    together = functools.partial(capture, isolated=False)
    alone = bool(isolation.foreign(model)) or any(rule is rules.fallback for _, rule in leaves(model))
    # Without a graph each step of a sequence is dispatched by itself.
    loops = any(isinstance(layer, keras.layers.RNN) for layer in _keras.walk(model))
    traced = (alone or loops) and not getattr(model, "run_eagerly", False)
    # What draws in Keras' loop over time gets other numbers there than where time joins the batch.
    each_time = [
        (layer, rule)
        for layer, rule in leaves(model)
        if rule is rules.loops.time_distributed and any(map(_keras.seed_generators, _keras.walk(layer)))
    ]

    def at_once():
        return overridden(each_time, Tape(lambda tensor: tensor, Rows(rows, 1)))

    with isolation.isolated(model, drawing=True):
        norms, *rest = backend.probe(model, batches, _loss, together, sums=sums, traced=traced, within=at_once)
    # What becomes of the outlier itself, which may overflow, says nothing.
    norms = [*norms[:-1], [np.append(n[:-1], first[-1:]) for n, first in zip(norms[-1], norms[0], strict=True)]]
    return norms, *rest


def _versions(rows: int):
    """Which of its two versions each row has in each batch, `(batches, rows)`."""
    digits = range(rows.bit_length())
    return np.array([[0] * rows, *([i >> bit & 1 for i in range(1, rows + 1)] for bit in digits), [0] * rows])


def _normal(rng, shape):
    return rng.normal(size=shape)


def _positive(rng, shape):
    """For models that take logarithms, or read indices from floats: these get no outlier."""
    return rng.uniform(0.1, 1.9, shape)


def _judge(model, results) -> None:
    own = isolation.suspects(model)
    seeds = {id(s.state) for layer in _keras.walk(model, include_self=True) for s in _keras.seed_generators(layer)}
    for *_, changed in results:
        for variable in changed:
            if id(variable) not in seeds:
                raise ValueError(
                    f"Weight '{variable.path}' is changed by the forward pass of its layer: what it keeps of the "
                    "examples would be released without noise. Use a layer that changes no weights in `call`."
                )
    scale = _scale(results[0])
    for k, variable in enumerate(model.trainable_variables):
        for norms, *_ in results:
            values = np.sqrt(np.stack([one[k] for one in norms]))
            version = _versions(values.shape[1])
            for v in range(2):
                spread = np.where(version == v, values, -np.inf).max(0) - np.where(version == v, values, np.inf).min(0)
                if np.max(spread) > 1e-3 * scale:
                    raise ValueError(
                        f"The gradient of weight '{variable.path}' for one example depends on the other examples of "
                        "the batch: a layer mixes examples or reorders the rows of the batch."
                        f"{own and f' It can be {own}.'} Use layers that treat each row alone{own and _DRAWN}."
                    )


def _unseen(model, result) -> keras.Variable | None:
    """Returns a weight whose gradient is not the sum of those of the examples, or None."""
    _, sums, ordinary, _ = result
    largest = 1e-3 * _scale(result)
    for variable, total, expected in zip(model.trainable_variables, sums, ordinary, strict=True):
        if not np.max(np.abs(total - expected)) <= largest:  # NaN too
            return variable
    return None


def _scale(result) -> float:
    """Returns the largest norm of a gradient of one example."""
    return max(float(np.sqrt(max(np.max(n) for n in result[0][0]))), 1e-12)


def _loss(y, y_pred):
    """Distance to a target of each row's own: a ramp, of which `y` holds the offset and the slope."""
    total = 0.0
    for k, output in enumerate(tree.flatten(y_pred)):
        flat = ops.reshape(ops.cast(output, "float32"), (ops.shape(output)[0], -1))
        ramp = ops.cast(ops.arange(1, ops.shape(flat)[1] + 1), "float32") / ops.cast(ops.shape(flat)[1], "float32")
        total = total + ops.mean(ops.square(flat - y[:, :1] - y[:, 1:] * ramp - k), axis=1)
    return total
