"""Faults put in on purpose, each in one place that privacy depends on, and what runs the tests that must see them.

`make mutants` puts in one fault at a time and prints those that no test sees. A line that privacy depends on is
protected when a fault in it is listed here and killed.
"""

from tests.mutations.fault import Fault
from tests.mutations.lists import FAULTS

__all__ = ["FAULTS", "Fault"]
