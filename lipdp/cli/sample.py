"""`lipdp sample`: images from a private diffusion model, or texts from a language model."""

import argparse
import pathlib
import sys

import numpy as np

from lipdp import checks, data
from lipdp.cli import certify, language, output
from lipdp.cli.parser import chosen
from lipdp.report import folder as folders
from lipdp.report import numbers

_FORMATS = (".npz", ".png")
_TEXT_FORMATS = (".jsonl",)


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Draws images and writes them as arrays or as one picture; or texts, as JSON lines."""
    for name in ("num", "batch_size"):
        checks.integer(name, getattr(options, name), minimum=1)
    if options.seed is not None:
        checks.integer("seed", options.seed)
    target = pathlib.Path(options.output)
    _check_format(target, (*_FORMATS, *_TEXT_FORMATS))
    path, recorded = certify.find(options.run)
    task = "diffusion" if recorded is None else recorded.get("task", "diffusion")
    if task not in ("diffusion", "language"):
        raise ValueError(
            f"Not a diffusion model, and no language model: nothing can be drawn. Received: a run of --task {task} in "
            f"{options.run}. Pass the run folder of --task diffusion or language."
        )
    output.check_place(target, options.overwrite)
    if task == "language":
        _texts(options, target, path)
        return
    model = certify.load(path)
    from lipdp import diffusion

    if not isinstance(model, diffusion.DiffusionModel):
        raise ValueError(
            f"Not a diffusion model. Received: a {type(model).__name__} in {options.run}. Pass one that lipdp train "
            f"--task diffusion wrote, or the run folder of --task language{certify.hint(path, 'language')}."
        )
    _check_format(target, _FORMATS)
    _leave_out(options, "a diffusion model", "prompt", "temperature")
    labels = _labels(options, model.num_classes)
    name, steps, guidance = (
        (recorded or {}).get(key, default) if getattr(options, key) is None else getattr(options, key)
        for key, default in (("sampler", "ddim"), ("steps", 50), ("guidance", 0.0))
    )
    checks.integer("steps", steps, minimum=2)
    checks.not_negative("guidance", guidance)
    how = {
        "guidance": guidance,
        "verbose": 0 if options.json else int(sys.stdout.isatty()),
        **chosen(options, "batch_size", "seed"),
    }
    # Outside of this range there are no pixels.
    drawn = np.clip(model.sample(options.num, labels, diffusion.make_sampler(name, steps), **how), -1.0, 1.0)
    if classified := model.classifier is not None:
        labels = model.classify(drawn)
    classes = _named(recorded, model.num_classes)
    _write(target, drawn, labels if labels is None or classes is None else classes[labels])
    epsilon = model.privacy.epsilon()
    if options.json:
        facts = {"output": str(target), "shape": drawn.shape, "sampler": name, "epsilon": epsilon}
        output.write_json({**facts, "labels": "classifier" if classified else "asked"})
        return
    output.write(
        f"{options.num} images, {name} with {steps} steps, guidance {guidance:g}. They cost no privacy beyond the "
        f"epsilon {numbers.epsilon(epsilon)} of the model.",
        *(["Labels are those that the classifier of the model gives to them."] if classified else []),
        *([] if classes is None else [f"Classes 0 to {len(classes) - 1} stand for {', '.join(map(str, classes))}."]),
        f"Written to {target}",
    )


def _named(recorded: dict | None, num_classes: int | None) -> np.ndarray | None:
    """Returns the labels of the data that classes of a run stand for, where they are not the numbers from 0 on."""
    classes = (recorded or {}).get("classes") or []
    if len(classes) != num_classes or classes == list(range(len(classes))):
        return None
    return np.asarray(classes)


def _texts(options, target: pathlib.Path, path: pathlib.Path) -> None:
    """Draws texts from the model of a run."""
    _check_format(target, _TEXT_FORMATS)
    _leave_out(options, "a language model", "labels", "sampler", "steps", "guidance")
    model, texts = certify.load(path), data.TextColumns.from_json(path.parent / folders.TEXTS)
    language.write(model, options, texts, target)
    epsilon = model.privacy.epsilon()
    if options.json:
        output.write_json({"output": str(target), "texts": options.num, "epsilon": epsilon})
        return
    output.write(
        f"{options.num} texts. They cost no privacy beyond the epsilon {numbers.epsilon(epsilon)} of the model.",
        f"Written to {target}",
    )


def _leave_out(options, what: str, *names: str) -> None:
    """Refuses options of other models."""
    for name in names:
        if getattr(options, name) is not None:
            raise ValueError(f"An option of other models. Received: --{name} for {what}. Leave it out.")


def _check_format(target: pathlib.Path, formats: tuple[str, ...]) -> None:
    if target.suffix not in formats:
        raise ValueError(f"Unsupported file extension. Received: --output {target}. Use {' or '.join(formats)}.")


def _labels(options, num_classes) -> np.ndarray | None:
    if num_classes is None:
        if options.labels is not None or options.guidance:
            raise ValueError("The model has no classes. Received: --labels or --guidance. Leave them out.")
        return None
    labels = options.labels if options.labels is not None else range(num_classes)
    for label in labels:
        if not 0 <= label < num_classes:
            raise ValueError(
                f"A label is out of range. Received: --labels {label}. The classes are 0 to {num_classes - 1}."
            )
    return np.resize(np.asarray(labels, "int32"), options.num)


def _write(target: pathlib.Path, drawn: np.ndarray, labels) -> None:
    if target.suffix == ".png":
        from lipdp import diffusion

        diffusion.image_grid(drawn, target, scale=0.4)
        return
    # The format that `lipdp train --dataset` reads.
    pixels = np.rint((drawn + 1.0) * 127.5).astype("uint8")
    np.savez_compressed(target, x=pixels, **({} if labels is None else {"y": labels}))
