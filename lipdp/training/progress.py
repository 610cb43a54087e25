"""What a person sees while a model trains: epsilon within an epoch, and what takes long before a bar moves."""

import math
import sys
import time
from collections.abc import Callable
from typing import Any

# Of the time that updates take, the accountant may take this much again.
_SHARE = 0.05
# Seconds between two lines of a terminal.
_PAUSE = 0.5


class EpsilonSoFar:
    """Epsilon between the ends of epochs, at a small share of the time that the updates take.

    The accountant is asked about an update some way ahead, the further the longer it takes, and its answer is shown
    until then.

    Args:
        run: The model's `Run`.
        clock: Returns seconds.

    **Guarantee.** What `value` returns is never below the epsilon that `Privacy` states for the updates so far: it does
    not fall with their number, and the answer is of an update not yet passed. Under a filter, and with DPIS, that is
    the budget from the first update on: what one path has used up bounds nothing.
    """

    def __init__(self, run: Any, clock: Callable[[], float] = time.perf_counter):
        self._run, self._clock = run, clock
        self._covered, self._value = -1, 0.0
        self._last, self._last_updates, self._window = clock(), run.ledger.updates, 1

    def value(self, left: int) -> float:
        """Returns no less than the epsilon of the updates so far.

        Args:
            left: Updates until the epoch or the run ends; with 0 the exact number is returned.
        """
        updates = self._run.ledger.updates
        if not left:
            return self._run.privacy().epsilon()
        if updates > self._covered:
            begin = self._clock()
            each = (begin - self._last) / max(updates - self._last_updates, 1)
            ahead = min(self._window, left)
            self._value, self._covered = self._run.privacy(ahead).epsilon(), updates + ahead
            self._last, self._last_updates = self._clock(), updates
            self._window = math.ceil((self._last - begin) / (_SHARE * max(each, 1e-9)))
        return self._value


class Line:
    """One line of a terminal that is written over, and wiped in the end.

    Args:
        visible: Whether to write at all.
    """

    def __init__(self, visible: bool):
        self._visible, self._width, self._next = visible, 0, 0.0

    def show(self, text: str) -> None:
        """Writes the text over the last one, unless that is too new to be read."""
        if self._visible and time.perf_counter() >= self._next:
            sys.stdout.write(f"\r{text.ljust(self._width)}")
            sys.stdout.flush()
            self._width, self._next = len(text), time.perf_counter() + _PAUSE

    def wipe(self) -> None:
        """Leaves an empty line."""
        if self._width:
            sys.stdout.write(f"\r{' ' * self._width}\r")
            sys.stdout.flush()
            self._width = 0


def in_terminal(verbose: Any) -> bool:
    """Returns whether somebody looks on: `fit` is not silent, and writes to a terminal."""
    return bool(verbose) and sys.stdout.isatty()
