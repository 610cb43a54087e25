"""How far `lipdp train --task regression` is off on held-out rows, beside what learns without privacy.

    python benchmarks/regression.py                       # five tables, seeds 0 1 2, epsilon 1 and 4
    python benchmarks/regression.py --inner --set huber=0.3    # the split that settings were chosen on

California housing (Pace & Barry 1997, as `housing.csv` of Geron's "Hands-on machine learning"), and one column of four
tables of ADBench as the number to predict. Ranges of housing are public; those of the others are the ends of the first
sixth of the rows, moved apart by 0.3 of their width and taken as public: that sixth neither trains nor is measured on.
A fifth of the rows is the test part; settings were chosen on another fifth of all five (`--inner`, one seed), and the
cost of that choice is not part of epsilon. delta = 1e-5. Errors are parts of the error of the median of the measured
rows. Needs `housing.csv` and `adbench/*.npz` in the folder named by LIPDP_DATA.
"""

import argparse
import csv
import dataclasses
import functools
import itertools
import os
import pathlib

import numpy as np
from common import Series, settings

COLUMNS = {"magic.gamma": 2, "cover": 0, "pendigits": 3, "landsat": 5}
TABLES = ("housing", *COLUMNS)
METHODS = ("dpsgd", "boosting", "linear")
PLACE = ("table", "method", "epsilon", "seed", "evaluated_on", "changes")
# Of housing, by what the columns mean; the next ones by their logarithm.
_RANGES = {"longitude": (-125, -114), "latitude": (32, 42.5), "housing_median_age": (0, 60)}
_COUNTS = {"total_rooms": 50000, "total_bedrooms": 50000, "population": 50000, "households": 50000, "median_income": 20}
_KINDS = ("<1H OCEAN", "INLAND", "ISLAND", "NEAR BAY", "NEAR OCEAN")


def housing(path: pathlib.Path):
    """Rows in [-1, 1], targets, the range of the target, and a bound on the norm of a row."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    parts = []
    for name, (low, high) in _RANGES.items():
        parts.append(2.0 * (np.array([float(row[name]) for row in rows]) - low) / (high - low) - 1.0)
    for name, high in _COUNTS.items():
        values = np.log1p([float(row[name] or 0) for row in rows])
        parts.append(2.0 * values / np.log1p(high) - 1.0)
    parts += [np.array([float(row["ocean_proximity"] == kind) for row in rows]) for kind in _KINDS]
    x = np.clip(np.stack(parts, axis=1), -1.0, 1.0).astype("float32")
    return x, np.array([float(row["median_house_value"]) for row in rows]), (0.0, 600000.0), 3.0


def column(path: pathlib.Path, target: int):
    """The same of a table of ADBench, one column of which is the target."""
    found = np.load(path)["X"].astype("float64")
    found = found[np.random.default_rng(1).permutation(len(found))][:60000]
    public, found = found[: len(found) // 6], found[len(found) // 6 :]
    low, high = public.min(axis=0), public.max(axis=0)
    kept = [i for i in range(found.shape[1]) if i != target and high[i] > low[i]]
    low, high = low - 0.3 * (high - low), high + 0.3 * (high - low)
    x = np.clip(2.0 * (found[:, kept] - low[kept]) / (high[kept] - low[kept]) - 1.0, -1.0, 1.0)
    return x.astype("float32"), found[:, target], (low[target], high[target]), len(kept) ** 0.5


@functools.lru_cache(maxsize=1)
def data(table: str, inner: bool):
    """Training and measured rows, the range of the target, and a bound on the norm of a row."""
    folder = pathlib.Path(os.environ["LIPDP_DATA"])
    if table == "housing":
        x, y, low_high, norm = housing(folder / "housing.csv")
    else:
        x, y, low_high, norm = column(folder / "adbench" / f"{table}.npz", COLUMNS[table])
    draw = np.random.default_rng(7).random(len(x))
    train, test = (draw < 0.6, (draw >= 0.6) & (draw < 0.8)) if inner else (draw < 0.8, draw >= 0.8)
    return (x[train], y[train].astype("float32")), (x[test], y[test]), low_high, norm


def predicted(table: str, method: str, epsilon: float, seed: int, inner: bool, changes: dict) -> np.ndarray:
    """What a model that was trained on the training rows says of the others."""
    (x, y), (x_test, _), low_high, norm = data(table, inner)
    if method == "dpsgd":
        import keras

        import lipdp

        keras.utils.set_random_seed(seed)
        own = {"task": "regression", "target_range": low_high, "row_norm": norm}
        recipe = dataclasses.replace(lipdp.recipe((x.shape[1],), 1, len(x), epsilon, **own), **changes)
        model = recipe.fit(x, y, epsilon=epsilon, delta=1e-5, training_metrics=False, seed=seed, verbose=0)
        found = recipe.clipped(model.predict(x_test, batch_size=8192, verbose=0))
        keras.backend.clear_session()
        return found
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression

    model = HistGradientBoostingRegressor(random_state=seed) if method == "boosting" else LinearRegression()
    return model.fit(x, y).predict(x_test)


def run(table: str, method: str, epsilon: float | None, seed: int, inner: bool, changes: dict) -> dict:
    """One run and its errors."""
    found = predicted(table, method, epsilon, seed, inner, changes)
    (x, _), (_, truth), *_ = data(table, inner)
    error = float(np.abs(found - truth).mean())
    return {
        "table": table,
        "method": method,
        "epsilon": epsilon,
        "seed": seed,
        "evaluated_on": place(inner),
        "changes": " ".join(f"{name}={value}" for name, value in changes.items()),
        "mean_absolute_error": error,
        "part_of_median": round(error / float(np.abs(truth - np.median(truth)).mean()), 4),
        "r_squared": round(1.0 - float(np.square(found - truth).mean() / truth.var()), 4),
        "examples": len(x),
        "columns": x.shape[1],
    }


def place(inner: bool) -> str:
    return "a fifth of the training rows" if inner else "test rows, a fifth of all"


def render(runs: list[dict]) -> str:
    """The results on test rows as a Markdown table: means over seeds."""
    chosen = [run for run in runs if run["evaluated_on"] == place(False) and not run["changes"]]

    def cell(table, method, epsilon, name):
        values = [r[name] for r in chosen if (r["table"], r["method"], r["epsilon"]) == (table, method, epsilon)]
        return f"{np.mean(values):.2f}" if values else "-"

    lines = [
        "| table | training rows | columns | epsilon | DP-SGD: error | R squared | linear, not private: error "
        "| R squared | boosting, not private: error | R squared | seeds |",
        "|---" * 11 + "|",
    ]
    for table, epsilon in sorted({(r["table"], r["epsilon"]) for r in chosen if r["epsilon"]}):
        one = [r for r in chosen if (r["table"], r["epsilon"]) == (table, epsilon)]
        values = [
            cell(table, method, epsilon if method == "dpsgd" else None, name)
            for method in ("dpsgd", "linear", "boosting")
            for name in ("part_of_median", "r_squared")
        ]
        head = f"| {table} | {one[0]['examples']} | {one[0]['columns']} | {epsilon:g} "
        lines.append(f"{head}| {' | '.join(values)} | {len(one)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 4.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--inner", action="store_true", help="measure on a part of the training rows")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings to try, with --inner")
    options = parser.parse_args()
    if options.set and not options.inner:
        parser.error("settings are chosen with --inner, not on test rows")
    changes, series = settings(options.set), Series("regression", PLACE)
    for table, seed, method, epsilon in itertools.product(
        options.tables, options.seeds, options.method, options.epsilon
    ):
        budget = epsilon if method == "dpsgd" else None
        words = " ".join(f"{name}={value}" for name, value in changes.items())
        known = [(r["table"], r["method"], r["epsilon"], r["seed"]) for r in series.runs]
        there = not series.missing(table, method, budget, seed, place(options.inner), words)
        if there or (budget is None and (table, method, None, seed) in known):
            continue
        one = run(table, method, budget, seed, options.inner, changes)
        series.add(one)
        print(
            *(one[name] for name in ("table", "method", "epsilon", "seed", "part_of_median", "r_squared")), flush=True
        )


if __name__ == "__main__":
    main()
