"""Scalar bound propagation over Keras graphs."""

import lipdp.bounds.affine  # noqa: F401  (fills the registry)
import lipdp.bounds.deel  # noqa: F401
import lipdp.bounds.stock  # noqa: F401
from lipdp.bounds.check import check
from lipdp.bounds.propagate import Bounds, LayerBounds, propagate
from lipdp.bounds.registry import Answers, answers, parameter_free, register

__all__ = ["Answers", "Bounds", "LayerBounds", "answers", "check", "parameter_free", "propagate", "register"]
