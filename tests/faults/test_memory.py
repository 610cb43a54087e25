"""Memory that runs out in the middle of training: what was made is charged, and a new process goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lipdp.privacy import journal

ROOT = Path(__file__).resolve().parents[2]


def process(folder, *arguments):
    words = [sys.executable, "-m", "tests.faults.starved", str(folder), *map(str, arguments)]
    # Memory that is kept between updates would not run out.
    anew = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    return subprocess.run(words, cwd=ROOT, env=anew, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
def test_a_process_without_memory_loses_no_update(tmp_path):
    starved, whole = tmp_path / "starved", tmp_path / "whole"
    starved.mkdir(), whole.mkdir()
    first = process(starved, 3)
    assert first.returncode != 0, "it did not run out of memory"
    made = len((starved / "log").read_text().splitlines())
    assert made >= 3
    assert journal.read(starved / "c.weights.h5.journal").ledger.updates >= made
    second, reference = process(starved), process(whole)
    assert second.returncode == 0, second.stderr[-4000:]
    # The update that was cut short stays charged and is not made again: the cost is that of the whole run.
    assert second.stdout.split()[-3:-1] == reference.stdout.split()[-3:-1] == ["6", second.stdout.split()[-2]]
