"""What the commands write to standard output, and where they may write files."""

import argparse
import json
import math
import pathlib
import sys
from typing import Any


def write_json(values: dict) -> None:
    """Writes one JSON object; infinite numbers become null, which JSON has no word for."""
    sys.stdout.write(json.dumps(finite(values), indent=2, allow_nan=False) + "\n")


def write(*lines: str) -> None:
    """Writes lines of text."""
    sys.stdout.write("\n".join(lines) + "\n")


def check_place(target: pathlib.Path, overwrite: bool) -> None:
    """Refuses a file that exists, unless it may be replaced, or whose folder does not."""
    if target.exists() and (target.is_dir() or not overwrite):
        raise FileExistsError(f"The output already exists. Received: --output {target}. Pass another, or --overwrite.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder of the output does not exist. Received: --output {target}. Create it.")


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
