"""Privacy accounting: epsilon of what was released, and the noise that a budget asks for."""

from lipdp._deprecated import renamed_attributes
from lipdp.accounting import autodp as autodp
from lipdp.accounting import dpis as dpis
from lipdp.accounting import pld as pld
from lipdp.accounting import rdp as rdp
from lipdp.accounting.accountant import Accountant as Accountant
from lipdp.accounting.accountant import get_accountant as get_accountant
from lipdp.accounting.accountant import names as names
from lipdp.accounting.accountant import register as register
from lipdp.accounting.calibration import calibrate as calibrate
from lipdp.accounting.calibration import max_updates as max_updates
from lipdp.accounting.composition import compose as compose
from lipdp.accounting.composition import describe as describe
from lipdp.accounting.composition import epsilon as epsilon
from lipdp.accounting.composition import guarantee as guarantee
from lipdp.accounting.filter import Filter as Filter
from lipdp.accounting.filter import plan_filter as plan_filter
from lipdp.accounting.group import group_epsilon as group_epsilon
from lipdp.accounting.group import vadhan_epsilon as vadhan_epsilon
from lipdp.accounting.mechanism import Mechanism as Mechanism
from lipdp.accounting.mechanism import common_relation as common_relation
from lipdp.accounting.planning import solve as solve
from lipdp.accounting.rounding import round_up as round_up
from lipdp.accounting.schemes import RELATIONS as RELATIONS
from lipdp.accounting.schemes import SAMPLERS as SAMPLERS
from lipdp.accounting.schemes import SCHEMES as SCHEMES
from lipdp.accounting.schemes import Sampling as Sampling
from lipdp.accounting.selection import search_epsilon as search_epsilon

__getattr__ = renamed_attributes(__name__, check_name="get_accountant")
