"""The code of docs/extending.md runs, and what the pages name exists."""

import ast
import contextlib
import pathlib
import re

import numpy as np
import pytest

from lipdp import backend, strategies

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))


@contextlib.contextmanager
def restored(*tables):
    """Leaves the registries of the library as they were."""
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, content in zip(tables, before, strict=True):
            table.clear()
            table.update(content)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("section", [name for name, text in SECTIONS.items() if "```python" in text])
def test_code_runs(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = {"x": rng.normal(size=(64, 4)).astype("float32"), "y": rng.integers(3, size=64), "__name__": "mine"}
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", SECTIONS[section], flags=re.MULTILINE | re.DOTALL))
    with restored(*registries()):
        exec(compile(code, section, "exec"), names)


def registries():
    from lipdp.accounting import accountant, schemes
    from lipdp.bounds import registry
    from lipdp.isolation import declared

    return (declared._DECLARED, accountant._REGISTRY, schemes.SCHEMES, registry._ENTRIES, strategies._BY_NAME)


def test_the_page_lists_what_a_backend_defines():
    listed = re.findall(r"^\| `(\w+)` \|", SECTIONS["A backend"], flags=re.MULTILINE)
    assert sorted(listed) == sorted(backend.__all__)


@pytest.mark.backend_free
def test_both_backends_define_the_same_names():
    for name in ("tensorflow", "jax"):
        files = [
            ROOT / "lipdp" / "backend" / f"{part}{name}.py" for part in ("", "capture_", "devices_", "importance_")
        ]
        assert set(backend.__all__) <= set().union(*map(top_level, files)), name


def top_level(path):
    body = ast.parse(path.read_text()).body
    names = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return names | {target.id for node in body if isinstance(node, ast.Assign) for target in node.targets}
