"""CIFAR-10 from scratch by DP-SGD: a wide residual network with several views of each image, on a GPU.

    KERAS_BACKEND=jax python benchmarks/wide_resnet.py --epsilon 8
    KERAS_BACKEND=jax python benchmarks/wide_resnet.py --epsilon 8 --held-out --views 4 --updates 600

After De et al. 2022: WRN-16-4 with group normalization in place of batch normalization, random crops and mirror images
averaged before clipping, plain SGD, an average of the weights; without their standardization of weights. `--held-out`
trains on the first 40,000 images and scores on the other 10,000. delta = 1e-5. Figures are added to
`results/wide_resnet.json` run by run.
"""

import argparse
import time

import numpy as np
from common import Series

DELTA = 1e-5


def network(shape=(32, 32, 3), classes: int = 10, depth: int = 16, width: int = 4):
    """A wide residual network, preactivated, with group normalization."""
    import keras
    from keras import layers as L

    def activated(h):
        return L.Activation("relu")(L.GroupNormalization(16, epsilon=1e-5)(h))

    inputs = keras.Input(shape)
    h = L.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    for group, filters in enumerate((16 * width, 32 * width, 64 * width)):
        for block in range((depth - 4) // 6):
            strides = 2 if group and not block else 1
            ready = activated(h)
            skip = h if block else L.Conv2D(filters, 1, strides=strides, use_bias=False)(ready)
            h = L.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(ready)
            h = L.Add()([skip, L.Conv2D(filters, 3, padding="same", use_bias=False)(activated(h))])
    return keras.Model(inputs, L.Dense(classes)(L.GlobalAveragePooling2D()(activated(h))))


def averaging(momentum: float):
    """A callback that averages the weights, which costs no privacy, with a smaller momentum at first."""
    import keras

    class Average(keras.callbacks.Callback):
        values, updates = None, 0

        def on_train_batch_end(self, batch, logs=None):
            # JAX keeps the values outside of the variables while it trains.
            self.model.jax_state_sync()
            now, self.updates = [np.array(v) for v in self.model.trainable_variables], self.updates + 1
            share = min(momentum, (1 + self.updates) / (10 + self.updates))
            before = self.values or now
            self.values = [np.float32(share) * a + np.float32(1 - share) * b for a, b in zip(before, now, strict=True)]

    return Average()


def images(held_out: bool):
    """Standardized by constants that are known of the data set, as everyone uses them: no release."""
    from lipdp.data import load

    data = load("cifar10")
    mean, deviation = np.float32([0.4914, 0.4822, 0.4465]), np.float32([0.2470, 0.2435, 0.2616])
    x, x_test = ((part - mean) / deviation for part in (data.x_train, data.x_test))
    if held_out:
        return (x[:40000], data.y_train[:40000]), (x[40000:], data.y_train[40000:])
    return (x, data.y_train), (x_test, data.y_test)


def run(options) -> dict:
    """One training run and its figures."""
    import jax
    import keras

    import lipdp
    from lipdp import strategies

    (x, y), (x_test, y_test) = images(options.held_out)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.dtype_policy)
    model = lipdp.DP_Model.from_keras(network(width=options.width))
    rate = options.learning_rate
    if options.decay:
        rate = keras.optimizers.schedules.PolynomialDecay(rate, options.updates, end_learning_rate=0.1 * rate)
    model.compile(
        keras.optimizers.SGD(rate, momentum=options.momentum),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    average = averaging(options.average)

    class Report(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if (batch + 1) % 50 == 0:
                print(f"update {batch + 1}: {time.perf_counter() - begin:.0f} s", flush=True)

    begin = time.perf_counter()
    model.fit(
        x,
        y,
        batch_size=options.batch,
        microbatch_size=options.microbatch,
        steps_per_epoch=options.updates,
        epsilon=options.epsilon,
        delta=DELTA,
        strategy=strategies.DPSGD(
            clip_norm=1.0,
            augmentation_multiplicity=options.views,
            augmentation=strategies.RandomShift(4, flip=True),
        ),
        training_metrics=False,
        callbacks=[average, Report()],
        seed=options.seed,
        verbose=0,
    )
    seconds = time.perf_counter() - begin

    def accuracy() -> float:
        return round(model.evaluate(x_test, y_test, batch_size=1000, verbose=0, return_dict=True)["accuracy"], 4)

    last = accuracy()
    for variable, value in zip(model.trainable_variables, average.values, strict=True):
        variable.assign(value)
    return {
        "dataset": "cifar10",
        "network": f"WRN-16-{options.width}",
        "epsilon": options.epsilon,
        "seed": options.seed,
        "evaluated_on": "held-out training images" if options.held_out else "test set",
        "accuracy": accuracy(),
        "accuracy_of_last_weights": last,
        "spent": model.privacy.epsilon(),
        "noise_multiplier": model.run.plan.noise_multiplier,
        "updates": options.updates,
        "batch_size": options.batch,
        "views": options.views,
        "learning_rate": options.learning_rate,
        "momentum": options.momentum,
        "decay": options.decay,
        "average": options.average,
        "parameters": model.count_params(),
        "seconds": round(seconds, 1),
        "device": jax.devices()[0].device_kind,
        "dtype_policy": options.dtype_policy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--microbatch", type=int, default=128, help="images at once, with all their views")
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--updates", type=int, default=2500)
    parser.add_argument("--learning-rate", type=float, default=4.0)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--decay", action="store_true", help="let the rate fall linearly to a tenth")
    parser.add_argument("--dtype-policy", default="float32", choices=["float32", "mixed_bfloat16"])
    parser.add_argument("--average", type=float, default=0.999, help="momentum of the average of the weights")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--name", default="wide_resnet", help="name of the result file")
    options = parser.parse_args()
    series = Series(options.name, ("dataset", "network", "epsilon", "views", "updates", "seed", "evaluated_on"), True)
    found = run(options)
    print(found, flush=True)
    series.add(found, delta=DELTA)


if __name__ == "__main__":
    main()
