"""Random allocation: each example takes part in exactly one update of each pass, which one is drawn uniformly."""

import dataclasses
import functools
import math

import numpy as np
from scipy import fft, special

from lipdp.accounting import gaussian

# Grid steps per standard deviation of one ratio, at best and at worst; which it is follows from the points at hand.
_FINE, _COARSE = 100.0, 15.0
_POINTS, _MOST, _ROUGH = 1 << 16, 1 << 18, 1 << 13
SMALLEST_NOISE = 0.42  # below, amplification is little, and the grid too coarse to see it
_CUT = 1e-14  # probability that is paid where the caller does not say
_UP = 1.0 + 1e-12


@dataclasses.dataclass(frozen=True)
class RandomAllocation:
    """The mixture of N(e_i, z^2 I) over i = 1..t, and N(0, z^2 I), in t dimensions; with `add` in the other order.

    Args:
        updates: t, the updates of a pass, at least 2.
        z: noise multiplier, above 0.
        add: direction, as in `gaussian.hockey_stick`.
        cut: probability, above 0, that may be paid as a total loss of privacy.

    **Guarantee.**
    Conditions: in each pass every example is in one update, drawn uniformly and independently of all else; adding or
    removing (or zeroing out) one example; Gaussian noise.
    Bound: the curves are above those of a pass. A pass is dominated by this pair, also where later updates follow from
    earlier ones, as Gaussians of sensitivity 1 dominate each update (Feldman & Shenfeld 2025). Let
    `S = (Y_1 + ... + Y_t) / t` be the ratio of the two densities under the second one; its terms are independent,
    log-normal, of mean 1. Then `delta(e) = E (S - e^e)_+` and, the other way round, `E (1 - e^e S)_+`: both are
    means of convex functions of a sum. Splitting the mass of each Y between neighboring points of a grid, so that the
    mean stays, is a mean-preserving spread: it makes neither smaller, for one term or for the sum of t.
    A term below the grid, which has probability `cut / t`, is raised to it, and paid. One above its end m is cut to m.
    That makes `(1 - e^e S)_+` no smaller. What `(S - e^e)_+` loses is, with one such term, a call on Y_1 at
    `max(m, t e^e - R)`, R the sum of the others, which is rounded up to few levels; with two of them at most
    `(t - 1) P(Y > m)`, which is paid. Sums are made by a Fourier transform, whose rounding is bounded and added to
    every mass, as in `fft_composition`; so is what lies outside of its window, by Chernoff.
    Not covered: rounding within the distribution of one term, some 1e-16 of each probability.
    Source: Feldman & Shenfeld 2025 (arXiv 2502.08202) and 2026 (arXiv 2602.17284) for the pair; connect the dots is the
    same spread in the ratio (Doroshenko et al. 2022).

    Example:
        >>> import numpy as np
        >>> pair = RandomAllocation(100, 1.0, add=False)
        >>> bool(0.0 < pair.curve(np.array([0.5]))[0] < 0.02)
        True
    """

    updates: int
    z: float
    add: bool
    cut: float = _CUT

    def curve(self, epsilon: np.ndarray) -> np.ndarray:
        """Returns delta(epsilon), less 1 - e^epsilon where epsilon < 0."""
        above, below = self._sides(np.exp(epsilon))
        # At 0 the two agree but for what was added for rounding; a jump there would cost more than either.
        first, second = self._sides(np.ones(1))
        below = np.minimum(below + np.exp(epsilon) * np.maximum(first - second, 0.0), above + np.expm1(epsilon))
        return np.where(epsilon < 0.0, np.maximum(below, 0.0), above) + _law(self.updates, self.z, self.cut).paid

    def _sides(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the curve at e^epsilon for epsilons of at least 0, and for those below."""
        law = _law(self.updates, self.z, self.cut)
        if self.add:
            # (1 - e^e S)_+ = e^e (e^-e - S)_+, and for e < 0, less 1 - e^e, e^e (S - e^-e)_+.
            return ratio * law.put(1.0 / ratio), ratio * (law.call(1.0 / ratio) + law.missing)
        return law.call(ratio) + law.single(ratio), law.put(ratio)

    @property
    def resolved(self) -> bool:
        """Returns whether the grid is fine enough for losses as large as they may be."""
        return float(self.curve(np.array([self.losses()[1]]))[0]) <= 1e3 * self.cut

    def losses(self, tail: float = gaussian.TAIL) -> tuple[float, float]:
        """Returns the smallest and the largest loss that are told apart from those beyond."""
        law = _law(self.updates, self.z, self.cut)
        # Of one term alone, as far out as its share of the sum still matters.
        far = max(
            law.high, math.exp(min((0.5 / self.z - special.ndtri(self.cut)) / self.z, 600.0)) / self.updates + 1.0
        )
        low, high = math.log(law.low), math.log(far)
        return (-math.log(law.high), -low) if self.add else (low, high)


class _Law:
    """The sum of t cut ratios, over t, on a grid: what calls and puts on it cost.

    Attributes:
        low, high: Between these it is known by its masses.
        paid: Probability outside, or of two terms above the grid.
        missing: By how much its mean is below 1.
    """

    def __init__(self, updates: int, z: float, cut: float):
        self._z, self._t = z, updates
        tail = -float(special.ndtri(cut / updates))
        body = math.sqrt(_body_variance(z))
        self._m = largest = math.exp((tail - 0.5 / z) / z)
        self._base = base = math.exp((-tail - 0.5 / z) / z)
        # The window of the sum from few points: a part of a grid is a larger spread, so it holds on the whole as well.
        rough = (largest - base) / _ROUGH
        window = _window(_masses(z, base, rough, _ROUGH), base, rough, updates, cut)
        wide = window[1] - window[0]
        parts = math.ceil(rough / max(body / _FINE, min(wide / _POINTS, body / _COARSE), wide / _MOST))
        self.missing = float(_call(z, np.array(largest)))
        self._sum(_masses(z, base, rough / parts, _ROUGH * parts), rough / parts, window, cut)

    def _sum(self, masses: np.ndarray, step: float, window: tuple, cut: float) -> None:
        t = self._t
        low, high, theta_up, theta_down = window
        first, last = (math.floor(max(edge - t * self._base, 0.0) / step) for edge in (low, high + step))
        size = fft.next_fast_len(last - first + 1, real=True)
        best = np.full(last - first + 1, np.inf)
        for theta in (0.0, 0.5 * theta_up, theta_up, -0.5 * theta_down):
            best = np.minimum(best, _power(masses, t, theta * step, size, first, len(best)))
        self._nodes = self._base + (first + np.arange(len(best))) * (step / t)
        gap = step / t
        above, below = np.cumsum(best[::-1])[::-1], np.cumsum(best)
        # What lies below the window counts as paid, where it matters.
        self._calls = np.append(np.cumsum(above[:0:-1])[::-1], 0.0) * gap * _UP
        self._puts = np.insert(np.cumsum(below[:-1]), 0, 0.0) * gap * _UP
        self.low, self.high = max(float(self._nodes[0]), gap), float(self._nodes[-1])
        # Above the window, the levels of the others, and a term below the grid; then two terms above it.
        self.paid = cut * 4.0 + t * float(special.ndtr(-(0.5 / self._z + self._z * math.log(self._m))))
        values = self._base + np.arange(len(masses)) * step
        self._levels = self._others(math.sqrt(t * float((masses * (values - 1.0) ** 2).sum())))

    def _others(self, deviation: float) -> list[tuple[float, float]]:
        """Returns numbers that the sum of the other terms is rounded up to, and how often, at least.

        Its spread is larger than the sum in the convex order only, so P(sum > r) is bounded by calls on it:
        P(sum > r) <= E (sum - (r - d))_+ / d for all d > 0.
        """
        t, top = self._t, self._t * self.high
        levels = t + deviation * np.concatenate((np.arange(0.0, 4.0, 0.5), np.geomspace(4.0, 1e6, 20)))
        levels = np.append(levels[levels < top], top)
        strikes = np.maximum((levels - deviation * np.geomspace(0.2, 5.0, 5)[:, None]) / t, self.low)
        gaps = levels - t * strikes  # of what is below the smallest sum no call is known
        beyond = np.divide(t * self.call(strikes), gaps, out=np.ones_like(gaps), where=gaps > 0.0)
        beyond = np.minimum(beyond, 1.0).min(axis=0)
        beyond = np.append(np.minimum.accumulate(beyond)[:-1], 0.0)
        return list(zip(levels.tolist(), (-np.diff(beyond, prepend=1.0)).tolist(), strict=True))

    def call(self, strike: np.ndarray) -> np.ndarray:
        """Returns the mean of (S - strike)_+, at strikes above the smallest S."""
        return np.interp(strike, self._nodes, self._calls, right=0.0)

    def put(self, strike: np.ndarray) -> np.ndarray:
        """Returns the mean of (strike - S)_+, at strikes below the largest S."""
        return np.interp(strike, self._nodes, self._puts, left=0.0)

    def single(self, strike: np.ndarray) -> np.ndarray:
        """Returns what one term above the grid adds to a call."""
        found = np.zeros(np.shape(strike))
        for level, share in self._levels:
            found += share * _call(self._z, np.maximum(self._m, self._t * strike - level))
        return found * _UP


@functools.lru_cache(maxsize=32)
def _law(updates: int, z: float, cut: float) -> _Law:
    return _Law(updates, z, cut)


def _window(masses: np.ndarray, base: float, step: float, count: int, cut: float) -> tuple:
    """Returns between which sums all but `cut` of the mass (above: of the mean) is, by Chernoff, and the tilts."""
    used = np.flatnonzero(masses)
    value, log = base + used * step, np.log(masses[used])

    def cumulant(theta):
        exponent = theta * value + log
        top = float(np.max(exponent))
        weight = np.exp(exponent - top)
        total = float(weight.sum())
        return top + math.log(total), float((weight * value).sum()) / total

    scale = 1.0 / math.sqrt(count * float((masses[used] * (value - 1.0) ** 2).sum()))
    up = [(theta, *cumulant(theta)) for theta in np.geomspace(min(scale, 5.0 / value[-1]), 30.0 * scale, 24)]
    down = [(theta, cumulant(-theta)[0]) for theta in np.geomspace(scale, 300.0 * scale, 24)]
    # E[sum; sum > high] / count <= K'(theta) e^(count K - theta high); P(sum < low) <= e^(count K(-theta) + theta low).
    bits = -math.log(cut)
    high, theta_up = min(((count * k + math.log(max(mean, 1.0)) + bits) / theta, theta) for theta, k, mean in up)
    low, theta_down = max((-(count * k + bits) / theta, theta) for theta, k in down)
    return low, high, theta_up, theta_down


def _power(masses: np.ndarray, count: int, tilt: float, size: int, first: int, length: int) -> np.ndarray:
    """Returns upper bounds on the masses of the sum of `count` terms, at grid points from `first` on."""
    places = np.arange(len(masses))
    with np.errstate(divide="ignore"):
        log = np.log(masses) + tilt * places
    top = float(np.max(log))
    cumulant = top + math.log(float(np.exp(log - top).sum()))
    tilted = np.bincount(places % size, np.exp(log - cumulant), size)
    unit = 8.0 * math.log2(2.0 * size) * 2.0**-52
    transform = fft.rfft(tilted)
    above = np.abs(transform) + unit
    log_above = count * np.log(above)
    seen = log_above > -100.0
    product = np.power(transform, count, out=np.zeros_like(transform), where=seen)
    share = 2.0 * count * unit / above
    error = 2.0 / size * float(np.sum(np.exp(log_above) * share + unit * np.abs(product))) + math.exp(-100.0)
    found = np.roll(fft.irfft(product, size), -(first % size))[:length]
    # Back from the tilt; the rounding of the cumulant comes `count` times.
    exponent = count * cumulant * (1.0 + 1e-15) + count * unit - tilt * (first + np.arange(length))
    return np.exp(np.minimum(np.log(np.maximum(found, 0.0) + error) + exponent, 0.0))


def _masses(z: float, base: float, step: float, last: int) -> np.ndarray:
    """Returns the masses at base, base + step, ... of a spread of one ratio, cut at both ends; the mean is kept."""
    edges = base + np.arange(last + 1) * step
    at = z * np.log(edges) + 0.5 / z  # the ratio is e^(x / z - 1 / (2 z^2)) of a standard normal x
    plain, moved = (gaussian.between(x[:-1], x[1:], 1.0) for x in (at, at - 1.0 / z))
    upper = np.clip((moved - edges[:-1] * plain) / step, 0.0, plain)
    found = np.append(plain - upper, special.ndtr(-at[-1]))
    found[1:] += upper
    found[0] += special.ndtr(at[0])
    return found


def _call(z: float, strike: np.ndarray) -> np.ndarray:
    """Returns the mean of (Y - strike)_+ of one ratio, with a margin for rounding."""
    at = z * np.log(strike) + 0.5 / z
    first = special.ndtr(1.0 / z - at)
    return np.maximum(first - strike * special.ndtr(-at), 0.0) + 1e-13 * first


def _body_variance(z: float) -> float:
    """Returns the variance of one ratio without what is above two standard deviations, roughly: it chooses the grid."""
    mean, square = special.ndtr(2.0 - 1.0 / z), math.exp(min(1.0 / (z * z), 700.0)) * special.ndtr(2.0 - 2.0 / z)
    return float(max(square - mean * mean, 0.25 * math.expm1(min(1.0 / (z * z), 1.0))))
