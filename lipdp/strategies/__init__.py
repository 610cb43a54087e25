"""Training strategies: from a batch to a gradient of bounded sensitivity."""

from lipdp.strategies.adaclip import AdaCliP as AdaCliP
from lipdp.strategies.augmentation import RandomShift as RandomShift
from lipdp.strategies.base import Calibration as Calibration
from lipdp.strategies.base import Strategy as Strategy
from lipdp.strategies.clipless import Clipless as Clipless
from lipdp.strategies.clipless import allocate as allocate
from lipdp.strategies.clipping import PerExample as PerExample
from lipdp.strategies.dpis import DPIS as DPIS
from lipdp.strategies.dpsgd import DPSGD as DPSGD

__all__ = [
    "AdaCliP",
    "Calibration",
    "Clipless",
    "DPIS",
    "DPSGD",
    "PerExample",
    "RandomShift",
    "Strategy",
    "allocate",
    "get",
]

_BY_NAME = {"clipless": Clipless, "dpsgd": DPSGD, "adaclip": AdaCliP, "dpis": DPIS}


def get(identifier: str | Strategy) -> Strategy:
    """Returns a strategy from its name or itself."""
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier]()
    if isinstance(identifier, Strategy):
        return identifier
    raise ValueError(
        f"Unknown strategy. Received: strategy={identifier!r}. Use one of {sorted(_BY_NAME)} or an object of "
        "lipdp.strategies."
    )
