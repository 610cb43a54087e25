"""The least noise that a budget at one RDP order pays for, and the order at which a run needs the least."""

import math
from collections.abc import Callable

from scipy import optimize

from lipdp.accounting.mechanism import Mechanism
from lipdp.accounting.rdp import LARGEST_NOISE, at_order

# Orders to choose from; which one is chosen only affects the noise, not the soundness.
_ORDERS = (*(round(0.1 * i, 1) for i in range(15, 120)), *range(12, 65), *range(72, 257, 8))


def least_noise(cost: Callable[[float], float], left: float) -> float:
    """Returns the smallest noise multiplier with `cost` at most `left`, to a few 1e-6, always on the safe side.

    Args:
        cost: RDP as a function of the noise multiplier, which never grows with it.
        left: the RDP that may be spent.

    Raises:
        ValueError: when even the largest noise multiplier costs more.

    Example:
        >>> round(least_noise(lambda noise: 1.0 / noise, 4.0), 4)
        0.25
    """
    high = 1.0
    while cost(high) > left:
        if high >= LARGEST_NOISE:
            raise ValueError("No noise multiplier meets what is left of the budget. Pass a larger epsilon.")
        high *= 2.0
    low = high / 2.0
    while cost(low) <= left:
        high, low = low, low / 2.0
    step = 1e-6 * min(1.0, high)
    noise = optimize.brentq(lambda z: min(cost(z), 1e6 * left) - left, low, high, xtol=step)
    while cost(noise) > left:
        noise += 2.0 * step
    return noise


def noise_of_run(left: float, probability: float, updates: int, order: float) -> float:
    """Returns the least noise multiplier of `updates` Poisson-sampled updates; infinity where there is none."""

    def cost(noise):
        return updates * at_order(Mechanism(probability, noise, 0), order)

    return math.inf if left <= 0.0 or cost(LARGEST_NOISE) > left else least_noise(cost, left)


def best_order(left: Callable[[float], float], probability: float, updates: int) -> tuple[float, float]:
    """Returns the least noise multiplier of such a run and its order; `left` is a function of the order."""
    noise, order = min((noise_of_run(left(order), probability, updates, order), order) for order in _ORDERS)
    return noise, float(order)
