"""`lipdp table`: the description of a CSV file, to be filled in."""

import argparse
import json
import os
import pathlib
import shlex

from lipdp import data
from lipdp.cli import output


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes a description with the names of the columns, and whether they hold numbers, dates or truth values."""
    beside = pathlib.Path(os.path.splitext(options.file)[0] + ".json")  # also of "." and "/", which are refused below
    target = pathlib.Path(options.output or beside)
    if target.exists() and not options.overwrite:
        raise FileExistsError(
            f"The description already exists. Received: {str(target)!r}. Pass another --output, or --overwrite."
        )
    number = options.task == "regression"
    blanks = "ranges and vocabularies" if number else "ranges, vocabularies and classes"
    data.Table.template(options.file, target, options.label, not options.no_header, options.person_column, number)
    if options.json:
        output.write_json({"output": str(target)})
        return
    label = json.loads(target.read_text(encoding="utf-8"))["label"]["column"]
    output.write(
        f"The label is {label!r}" + (", the last column; --label names another one." if options.label is None else "."),
        "It is a number to predict: fill in its range, and its unit."
        if number
        else "Its values are classes; for a number to predict, pass --task regression.",
        f"Written to {target}: column names and kinds. Kinds follow from all rows, so that one row can change them: "
        f"check them, and fill in {blanks} by what is publicly known; epsilon does not cover what you take from the "
        "rows.",
        f"Then: lipdp train --dataset {shlex.quote(options.file)} --epsilon 2"
        + ("" if options.person_column is None else f" --person-column {shlex.quote(options.person_column)}")
        + ("" if target == beside else f" --table {shlex.quote(str(target))}"),
    )
