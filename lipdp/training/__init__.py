"""One call of `fit`: everything is checked first, then charged, then executed."""

from lipdp.training.callbacks import as_list as as_list
from lipdp.training.driver import Driver as Driver
from lipdp.training.fitting import Fitting as Fitting
from lipdp.training.preprocessing import FromTask as FromTask
from lipdp.training.preprocessing import of_task as of_task
from lipdp.training.request import FitRequest as FitRequest
from lipdp.training.saving import Saving as Saving
from lipdp.training.session import prepare as prepare
from lipdp.training.state import Run as Run
