"""The privacy filter: one Renyi order and one budget fixed in advance, noise and length chosen on the way."""

import functools
import math

import numpy as np

from lipdp import checks
from lipdp.accounting import accountant, rdp
from lipdp.accounting.mechanism import Mechanism

_NAME = "filter"
_ROUNDING = 1e-9


class Filter(accountant.Accountant):
    """RDP of one order, which later releases may be chosen against.

    Args:
        order: alpha, above 1, fixed before the first release.
        budget: epsilon that must never be exceeded, above 0, fixed before the first release.
        delta: in (0, 1), fixed as well.

    Raises:
        ValueError: when an argument is out of range, or the budget is below what the conversion to delta costs.

    **Guarantee.**
    Conditions: those of `Mechanism`; order, budget and delta do not depend on the data; each release is charged
    before it is made, and the sum of the RDP at this order, for one and the same unit (example or person, and
    relation), stays within the budget on every path.
    Bound: `guarantee`, whatever of noise, batch size and length was chosen in view of earlier releases.
    Not covered: choosing order or budget afterwards; larger groups, which may have cost more on other paths.
    Source: Feldman and Zrnic 2021; for one order: let V(b) be the largest E_Q[product of likelihood ratios^a] with
    an RDP budget of b left; E[r^a e^((a-1)(b - rho))] <= e^((a-1) b), and induct backwards.

    Example:
        >>> spent = Filter(5.3, 4.0, 1e-5).epsilon((Mechanism(0.01, 1.0, 100),), 1e-5)
        >>> 2.0 < spent < Filter(5.3, 4.0, 1e-5).guarantee((Mechanism(0.01, 1.0, 100),), 1e-5)
        True
    """

    def __init__(self, order: float, budget: float, delta: float):
        self.order = checks.real("order", order)
        self.budget, self.delta = checks.positive("budget", budget), checks.delta(delta)
        if self.order <= 1.0:
            raise ValueError(f"order is not above 1. Received: order={order!r}. Pass an order such as 8.")
        self.name = f"{_NAME}:{self.order!r}:{self.budget!r}:{self.delta!r}"
        if self.rdp_budget <= 0.0:
            raise ValueError(
                f"The budget does not pay for the conversion to delta at this order. Received: order={order!r}, "
                f"budget={budget!r}, delta={delta!r}. Pass a larger order, budget or delta."
            )

    @property
    def rdp_budget(self) -> float:
        """Returns the RDP that may be spent in all, at the order."""
        return self.budget - conversion(self.order, self.delta)

    def rdp(self, mechanisms: tuple[Mechanism, ...]) -> float:
        """Returns the RDP of all `mechanisms` at the order."""
        total = 0.0
        for mechanism in mechanisms:
            if not rdp.supports(mechanism):
                raise accountant.unsupported(_NAME, mechanism)
            if mechanism.noise_multiplier < rdp.SMALLEST_NOISE:
                return math.inf
            total += mechanism.count * float(rdp.single(rdp.kind(mechanism), (self.order,))[0])
        return total

    def epsilon(self, mechanisms, delta, rough=False):
        """Returns what is spent so far."""
        spent = self.rdp(mechanisms)
        return max(0.0, spent + conversion(self.order, delta)) if spent else 0.0

    def guarantee(self, mechanisms, delta):
        """Returns the budget, which holds when choices were made on the way; infinity where more was spent."""
        if not mechanisms:
            return 0.0
        spent = self.rdp(mechanisms)
        # Beyond rounding, nothing kept this path within the budget, so other paths may have cost anything.
        if spent > self.rdp_budget + _ROUNDING * self.budget:
            return math.inf
        return max(0.0, max(spent, self.rdp_budget) + conversion(self.order, delta))

    def describe(self, mechanisms, delta):
        """Returns name, library, version and settings."""
        facts = accountant.get("rdp").describe(mechanisms, delta)
        settings = f"RDP at the order {self.order:g} and the budget {self.budget:g}, both fixed in advance"
        return facts | {"name": _NAME, "settings": settings}


def conversion(order: float, delta: float) -> float:
    """Returns what turning RDP of `order` into (epsilon, delta) adds to it.

    Example:
        >>> round(4.0 - conversion(5.3, 1e-5), 5)
        1.91951
    """
    log_delta = math.log(1.0 / delta)
    return (log_delta + (order - 1.0) * math.log1p(-1.0 / order) - math.log(order)) / (order - 1.0)


def plan_filter(*, epsilon: float, delta: float, mechanism: Mechanism) -> str:
    """Returns the name of the filter whose order suits a planned run.

    Args:
        epsilon: the budget, above 0.
        delta: in (0, 1).
        mechanism: the run as it is planned; its noise only matters for the choice of the order, not for soundness.

    Returns:
        A string to pass as `accountant`.

    Raises:
        ValueError: when an argument is out of range, or no order fits the budget.

    Example:
        >>> plan_filter(epsilon=4.0, delta=1e-5, mechanism=Mechanism(256 / 60000, 0.8066, 9360))
        'filter:5.3:4.0:1e-05'
    """
    budget, delta = checks.positive("epsilon", epsilon), checks.delta(delta)
    orders = np.array(rdp.ORDERS)
    left = budget - np.array([conversion(order, delta) for order in orders])
    cost = rdp.single(rdp.kind(mechanism)) * mechanism.count
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where((left > 0.0) & np.isfinite(cost), cost / left, math.inf)
    if not np.isfinite(share).any():
        raise ValueError(
            f"No Renyi order fits the budget. Received: epsilon={epsilon!r}, delta={delta!r}. Pass a larger epsilon or "
            "delta."
        )
    return Filter(float(orders[np.argmin(share)]), budget, delta).name


@functools.lru_cache(maxsize=64)
def _from_name(settings: str) -> Filter:
    try:
        order, budget, delta = map(float, settings.split(":"))
    except ValueError as error:
        raise ValueError(
            f'This is not a filter. Received: accountant="{_NAME}:{settings}". Pass "{_NAME}:ORDER:EPSILON:DELTA", or '
            "what lipdp.accounting.plan_filter returns."
        ) from error
    return Filter(order, budget, delta)


accountant.register_with_settings(_NAME, _from_name)
