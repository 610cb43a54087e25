"""What the accounting takes from dp_accounting: public names only, of versions that were tested."""

import importlib.metadata
import pathlib
import re
import tomllib

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant

import lipdp
from lipdp.accounting import rdp, selection

pytestmark = pytest.mark.backend_free

ROOT = pathlib.Path(lipdp.__file__).parent


def test_no_private_name_is_used():
    for path in (ROOT / "accounting").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for module in re.findall(r"from dp_accounting\S* import ([\w, ]+)", text):
            for name in module.split(", "):
                assert not re.search(rf"\b{name}\._|import .*\b_", text), (path.name, name)


def test_the_version_is_one_that_was_tested():
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bounds,) = (line for line in project["dependencies"] if line.startswith("dp-accounting"))
    low, high = (
        tuple(map(int, bound.split("."))) for bound in re.fullmatch(r"\S+>=([\d.]+),<([\d.]+)", bounds).groups()
    )
    installed = tuple(map(int, importlib.metadata.version("dp-accounting").split(".")[:2]))
    assert low <= installed < high


@pytest.mark.parametrize("mean", [1.0, 3.5, 40.0])
@pytest.mark.parametrize(("ours", "shape"), [(selection._geometric, 1.0), (selection._poisson, np.inf)])
def test_repeat_and_select_equals_the_library(ours, shape, mean):
    orders = np.array(rdp.ORDERS)
    curve = rdp.single(rdp.kind(lipdp.accounting.Mechanism(256 / 60000, 1.1, 1))) * 2350
    theirs = rdp_privacy_accountant._compute_rdp_repeat_and_select(orders, curve, mean, shape)
    np.testing.assert_allclose(ours(orders, curve, mean), theirs, rtol=1e-12)
