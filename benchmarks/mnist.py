"""Accuracy and certified accuracy of the clipless recipe (`lipdp train --strategy clipless`) on MNIST, by epsilon.

    python benchmarks/mnist.py                         # epsilon 0.5 1 2 4, seeds 0 1 2, test set
    python benchmarks/mnist.py --held-out              # the split of the training set that settings were chosen on

Settings were chosen on the held-out split (fit on 50,000 training images, scored on the other 10,000), never
on the test set; the cost of that choice is not part of epsilon. delta = 1e-5. Needs `mnist.npz` in the folder
named by LIPDP_DATA, or the network.
"""

import argparse
import statistics
import time

from common import write

RADII = (0.1, 0.5, 1.0)


def run(data, epsilon: float, seed: int) -> dict:
    import keras

    from lipdp import certify
    from lipdp.models.classifier import classifier_recipe

    (x, y), (x_test, y_test) = data
    keras.utils.set_random_seed(seed)
    settings = classifier_recipe(x.shape[1:], 10, len(x), epsilon, method="clipless")
    model = settings.build(len(x))
    start = time.perf_counter()
    model.fit(
        x,
        y,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        epsilon=epsilon,
        delta=1e-5,
        strategy=settings.strategy(),
        training_metrics=False,
        seed=seed,
        verbose=0,
    )
    seconds = time.perf_counter() - start
    certified = certify.certified_accuracy(model, x_test, y_test, at=(0.0, *RADII))
    return {
        "epsilon": epsilon,
        "seed": seed,
        "accuracy": round(certified[0.0], 4),
        "certified": {str(r): round(certified[r], 4) for r in RADII},
        "spent": model.privacy.epsilon(),
        "noise_multiplier": model.run.plan.noise_multiplier,
        "updates": model.privacy.updates,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--name", default="mnist", help="name of the result file")
    arguments = parser.parse_args()

    from lipdp.data import load

    data = load("mnist")
    parts = (data.x_train, data.y_train), (data.x_test, data.y_test)
    if arguments.held_out:
        parts = (data.x_train[:50000], data.y_train[:50000]), (data.x_train[50000:], data.y_train[50000:])
    runs = []
    for epsilon in arguments.epsilon:
        for seed in arguments.seeds:
            runs.append(run(parts, epsilon, seed))
            print(runs[-1], flush=True)
    rows = []
    for epsilon in arguments.epsilon:
        same = [r for r in runs if r["epsilon"] == epsilon]
        accuracies = [r["accuracy"] for r in same]
        rows.append(
            {
                "epsilon": epsilon,
                "runs": len(same),
                "accuracy": round(statistics.mean(accuracies), 4),
                "deviation": round(statistics.stdev(accuracies), 4) if len(same) > 1 else None,
                **{f"certified_{r}": round(statistics.mean(s["certified"][str(r)] for s in same), 4) for r in RADII},
                "seconds": statistics.median(r["seconds"] for r in same),
            }
        )
    evaluated = "held-out 10,000 training images" if arguments.held_out else "test set"
    path = write(arguments.name, {"evaluated_on": evaluated, "delta": 1e-5, "table": rows, "runs": runs})
    print(table(rows))
    print(f"written to {path}")


def table(rows) -> str:
    """The results as a Markdown table."""
    lines = [
        "| epsilon | accuracy % (sd) | certified % at L2 0.1 | 0.5 | 1.0 | runs | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        certified = " | ".join(f"{100 * row[f'certified_{r}']:.1f}" for r in RADII)
        lines.append(
            f"| {row['epsilon']:g} | {100 * row['accuracy']:.2f} ({100 * (row['deviation'] or 0):.2f}) | {certified} | "
            f"{row['runs']} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
