"""What `lipdp train --task diffusion` does differently from training a classifier."""

import dataclasses
import math

from lipdp.cli import quiet

_PICTURES = 100


def recipe(options, dataset):
    """Returns the `diffusion.Recipe` for the options; its updates are whole epochs.

    Raises:
        ValueError: when the data are no images, or do not fit the preset.
    """
    quiet.load_keras()
    from lipdp import diffusion

    found = diffusion.recipe(
        dataset.input_shape,
        dataset.num_classes,
        dataset.num_examples,
        options.preset,
        options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        multiplicity=options.multiplicity,
        clip_norm=options.clip_norm,
    )
    found.images(dataset.x_train[:1])  # refuses sides that do not fit
    return dataclasses.replace(found, updates=epochs(found, dataset.num_examples) * _per_epoch(found, dataset))


def epochs(found, num_examples: int) -> int:
    """Returns the number of epochs nearest to the updates of a recipe."""
    return max(1, round(found.updates / math.ceil(num_examples / found.batch_size)))


def draw_samples(model, found, path) -> None:
    """Writes a picture with as many images of each class."""
    from lipdp import diffusion

    classes = found.num_classes
    rows = max(1, _PICTURES // classes)
    drawn = model.sample(classes * rows, None, found.make_sampler(), guidance=found.guidance)
    diffusion.image_grid(drawn, path, columns=classes, scale=0.4)


def _per_epoch(found, dataset) -> int:
    return math.ceil(dataset.num_examples / found.batch_size)
