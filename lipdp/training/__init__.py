"""One call of `fit`: everything is checked first, then charged, then executed."""

from lipdp.training.callbacks import as_list as as_list
from lipdp.training.callbacks import refuse_private_monitors as refuse_private_monitors
from lipdp.training.driver import Driver as Driver
from lipdp.training.exclusive import exclusive as exclusive
from lipdp.training.preprocessing import FromTask as FromTask
from lipdp.training.preprocessing import of_task as of_task
from lipdp.training.processes import together as together
from lipdp.training.request import FitRequest as FitRequest
from lipdp.training.resuming import checkpointed as checkpointed
from lipdp.training.saving import Saving as Saving
from lipdp.training.session import expected_batch_size as expected_batch_size
from lipdp.training.session import prepare as prepare
from lipdp.training.state import Run as Run
from lipdp.training.validation import check_callbacks as check_callbacks
