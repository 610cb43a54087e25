"""Private and certified: accuracy that holds for every change of the pixels up to a radius, by epsilon.

    python benchmarks/certified.py                                  # MNIST, Fashion-MNIST, CIFAR-10; 5 seeds, test set
    python benchmarks/certified.py --dataset mnist --epsilon 2 --held-out --radius 0.25 0.5

The robust recipe of `lipdp.recipe(..., style="robust")` with automatic clipping (DP-SGD) and clipless, on pixels in
[0, 1]; radii are L2. Its settings were chosen on held-out training images of MNIST (50,000 train, 10,000 score), never
on a test set, and taken to the other sets by their size; the cost of that choice is not part of epsilon. delta = 1e-5.
`--held-out` trains on the first five sixths of the training images and scores on the others. Runs are added to
`results/certified.json` one by one, and one that is there is not repeated. CIFAR-10 may be a copy that was encoded
again as JPEG, see the note in the result.
"""

import argparse
import dataclasses
import itertools
import time

import numpy as np
from common import Series, settings

DATASETS = ("mnist", "fashion_mnist", "cifar10")
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
RADII = (0.1, 36 / 255, 0.25, 0.5, 1.0)
PLACE = ("dataset", "method", "epsilon", "radius", "seed", "evaluated_on", "changes")


def run(dataset: str, method: str, epsilon: float, radius: float, seed: int, held_out: bool, changes: dict) -> dict:
    """One training run, and what is certified of it."""
    import keras

    import lipdp
    from lipdp import certify
    from lipdp.data import load

    data = load(dataset)
    x, y, x_test, y_test = data.x_train, data.y_train, data.x_test, data.y_test
    if held_out:
        cut = len(x) - len(x) // 6
        x, y, x_test, y_test = x[:cut], y[:cut], x[cut:], y[cut:]
    keras.utils.set_random_seed(seed)
    recipe = lipdp.recipe(x.shape[1:], data.num_classes, len(x), epsilon, style="robust", method=method, radius=radius)
    recipe = dataclasses.replace(recipe, **changes)
    begin = time.perf_counter()
    model = recipe.fit(x, y, epsilon=epsilon, delta=1e-5, training_metrics=False, seed=seed, verbose=0)
    seconds = time.perf_counter() - begin
    certified = certify.certified_accuracy(model, x_test, y_test, at=(0.0, *RADII))
    return {
        "dataset": dataset,
        "method": method,
        "epsilon": epsilon,
        "radius": radius,
        "seed": seed,
        "evaluated_on": "held-out training images" if held_out else "test set",
        "changes": " ".join(f"{name}={value}" for name, value in changes.items()),
        "accuracy": round(certified[0.0], 4),
        "certified": {f"{r:.3g}": round(certified[r], 4) for r in RADII},
        "spent": model.privacy.epsilon(),
        "noise_multiplier": model.run.plan.noise_multiplier,
        "updates": model.privacy.updates,
        "parameters": int(sum(np.prod(v.shape) for v in model.trainable_variables)),
        "seconds": round(seconds, 1),
    }


def table(runs: list[dict]) -> str:
    """The results on test sets as a Markdown table."""
    names = [f"{r:.3g}" for r in RADII]
    lines = [
        f"| data | method | epsilon | radius of the recipe | accuracy % (sd) | certified % at {' | '.join(names)} | "
        "seeds | seconds |",
        "|" + "---|" * (7 + len(names)),
    ]

    def place(run):
        return DATASETS.index(run["dataset"]), run["method"] != "dpsgd", run["epsilon"], run["radius"]

    chosen = [run for run in runs if run["evaluated_on"] == "test set" and not run["changes"]]
    for _, same in itertools.groupby(sorted(chosen, key=place), place):
        same = list(same)
        one = same[0]
        accuracy = 100.0 * np.array([run["accuracy"] for run in same])
        deviation = f" ({accuracy.std(ddof=1):.2f})" if len(same) > 1 else ""
        certified = [f"{100.0 * np.mean([run['certified'][name] for run in same]):.1f}" for name in names]
        lines.append(
            f"| {one['dataset']} | {one['method']} | {one['epsilon']:g} | {one['radius']:g} | "
            f"{accuracy.mean():.2f}{deviation} | {' | '.join(certified)} | {len(same)} | "
            f"{np.median([run['seconds'] for run in same]):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--method", nargs="+", default=["dpsgd", "clipless"], choices=["dpsgd", "clipless"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--radius", nargs="+", type=float, default=[0.5], help="that the recipe aims at")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings to try, with --held-out")
    parser.add_argument("--name", default="certified", help="name of the result file")
    options = parser.parse_args()
    if options.set and not options.held_out:
        parser.error("settings are chosen with --held-out, not on a test set")
    changes = settings(options.set)
    series = Series(options.name, PLACE)
    evaluated = "held-out training images" if options.held_out else "test set"
    text = " ".join(f"{name}={value}" for name, value in changes.items())
    places = options.seeds, options.dataset, options.method, options.epsilon, options.radius
    for seed, dataset, method, epsilon, radius in itertools.product(*places):
        if series.missing(dataset, method, epsilon, radius, seed, evaluated, text):
            found = run(dataset, method, epsilon, radius, seed, options.held_out, changes)
            series.add(found, delta=1e-5)
            print({k: found[k] for k in (*PLACE[:5], "changes", "accuracy", "certified", "seconds")}, flush=True)
    print(table(series.runs))


if __name__ == "__main__":
    main()
