"""What the default recipes have reached in the benchmarks, for data sets that are public."""

import importlib.resources
import json


def reached(dataset: str, epsilon: float | None) -> dict | None:
    """Returns accuracy, its standard deviation and seeds of the default recipe at the nearest budget not above.

    Args:
        dataset: name of a data set of `lipdp.data.load`.
        epsilon: the budget; None when the noise is given instead.

    Returns:
        A dictionary with `epsilon`, `accuracy` in percent, `deviation`, `seeds` and `command`; None where no run
        is on record.

    Example:
        >>> reached("digits", 2.0) is None
        True
    """
    text = importlib.resources.files("lipdp.models").joinpath("reached.json").read_text(encoding="utf-8")
    rows = [row for row in json.loads(text) if row["dataset"] == dataset and row["epsilon"] <= (epsilon or 0.0)]
    return max(rows, key=lambda row: row["epsilon"], default=None)
