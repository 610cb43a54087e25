"""Scalar bound propagation over Keras graphs."""

import lipdp.bounds.affine  # noqa: F401  (fills the registry)
import lipdp.bounds.deel  # noqa: F401
import lipdp.bounds.stock  # noqa: F401
from lipdp._deprecated import renamed_attributes
from lipdp.bounds.check import check
from lipdp.bounds.propagate import Bounds, LayerBounds, propagate
from lipdp.bounds.registry import BoundRules, parameter_free, register, rules

__all__ = ["BoundRules", "Bounds", "LayerBounds", "check", "parameter_free", "propagate", "register", "rules"]

__getattr__ = renamed_attributes(__name__, Answers="BoundRules", answers="rules")
