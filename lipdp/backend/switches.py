"""Switches of compilers under which numbers are not those of float32 any more."""

import os
import re
from pathlib import Path

_FAST_MATH = re.compile(r"""--xla_cpu_enable_fast_math(=(["']?)(true|1)\2)?""", re.IGNORECASE)


def refuse_fast_math() -> None:
    """Refuses XLA's fast math: it drops tests for NaN and infinity, which leave rows out, and reorders sums."""
    flags = os.environ.get("XLA_FLAGS", "")
    if flags and not flags.lstrip().startswith("-"):  # which XLA takes as the path of a file of flags
        flags = Path(flags).read_text(encoding="utf-8") if Path(flags).is_file() else ""
    for flag in flags.split():
        if _FAST_MATH.fullmatch(flag):
            raise ValueError(
                "Norms, bounds and noise need float32 as it is defined, with NaN and infinity. Received: "
                f"XLA_FLAGS with {flag}. Leave that flag out before the first import of keras."
            )
