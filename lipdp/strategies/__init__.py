"""Training strategies: from a batch to a gradient of bounded sensitivity."""

from lipdp.strategies.adaclip import AdaCliP
from lipdp.strategies.augmentation import RandomShift
from lipdp.strategies.base import Calibration, Strategy
from lipdp.strategies.clipless import Clipless, allocate
from lipdp.strategies.clipping import PerExample
from lipdp.strategies.dpis import DPIS
from lipdp.strategies.dpsgd import DPSGD

__all__ = ["AdaCliP", "Calibration", "Clipless", "DPIS", "DPSGD", "PerExample", "RandomShift", "Strategy"]
__all__ += ["allocate", "get"]

_BY_NAME = {"clipless": Clipless, "dpsgd": DPSGD, "adaclip": AdaCliP, "dpis": DPIS}


def get(identifier: str | type[Strategy] | Strategy) -> Strategy:
    """Returns a strategy from its name in any case ("DP-SGD" is "dpsgd"), its class or itself."""
    if isinstance(identifier, Strategy):
        return identifier
    if isinstance(identifier, type) and issubclass(identifier, Strategy):
        return identifier()
    if isinstance(identifier, str):
        name = identifier.lower().replace("-", "").replace("_", "")
        if name in _BY_NAME:
            return _BY_NAME[name]()
    raise ValueError(
        f"Unknown strategy. Received: strategy={identifier!r}. Use one of {sorted(_BY_NAME)} or an object of "
        "lipdp.strategies."
    )
