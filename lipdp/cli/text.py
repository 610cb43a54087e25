"""`lipdp train --task text`: where it differs from training on tables and images."""

import argparse
import dataclasses
import pathlib
import sys
import textwrap
from typing import Any

from lipdp import data
from lipdp.cli import quiet
from lipdp.cli.parser import chosen
from lipdp.report import folder as folders

NO_CERTIFICATES = (
    "Models of texts have no certificates: a network over the letters or words of a text has no useful Lipschitz "
    "constant, and a text has no L2 ball around it."
)


def check(options: argparse.Namespace) -> None:
    """Refuses options that do not go together, and sets the defaults of this task."""
    for name, example in (("text", "review"), ("label", "opinion")):
        if getattr(options, name) is None:
            raise ValueError(f"--task text needs the column of its {name}s. Received: none. Pass --{name} {example}.")
    if options.strategy == "clipless":
        raise ValueError(f"{NO_CERTIFICATES} Received: --strategy clipless. Pass --strategy dpsgd, adaclip or dpis.")
    options.strategy = options.strategy or "dpsgd"
    if options.no_header:
        raise ValueError("Texts are named by their column. Received: --no-header. Add a header to the file.")


def read(options: argparse.Namespace) -> data.Dataset:
    """Returns the texts of a command as a data set."""
    length = {} if options.length is None else {"length": options.length}
    tokenizer: Any = data.ByteTokenizer(**length)
    if options.vocabulary is not None:
        tokenizer = data.WordTokenizer.from_file(options.vocabulary, **length)
    return data.load_text(options.dataset, options.text, options.label, tokenizer, tuple(options.classes or ()))


def recipe(options: argparse.Namespace, dataset: data.Dataset) -> Any:
    """Returns the `models.TextRecipe` for the options."""
    quiet.load_keras()
    from lipdp.models import text_recipe

    found = text_recipe(
        dataset.input_shape,
        dataset.num_classes,
        dataset.num_examples,
        options.epsilon,
        vocabulary_size=dataset.texts.tokenizer.vocabulary_size,
        method=options.strategy,
    )
    overrides = chosen(options, "epochs", "batch_size", "learning_rate", "clip_norm")
    return dataclasses.replace(found, **{name: value for name, value in overrides.items() if value is not None})


def tell(options: argparse.Namespace, dataset: data.Dataset) -> None:
    """Says on standard error what is assumed of the texts."""
    tokenizer, cut = dataset.texts.tokenizer, dataset.texts.cut(options.dataset)
    lines = [f"each text is its first {tokenizer.length} {tokenizer.unit}, by a rule that reads no other text"]
    if options.vocabulary is not None:
        lines.append(f"{options.vocabulary} must be public: a vocabulary of the private texts tells their words")
    if cut:
        lines.append(
            f"what is behind them is left out of {cut} of the texts (--length). This number was counted in the private "
            "texts: do not publish it"
        )
    lines += [f"read off the private rows, NOT covered by epsilon: {what} (or --classes)" for what in dataset.uncharged]
    for line in lines:
        sys.stderr.write(f"lipdp {options.command}: note: {line}.\n")


def unit(texts: data.TextColumns) -> str:
    """Returns what one example is, as a line of the statement."""
    line = (
        f"One example is one text: what one row of the data has in column {texts.text!r}, with its class in column "
        f"{texts.label!r}. A person who wrote several texts is several examples."
    )
    return "\n" + textwrap.fill("- " + line, 88, subsequent_indent="  ") + "\n"


def described_by(run: pathlib.Path) -> data.TextColumns | None:
    """Returns columns and tokenizer of the texts that a run was trained on, if it was on texts."""
    path = run / folders.TEXTS
    return data.TextColumns.from_json(path) if path.is_file() else None
