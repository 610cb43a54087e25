"""One call of `fit`: everything is checked first, then charged, then executed."""

from lipdp.training.driver import Driver as Driver
from lipdp.training.request import FitRequest as FitRequest
from lipdp.training.resuming import checkpointed as checkpointed
from lipdp.training.saving import Saving as Saving
from lipdp.training.session import prepare as prepare
from lipdp.training.state import Run as Run
