"""Training strategies: from a batch to a gradient of bounded sensitivity."""

from lipdp.strategies.clipless import Calibration as Calibration
from lipdp.strategies.clipless import Clipless as Clipless
from lipdp.strategies.clipless import allocate as allocate

_BY_NAME = {"clipless": Clipless}


def get(identifier):
    """A strategy from its name or itself."""
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier]()
    if isinstance(identifier, tuple(_BY_NAME.values())):
        return identifier
    raise ValueError(
        f"Unknown strategy. Received: strategy={identifier!r}. Use one of {sorted(_BY_NAME)} or an object of "
        "lipdp.strategies."
    )
