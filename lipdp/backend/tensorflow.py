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
    count = tf.shape(weight)[0] // chunk
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


def per_example_train_step(model, data, strategy, chunk: int | None):
    """One update of a strategy that clips: its sums over all chunks, applied once.

    Called inside the compiled step in place of Keras' own `train_step`.
    """
    optimizer, batch_size = model.optimizer, model.run.settings.batch_size
    state = [tf.convert_to_tensor(v.value) for v in optimizer.strategy_state]
    size = 0 if strategy.query_noise(batch_size) is None else 1

    def part(i, rows):
        totals, seen, _ = strategy.chunk(model, state, i, optimizer.iterations.value, rows)
        model.compute_metrics(*seen)
        return totals

    if chunk is None:
        sums, query, loss = part(0, data)
    else:
        count = tf.shape(data[2])[0] // chunk

        def body(i, totals):
            rows = tf.nest.map_structure(lambda t: t[i * chunk : (i + 1) * chunk], data)
            return i + 1, tf.nest.map_structure(tf.add, totals, part(i, rows))

        zeros = ([tf.zeros(v.shape) for v in model.trainable_variables], [tf.zeros(())] * size, tf.zeros(()))
        _, (sums, query, loss) = tf.while_loop(lambda i, _: i < count, body, (0, zeros), parallel_iterations=1)
    model._loss_tracker.update_state(loss)
    optimizer.apply([*strategy.average(sums, state, batch_size), *query], model.trainable_variables)
    return model.get_metrics_result()


def replicas(model) -> int:
    """On how many devices a step of the model runs side by side."""
    return model.distribute_strategy.num_replicas_in_sync


def compiles(model) -> bool:
    """Whether a new batch shape costs a compilation."""
    return bool(model.jit_compile)


@contextlib.contextmanager
def full_precision():
    """A context in which float32 products are computed in float32: TF32 exceeds the slack of the bounds."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
