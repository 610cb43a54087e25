"""tensorflow-privacy on Keras 2: `DPSequential` by `tf.vectorized_map`, or by the registry of fast norms.

XLA is off, against the library's default: on the CPU it makes both slower. The default registry has rules for Dense and
Embedding only.
"""

import itertools

import protocol


def layers_of(name: str) -> list:
    from tensorflow.keras import layers as L

    stack = [L.InputLayer((28, 28, 1))]
    for filters in protocol.FILTERS[name]:
        stack += [L.Conv2D(filters, 3, padding="same", activation="relu"), L.MaxPooling2D(2)]
    *hidden, classes = protocol.UNITS[name]
    return [*stack, L.Flatten(), *(L.Dense(units, "relu") for units in hidden), L.Dense(classes)]


def make(method: str, network: str, batch: int) -> dict:
    import tensorflow as tf
    from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
    from tensorflow_privacy.privacy.keras_models.dp_keras_model import DPSequential

    if network not in protocol.UNITS:
        raise SystemExit("DPSequential takes a stack of layers, which a transformer is not")
    data = [(tf.constant(x), tf.constant(y)) for x, y in protocol.batches(batch)]
    registry = layer_registry.make_default_layer_registry() if method == "registry" else None

    def stepper(model):
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(protocol.LEARNING_RATE), loss=loss)
        model.optimizer.build(model.trainable_variables)
        train, feed = tf.function(model.train_step), itertools.cycle(data)
        return lambda: train(next(feed))

    private = DPSequential(
        l2_norm_clip=protocol.CLIP_NORM,
        noise_multiplier=protocol.NOISE_MULTIPLIER,
        use_xla=False,
        layer_registry=registry,
        layers=layers_of(network),
    )
    # Without rules for all layers the library falls back to the other method, and says so in its log only.
    if registry is not None and not private._enable_fast_peg_computation:
        raise SystemExit("the registry has no rule for some layer of this network")
    return {"plain": stepper(tf.keras.Sequential(layers_of(network))), "private": stepper(private)}


if __name__ == "__main__":
    packages = ("tensorflow-privacy", "tensorflow", "keras", "numpy")
    protocol.run("tf_privacy", packages, ("vectorized", "registry"), make)
