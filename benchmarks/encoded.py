"""CIFAR-10 by DP-SGD on fixed features and on those of an encoder that has seen images of random processes only.

    python benchmarks/encoded.py                              # epsilon 1, 4 and 8, 5 seeds, test set
    python benchmarks/encoded.py --held-out --features-of encoder --epsilon 1

The recipe of `scattered.py`, its head and its settings unchanged, on other features: "encoder", those of
`results/encoder.npz`, which `encoder.py` has trained on a GPU and which has seen no real image; "both", those and the
fixed ones, of wavelets and patches, which `lipdp train` takes and whose runs are in `results/scattered.json`. Each
channel is centered and scaled by what it is on random images. Which maps of the encoder are read was chosen on held-out
training images (`--held-out`: 40,000 train, 10,000 score). Runs are added to `results/encoded.json` one by one;
`--features DIR` keeps features for the next command, in the same folder as those of `scattered.py`. delta = 1e-5.
CIFAR-10 may be a copy that was encoded again as JPEG.
"""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import time

import numpy as np
from common import RESULTS, Series, p_text, p_value

DATASET, DELTA = "cifar10", 1e-5
FEATURES = ("encoder", "both")
PLACE = ("features", "epsilon", "seed", "evaluated_on")


def encoded(x: np.ndarray, path: pathlib.Path | None) -> np.ndarray:
    """Features of the encoder, each channel centered and scaled by what it is on random images; from a file if kept."""
    import encoder

    import lipdp
    from lipdp.layers import dead_leaves

    if path is not None and path.exists():
        return np.load(path)
    front = encoder.front(encoder.load(RESULTS / "encoder.npz"))
    public = lipdp.features(front, dead_leaves.images(256, x.shape[1:], seed=1))
    mean, variance = public.mean((0, 1, 2)), public.var((0, 1, 2))
    # A channel that is nearly constant there may be none on photographs.
    deviation = np.sqrt(variance + np.median(variance))
    found = ((lipdp.features(front, x) - mean) / deviation).reshape(len(x), -1).astype("float32")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, found)
    return found


def data(kind: str, held_out: bool, folder: pathlib.Path | None) -> tuple:
    """Features and labels to train on and to score on."""
    import scattered

    import lipdp
    from lipdp.data import load

    found = load(DATASET)
    x, y = found.x_train, found.y_train
    cut = len(x) - (10000 if held_out else 0)
    parts = (x[:cut], x[cut:] if held_out else found.x_test)
    labels = y[:cut], y[cut:] if held_out else found.y_test
    sets: list = [[], []]
    if kind != "encoder":
        recipe = lipdp.models.scattered_recipe(found.input_shape, found.num_classes, cut, 1.0)
        front = tuple((name, getattr(recipe, name)) for name in ("mirrored", "deskewed", "patches", "scaled"))
        for own, (features, _) in zip(sets, scattered.data(DATASET, front, held_out, folder), strict=True):
            own.append(features)
    for own, images, part in zip(sets, parts, ("train", "score"), strict=True):
        name = f"encoder_{'held_out' if held_out else 'test'}_{part}.npy"
        own.append(encoded(images, None if folder is None else folder / name))
    x, x_test = (np.concatenate(own, axis=1) for own in sets)
    return (x, labels[0]), (x_test, labels[1])


def run(found: tuple, kind: str, epsilon: float, seed: int, held_out: bool) -> dict:
    """One training run and its accuracy."""
    import keras

    import lipdp
    from lipdp import layers

    (x, y), (x_test, y_test) = found
    recipe = lipdp.models.scattered_recipe((32, 32, 3), 10, len(x), epsilon)
    # The recipe's norm is that of its own features.
    own = math.prod(recipe.trained(len(x)).input_shape[1:])
    recipe = dataclasses.replace(recipe, feature_norm=recipe.feature_norm * math.sqrt(x.shape[1] / own))
    keras.utils.set_random_seed(seed)
    model = lipdp.DP_Sequential(
        [
            keras.Input(x.shape[1:]),
            layers.PrivateNormalization(recipe.feature_norm, recipe.moments_noise),
            keras.layers.Dense(10, kernel_initializer="zeros"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(recipe.rate(len(x)), momentum=recipe.momentum),
        loss=lipdp.losses.SparseCategoricalCrossentropy(),
        metrics=["accuracy"],
    )
    begin = time.perf_counter()
    model.fit(
        x,
        y,
        batch_size=recipe.batch_size,
        epochs=recipe.epochs,
        epsilon=epsilon,
        delta=DELTA,
        strategy=recipe.strategy(),
        training_metrics=False,
        seed=seed,
        verbose=0,
    )
    seconds = time.perf_counter() - begin
    accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0, return_dict=True)["accuracy"]
    spent, updates = model.privacy.epsilon(), model.privacy.updates
    keras.backend.clear_session()
    return {
        "features": kind,
        "epsilon": epsilon,
        "seed": seed,
        "evaluated_on": place(held_out),
        "accuracy": round(accuracy, 4),
        "spent": spent,
        "updates": updates,
        "entries": x.shape[1],
        "feature_norm": recipe.feature_norm,
        "seconds": round(seconds, 1),
    }


def place(held_out: bool) -> str:
    return "held-out training images" if held_out else "test set"


def fixed() -> list[dict]:
    """The runs on fixed features alone, those of the default recipe."""
    runs = json.loads((RESULTS / "scattered.json").read_text())["runs"]
    own = {"dataset": DATASET, "method": "dpsgd", "changes": ""}
    return [{**run, "features": "fixed"} for run in runs if all(run[name] == value for name, value in own.items())]


def table(runs: list[dict]) -> str:
    """The results on the test set as a Markdown table, with paired tests against the fixed features."""
    lines = ["| epsilon | features | accuracy % (sd) | p, paired | seeds | seconds |", "|---" * 6 + "|"]
    budgets = sorted({run["epsilon"] for run in runs if run["evaluated_on"] == place(False)})
    chosen = [run for run in (*fixed(), *runs) if run["evaluated_on"] == place(False)]
    for epsilon, kind in itertools.product(budgets, ("fixed", *FEATURES)):
        same = [run for run in chosen if (run["epsilon"], run["features"]) == (epsilon, kind)]
        first = [run for run in chosen if (run["epsilon"], run["features"]) == (epsilon, "fixed")]
        if same:
            accuracy = 100.0 * np.array([run["accuracy"] for run in same])
            deviation = f" ({accuracy.std(ddof=1):.2f})" if len(same) > 1 else ""
            p = "-" if kind == "fixed" else p_text(p_value(first, same))
            seconds = np.median([run["seconds"] for run in same])
            lines.append(
                f"| {epsilon:g} | {kind} | {accuracy.mean():.2f}{deviation} | {p} | {len(same)} | {seconds:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features-of", nargs="+", default=list(FEATURES), choices=FEATURES)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 4.0, 8.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--features", type=pathlib.Path, help="a folder that keeps features between commands")
    parser.add_argument("--name", default="encoded", help="name of the result file")
    options = parser.parse_args()
    series = Series(options.name, PLACE)
    for kind in options.features_of:
        found = None
        for seed, epsilon in itertools.product(options.seeds, options.epsilon):
            if series.missing(kind, epsilon, seed, place(options.held_out)):
                found = data(kind, options.held_out, options.features) if found is None else found
                result = run(found, kind, epsilon, seed, options.held_out)
                series.add({**result, "note": "Images encoded again as JPEG."}, delta=DELTA)
                print({k: result[k] for k in (*PLACE, "accuracy", "seconds")}, flush=True)
    print(table(series.runs))


if __name__ == "__main__":
    main()
