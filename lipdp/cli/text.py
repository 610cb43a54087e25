"""`lipdp train --task text`: where it differs from training on tables and images."""

import argparse
import dataclasses
import pathlib
import shlex
import sys
import textwrap
from typing import Any

import numpy as np

from lipdp import data
from lipdp.cli import backbone, encoder, evaluation, quiet
from lipdp.cli.parser import chosen
from lipdp.data import text_columns
from lipdp.report import folder as folders

NO_CERTIFICATES = (
    "Models of texts have no certificates: a network over the letters or words of a text has no useful Lipschitz "
    "constant, and a text has no L2 ball around it."
)

# Names of columns in a message, and words of a text at least, where most rows have as many.
_SHOWN, _WORDS = 20, 3


def check(options: argparse.Namespace) -> None:
    """Refuses options that do not go together, and sets the defaults of this task."""
    need_columns(options, "text", "label")
    if options.text == options.label:
        raise ValueError(
            f"The column of classes must not be that of the texts. Received: --text {options.text} and --label "
            f"{options.label}. Name the column of classes as --label."
        )
    check_file(options)
    if options.strategy == "clipless":
        raise ValueError(f"{NO_CERTIFICATES} Received: --strategy clipless. Pass --strategy dpsgd, adaclip or dpis.")
    options.strategy = options.strategy or "dpsgd"
    if options.backbone is None:
        options.recipe = options.recipe or "linear"
        return
    for name in ("recipe", "vocabulary"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"A backbone has a network and a vocabulary of its own. Received: --backbone and --{name}. Leave one "
                "out."
            )


def need_columns(options: argparse.Namespace, *kinds: str) -> None:
    """Refuses a run for which one of these options, "text" and "label", names no column."""
    for kind in kinds:
        if getattr(options, kind) is None:
            names = [other for other in text_columns.read(options.dataset).columns if other != options.text]
            raise ValueError(
                f"--task {options.task} needs the column of its {kind}s. Received: none. Pass --{kind} with one of the "
                f"columns of {options.dataset}: {', '.join(names[:_SHOWN])}."
            )


def hint(path: str, label: str | None = None, about: str | None = None) -> str:
    """Returns that a file looks like one of texts, as one more sentence of an error; nothing where it does not.

    Args:
        path: The file.
        label: The column of classes, where it is known.
        about: The error, where the table is described: a column that it does not name is none of its causes.

    Returns:
        A sentence that begins with a space, or an empty text.
    """
    try:
        columns = text_columns.read(path).columns
    except (ValueError, OSError):  # of which the error says more than a hint
        return ""
    words = {name: np.median([len(str(value).split()) for value in values]) for name, values in columns.items()}
    found = max(words, key=lambda name: words[name])
    if words[found] < _WORDS or len(words) == 1 and any(mark in found for mark in "\t;|"):  # of another separator
        return ""
    if about is not None and repr(found) not in about:
        return ""
    label = "COLUMN" if label in (None, found) else shlex.quote(str(label))
    return (
        f" If column {found!r} holds texts to classify, pass --task text --text {shlex.quote(found)} --label {label}."
    )


def check_file(options: argparse.Namespace) -> None:
    """Refuses what no file of texts has."""
    if options.no_header:
        raise ValueError("Texts are named by their column. Received: --no-header. Add a header to the file.")
    if options.person_column is not None and options.person_column == options.text:
        raise ValueError(
            f"The column of persons must not be that of the texts. Received: {options.text!r} for both. Name the "
            "column of ids."
        )


def read(options: argparse.Namespace, frozen: encoder.Encoder | None = None) -> data.Dataset:
    """Returns the texts of a command as a data set, as tokens of the encoder if there is one."""
    length = {} if options.length is None else {"length": options.length}
    tokenizer: Any
    if frozen is not None:
        tokenizer = frozen.tokenizer
    elif options.vocabulary is not None:
        tokenizer = data.WordTokenizer.from_file(options.vocabulary, **length)
    elif options.recipe == "attention":
        tokenizer = data.HashedWordTokenizer(**length)
    else:
        tokenizer = data.ByteTokenizer(**length)
    classes = tuple(options.classes or ())
    return data.load_text(options.dataset, options.text, options.label, tokenizer, classes, options.person_column)


def recipe(options: argparse.Namespace, dataset: data.Dataset) -> Any:
    """Returns the recipe for the options; behind a backbone that of a head."""
    quiet.load_keras()
    from lipdp.models import text_recipe

    found: Any = text_recipe(
        dataset.input_shape,
        dataset.num_classes,
        dataset.num_persons or dataset.num_examples,
        options.epsilon,
        style="head" if options.backbone is not None else options.recipe,
        vocabulary_size=dataset.texts.tokenizer.vocabulary_size,
        method=options.strategy,
    )
    overrides = chosen(options, "epochs", "batch_size", "learning_rate", "clip_norm")
    found = backbone.adapted(options, found)
    return dataclasses.replace(found, **{name: value for name, value in overrides.items() if value is not None})


def tell(options: argparse.Namespace, dataset: data.Dataset) -> None:
    """Says on standard error what is assumed of the texts."""
    tokenizer = dataset.texts.tokenizer
    cut = None if options.backbone is not None else dataset.texts.cut(options.dataset)
    lines = [f"each text is its first {tokenizer.length} {tokenizer.unit}, by a rule that reads no other text"]
    if getattr(options, "vocabulary", None) is not None:
        lines.append(f"{options.vocabulary} must be public: a vocabulary of the private texts tells their words")
    counted = "This number was counted in the private texts: do not publish it"
    if cut:
        lines.append(f"what is behind them is left out of {cut} of the texts (--length). {counted}")
    if empty := sum(int((x == 0).all(axis=1).sum()) for x in (dataset.x_train, dataset.x_test) if x is not None):
        lines.append(
            f"{empty} of the texts hold no word of {options.vocabulary}, and are all the same to the model: pass a "
            f"vocabulary that fits the language of the texts. {counted}"
        )
    lines += [f"read off the private rows, NOT covered by epsilon: {what} (or --classes)" for what in dataset.uncharged]
    for line in lines:
        sys.stderr.write(f"lipdp {options.command}: note: {line}.\n")


def unit(texts: data.TextColumns, person: str | None) -> str:
    """Returns what one example is, and whom epsilon is of, as lines of the statement.

    Args:
        texts: the columns.
        person: name of the column that says who wrote each text, where there is one.
    """
    kept = f"the first {texts.tokenizer.length} {texts.tokenizer.unit} of what one row of the data has in column"
    kept += f" {texts.text!r}" + ("" if texts.label is None else f", with its class in column {texts.label!r}")
    line = f"One example is one text: {kept}. A person who wrote several texts is several examples."
    if person is not None:
        line = (
            f"The unit is one person, whatever number of texts they wrote: column {person!r} says whose each text is. "
            f"One text is {kept}."
        )
    return "\n" + textwrap.fill("- " + line, 88, subsequent_indent="  ") + "\n"


def measure(model: Any, dataset: data.Dataset) -> dict:
    """Returns what the model reaches on held-out texts."""
    return evaluation.accuracy(model, dataset.x_test, dataset.y_test, dataset.person_ids_test)


def described_by(run: pathlib.Path, recorded: dict, frozen: encoder.Encoder | None = None) -> data.TextColumns:
    """Returns columns and tokenizer of the texts that a run was trained on: those of its encoder if it had one."""
    if frozen is None:
        return data.TextColumns.from_json(run / folders.TEXTS)
    return data.TextColumns(text=recorded["text"], tokenizer=frozen.tokenizer)
