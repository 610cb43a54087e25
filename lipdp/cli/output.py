"""What the commands write to standard output."""

import argparse
import json
import math
import sys
from typing import Any


def write_json(values: dict) -> None:
    """Writes one JSON object; infinite numbers become null, which JSON has no word for."""
    sys.stdout.write(json.dumps(finite(values), indent=2, allow_nan=False) + "\n")


def write(*lines: str) -> None:
    """Writes lines of text."""
    sys.stdout.write("\n".join(lines) + "\n")


def verbosity(options: argparse.Namespace) -> int:
    """Returns `verbose` of `lipdp.features`: what was asked for, a bar on a terminal, else a line now and then."""
    if options.json:
        return 0
    asked = getattr(options, "verbose", None)
    return asked if asked is not None else 1 if sys.stdout.isatty() else 2


def finite(value: Any) -> Any:
    """Returns JSON-serializable `value` with None in place of infinity and NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
