"""Accuracy of `lipdp train`'s default recipe on images: a small network on fixed features, by epsilon.

    python benchmarks/scattered.py                                        # all sets, DP-SGD, 5 seeds, test sets
    python benchmarks/scattered.py --dataset cifar10 --held-out --set learning_rate=0.5
    python benchmarks/scattered.py --dataset fashion_mnist --method clipless

The recipe of `lipdp.recipe(shape, classes, N, epsilon)`: features of `Scattering2D`, of `PatchFeatures2D` and, of
images in color, of `EncoderFeatures2D`, normalized by private moments, and one dense layer. As in `lipdp train`, digits
of MNIST are deskewed first; with strategies that clip they have the features of wavelets alone, and a dense layer with
tanh at each place before the last. "clipless" is the recipe of `lipdp.recipe(..., front_end="accurate")`. The settings
were chosen on held-out training images of CIFAR-10 (40,000 train, 10,000 score), of Fashion-MNIST and, for deskewing
and its rate, of MNIST (50,000, 10,000), never on a test set; the cost of that choice is not part of epsilon. delta =
1e-5. `--held-out` does the same. Runs are added to `results/scattered.json` one by one, and one that is there is not
repeated; `--features DIR` keeps the features of images for the next command (CIFAR-10: 4 GB). CIFAR-10 may be a copy
that was encoded again as JPEG, see the note there.
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib
import time

import numpy as np
from common import Series, p_text, p_value, settings

DATASETS = ("mnist", "fashion_mnist", "cifar10")
METHODS = ("dpsgd", "clipless", "dpis", "adaclip")
EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
BEFORE = "decorrelated=False"  # runs of the recipe when each channel was scaled by itself
PLACE = ("dataset", "method", "epsilon", "seed", "evaluated_on", "changes")
# Accuracy in percent without public data, and where it is published.
PUBLISHED = {
    ("mnist", 2.0): "98.5 (Tramer & Boneh 2021)",
    ("mnist", 3.0): "98.7 (Tramer & Boneh 2021)",
    ("fashion_mnist", 3.0): "89.7 (Tramer & Boneh 2021)",
    ("cifar10", 1.0): "60.9 (R+R 2024), 56.8 (De et al. 2022, WRN-40-4)",
    ("cifar10", 2.0): "67.0 (R+R 2024), 65.9 (De et al. 2022)",
    ("cifar10", 3.0): "67.0 linear, 69.3 CNN (Tramer & Boneh 2021)",
    ("cifar10", 4.0): "69.7 (R+R 2024), 73.5 (De et al. 2022)",
    ("cifar10", 8.0): "72.4 (R+R 2024), 81.4 (De et al. 2022)",
}


@functools.lru_cache(maxsize=1)
def data(dataset: str, front: tuple, held_out: bool, folder: pathlib.Path | None) -> tuple:
    """Features and labels to train on and to score on; features are computed once for all runs of a set."""
    import lipdp
    from lipdp.data import load

    found = load(dataset)
    x, y = found.x_train, found.y_train
    cut = len(x) - (10000 if held_out else 0)
    recipe = lipdp.recipe(x.shape[1:], found.num_classes, cut, 1.0)
    recipe = dataclasses.replace(recipe, **dict(front), hidden=0)
    x_test, y_test = (x[cut:], y[cut:]) if held_out else (found.x_test, found.y_test)
    if folder is not None:
        settings = "_".join(f"{name}-{value}" for name, value in front)
        folder = folder / f"{dataset}_{settings}_{'held_out' if held_out else 'test'}"
    return (prepared(recipe, x[:cut], folder, "train"), y[:cut]), (prepared(recipe, x_test, folder, "score"), y_test)


def prepared(recipe, x: np.ndarray, folder: pathlib.Path | None, part: str) -> np.ndarray:
    """Features, from a file if it holds those that this version computes for these images."""
    if folder is None:
        return recipe.prepare(x)
    path = folder / f"{part}.npy"
    if path.exists():
        known = np.load(path, mmap_mode="r")
        some = np.linspace(0, len(x) - 1, 64).astype(int)
        if len(known) == len(x) and np.allclose(known[some], recipe.prepare(x[some]), rtol=1e-3, atol=1e-4):
            return np.array(known)
    found = recipe.prepare(x)
    folder.mkdir(parents=True, exist_ok=True)
    # Under another name first: a file cut short would be taken for the whole.
    np.save(folder / f"{part}_partial.npy", found)
    (folder / f"{part}_partial.npy").replace(path)
    return found


def run(
    dataset: str,
    method: str,
    epsilon: float,
    seed: int,
    held_out: bool,
    changes: dict,
    folder: pathlib.Path | None = None,
) -> dict:
    """One training run and its accuracy."""
    import keras

    import lipdp
    from lipdp.data import load

    found = load(dataset)
    count = found.num_examples - (10000 if held_out else 0)
    recipe = lipdp.models.scattered_recipe(
        found.input_shape, found.num_classes, count, epsilon, method=method, deskewed=found.handwritten
    )
    recipe = dataclasses.replace(recipe, **changes)
    front = tuple((name, getattr(recipe, name)) for name in ("mirrored", "deskewed", "patches", "scaled", "encoded"))
    (x, y), (x_test, y_test) = data(dataset, front, held_out, folder)
    keras.utils.set_random_seed(seed)
    begin = time.perf_counter()
    model = recipe.trained(len(x))
    model.fit(
        x,
        y,
        batch_size=recipe.batch_size,
        epochs=recipe.epochs,
        epsilon=epsilon,
        delta=1e-5,
        strategy=recipe.strategy(),
        training_metrics=False,
        seed=seed,
        verbose=0,
    )
    seconds = time.perf_counter() - begin
    accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0, return_dict=True)["accuracy"]
    keras.backend.clear_session()
    return {
        "dataset": dataset,
        "method": method,
        "epsilon": epsilon,
        "seed": seed,
        "evaluated_on": "held-out training images" if held_out else "test set",
        "changes": " ".join(f"{name}={value}" for name, value in changes.items()),
        "accuracy": round(accuracy, 4),
        "spent": model.privacy.epsilon(),
        "noise_multiplier": model.run.plan.noise_multiplier,
        "updates": model.privacy.updates,
        "seconds": round(seconds, 1),
        "settings": dataclasses.asdict(recipe),
    }


def table(runs: list[dict], changes: str = "") -> str:
    """The results on test sets as a Markdown table, with paired tests against DP-SGD."""
    lines = [
        "| data | epsilon | method | accuracy % (sd) | published % | p, paired | seeds | seconds |",
        "|---" * 8 + "|",
    ]

    def place(run):
        return DATASETS.index(run["dataset"]), run["epsilon"], METHODS.index(run["method"])

    chosen = sorted((run for run in runs if of_test(run, changes)), key=place)
    groups = {key: list(same) for key, same in itertools.groupby(chosen, place)}
    for (number, epsilon, method), same in groups.items():
        first = groups.get((number, epsilon, 0), [])
        p = p_value(first, same) if method else None
        lines.append(
            f"| {same[0]['dataset']} | {epsilon:g} | {same[0]['method']} | {mean(same)} | "
            f"{PUBLISHED.get((same[0]['dataset'], epsilon), '-')} | {p_text(p)} | {len(same)} | "
            f"{np.median([run['seconds'] for run in same]):.0f} |"
        )
    return "\n".join(lines)


def of_test(run: dict, changes: str) -> bool:
    return run["evaluated_on"] == "test set" and run["changes"] == changes


def mean(runs: list[dict]) -> str:
    """Mean accuracy in percent, and its standard deviation."""
    accuracy = 100.0 * np.array([run["accuracy"] for run in runs])
    deviation = f" ({accuracy.std(ddof=1):.2f})" if len(accuracy) > 1 else ""
    return f"{accuracy.mean():.2f}{deviation}"


def gain(runs: list[dict], without: str, given: str = "") -> str:
    """What a part of the recipe adds on CIFAR-10, by the changes of two kinds of runs, with paired tests."""
    lines = ["| epsilon | method | without % (sd) | with % (sd) | p, paired |", "|---" * 5 + "|"]
    for epsilon, method in itertools.product(EPSILONS, METHODS):
        own = {"dataset": "cifar10", "epsilon": epsilon, "method": method}
        same = [run for run in runs if all(run[name] == value for name, value in own.items())]
        before, now = ([run for run in same if of_test(run, changes)] for changes in (without, given))
        if before and now:
            p = p_text(p_value(before, now))
            lines.append(f"| {epsilon:g} | {method} | {mean(before)} | {mean(now)} | {p} |")
    return "\n".join(lines)


def reached(runs: list[dict]) -> list[dict]:
    """What `lipdp train` says about its default recipe: means on the test sets."""
    chosen = [run for run in runs if run["evaluated_on"] == "test set" and run["method"] == "dpsgd"]

    def place(run):
        return DATASETS.index(run["dataset"]), run["epsilon"]

    rows = []
    for _, same in itertools.groupby(sorted((run for run in chosen if not run["changes"]), key=place), place):
        same = list(same)
        accuracy = round(100.0 * float(np.mean([run["accuracy"] for run in same])), 2)
        one = {"dataset": same[0]["dataset"], "epsilon": same[0]["epsilon"]}
        rows.append({**one, "accuracy": accuracy, "seeds": len(same)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--method", nargs="+", default=["dpsgd"], choices=METHODS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings to try, with --held-out")
    parser.add_argument("--features", type=pathlib.Path, help="a folder that keeps features between commands")
    parser.add_argument("--name", default="scattered", help="name of the result file")
    options = parser.parse_args()
    if options.set and not options.held_out:
        parser.error("settings are chosen with --held-out, not on a test set")
    changes = settings(options.set)
    series = Series(options.name, PLACE)
    evaluated = "held-out training images" if options.held_out else "test set"
    text = " ".join(f"{name}={value}" for name, value in changes.items())
    for dataset, seed, epsilon, method in itertools.product(
        options.dataset, options.seeds, options.epsilon, options.method
    ):
        if series.missing(dataset, method, epsilon, seed, evaluated, text):
            found = run(dataset, method, epsilon, seed, options.held_out, changes, options.features)
            note = "Images encoded again as JPEG." if dataset == "cifar10" else ""
            series.add({**found, "note": note}, delta=1e-5)
            print({k: found[k] for k in (*PLACE, "accuracy", "seconds")}, flush=True)
    print(table(series.runs))


if __name__ == "__main__":
    main()
