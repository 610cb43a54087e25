"""Per-example gradients: their norms and weighted sums from one forward and one backward pass."""

from lipdp.gradients.capture import capture
from lipdp.gradients.microbatch import at_most, default_microbatch, of_one_size
from lipdp.gradients.record import Record
from lipdp.gradients.refused import refuse_untrainable
from lipdp.gradients.supported import supported
from lipdp.gradients.tried import once

__all__ = [
    "Record",
    "at_most",
    "capture",
    "default_microbatch",
    "of_one_size",
    "once",
    "refuse_untrainable",
    "supported",
]
