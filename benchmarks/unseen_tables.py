"""The default recipe of tables on 25 more tables of ADBench, in the units of their files.

    LIPDP_DATA=... python benchmarks/unseen_tables.py             # seeds 0 1 2, epsilon 1
    LIPDP_DATA=... python benchmarks/unseen_tables.py --tables shuttle skin --epsilon 0.5
    LIPDP_DATA=... python benchmarks/unseen_tables.py --inner --tables http --set constant_unit=3

The classical tables of ADBench (Han et al. 2022) with at least 1000 rows, but for the six of `tabular.py` and four that
the mirror at hand lacks: backdoor, census, fraud, speech. What is measured is what `lipdp train` does with a table of
the user's own: moments, and ranges of the columns where there are rows enough for them, are released as part of
epsilon; then DP-SGD. A fifth of the rows of each class, drawn once, is held out; delta = 1 / (N + 1). "no noise" is the
recipe with a noise multiplier of 1e-4; boosting and logistic regression are scikit-learn's, the second on standardized
columns. One setting, `constant_unit`, was chosen on a fifth of the other rows (`--inner`) of the tables in `CHOSEN_ON`;
on all others none was. Runs are added to `results/unseen_tables.json` one by one, and one that is there is not
repeated. Needs `adbench/<table>.npz`, ADBench's files without their numbers.
"""

import argparse
import dataclasses
import itertools
import os
import pathlib
import time

import numpy as np
from common import Series, settings
from tabular import NO_NOISE

TABLES = (
    *("annthyroid", "cardio", "Cardiotocography", "cover", "fault", "http", "InternetAds", "landsat", "letter"),
    *("mammography", "mnist", "musk", "optdigits", "PageBlocks", "pendigits", "satellite", "satimage-2", "shuttle"),
    *("skin", "smtp", "SpamBase", "thyroid", "vowels", "Waveform", "Wilt"),
)
CHOSEN_ON = ("cover", "http", "mammography", "satellite", "smtp", "Waveform")
METHODS = ("recipe", "no noise", "boosting", "logistic")
PLACE = ("table", "method", "epsilon", "seed")
_NEAR = 0.05  # in AUROC


def data(table: str, inner: bool = False):
    """One table; of each class a fifth of the rows, drawn at random once, is held out, of the others the next fifth.

    Not by their hash: where nearly all anomalies are equal, as in http, they would all be in one part.
    """
    from lipdp.data import load

    found = load(pathlib.Path(os.environ["LIPDP_DATA"]) / "adbench" / f"{table}.npz")
    part, rng = np.zeros(found.num_examples, int), np.random.default_rng(0)
    for label in np.unique(found.y_train):
        rows = rng.permutation(np.flatnonzero(found.y_train == label))
        part[rows] = np.arange(len(rows)) * 5 // len(rows)
    out = part == int(inner)
    left = ~out & (part > 0)
    x, y = found.x_train, found.y_train
    return dataclasses.replace(found, x_train=x[left], y_train=y[left], x_test=x[out], y_test=y[out])


def private(found, method: str, epsilon: float, seed: int, changes: dict) -> tuple:
    """What the recipe says of the rows held out; what it spent, and whether it released ranges of the columns."""
    import keras

    import lipdp
    from lipdp.models.table import rescales

    keras.utils.set_random_seed(seed)
    count, columns = found.x_train.shape
    recipe = lipdp.recipe((columns,), len(found.classes), count, epsilon)
    rescaled = rescales(columns, count, recipe.moments_noise)
    recipe, noise = dataclasses.replace(recipe, rescaled=rescaled, **changes), {"epsilon": epsilon}
    if method == "no noise":
        recipe = dataclasses.replace(recipe, moments_noise=1e-3)
        noise = {"noise_multiplier": NO_NOISE, "accountant": "rdp"}
    model = recipe.fit(
        found.x_train, found.y_train, **noise, delta=1 / (count + 1), seed=seed, training_metrics=False, verbose=0
    )
    logits = model.predict(found.x_test, batch_size=8192, verbose=0)
    spent = None if method == "no noise" else model.privacy.epsilon()
    keras.backend.clear_session()
    return logits[:, 1] - logits[:, 0], {"spent": spent, "rescaled": rescaled}


def public(found, method: str, seed: int) -> np.ndarray:
    """The same by scikit-learn, without privacy."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if method == "boosting":
        model = HistGradientBoostingClassifier(random_state=seed)
    else:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return model.fit(found.x_train, found.y_train).predict_proba(found.x_test)[:, 1]


def run(table: str, method: str, epsilon: float | None, seed: int, inner: bool, changes: dict) -> dict:
    from sklearn.metrics import roc_auc_score

    found, begin = data(table, inner), time.perf_counter()
    if method in METHODS[2:]:
        score, facts = public(found, method, seed), {}
    else:
        score, facts = private(found, method, epsilon or 1.0, seed, changes)
    return {
        "table": table,
        "method": method,
        "epsilon": epsilon,
        "seed": seed,
        "auroc": round(float(roc_auc_score(found.y_test, score)), 4),
        **facts,
        "examples": found.num_examples,
        "columns": found.x_train.shape[1],
        "anomalies": int(np.sum(found.y_train)),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def render(runs: list[dict]) -> str:
    """Means over seeds, as a Markdown table."""
    found: dict = {}
    for one in runs:
        found.setdefault((one["table"], one["method"], one["epsilon"]), []).append(one)
    budgets = sorted({one["epsilon"] for one in runs if one["epsilon"]})

    def cell(table, method, epsilon=None):
        values = [one["auroc"] for one in found.get((table, method, epsilon), ())]
        if not values:
            return "-"
        deviation = f" ({np.std(values, ddof=1):.3f})" if epsilon and len(values) > 1 else ""
        return f"{np.mean(values):.3f}{deviation}"

    head = " | ".join(f"recipe, epsilon {e:g} (sd)" for e in budgets)
    lines = [
        f"| table | training rows | anomalies among them | columns | {head} | no noise | boosting, not private "
        "| logistic regression, not private | seeds |",
        "|---" * (8 + len(budgets)) + "|",
    ]
    for table in sorted({one["table"] for one in runs}, key=str.lower):
        mine = [one for one in runs if one["table"] == table]
        facts = f"{mine[0]['examples']} | {mine[0]['anomalies']} | {mine[0]['columns']}"
        cells = [*(cell(table, "recipe", e) for e in budgets), *(cell(table, m) for m in METHODS[1:])]
        seeds = len({one["seed"] for one in mine if one["method"] == "recipe"})
        star = "*" if table in CHOSEN_ON else ""
        lines.append(f"| {table}{star} | {facts} | {' | '.join(cells)} | {seeds} |")
    return "\n".join(lines)


def summary(runs: list[dict]) -> str:
    """A sentence on how far the recipe is from trees, and on which tables further."""
    if not any(one["epsilon"] for one in runs):
        return ""
    epsilon = min(one["epsilon"] for one in runs if one["epsilon"])
    found: dict = {}
    for one in runs:
        if one["epsilon"] in (epsilon, None):
            found.setdefault(one["table"], {}).setdefault(one["method"], []).append(one["auroc"])
    means = {
        table: {m: float(np.mean(v)) for m, v in methods.items()}
        for table, methods in found.items()
        if {"recipe", "boosting"} <= set(methods)
    }
    near = [table for table, mean in means.items() if mean["recipe"] >= mean["boosting"] - _NEAR]
    far = sorted((mean["recipe"] - mean["boosting"], table) for table, mean in means.items() if table not in near)
    words = ", ".join(f"{table} ({gap:.2f})" for gap, table in far)
    return (
        f"At epsilon {epsilon:g} the recipe is within {_NEAR:g} of boosting without privacy on {len(near)} of "
        f"{len(means)} tables. Further off: {words}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--inner", action="store_true", help="score on a part of the training rows; nothing is kept")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings to try, with --inner")
    options = parser.parse_args()
    if options.set and not options.inner:
        parser.error("settings are chosen with --inner, not on the rows held out")
    series = Series(None if options.inner else "unseen_tables", PLACE)
    for seed, table, method, epsilon in itertools.product(
        options.seeds, options.tables, options.method, options.epsilon
    ):
        budget = epsilon if method == "recipe" else None
        if series.missing(table, method, budget, seed):
            found = run(table, method, budget, seed, options.inner, settings(options.set))
            series.add(found)
            print({name: found[name] for name in (*PLACE, "auroc", "seconds")}, flush=True)
    print(render(series.runs))
    print(summary(series.runs))


if __name__ == "__main__":
    main()
