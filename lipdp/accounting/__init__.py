"""Privacy accounting: epsilon of what was released, and the noise that a budget asks for."""

from lipdp.accounting import importance as importance
from lipdp.accounting import pld as pld
from lipdp.accounting import rdp as rdp
from lipdp.accounting.accountant import check_name as check_name
from lipdp.accounting.accountant import names as names
from lipdp.accounting.calibration import calibrate as calibrate
from lipdp.accounting.calibration import max_updates as max_updates
from lipdp.accounting.composition import compose as compose
from lipdp.accounting.composition import describe as describe
from lipdp.accounting.composition import epsilon as epsilon
from lipdp.accounting.mechanism import Mechanism as Mechanism
