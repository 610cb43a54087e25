"""Scalar bound propagation over Keras graphs."""

import lipdp.bounds.affine  # noqa: F401  (fills the registry)
import lipdp.bounds.deel  # noqa: F401
import lipdp.bounds.stock  # noqa: F401
from lipdp.bounds.check import check as check
from lipdp.bounds.propagate import Bounds as Bounds
from lipdp.bounds.propagate import LayerBounds as LayerBounds
from lipdp.bounds.propagate import propagate as propagate
from lipdp.bounds.registry import Answers as Answers
from lipdp.bounds.registry import answers as answers
from lipdp.bounds.registry import parameter_free as parameter_free
from lipdp.bounds.registry import register as register
