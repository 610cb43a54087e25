"""`lipdp train --task diffusion`: where it differs from training a classifier."""

import argparse
import dataclasses
import math
import pathlib
import shlex
import sys
from typing import Any

from lipdp.cli import quiet
from lipdp.cli.parser import chosen
from lipdp.privacy import journal
from lipdp.report import place

_PICTURES = 100
# What has no classes, and what has layers of its own.
NO_CLASSES = "This run is a diffusion model, which has no classes"
NOT_STOCK = "This run is a diffusion model, whose noise and times are computed by layers of lipdp, not of Keras"


def recipe(options: argparse.Namespace, dataset: Any) -> Any:
    """Returns the `diffusion.Recipe` for the options; its updates are whole epochs.

    Raises:
        ValueError: when the data are no images, or do not fit the preset.
    """
    quiet.load_keras()
    from lipdp import diffusion

    result = diffusion.recipe(
        dataset.input_shape,
        dataset.num_classes,
        dataset.num_examples,
        options.preset,
        options.epochs,
        epsilon=options.epsilon,
        **chosen(options, "batch_size", "learning_rate", "multiplicity", "clip_norm"),
    )
    result.images(dataset.x_train[:1])  # refuses sides that do not fit
    updates = epochs(result, dataset.num_examples) * _updates_per_epoch(result, dataset.num_examples)
    # k rows of a person move a moment k times as far.
    noise = None if result.moments_noise is None else result.moments_noise * options.examples_per_person
    return dataclasses.replace(result, updates=updates, moments_noise=noise)


def epochs(recipe: Any, num_examples: int) -> int:
    """Returns the number of epochs nearest to the updates of a recipe."""
    return max(1, round(recipe.updates / _updates_per_epoch(recipe, num_examples)))


def learn_moments(options: argparse.Namespace, recipe: Any, model: Any, dataset: Any, work: pathlib.Path) -> None:
    """Lets a fresh model learn moments, if the recipe does, in silence: until `fit` writes a file nobody sees them."""
    if recipe.moments_noise is None:
        return
    path = work / f"{place.CHECKPOINT}.journal"
    if path.exists():
        if any(entry.kind != "moments" for entry in journal.read(path).ledger.entries):
            return  # its checkpoint is lost, and `fit` refuses to start anew
        # Of a process that was killed before its first update: what it had released went with it.
        path.unlink()
    minutes = "" if recipe.moments_components else " and learned, which takes minutes"
    sys.stderr.write(f"lipdp train: note: moments of each class are released first{minutes}.\n")
    how = chosen(options, "sampling", "examples_per_person", "seed")
    recipe.learn_moments(model, recipe.images(dataset.x_train), dataset.y_train, verbose=0, **how)


def refuse(run: str, recorded: dict | None, model: Any = None, why: str = NO_CLASSES) -> None:
    """Refuses a diffusion model.

    Args:
        run: folder, or path of a model.
        recorded: settings of the run, if they are known.
        model: from the file; where the settings are not known, it tells.
        why: what is missing.

    Raises:
        ValueError: it is one.
    """
    generative = (recorded or {}).get("task") == "diffusion"
    if model is not None and not generative:
        from lipdp.diffusion import DiffusionModel

        generative = isinstance(model, DiffusionModel)
    if generative:
        raise ValueError(f"{why}; `lipdp sample {shlex.quote(run)}` draws from it.")


def draw_samples(model: Any, recipe: Any, path: pathlib.Path) -> None:
    """Writes a picture with as many images of each class."""
    from lipdp import diffusion

    classes = recipe.num_classes
    rows = max(1, _PICTURES // classes)
    drawn = model.sample(classes * rows, None, recipe.make_sampler(), guidance=recipe.guidance)
    diffusion.image_grid(drawn, path, columns=classes, scale=0.4)


def _updates_per_epoch(recipe, num_examples: int) -> int:
    return math.ceil(num_examples / recipe.batch_size)
