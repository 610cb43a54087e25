"""Where a run is written: in a folder of its own, which takes the name of an earlier run once it is whole."""

import contextlib
import datetime
import itertools
import json
import os
import pathlib
import re
import shlex
from collections.abc import Iterator

from lipdp.privacy import files
from lipdp.report import folder as folders
from lipdp.report.folder import FILES, OPTIONAL, RUN, UNFINISHED

CHECKPOINT, SETTINGS = "checkpoint.weights.h5", "settings.json"
# What is there only until the run is whole.
_WORK = (SETTINGS, CHECKPOINT, f"{CHECKPOINT}.journal", f"{CHECKPOINT}.lock")
_KNOWN = {*FILES, *OPTIONAL, *_WORK, UNFINISHED}
# The hidden folder of the run that is to replace an earlier one.
_NEXT = ".{}.next"
# The marks that this process has locked, by their folders.
_held: dict[str, tuple[int, int]] = {}


def claim(output: str | None, name: str, overwrite: bool = False) -> pathlib.Path:
    """Returns a folder for a new run, which is nobody else's; no earlier run was changed.

    Args:
        output: path of the folder, or None for `runs/<name>-<time>`.
        name: name of the data set.
        overwrite: whether the folder may hold an earlier run. A whole one stays as it is: the folder returned stands
            beside it until `finish`.

    Raises:
        FileExistsError: when the folder holds something else, or another run is being written into it.
        OSError: when it is a file, or cannot be made.
    """
    if output is None:
        # What a file is called may be no name for a folder, or lead out of it.
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-")[:60] or "run"
        stem = f"{stem}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
        _make(pathlib.Path("runs"))
        for i in itertools.count():
            folder = pathlib.Path("runs", stem + (f"-{i}" if i else ""))
            if not folder.exists():
                with contextlib.suppress(FileExistsError):  # another process was faster
                    _make(folder, new=True)
                    return _marked(folder, folder, False)
    work = free(output, overwrite)
    _make(work)
    return _marked(work, pathlib.Path(output), overwrite)


def free(output: str, overwrite: bool = False) -> pathlib.Path:
    """Returns where `claim` would write a run, and makes nothing.

    Raises:
        FileExistsError, NotADirectoryError: as `claim`.
    """
    folder = pathlib.Path(output)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"The run folder is a file. Received: {output!r}. Pass a new folder.")
    refuse_dangling(folder)
    _complete(folder)
    names = _names(folder)
    if names and not overwrite:
        unfinished = f"--resume {shlex.quote(str(folder))} to go on with it, " if UNFINISHED in names else ""
        raise FileExistsError(
            f"The run folder is not empty. Received: {str(folder)!r}. Pass a new or an empty one, {unfinished}or "
            "--overwrite to replace an earlier run; nothing was changed."
        )
    if names and not (names <= _KNOWN and names & {RUN, UNFINISHED}):
        raise FileExistsError(
            f"Only the folder of an earlier run can be overwritten. Received: {str(folder)!r} with "
            f"{', '.join(sorted(names - _KNOWN)[:3]) or 'no ' + RUN}; nothing was changed."
        )
    beside = _beside(folder)
    if not names and not overwrite and (beside / UNFINISHED).is_file():
        raise FileExistsError(
            f"An unfinished run was to take this place. Received: {str(folder)!r}, and {str(beside)!r} beside it. "
            f"--resume {shlex.quote(str(folder))} goes on with it, and --overwrite begins another one in its place; "
            "nothing was changed."
        )
    # A run that is there stays until the next one is whole.
    work = beside if (RUN in names and UNFINISHED not in names) or (beside / UNFINISHED).is_file() else folder
    if not _names(work) <= _KNOWN:
        raise FileExistsError(
            f"The new run is written beside the earlier one, and that place is taken. Received: {str(work)!r} with "
            f"{', '.join(sorted(_names(work) - _KNOWN)[:3])}; nothing was changed."
        )
    return work


def _make(folder: pathlib.Path, new: bool = False) -> None:
    """Makes a folder; says which one where the system does not let it."""
    try:
        folder.mkdir(parents=not new, exist_ok=not new)
    except OSError as error:
        raise type(error)(
            f"The run folder cannot be made. Received: {str(folder)!r}: {error.strerror}. Pass --output with a new "
            "folder in one where you may write."
        ) from error


def refuse_dangling(folder: pathlib.Path) -> None:
    """Refuses a link that leads nowhere as the folder to write to: the system only says that it exists."""
    if folder.is_symlink() and not folder.exists():
        raise NotADirectoryError(
            f"The folder is a link that leads nowhere. Received: {str(folder)!r}. Remove it, or pass a new folder."
        )


def _marked(work: pathlib.Path, folder: pathlib.Path, overwrite: bool) -> pathlib.Path:
    """Makes a folder this run's own: of all that try, one succeeds."""
    mark = work / UNFINISHED
    taken = f"Another run is being written into this folder. Received: {str(work)!r}. Pass a new folder."
    try:
        with files.locked(mark):
            begun = mark.stat().st_size > 0
            if not mark.exists() or (begun and not overwrite):
                raise FileExistsError(taken)
            if overwrite:
                _remove(work, keep=(UNFINISHED,))
            if _names(work) != {UNFINISHED}:
                mark.unlink()
                raise FileExistsError(taken)
            # In place: whoever waits for the lock has opened this very file.
            mark.write_text(json.dumps({"folder": folder.resolve().name}) + "\n", encoding="utf-8")
    except (BlockingIOError, FileNotFoundError) as error:
        raise FileExistsError(taken) from error
    return work


@contextlib.contextmanager
def working(work: pathlib.Path) -> Iterator[None]:
    """Keeps other processes out of a folder that `claim` or `unfinished` returned.

    Raises:
        FileExistsError: another process writes into it.
    """
    try:
        with files.locked(work / UNFINISHED):
            _held[str(work.resolve())] = _identity(work)
            try:
                yield
            finally:
                _held.pop(str(work.resolve()), None)
    except BlockingIOError as error:
        raise FileExistsError(
            f"Another process is writing the run in this folder. Received: {str(work)!r}. Wait until it has ended."
        ) from error


def check_held(work: pathlib.Path) -> None:
    """Refuses to write into a folder that has become another one since `working` locked it.

    Raises:
        FileExistsError: it was removed, and another run may have begun there.
    """
    try:
        same = _held.get(str(work.resolve())) in (None, _identity(work))
    except FileNotFoundError:
        same = False
    if not same:
        raise FileExistsError(
            f"The folder of this run was removed or replaced while it was trained. Received: {str(work)!r}. Nothing "
            "more is written; train again, in another folder."
        )


def _identity(work: pathlib.Path) -> tuple[int, int]:
    found = os.stat(work / UNFINISHED)
    return found.st_dev, found.st_ino


def unfinished(folder: str | pathlib.Path) -> pathlib.Path:
    """Returns where the unfinished run of a folder is written.

    Raises:
        FileNotFoundError: there is none.
        FileExistsError: there are two.
    """
    folder = pathlib.Path(folder)
    found = [work for work in (_beside(folder), folder) if (work / UNFINISHED).is_file()]
    if len(found) > 1:
        raise FileExistsError(
            f"Two unfinished runs have this name. Received: --resume {str(folder)!r}, with runs in {str(found[0])!r} "
            "and in the folder itself. Move one of them into another folder."
        )
    if found:
        return found[0]
    reason = "no run was begun there."
    if folders.is_whole(folder):
        reason = "its run is finished. A larger budget goes on from its model in Python, see docs/howto/save.md."
    raise FileNotFoundError(f"There is nothing to go on with. Received: --resume {str(folder)!r}: {reason}")


def final(work: pathlib.Path) -> pathlib.Path:
    """Returns the folder that a run will be in once it is whole."""
    try:
        name = files.parse((work / UNFINISHED).read_bytes())["folder"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{work / UNFINISHED} is corrupt: {error}. The run cannot be gone on with; start it again with --overwrite."
        ) from error
    if work.resolve().name not in (name, _NEXT.format(name)):
        raise ValueError(
            f"The folder of an unfinished run was renamed. Received: {str(work)!r}, of a run that was begun in "
            f"{name!r}. Give it that name again to go on with the run."
        )
    return work if work.resolve().name == name else work.with_name(name)


def finish(work: pathlib.Path) -> pathlib.Path:
    """Gives a whole run its name, in place of an earlier one, and removes what served to make it.

    Returns:
        The folder of the run.

    Raises:
        FileNotFoundError, ValueError: the run is not whole; nothing was changed.
        FileExistsError: another run has taken one of its folders; nothing was changed.
    """
    check_held(work)
    folders.read(work)
    folder = final(work)
    if folder != work:
        if (folder / UNFINISHED).exists():
            raise FileExistsError(
                f"Another run was begun where this one is to be. Received: {str(folder)!r}; this run is whole in "
                f"{str(work)!r}. Move the other one away, and --resume this one."
            )
        if folder.exists():
            files.exchange(work, folder)
            _remove(work)
            with contextlib.suppress(OSError):
                work.rmdir()
        else:
            os.replace(work, folder)
        files.sync_folder(folder.parent)
    for name in (*FILES, *OPTIONAL, *_WORK, UNFINISHED):
        files.sweep(folder, name)
        if name in (*_WORK, UNFINISHED):
            (folder / name).unlink(missing_ok=True)
    return folder


def _complete(folder: pathlib.Path) -> None:
    """Tidies up after a run that was whole when its process was killed."""
    if (folder / UNFINISHED).is_file() and folders.is_whole(folder):
        with working(folder):
            finish(folder)


def _beside(folder: pathlib.Path) -> pathlib.Path:
    return folder.resolve().with_name(_NEXT.format(folder.resolve().name))


def abandon(work: pathlib.Path) -> None:
    """Removes a run of which nothing has been released."""
    with contextlib.suppress(OSError):
        _remove(work)
        work.rmdir()


def clear(folder: pathlib.Path) -> None:
    """Removes the files of a run, and no others."""
    _remove(folder)


def _names(folder: pathlib.Path) -> set[str]:
    """Returns the names in a folder, but for what a killed process was writing."""
    return {p.name for p in folder.iterdir() if not files.is_temporary(p.name)} if folder.exists() else set()


def _remove(folder: pathlib.Path, keep=()) -> None:
    # The mark goes last: until then the folder is known to be unfinished.
    for name in (*FILES, *OPTIONAL, *_WORK, UNFINISHED):
        if name not in keep:
            (folder / name).unlink(missing_ok=True)
            files.sweep(folder, name)
