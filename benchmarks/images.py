"""Accuracy and certified accuracy against epsilon on Fashion-MNIST and CIFAR-10, for LeNet, ResNet and MLP-Mixer.

    python benchmarks/images.py                                  # everything: hours on a CPU
    python benchmarks/images.py --dataset fashion_mnist --network lenet --front none --epsilon 2.7 --seeds 0
    python benchmarks/images.py --held-out ...                   # scored on held-out training images
    python benchmarks/images.py --plot                           # the plot again, from the results

Settings are chosen with `--held-out` (the last sixth of the training images scores, the others train), never on the
test set; the cost of that choice is not part of epsilon. delta = 1e-5. Networks stand on the pixels ("none") or on a
preset of the fixed front end `Scattering2D`, whose features are computed once; LeNet, which would pool what is left
of their places away, on pixels only. Certified accuracy is in the L2 norm of pixels in [0, 1], of front end and network
together. Figures of the test set are added to `results/images.json` run by run, and finished runs are not repeated.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import time

from common import RESULTS, Series

RADII = (0.05, 0.1, 0.25)
EPSILONS = {"fashion_mnist": (1.0, 2.7, 8.0), "cifar10": (4.0, 8.0)}
NETWORKS = ("lenet", "resnet", "mlp_mixer")
FRONTS = ("none", "accurate", "robust")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What was chosen for one network on one data set."""

    model: dict
    updates: float = 150.0  # times sqrt(epsilon)
    batch_size: int = 4096
    temperature: float = 17.0
    clip: float = 0.2
    learning_rate: float = 2.0
    momentum: float = 0.9
    noise: str = "per_layer"


_FASHION = {"input_norm": 9.0, "inner_norm": 3.0}
_CIFAR = {"input_norm": 11.0, "inner_norm": 3.6}
# A small residual branch lets the gradient pass. Centring, which helps the heads of `frontend.py`, was not tried here.
_ON_FRONT = {"centered": False, "residual_weight": 0.2}
SETTINGS = {
    ("fashion_mnist", "lenet", "none"): Settings(
        {"input_norm": 6.0, "inner_norm": 2.0, "strides": 2}, updates=80.0, temperature=60.0
    ),
    ("fashion_mnist", "resnet", "none"): Settings(
        {"input_norm": 6.0, "inner_norm": 2.0, "filters": (32,), "residual_weight": 0.2},
        updates=80.0,
        temperature=60.0,
        learning_rate=4.0,
    ),
    ("fashion_mnist", "mlp_mixer", "none"): Settings(
        {**_FASHION, "patch_size": 7, "width": 64, "blocks": 1, "hidden": (64,)}, updates=120.0, temperature=60.0
    ),
    ("fashion_mnist", "resnet", "accurate"): Settings(
        {**_ON_FRONT, "input_norm": 1.5, "stem_size": 1, "filters": (128,)},
        updates=60.0,
        temperature=200.0,
        learning_rate=4.0,
    ),
    ("fashion_mnist", "mlp_mixer", "accurate"): Settings(
        {**_ON_FRONT, "input_norm": 1.5, "patch_size": 1, "width": 81, "blocks": 1},
        updates=60.0,
        temperature=100.0,
        learning_rate=4.0,
    ),
    ("fashion_mnist", "mlp_mixer", "robust"): Settings(
        {**_ON_FRONT, "input_norm": 8.0, "patch_size": 1, "width": 81, "blocks": 1},
        updates=60.0,
        temperature=8.0,
        clip=0.1,
    ),
    ("cifar10", "lenet", "none"): Settings({**_CIFAR, "strides": 2}, updates=60.0, temperature=60.0, learning_rate=1.5),
    ("cifar10", "mlp_mixer", "none"): Settings(
        {**_CIFAR, "patch_size": 4, "width": 48, "blocks": 1, "hidden": (64,)},
        updates=60.0,
        temperature=60.0,
        learning_rate=1.5,
    ),
    ("cifar10", "resnet", "accurate"): Settings(
        {**_ON_FRONT, "input_norm": 2.0, "stem_size": 1, "filters": (128,)},
        updates=40.0,
        temperature=200.0,
        learning_rate=4.0,
    ),
    ("cifar10", "mlp_mixer", "accurate"): Settings(
        {**_ON_FRONT, "input_norm": 2.0, "patch_size": 2, "width": 256, "blocks": 1},
        updates=40.0,
        temperature=100.0,
        learning_rate=4.0,
    ),
}


@functools.lru_cache(maxsize=1)
def prepare(dataset: str, front: str, held_out: bool):
    """The fixed part, what it makes of the training images, and the images that score."""
    import keras

    from lipdp import layers
    from lipdp.data import load

    data = load(dataset)
    x, y, scored = data.x_train, data.y_train, (data.x_test, data.y_test)
    if held_out:
        cut = len(x) - len(x) // 6
        x, y, scored = x[:cut], y[:cut], (x[cut:], y[cut:])
    if front == "none":
        return None, x, y, scored
    fixed = keras.Sequential([keras.Input(x.shape[1:]), layers.Scattering2D(front)])
    return fixed, fixed.predict(x, batch_size=250, verbose=0), y, scored


def run(dataset: str, network: str, front: str, epsilon: float, seed: int, held_out: bool, settings: Settings) -> dict:
    """One training run and its figures."""
    import keras

    from lipdp import certify, losses, models, strategies

    fixed, x, y, (x_test, y_test) = prepare(dataset, front, held_out)
    keras.utils.set_random_seed(seed)
    model = getattr(models, network)(x.shape[1:], int(y.max()) + 1, **settings.model)
    steps = -(-len(x) // settings.batch_size)
    epochs = max(1, round(settings.updates * epsilon**0.5 / steps))
    rate = keras.optimizers.schedules.PolynomialDecay(settings.learning_rate, epochs * steps, end_learning_rate=0.0)
    model.compile(
        keras.optimizers.SGD(rate, momentum=settings.momentum),
        losses.SparseCategoricalCrossentropy(temperature=settings.temperature, clip=settings.clip),
    )
    begin = time.perf_counter()
    model.fit(
        x,
        y,
        batch_size=settings.batch_size,
        microbatch_size=1024,
        epochs=epochs,
        epsilon=epsilon,
        delta=1e-5,
        strategy=strategies.Clipless(noise=settings.noise),
        training_metrics=False,
        seed=seed,
        verbose=0,
    )
    seconds = time.perf_counter() - begin
    whole = model if fixed is None else keras.Sequential([fixed, model])
    certified = certify.certified_accuracy(whole, x_test, y_test, at=(0.0, *RADII), batch_size=250)
    return {
        "dataset": dataset,
        "network": network,
        "front": front,
        "epsilon": epsilon,
        "seed": seed,
        "evaluated_on": "held-out training images" if held_out else "test set",
        "accuracy": round(certified[0.0], 4),
        "certified": {str(r): round(certified[r], 4) for r in RADII},
        "spent": model.privacy.epsilon(),
        "noise_multiplier": model.run.plan.noise_multiplier,
        "updates": model.privacy.updates,
        "parameters": model.count_params(),
        "seconds": round(seconds, 1),
        "settings": dataclasses.asdict(settings),
    }


def summary(runs: list[dict]) -> list[dict]:
    """Means over seeds."""
    groups: dict[tuple, list[dict]] = {}
    for one in runs:
        names = (one["dataset"], one["front"], one["network"], one["epsilon"], one["evaluated_on"])
        groups.setdefault(names, []).append(one)
    rows = []
    for (dataset, front, network, epsilon, evaluated_on), same in sorted(groups.items()):
        accuracies = [s["accuracy"] for s in same]
        rows.append(
            {
                "dataset": dataset,
                "network": network,
                "front": front,
                "epsilon": epsilon,
                "evaluated_on": evaluated_on,
                "runs": len(same),
                "accuracy": round(statistics.mean(accuracies), 4),
                "deviation": round(statistics.stdev(accuracies), 4) if len(same) > 1 else None,
                "certified": {str(r): round(statistics.mean(s["certified"][str(r)] for s in same), 4) for r in RADII},
                "seconds": statistics.median(s["seconds"] for s in same),
            }
        )
    return rows


def table(rows: list[dict]) -> str:
    """The results as a Markdown table."""
    radii = " | ".join(map(str, RADII))
    lines = [
        f"| data | network | front end | epsilon | accuracy % (sd) | certified % at L2 {radii} | runs | seconds |",
        "|---|---|---|---|---|" + "---|" * len(RADII) + "---|---|",
    ]
    for row in rows:
        certified = " | ".join(f"{100 * row['certified'][str(r)]:.1f}" for r in RADII)
        spread = f" ({100 * row['deviation']:.2f})" if row["deviation"] is not None else ""
        lines.append(
            f"| {row['dataset']} | {row['network']} | {row['front']} | {row['epsilon']:g} | "
            f"{100 * row['accuracy']:.2f}{spread} | {certified} | {row['runs']} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def plot(rows: list[dict], path) -> None:
    """Accuracy against epsilon, and accuracy against certified accuracy, with the Pareto front of the latter."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted({row["dataset"] for row in rows})
    figure, axes = plt.subplots(len(names), 2, figsize=(11, 3.4 * len(names)), squeeze=False)
    for (left, right), dataset in zip(axes, names, strict=True):
        own = [row for row in rows if row["dataset"] == dataset]
        for front, network in sorted({(row["front"], row["network"]) for row in own}):
            same = [row for row in own if (row["front"], row["network"]) == (front, network)]
            style = {"label": f"{network}, {front}", "linestyle": "--" if front == "none" else "-", "marker": "o"}
            left.plot([r["epsilon"] for r in same], [100 * r["accuracy"] for r in same], **style)
            points = [(100 * r["certified"][str(RADII[1])], 100 * r["accuracy"]) for r in same]
            right.plot(*zip(*points, strict=True), **{**style, "linestyle": ""})
        points = sorted(((100 * r["certified"][str(RADII[1])], 100 * r["accuracy"]) for r in own), reverse=True)
        front = [p for i, p in enumerate(points) if all(p[1] > q[1] for q in points[:i])]
        right.step(*zip(*front, strict=True), where="post", color="grey", linewidth=1)
        left.set(xlabel="epsilon", ylabel="accuracy %", title=dataset, xscale="log")
        budgets = sorted({row["epsilon"] for row in own})
        left.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
        left.set_xticks([], minor=True)
        right.set(xlabel=f"certified % at L2 {RADII[1]}", ylabel="accuracy %", title="Pareto front")
        right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, title="network, front end")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(EPSILONS), choices=list(EPSILONS))
    parser.add_argument("--network", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--front", nargs="+", default=list(FRONTS), choices=FRONTS)
    parser.add_argument("--epsilon", nargs="+", type=float)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--again", action="store_true", help="repeat runs that the result file already holds")
    parser.add_argument(
        "--set", default="{}", help='JSON of settings to try: \'{"clip": 0.1, "model": {"blocks": 2}}\''
    )
    parser.add_argument("--plot", action="store_true", help="no run, only table and plot")
    parser.add_argument("--name", default="images", help="name of the result file")
    arguments = parser.parse_args()

    place = ("dataset", "front", "network", "epsilon", "seed", "evaluated_on")
    series = Series(None if arguments.held_out else arguments.name, place, arguments.again)
    evaluated = "held-out training images" if arguments.held_out else "test set"
    changes = json.loads(arguments.set)
    if changes and not arguments.held_out:
        parser.error("settings are chosen with --held-out, not on the test set")
    for dataset, front, network in itertools.product(arguments.dataset, arguments.front, arguments.network):
        if arguments.plot or (dataset, network, front) not in SETTINGS:
            continue
        settings = SETTINGS[dataset, network, front]
        settings = dataclasses.replace(settings, **{**changes, "model": {**settings.model, **changes.get("model", {})}})
        for epsilon, seed in itertools.product(arguments.epsilon or EPSILONS[dataset], arguments.seeds):
            if series.missing(dataset, front, network, epsilon, seed, evaluated):
                found = run(dataset, network, front, epsilon, seed, arguments.held_out, settings)
                print({k: v for k, v in found.items() if k != "settings"}, flush=True)
                series.add(found, delta=1e-5, table=summary)
    print(table(summary(series.runs)))
    if series.runs and not arguments.held_out:
        plot(summary(series.runs), (RESULTS / arguments.name).with_suffix(".png"))


if __name__ == "__main__":
    main()
