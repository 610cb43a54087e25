"""The list of faults fits the files, and the runner tells what is seen from what is not."""

import ast
import collections
import functools

import pytest

from tests.mutations import FAULTS
from tests.mutations.fault import ROOT, Fault

pytestmark = pytest.mark.backend_free

# What privacy depends on: each of these folders has faults in its files.
FOLDERS = (
    *("accounting", "audit", "backend", "bounds", "diffusion", "gradients", "isolation", "layers", "losses", "norms"),
    *("privacy", "sampling", "strategies", "training"),
)


@functools.cache
def text(path):
    return path.read_text()


@functools.cache
def names(path):
    return {node.name for node in ast.walk(ast.parse(text(path))) if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
def test_each_fault_is_in_one_place_and_is_python():
    for fault in FAULTS:
        changed = fault.applied(text(fault.path()))
        assert changed != text(fault.path()), fault.id
        ast.parse(changed)


def test_the_tests_that_see_it_are_there():
    for fault in FAULTS:
        assert fault.tests, fault.id
        for test in fault.tests:
            file, _, name = test.partition("::")
            path = ROOT / "tests" / file
            assert path.is_file() and (not name or name in names(path)), f"{fault.id}: {test}"


def test_each_fault_has_a_name_of_its_own():
    most = collections.Counter(fault.id for fault in FAULTS).most_common(1)
    assert most[0][1] == 1, most
    changes = collections.Counter((fault.file, fault.old, fault.new) for fault in FAULTS).most_common(1)
    assert changes[0][1] == 1, changes


def test_there_are_faults_wherever_privacy_is_decided():
    assert len(FAULTS) >= 150
    files = {fault.file for fault in FAULTS}
    assert {"optimizer.py", "model.py", "certify.py"} <= files
    assert set(FOLDERS) <= {file.split("/")[0] for file in files}
    assert all(not fault.equivalent or len(fault.equivalent) > 20 for fault in FAULTS)


def test_a_list_that_does_not_fit_is_refused():
    for old in ("nowhere in this file", "import"):
        with pytest.raises(ValueError, match="not once"):
            Fault("model.py", "a test", old, "", ("test_face.py",)).applied(text(ROOT / "lipdp" / "model.py"))
