"""Differentially private, robustness-certified neural networks in Keras 3, through Lipschitz layers."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from lipdp import _deprecated, _register

if TYPE_CHECKING:
    from lipdp import (
        accounting,
        audit,
        bounds,
        callbacks,
        certify,
        data,
        diffusion,
        layers,
        losses,
        models,
        norms,
        privacy,
        report,
        sampling,
        strategies,
    )
    from lipdp.exporting import export
    from lipdp.isolation import row_wise
    from lipdp.model import DP_Model, DP_Sequential
    from lipdp.models.checking import check
    from lipdp.models.features import features
    from lipdp.models.fixing import fix
    from lipdp.models.functional import to_functional
    from lipdp.models.recipes import recipe

__all__ = ["DP_Model", "DP_Sequential", "__version__", "check", "export", "features", "fix", "recipe", "row_wise"]
__all__ += ["to_functional"]
__all__ += ["accounting", "audit", "bounds", "callbacks", "certify", "data", "diffusion", "layers", "losses", "models"]
__all__ += ["norms", "privacy", "report", "sampling", "strategies"]
__version__ = "0.2.0"

_BACKENDS = ("tensorflow", "jax")
_HOMES = {
    "DP_Model": "lipdp.model",
    "DP_Sequential": "lipdp.model",
    "check": "lipdp.models.checking",
    "export": "lipdp.exporting",
    "features": "lipdp.models.features",
    "fix": "lipdp.models.fixing",
    "recipe": "lipdp.models.recipes",
    "row_wise": "lipdp.isolation",
    "to_functional": "lipdp.models.functional",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: accounting answers sooner than Keras loads."""
    try:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name in __all__ or f"lipdp.{name}" in _deprecated.MOVED:
            return importlib.import_module(f"lipdp.{name}")
    except ModuleNotFoundError as error:
        if error.name in _BACKENDS:
            raise _without_backend(error.name) from error
        raise
    raise AttributeError(f"module 'lipdp' has no attribute {name!r}")


def _without_backend(name: str) -> ImportError:
    """Returns the error for a backend of Keras that is not installed."""
    other = next(backend for backend in _BACKENDS if backend != name)
    return ImportError(
        f"Keras runs on {name}, which is not installed. Install it with pip install 'lipdp[{name}]', or set the "
        f"environment variable KERAS_BACKEND={other} before the first import of keras, with 'lipdp[{other}]'."
    )


def __dir__() -> list[str]:
    return __all__


_deprecated.install()
_register.install()
if "keras" in sys.modules:
    _register.register()
