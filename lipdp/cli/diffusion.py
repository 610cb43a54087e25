"""`lipdp train --task diffusion`: where it differs from training a classifier."""

import argparse
import dataclasses
import math
import pathlib
import shlex
import sys
from typing import Any

from lipdp import accounting
from lipdp.cli import quiet
from lipdp.cli.parser import chosen
from lipdp.privacy import journal
from lipdp.report import place

_PICTURES = 100
# What has no classes, and what has layers of its own.
NO_CLASSES = "This run is a diffusion model, which has no classes"
NOT_STOCK = "This run is a diffusion model, whose noise and times are computed by layers of lipdp, not of Keras"


def recipe(options: argparse.Namespace, dataset: Any, delta: float = 1e-5) -> Any:
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
        handwritten=dataset.handwritten,
        **chosen(options, "batch_size", "learning_rate", "multiplicity", "clip_norm"),
    )
    result.images(dataset.x_train[:1])  # refuses sides that do not fit
    updates = epochs(result, dataset.num_examples) * _updates_per_epoch(result, dataset.num_examples)
    count = dataset.num_examples
    sampling = accounting.Sampling(options.sampling).bind(count, result.batch_size, options.examples_per_person)
    return dataclasses.replace(result.for_sampling(sampling, delta), updates=updates)


def epochs(recipe: Any, num_examples: int) -> int:
    """Returns the number of epochs nearest to the updates of a recipe."""
    return max(1, round(recipe.updates / _updates_per_epoch(recipe, num_examples)))


def begin(options: argparse.Namespace, recipe: Any, dataset: Any, delta: float, work: pathlib.Path) -> Any:
    """Returns the model that `fit` will train, or, where a checkpoint is, load.

    A fresh one has a classifier and knows moments, if the recipe says so, which are released in silence: until `fit`
    writes a file nobody sees them.
    """
    trains, learns = "trains a classifier for its labels", "learns moments of each class"
    first = (recipe.classifier, trains), (recipe.moments_noise, learns)
    words = [what for setting, what in first if setting is not None]
    if not words or (work / place.CHECKPOINT).exists():
        return recipe.build()
    path = work / f"{place.CHECKPOINT}.journal"
    if path.exists():
        if any(entry.kind != "moments" for entry in journal.read(path).ledger.entries):
            return recipe.build()  # its checkpoint is lost, and `fit` refuses to start anew
        # Of a process that was killed before its first update: what it had released went with it.
        path.unlink()
    minutes = "" if recipe.moments_components or recipe.moments_noise is None else ", which takes minutes"
    sys.stderr.write(f"lipdp train: note: it {' and '.join(words)} first{minutes}.\n")
    images = recipe.images(dataset.x_train)
    how: dict[str, Any] = {"verbose": 0, **chosen(options, "sampling", "examples_per_person", "seed")}
    more = {"delta": delta, **chosen(options, "noise_generator")}
    model = recipe.build(recipe.train_classifier(images, dataset.y_train, **more, **how))
    recipe.learn_moments(model, images, dataset.y_train, **how)
    return model


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
