"""Mixtures of Gaussians: the pair N(0, z^2) and sum_i p_i N(c_i, z^2), which dominates a release for groups."""

import math

import numpy as np
from scipy import special, stats

from lipdp.accounting.gaussian import TAIL, between, log_odds

_BLOCK = 1 << 15  # grid points per block of the Newton iteration: the work arrays stay in the cache


def hockey_stick(epsilon: np.ndarray, shifts: tuple, weights: tuple, noise_multiplier: float, add: bool) -> np.ndarray:
    """Returns delta(epsilon) of one release, less 1 - e^epsilon where epsilon < 0.

    Args:
        epsilon: the grid, an array of any finite floats.
        shifts: c_i, above 0.
        weights: p_i, above 0, their sum at most 1; the rest is the weight of the shift 0.
        noise_multiplier: z, above 0.
        add: True when the first data set lacks the group, False when the second does.

    Returns:
        An array like `epsilon`, at least 0.

    **Guarantee.**
    Conditions: as in Ganesh 2024.
    Bound: sup over S of P(S) - e^epsilon Q(S), up to rounding; the root only chooses S, and its error enters in
    second order.
    Not covered: replacing examples.
    Source: Neyman and Pearson: S is where the privacy loss exceeds epsilon, a half-line because the loss grows.

    Example:
        >>> curve = hockey_stick(np.array([1.0]), (1.0,), (1.0,), 1.0, add=False)
        >>> round(float(curve[0]), 6)
        0.126937
    """
    z, total = noise_multiplier, min(sum(weights), 1.0)
    loss = -epsilon if add else epsilon
    inside = loss > math.log1p(-total) if total < 1.0 else np.ones(loss.shape, dtype=bool)
    curve = np.zeros(epsilon.shape)
    e = epsilon[inside]
    # Outcome x under N(0, z^2), where log(mixture / N(0, z^2)) equals the loss.
    x = _outcome(math.log(total) + log_odds(loss[inside], total), shifts, weights, z)
    sampled = sum(p * between(x - c, x, z) for c, p in zip(shifts, weights, strict=True))
    if add:
        sampled = np.exp(e) * sampled
    side = x if add else -x
    # delta = sampled - (e^epsilon - 1) F(side); less the trivial part, F(side) becomes -F(-side).
    with np.errstate(divide="ignore"):
        log_expm1 = np.maximum(e, 0.0) + np.log(-np.expm1(-np.abs(e)))
    rest = np.exp(log_expm1 + special.log_ndtr(np.where(e < 0.0, -side, side) / z))
    curve[inside] = np.maximum(sampled - np.where(e == 0.0, 0.0, rest), 0.0)
    return curve


def _outcome(target: np.ndarray, shifts: tuple, weights: tuple, z: float) -> np.ndarray:
    """Returns x with log sum_i p_i exp(c_i x / z^2 - c_i^2 / (2 z^2)) = target.

    The left side is convex and grows; the smallest root of a single term is above the root, and from there
    Newton's iteration comes down to it without overshooting.
    """
    c = np.asarray(shifts)[:, None] / (z * z)
    a = np.log(np.asarray(weights))[:, None] - 0.5 * c * np.asarray(shifts)[:, None]
    root = np.empty(target.shape)
    for start in range(0, len(target), _BLOCK):
        t = target[start : start + _BLOCK]
        x = np.min((t - a) / c, axis=0)
        for _ in range(100):
            exponent = a + c * x
            top = exponent.max(axis=0)
            parts = np.exp(exponent - top)
            total = parts.sum(axis=0)
            change = (top + np.log(total) - t) * total / (c * parts).sum(axis=0)
            x = x - change
            if np.all(np.abs(change) < 1e-9 * z + 1e-13 * np.abs(x)):
                break
        root[start : start + _BLOCK] = x
    return root


def loss_range(
    shifts: tuple, weights: tuple, noise_multiplier: float, add: bool, tail: float = TAIL
) -> tuple[float, float]:
    """Returns the smallest and the largest privacy loss of outcomes within `tail` standard deviations."""
    z, total = noise_multiplier, min(sum(weights), 1.0)
    c, p = np.asarray(shifts), np.asarray(weights)

    def log_ratio(x):
        parts = np.log(p) + (c * x - 0.5 * c * c) / (z * z)
        return float(np.logaddexp(special.logsumexp(parts), math.log1p(-total) if total < 1.0 else -math.inf))

    near, far = log_ratio(-tail * z), log_ratio(float(c.max()) + tail * z)
    return (-far, -near) if add else (near, far)


def poisson_group(group_size: int, sampling_probability: float, dropped: float) -> tuple[tuple, tuple, float]:
    """Returns shifts, weights and the dropped mass of a group under Poisson sampling.

    Args:
        group_size: k, at least 1.
        sampling_probability: q, in (0, 1].
        dropped: how much of the upper tail may be cut off, at least 0.

    Returns:
        `(shifts, weights, dropped)`: c = 1, 2, ... and Binomial(k, q), renormalized.

    **Guarantee.**
    Conditions: Poisson sampling; the k examples contribute at most 1 each.
    Bound: theorem 3.1 of Ganesh 2024, when the caller pays for the dropped mass, see `dominating_pairs`.
    Not covered: other samplers.
    Source: Ganesh 2024, "Tight group-level DP guarantees for DP-SGD with sampling".
    """
    if sampling_probability == 1.0:
        return (float(group_size),), (1.0,), 0.0
    # What is cut off needs no memory: groups may be large. Beyond the cut, so that `_cut` sees that something is.
    enough = stats.binom.isf(dropped, group_size, sampling_probability) + 2 if dropped > 0.0 else group_size
    counts = np.arange(min(group_size, int(enough)) + 1)
    tail = stats.binom.sf(counts, group_size, sampling_probability)
    return _cut(stats.binom.pmf(counts, group_size, sampling_probability), tail, dropped, 1.0)


def fixed_group(group_size: int, batch_size: int, num_examples: int, dropped: float) -> tuple[tuple, tuple, float]:
    """Returns shifts, weights and the dropped mass of a group under uniform batches of constant size.

    Args:
        group_size: k, at least 1.
        batch_size: B, at least 1.
        num_examples: number of examples with the group, at least B + k.
        dropped: how much of the upper tail may be cut off, at least 0.

    Returns:
        `(shifts, weights, dropped)`: c = 2, 4, ... and Hypergeometric(num_examples, k, B), renormalized.

    **Guarantee.**
    Conditions: uniform batches of B without replacement; contributions of at most 1; the k examples are added
    to, or removed from, data of at least num_examples - k.
    Bound: theorem 3.3 of Ganesh 2024, when the caller pays for the dropped mass.
    Not covered: replacing k examples.
    Source: Ganesh 2024.
    """
    counts = np.arange(min(group_size, batch_size) + 1)
    law = stats.hypergeom(num_examples, group_size, batch_size)
    return _cut(law.pmf(counts), law.sf(counts), dropped, 2.0)


def _cut(mass, tail, dropped, unit) -> tuple[tuple, tuple, float]:
    """Keeps 0 .. m with P[X > m] at most `dropped`, and at least one shift above 0."""
    last = max(1, int(np.argmax(tail <= dropped)) if dropped > 0.0 else len(mass) - 1)
    lost = float(tail[last]) if last < len(mass) - 1 else 0.0
    weights = mass[1 : last + 1] / (1.0 - lost)
    used = weights > 0.0  # what underflows is below 1e-300
    shifts = unit * np.arange(1, last + 1)
    return tuple(map(float, shifts[used])), tuple(map(float, weights[used])), lost
