"""Per-example gradients: their norms and weighted sums from one forward and one backward pass."""

from lipdp.gradients.record import Record
from lipdp.gradients.skeleton import capture, supported

__all__ = ["Record", "capture", "supported"]
