"""Importance sampling: examples are proposed in proportion to what their gradients were, and kept by what they are."""

import numpy as np
from keras import ops

from lipdp import checks

# Computed norms are rounded; a ratio of two of them must not exceed 1 for that.
_ROUND_DOWN = 1.0 - 1e-6
# Shorter gradients count as zero, far above where float32 loses its digits.
_SMALLEST_NORM = np.float32(1e-20)


class Proposal:
    """Two-stage rejection sampling of one epoch: with certainty the inclusion probability is `b |g_i| / norm_sum`.

    First stage: example i is proposed with probability `b bound_i / norm_sum`. Second stage: its gradient is clipped
    to `limit_i = min(bound_i, clip_norm)`, and it is kept with probability `|g_i| / bound_i`. What a kept example
    contributes to the gradient is `norm_sum / (N0 b) * g_i / |g_i|`, of a length that is the same for everyone.

    Args:
        bounds: `(N,)`, at least 0: bounds on the norms of the clipped gradients, at most `norm_sum / batch_size`.
        norm_sum: the released sum of norms, above `batch_size * clip_norm`.
        batch_size: expected batch size b at full norms, an int of at least 1.
        clip_norm: clipping norm C, above 0.

    Raises:
        ValueError: when an argument is out of range, and in particular when a bound exceeds `norm_sum / batch_size`:
            its probability would have to be cut at 1, and the example would then contribute more than is accounted.

    **Guarantee.**
    Conditions: `bounds`, and the norms given to `kept`, are functions of the example itself, of released values and
    of independent randomness.
    Bound: whatever the bounds are, an example is included with probability at most `b clip_norm / norm_sum`,
    independently of the others; this is what `accounting.dpis.ImportanceFilter.update` charges.
    Not covered: which examples were proposed, and how many: both stay secret.
    Source: the two stages multiply to `b |g_i| / norm_sum`; bounds are capped so that the first one is at most 1
    (Wei et al. 2022 cut it at 1 instead, which breaks the product).

    Example:
        >>> proposal = Proposal.capped(
        ...     np.array([0.2, 1.0, 0.0]), growth=5.0, floor=0.1, norm_sum=2.0, batch_size=1, clip_norm=1.0
        ... )
        >>> proposal.bounds.tolist(), proposal.probabilities.tolist()
        ([1.0, 1.0, 0.5], [0.5, 0.5, 0.25])
        >>> proposal.inclusion(np.array([0.5, 3.0, 0.0])).tolist()
        [0.25, 0.5, 0.0]
    """

    def __init__(self, bounds: np.ndarray, *, norm_sum: float, batch_size: int, clip_norm: float):
        self.norm_sum = checks.positive("norm_sum", norm_sum)
        self.batch_size = checks.integer("batch_size", batch_size, minimum=1)
        self.clip_norm = checks.positive("clip_norm", clip_norm)
        if self.norm_sum <= self.batch_size * self.clip_norm:
            raise ValueError(
                "The sum of norms is not above batch_size * clip_norm, so probabilities would exceed 1. Received: "
                f"norm_sum={norm_sum!r}, batch_size={batch_size!r}, clip_norm={clip_norm!r}. Pass the value that "
                "ImportanceFilter.begin_epoch left in norm_sum."
            )
        self.bounds = np.array(bounds, "float64")
        largest = self.bounds.max(initial=0.0)
        if self.bounds.ndim != 1 or not (self.bounds >= 0.0).all():
            raise ValueError(
                f"Bounds must be one number of at least 0 per example. Received: an array of shape "
                f"{self.bounds.shape} with smallest entry {np.min(self.bounds, initial=np.inf)!r}."
            )
        if largest > self.cap:
            raise ValueError(
                "A bound is above norm_sum / batch_size. Its probability would be cut at 1, and the example would "
                f"contribute more than is accounted. Received: a bound of {largest:.6g}, norm_sum / "
                f"batch_size = {self.cap:.6g}. Use Proposal.capped."
            )
        # As long as the data, and used more than once in an update: computed once.
        self._probabilities = np.minimum(self.batch_size * self.bounds / self.norm_sum, 1.0)
        self._limits = self.bounds if largest <= self.clip_norm else np.minimum(self.bounds, self.clip_norm)

    @classmethod
    def capped(
        cls, norms: np.ndarray, *, growth: float, floor: float, norm_sum: float, batch_size: int, clip_norm: float
    ) -> "Proposal":
        """Returns the proposal with bounds `min(growth * max(norms, floor), clip_norm)`.

        No bound above `clip_norm` is needed, as no clipped gradient is longer; inclusion probabilities are those of
        the looser cap `norm_sum / batch_size`, with fewer gradients to compute.

        Args:
            norms: `(N,)`, at least 0: clipped gradient norms as they were last seen.
            growth: the factor k, at least 1, by which a norm may have grown since: about as many times the
                gradients of DP-SGD are computed, or fewer.
            floor: gL, above 0: an example of smaller norm is proposed as if it had this one.
            norm_sum, batch_size, clip_norm: see the class.
        """
        growth, floor = checks.positive("growth", growth), checks.positive("floor", floor)
        if growth < 1.0:
            raise ValueError(f"growth is below 1. Received: growth={growth!r}. Pass a factor such as 5.")
        bounds = np.maximum(norms, floor, dtype="float64")
        bounds *= growth
        np.minimum(bounds, clip_norm, out=bounds)
        return cls(bounds, norm_sum=norm_sum, batch_size=batch_size, clip_norm=clip_norm)

    @property
    def cap(self) -> float:
        """Returns the largest bound that a probability of at most 1 allows."""
        return self.norm_sum / self.batch_size

    @property
    def probabilities(self) -> np.ndarray:
        """Returns the probability of each example to be proposed."""
        return self._probabilities

    @property
    def limits(self) -> np.ndarray:
        """Returns the norm to which each example's gradient is clipped."""
        return self._limits

    def inclusion(self, norms: np.ndarray) -> np.ndarray:
        """Returns the exact probability of each example to be proposed and kept, given its gradient norm."""
        return self.batch_size * np.minimum(norms, self.limits) / self.norm_sum

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the indices of the proposed examples: all of them, however many."""
        return np.flatnonzero(rng.random(len(self.bounds)) < self._probabilities)

    def thresholds(self, rng: np.random.Generator, indices: np.ndarray) -> np.ndarray:
        """Returns one float32 per proposed example, drawn before its gradient is known: see `kept`."""
        # In (0, 1], and rounded up: no probability gets larger, and a gradient of norm 0 is never kept.
        thresholds = (1.0 - rng.random(len(indices))) * self.bounds[indices] / _ROUND_DOWN
        return np.maximum(np.nextafter(thresholds.astype("float32"), np.float32(np.inf)), _SMALLEST_NORM)


def kept(norms: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Returns which proposed examples are kept.

    Args:
        norms: norms of the gradients, each clipped to its limit.
        thresholds: of `Proposal.thresholds`, infinite for padding.

    Returns:
        A boolean tensor, true with probability `norm / bound`, less at most 2e-6 of it for rounding.
    """
    return ops.greater_equal(norms, thresholds)
