"""`python -m lipdp` is the command."""

import runpy
import subprocess
import sys

import pytest

pytestmark = pytest.mark.backend_free

WORDS = ["epsilon", "--noise-multiplier", "1.1", "--num-examples", "60000", "--batch-size", "256", "--updates", "2350"]


@pytest.mark.slow
def test_it_is_the_command():
    done = subprocess.run([sys.executable, "-m", "lipdp", *WORDS], capture_output=True, text=True)
    assert done.returncode == 0 and "epsilon 0.9203 at delta 1e-05" in done.stdout
    done = subprocess.run([sys.executable, "-m", "lipdp", "none"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("lipdp: error:")


def test_importing_it_does_nothing(capsys):
    runpy.run_module("lipdp.__main__", run_name="lipdp.__main__")
    assert capsys.readouterr().out == ""
