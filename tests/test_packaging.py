"""What an installation is told and lacks: versions, extras, and no backend."""

import pathlib
import subprocess
import sys
import tomllib

import pytest

import lipdp

pytestmark = pytest.mark.backend_free
ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Python asks this one first; imported before all else, it hides the two backends.
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "jax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, Hidden())
"""


def process(code, **environment):
    command = [sys.executable, "-c", HIDE + code]
    kept = {"PATH": "", "HOME": str(pathlib.Path.home()), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True)


def test_one_version():
    assert PROJECT["version"] == lipdp.__version__
    assert f"## {lipdp.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_files_beside_the_code_are_installed_and_in_the_repository():
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    said = set(whole["tool"]["setuptools"]["package-data"]["lipdp"])
    package = ROOT / "lipdp"
    there = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    there = {str(path) for path in there if "__pycache__" not in path.parts and path.suffix not in (".py", ".pyc")}
    assert said == there
    # One kind is ignored everywhere else.
    assert "!lipdp/layers/encoder.npz" in (ROOT / ".gitignore").read_text().splitlines()


def test_extras():
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"tensorflow", "jax", "notebooks", "docs", "test"}
    assert not any(name.startswith(("tensorflow", "jax")) for name in PROJECT["dependencies"])


@pytest.mark.parametrize(
    ("backend", "code"), [("tensorflow", "import lipdp; lipdp.DP_Model"), ("jax", "from lipdp import layers")]
)
def test_without_a_backend_the_extras_are_named(backend, code):
    done = process(code, KERAS_BACKEND=backend)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError") and f"lipdp[{backend}]" in last and "KERAS_BACKEND=" in last


@pytest.mark.slow
def test_accounting_needs_none():
    release = "noise_multiplier=1.0, sampling_probability=0.01, updates=9, delta=1e-5"
    done = process(f"from lipdp import accounting; print(accounting.epsilon({release}))")
    assert float(done.stdout) > 0.1


@pytest.mark.slow
def test_the_command_line_says_so_in_one_line():
    code = "from lipdp.cli import main; sys.exit(main(['train', '--dataset', 'digits', '--epsilon', '3']))"
    done = process(code, KERAS_BACKEND="tensorflow")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("lipdp train: error: Keras runs on tensorflow")
