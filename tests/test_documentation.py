"""Docstrings run, notebooks run, and the README says what the code does."""

import ast
import doctest
import importlib
import pathlib
import pkgutil
import re

import pytest

import lipdp

ROOT = pathlib.Path(__file__).parent.parent
OTHER_BACKEND = {"tensorflow": "lipdp.backend.jax", "jax": "lipdp.backend.tensorflow"}


def modules():
    import keras

    skipped = OTHER_BACKEND[keras.backend.backend()]
    for found in pkgutil.walk_packages(lipdp.__path__, "lipdp."):
        if found.name != skipped and not found.name.endswith("__main__"):
            yield found.name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(modules()))
def test_examples_run(name):
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testmod(module, optionflags=flags).failed == 0


@pytest.mark.parametrize(
    "package",
    ["layers", "losses", "models", "bounds", "accounting", "strategies", "sampling", "norms", "diffusion"],
)
def test_public_names_are_documented(package):
    module = importlib.import_module(f"lipdp.{package}")
    for name in vars(module):
        value = getattr(module, name)
        if not name.startswith("_") and callable(value) and value.__module__.startswith("lipdp"):
            assert value.__doc__, f"lipdp.{package}.{name} has no docstring"


def test_layers_and_losses_state_their_guarantee():
    for module in (lipdp.layers, lipdp.losses):
        for name, value in vars(module).items():
            own = isinstance(value, type) and value.__module__.startswith("lipdp")
            if own:
                assert "Guarantee" in value.__doc__, name


def test_readme_numbers():
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"^(accounting\.\w+\(.*\))\s+# ([\d.]+)$", text, flags=re.MULTILINE)
    assert len(found) == 2
    for call, expected in found:
        ast.parse(call, mode="eval")
        value = eval(call, {"accounting": lipdp.accounting})
        assert value == pytest.approx(float(expected), abs=6e-4), call


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem.startswith("01") else pytest.mark.backend_free)
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ],
)
def test_notebook_runs(path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": ROOT}}).execute()


def test_no_framework_outside_of_the_backend():
    for path in (ROOT / "lipdp").rglob("*.py"):
        if path.parent.name == "backend":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in ("tensorflow", "jax", "torch"), f"{path.name} imports {name}"


def test_readme_tables_come_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tables = importlib.import_module("tables")
    text = (ROOT / "README.md").read_text()
    assert tables.update(text) == text


def test_the_layer_of_the_documents_holds_its_bounds():
    import keras
    import numpy as np

    from lipdp import bounds, layers, norms

    text = (ROOT / "docs" / "layers.md").read_text()
    (code,) = re.findall(r"```python\n(class .*?)```", text, re.DOTALL)
    names = {"bounds": bounds, "keras": keras, "layers": layers, "norms": norms, "np": np}
    exec(code, names)
    model = lipdp.DP_Sequential([layers.BoundedInput((4,)), names["Gains"]()])
    assert lipdp.export(model).count_params() == 16


def test_layer_table_comes_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tightness = importlib.import_module("tightness")
    text = (ROOT / "docs" / "layers.md").read_text()
    assert tightness.update(text) == text
