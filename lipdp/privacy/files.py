"""Files that a fault cannot tear: written beside their name, then renamed; checked when they are read."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, where `lock` does not keep other processes out
    fcntl = None  # type: ignore[assignment]

# Temporary files begin with this; they end with the name they are for, which Keras looks at.
_TEMPORARY = ".~"
_STAMP = "sha256"
_SWAP = {"linux": ("renameat2", (-100,)), "darwin": ("renamex_np", ())}


@contextlib.contextmanager
def replacing(path: str | os.PathLike, private: bool = False) -> Iterator[pathlib.Path]:
    """Gives a path beside `path` to write to, which takes its place at the end; after an error nothing has changed.

    Args:
        path: the file, or folder, to be written. A link is followed.
        private: whether its owner alone may read it. Otherwise it has the mode of the file it replaces, or the usual
            one.

    Raises:
        OSError: the folder cannot be written, or the disk is full; `path` is as it was.

    **Guarantee.** Whenever the process or the machine stops, `path` holds what it held before or all that was written:
    the content is on the disk before the name changes. Not covered: a disk that loses what it has confirmed.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(pathlib.Path(folder, "note.txt")) as temporary:
        ...         _ = temporary.write_text("whole")
        ...     pathlib.Path(folder, "note.txt").read_text()
        'whole'
    """
    given, path = path, pathlib.Path(os.path.realpath(path))
    try:
        handle, name = tempfile.mkstemp(prefix=f"{_TEMPORARY}{os.getpid()}-", suffix=f"~{path.name}", dir=path.parent)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            errno.ENOENT, f"There is no such folder to write into. Create it first{home_hint(given)}", str(path.parent)
        ) from error
    os.close(handle)  # made with mode 0600; the writer keeps it
    temporary = pathlib.Path(name)
    if not private:
        # A new file, because the usual mode cannot be asked for without changing it for other threads.
        temporary.unlink()
    try:
        yield temporary
        if not private and path.is_file():
            temporary.chmod(path.stat().st_mode & 0o777)
        _settle(temporary)
        if temporary.is_dir() and path.exists():
            exchange(temporary, path)
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            os.replace(temporary, path)
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def home_hint(path: Any) -> str:
    """Returns what to do where a path begins with ~, which a shell replaces and Python does not."""
    return ". Python takes ~ as a name: pass os.path.expanduser(path)" if str(path).startswith("~") else ""


def _settle(path: pathlib.Path) -> None:
    """Waits until a file, or each file of a folder, is on the disk."""
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if each.is_file():
            with open(each, "rb+") as file:
                os.fsync(file.fileno())


def sync_folder(folder: pathlib.Path) -> None:
    """Waits until the names in a folder are on the disk, where the system can do so."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: str | os.PathLike, text: str, private: bool = False) -> None:
    """Writes a text file, whole or not at all; see `replacing`."""
    with replacing(path, private) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def sweep(folder: str | os.PathLike, name: str) -> None:
    """Removes what killed processes have left of writing `name`; nobody else may be writing it."""
    for path in pathlib.Path(folder).glob(f"{_TEMPORARY}*"):
        if path.name.endswith(f"~{name}"):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that `replacing` was writing."""
    return name.startswith(_TEMPORARY)


def exchange(one: pathlib.Path, other: pathlib.Path) -> None:
    """Exchanges the names of two folders: in one step where the system can, else in three renames."""
    if not _swapped(one, other):
        spare = pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY, suffix=f"~{other.name}", dir=other.parent))
        os.replace(other, spare)
        os.replace(one, other)
        os.replace(spare, one)
    sync_folder(other.parent)


def _swapped(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Exchanges two names in one step; false where there is no such step."""
    name, start = _SWAP.get(sys.platform, ("", ()))
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None) if name else None
    if call is None:
        return False
    words = [word for path in (one, other) for word in (*start, os.fsencode(path))]
    return call(*words, 2) == 0  # RENAME_EXCHANGE on Linux, RENAME_SWAP on macOS


def digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamped(values: dict) -> dict:
    """Returns JSON-serializable values with a digest of them, which `unstamped` checks.

    Example:
        >>> unstamped(stamped({"updates": 3}))
        {'updates': 3}
    """
    return values | {_STAMP: _digest(values)}


def unstamped(values: dict) -> dict:
    """Returns what was given to `stamped`.

    Raises:
        ValueError: the values are not those that were stamped.
    """
    content = {name: value for name, value in values.items() if name != _STAMP}
    if values.get(_STAMP) != _digest(content):
        raise ValueError("it is not what was written: its checksum does not match")
    return content


def has_stamp(values: dict) -> bool:
    """Whether values carry a digest, right or wrong: files of earlier versions do not."""
    return _STAMP in values


def parse(text: str | bytes) -> Any:
    """Returns JSON values; ValueError also for a text that is nested too deeply for Python, or says a thing twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name in found if [other for other, _ in pairs].count(name) > 1)
        raise ValueError(f"it holds {twice!r} twice")
    return found


def _digest(values: dict) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


@contextlib.contextmanager
def locked(path: str | os.PathLike, private: bool = False) -> Iterator[None]:
    """Keeps other processes out for as long as this one lives; `path` is an empty file for that purpose, and stays.

    Raises:
        BlockingIOError: another process holds it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600 if private else 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner = os.getpid()
        try:
            yield
        finally:
            # A process that was forked meanwhile holds the lock as well, until it ends; nor may it take it away.
            if fcntl is not None and os.getpid() == owner:
                fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)
