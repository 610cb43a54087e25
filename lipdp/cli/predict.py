"""`lipdp predict`: classes of new rows or images, or numbers of new rows, as a CSV file."""

import argparse
import csv
import dataclasses
import io
import pathlib
import sys
from typing import Any

import numpy as np

from lipdp import checks, data
from lipdp.cli import backbone, certify, datasets, diffusion, encoder, language, output, regression, text
from lipdp.data import rows, text_columns
from lipdp.data.column import DESCRIPTION, as_shown
from lipdp.data.files import read_examples
from lipdp.privacy import files
from lipdp.report import numbers

# Images in [0, 1], and those of a few deviations, stay below.
_BRIGHT = 16.0
_RADIUS = ", the L2 radius of the model's input in which it cannot change, "


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes class, certified radius where there is one, logits and, where the loss has them, probabilities."""
    checks.integer("batch_size", options.batch_size, minimum=1)
    target = pathlib.Path(options.output)
    output.check_place(target, options.overwrite)
    path, recorded = certify.find(options.run)
    if (recorded or {}).get("task") == "language":
        raise ValueError(f"{language.NO_CLASSES} Received: {options.run}. lipdp sample draws texts from it.")
    diffusion.refuse(options.run, recorded)
    of_texts = (recorded or {}).get("task") == "text"
    frozen: Any = (encoder if of_texts else backbone).of_run(options, recorded)
    texts = text.described_by(pathlib.Path(options.run), recorded, frozen) if of_texts else None
    if options.keep and not options.data.endswith((".csv", ".npz")):
        raise ValueError(
            f"--keep copies columns of a .csv or arrays of a .npz file. Received: --data {options.data}. Leave it out."
        )
    x, notes, header = _examples(options, recorded, path) if texts is None else (texts.encode(options.data), [], True)
    kept = _kept(options, header, len(x))
    x = x if frozen is None else frozen.rows(x, len(x))
    model = certify.load(path)
    diffusion.refuse(options.run, recorded, model)
    shapes = [tuple(tensor.shape[1:]) for tensor in getattr(model, "inputs", None) or ()]
    numeric = (recorded or {}).get("task") == "regression"
    if shapes != [x.shape[1:]] or len(model.output_shape) != 2 or (model.output_shape[-1] < 2) != numeric:
        raise ValueError(
            f"The model is no classifier of such examples. Received: inputs of shape {shapes} and outputs of shape "
            f"{model.output_shape[1:]}, data of shape {x.shape[1:]}. Pass data like those it was trained "
            "on; of a model of a number, pass the run folder."
        )
    for note in notes:
        sys.stderr.write(f"lipdp predict: note: {note}.\n")
    if numeric:
        regression.write(model, options, recorded or {}, x, kept, target)
        return
    logits = model.predict(x, batch_size=options.batch_size, verbose=0)
    radii = None if texts is not None else _radii(model, x, options.batch_size)
    classes = recorded["classes"] if recorded else list(range(logits.shape[-1]))
    probabilities = _probabilities(model, logits)
    files.write_text(target, _text(logits, radii, probabilities, classes, kept))
    if options.json:
        output.write_json({"output": str(target), "examples": len(x), "classes": classes})
        return
    output.write(
        f"{len(x)} examples: class{_and_logits(radii, probabilities)}. They cost "
        "the training data no more privacy; what they say about the examples themselves is not protected.",
        f"Written to {target}",
    )


def _examples(options, recorded: dict | None, path: pathlib.Path) -> tuple[np.ndarray, list[str], bool]:
    """Returns the inputs of the model, what has to be said of them, and whether a file has a header."""
    run, unknown = pathlib.Path(options.run), recorded is None and options.table is None
    if not options.data.endswith((".csv", *(text_columns.SUFFIXES if unknown else ()))):
        x = read_examples(pathlib.Path(options.data))
        notes = _units(x)
        ranges = (recorded or {}).get("feature_ranges")
        if ranges is None:
            return x, notes, True
        names = tuple(map(str, range(x.shape[-1])))
        examples = data.Dataset(x, np.zeros(len(x), "int32"), None, None, (0, 1), "data", names)
        return data.scale(examples, data.read_ranges(ranges)).x_train, notes, True
    table: Any = datasets.described_by(run) if recorded else None
    if options.table is not None:
        table = data.Table.from_json(options.table)
    if table is None and recorded is not None and not recorded["dataset"].endswith(".csv"):  # else of an old version
        raise ValueError(
            f"Nothing says how to encode a table. Received: --data {options.data} and a run on arrays, "
            f"{recorded['dataset']}. Pass a .npz file with x, like the data it was trained on."
        )
    if table is None:
        what, todo = "a table", "Pass --table with the description it was trained with, or its run folder"
        if unknown and _takes_tokens(path):
            what, todo = "texts", "Pass the run folder"
        raise ValueError(
            f"Nothing says how to encode {what}. Received: --data {options.data} and a model without a description. "
            f"{todo}{certify.hint(path)}."
        )
    return (*_encoded(table, options.data), table.header)


def _kept(options, header: bool, count: int) -> dict[str, list[str]]:
    """Returns the columns of the file that are to stand in front of the classes."""
    kept: dict[str, list[str]] = {name: [] for name in options.keep or ()}
    if kept and options.data.endswith(".npz"):
        return _arrays_of(options.data, list(kept), count)
    for found in rows.pieces(options.data, header, least=1) if kept else ():
        for name, values in kept.items():
            if name not in found.columns:
                raise ValueError(
                    f"--keep names columns of the file. Received: --keep {name}, and {options.data} has "
                    f"{', '.join(list(found.columns)[:20])}. Pass one of these."
                )
            values += found.columns[name]
    return kept


def _arrays_of(path: str, names: list[str], count: int) -> dict[str, list[str]]:
    """Returns arrays of a file that hold one value for each example, as the names of files of `lipdp images` do."""
    with np.load(path) as content:
        fitting = [name for name in content.files if content[name].shape == (count,)]
        missing = next((name for name in names if name not in fitting), None)
        if missing is not None:
            raise ValueError(
                f"--keep names arrays with one value for each example. Received: --keep {missing}, and {path} has "
                f"{', '.join(fitting) or 'none'}. Pass one of these, or leave it out."
            )
        return {name: [str(value) for value in content[name]] for name in names}


def _encoded(table: data.Table, path: str) -> tuple[np.ndarray, list[str]]:
    """Returns the rows of a file as inputs, and what of them the model cannot see: no privacy is claimed for them."""
    parts, others, unseen = [], [], [_Unseen(column) for column in table.columns]
    known = {table.label, *(column.name for column in table.columns)}
    used = {column.name for column in table.columns if column.features}
    for found in rows.pieces(path, table.header):
        others = [name for name in found.columns if name not in known]
        # Where one is absent, another may be it, misspelt. Without names, one column more moves the others.
        if others and table.header and used <= set(found.columns):
            found = found._replace(columns={name: found.columns[name] for name in found.columns if name in known})
        with datasets.saying({DESCRIPTION: datasets.TRAINED_BY}):
            x, start = table.encode(found), 0
        for one in unseen:
            stop = start + len(one.column.features)
            one.add(found.columns.get(one.column.name, ()), x[:, start:stop])
            start = stop
        parts.append(x)
    x, notes = np.concatenate(parts), []
    if others and table.header:
        notes.append(f"columns that the description does not have are left out: {', '.join(map(repr, others[:20]))}")
    means = "class for them means little, however large the probability"
    if table.target_range is not None:
        means = "prediction for them means little"
    return x, notes + [note for one in unseen if (note := one.note(len(x), means))]


@dataclasses.dataclass
class _Unseen:
    """What a model cannot see of a column, in the parts of a file that were read so far."""

    column: data.Column
    others: int = 0  # entries that hold no word of the vocabulary
    example: str = ""  # the first of them
    words: bool = False  # whether some entry holds one
    infinite: int = 0

    def add(self, values: Any, entries: np.ndarray) -> None:
        column = self.column
        if column.kind == "category":
            other = entries[:, len(column.vocabulary)] > 0
            if other.any() and not self.others:
                self.example = as_shown(values[int(other.argmax())])
            self.others += int(other.sum())
            self.words |= bool(entries[:, : len(column.vocabulary)].any())
        elif column.kind == "number":
            there: Any = np.flatnonzero(entries[:, -1] == 0) if column.missing else range(len(values))
            self.infinite += sum(np.isinf(rows.as_number(rows.untruth(values[i]))) for i in there)

    def note(self, count: int, means: str) -> str:
        """Returns what has to be said of the column of so many rows, and what that `means`, or nothing."""
        name = repr(self.column.name)
        if self.others and self.words:
            return (
                f"{self.others} of {count} rows of column {name} hold no word of its vocabulary, as {self.example}: if "
                f"no row that trained the model did, its {means}"
            )
        if self.others:
            return (
                f"no row of column {name} holds a word of its vocabulary, as {as_shown(self.column.vocabulary[0])}: "
                f"{self.example} and the like count as any other word"
            )
        if self.infinite:
            return f"column {name} is infinite in {self.infinite} of {count} rows, which counts as the end of its range"
        return ""


def _units(x: np.ndarray) -> list[str]:
    """Says how images are read, where they are not in [0, 1]: those of training may have been divided by 255."""
    if x.ndim != 4 or not (high := float(x.max())) > _BRIGHT:
        return []
    return [
        f"these images hold numbers up to {high:g}. Images of 8 bits are divided by 255, floats are taken as they are: "
        "if the run was trained on images of 8 bits, or in [0, 1], divide these by 255, or save them as uint8"
    ]


def _radii(model: Any, x: np.ndarray, batch_size: int) -> np.ndarray | None:
    """Returns the certified radii; None, and says why, of a model without a Lipschitz constant."""
    from lipdp import certify as certificates

    try:
        certificates.lipschitz(model)
    except ValueError as error:
        sys.stderr.write(f"lipdp predict: note: without certified radii. {error}\n")
        return None
    return certificates.radii(model, x, batch_size=batch_size)


def _takes_tokens(path: pathlib.Path) -> bool:
    """Whether the inputs of the model in a file are the numbers of words or bytes."""
    return any(str(tensor.dtype).startswith("int") for tensor in getattr(certify.load(path), "inputs", None) or ())


def _and_logits(radii: np.ndarray | None, probabilities: np.ndarray | None) -> str:
    """Returns what stands behind the class, as a part of a sentence."""
    if probabilities is None:
        return " and logits" if radii is None else f"{_RADIUS}and logits"
    return f"{', ' if radii is None else _RADIUS}logits and probabilities"


def _probabilities(model: Any, logits: np.ndarray) -> np.ndarray | None:
    """Returns the softmax that the loss of a model has taken; None where it took another one, or none."""
    import keras

    from lipdp import losses

    loss = getattr(model, "loss", None)
    if isinstance(loss, losses.CategoricalCrossentropy):
        scale = loss.temperature
    elif isinstance(loss, keras.losses.SparseCategoricalCrossentropy | keras.losses.CategoricalCrossentropy):
        if not loss.get_config()["from_logits"]:
            return None
        scale = 1.0
    else:
        return None
    exponents = scale * (logits - logits.max(axis=1, keepdims=True)).astype("float64")
    return np.exp(exponents) / np.exp(exponents).sum(axis=1, keepdims=True)


def _text(
    logits: np.ndarray, radii: np.ndarray | None, probabilities: np.ndarray | None, classes: list, kept: dict
) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    certified = [[]] * len(logits) if radii is None else [[numbers.radius(radius, 6)] for radius in radii]
    # Last: columns of earlier versions keep their places.
    shares: Any = np.empty((len(logits), 0)) if probabilities is None else probabilities
    heads = ["class", *(["radius"] if radii is not None else []), *(f"logit {name}" for name in classes)]
    writer.writerow([*kept, *heads, *(f"probability {name}" for name in classes if probabilities is not None)])
    copied = zip(*kept.values(), strict=True) if kept else [()] * len(logits)
    for first, row, radius, share in zip(copied, logits, certified, shares, strict=True):
        values = (f"{value:.6g}" for value in (*row, *share))
        writer.writerow([*first, classes[int(row.argmax())], *radius, *values])
    return text.getvalue()
