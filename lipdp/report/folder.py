"""The files of a run folder: their names, how they are written and read."""

import csv
import dataclasses
import datetime
import itertools
import json
import pathlib

MODEL, PRIVACY, STATEMENT = "model.keras", "privacy.json", "privacy.txt"
HISTORY, RUN, RESULTS = "history.csv", "run.json", "results.json"
HTML, MARKDOWN = "report.html", "report.md"
FILES = (MODEL, PRIVACY, STATEMENT, HISTORY, RUN, RESULTS, HTML, MARKDOWN)
# A diffusion model's folder holds one more.
SAMPLES = "samples.png"

# Behind the name of every column that was computed on the private training data.
NOT_PRIVATE = " (not private)"


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Everything about one run but its model.

    Args:
        run: command, settings, versions, time.
        results: held-out accuracy, certified accuracy, bounds of the layers.
        privacy: `model.privacy.to_dict()`.
        statement: `model.privacy.statement()`.
        history: one dictionary per epoch. Columns that end in `NOT_PRIVATE` are outside the guarantee.
        samples: a picture of samples, as a PNG file; None for a classifier.
    """

    run: dict
    results: dict
    privacy: dict
    statement: str
    history: tuple[dict, ...]
    samples: bytes | None = None


def claim(output: str | None, name: str, overwrite: bool = False) -> pathlib.Path:
    """Returns a folder for a new run; it exists, and nothing in it was changed.

    Args:
        output: path of the folder, or None for `runs/<name>-<time>`.
        name: name of the data set.
        overwrite: whether the folder may hold an earlier run.

    Raises:
        FileExistsError: when the folder holds something else.
        NotADirectoryError: when it is a file.
    """
    if output is None:
        stem = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
        paths = (pathlib.Path("runs", stem + (f"-{i}" if i else "")) for i in itertools.count())
        folder = next(path for path in paths if not path.exists())
    else:
        folder = pathlib.Path(output)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"The run folder is a file. Received: {output!r}. Pass a new folder.")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and not overwrite:
        raise FileExistsError(
            f"The run folder is not empty. Received: {str(folder)!r}. Pass a new or an empty one, or "
            "--overwrite to replace an earlier run; nothing was changed."
        )
    if names and not (RUN in names and names <= {*FILES, SAMPLES}):
        raise FileExistsError(
            f"Only the folder of an earlier run can be overwritten. Received: {str(folder)!r} with "
            f"{', '.join(sorted(names - {*FILES, SAMPLES})[:3]) or 'no ' + RUN}; nothing was changed."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def clear(folder: pathlib.Path) -> None:
    """Removes the files of a run, and no others."""
    for name in (*FILES, SAMPLES):
        (folder / name).unlink(missing_ok=True)


def write(folder: pathlib.Path, run: RunFolder) -> None:
    """Writes all files of a run but the model and the report."""
    for name, values in ((RUN, run.run), (RESULTS, run.results), (PRIVACY, run.privacy)):
        text = json.dumps(values, indent=2, allow_nan=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    (folder / STATEMENT).write_text(run.statement, encoding="utf-8")
    with open(folder / HISTORY, "w", newline="", encoding="utf-8") as file:
        columns = dict.fromkeys(name for row in run.history for name in row)
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(run.history)


def read(folder: str | pathlib.Path) -> RunFolder:
    """Returns the content of a run folder.

    Raises:
        FileNotFoundError: when the folder or one of its files does not exist.
        ValueError: when a file is not what `write` wrote.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no such run folder. Received: {str(folder)!r}.")
    for name in (RUN, RESULTS, PRIVACY, STATEMENT, HISTORY):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is not a run folder: it lacks {name}. Pass what `lipdp train` wrote.")
    return RunFolder(
        run=_json(folder / RUN, ("command", "settings", "versions")),
        results=_json(folder / RESULTS, ("held_out", "bounds")),
        privacy=_json(folder / PRIVACY, ("epsilon", "delta", "updates")),
        statement=(folder / STATEMENT).read_text(encoding="utf-8"),
        history=_history(folder / HISTORY),
        samples=(folder / SAMPLES).read_bytes() if (folder / SAMPLES).is_file() else None,
    )


def _json(path: pathlib.Path, keys) -> dict:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is corrupt: {error}. Train again.") from error
    if not isinstance(values, dict) or not set(keys) <= set(values):
        raise ValueError(f"{path} is corrupt: it lacks one of {', '.join(keys)}. Train again.")
    return values


def _history(path: pathlib.Path) -> tuple[dict, ...]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [{k: float(v) for k, v in row.items() if v != ""} for row in csv.DictReader(file, strict=True)]
    except (ValueError, TypeError, AttributeError, csv.Error) as error:
        raise ValueError(f"{path} is corrupt: {error}. Train again.") from error
    return tuple(rows)
