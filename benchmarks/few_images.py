"""Accuracy of the default recipe on few images, beside clipless training of the pixels and the robust recipe.

    python benchmarks/few_images.py                            # test sets, seeds 0 1 2
    python benchmarks/few_images.py --held-out --factor 0.4 1 2.5 --seeds 0    # how the learning rate was chosen

The first rows of the training sets; with `--held-out` the last 3000 training images score. epsilon = 2, delta = 1e-5.
Runs are added to `results/few_images.json` one by one, and one that is there is not repeated; those on held-out images
are printed only.
"""

import argparse
import dataclasses
import itertools
import statistics
import time

from common import Series

DATASETS = ("mnist", "fashion_mnist", "cifar10")
WAYS = ("default", "clipless", "robust")
RADIUS = 0.5
EPSILON, HELD_OUT = 2.0, 3000
PLACE = ("dataset", "rows", "way", "seed")


def run(dataset: str, rows: int, way: str, seed: int, held_out: bool = False, factor: float = 1.0) -> dict:
    """One run, and its accuracy."""
    import keras

    import lipdp
    from lipdp.data import load

    data = load(dataset)
    x, y = data.x_train[:rows], data.y_train[:rows]
    other = data.x_train[-HELD_OUT:], data.y_train[-HELD_OUT:]
    recipe = lipdp.recipe(
        data.input_shape,
        data.num_classes,
        rows,
        EPSILON,
        style="robust" if way == "robust" else "accurate",
        method="clipless" if way == "clipless" else None,
        handwritten=data.handwritten and way == "default",
    )
    recipe = dataclasses.replace(recipe, learning_rate=factor * recipe.learning_rate)
    keras.utils.set_random_seed(seed)
    begin = time.perf_counter()
    model = recipe.fit(x, y, epsilon=EPSILON, delta=1e-5, training_metrics=False, seed=seed, verbose=0)
    seconds = time.perf_counter() - begin
    scored = other if held_out else (data.x_test, data.y_test)
    accuracy = model.evaluate(*scored, batch_size=500, verbose=0, return_dict=True)["accuracy"]
    shares = {}
    if way == "robust":
        shares = lipdp.certify.certified_accuracy(model, *scored, at=(RADIUS,))
    keras.backend.clear_session()
    return {
        "dataset": dataset,
        "rows": rows,
        "way": way,
        "seed": seed,
        "epsilon": EPSILON,
        "accuracy": round(accuracy, 4),
        "certified": {str(radius): round(share, 4) for radius, share in shares.items()},
        "seconds": round(seconds, 1),
        "learning_rate": recipe.learning_rate,
    }


def table(runs: list[dict]) -> str:
    """The accuracies as a Markdown table."""
    found: dict = {}
    for one in runs:
        place = one["dataset"], one["rows"]
        found.setdefault((*place, one["way"]), []).append(100.0 * one["accuracy"])
        for share in one.get("certified", {}).values():
            found.setdefault((*place, "certified"), []).append(100.0 * share)

    def cell(values):
        deviation = f" ({statistics.stdev(values):.2f})" if len(values) > 1 else ""
        return f"{statistics.mean(values):.2f}{deviation}" if values else "-"

    lines = [
        "| data | training images | default recipe % (sd) | clipless, pixels % (sd) | robust recipe % (sd) "
        f"| of which certified at L2 {RADIUS:g} % (sd) | seeds |",
        "|---" * 7 + "|",
    ]
    for dataset, rows in sorted({key[:2] for key in found}):
        columns = [found.get((dataset, rows, way), []) for way in (*WAYS, "certified")]
        lines.append(f"| {dataset} | {rows} | {' | '.join(map(cell, columns))} | {len(columns[0])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--rows", nargs="+", type=int, default=[1000, 4000])
    parser.add_argument("--way", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--held-out", action="store_true", help="score on the last training images")
    parser.add_argument("--factor", nargs="+", type=float, default=[1.0], help="of the learning rate, with --held-out")
    options = parser.parse_args()
    if options.factor != [1.0] and not options.held_out:
        parser.error("rates are chosen with --held-out, not on test sets")
    places = itertools.product(options.dataset, options.rows, options.way, options.seeds)
    series = Series(None if options.held_out else "few_images", PLACE)
    for place, factor in itertools.product(places, options.factor):
        if options.held_out:
            print(factor, run(*place, held_out=True, factor=factor), flush=True)
        elif series.missing(*place):
            found = run(*place)
            series.add(found, epsilon=EPSILON, delta=1e-5)
            print(found, flush=True)
    print(table(series.runs))


if __name__ == "__main__":
    main()
