"""The functions of `lipdp.backend` for TensorFlow."""

import contextlib

import tensorflow as tf

from lipdp.backend import threefry

# Compiled on its own, whatever surrounds it: fused by XLA the noise costs half of what graph operations do,
# and eager, graph and XLA training add the same values.
_normal = tf.function(threefry.normal, jit_compile=True)
_ratchet = tf.function(threefry.ratchet, jit_compile=True)


def normal(size, key):
    """Draws independent standard normals: see `threefry.normal`."""
    return _normal(int(size), key)


def ratchet(key):
    """Derives `noise_key` and `next_key`: see `threefry.ratchet`."""
    return _ratchet(key)


def chunked_train_step(model, data, chunk: int):
    """One update from a batch of several chunks: gradients are summed, then applied once.

    Called inside the compiled step in place of Keras' own `train_step`.
    """
    x, y, weight = data
    variables = model.trainable_weights
    count = -(-tf.shape(weight)[0] // chunk)  # the last may be shorter
    scale = tf.cast(count, tf.float32)

    def body(i, sums):
        rows = slice(i * chunk, (i + 1) * chunk)
        part_x, part_y, part_weight = tf.nest.map_structure(lambda t: t[rows], (x, y, weight))
        with tf.GradientTape() as tape:
            y_pred = model(part_x, training=True)
            loss = model.compute_loss(part_x, part_y, y_pred, part_weight, training=True)
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        # The mean over chunks of count * loss is the sum over chunks, which is the loss of the update.
        model._loss_tracker.update_state(loss * scale)
        model.compute_metrics(part_x, part_y, y_pred, part_weight)
        return i + 1, [a + b for a, b in zip(sums, gradients, strict=True)]

    zeros = [tf.zeros(v.shape) for v in variables]
    _, sums = tf.while_loop(lambda i, _: i < count, body, (0, zeros), parallel_iterations=1)
    model.optimizer.apply_gradients(zip(sums, variables, strict=True))
    return model.get_metrics_result()


def gradient(model, x, total, trainable=None, non_trainable=None):
    """Gradient of `total(y_pred, added_losses)`, a scalar and anything else, for the trainable variables.

    Returns:
        The gradients, the scalar, what came with it, the outputs, and the model's new non-trainable values (JAX).
    """
    variables = model.trainable_weights
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True)
        value, results = total(y_pred, model.losses)
    gradients = tape.gradient(value, variables, unconnected_gradients="zero")
    return [tf.convert_to_tensor(g) for g in gradients], value, results, y_pred, None


def strategy_train_step(model, data, strategy, chunk: int | None):
    """One update of a strategy with a step of its own: its sums over all chunks, applied once.

    Called inside the compiled step in place of Keras' own `train_step`.
    """
    optimizer, batch_size = model.optimizer, model.run.settings.batch_size
    state = [tf.convert_to_tensor(v.value) for v in optimizer.strategy_state]
    secret = tf.convert_to_tensor(optimizer.noise_key.value)
    size = 0 if strategy.query_noise(batch_size) is None else 1

    def part(i, rows):
        totals, seen, _ = strategy.chunk(model, state, i, secret, rows)
        model.compute_metrics(*seen)
        return totals

    if chunk is None:
        sums, query, loss = part(0, data)
    else:
        count = -(-tf.shape(data[2])[0] // chunk)  # the last may be shorter

        def body(i, totals):
            rows = tf.nest.map_structure(lambda t: t[i * chunk : (i + 1) * chunk], data)
            return i + 1, tf.nest.map_structure(tf.add, totals, part(i, rows))

        zeros = ([tf.zeros(v.shape) for v in model.trainable_variables], [tf.zeros(())] * size, tf.zeros(()))
        _, (sums, query, loss) = tf.while_loop(lambda i, _: i < count, body, (0, zeros), parallel_iterations=1)
    model._loss_tracker.update_state(loss)
    optimizer.apply([*strategy.average(sums, state, batch_size), *query], model.trainable_variables)
    return model.get_metrics_result()


def gradient_norms(model):
    """Function of a batch `(x, y)` of one example: the gradient norm of its loss for each trainable variable."""
    variables = model.trainable_weights

    @tf.function(reduce_retracing=True)
    def norms(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model.loss.call(y, model(x, training=True)))
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        return tf.stack([tf.norm(tf.reshape(g, [-1])) for g in gradients])

    return norms


def replicas(model) -> int:
    """On how many devices a step of the model runs side by side."""
    return model.distribute_strategy.num_replicas_in_sync


def compiles(model) -> bool:
    """Whether a new batch shape costs a compilation."""
    return bool(model.jit_compile)


def chunk_bytes(model) -> int | None:
    """Bytes of activations that one chunk of an update should have, or None for no limit.

    Measured on CPUs, where it is a matter of the cache. Compiled steps pad to whole chunks.
    """
    if model.jit_compile or tf.config.list_logical_devices("GPU"):
        return None
    return 20 * 2**20


def feed(batches, x, y):
    """Endless batches of the data `x`, `y` in the form in which `fit` takes them.

    As Keras makes it, but without tuning at run time: its thread sleeps for up to a minute, and whoever lets go of the
    iterator waits until it wakes up.
    """

    def spec(leaf):
        return tf.TensorSpec((None, *leaf.shape[1:]), leaf.dtype)

    signature = (*tf.nest.map_structure(spec, (x, y)), tf.TensorSpec((None,), tf.float32))
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    return dataset.prefetch(2).with_options(options)


@contextlib.contextmanager
def full_precision():
    """A context in which float32 products are computed in float32: TF32 exceeds the slack of the bounds."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def pullback(model, xla: bool = False):
    """Function from inputs and a cotangent to outputs and the gradients of inputs and trainable variables.

    Integer inputs have no gradient; None stands in its place. `xla`: compile as `fit` may do.
    """

    @tf.function(jit_compile=xla)
    def pull(xs, cotangent):
        variables = [v.value for v in model.trainable_variables]
        floats = [x for x in xs if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            y = model(xs if len(xs) > 1 else xs[0])
        inputs, variables = tape.gradient(y, [floats, variables], cotangent, unconnected_gradients="zero")
        inputs = iter(inputs)
        return (
            y,
            [next(inputs) if x.dtype.is_floating else None for x in xs],
            [tf.convert_to_tensor(v) for v in variables],
        )

    return lambda xs, cotangent: pull([tf.constant(x) for x in xs], tf.constant(cotangent))


def compiled(function, variables):
    """Returns `function`, whose arguments are tensors, compiled.

    Args:
        function: reads `variables` and changes none.
        variables: the Keras variables that it reads.
    """
    return tf.function(function)
