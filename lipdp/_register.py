"""Keras reads a model file only when the classes in it are registered, and `import lipdp` leaves Keras alone.

So the classes are imported as soon as Keras is there: with `lipdp` when Keras came first, else right after Keras.
"""

import importlib
import importlib.abc
import sys

# Their imports bring every class that a model file can name.
_MODULES = ("lipdp.model", "lipdp.diffusion", "lipdp.models", "lipdp.certify", "lipdp.strategies", "lipdp.exporting")


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Registers when Keras or a module of lipdp has been imported, as soon as none of lipdp is half done."""

    def __init__(self):
        self.registering = False

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "keras" and not fullname.startswith("lipdp."):
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._followed(spec.loader.exec_module)
        return spec

    def _followed(self, execute):
        def exec_module(module):
            execute(module)
            if "keras" in sys.modules and not (self.registering or _half_done(module.__name__)):
                try:
                    register()
                except ImportError:
                    # A backend that lipdp does not run on is no reason for `import keras` to fail.
                    if module.__name__ != "keras":
                        raise

        return exec_module


def _half_done(but: str) -> bool:
    """Returns whether a module of lipdp is being executed: whoever does that makes it an attribute at the end."""
    names = (name.rpartition(".") for name in list(sys.modules) if name.startswith("lipdp.") and name != but)
    return any(package in sys.modules and name not in vars(sys.modules[package]) for package, _, name in names)


_finder = _AfterKeras()


def install() -> None:
    """Has the classes registered once Keras is imported; called once by `lipdp/__init__`."""
    sys.meta_path.insert(0, _finder)


def register() -> None:
    """Imports Keras and every class of lipdp that a model file can name."""
    _finder.registering = True
    try:
        for name in _MODULES:
            importlib.import_module(name)
    finally:
        _finder.registering = False
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
