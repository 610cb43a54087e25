"""How far float32 is off in the logits of a model, from the norms of what its layers add up."""

from collections.abc import Sequence

import keras

from lipdp.bounds.propagate import Bounds, LayerBounds
from lipdp.layers import BoundedInput
from lipdp.layers.base import times

# Relative float32 error granted to a computed logit.
LOGIT_SLACK = 1e-5
# These move entries, and round nothing.
MOVING = (keras.layers.Flatten, keras.layers.Reshape, keras.layers.Permute, keras.layers.Identity)


def scales_of(bounded: Bounds) -> list[float]:
    """Returns the norm of what each use of a layer adds up, times the constant from there to the logits, and theirs."""
    found = []
    for use in bounded.layers:
        # BoundedInput errs relative to what it returns, and that is counted where it enters the next layer.
        adds = type(use.layer) not in (BoundedInput, *MOVING)
        found.append(times(use.cotangent_bound, times(use.lipschitz, use.input_bound)) if adds else 0.0)
    return [*found, bounded.output_bound]


def rounded(uses: Sequence[LayerBounds], scales: Sequence[float]) -> float:
    """Returns what may be rounded of such norms, over `LOGIT_SLACK`: that of the worst layer, or of all together.

    Args:
        uses: Uses of layers whose number of terms is known.
        scales: A norm for each, and that of the logits.

    Example:
        >>> rounded([], [1.0, 3.0])
        3.0
    """
    added = sum((use.terms or 0) * scale for use, scale in zip(uses, scales, strict=False))
    return max(added * 2.0**-24 / LOGIT_SLACK, *scales)
