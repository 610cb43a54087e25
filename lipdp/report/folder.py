"""The files of a run folder: their names, how they are written and read."""

import csv
import dataclasses
import io
import json
import pathlib

from lipdp.privacy import files

MODEL, PRIVACY, STATEMENT = "model.keras", "privacy.json", "privacy.txt"
HISTORY, RUN, RESULTS = "history.csv", "run.json", "results.json"
HTML, MARKDOWN = "report.html", "report.md"
FILES = (MODEL, PRIVACY, STATEMENT, HISTORY, RUN, RESULTS, HTML, MARKDOWN)
# The folder of a diffusion model holds the first of these, that of a table the second, that of texts the third.
SAMPLES, TABLE, TEXTS = "samples.png", "table.json", "texts.json"
OPTIONAL = (SAMPLES, TABLE, TEXTS)
# The reports are made from the other files, at any time.
_DERIVED = (RUN, HTML, MARKDOWN)
# Where `run.json` keeps the digests of all the others.
_DIGESTS = "files"

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


def write(folder: pathlib.Path, run: RunFolder) -> None:
    """Writes all files of a run but the model and the report; `run.json` last, with digests of all that are there."""
    private = is_private(run)
    for name, values in ((RESULTS, run.results), (PRIVACY, run.privacy)):
        files.write_text(folder / name, _text(values), private)
    files.write_text(folder / STATEMENT, run.statement, private)
    write_history(folder / HISTORY, run.history, private)
    digests = {n: files.digest(folder / n) for n in (*FILES, *OPTIONAL) if n not in _DERIVED and (folder / n).is_file()}
    files.write_text(folder / RUN, _text(files.stamped(run.run | {_DIGESTS: digests})), private)


def is_private(run: RunFolder) -> bool:
    """Whether the files of a run are for their owner only: they name its seed."""
    return bool(run.privacy.get("seed_fixed_by_user"))


def write_history(path: pathlib.Path, history: tuple[dict, ...], private: bool = False) -> None:
    """Writes one row per epoch."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(name for row in history for name in row), restval="")
    writer.writeheader()
    writer.writerows(history)
    files.write_text(path, text.getvalue(), private)


def _text(values: dict) -> str:
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def read(folder: str | pathlib.Path) -> RunFolder:
    """Returns the content of a run folder, if each file is what the run wrote, its model included.

    Raises:
        FileNotFoundError: when the folder or one of its files does not exist.
        ValueError: when a file is not what `write` wrote, or belongs to another run.

    **Guarantee.** A folder that `write` wrote reads back as it was written, or not at all: `run.json` holds digests of
    the other files and of itself. Folders of version 0.1.0 have none. Not covered: changes made on purpose.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no such run folder. Received: {str(folder)!r}. Pass what `lipdp train` wrote."
        )
    if (folder / UNFINISHED).exists() and not (folder / RUN).is_file():
        raise FileNotFoundError(
            f"The run in {folder} is not finished: it lacks {RUN}. `lipdp train --resume {folder}` goes on with it."
        )
    for name in (RUN, RESULTS, PRIVACY, STATEMENT, HISTORY):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is not a run folder: it lacks {name}. Pass what `lipdp train` wrote.")
    run = _json(folder / RUN, ("command", "settings", "versions"))
    return RunFolder(
        run=_checked(folder, run),
        results=_json(folder / RESULTS, ("held_out", "bounds")),
        privacy=_json(folder / PRIVACY, ("epsilon", "delta", "updates")),
        statement=_read_text(folder / STATEMENT),
        history=read_history(folder / HISTORY),
        samples=(folder / SAMPLES).read_bytes() if (folder / SAMPLES).is_file() else None,
    )


# In the folder for as long as the run is not whole.
UNFINISHED = "unfinished"


def is_whole(folder: pathlib.Path) -> bool:
    """Whether a folder holds a whole run."""
    try:
        read(folder)
    except (OSError, ValueError):
        return False
    return True


def _checked(folder: pathlib.Path, run: dict) -> dict:
    """Returns what the run said of itself, after a look at all digests."""
    if _DIGESTS not in run and not files.has_stamp(run):
        return run  # of version 0.1.0
    try:
        content = files.unstamped(run)
        digests = dict(content.pop(_DIGESTS))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / RUN} is corrupt: {error}. Train again.") from error
    for name in (*FILES, *OPTIONAL):
        path = folder / name
        if name in _DERIVED or (name not in digests and not path.is_file()):
            continue
        if not path.is_file():
            raise FileNotFoundError(f"{folder} is not whole: it lacks {name}. Put the file of this run back.")
        if digests.get(name) != files.digest(path):
            raise ValueError(
                f"{path} is corrupt or of another run: it is not the file that this run wrote. Put that one back, or "
                "train again."
            )
    return content


def _json(path: pathlib.Path, keys) -> dict:
    try:
        values = files.parse(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is corrupt: {error}. Train again.") from error
    if not isinstance(values, dict) or not set(keys) <= set(values):
        raise ValueError(f"{path} is corrupt: it lacks one of {', '.join(keys)}. Train again.")
    return values


def _read_text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise ValueError(f"{path} is corrupt: {error}. Train again.") from error


def read_history(path: pathlib.Path) -> tuple[dict, ...]:
    """Returns one dictionary per epoch; ValueError for what `write_history` did not write."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [{k: float(v) for k, v in row.items() if v != ""} for row in csv.DictReader(file, strict=True)]
    except (ValueError, TypeError, AttributeError, csv.Error) as error:
        raise ValueError(f"{path} is corrupt: {error}. Train again.") from error
    return tuple(rows)
