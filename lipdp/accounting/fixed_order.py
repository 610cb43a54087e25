"""RDP at one order fixed in advance, where costs add up even when noise and sampling follow from earlier releases."""

import functools
import importlib.metadata
import math

from lipdp import checks
from lipdp.accounting import accountant, rdp
from lipdp.accounting.filter import conversion
from lipdp.accounting.mechanism import REPLACE, Mechanism

FIXED_ORDER = "rdp_order"


class FixedOrderAccountant(accountant.Accountant):
    """RDP at one order and a budget, which must have been fixed before the first release.

    Args:
        order: RDP order above 1.
        budget: epsilon that no path of the run exceeds at `delta`, above 0; None for releases fixed in advance.
        delta: in (0, 1), given with the budget.

    **Guarantee.**
    Conditions: those of `Mechanism`, Poisson samples of one example; each release may depend on earlier ones, as
    long as the sum of the RDP at this order stays within the budget on every path.
    Bound: `guarantee`, at every delta in (0, 1); for releases that were fixed in advance also `epsilon`.
    Not covered: choosing order or budget in view of the releases.
    Source: `importance.ImportanceFilter`.

    Example:
        >>> from lipdp import accounting
        >>> releases = [Mechanism(256 / 60000, 0.8066, 9360)]
        >>> round(accounting.compose(releases, 1e-5, FixedOrderAccountant(5.3).name), 2)
        4.0
    """

    def __init__(self, order: float, budget: float | None = None, delta: float | None = None):
        self.order = check_order(order)
        self.name = f"{FIXED_ORDER}:{self.order!r}"
        self.budget = self.delta = None
        if budget is not None or delta is not None:
            self.budget, self.delta = checks.positive("budget", budget), checks.delta(delta)
            self.name += f":{self.budget!r}:{self.delta!r}"

    @classmethod
    def from_settings(cls, settings: str) -> "FixedOrderAccountant":
        """Returns the accountant whose name is "rdp_order:" followed by `settings`."""
        try:
            return cls(*map(float, settings.split(":")))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The name of the accountant holds no order. Received: {FIXED_ORDER}:{settings}. Write it as "
                f'"{FIXED_ORDER}:5.3", or with epsilon and delta of a budget as "{FIXED_ORDER}:5.3:2.0:1e-05".'
            ) from error

    def epsilon(self, mechanisms, delta, rough=False):
        """Returns what is used up; see the class."""
        spent = total(mechanisms, self.order)
        return max(0.0, spent + conversion(self.order, delta)) if mechanisms else 0.0

    def guarantee(self, mechanisms, delta):
        """Returns the budget, or what is used up if that is more: other paths may have cost all of it."""
        spent = self.epsilon(mechanisms, delta)
        if self.budget is None or not mechanisms:
            return spent
        at_delta = self.budget
        if delta != self.delta:
            at_delta += conversion(self.order, delta) - conversion(self.order, self.delta)
        return max(spent, at_delta)

    def describe(self, mechanisms, delta):
        """Returns name, library, version and settings."""
        version = importlib.metadata.version("dp-accounting")
        fixed = f"the order {self.order:g}" + ("" if self.budget is None else f" and the budget {self.budget:g}")
        settings = f"RDP at {fixed}, assumed to be fixed in advance: noise may follow from earlier releases"
        return {"name": self.name, "library": "dp_accounting", "version": version, "settings": settings}


accountant.register_with_settings(FIXED_ORDER, functools.lru_cache(FixedOrderAccountant.from_settings))


def check_order(order: float) -> float:
    """Returns an RDP order as a float above 1; ValueError otherwise."""
    value = checks.real("order", order)
    if value <= 1.0:
        raise ValueError(f"order must be above 1. Received: order={order!r}. Pass an RDP order such as 5 or 20.")
    return value


def total(mechanisms, order: float) -> float:
    """Returns the RDP of all `mechanisms` together at `order`.

    Raises:
        ValueError: for other samplers, relations and groups, which are not charged as Poisson samples of one example.
    """
    for mechanism in mechanisms:
        if mechanism.sampler != "poisson" or mechanism.relation == REPLACE or mechanism.group_size != 1:
            raise accountant.unsupported(FIXED_ORDER, mechanism)
    return sum(m.count * single(m.sampling_probability, m.noise_multiplier, order) for m in mechanisms)


@functools.lru_cache(maxsize=65536)
def single(probability: float, noise: float, order: float) -> float:
    """Returns the RDP at `order` of one Gaussian of noise multiplier `noise` on a Poisson sample."""
    if noise < rdp.SMALLEST_NOISE:
        return math.inf
    return float(rdp.single(Mechanism(probability, noise, 0), (order,))[0])
