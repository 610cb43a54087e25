"""What the engine of per-example gradients needs from TensorFlow."""

import contextlib
import re

import tensorflow as tf

from lipdp.backend.tensorflow import Forward
from lipdp.backend.vectorizing_tensorflow import own_converters

# Operations of TensorFlow that write to what outlives them.
_WRITES = re.compile(
    "Assign|Resource(Scatter|Apply|Strided|SparseApply|.*Update|.*ApplyGradient)|Scatter.*Ref"
    "|.*(Insert|Import|Enqueue|Remove|Stage$|ToTensorsMap|WriteFile|SaveV2|Summary)|(Eager)?PyFunc"
)


def cotangents(forward):
    """Runs `forward(mark)`, which returns a scalar and anything else, and differentiates the scalar.

    Args:
        forward: Function of a function `mark(tensor) -> tensor`, to be applied to tensors on the way.

    Returns:
        The derivatives with respect to the marked tensors, in the order of marking, and what came with the scalar.
    """
    marked = []
    # Variables are not watched: gradients of the weights of the whole batch are never built.
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def mark(tensor):
            tensor = tf.identity(tensor)
            tape.watch(tensor)
            marked.append(tensor)
            return tensor

        total, results = forward(mark)
    found = list(map(tf.convert_to_tensor, tape.gradient(total, marked, unconnected_gradients="zero")))
    for cotangent, tensor in zip(found, marked, strict=True):
        # That of a largest value has no static shape where sizes are not known.
        cotangent.set_shape(tensor.shape)
    return found, results


def local_gradients(function, values, rows, vectorised: bool):
    """Gradients of `function(values, *row)` with respect to `values`, for each row of the tensors in `rows`."""
    values = [tf.convert_to_tensor(v) for v in values]

    def one(row):
        with _refusing_writes():
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(values)
                result = function(values, *row)
            return tuple(tape.gradient(result, values, unconnected_gradients="zero"))

    if vectorised:
        return _each(one, rows)
    signature = tuple(tf.TensorSpec(v.shape, v.dtype) for v in values)
    return list(tf.map_fn(one, rows, fn_output_signature=signature))


def row_by_row(function, values, rows) -> list:
    """Runs `function(values, row)` for each row of the tensors in `rows`, as a batch of one row.

    Its gradient runs one row at a time as well: a vectorized map keeps no gradients of a function's own.

    Args:
        function: Returns a list of tensors with one row.
        values: Tensors that all rows share.
        rows: Tensors with an axis of rows first.

    Returns:
        The list, with all rows.
    """
    values, rows = ([tf.convert_to_tensor(t) for t in part] for part in (values, rows))
    number = len(values)

    def one(values, row):
        with _refusing_writes():
            return [tf.convert_to_tensor(t) for t in function(list(values), [t[tf.newaxis] for t in row])]

    @tf.custom_gradient
    def run(*tensors):
        values, rows = tensors[:number], tensors[number:]
        outputs = _each(lambda row: one(values, row), list(rows))
        inputs = [i for i, t in enumerate(tensors) if t.dtype.is_floating]
        kinds = [t.dtype.is_floating for t in outputs]

        def back(*cotangents, variables=None):
            def pull(both):
                row, cotangent = both[: len(rows)], both[len(rows) :]
                watched = [(values + tuple(row))[i] for i in inputs]
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(watched)
                    found = [t for t, real in zip(one(values, row), kinds, strict=True) if real]
                cotangent = [g[tf.newaxis] for g in cotangent]
                with _refusing_writes():  # a function may bring a gradient of its own
                    return tape.gradient(found, watched, cotangent, unconnected_gradients="zero")

            real = [g for g, r in zip(cotangents, kinds, strict=True) if r]
            try:
                found = dict(zip(inputs, _each(pull, [*rows, *real]), strict=True)) if real else {}
            except ValueError as error:
                raise ValueError(
                    f"A layer cannot be differentiated one row at a time. Received: {error}. Leave that out, or use "
                    "layers of Keras."
                ) from error
            gradients = [
                None if g is None else tf.reduce_sum(g, axis=0) if i < number else g
                for i, g in ((i, found.get(i)) for i in range(len(tensors)))
            ]
            return gradients if variables is None else (gradients, [tf.zeros(v.shape, v.dtype) for v in variables])

        return [tf.squeeze(t, axis=1) for t in outputs], back

    return list(run(*values, *rows))


@contextlib.contextmanager
def _refusing_writes():
    """Refuses what one row keeps of itself for others; changes of Keras' variables are held back elsewhere."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    nodes = [operation.node_def for operation in graph.get_operations()[before:]]
    functions, seen = None, set()
    while nodes:
        node = nodes.pop()
        if _WRITES.match(node.op):
            raise ValueError(
                f"it changes a tf.Variable or another store, or runs Python code ({node.op}): what it keeps of the "
                "examples would be released without noise, or mix them"
            )
        called = {f.name for value in node.attr.values() for f in (value.func, *value.list.func)} - {"", *seen}
        if called and functions is None:
            functions = {f.signature.name: f.node_def for f in graph.as_graph_def().library.function}
        for name in called:
            seen.add(name)
            nodes += functions.get(name, ())


def _each(one, rows) -> list:
    """`one` of each row, side by side, or in a loop where TensorFlow cannot vectorize what it does."""
    one = tf.autograph.experimental.do_not_convert(one)
    logger = tf.get_logger()
    level = logger.level
    try:
        logger.setLevel("CRITICAL")  # what cannot be vectorized is no error
        with own_converters():
            return list(tf.vectorized_map(one, rows, warn=False))
    except Exception:
        logger.setLevel(level)
        specs = [tf.TensorSpec(t.shape[1:], t.dtype) for t in rows]
        traced = tf.function(one, autograph=False).get_concrete_function(specs)
        signature = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs)
        return list(tf.map_fn(one, rows, fn_output_signature=signature))
    finally:
        logger.setLevel(level)


def contract(a, b):
    """`a^T b` over the last but one axis: (..., p, i) and (..., p, o) to (..., i, o)."""
    return tf.matmul(a, b, transpose_a=True)


def segment_sums(values, segments, number: int):
    """Sums values `(batch, positions, width)` by their segments `(batch, positions)` into `(batch, number, width)`."""
    batch = tf.shape(values)[0]
    sums = tf.math.unsorted_segment_sum(values, segments + number * tf.range(batch)[:, None], batch * number)
    return tf.reshape(sums, (batch, number, values.shape[-1]))


def made_once(tensors):
    """Returns tensors, or a nest of them, that are not made again for another use: no graph does so."""
    return tensors


def in_turn(function, items) -> list:
    """`[function(item) for item in items]`, where an item is not made before the result of the last one is there.

    TensorFlow would make all items first, and hold them at once.
    """
    results, items = [], iter(items)
    while True:
        with tf.control_dependencies(results[-1:]):
            item = next(items, None)
            if item is None:
                return results
            results.append(function(item))


def gram(a):
    """`a a^T` over the last axis: (..., p, i) to (..., p, p)."""
    return tf.matmul(a, a, transpose_b=True)


def probe(model, batches, loss, capture, sums: bool = True, traced: bool = False, within=contextlib.nullcontext):
    """What `capture` finds on small batches `(x, y)` of one size.

    Args:
        traced: whether to make a graph of `capture` once. That takes longer than to run it a few times, unless layers
            run one row at a time, which are traced again for each batch, or one step at a time.
        within: makes a context for the ordinary forward pass.

    Returns:
        Squared norms of the gradients, for each batch; with `sums`, sum of the gradients and the ordinary gradient of
        the first, else nothing twice; the variables that the forward pass changed. They get their values back.
    """
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    before = [tf.identity(v.value) for v in variables]
    changed = {}

    def restore():
        for variable, value in zip(variables, before, strict=True):
            # NaN counts as no change.
            if not bool(tf.reduce_all((variable.value == value) | (value != value))):
                changed[id(variable)] = variable
                variable.assign(value)

    def captured(x, y, sums):
        ones = tf.ones((y.shape[0],))
        record = capture(Forward(model), x, y, ones, loss_values=loss)
        found = record.weighted_sum(ones) if sums else ()
        return [[tf.convert_to_tensor(t) for t in part] for part in (record.squared_norms(), found)]

    graph = tf.function(captured, autograph=False) if traced else None

    def run(batch, first=False):
        nonlocal graph
        try:
            found = graph(*batch, sums) if graph else captured(*batch, sums and first)
        except Exception:
            if not graph:
                raise
            graph = None  # without one the message is that of the layer
            restore()
            found = captured(*batch, sums and first)
        norms, found = ([t.numpy() for t in part] for part in found)
        restore()
        return norms, found

    batches = [tf.nest.map_structure(tf.convert_to_tensor, batch) for batch in batches]
    ordinary = ()
    try:
        norms, found = run(batches[0], first=True)
        norms = [norms, *(run(batch)[0] for batch in batches[1:])]
        if sums:
            with within(), tf.GradientTape() as tape:
                total = tf.reduce_sum(loss(batches[0][1], model(batches[0][0], training=True)))
            values = [v.value for v in model.trainable_variables]
            ordinary = tape.gradient(total, values, unconnected_gradients="zero")
    finally:
        restore()
    return norms, found, [tf.convert_to_tensor(t).numpy() for t in ordinary], list(changed.values())
