"""One call of `fit`: everything is checked first, then charged, then executed."""

from lipdp.training.session import Session as Session
from lipdp.training.state import Run as Run
