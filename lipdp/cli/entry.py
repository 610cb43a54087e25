"""Entry point: runs one command, and turns an error into one line."""

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence

from lipdp.cli import parser

# Bad input; everything else that goes wrong outside of the program is 1.
_BAD_INPUT = (ValueError, ImportError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one `lipdp` command.

    Args:
        argv: arguments after `lipdp`; default: those of this process.

    Returns:
        0 when it did what was asked; 2 for bad input, 1 for other failures, 130 when interrupted, 143 when terminated:
        each with one line on standard error. 1 also for an audit that finds more than the stated epsilon. Errors in
        lipdp itself keep their traceback; with LIPDP_TRACEBACK set, all do.

    Example:
        >>> main(["epsilon", "--noise-multiplier", "1.1", "--batch-size", "256", "--num-examples", "60000",
        ...       "--updates", "2350"])
        epsilon 0.9203 at delta 1e-05 after 2350 updates (pld)
        risk: who knows all other data is right in at most 54.7 of 100 guesses on who is in it (a coin: 50), ...
        0
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    # TensorFlow reads it when it is first imported: its start-up messages are not for our users.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        options = parser.parse(argv)
    except parser.Finished as finished:
        return finished.code
    command = importlib.import_module(f"lipdp.cli.{options.command}")
    try:
        with _warnings_as_lines(options.command), _terminated_as_interrupted():
            code = command.run(options, argv) or 0
    except _BAD_INPUT as error:
        return _fail(options.command, error, 2)
    except (OSError, FloatingPointError) as error:  # a disk, or training that has diverged
        return _fail(options.command, error, 1)
    except RuntimeError as error:  # what HDF5 makes of a disk that is full when a file is closed
        if "errno = " not in str(error):
            raise
        return _fail(options.command, error, 1)
    except KeyboardInterrupt as error:
        text = str(error) or "interrupted; nothing was written."
        return _fail(options.command, text, 143 if isinstance(error, Terminated) else 130)
    return code


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM, as batch systems do."""


def _fail(command: str, error, code: int) -> int:
    if os.environ.get("LIPDP_TRACEBACK"):
        traceback.print_exc()
    sys.stderr.write(f"lipdp {command}: error: {_one_line(error)}\n")
    return code


def _one_line(error) -> str:
    return " ".join(str(error).split())


@contextlib.contextmanager
def _terminated_as_interrupted():
    """Raises in the main thread when SIGTERM comes, as Python does for Ctrl-C."""

    def terminate(number, frame):
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # no other one may say what signals do
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextlib.contextmanager
def _warnings_as_lines(command: str):
    def show(message, category, *_, **__):
        sys.stderr.write(f"lipdp {command}: warning: {_one_line(message)}\n")

    before, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = before
