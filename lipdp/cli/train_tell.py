"""What `lipdp train` writes on the way, and at the end."""

import argparse
import math
import pathlib
import sys
from typing import Any

from lipdp import report
from lipdp.cli import evaluation, output, regression
from lipdp.report import folder as folders
from lipdp.report import numbers

# Of a whole run that nobody watches.
_LINES = 10


def verbosity(options: argparse.Namespace) -> int:
    """Returns Keras' `verbose`: what was asked for, its bar on a terminal, nothing where `progress` writes lines."""
    if options.json:
        return 0
    return options.verbose if options.verbose is not None else int(sys.stdout.isatty())


def tell_choice(options: argparse.Namespace, recipe: Any, dataset: Any) -> None:
    """Says on standard error that images have the smaller network, and when they have the other one."""
    asked = (options.recipe not in (None, "accurate"), options.front_end, options.backbone)
    if options.task != "classifier" or len(dataset.input_shape) != 3 or not recipe.bounded or any(asked):
        return
    shape = " x ".join(map(str, dataset.input_shape))
    sys.stderr.write(
        f"lipdp train: note: {dataset.num_persons or dataset.num_examples} images of {shape} have a clipless network, "
        "with certificates. The more accurate one on fixed features takes images with sides from 16 pixels on, whose "
        "features fit into 2 GiB.\n"
    )


def tell_cost(options: argparse.Namespace, recipe: Any, updates: int) -> None:
    """Says on standard error what a run takes that is made for a GPU."""
    if options.recipe != "wrn":
        return
    sys.stderr.write(
        f"lipdp train: note: {updates} updates of a wide residual network (WRN-{recipe.depth}-{recipe.width}), each on "
        f"{recipe.augmentation_multiplicity} views of about {recipe.batch_size} images. This is made for a GPU; fewer "
        "--epochs make it shorter, and a smaller --microbatch-size takes less memory. How accurate it gets is not "
        "known: no benchmark has measured this recipe.\n"
    )


def progress(options: argparse.Namespace, epochs: int) -> list[Any]:
    """Returns a callback that writes a line each tenth of the epochs; none where Keras shows them, or nobody asked."""
    if options.json or options.verbose is not None or sys.stdout.isatty():
        return []
    import keras

    every = math.ceil(epochs / _LINES)

    class Lines(keras.callbacks.Callback):
        """Of this package, so that no statement takes it for a callback of the user's own."""

        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            if (epoch + 1) % every and epoch + 1 != epochs:
                return
            values = []
            for name, value in logs.items():
                public = name == "epsilon" or name.startswith("val_")
                shown = numbers.epsilon(value) if name == "epsilon" else f"{value:.4f}"
                values.append(f"{name}{'' if public else folders.NOT_PRIVATE} {shown}")
            output.write(f"epoch {epoch + 1} of {epochs}: {', '.join(values)}")
            sys.stdout.flush()

    return [Lines()]


def tell(options: argparse.Namespace, written: report.RunFolder, folder: pathlib.Path) -> None:
    """Writes what a run has come to."""
    held_out = written.results["held_out"]
    evaluation.warn_of_frequent(held_out)
    regression.warn(held_out)
    if options.json:
        output.write_json({"folder": str(folder), "held_out": held_out, "privacy": written.privacy})
        return
    privacy = written.privacy
    lines = [
        f"epsilon {numbers.epsilon(privacy['epsilon'])} at delta {privacy['delta']:g} after {privacy['updates']} "
        f"updates on {_counted(written.run['settings'])} "
        f"({privacy['neighboring_relation'].replace('_', ' ')}{_whom(privacy)}, "
        f"{_sampling(options)} sampling, {_accountant(options)})",
        *(f"NOT covered: read off the private rows: {what}" for what in privacy.get("read_off_the_data", ())),
    ]
    if options.task == "diffusion":
        lines.append(f"Draw images: lipdp sample {folder} --num 100 --output samples.png")
    elif options.task == "language":
        lines += evaluation.lines(held_out) if held_out else ["bits per byte not measured: no texts were held out"]
        lines.append(f"Draw texts: lipdp sample {folder} --num 5 --output texts.jsonl")
    elif held_out is None:
        what = "errors" if options.task == "regression" else "accuracy"
        lines.append(f"{what} not measured: no examples were held out (try --validation-split 0.2)")
    else:
        lines += evaluation.lines(held_out)
    if options.training_metrics:
        lines.append("Loss and accuracy on the training data were logged: NOT private, do not publish them.")
    files = ", ".join(sorted(path.name for path in folder.iterdir()))
    output.write(*lines, f"Written to {folder}: {files}")


def _sampling(options) -> str:
    if options.strategy == "dpis":
        return "importance"
    return options.sampling.replace("_", " ").replace("poisson", "Poisson")


def _accountant(options) -> str:
    return "privacy filter" if options.strategy == "dpis" else options.accountant


def _counted(settings) -> str:
    persons = settings.get("num_persons")
    return f"{settings['num_examples']} examples" if persons is None else f"{persons} persons"


def _whom(privacy) -> str:
    most = privacy["examples_per_person"]
    if privacy["unit"] == "person" and most == 1:
        return " person, whatever number of rows they have"
    return "" if most == 1 else f" person with at most {most}"
