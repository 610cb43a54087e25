"""Journal: the file beside a checkpoint that says what may have been released since."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time

from lipdp.privacy import files
from lipdp.privacy.ledger import Ledger, Release

_FORMAT, _VERSION = "lipdp.journal", 1
# Seconds that a reservation should last: longer ones charge more after a crash, shorter ones write more often.
_LASTING = 1.0


@dataclasses.dataclass(frozen=True)
class Reserved:
    """What a journal says.

    Args:
        ledger: the ledger, as if all that was reserved had been released.
        replay: digest of a `fit` with a fixed seed, which makes the same releases when it is called again; else None.
    """

    ledger: Ledger
    replay: str | None


class Journal:
    """Reserves releases ahead of the updates that make them, so that a crash cannot hide any.

    Args:
        path: the file.
        replay: see `Reserved`.
        private: whether its owner alone may read it.
        least: what the file lists already and this run repeats; it stays listed.
        writes: whether this process writes the file, or another one that makes the same releases.

    **Guarantee.**
    Conditions: `cover` is called before each release, and the disk keeps what it has confirmed.
    Bound: whenever the process stops, the ledger in the file holds every release that was made.
    Not covered: another process that writes the same file.

    Example:
        >>> import pathlib, tempfile
        >>> from lipdp.accounting import Sampling
        >>> update = Release(sampling=Sampling().bind(1000, 10), noise_multiplier=1.0, sensitivity=0.1,
        ...                  strategy="clipless", noise_allocation="global")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     journal = Journal(pathlib.Path(folder, "run.journal"))
        ...     journal.cover(Ledger(), update, most=5)
        ...     read(pathlib.Path(folder, "run.journal")).ledger
        Ledger(updates=1, entries=1)
    """

    def __init__(
        self,
        path: str | os.PathLike,
        replay: str | None = None,
        private: bool = False,
        least: Ledger | None = None,
        writes: bool = True,
    ):
        self._path, self._replay, self._private, self._least = pathlib.Path(path), replay, private, least
        self._writes = writes
        self._release: Release | None = None
        self._left, self._ahead, self._written = 0, 0, -_LASTING

    def cover(self, ledger: Ledger, release: Release, count: int = 1, most: int = 0) -> None:
        """Makes sure that the file holds `count` releases more than `ledger`.

        Args:
            ledger: what was charged before.
            release: what is to be released.
            count: how many of them.
            most: how many of them, with these, may follow at all.

        Raises:
            OSError: the file cannot be written; nothing may be released.
        """
        if release is not self._release or count > self._left:
            early = time.monotonic() - self._written < _LASTING
            self._ahead = 2 * self._ahead + 1 if early else self._ahead // 2
            ahead = max(0, min(self._ahead, most - count))
            reserved = ledger.copy()
            reserved.charge(release, count + ahead)
            self._write(reserved)
            self._release, self._left = release, count + ahead
        self._left -= count

    def settle(self, ledger: Ledger) -> None:
        """Gives back what was reserved and not used: `ledger` holds all that was released."""
        self._release, self._left = None, 0
        self._write(ledger)

    def refuse_other_noise(self, ledger: Ledger) -> None:
        """Refuses to go on with other noise than that of the releases that were to be repeated."""
        if self._least is not None and self._least.releases > ledger.releases:
            raise self._not_repeated(ledger)

    def _not_repeated(self, ledger: Ledger) -> ValueError:
        return ValueError(
            "This run was to repeat, with its seed, what was released before the process was stopped, and does not. "
            f"Received: {ledger!r}, in place of {self._least!r} in {self._path}. Go on without a seed: what was lost "
            "is then charged."
        )

    def _write(self, ledger: Ledger) -> None:
        origins = ledger.origins
        if self._least is not None and self._least.releases > ledger.releases:
            if not self._least.continues(ledger):
                raise self._not_repeated(ledger)
            ledger = self._least
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "ledger": json.loads(ledger.to_json()),
            "history": origins,
            "replay": self._replay,
        }
        if self._writes:
            files.write_text(self._path, json.dumps(files.stamped(content)) + "\n", self._private)
        self._written = time.monotonic()


def read(path: str | os.PathLike) -> Reserved:
    """Returns what a journal says.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not what was written.
    """
    try:
        content = files.parse(pathlib.Path(path).read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is not a dictionary")
        content = files.unstamped(content)
        if (content["format"], content["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"it has version {content['version']!r} of format {content['format']!r}")
        ledger = Ledger.from_json(json.dumps(content["ledger"]))
        ledger.origins = [[str(name), int(start)] for name, start in content["history"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"The journal {path} is corrupt: {error}. What was released after the checkpoint is not known, so it "
            "cannot be charged. Go on from a copy of both files."
        ) from error
    return Reserved(ledger, content["replay"])
