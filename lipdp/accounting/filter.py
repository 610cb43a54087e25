"""The privacy filter: one RDP order and one budget fixed in advance, noise and length chosen on the way."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lipdp import checks
from lipdp.accounting import accountant, rdp
from lipdp.accounting.mechanism import Mechanism

_FILTER, _ADAPTIVE = "filter", "rdp_order"
_ROUNDING = 1e-9


class Filter(accountant.Accountant):
    """RDP of one order, which later releases may be chosen against.

    Args:
        order: alpha, above 1, fixed before the first release.
        budget: epsilon that must never be exceeded, above 0, fixed before the first release; None only with
            `covers_adaptive`, for releases that were all fixed in advance.
        delta: in (0, 1), fixed with the budget.
        covers_adaptive: whether the releases themselves set noise and sampling of later ones, as in importance
            sampling (DPIS). Its own filter charges them, Poisson samples of one example; that nobody chose order and
            budget in view of results is then assumed, not enforced. Such a filter is called "rdp_order:...".

    Raises:
        ValueError: when an argument is out of range, or the budget is below what the conversion to delta costs.

    **Guarantee.**
    Conditions: those of `Mechanism`; order, budget and delta do not depend on the data; each release is charged
    before it is made, and the sum of the RDP at this order, for one and the same unit (example or person, and
    relation), stays within the budget on every path.
    Bound: `guarantee`, whatever of noise, batch size and length was chosen in view of earlier releases; for releases
    that were fixed in advance also `epsilon`.
    Not covered: choosing order or budget afterwards; larger groups, which may have cost more on other paths.
    Source: Feldman and Zrnic 2021; for one order: let V(b) be the largest E_Q[product of likelihood ratios^a] with
    an RDP budget of b left; E[r^a e^((a-1)(b - rho))] <= e^((a-1) b), and induct backwards.

    Example:
        >>> spent = Filter(5.3, 4.0, 1e-5).epsilon((Mechanism(0.01, 1.0, 100),), 1e-5)
        >>> 2.0 < spent < Filter(5.3, 4.0, 1e-5).guarantee((Mechanism(0.01, 1.0, 100),), 1e-5)
        True
    """

    def __init__(
        self, order: float, budget: float | None = None, delta: float | None = None, *, covers_adaptive: bool = False
    ):
        self.order, self.covers_adaptive = check_order(order), covers_adaptive
        settings = [self.order]
        if not covers_adaptive or budget is not None or delta is not None:
            self.budget, self.delta = checks.positive("budget", budget), checks.delta(delta)
            settings += [self.budget, self.delta]
            if self.rdp_budget <= 0.0:
                raise ValueError(
                    f"The budget does not pay for the conversion to delta at this order. Received: order={order!r}, "
                    f"budget={budget!r}, delta={delta!r}. Pass a larger order, budget or delta."
                )
        self.name = ":".join([_ADAPTIVE if covers_adaptive else _FILTER, *map(repr, settings)])

    @property
    def rdp_budget(self) -> float:
        """Returns the RDP that may be spent in all, at the order."""
        return self.budget - conversion(self.order, self.delta)

    def rdp(self, mechanisms: tuple[Mechanism, ...]) -> float:
        """Returns the RDP of all `mechanisms` at the order; ValueError for what it does not charge."""
        for mechanism in mechanisms:
            if not (mechanism.plain if self.covers_adaptive else rdp.supports(mechanism)):
                raise accountant.unsupported(_ADAPTIVE if self.covers_adaptive else _FILTER, mechanism)
        return sum(mechanism.count * rdp.at_order(rdp.kind(mechanism), self.order) for mechanism in mechanisms)

    def epsilon(self, mechanisms: tuple[Mechanism, ...], delta: float, rough: bool = False) -> float:
        """Returns what is spent so far."""
        spent = self.rdp(mechanisms)
        return max(0.0, spent + conversion(self.order, delta)) if spent else 0.0

    def guarantee(self, mechanisms: tuple[Mechanism, ...], delta: float) -> float:
        """Returns the budget, which holds when choices were made on the way; infinity where more was spent."""
        spent = self.rdp(mechanisms)
        if self.budget is None or not mechanisms:
            return self.epsilon(mechanisms, delta)
        # Beyond rounding, nothing kept this path within the budget, so other paths may have cost anything.
        if spent > self.rdp_budget + _ROUNDING * self.budget:
            return math.inf
        budget = self.budget if delta == self.delta else self.rdp_budget + conversion(self.order, delta)
        return max(0.0, budget, spent + conversion(self.order, delta))

    def describe(self, mechanisms: tuple[Mechanism, ...], delta: float) -> dict[str, Any]:
        """Returns name, library, version and settings."""
        fixed = f"the order {self.order:g}" + ("" if self.budget is None else f" and the budget {self.budget:g}")
        name, settings = _FILTER, f"RDP at {fixed}, both fixed in advance"
        if self.covers_adaptive:
            name = self.name
            settings = f"RDP at {fixed}, assumed to be fixed in advance: noise may follow from earlier releases"
        return accountant.get_accountant("rdp").describe(mechanisms, delta) | {"name": name, "settings": settings}


class SharedFilter(Filter):
    """Filters whose budgets count in full, together with releases beside them that they did not charge.

    Args:
        filters: each filter, with everything that it has charged; at least one.

    **Guarantee.**
    Conditions: those of `Filter` for each; what was released beside them was fixed in advance; all is for one unit.
    Bound: `epsilon` and `guarantee` of everything released, what the filters charged included. RDP adds up at the
    lowest of the orders, where a budget at a higher one holds as well. Each budget counts in full, since on another
    path it may be used up; infinity where one was exceeded.
    Not covered: releases without a filter that were chosen in view of results; larger groups.
    Source: as `Filter`; that Renyi divergence grows with the order: van Erven and Harremoes 2014, theorem 3.

    Example:
        >>> charged, more = Mechanism(0.01, 1.0, 100), Mechanism(0.01, 1.0, 10)
        >>> shared = SharedFilter([(Filter(5.3, 4.0, 1e-5), (charged,))])
        >>> round(shared.epsilon((charged,), 1e-5), 9), shared.epsilon((charged, more), 1e-5) > 4.0
        (4.0, True)
    """

    shared = True

    def __init__(self, filters: Sequence[tuple[Filter, tuple[Mechanism, ...]]]):
        first = min((one for one, _ in filters), key=lambda one: one.order)
        super().__init__(first.order, first.budget, first.delta)
        self._reserve = sum(self._unused(one, charged) for one, charged in filters)
        self._count = len(filters)
        self.name = ":".join(["shared", repr(self._reserve), *sorted(one.name for one, _ in filters)])

    def _unused(self, one: Filter, charged: tuple[Mechanism, ...]) -> float:
        """Returns what a filter has not used up, at the order of all: its whole budget is to be counted."""
        if math.isinf(one.guarantee(charged, one.delta)):
            return math.inf
        return max(0.0, one.rdp_budget - self.rdp(charged))

    def rdp(self, mechanisms: tuple[Mechanism, ...]) -> float:
        """Returns the RDP of all `mechanisms` at the order; ValueError for what is not known there."""
        for mechanism in mechanisms:
            if not rdp.supports(mechanism):
                raise ValueError(
                    "A filter keeps a budget for some of these weights, and at the order of the filter nothing is "
                    f"known of other releases such as these. Received: sampler={mechanism.sampler!r}, "
                    f"relation={mechanism.relation!r}, group_size={mechanism.group_size}. Sample as the filter's model "
                    "did, or train weights of your own."
                )
        return super().rdp(mechanisms)

    def epsilon(self, mechanisms: tuple[Mechanism, ...], delta: float, rough: bool = False) -> float:
        """Returns epsilon of everything, with the whole budgets."""
        return max(0.0, self.rdp(mechanisms) + self._reserve + conversion(self.order, delta))

    def guarantee(self, mechanisms: tuple[Mechanism, ...], delta: float) -> float:
        """Returns the same."""
        return self.epsilon(mechanisms, delta)

    def describe(self, mechanisms: tuple[Mechanism, ...], delta: float) -> dict[str, Any]:
        """Returns name, library, version and settings."""
        whole = "the whole budget of a filter" if self._count == 1 else f"the whole budgets of {self._count} filters"
        settings = f"RDP at the order {self.order:g}, fixed in advance: {whole}, and what was released beside"
        return super().describe(mechanisms, delta) | {"settings": settings}


def check_order(order: float) -> float:
    """Returns an RDP order as a float above 1, up to a million; ValueError otherwise."""
    if not 1.0 < checks.real("order", order) <= 1e6:
        raise ValueError(
            f"`order` must be above 1, and at most 1e6. Received: order={order!r}. Pass an RDP order such as 5 or 20."
        )
    return float(order)


def conversion(order: float, delta: float) -> float:
    """Returns what turning RDP of `order` into (epsilon, delta) adds to it.

    Example:
        >>> round(4.0 - conversion(5.3, 1e-5), 5)
        1.91951
    """
    log_delta = math.log(1.0 / delta)
    return (log_delta + (order - 1.0) * math.log1p(-1.0 / order) - math.log(order)) / (order - 1.0)


def plan_filter(*, epsilon: float, delta: float, mechanism: Mechanism) -> Filter:
    """Returns the filter whose order suits a planned run.

    Args:
        epsilon: the budget, above 0.
        delta: in (0, 1).
        mechanism: the run as it is planned; its noise only matters for the choice of the order, not for soundness.

    Returns:
        A `Filter` to pass as `accountant`; files hold its `name`.

    Raises:
        ValueError: when an argument is out of range, or no order fits the budget.

    Example:
        >>> plan_filter(epsilon=4.0, delta=1e-5, mechanism=Mechanism(256 / 60000, 0.8066, 9360)).name
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
    return Filter(float(orders[np.argmin(share)]), budget, delta)


accountant.register_with_settings(_FILTER, lambda *settings: Filter(*map(float, settings)))
accountant.register_with_settings(_ADAPTIVE, lambda *settings: Filter(*map(float, settings), covers_adaptive=True))
