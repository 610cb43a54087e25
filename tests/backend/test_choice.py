"""The backend of Keras decides which framework is imported."""

import subprocess
import sys

import keras
import pytest

from lipdp import backend

_BROKEN = """
import sys, types
keras = types.ModuleType("keras")
keras.backend = types.SimpleNamespace(backend=lambda: "torch")
sys.modules["keras"] = keras
package = types.ModuleType("lipdp")
package.__path__ = {path!r}
sys.modules["lipdp"] = package
import lipdp.backend
"""


def test_refuses_other_backends_by_name():
    import lipdp

    code = _BROKEN.format(path=list(lipdp.__path__))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "ImportError" in result.stderr and "'torch'" in result.stderr and "KERAS_BACKEND" in result.stderr


def test_functions_come_from_the_active_backend():
    assert backend.normal.__module__ == f"lipdp.backend.{keras.backend.backend()}"


@pytest.mark.parametrize("name", backend.__all__)
def test_every_name_exists(name):
    assert callable(getattr(backend, name))
