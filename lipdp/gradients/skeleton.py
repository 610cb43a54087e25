"""Plain per-example gradients behind the interface of the engine, until it is there."""

import keras
from keras import ops

from lipdp.gradients.factors import Whole
from lipdp.gradients.record import Record


def supported(model) -> None:
    """Raises ValueError for a model whose per-example gradients cannot be had."""
    if not model.trainable_variables:
        raise ValueError("The model has no trainable weights.")
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            raise ValueError(f"Layer '{layer.name}' mixes examples. Use GroupNormalization or LayerNormalization.")


def capture(model, x, y, weight, *, loss_values, views=1, trainable=None, non_trainable=None) -> Record:
    """See `Record`."""
    run = _tensorflow if keras.backend.backend() == "tensorflow" else _jax
    return run(model, x, y, weight, loss_values, views, trainable, non_trainable)


def _tensorflow(model, x, y, weight, loss_values, views, trainable, non_trainable):
    import tensorflow as tf

    split = lambda t: tf.reshape(t, tf.concat([[-1, views], tf.shape(t)[1:]], 0))
    y_pred = model(x, training=True)
    values = loss_values(y, y_pred)
    variables = model.trainable_variables

    def one(row):
        xs, ys, w = row
        with tf.GradientTape() as tape:
            loss = w * tf.reduce_mean(loss_values(ys, model(xs, training=True)))
        return tuple(tape.gradient(loss, variables, unconnected_gradients="zero"))

    rows = (tf.nest.map_structure(split, x), tf.nest.map_structure(split, y), weight)
    signature = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
    grads = tf.map_fn(one, rows, fn_output_signature=signature)
    return Record([Whole(g) for g in grads], values, y_pred, None)


def _jax(model, x, y, weight, loss_values, views, trainable, non_trainable):
    import jax

    y_pred, updated = model.stateless_call(trainable, non_trainable, x, training=True)
    values = loss_values(y, y_pred)

    def one(row):
        def loss(trainable):
            xs, ys, w = row
            return w * ops.mean(loss_values(ys, model.stateless_call(trainable, non_trainable, xs, training=True)[0]))

        return jax.grad(loss)(list(trainable))

    split = lambda t: t.reshape((-1, views, *t.shape[1:]))
    grads = jax.lax.map(one, (jax.tree.map(split, x), jax.tree.map(split, y), weight))
    return Record([Whole(g) for g in grads], values, y_pred, updated)
