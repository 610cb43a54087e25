"""Privacy accounting: epsilon of what was released, and the noise that a budget asks for."""

from lipdp._deprecated import renamed_attributes
from lipdp.accounting import autodp, dpis, pld, rdp
from lipdp.accounting.accountant import Accountant, get_accountant, names, register
from lipdp.accounting.calibration import calibrate, max_updates
from lipdp.accounting.composition import compose, describe, epsilon, guarantee
from lipdp.accounting.filter import Filter, plan_filter
from lipdp.accounting.group import group_epsilon, vadhan_epsilon
from lipdp.accounting.mechanism import Mechanism, common_relation
from lipdp.accounting.planning import solve
from lipdp.accounting.risk import Risk, risk, risk_of
from lipdp.accounting.rounding import round_down, round_up
from lipdp.accounting.schemes import RELATIONS, SAMPLERS, SCHEMES, Sampling
from lipdp.accounting.selection import search_epsilon

__all__ = ["Accountant", "Filter", "Mechanism", "RELATIONS", "Risk", "SAMPLERS", "SCHEMES", "Sampling"]
__all__ += ["autodp", "dpis", "get_accountant", "names", "pld", "rdp", "register"]
__all__ += ["calibrate", "common_relation", "compose", "describe", "epsilon", "guarantee", "max_updates", "solve"]
__all__ += ["group_epsilon", "plan_filter", "risk", "risk_of", "round_down", "round_up", "search_epsilon"]
__all__ += ["vadhan_epsilon"]

__getattr__ = renamed_attributes(__name__, check_name="get_accountant")
