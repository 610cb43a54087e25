"""One rule per type of layer; importing this registers them."""

from lipdp.gradients.rules import (
    convolution,
    dense,
    embedding,
    hub,
    loops,
    normalization,
    recurrent,
    separable,
    transposed,
)
from lipdp.gradients.rules.fallback import fallback

__all__ = ["convolution", "dense", "embedding", "fallback", "hub", "loops", "normalization"]
__all__ += ["recurrent", "separable", "transposed"]
