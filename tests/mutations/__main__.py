"""Puts in one fault at a time, runs the tests that must see it, and prints the faults that none sees.

Works in copies of the package in a temporary folder. Keras is imported once: each fault gets a fork of this process.
"""

import argparse
import compileall
import contextlib
import importlib
import os
import py_compile
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.mutations import FAULTS
from tests.mutations.fault import ROOT

# What a run of pytest ended with: tests failed, or could not be collected because the package does not import.
_SEEN = (1, 2)


class Place:
    """A copy of the package and its tests, for one fault after the other."""

    def __init__(self, folder: Path):
        self.folder, self.log, self.child = folder, folder / "log.txt", None
        hidden = shutil.ignore_patterns("__pycache__")
        for name in ("lipdp", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=hidden)
        shutil.copy(ROOT / "pyproject.toml", folder)
        # Compared by content: by time and size, a changed file may pass for the old one.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "lipdp", quiet=2, invalidation_mode=mode)

    def start(self, fault, tests: list[str], limit: float) -> None:
        """Puts in the fault and starts the tests."""
        self.fault, self.began, self.limit = fault, time.monotonic(), limit
        if fault is not None:
            path = fault.path(self.folder)
            self.before = path.read_text()
            path.write_text(fault.applied(self.before))
        sys.stdout.flush()
        self.child = os.fork()
        if not self.child:
            _run(self.folder, self.log, tests)

    def ended(self) -> str | None:
        """Returns how the tests ended, and None while they run; takes the fault out."""
        child, status = os.waitpid(self.child, os.WNOHANG)
        late = not child and time.monotonic() - self.began > self.limit
        if not child and not late:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        if late:
            os.waitpid(self.child, 0)
        if self.fault is not None:
            self.fault.path(self.folder).write_text(self.before)
        self.child, code = None, os.waitstatus_to_exitcode(status)
        if late:
            return "late"
        return "killed" if code in _SEEN else "survived" if code == 0 else "broken"


def _run(folder: Path, log: Path, tests: list[str]) -> None:
    """Runs tests in this process, a fork, and ends it."""
    code = 3
    try:
        os.setsid()
        os.chdir(folder)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1), os.dup2(file, 2)
        sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() not in (ROOT, folder))]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        # Plugins would have to be imported again: to rewrite their assertions, pytest wants to be first.
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        import pytest

        options = ["-x", "-q", "-m", "", "-p", "no:cacheprovider", "--rootdir", str(folder)]
        code = pytest.main([*options, *(str(folder / "tests" / test) for test in tests)])
    except BaseException:  # nothing of the parent must go on here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


def _import(backend: str) -> None:
    """Imports what takes long, and nothing of the package; no operation runs before a fork."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in ("pytest", backend, "keras", "scipy.stats", "scipy.signal", "scipy.optimize", "hypothesis"):
        importlib.import_module(name)
    for name in ("dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp.rdp_privacy_accountant"):
        importlib.import_module(name)


def _work(faults: list, places: list, limit: float, show) -> dict:
    """Returns the faults by how their tests ended."""
    ends: dict = {"killed": [], "late": [], "survived": [], "broken": []}
    left, free, busy = list(faults), list(places), []
    while left or busy:
        while left and free:
            fault = left.pop(0)
            free[-1].start(fault, list(fault.tests), limit)
            busy.append(free.pop())
        time.sleep(0.05)
        for place in list(busy):
            end = place.ended()
            if end is not None:
                busy.remove(place)
                free.append(place)
                ends[end].append(place.fault)
                show(place, end)
    return ends


def main() -> int:
    """Returns 1 when a fault went unseen that is not said to be equivalent, or the list does not fit the files."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose id holds this text")
    parser.add_argument("--jobs", type=int, default=1, help="faults at the same time")
    parser.add_argument("--backend", default="tensorflow", choices=("tensorflow", "jax"))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one fault")
    parser.add_argument("--unchecked", action="store_true", help="do not first see that the tests pass without a fault")
    parser.add_argument("--verbose", action="store_true", help="print how each fault ended, and what pytest said")
    options = parser.parse_args()
    faults, start = [fault for fault in FAULTS if options.only in fault.id], time.monotonic()
    if not faults:
        parser.error(f"no fault has an id that holds {options.only!r}")
    try:
        for fault in faults:
            fault.applied(fault.path().read_text())
    except ValueError as error:
        sys.stdout.write(f"The list does not fit the files. {error}\n")
        return 1

    def show(place, end):
        if end not in ("killed", "late") and not place.fault.equivalent:
            sys.stdout.write(f"{end.upper():<9} {place.fault.id}\n")
        elif options.verbose:
            took = time.monotonic() - place.began
            sys.stdout.write(f"{end:<9} {took:5.1f} s  {place.fault.id}\n")
        if options.verbose or end == "broken":
            said = place.log.read_text(errors="replace").splitlines()
            seen = [line for line in said if line.startswith(("FAILED", "ERROR"))] or said[-3:]
            sys.stdout.write("".join(f"          {line[:160]}\n" for line in seen[:3]))
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="lipdp-mutants-") as temporary:
        os.environ |= {"TMPDIR": temporary, "JAX_COMPILATION_CACHE_DIR": os.path.join(temporary, "compiled")}
        tempfile.tempdir = None
        _import(options.backend)
        places = [Place(Path(temporary, str(i))) for i in range(max(1, options.jobs))]
        if not options.unchecked:
            place = places[0]
            place.start(None, sorted({test for fault in faults for test in fault.tests}), 3600.0)
            while (end := place.ended()) is None:
                time.sleep(0.1)
            if end != "survived":
                sys.stdout.write(f"Without a fault the tests do not pass.\n{place.log.read_text()[-4000:]}\n")
                return 1
        ends = _work(faults, places, options.limit, show)
    wrong = [fault for fault in ends["killed"] + ends["late"] if fault.equivalent]
    same = [fault for fault in ends["survived"] if fault.equivalent]
    survivors = [fault for fault in ends["survived"] if not fault.equivalent]
    for fault in wrong:
        sys.stdout.write(f"NOT EQUIVALENT, a test sees it: {fault.id}\n")
    for fault in same:
        sys.stdout.write(f"equivalent: {fault.id}: {fault.equivalent}\n")
    sys.stdout.write(
        f"{len(faults)} faults: {len(ends['killed'])} killed, {len(ends['late'])} took too long, {len(survivors)} "
        f"survived, {len(same)} equivalent, {len(ends['broken'])} broken; {(time.monotonic() - start) / 60.0:.1f} "
        "minutes.\n"
    )
    return int(bool(survivors or wrong or ends["broken"]))


if __name__ == "__main__":
    sys.exit(main())
