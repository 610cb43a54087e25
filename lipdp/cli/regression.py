"""`lipdp train --task regression`: a number of a table, where it differs from training classifiers."""

import argparse
import csv
import dataclasses
import io
import pathlib
import sys
from typing import Any

import numpy as np

from lipdp import data
from lipdp.cli import datasets, output, quiet
from lipdp.cli.parser import chosen
from lipdp.privacy import files
from lipdp.report import numbers

NO_CLASSES = "The model of this run predicts a number, and names no classes."
_RANGE = (
    "Write what follows from its meaning, such as 0 120 for an age: the ends of the private rows are not covered by "
    "epsilon."
)


def is_described(options: argparse.Namespace) -> bool:
    """Returns whether the description of the table says that its label is a number."""
    path = datasets.description(options)
    try:
        content = None if path is None else files.parse(pathlib.Path(path).read_text(encoding="utf-8-sig"))
        label = content["label"] if isinstance(content, dict) else None
    except (OSError, ValueError, KeyError):
        return False  # what is wrong with it is said where it is read
    return isinstance(label, dict) and "range" in label


def check(options: argparse.Namespace) -> None:
    """Refuses options that do not go together, and sets the defaults of this task."""
    if not options.dataset.endswith(".csv"):
        raise ValueError(
            f"The command predicts a number of the rows of a .csv file. Received: --task regression with --dataset "
            f"{options.dataset}. Pass a .csv file; docs/howto/regression.md trains on arrays, in Python."
        )
    described = is_described(options)
    if described and options.target_range is not None:
        raise ValueError(
            f"The range of the target stands in the description. Received: --target-range and "
            f"{datasets.description(options)}. Leave --target-range out, or change the description."
        )
    path = datasets.description(options)
    if path is not None and pathlib.Path(path).is_file() and not described:
        raise ValueError(
            f"The description names no number to predict. Received: --task regression with {path}. Write its label as "
            '{"column": NAME, "range": [LOW, HIGH]}, or begin another description by `lipdp table --task regression`. '
            f"{_RANGE}"
        )
    if path is None and options.target_range is None:
        raise ValueError(
            f"The range of the number to predict has to be known. Received: neither a description nor --target-range. "
            f"Pass --target-range LOW HIGH, or describe the table: `{datasets.command(options)}`. {_RANGE}"
        )
    if options.strategy == "clipless":
        raise ValueError(
            "The recipe for a number clips gradients. Received: --strategy clipless with --task regression. Pass "
            "--strategy dpsgd, adaclip or dpis; docs/howto/regression.md trains a clipless network, in Python."
        )
    options.strategy = options.strategy or "dpsgd"


def recipe(options: argparse.Namespace, dataset: data.Dataset) -> Any:
    """Returns the `models.RegressionRecipe` for the options."""
    quiet.load_keras()
    from lipdp.models import regression_recipe

    table: Any = dataset.table
    found = regression_recipe(
        dataset.input_shape,
        dataset.num_persons or dataset.num_examples,
        table.target_range,
        options.epsilon,
        method=options.strategy,
        row_norm=table.norm,
        rescaled=datasets.is_rescaled(options, dataset),
    )
    overrides = chosen(options, "epochs", "batch_size", "learning_rate", "clip_norm", "input_norm")
    return dataclasses.replace(found, **{name: value for name, value in overrides.items() if value is not None})


def measure(model: Any, recipe: Any, x: np.ndarray, dataset: data.Dataset) -> dict:
    """Returns how far a model is off on held-out rows, beside the middle of the range, in the unit of the target.

    Args:
        model: a trained model.
        recipe: its recipe.
        x: the held-out rows, as the model takes them.
        dataset: the data set, with the numbers of these rows; they are compared as they are, also beyond the range.

    Returns:
        A dictionary, ready for JSON: `examples` and, if known, `persons`, how many there are,
        `mean_absolute_error`, `root_mean_squared_error`, `r_squared` (None where all targets are alike), and the first
        two of the middle of the range, `middle_mean_absolute_error` and `middle_root_mean_squared_error`.
    """
    truth, table, ids = np.asarray(dataset.y_test, "float64"), dataset.table, dataset.person_ids_test
    off = recipe.clipped(model.predict(x, verbose=0)) - truth
    low, high = recipe.target_range
    trivial, spread = truth - (low + high) / 2, float(np.var(truth))
    return {
        "examples": len(truth),
        **({} if ids is None else {"persons": len(np.unique(ids))}),
        "mean_absolute_error": float(np.abs(off).mean()),
        "root_mean_squared_error": float(np.sqrt(np.square(off).mean())),
        "r_squared": None if spread == 0.0 else 1.0 - float(np.square(off).mean()) / spread,
        "middle_mean_absolute_error": float(np.abs(trivial).mean()),
        "middle_root_mean_squared_error": float(np.sqrt(np.square(trivial).mean())),
        "unit": "" if table is None else table.target_unit,
        "certified": [],
        "curve": [],
    }


def warn(held_out: dict | None) -> None:
    """Says on standard error where a model is no better than one number for all rows."""
    if not held_out or "mean_absolute_error" not in held_out:
        return
    same = held_out["r_squared"] is not None and held_out["r_squared"] <= 0.0
    if held_out["mean_absolute_error"] < held_out["middle_mean_absolute_error"] and not same:
        return
    sys.stderr.write(
        "lipdp train: warning: on the held-out examples the model is no better than one number for all of them. Train "
        "on more examples, with a larger epsilon, with a narrower range of the target if its meaning allows one, or, "
        "where you have asked for few epochs, for more of them.\n"
    )


def write(model: Any, options: argparse.Namespace, recorded: dict, x: np.ndarray, kept: dict, target: Any) -> None:
    """Writes the predictions of a run for new rows, clipped to the range of its target."""
    low, high = recorded["target_range"]
    outputs = model.predict(x, batch_size=options.batch_size, verbose=0)[:, 0]
    found = np.clip(np.asarray(outputs, "float64"), low, high)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*kept, "prediction"])
    copied = zip(*kept.values(), strict=True) if kept else [()] * len(x)
    writer.writerows([*first, numbers.plain(value, 7)] for first, value in zip(copied, found, strict=True))
    files.write_text(target, text.getvalue())
    if options.json:
        output.write_json({"output": str(target), "examples": len(x), "target_range": [low, high]})
        return
    output.write(
        f"{len(x)} examples: prediction, in the unit of the target, clipped to its range from {numbers.plain(low)} to "
        f"{numbers.plain(high)}. They cost the training data no more privacy; what they say about the examples "
        "themselves is not protected.",
        f"Written to {target}",
    )
