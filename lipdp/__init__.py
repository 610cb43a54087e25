"""Differentially private, robustness-certified neural networks in Keras 3, through Lipschitz layers."""

import os as _os
import sys as _sys

from lipdp import _deprecated

_deprecated.install()

# Keras reads a model file only when the classes in it are registered, so `import lipdp` brings them all. The
# `lipdp` command imports what a sub-command needs instead: most of them answer sooner than Keras loads.
if _os.path.basename(_sys.argv[0] if _sys.argv else "") != "lipdp":
    from lipdp import accounting as accounting
    from lipdp import bounds as bounds
    from lipdp import certify as certify
    from lipdp import diffusion as diffusion
    from lipdp import layers as layers
    from lipdp import losses as losses
    from lipdp import models as models
    from lipdp import norms as norms
    from lipdp import sampling as sampling
    from lipdp import strategies as strategies
    from lipdp.exporting import export as export
    from lipdp.model import DP_Model as DP_Model
    from lipdp.model import DP_Sequential as DP_Sequential

__version__ = "0.1.0"

_PACKAGES = (
    "accounting",
    "bounds",
    "certify",
    "diffusion",
    "layers",
    "losses",
    "models",
    "norms",
    "sampling",
    "strategies",
)


def __getattr__(name: str):
    """Imports what the command left out, should somebody ask for it after all."""
    import importlib

    if name in ("DP_Model", "DP_Sequential"):
        return getattr(importlib.import_module("lipdp.model"), name)
    if name == "export":
        return importlib.import_module("lipdp.exporting").export
    if name in _PACKAGES:
        return importlib.import_module(f"lipdp.{name}")
    raise AttributeError(f"module 'lipdp' has no attribute {name!r}")
