"""`lipdp train --task language`: a model that writes texts, where it differs from classifiers of them."""

import argparse
import dataclasses
import json
import pathlib
from typing import Any

from lipdp import data
from lipdp.cli import quiet, text
from lipdp.cli.parser import chosen
from lipdp.privacy import files

# Bits of a byte that nobody knows anything of.
UNIFORM = 8.0
NO_CLASSES = "A language model writes texts, and names no classes."


def check(options: argparse.Namespace) -> None:
    """Refuses options that do not go together, and sets the defaults of this task."""
    if options.label is not None:
        raise ValueError(f"{NO_CLASSES} Received: --label {options.label}. Leave it out, or pass --task text.")
    text.need_columns(options, "text")
    if options.backbone is not None:
        raise ValueError(
            "The command trains language models from scratch. Received: --backbone with --task language. Leave it out; "
            "docs/howto/finetune.md, under Language models, fine-tunes one of keras_hub in Python, by low-rank "
            "additions."
        )
    text.check_file(options)
    if options.strategy == "clipless":
        raise ValueError(
            "Attention has no useful Lipschitz constant. Received: --strategy clipless. Pass --strategy dpsgd, adaclip "
            "or dpis."
        )
    options.strategy = options.strategy or "dpsgd"


def read(options: argparse.Namespace, frozen: None = None) -> data.Dataset:
    """Returns the texts of a command as what a language model learns."""
    length = {} if options.length is None else {"length": options.length}
    return data.load_language(options.dataset, options.text, person=options.person_column, **length)


def recipe(options: argparse.Namespace, dataset: data.Dataset) -> Any:
    """Returns the `models.LanguageRecipe` for the options."""
    quiet.load_keras()
    from lipdp.models import language_recipe

    found = language_recipe(
        dataset.input_shape,
        dataset.texts.tokenizer.vocabulary_size,
        dataset.num_persons or dataset.num_examples,
        options.epsilon,
        method=options.strategy,
    )
    overrides = chosen(options, "epochs", "batch_size", "learning_rate", "clip_norm")
    return dataclasses.replace(found, **{name: value for name, value in overrides.items() if value is not None})


def measure(model: Any, dataset: data.Dataset) -> dict:
    """Returns what the model reaches on held-out texts, beside a uniform guess."""
    import numpy as np

    from lipdp.models import bits_per_token

    ids = dataset.person_ids_test
    return {
        "examples": len(dataset.y_test),
        **({} if ids is None else {"persons": len(np.unique(ids))}),
        "bits_per_byte": bits_per_token(model, dataset.x_test, dataset.y_test),
        "uniform_bits_per_byte": UNIFORM,
        "certified": [],
        "curve": [],
    }


def write(model: Any, options: argparse.Namespace, texts: data.TextColumns, target: pathlib.Path) -> None:
    """Writes texts that a model draws to a JSON-lines file, in a column of the name that the model learned from."""
    from lipdp.models import write as drawn

    temperature = 1.0 if options.temperature is None else options.temperature
    found = drawn(model, texts.tokenizer, options.num, options.prompt or "", temperature, options.seed)
    files.write_text(target, "".join(json.dumps({texts.text: one}, ensure_ascii=False) + "\n" for one in found))
