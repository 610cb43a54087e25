"""Accuracy of the default head on the features of public networks, by rows and epsilon, beside a clipless one.

    python benchmarks/heads.py                                      # test set, seeds 0 1 2 3 4
    python benchmarks/heads.py --held-out --factor 0.3 1 3 --hidden 0 64 --seeds 0 1    # how its settings were chosen

The first five classes of CIFAR-10 stand for public data, as in `transfer.py`: its network of 64 features learns them,
and a wider one of 256. The head learns the other five from the first rows of their training images; with `--held-out`
the last 5,000 of these score. delta = 1e-5. Runs are added to `results/heads.json` one by one, and one that is there is
not repeated; those on held-out images are printed only. The features are kept in `build/`.
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib
import statistics
import time

import numpy as np
import transfer
from common import Series, p_text, p_value

BUILD = pathlib.Path(__file__).parent.parent / "build"
FEATURES = {"small": 64, "wide": 256}
WAYS = ("default", "clipless")
PLACE = ("network", "rows", "epsilon", "way", "seed")


def wide():
    """A convolutional network with 256 features that has learned the public classes."""
    import keras
    from keras import layers as L

    keras.utils.set_random_seed(0)
    stack = [keras.Input((32, 32, 3))]
    for filters in (64, 128):
        stack += [L.Conv2D(filters, 3, padding="same", activation="relu"), L.MaxPooling2D()]
    body = keras.Sequential([*stack, L.Conv2D(256, 3, padding="same", activation="relu"), L.GlobalAveragePooling2D()])
    model = keras.Sequential([*stack[:1], L.RandomFlip("horizontal"), body, L.Dense(len(transfer.PUBLIC))])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    train, test = transfer.images()[:2]
    model.fit(*train, batch_size=128, epochs=6, verbose=0)
    print("public classes:", model.evaluate(*test, batch_size=1000, verbose=0, return_dict=True), flush=True)
    return body


@functools.cache
def features(network: str) -> tuple:
    """Rows of features of the private training and test images."""
    import lipdp

    file = BUILD / f"heads-{network}.npz"
    if not file.exists():
        if network == "wide":
            body = wide()
        else:
            body = transfer.network()
            body.set_weights(transfer.public())
        found = [lipdp.features(body, x, verbose=0) for x, _ in transfer.images()[2:]]
        BUILD.mkdir(exist_ok=True)
        np.savez(file, train=found[0], test=found[1])
    with np.load(file) as found:
        return tuple((found[name], y) for name, (_, y) in zip(("train", "test"), transfer.images()[2:], strict=True))


def run(network: str, rows: int, epsilon: float, way: str, seed: int, held_out: bool = False, **settings) -> dict:
    """One run, and its accuracy."""
    import keras

    import lipdp

    (x, y), test = features(network)
    scored = test
    if held_out:
        x, y, scored = x[:-5000], y[:-5000], (x[-5000:], y[-5000:])
    x, y = x[:rows], y[:rows]
    if way == "clipless":
        recipe = lipdp.recipe(x.shape[1:], 5, len(x), epsilon, method="clipless")
        x, scored = standardized(x), (standardized(scored[0]), scored[1])
    else:
        recipe = lipdp.recipe(x.shape[1:], 5, len(x), epsilon, style="head")
    factor = settings.pop("factor", 1.0)
    recipe = dataclasses.replace(recipe, learning_rate=factor * recipe.learning_rate, **settings)
    keras.utils.set_random_seed(seed)
    begin = time.perf_counter()
    model = recipe.fit(x, y, epsilon=epsilon, delta=1e-5, training_metrics=False, seed=seed, verbose=0)
    seconds = time.perf_counter() - begin
    accuracy = model.evaluate(*scored, batch_size=1000, verbose=0, return_dict=True)["accuracy"]
    keras.backend.clear_session()
    return {
        "network": network,
        "rows": len(x),
        "epsilon": epsilon,
        "way": way,
        "seed": seed,
        "accuracy": round(accuracy, 4),
        "seconds": round(seconds, 1),
        "learning_rate": recipe.learning_rate,
        "hidden": recipe.hidden,
    }


def standardized(x):
    """Each row less its own mean, over its own deviation, as `lipdp train --backbone` does it."""
    x = x - x.mean(axis=1, keepdims=True)
    return x / (x.std(axis=1, keepdims=True) + np.float32(1e-6))


def table(runs: list[dict]) -> str:
    """The accuracies as a Markdown table, with a paired test."""
    lines = [
        "| features | rows | epsilon | default head % (sd) | hidden | clipless % (sd) | p | seeds | seconds |",
        "|---" * 9 + "|",
    ]
    for place in sorted({(one["network"], one["rows"], one["epsilon"]) for one in runs}):
        chosen = [one for one in runs if (one["network"], one["rows"], one["epsilon"]) == place]
        ways = [[one for one in chosen if one["way"] == way] for way in WAYS]
        if not all(ways):
            continue
        cells = []
        for way in ways:
            accuracy = [100.0 * one["accuracy"] for one in way]
            deviation = f" ({statistics.stdev(accuracy):.2f})" if len(accuracy) > 1 else ""
            cells.append(f"{statistics.mean(accuracy):.2f}{deviation}")
        (network, rows, epsilon), (first, *_) = place, ways[0]
        lines.append(
            f"| {FEATURES[network]} | {rows} | {epsilon:g} | {cells[0]} | {first['hidden']} | {cells[1]} | "
            f"{p_text(p_value(*ways))} | {len(ways[0])} | "
            f"{statistics.median(one['seconds'] for one in ways[0]):.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", default=list(FEATURES), choices=FEATURES)
    parser.add_argument("--rows", nargs="+", type=int, default=[500, 2000, 8000, 25000])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 4.0])
    parser.add_argument("--way", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--held-out", action="store_true", help="score on the last training images")
    parser.add_argument("--factor", nargs="+", type=float, help="of the learning rate, with --held-out")
    parser.add_argument("--hidden", nargs="+", type=int, help="widths of the hidden layer, with --held-out")
    options = parser.parse_args()
    tried = [("factor", value) for value in options.factor or []], [("hidden", value) for value in options.hidden or []]
    if any(tried) and not options.held_out:
        parser.error("settings are chosen with --held-out, not on the test set")
    places = itertools.product(options.network, options.rows, options.epsilon, options.way, options.seeds)
    series = Series(None if options.held_out else "heads", PLACE)
    settings = [dict(chosen) for chosen in itertools.product(*filter(None, tried))] or [{}]
    for place, chosen in itertools.product(places, settings):
        if options.held_out:
            print(chosen, run(*place, held_out=True, **chosen), flush=True)
        elif series.missing(*place):
            found = run(*place)
            series.add(found, delta=1e-5)
            print(found, flush=True)
    print(table(series.runs))


if __name__ == "__main__":
    main()
