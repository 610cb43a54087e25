"""Per-example gradients: their norms and weighted sums from one forward and one backward pass."""

from lipdp.gradients.capture import capture
from lipdp.gradients.microbatch import at_most, default_microbatch
from lipdp.gradients.record import Record
from lipdp.gradients.supported import low_precision, refuse_untrainable, supported

__all__ = ["Record", "at_most", "capture", "default_microbatch", "low_precision", "refuse_untrainable", "supported"]
