"""A few kills of a small run; `make test-crash` makes 200, of everything that trains."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_run_that_is_killed_goes_on():
    words = [sys.executable, "-m", "tests.crash.kills", "--quick", "--kills", "3"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1].startswith("3 kills, every end right")
