"""Audits: lower bounds on epsilon by experiment, beside the stated upper bound."""

from lipdp.audit.networks import Canaries
from lipdp.audit.one_run import one_run
from lipdp.audit.result import Audit
from lipdp.audit.retrained import final_model, lira
from lipdp.audit.white_box import white_box
from lipdp.audit.worst_case import WorstCase, worst_case

__all__ = ["Audit", "Canaries", "WorstCase", "final_model", "lira", "one_run", "white_box", "worst_case"]
