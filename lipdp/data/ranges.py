"""Public ranges of a table's columns: the only scaling that costs no privacy."""

import dataclasses
import pathlib

from lipdp import checks
from lipdp.data.column import Column
from lipdp.data.dataset import Dataset
from lipdp.data.table import Table
from lipdp.privacy import files


def read_ranges(path: str) -> dict[str, tuple[float, float]]:
    """Returns the ranges in a JSON file such as `{"age": [0, 120], "height_cm": [0, 250]}`.

    Args:
        path: path of the file.

    Returns:
        A dictionary from column name to `(low, high)`.

    Raises:
        ValueError: when the file is not such a file.
        FileNotFoundError: when there is no such file.
    """
    file = pathlib.Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"There is no such file of ranges. Received: {path!r}.")
    try:
        content = files.parse(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f'{path} must map columns to ranges, as in {{"age": [0, 120]}}. Received: {content!r}.')
    return {name: checks.as_range(pair, f" For column {name!r} in {path}.") for name, pair in content.items()}


def scale(data: Dataset, ranges: dict[str, tuple[float, float]]) -> Dataset:
    """Returns a table whose named columns are mapped from [low, high] to [-1, 1]; values outside are clipped.

    Args:
        data: a table.
        ranges: public constants: known from the meaning of a column, not computed from these rows.

    Returns:
        A `Dataset`.

    Raises:
        ValueError: when `data` holds images or a column does not exist.

    **Guarantee.**
    Conditions: the ranges were chosen without the data.
    Bound: every row is changed by itself, so the scaling costs no epsilon.
    Not covered: ranges taken from the data, such as its minimum and maximum.

    Example:
        >>> import numpy as np
        >>> x, y = np.array([[30.0], [90.0]], "float32"), np.array([0, 1])
        >>> toy = Dataset(x, y, None, None, (0, 1), "toy", ("age",))
        >>> scale(toy, {"age": (0.0, 120.0)}).x_train.tolist()
        [[-0.5], [0.5]]
    """
    if not data.is_table:
        raise ValueError(f"Ranges are for the columns of a table. Received: images in {data.name!r}. Leave them out.")
    if data.table is not None and any(c.kind == "category" or c.range is not None for c in data.table.columns):
        raise ValueError(
            f"{data.name!r} is scaled already, by its description. Received: ranges of {', '.join(ranges)}. Change the "
            "description."
        )
    unknown = [name for name in ranges if name not in data.columns]
    if unknown:
        raise ValueError(
            f"{data.name!r} has no column of that name. Received: {unknown[0]!r} in the ranges. Its columns: "
            f"{', '.join(data.columns[:20])}."
        )
    columns = tuple(Column(name=n, kind="number", range=ranges.get(n), missing=False) for n in data.columns)
    ranged = Table(columns=columns)

    def apply(x):
        return None if x is None else ranged.encode(dict(zip(data.columns, x.T, strict=True)))

    ignored = () if data.table is None else tuple(c for c in data.table.columns if not c.features)
    table = None if data.table is None else dataclasses.replace(data.table, columns=(*columns, *ignored))
    return dataclasses.replace(data, x_train=apply(data.x_train), x_test=apply(data.x_test), table=table)
