"""Validation AUROC of clipless training on six ADBench tables, beside the same run without noise.

    python benchmarks/tabular.py                       # six tables, seeds 0 1 2 3 4, epsilon 1, delta 1 / (N + 1)
    python benchmarks/tabular.py --inner               # the split of the training rows that settings were chosen on

A fifth of the rows is the validation part; settings were chosen on a fifth of the other rows, and the cost of that
choice is not part of epsilon. Both runs take the same path through `fit` (network, projection, Poisson batches,
updates); the one without privacy has a noise multiplier of 1e-4. Columns are scaled by constants. delta has to lie
below 1 / N: it is 1 / (N + 1). Finished runs are kept in the result file; `--again` repeats them. Needs
`adbench/*.npz` in the folder named by LIPDP_DATA, or the network.
"""

import argparse
import json
import statistics
import time

from common import RESULTS, write

NO_NOISE = 1e-4


def settings(table: str, num_examples: int) -> dict:
    """Public constants: they depend on the size of a table and on its kind of scaling, not on its rows."""
    return {
        "hidden": 64,
        "batch_size": min(8192, num_examples // 2),
        "updates": 200 if num_examples > 16384 else 60,
        "temperature": 24.0,
        "clip": 0.2,
        "learning_rate": 1.0,
    }


def run(data, table: str, seed: int, noise: dict) -> dict:
    import keras
    from sklearn.metrics import roc_auc_score

    import lipdp
    from lipdp import layers, losses

    keras.utils.set_random_seed(seed)
    chosen = settings(table, data.num_examples)
    columns = data.x_train.shape[1]
    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((columns,), norm=columns**0.5),
            layers.SpectralDense(chosen["hidden"]),
            layers.Bias(),
            layers.Abs(),
            layers.SpectralDense(chosen["hidden"]),
            layers.Bias(),
            layers.Abs(),
            layers.SpectralDense(2),
            layers.Bias(),
        ]
    )
    rate = keras.optimizers.schedules.PolynomialDecay(chosen["learning_rate"], chosen["updates"], end_learning_rate=0.0)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        loss=losses.SparseCategoricalCrossentropy(temperature=chosen["temperature"], clip=chosen["clip"]),
    )
    start = time.perf_counter()
    model.fit(
        data.x_train,
        data.y_train,
        batch_size=chosen["batch_size"],
        steps_per_epoch=chosen["updates"],
        delta=1.0 / (data.num_examples + 1),
        training_metrics=False,
        seed=seed,
        verbose=0,
        **noise,
    )
    seconds = time.perf_counter() - start
    logits = model.predict(data.x_test, batch_size=8192, verbose=0)
    return {
        "table": table,
        "seed": seed,
        "private": "epsilon" in noise,
        "auroc": round(float(roc_auc_score(data.y_test, logits[:, 1] - logits[:, 0])), 4),
        "examples": data.num_examples,
        "columns": columns,
        "spent": model.privacy.epsilon() if "epsilon" in noise else None,
        "noise_multiplier": model.run.plan.noise_multiplier,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    from lipdp.data import adbench, load, scale

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(adbench.TABLES), choices=list(adbench.TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--inner", action="store_true", help="score on a part of the training rows")
    parser.add_argument("--again", action="store_true", help="repeat runs that the result file already holds")
    parser.add_argument("--name", default="tabular", help="name of the result file")
    arguments = parser.parse_args()

    part = "a fifth of the training rows" if arguments.inner else "validation rows, a fifth of all"
    file = RESULTS / f"{arguments.name}.json"
    runs = json.loads(file.read_text())["runs"] if file.exists() and not arguments.again else []
    done = {(r["table"], r["seed"], r["private"]) for r in runs}
    kinds = {True: {"epsilon": arguments.epsilon}, False: {"noise_multiplier": NO_NOISE, "accountant": "rdp"}}
    for table in arguments.tables:
        data = load(f"adbench/{table}")
        data = scale(data, adbench.ranges(data)).held_out(0.2)
        if arguments.inner:
            data = data.held_out(0.2)
        for seed in arguments.seeds:
            for private, noise in kinds.items():
                if (table, seed, private) not in done:
                    runs.append(run(data, table, seed, noise))
                    print(runs[-1], flush=True)
                    content = {"epsilon": arguments.epsilon, "table": rows(runs), "runs": runs}
                    write(arguments.name, {"evaluated_on": part, **content})
    print(render(rows(runs)))


def rows(runs) -> list[dict]:
    """Means over seeds, table by table."""
    found = []
    for table in sorted({r["table"] for r in runs}, key=str.lower):
        of_table = [r for r in runs if r["table"] == table]
        found.append({"table": table, "examples": of_table[0]["examples"], "columns": of_table[0]["columns"]})
        for kind, private in (("private", True), ("without_noise", False)):
            scores = [r["auroc"] for r in of_table if r["private"] == private]
            found[-1][kind] = {
                "auroc": round(statistics.mean(scores), 4) if scores else float("nan"),
                "deviation": round(statistics.stdev(scores), 4) if len(scores) > 1 else None,
                "runs": len(scores),
            }
    return found


def render(rows) -> str:
    """The results as a Markdown table."""
    lines = [
        "| table | training rows | columns | AUROC, private (sd) | AUROC, no noise (sd) | runs |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        pair = (f"{row[k]['auroc']:.3f} ({row[k]['deviation'] or 0:.3f})" for k in ("private", "without_noise"))
        lines.append(
            f"| {row['table']} | {row['examples']} | {row['columns']} | {' | '.join(pair)} | {row['private']['runs']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
