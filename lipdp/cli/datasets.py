"""The data set that a command names, and what is known of it."""

import argparse
import contextlib
import pathlib
import shlex
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from lipdp import data
from lipdp.data.column import DESCRIPTION
from lipdp.report import folder as folders

# Of a model there is.
TRAINED_BY = "the description, and train the model again"


def read(options: argparse.Namespace, run: pathlib.Path | None = None) -> data.Dataset:
    """Returns the data set of the options `dataset`, `label`, `table`, `no_header`, `feature_ranges` and
    `person_column`.

    Args:
        options: of the command.
        run: a run folder, whose description of its table holds where the options give none.

    Raises:
        ValueError, FileNotFoundError: as `data.load`; both a description and ranges are given.
    """
    if options.table is not None and options.feature_ranges is not None:
        raise ValueError(
            "A description of a table holds its ranges. Received: --table and --feature-ranges. Leave the second one "
            "out."
        )
    table = None if own_options(options) or not options.dataset.endswith(".csv") else described_by(run)
    words = {DESCRIPTION: TRAINED_BY}
    if table is None:
        path = description(options)
        table = None if path is None else data.Table.from_json(path)
        words = {"`lipdp table`": f"`{command(options)}`"} if path is None else {DESCRIPTION: path}
    with warnings.catch_warnings(), saying(words):
        warnings.simplefilter("ignore", data.UnchargedWarning)  # `tell` says it
        person = getattr(options, "person_column", None)  # of commands that ask for it
        target = getattr(options, "target_range", None)  # of `lipdp train`
        target = None if target is None else tuple(target)
        dataset = data.load(options.dataset, options.label, table, not options.no_header, person, target)
    if is_numeric(dataset) and getattr(options, "task", "regression" if run else None) != "regression":
        raise ValueError(
            f"lipdp {options.command} takes data of classes. Received: {options.dataset}, whose description has a "
            "range for its label, a number to predict. Pass data of classes, or describe the label by its classes."
        )
    if options.feature_ranges is not None:
        return data.scale(dataset, data.read_ranges(options.feature_ranges))
    return dataset


def command(options: argparse.Namespace) -> str:
    """Returns the command that begins the description of the table of these options."""
    words = ["lipdp", "table", options.dataset]
    for name in ("label", "person_column"):
        value = getattr(options, name, None)
        words += [] if value is None else [f"--{name.replace('_', '-')}", value]
    if getattr(options, "task", None) == "regression":
        words += ["--task", "regression"]
    return shlex.join([*words, *(["--no-header"] if options.no_header else [])])


def is_numeric(dataset: data.Dataset) -> bool:
    """Returns whether the labels of a data set are numbers to predict, not classes."""
    return dataset.table is not None and dataset.table.target_range is not None


@contextlib.contextmanager
def saying(words: dict[str, str]) -> Iterator[None]:
    """Puts words that fit a command in the place of others in a refusal."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for others, own in words.items():
            text = text.replace(others, own)
        if text == str(error):
            raise
        raise ValueError(text) from error


def own_options(options: argparse.Namespace) -> bool:
    """Returns whether the options say how to read a table."""
    return bool(options.table or options.feature_ranges or options.label or options.no_header)


def description(options: argparse.Namespace) -> str | None:
    """Returns the path of the description of a table: the one given, or the one beside a `.csv` file."""
    if options.table is None and options.feature_ranges is None and options.dataset.endswith(".csv"):
        beside = pathlib.Path(options.dataset).with_suffix(".json")
        return str(beside) if beside.is_file() else None
    return options.table


def described_by(run: pathlib.Path | None) -> data.Table | None:
    """Returns the description of the table that a run was trained on, if it was one."""
    path = None if run is None else run / folders.TABLE
    return data.Table.from_json(path) if path is not None and path.is_file() else None


def _is_raw(options: argparse.Namespace, dataset: data.Dataset) -> bool:
    """Returns whether a table has columns of which no range is publicly known."""
    if dataset.table is not None:
        return dataset.table.norm is None
    return dataset.is_table and options.feature_ranges is None


def is_rescaled(options: argparse.Namespace, dataset: data.Dataset) -> bool:
    """Returns whether the default recipe releases the ranges of columns first, see `models.table_recipe`."""
    from lipdp.models import table

    if not _is_raw(options, dataset) or options.recipe not in (None, "accurate") or options.strategy == "clipless":
        return False
    if getattr(options, "front_end", None) is not None or getattr(options, "backbone", None) is not None:
        return False
    count, (columns,) = dataset.num_persons or dataset.num_examples, dataset.input_shape
    noise = table.TableRecipe.by_budget(count, options.epsilon, 1)[1]["moments_noise"]
    return table.rescales(columns, count, noise * (getattr(options, "examples_per_person", None) or 1))


def tell(options: argparse.Namespace, dataset: data.Dataset) -> None:
    """Says on standard error what is assumed of a data set."""
    lines = []
    path = description(options)
    way = "pass --feature-ranges"
    if path is not None:
        way = f"write them into {path}"
    elif options.dataset.endswith(".csv"):
        way = f"describe the columns (`{command(options)}`), or {way}"
    if dataset.table is not None and path is not None:
        lines.append(f"the table is encoded by {path} ({len(dataset.table.features)} features)")
    elif dataset.table is not None:
        label = "number to predict" if is_numeric(dataset) else "classes"
        lines.append(
            f"{options.dataset} has no description: its features are taken as numbers, and the last column (or "
            f"--label) as the {label}. `{command(options)}` writes a description to fill in"
        )
    lines += [f"read off the private rows, NOT covered by epsilon: {what}" for what in dataset.uncharged]
    if dataset.unscaled and getattr(options, "backbone", None) is None:
        # Their largest number would tell more, and is private.
        lines.append(
            "images of another type than uint8 are taken as they are, and the settings are for images in [0, 1]; those "
            "in [0, 255] are divided by 255 where they are saved as uint8"
        )
    if is_rescaled(options, dataset):
        lines.append(
            "the ranges of columns are released first, with noise, as part of epsilon. Ranges that are publicly known "
            f"cost nothing and say more: {way}"
        )
    elif _is_raw(options, dataset) and options.recipe != "head":  # which standardizes each row
        lines.append(
            "columns without a public range are taken as they are, and each row is clipped to one norm: a column of "
            f"large numbers hides the others. For ranges, {way}"
        )
    for line in lines:
        sys.stderr.write(f"lipdp {options.command}: note: {line}.\n")


def without_charge(model: Any, dataset: data.Dataset) -> None:
    """Notes in the ledger of a model, before it is trained, what was read off its data: the statement then says so."""
    ledger = model.run.ledger
    ledger.uncharged = tuple(dict.fromkeys([*ledger.uncharged, *dataset.uncharged]))
