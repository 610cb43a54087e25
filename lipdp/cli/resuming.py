"""`lipdp train --resume`: what a run writes down so that another process can go on with it."""

import argparse
import json
import os
import pathlib
from typing import Any

from lipdp.cli import datasets, parser
from lipdp.privacy import files, journal
from lipdp.report import folder as folders
from lipdp.report import place

# Everything else is as it was when the run began.
_FREE = ("command", "resume", "json", "verbose")
_BESIDE = "the file beside the data"


def note(
    work: pathlib.Path, options: argparse.Namespace, argv: list[str], started: str, digests: dict, count: int
) -> None:
    """Writes down the settings of a run that begins, the `digests` of what it needs, and how many examples it has."""
    content = {"options": vars(options), "argv": argv, "started": started, "directory": os.getcwd(), "digests": digests}
    content["count"] = count
    private = options.seed is not None
    if private:
        work.chmod(0o700)
    files.write_text(work / place.SETTINGS, json.dumps(files.stamped(content), indent=2) + "\n", private)


def recall(work: pathlib.Path, options: argparse.Namespace) -> tuple[argparse.Namespace, list[str], str]:
    """Returns options, words and beginning of a run that is to go on.

    Raises:
        ValueError: other options were given, or what was written down is corrupt.
    """
    usual = parser.parse(["train", "--resume", options.resume])
    other = [name for name, value in vars(options).items() if name not in _FREE and value != getattr(usual, name)]
    if other:
        raise ValueError(
            "A run goes on with the settings it began with. Received: --resume with "
            f"{', '.join('--' + name.replace('_', '-') for name in other)}. Leave them out, or start a new run."
        )
    content = _noted(work)
    kept, argv, started = content["options"], content["argv"], content["started"]
    for name in ("dataset", "feature_ranges", "table", "vocabulary", "backbone"):  # paths hold from where the run began
        if kept.get(name) is not None and (there := pathlib.Path(content["directory"], kept[name])).exists():
            kept[name] = os.path.relpath(there) if os.getcwd() == content["directory"] else str(there)
    # Runs begun by an earlier version lack some options.
    return argparse.Namespace(**vars(usual) | kept | {name: getattr(options, name) for name in _FREE}), argv, started


def digests(options: argparse.Namespace, frozen: Any) -> dict[str, str]:
    """Returns the SHA-256 of public files and networks that a run learns behind, by the name of the option.

    There is none of the data: a digest of private rows would confirm a guess of them.
    """
    found = {} if frozen is None else {"backbone": frozen.digest}
    named = {"vocabulary": options.vocabulary, "feature_ranges": options.feature_ranges}
    named["table"] = datasets.description(options)
    return found | {name: files.digest(path) for name, path in named.items() if path is not None}


def check_same(work: pathlib.Path, options: argparse.Namespace, found: dict[str, str], count: int) -> None:
    """Refuses to go on with another number of examples, backbone, vocabulary or description than the run began with.

    Args:
        work: folder of the run.
        options: as `recall` returned them.
        found: what `digests` returns now; runs that an earlier version began have noted none.
        count: how many examples or persons the data have now.

    Raises:
        ValueError: it is another one.
    """
    content = _noted(work)
    if content.get("count", count) != count:
        raise ValueError(
            f"A run goes on with the data it began with: {content['count']} examples or persons. Received: {count}. "
            "Put those back in their place, or start a new run."
        )
    for name, before in content.get("digests", {}).items():
        if found.get(name) != before:
            raise ValueError(
                f"A run goes on with the {name.replace('_', ' ')} it began with: "
                f"{content['options'][name] or _BESIDE}, SHA-256 {before}. Received: "
                f"{getattr(options, name) or _BESIDE}, SHA-256 {found.get(name)}. Put that one back in its place, or "
                "start a new run."
            )


def _noted(work: pathlib.Path) -> dict[str, Any]:
    """Returns what `note` wrote down."""
    try:
        content = files.unstamped(files.parse((work / place.SETTINGS).read_bytes()))
        if missing := {"options", "argv", "started", "directory"} - set(content):
            raise KeyError(*missing)
        return content
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The settings of the unfinished run in {work} cannot be read: {error}. Start it again with --overwrite; "
            "what this run has released adds up outside of the new ledger."
        ) from error


def released(work: pathlib.Path) -> bool:
    """Whether a run has released anything, so that its checkpoint must be kept."""
    path = work / f"{place.CHECKPOINT}.journal"
    try:
        return path.exists() and journal.read(path).ledger.releases > 0
    except (OSError, ValueError):
        return True


def rows(work: pathlib.Path, training_metrics: bool, private: bool) -> Any:
    """Returns a callback that keeps `history.csv`, from the epoch on at which `fit` begins; its `kept` are all rows."""
    import keras

    path = work / folders.HISTORY

    try:
        before = list(folders.read_history(path)) if path.is_file() else []
    except ValueError as error:
        raise ValueError(f"{error} Or remove the file: the rows of earlier epochs are then lost.") from error

    class Rows(keras.callbacks.Callback):
        kept: list[dict] = before

        def on_epoch_end(self, epoch, logs=None):
            row = {"epoch": epoch + 1}
            for name, value in (logs or {}).items():
                if name == "epsilon" or name.startswith("val_"):
                    row[name] = float(value)
                elif training_metrics:
                    row[name + folders.NOT_PRIVATE] = float(value)
            self.kept = [*(old for old in self.kept if old["epoch"] <= epoch), row]
            folders.write_history(path, tuple(self.kept), private)

    return Rows()
