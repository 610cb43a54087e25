"""What the engine of per-example gradients needs from TensorFlow."""

import tensorflow as tf


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
    return tape.gradient(total, marked, unconnected_gradients="zero"), results


def local_gradients(function, values, rows, vectorised: bool):
    """Gradients of `function(values, *row)` with respect to `values`, for each row of the tensors in `rows`."""
    values = [tf.convert_to_tensor(v) for v in values]

    def one(row):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            result = function(values, *row)
        return tuple(tape.gradient(result, values, unconnected_gradients="zero"))

    if vectorised:
        return list(tf.vectorized_map(one, rows, warn=False))
    signature = tuple(tf.TensorSpec(v.shape, v.dtype) for v in values)
    return list(tf.map_fn(one, rows, fn_output_signature=signature))


def contract(a, b):
    """`a^T b` over the last but one axis: (..., p, i) and (..., p, o) to (..., i, o)."""
    return tf.matmul(a, b, transpose_a=True)


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


def probe(model, batches, loss, capture):
    """For each batch: squared norms and sum of the gradients that `capture` finds, and the ordinary gradient."""
    before = [tf.identity(v.value) for v in model.non_trainable_variables]

    def restore():
        for variable, value in zip(model.non_trainable_variables, before, strict=True):
            variable.assign(value)

    def run(x):
        ones = tf.ones((tf.nest.flatten(x)[0].shape[0],))
        record = capture(model, x, None, ones, loss_values=loss)
        norms, sums = record.squared_norms(), record.weighted_sum(ones)
        restore()
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(loss(None, model(x, training=True)))
        variables = [v.value for v in model.trainable_variables]
        ordinary = tape.gradient(total, variables, unconnected_gradients="zero")
        restore()
        return tuple([tf.convert_to_tensor(t).numpy() for t in part] for part in (norms, sums, ordinary))

    try:
        return [run(tf.nest.map_structure(tf.convert_to_tensor, x)) for x in batches]
    finally:
        restore()
