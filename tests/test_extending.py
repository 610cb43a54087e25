"""The code of docs/extending.md runs, and what the pages name exists."""

import ast
import contextlib
import functools
import pathlib
import re

import numpy as np
import pytest

from lipdp import accounting, backend, bounds, sampling, strategies

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

    return (accountant._REGISTRY, schemes.SCHEMES, registry._ENTRIES, strategies._BY_NAME)
