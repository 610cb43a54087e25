"""Fine-tuning privately from public weights: what trains, head, LoRA or all, against training from scratch, by epsilon.

    python benchmarks/transfer.py                                     # epsilon 1 2 4 8, 5 seeds, test set
    python benchmarks/transfer.py --held-out --epsilon 2 --seeds 0 --rate 0.25 0.5 1

A small convolutional network learns five classes of CIFAR-10 without privacy: these stand for public data. Then it
learns the other five by DP-SGD, with a new head: "head" trains that alone, on features that are computed once, "lora"
also additions of rank 8 to the hidden layer, "full" all weights, "scratch" all weights from a random start. Rates were
chosen on held-out training images (the last 5,000) at epsilon 2, once for each way; delta = 1e-5. Runs are added to
`results/transfer.json` one by one, and one that is there is not repeated; the public weights are kept in `build/`.
"""

import argparse
import functools
import itertools
import pathlib
import time

import numpy as np
from common import Series

WAYS = ("scratch", "head", "lora", "full")
EPSILONS = (1.0, 2.0, 4.0, 8.0)
PLACE = ("way", "epsilon", "seed", "rate", "evaluated_on")
RATES = {"scratch": 1.0, "head": 4.0, "lora": 2.0, "full": 1.0}
BATCH, EPOCHS, RANK = 2048, 10, 8
# By their numbers in CIFAR-10, first to last; which are public was not chosen by any figure.
PUBLIC, PRIVATE = range(5), range(5, 10)
WEIGHTS = pathlib.Path(__file__).parent.parent / "build" / "transfer.weights.h5"


def network():
    """A convolutional network up to its hidden layer."""
    import keras
    from keras import layers as L

    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            L.Conv2D(16, 5, strides=2, padding="same", activation="tanh"),
            L.Conv2D(32, 3, strides=2, padding="same", activation="tanh"),
            L.Conv2D(64, 3, strides=2, padding="same", activation="tanh"),
            L.Flatten(),
            L.Dense(64, activation="tanh", name="hidden"),
        ]
    )


@functools.cache
def images() -> tuple:
    """Public and private images and labels, training and test part of each."""
    from lipdp.data import load

    data = load("cifar10")
    found = []
    for classes in (PUBLIC, PRIVATE):
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
            chosen = np.isin(y, classes)
            found.append((x[chosen], y[chosen] - classes[0]))
    return tuple(found)


@functools.cache
def public():
    """The network up to its hidden layer, with weights that have learned the public classes."""
    import keras

    body = network()
    if not WEIGHTS.exists():
        keras.utils.set_random_seed(0)
        body = network()
        flipped = keras.layers.RandomFlip("horizontal")
        model = keras.Sequential([keras.Input((32, 32, 3)), flipped, body, keras.layers.Dense(len(PUBLIC))])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
        train, test = images()[:2]
        model.fit(*train, batch_size=128, epochs=8, verbose=0)
        found = model.evaluate(*test, batch_size=1000, verbose=0, return_dict=True)
        print("public classes:", found, flush=True)
        WEIGHTS.parent.mkdir(exist_ok=True)
        body.save_weights(WEIGHTS)
    body.load_weights(WEIGHTS)
    return body.get_weights()


@functools.cache
def parts(held_out: bool) -> tuple:
    """Private images and labels to train on and to score on."""
    (x, y), test = images()[2:]
    return ((x[:-5000], y[:-5000]), (x[-5000:], y[-5000:])) if held_out else ((x, y), test)


@functools.cache
def features(held_out: bool) -> tuple:
    """The same for the features of the public network."""
    import lipdp

    body = network()
    body.set_weights(public())
    return tuple((lipdp.features(body, x), y) for x, y in parts(held_out))


def model_of(way: str):
    """The network as it is before private training."""
    import keras

    body = network()
    if way != "scratch":
        body.set_weights(public())
    if way == "lora":
        for layer in body.layers:
            layer.trainable = layer.name == "hidden"
        body.get_layer("hidden").enable_lora(RANK)
    head = keras.layers.Dense(len(PRIVATE), kernel_initializer="zeros")
    if way == "head":
        return keras.Sequential([keras.Input((64,)), head])
    return keras.Sequential([keras.Input((32, 32, 3)), *body.layers, head])


def run(way: str, epsilon: float, seed: int, rate: float, held_out: bool) -> dict:
    """One private training run."""
    import keras

    import lipdp
    from lipdp import strategies

    (x, y), (x_test, y_test) = features(held_out) if way == "head" else parts(held_out)
    public()  # it may set a seed of its own
    keras.utils.set_random_seed(seed)
    model = lipdp.DP_Sequential.from_keras(model_of(way))
    updates = EPOCHS * -(-len(x) // BATCH)
    schedule = keras.optimizers.schedules.PolynomialDecay(rate, updates, end_learning_rate=0.0)
    model.compile(
        keras.optimizers.SGD(schedule, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    begin = time.perf_counter()
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=EPOCHS,
        epsilon=epsilon,
        delta=1e-5,
        strategy=strategies.DPSGD(clip_norm=1.0),
        training_metrics=False,
        seed=seed,
        verbose=0,
    )
    seconds = time.perf_counter() - begin
    accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0, return_dict=True)["accuracy"]
    trained = int(sum(np.prod(v.shape) for v in model.trainable_variables))
    spent, noise = model.privacy.epsilon(), model.run.plan.noise_multiplier
    return {
        "way": way,
        "epsilon": epsilon,
        "seed": seed,
        "rate": rate,
        "evaluated_on": "held-out training images" if held_out else "test set",
        "accuracy": round(accuracy, 4),
        "spent": spent,
        "noise_multiplier": noise,
        "updates": updates,
        "trained": trained,
        "seconds": round(seconds, 1),
    }


def table(runs: list[dict]) -> str:
    """The results on the test set as a Markdown table, with a paired test of each way against the one before."""
    from scipy import stats

    chosen = [run for run in runs if run["evaluated_on"] == "test set" and run["rate"] == RATES[run["way"]]]
    lines = [
        "| epsilon | trains | weights | accuracy % (sd) | p, paired with scratch | seeds | seconds |",
        "|---" * 7 + "|",
    ]
    for epsilon, way in itertools.product(EPSILONS, WAYS):
        same, first = (
            {run["seed"]: run for run in chosen if (run["way"], run["epsilon"]) == (name, epsilon)}
            for name in (way, "scratch")
        )
        if not same:
            continue
        accuracy = 100.0 * np.array([run["accuracy"] for run in same.values()])
        deviation = f" ({accuracy.std(ddof=1):.2f})" if len(same) > 1 else ""
        seeds = sorted(set(same) & set(first))
        p = "-"
        if way != "scratch" and len(seeds) > 2:
            p = f"{stats.ttest_rel(*([part[s]['accuracy'] for s in seeds] for part in (same, first))).pvalue:.1g}"
        one = next(iter(same.values()))
        lines.append(
            f"| {epsilon:g} | {way} | {one['trained']} | {accuracy.mean():.2f}{deviation} | {p} | {len(same)} | "
            f"{np.median([run['seconds'] for run in same.values()]):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rate", nargs="+", type=float, help="learning rates to try, with --held-out")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--name", default="transfer", help="name of the result file")
    options = parser.parse_args()
    if options.rate and not options.held_out:
        parser.error("rates are chosen with --held-out, not on the test set")
    series = Series(options.name, PLACE)
    evaluated = "held-out training images" if options.held_out else "test set"
    for seed, epsilon, way in itertools.product(options.seeds, options.epsilon, options.way):
        for rate in options.rate or [RATES[way]]:
            if series.missing(way, epsilon, seed, rate, evaluated):
                found = run(way, epsilon, seed, rate, options.held_out)
                series.add(found, delta=1e-5)
                print({name: found[name] for name in (*PLACE, "accuracy", "seconds")}, flush=True)
    print(table(series.runs))


if __name__ == "__main__":
    main()
