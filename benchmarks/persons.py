"""Privacy of persons with 1 to 50 rows each, in three ways at one budget, on Fashion-MNIST.

    python benchmarks/persons.py                       # epsilon 1 2 4, seeds 0 1 2, test set
    python benchmarks/persons.py --held-out            # the learning rates, on a part of the training images

The 60,000 training images are given to synthetic persons: sizes from 1 to 50, log-uniform, four fifths of the rows of a
person from three classes of their own. The budget is for adding or removing one person with all rows, delta = 1e-5.
`persons`: `fit(person_ids=)`, 8 rows of each drawn person; `group`: rows are drawn, `fit(examples_per_person=50)`;
`one row`: one row of each person is kept and the others are not used. Learning rates were chosen on held-out training
images for each way, strategy and epsilon (`RATES`). Finished runs are kept in the result file. Needs
`fashion_mnist.npz` in the folder named by LIPDP_DATA, or the network.
"""

import argparse
import json
import statistics
import time

import numpy as np
from common import RESULTS, Series

WAYS = ("persons", "group", "one row")
STRATEGIES = ("clipless", "dpsgd")
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
MOST, ROWS, EPOCHS, SHARE = 50, 8, 20, 0.1


def assigned(y: np.ndarray, seed: int = 0) -> np.ndarray:
    """The person of each row: 1 to 50 rows each, mostly of three classes."""
    rng = np.random.default_rng(seed)
    left = [list(rng.permutation(np.flatnonzero(y == c))) for c in range(10)]
    person, ids = 0, np.empty(len(y), "int64")
    while any(left):
        size = int(np.floor(np.exp(rng.uniform(0.0, np.log(MOST + 1)))))
        own = rng.choice(10, 3, replace=False)
        for _ in range(size):
            wanted = own if rng.random() < 0.8 else range(10)
            classes = [c for c in wanted if left[c]] or [c for c in range(10) if left[c]]
            if not classes:
                break
            ids[left[rng.choice(classes)].pop()] = person
        person += 1
    return ids


def network(strategy: str, rate: float):
    import keras

    import lipdp
    from lipdp import layers, losses

    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    if strategy == "dpsgd":
        inner = [
            keras.Input((28, 28, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, "tanh"),
            keras.layers.Dense(10),
        ]
        model = lipdp.DP_Model.from_keras(keras.Sequential(inner))
        model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model, lipdp.strategies.DPSGD(clip_norm=1.0)
    parts = [layers.BoundedInput((28, 28, 1), norm=10.0), layers.Flatten(), layers.SpectralDense(64), layers.Abs()]
    model = lipdp.DP_Sequential([*parts, layers.SpectralDense(10)])
    model.compile(optimizer, loss=losses.SparseCategoricalCrossentropy(temperature=8.0, clip=0.2))
    return model, lipdp.strategies.Clipless(noise="per_layer")


def run(train, test, ids, way: str, strategy: str, epsilon: float, rate: float, seed: int) -> dict:
    import keras

    (x, y), persons = train, len(np.unique(ids))
    arguments: dict = {"person_ids": ids, "rows_per_person": ROWS, "batch_size": round(SHARE * persons)}
    if way == "group":
        arguments = {"examples_per_person": MOST, "batch_size": round(SHARE * len(y))}
    elif way == "one row":
        order = np.random.default_rng(seed).permutation(len(y))
        kept = order[np.unique(ids[order], return_index=True)[1]]
        x, y = x[kept], y[kept]
        arguments = {"batch_size": round(SHARE * persons)}
    keras.utils.set_random_seed(seed)
    model, how = network(strategy, rate)
    start = time.perf_counter()
    budget = {"epsilon": epsilon, "delta": 1e-5, "training_metrics": False, "verbose": 0}
    model.fit(x, y, epochs=EPOCHS, steps_per_epoch=10, strategy=how, seed=seed, **budget, **arguments)
    scores = model.predict(test[0], batch_size=2000, verbose=0)
    return {
        "way": way,
        "strategy": strategy,
        "epsilon": epsilon,
        "rate": rate,
        "seed": seed,
        "accuracy": round(float((scores.argmax(1) == test[1]).mean()), 4),
        "noise_multiplier": round(model.run.plan.noise_multiplier, 4),
        "spent": model.privacy.epsilon(),
        "seconds": round(time.perf_counter() - start, 1),
    }


def chosen(way: str, strategy: str, epsilon: float) -> float:
    """The learning rate that was best on the held-out part."""
    runs = json.loads((RESULTS / "persons_rates.json").read_text())["runs"]
    place = {"way": way, "strategy": strategy, "epsilon": epsilon}
    return max((r for r in runs if place.items() <= r.items()), key=lambda r: r["accuracy"])["rate"]


def rows(runs: list) -> list:
    """One row for each strategy and epsilon: mean accuracy of each way."""
    found = []
    for strategy in STRATEGIES:
        for epsilon in sorted({r["epsilon"] for r in runs}):
            row: dict = {"strategy": strategy, "epsilon": epsilon}
            for way in WAYS:
                same = [r for r in runs if (r["way"], r["strategy"], r["epsilon"]) == (way, strategy, epsilon)]
                if same:
                    values = [r["accuracy"] for r in same]
                    row[way] = round(statistics.mean(values), 4)
                    row[f"{way} deviation"] = round(statistics.stdev(values), 4) if len(values) > 1 else None
                    row[f"{way} noise"] = same[0]["noise_multiplier"]
                    row["runs"] = len(values)
            found.append(row)
    return found


def table(found: list) -> str:
    """The results as a Markdown table."""
    lines = [
        "| strategy | epsilon | `person_ids`: accuracy % (sd) | noise multiplier | `examples_per_person=50` | noise "
        "multiplier | one row of each | noise multiplier | runs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        cells = []
        for way in WAYS:
            cells += [
                f"{100 * row[way]:.2f} ({100 * (row[f'{way} deviation'] or 0):.2f})",
                f"{row[f'{way} noise']:.2f}",
            ]
        lines.append(f"| {row['strategy']} | {row['epsilon']:g} | {' | '.join(cells)} | {row['runs']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 2.0, 4.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--held-out", action="store_true")
    arguments = parser.parse_args()

    from lipdp.data import load

    data = load("fashion_mnist")
    ids = assigned(data.y_train)
    train, test = (data.x_train, data.y_train), (data.x_test, data.y_test)
    if arguments.held_out:
        out = ids % 6 == 0
        test, train, ids = (train[0][out], train[1][out]), (train[0][~out], train[1][~out]), ids[~out]
    sizes = np.bincount(ids)[np.unique(ids)]
    about = {"persons": len(sizes), "examples": len(ids), "median_rows": float(np.median(sizes)), "delta": 1e-5}
    name = "persons_rates" if arguments.held_out else "persons"
    series = Series(name, ("way", "strategy", "epsilon", "rate", "seed"))
    for epsilon in arguments.epsilon:
        for way in WAYS:
            for strategy in STRATEGIES:
                for rate in RATES if arguments.held_out else [chosen(way, strategy, epsilon)]:
                    for seed in [0] if arguments.held_out else arguments.seeds:
                        if series.missing(way, strategy, epsilon, rate, seed):
                            found = run(train, test, ids, way, strategy, epsilon, rate, seed)
                            series.add(found, **about, **({} if arguments.held_out else {"table": rows}))
                            print(found, flush=True)


if __name__ == "__main__":
    main()
