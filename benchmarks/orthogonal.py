"""What a convolution in front of the hidden layer certifies: none, one divided by the taps, and an orthogonal one.

    python benchmarks/orthogonal.py                      # MNIST, epsilon 2, two seeds, held-out training images

Networks on images of 14 x 14 pixels (averages of blocks of four, times two), trained with the settings of the robust
recipe at epsilon 2, on the first 50,000 training images, scored on the last 10,000; the test set is not read. Radii are
L2, in pixels of [0, 1]. Runs are added to `results/orthogonal.json` one by one, and one that is there is not repeated.
"""

import argparse
import itertools
import time

import numpy as np
from common import Series

NETWORKS = ("dense", "spectral", "orthogonal")
RADII = (0.25, 0.5, 1.0)
PLACE = ("network", "epsilon", "updates", "seed")


def network(name: str):
    """Returns the layers of one of the networks."""
    import keras

    from lipdp import layers

    stack = [keras.Input((28, 28, 1)), layers.LayerCentering(), layers.ScaledAveragePooling2D(2)]
    stack.append(layers.BoundedInput(norm=10.0))
    if name != "dense":
        kind = layers.OrthogonalConv2D if name == "orthogonal" else layers.SpectralConv2D
        stack += [layers.InvertibleDownSampling2D(2), kind(16, 3), layers.GroupSort()]
    stack += [layers.Flatten(), layers.SpectralDense(128), layers.Abs(), layers.LayerCentering()]
    return [*stack, layers.SpectralDense(10)]


def run(name: str, epsilon: float, updates: int, seed: int) -> dict:
    """One training run, and what is certified of it."""
    import keras

    import lipdp
    from lipdp import certify, losses, strategies
    from lipdp.data import load

    data = load("mnist")
    cut = len(data.x_train) - len(data.x_train) // 6
    x, y, x_held, y_held = data.x_train[:cut], data.y_train[:cut], data.x_train[cut:], data.y_train[cut:]
    keras.utils.set_random_seed(seed)
    model = lipdp.DP_Sequential(network(name))
    rate = keras.optimizers.schedules.PolynomialDecay(2.5, updates, end_learning_rate=0.0)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, loss=losses.SparseCategoricalCrossentropy(temperature=5.0))
    begin = time.perf_counter()
    strategy = strategies.DPSGD(clip_norm=1.0, clipping="automatic", stability=0.002)
    budget = {"epsilon": epsilon, "delta": 1e-5, "strategy": strategy, "steps_per_epoch": updates}
    model.fit(x, y, batch_size=4096, **budget, training_metrics=False, seed=seed, verbose=0)
    seconds = time.perf_counter() - begin
    certified = certify.certified_accuracy(model, x_held, y_held, at=(0.0, *RADII))
    return {
        "network": name,
        "epsilon": epsilon,
        "updates": updates,
        "seed": seed,
        "accuracy": round(certified[0.0], 4),
        "certified": {f"{r:.3g}": round(certified[r], 4) for r in RADII},
        "parameters": int(sum(np.prod(v.shape) for v in model.trainable_variables)),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[2.0])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--name", default="orthogonal", help="name of the result file")
    options = parser.parse_args()
    series = Series(options.name, PLACE)
    for seed, name, epsilon in itertools.product(options.seeds, options.network, options.epsilon):
        if series.missing(name, epsilon, options.updates, seed):
            found = run(name, epsilon, options.updates, seed)
            series.add(found, delta=1e-5)
            print(found, flush=True)


if __name__ == "__main__":
    main()
