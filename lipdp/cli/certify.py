"""`lipdp certify`: certified accuracy of a trained model at radii."""

import argparse
import pathlib
from typing import Any

from lipdp.cli import backbone, datasets, diffusion, evaluation, language, output, quiet, regression, text
from lipdp.report import folder as folders
from lipdp.report import numbers

# Of networks that are trained for certificates it is 1, and 2 where paths are added.
_LARGEST = 2.1
_NOT_BOUNDED = (
    "Nothing bounded the Lipschitz constant in training. Networks with larger radii: lipdp train --strategy clipless, "
    "or --recipe robust (docs/howto/certified.md)."
)


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes the certified accuracy of a model on held-out examples."""
    evaluation.check_radii(options.radii)
    path, recorded = find(options.run)
    if (recorded or {}).get("task") == "language":
        raise ValueError(f"{language.NO_CLASSES} Its bits per byte on held-out texts are in the report of the run.")
    if (recorded or {}).get("task") == "text":
        raise ValueError(f"{text.NO_CERTIFICATES} Their accuracy on held-out texts is in the report of the run.")
    if (recorded or {}).get("task") == "regression":
        raise ValueError(
            f"{regression.NO_CLASSES} Received: {options.run}. Its errors on held-out rows are in the report of the "
            "run; certificates are for classes."
        )
    diffusion.refuse(options.run, recorded)
    x, y, ids, dataset, remark = _examples(options, recorded)
    frozen = backbone.of_run(options, recorded)
    if frozen is not None:
        x, remark = frozen.rows(x, len(x)), f"{remark}; radii are in features of {frozen.name}"
    model = load(path)
    diffusion.refuse(options.run, recorded, model)
    _check_fit(model, x.shape[1:], dataset.num_classes)
    measured = evaluation.measure(model, x, y, options.radii, ids)
    if options.json:
        name = str(pathlib.Path(options.run))
        output.write_json({"model": name, "dataset": dataset.name, "remark": remark, **measured})
        return
    output.write(
        f"accuracy {numbers.percent(measured['accuracy'])} on {measured['examples']} examples"
        f"{evaluation.of_persons(measured)} of {dataset.name} ({remark})",
        f"Lipschitz constant {numbers.short(measured['lipschitz'])}, median certified radius "
        f"{numbers.radius(measured['median_radius'])}",
        *(
            f"certified accuracy within L2 radius {entry['radius']:g}: {numbers.percent(entry['accuracy'])}"
            for entry in measured["certified"]
        ),
        *([_NOT_BOUNDED] if measured["lipschitz"] > _LARGEST else []),
    )


def find(run: str) -> tuple[pathlib.Path, dict | None]:
    """Returns the model file that a run folder or a path names, and the settings of the run if they are known.

    Raises:
        FileNotFoundError: when there is neither, or the folder lacks a file.
        ValueError: when a file of the run folder is corrupt.
    """
    path = pathlib.Path(run)
    if not path.exists():
        raise FileNotFoundError(f"There is no such model. Received: {run!r}. Pass a run folder or a .keras file.")
    return (path / folders.MODEL, folders.read(path).run["settings"]) if path.is_dir() else (path, None)


def hint(path: pathlib.Path, task: str | None = None) -> str:
    """Returns which folder a model file was likely meant to stand for, as the end of a sentence; or nothing.

    Args:
        path: of the file.
        task: that the run of the folder must have had.
    """
    if path.suffix != ".keras" or not folders.is_whole(path.parent):
        return ""
    if task is not None and folders.read(path.parent).run["settings"].get("task") != task:
        return ""
    return f", which is likely {path.parent}: it says what the model was trained on"


def load(path: pathlib.Path) -> Any:
    """Returns the model in a `.keras` file.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is not a model, or not one that lipdp can read.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no such model file. Received: {str(path)!r}. Pass a run folder or a .keras file."
        )
    if path.suffix != ".keras":
        raise ValueError(f"Models are read from .keras files. Received: {str(path)!r}. Pass a run folder or a model.")
    quiet.load_keras()
    import keras

    try:
        return keras.saving.load_model(path)
    except Exception as error:  # Keras, zipfile, json and h5py each have their own
        reason = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"{path} is not a model that lipdp can read: {reason}. Pass what lipdp train wrote."
        ) from error


def _examples(options, recorded):
    """Returns examples, their classes, whose they are, the data set they are of, and which part of it they are."""
    if options.dataset is None:
        if recorded is None:
            raise ValueError("No data set given. Received: a model file. Pass --dataset as well.")
        dataset = datasets.read(_as_recorded(options, recorded), pathlib.Path(options.run))
        if recorded["validation_split"] is not None:
            # Until labels themselves were hashed, and not their places among all: those are the same here.
            numbered = list(dataset.classes) == list(range(len(dataset.classes)))
            if recorded.get("held_out_by") not in ("label", "person", *["content"] * numbered):
                raise ValueError(
                    "An earlier version chose the rows that this run held out, by a rule that is gone: some of its "
                    "training examples would be measured. Pass --dataset with examples it was not trained on."
                )
            dataset = dataset.held_out(recorded["validation_split"])
        if dataset.x_test is None:
            raise ValueError(
                f"The run held out no examples of {recorded['dataset']!r}, and numbers on its training examples would "
                "not be private. Pass --dataset with other examples."
            )
        return dataset.x_test, dataset.y_test, dataset.person_ids_test, dataset, "held-out part"
    dataset = datasets.read(_as_recorded(options, recorded), None if recorded is None else pathlib.Path(options.run))
    if recorded is not None and list(dataset.classes) != recorded["classes"]:
        raise ValueError(
            f"The data set has other classes than the run was trained on. Received: {list(dataset.classes)}, trained "
            f"on {recorded['classes']}. Pass data with the same classes."
        )
    if dataset.x_test is not None:
        return dataset.x_test, dataset.y_test, None, dataset, "test part"
    remark = "all rows; if the model was trained on them, NOT private"
    return dataset.x_train, dataset.y_train, dataset.person_ids, dataset, remark


def _as_recorded(options, recorded: dict | None) -> argparse.Namespace:
    """Returns the options for the data: what a run recorded holds for other rows too, unless it is given again."""
    run = pathlib.Path(options.run)
    source = options.dataset or (recorded or {})["dataset"]
    found = argparse.Namespace(**vars(options) | {"dataset": source})
    if options.dataset is None and options.person_column is None:
        found.person_column = recorded.get("person_column")  # who was held out went by it
    if recorded is None or datasets.own_options(options) or datasets.described_by(run) is not None:
        return found
    # A run of an earlier version, or arrays.
    found.feature_ranges = recorded["feature_ranges"]
    found.label = recorded["label"] if source.endswith(".csv") else None
    return found


def _check_fit(model, shape: tuple, num_classes: int) -> None:
    shapes = [tuple(tensor.shape[1:]) for tensor in getattr(model, "inputs", None) or ()]
    classes = max(2, model.output_shape[-1]) if shapes else None
    if shapes != [tuple(shape)] or classes != num_classes:
        raise ValueError(
            f"The model does not fit the data. Received: a model for inputs of shape {shapes} and {classes} classes, "
            f"data of shape {tuple(shape)} and {num_classes} classes."
        )
