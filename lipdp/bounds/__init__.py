"""Scalar bound propagation over Keras graphs."""

import lipdp.bounds.affine  # noqa: F401  (fills the registry)
import lipdp.bounds.deel  # noqa: F401
import lipdp.bounds.stock  # noqa: F401
from lipdp._deprecated import renamed_attributes
from lipdp.bounds.check import check as check
from lipdp.bounds.propagate import Bounds as Bounds
from lipdp.bounds.propagate import LayerBounds as LayerBounds
from lipdp.bounds.propagate import propagate as propagate
from lipdp.bounds.registry import BoundRules as BoundRules
from lipdp.bounds.registry import parameter_free as parameter_free
from lipdp.bounds.registry import register as register
from lipdp.bounds.registry import rules as rules

__getattr__ = renamed_attributes(__name__, Answers="BoundRules", answers="rules")
