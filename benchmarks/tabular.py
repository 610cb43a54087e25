"""Validation AUROC of `lipdp train`'s default recipe on six ADBench tables, beside what learns without privacy.

    python benchmarks/tabular.py                                   # six tables, seeds 0 1 2 3 4, epsilon 1
    python benchmarks/tabular.py --epsilon 0.1 --method dpsgd adaclip dpis
    python benchmarks/tabular.py --inner --set learning_rate=2.0   # the split that settings were chosen on

Methods: "clipless", a Lipschitz network with certificates; "dpsgd", the default recipe of tables
(`models.table_recipe`), and "adaclip" and "dpis", the same network by other strategies; "no noise", the recipe with a
noise multiplier of 1e-4; "boosting" and "logistic", scikit-learn's `HistGradientBoostingClassifier` and
`LogisticRegression` as they come, without privacy. For "any units" and "rescaled" each column has a unit of its own,
drawn from 1e-3 to 1e5, and is moved by some deviations; DP-SGD takes them as they are, or by private ranges.
A fifth of the rows is the validation part; the settings of the recipe were chosen on a fifth of the other rows of four
tables (campaign, celeba, magic.gamma, yeast; `--inner`), and the cost of that choice is not part of epsilon. Columns
are scaled by constants. delta = 1 / (N + 1). Runs are added to `results/tabular.json` one by one, and one that is there
is not repeated. Needs `adbench/*.npz` in the folder named by LIPDP_DATA, or the network.
"""

import argparse
import dataclasses
import functools
import itertools
import time

import numpy as np
from common import Series, settings

NO_NOISE = 1e-4
PRIVATE = ("clipless", "dpsgd", "adaclip", "dpis", "any units", "rescaled")
IN_UNITS = ("any units", "rescaled")
METHODS = (*PRIVATE, "no noise", "boosting", "logistic")
PLACE = ("table", "method", "epsilon", "seed", "evaluated_on", "changes")
# AUROC below which neither the network without noise nor a linear model has found anything.
_SIGNAL = 0.6


@functools.lru_cache(maxsize=1)
def data(table: str, inner: bool, rows: int | None = None):
    """One table, a part of it held out: a row by its hash, so that of the rest the next part is held out.

    Of the training rows some may be enough, drawn at random.
    """
    from lipdp.data import adbench, load, scale

    found = load(f"adbench/{table}")
    found = scale(found, adbench.ranges(found)).held_out(0.2)
    found = found.held_out(1.0 - 0.8 * 0.8) if inner else found
    if rows is None:
        return found
    some = np.random.default_rng(0).permutation(found.num_examples)[:rows]
    return dataclasses.replace(found, x_train=found.x_train[some], y_train=found.y_train[some])


@functools.lru_cache(maxsize=1)
def in_units(table: str, inner: bool):
    """The same table, each column times a constant and plus another one, which nobody knows."""
    found, rng = data(table, inner), np.random.default_rng(0)
    columns, deviation = found.x_train.shape[1], found.x_train.std(axis=0)
    unit, shift = 10.0 ** rng.uniform(-3, 5, columns), deviation * rng.normal(0, 5, columns)
    train, test = (((x + shift) * unit).astype("float32") for x in (found.x_train, found.x_test))
    return dataclasses.replace(found, x_train=train, x_test=test)


def clipless(columns: int, count: int):
    """The network and the settings of clipless training: public constants."""
    import keras

    import lipdp
    from lipdp import layers, losses

    updates = 200 if count > 16384 else 60
    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((columns,), norm=columns**0.5),
            layers.SpectralDense(64),
            layers.Bias(),
            layers.Abs(),
            layers.SpectralDense(64),
            layers.Bias(),
            layers.Abs(),
            layers.SpectralDense(2),
            layers.Bias(),
        ]
    )
    rate = keras.optimizers.schedules.PolynomialDecay(1.0, updates, end_learning_rate=0.0)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        loss=losses.SparseCategoricalCrossentropy(temperature=24.0, clip=0.2),
    )
    return model, {"batch_size": min(8192, count // 2), "steps_per_epoch": updates}


def scores(found, method: str, epsilon: float, seed: int, changes: dict) -> tuple:
    """What a network that was trained on the training part says of the other one; what it spent; its settings."""
    import keras

    import lipdp

    keras.utils.set_random_seed(seed)
    count, columns = found.x_train.shape
    shared = {"delta": 1.0 / (count + 1), "training_metrics": False, "seed": seed, "verbose": 0}
    if method == "clipless":
        model, own = clipless(columns, count)
        model.fit(found.x_train, found.y_train, epsilon=epsilon, **own, **shared)
    else:
        own = {"method": method} if method in ("dpsgd", "adaclip", "dpis") else {"rescaled": method == "rescaled"}
        recipe = dataclasses.replace(lipdp.recipe((columns,), 2, count, epsilon, **own), **changes)
        own = dataclasses.asdict(recipe)
        noise = {"epsilon": epsilon}
        if method == "no noise":
            recipe = dataclasses.replace(recipe, moments_noise=1e-3)
            noise = {"noise_multiplier": NO_NOISE, "accountant": "rdp"}
        model = recipe.fit(found.x_train, found.y_train, **noise, **shared)
    logits = model.predict(found.x_test, batch_size=8192, verbose=0)
    spent = None if method == "no noise" else model.privacy.epsilon()
    keras.backend.clear_session()
    return logits[:, 1] - logits[:, 0], spent, own


def open_scores(found, method: str, seed: int) -> tuple:
    """The same for what scikit-learn trains without privacy."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    boosting = HistGradientBoostingClassifier(random_state=seed)
    model = boosting if method == "boosting" else LogisticRegression(max_iter=300)
    model.fit(found.x_train, found.y_train)
    return model.predict_proba(found.x_test)[:, 1], None, {}


def run(table: str, method: str, epsilon: float, seed: int, inner: bool, changes: dict, rows: int | None) -> dict:
    """One run and its AUROC."""
    from sklearn.metrics import roc_auc_score

    found = in_units(table, inner) if method in IN_UNITS else data(table, inner, rows)
    begin = time.perf_counter()
    if method in ("boosting", "logistic"):
        score, spent, own = open_scores(found, method, seed)
    else:
        score, spent, own = scores(found, method, epsilon, seed, changes)
    seconds = time.perf_counter() - begin
    return {
        "table": table,
        "method": method,
        "epsilon": epsilon if method in PRIVATE else None,
        "seed": seed,
        "evaluated_on": place(inner),
        "changes": words(changes, rows),
        "auroc": round(float(roc_auc_score(found.y_test, score)), 4),
        "spent": spent,
        "examples": found.num_examples,
        "columns": found.x_train.shape[1],
        "seconds": round(seconds, 1),
        "settings": own,
    }


def place(inner: bool) -> str:
    return "a fifth of the training rows" if inner else "validation rows, a fifth of all"


def words(changes: dict, rows: int | None = None) -> str:
    some = {} if rows is None else {"rows": rows}
    return " ".join(f"{name}={value}" for name, value in (some | changes).items())


def render(runs: list[dict]) -> str:
    """The results on validation rows as a Markdown table: means over seeds, and paired tests against DP-SGD."""
    from scipy import stats

    chosen = [run for run in runs if run["evaluated_on"] == place(False) and not run["changes"]]
    found: dict = {}
    for one in chosen:
        found.setdefault((one["table"], one["epsilon"], one["method"]), {})[one["seed"]] = one["auroc"]

    def cell(table, epsilon, method):
        same = found.get((table, epsilon, method))
        if not same:
            return "-"
        values = np.array(list(same.values()))
        deviation = f" ({values.std(ddof=1):.3f})" if len(values) > 1 and method in PRIVATE else ""
        first, p = found.get((table, epsilon, "dpsgd"), {}), ""
        paired = sorted(set(first) & set(same))
        apart = any(same[s] != first[s] for s in paired)  # a test of equal pairs has no p
        if method in ("adaclip", "dpis") and len(paired) > 2 and apart:
            p = f", p {stats.ttest_rel([same[s] for s in paired], [first[s] for s in paired]).pvalue:.2f}"
        return f"{values.mean():.3f}{deviation}{p}"

    lines = [
        "| table | training rows | columns | epsilon | DP-SGD, the recipe (sd) | clipless | AdaCliP | DPIS | no noise "
        "| boosting, not private | logistic regression, not private | seeds |",
        "|---" * 12 + "|",
    ]
    for table, epsilon in sorted({key[:2] for key in found if key[1]}, key=lambda key: (key[0].lower(), key[1])):
        one = next(run for run in chosen if run["table"] == table)
        private = [cell(table, epsilon, method) for method in ("dpsgd", "clipless", "adaclip", "dpis")]
        others = [cell(table, None, method) for method in ("no noise", "boosting", "logistic")]
        seeds = len(found.get((table, epsilon, "dpsgd"), ()))
        values = " | ".join([*private, *others])
        lines.append(f"| {table} | {one['examples']} | {one['columns']} | {epsilon:g} | {values} | {seeds} |")
    return "\n".join(lines)


def render_units(runs: list[dict]) -> str:
    """The same by private ranges, where ranges are known to nobody."""
    found: dict = {}
    for one in runs:
        if one["evaluated_on"] == place(False) and not one["changes"] and one["epsilon"]:
            found.setdefault((one["table"], one["epsilon"]), {}).setdefault(one["method"], []).append(one["auroc"])
    lines = ["| table | epsilon | ranges known | as they are (sd) | private ranges (sd) | seeds |", "|---" * 6 + "|"]
    for (table, epsilon), methods in sorted(found.items(), key=lambda item: (item[0][0].lower(), item[0][1])):
        if set(IN_UNITS) <= set(methods):
            raw, rescaled = (f"{np.mean(methods[m]):.3f} ({np.std(methods[m], ddof=1):.3f})" for m in IN_UNITS)
            known = f"{np.mean(methods['dpsgd']):.3f}"
            lines.append(f"| {table} | {epsilon:g} | {known} | {raw} | {rescaled} | {len(methods['rescaled'])} |")
    return "\n".join(lines)


def without_signal(runs: list[dict]) -> str:
    """A sentence on the tables on which networks and linear models guess, noise or not."""
    means: dict = {}
    for one in runs:
        if one["evaluated_on"] == place(False) and not one["changes"]:
            means.setdefault((one["table"], one["method"]), []).append(one["auroc"])
    tables = sorted({table for table, _ in means})
    best = {
        t: max((np.mean(means[t, m]) for m in ("no noise", "logistic") if (t, m) in means), default=1.0) for t in tables
    }
    lost = [t for t in tables if best[t] < _SIGNAL]
    if not lost:
        return ""
    seen = [t for t in lost if np.mean(means.get((t, "boosting"), [0.0])) > _SIGNAL]
    text = (
        f"{', '.join(lost)}: no signal for these networks nor for a linear model, even without noise; do not use them"
    )
    return f"{text} there.{' Trees find some.' if seen else ''}"


def main() -> None:
    from lipdp.data import adbench

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(adbench.TABLES), choices=list(adbench.TABLES))
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--inner", action="store_true", help="score on a part of the training rows")
    parser.add_argument("--rows", type=int, help="train on so many rows, of tables whose ranges are known")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings to try, with --inner")
    parser.add_argument("--name", default="tabular", help="name of the result file")
    options = parser.parse_args()
    if options.set and not options.inner:
        parser.error("settings are chosen with --inner, not on validation rows")
    changes, series = settings(options.set), Series(options.name, PLACE)
    for table, seed, method, epsilon in itertools.product(
        options.tables, options.seeds, options.method, options.epsilon
    ):
        budget = epsilon if method in PRIVATE else None
        if series.missing(table, method, budget, seed, place(options.inner), words(changes, options.rows)):
            try:
                found = run(table, method, epsilon, seed, options.inner, changes, options.rows)
            except ValueError as error:
                if method != "dpis":  # whose sums cost more than the budget of a small table
                    raise
                print(error, flush=True)
                continue
            series.add(found)
            print({k: found[k] for k in (*PLACE, "auroc", "seconds")}, flush=True)
    print(render(series.runs))


if __name__ == "__main__":
    main()
