"""Dominating pairs: what one release reveals at most, as the curve delta(epsilon) of two distributions.

A curve leaves out its trivial part, 1 - e^epsilon where epsilon < 0; mixtures and maxima of curves with that part
left out are again such curves.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import special, stats

from lipdp.accounting import allocation, gaussian, mixture
from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.schemes import ADD_OR_REMOVE, REPLACE


@dataclasses.dataclass(frozen=True)
class SampledGaussian:
    """(1 - q) N(0, z^2) + q N(1, z^2) and N(0, z^2); with `add` in the other order."""

    q: float
    z: float
    add: bool

    def curve(self, epsilon: np.ndarray) -> np.ndarray:
        return gaussian.hockey_stick(epsilon, sampling_probability=self.q, noise_multiplier=self.z, add=self.add)

    def losses(self, tail: float = gaussian.TAIL) -> tuple[float, float]:
        return gaussian.loss_range(self.q, self.z, self.add, tail)


@dataclasses.dataclass(frozen=True)
class GaussianMixture:
    """The mixture of N(c_i, z^2) with weights p_i (the rest at 0) and N(0, z^2); with `add` in the other order."""

    shifts: tuple[float, ...]
    weights: tuple[float, ...]
    z: float
    add: bool

    def curve(self, epsilon: np.ndarray) -> np.ndarray:
        return mixture.hockey_stick(epsilon, self.shifts, self.weights, self.z, self.add)

    def losses(self, tail: float = gaussian.TAIL) -> tuple[float, float]:
        return mixture.loss_range(self.shifts, self.weights, self.z, self.add, tail)


@dataclasses.dataclass(frozen=True)
class SampledReplacement:
    """(1 - q) N(0, z^2) + q N(1, z^2) and (1 - q) N(0, z^2) + q N(-1, z^2)."""

    q: float
    z: float

    def curve(self, epsilon: np.ndarray) -> np.ndarray:
        q, z = self.q, self.z
        e = np.abs(epsilon)
        # With u = e^(x / z^2) and g = e^(-1 / (2 z^2)): the loss is e where q g u^2 - (1 - q)(E - 1) u - E q g = 0.
        log_g = math.log(q) - 0.5 / (z * z)
        with np.errstate(divide="ignore"):
            log_b = (math.log1p(-q) if q < 1.0 else -math.inf) + e + np.log(-np.expm1(-e))
        half = log_b - math.log(2.0)
        # log of the positive root, without overflow.
        log_u = np.logaddexp(half, 0.5 * np.logaddexp(2.0 * half, e + 2.0 * log_g)) - log_g
        x = log_u * z * z
        # S = {outcome > x}: P(S) - Q(S) - (E - 1) Q(S), the first difference without the common part.
        gained = q * gaussian.between(x - 1.0, x + 1.0, z)
        log_tail = special.log_ndtr(-x / z)
        log_q = special.log_ndtr(-(x + 1.0) / z) + math.log(q)
        if q < 1.0:
            log_q = np.logaddexp(log_tail + math.log1p(-q), log_q)
        with np.errstate(divide="ignore"):
            value = np.maximum(gained - np.exp(e + np.log(-np.expm1(-e)) + log_q), 0.0)
        # Symmetric pair: H(-e) = e^-e H(e) + 1 - e^-e, whose last part is the trivial one.
        return np.where(epsilon < 0.0, np.exp(-e), 1.0) * value

    def losses(self, tail: float = gaussian.TAIL) -> tuple[float, float]:
        far = 1.0 + tail * self.z
        up = np.logaddexp(_log(1.0 - self.q), math.log(self.q) + (2.0 * far - 1.0) / (2.0 * self.z**2))
        down = np.logaddexp(_log(1.0 - self.q), math.log(self.q) - (2.0 * far + 1.0) / (2.0 * self.z**2))
        return -float(up - down), float(up - down)


@dataclasses.dataclass(frozen=True)
class Largest:
    """The pointwise largest of several curves: it dominates each of them at every epsilon."""

    pairs: tuple

    def curve(self, epsilon: np.ndarray) -> np.ndarray:
        return functools.reduce(np.maximum, (pair.curve(epsilon) for pair in self.pairs))

    def losses(self, tail: float = gaussian.TAIL) -> tuple[float, float]:
        ranges = [pair.losses(tail) for pair in self.pairs]
        return min(low for low, _ in ranges), max(high for _, high in ranges)


@dataclasses.dataclass(frozen=True)
class Revealed:
    """Pair i with probability weight i, and it is seen which one."""

    weights: tuple[float, ...]
    pairs: tuple

    def curve(self, epsilon: np.ndarray) -> np.ndarray:
        return sum(w * pair.curve(epsilon) for w, pair in zip(self.weights, self.pairs, strict=True))

    losses = Largest.losses


def directions(mechanism: Mechanism, dropped: float = 0.0) -> tuple:
    """Returns `(remove, add, lost)`: the dominating pairs of one release and the tail mass that was cut off.

    Args:
        mechanism: the release; its count does not matter.
        dropped: how much of the upper tail of a group's distribution may be left out.

    Returns:
        Two pairs and a float: with r the lost mass and T releases, delta(epsilon) under "remove" grows by at most
        T r, and epsilon under "add" by at most -T log(1 - r).

    **Guarantee.**
    Conditions: those of `Mechanism`.
    Bound: hockey-stick curves above those of the release, at every epsilon, for neighbors (D, D') in "remove" and
    (D', D) in "add".

    - Poisson: Zhu, Dong and Wang 2022; groups: Ganesh 2024, theorem 3.1. Zeroing and removing an example are the
      same there, since it never takes another one's place.
    - Fixed size under replacement: given who else is drawn, the release is (1-q)A + qB against (1-q)A + qB', and
      A, B, B' are Gaussians at pairwise distance of at most 2. By advanced joint convexity (Balle, Barthe and
      Gaboardi 2018, theorem 2), for e^epsilon >= 1 its curve is q H_a(B || (1-b)A + bB'), at most
      q H_a(N(2) || N(0)), the "remove" curve of the sampled pair at twice the distance; for e^epsilon < 1 the
      same holds with the two data sets exchanged, hence the "add" curve. The larger of the two curves therefore
      dominates in both directions. Add or remove: Ganesh 2024, theorem 3.3, also for groups.
    - Truncated Poisson: let s others be drawn. If s is below the capacity nothing is dropped: the Poisson pair.
      Otherwise, with (conditional) probability r, the example is in and one of the others is not: as for fixed
      size. A replacement pair at distance 2 dominates that curve (its second distribution is further away).
      Which case it is does not depend on the example, so it may be revealed.
    - Random allocation: a whole epoch is one release, see `allocation.RandomAllocation`; `dropped` is what it may pay.
      With less noise than the grid serves (above all where epochs are short), and where an epoch is one update, it is
      taken for what it is at most: one Gaussian release, as a mixture costs no more than its parts (joint convexity).
    - Shuffled and fixed order are not sampled: `Mechanism.shift`.

    Cutting the tail (P[X > m] = r, renormalized): the mixture moves by at most r in total variation, and it is at
    least (1 - r) times the renormalized one.
    """
    q, z = mechanism.sampling_probability, mechanism.noise_multiplier
    if mechanism.shift is not None:
        pair = SampledGaussian(1.0, z / mechanism.shift, False)
        return pair, pair, 0.0
    if mechanism.sampling.scheme.allocates:
        if z < allocation.SMALLEST_NOISE:
            pair = SampledGaussian(1.0, z, False)
            return pair, pair, 0.0
        cut = max(100.0 * dropped, 1e-18) if dropped else 1e-14
        updates = mechanism.sampling.updates_per_epoch
        found = (allocation.RandomAllocation(updates, z, add, cut) for add in (False, True))
        return *(pair if pair.resolved else SampledGaussian(1.0, z, False) for pair in found), 0.0
    if mechanism.capacity is not None:
        return *_truncated(mechanism), 0.0
    if mechanism.sampler == "fixed_size" and mechanism.relation != ADD_OR_REMOVE:
        pair = Largest((SampledGaussian(q, z / 2.0, False), SampledGaussian(q, z / 2.0, True)))
        return pair, pair, 0.0
    if mechanism.sampler == "fixed_size":
        shifts, weights, lost = mixture.fixed_group(
            mechanism.group_size, mechanism.sampling.draw_size, mechanism.num_examples, dropped
        )
    elif mechanism.relation == REPLACE:
        pair = SampledReplacement(q, z)
        return pair, pair, 0.0
    elif mechanism.group_size == 1:
        return SampledGaussian(q, z, False), SampledGaussian(q, z, True), 0.0
    else:
        shifts, weights, lost = mixture.poisson_group(mechanism.group_size, q, dropped)
    if len(shifts) == 1:  # the closed form
        return *(SampledGaussian(weights[0], z / shifts[0], add) for add in (False, True)), lost
    return *(GaussianMixture(shifts, weights, z, add) for add in (False, True)), lost


def _truncated(mechanism: Mechanism) -> tuple:
    q, z, size = mechanism.sampling_probability, mechanism.noise_multiplier, mechanism.num_examples
    if mechanism.relation == REPLACE:
        plain = (SampledReplacement(q, z),) * 2
    else:
        plain = (SampledGaussian(q, z, False), SampledGaussian(q, z, True))
    overflow = float(stats.binom.sf(mechanism.capacity - 1, size - 1, q))
    if overflow == 0.0:
        return plain
    both = float(stats.binom.sf(mechanism.capacity, size, q)) * mechanism.capacity / size
    kept = min(q, both / overflow) if both > 0.0 else q  # given the overflow; at most q in any case
    crowded = SampledReplacement(kept, z / 2.0)
    return tuple(Revealed((1.0 - overflow, overflow), (pair, crowded)) for pair in plain)


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
