"""Six tables of the anomaly-detection benchmark ADBench (Han et al. 2022): numbers, and 1 for an anomaly."""

import dataclasses
import functools
import pathlib

from lipdp.data import files, sources
from lipdp.data.dataset import Dataset

_URL = "https://github.com/Minqi824/ADBench/raw/main/adbench/datasets/Classical/{number}_{name}.npz"


@dataclasses.dataclass(frozen=True)
class Table:
    """What is public about one table.

    Args:
        number: number in the names of ADBench's files.
        rows: number of rows.
        columns: number of columns.
        range: range for `scale`, the same for every column. The publisher brought the columns to [0, 1], or to
            mean 0 and variance 1; the second kind is cut off at 3 standard deviations.
    """

    number: int
    rows: int
    columns: int
    range: tuple[float, float]


TABLES = {
    "ALOI": Table(1, 49534, 27, (0.0, 1.0)),
    "campaign": Table(5, 41188, 62, (0.0, 1.0)),
    "celeba": Table(8, 202599, 39, (0.0, 1.0)),
    "donors": Table(11, 619326, 10, (0.0, 1.0)),
    "magic.gamma": Table(22, 19020, 10, (-3.0, 3.0)),
    "yeast": Table(47, 1484, 8, (-3.0, 3.0)),
}


def read(name: str) -> Dataset:
    """Returns one table as it is in its file; nothing is held out.

    Args:
        name: a key of `TABLES`.

    Returns:
        A `Dataset` with classes 0 (normal) and 1 (anomaly).

    Raises:
        FileNotFoundError: the folder in LIPDP_DATA has no `adbench/<name>.npz`.
        ConnectionError: the download failed.
        ValueError: the file is another table.

    **Guarantee.**
    Conditions: none.
    Bound: the rows are those of the file.
    Not covered: what the publisher did before: some tables were standardized with their own mean and variance, which
    no epsilon accounts for.
    """
    table = TABLES[name]
    data = files.read_npz(_path(name), f"adbench/{name}")
    if data.x_train.shape != (table.rows, table.columns):
        raise ValueError(
            f"{name}.npz is not ADBench's table. Received: shape {data.x_train.shape}, expected "
            f"{(table.rows, table.columns)}. Load a table of your own by its path."
        )
    return data


def ranges(data: Dataset) -> dict[str, tuple[float, float]]:
    """Returns public ranges of a table's columns, for `scale`.

    Args:
        data: a table that `load("adbench/...")` returned.

    Example:
        >>> import numpy as np
        >>> toy = Dataset(np.zeros((1, 2)), np.zeros(1), None, None, (0, 1), "adbench/yeast", ("0", "1"))
        >>> ranges(toy)
        {'0': (-3.0, 3.0), '1': (-3.0, 3.0)}
    """
    return dict.fromkeys(data.columns, TABLES[data.name.removeprefix("adbench/")].range)


LOADERS = {f"adbench/{name}": functools.partial(read, name) for name in TABLES}


def _path(name: str) -> pathlib.Path:
    path = sources.local(f"adbench/{name}.npz", "there (X, y), or unset the variable to download it")
    if path is not None:
        return path
    import keras

    url = _URL.format(number=TABLES[name].number, name=name)
    with sources.download(f"adbench/{name}"):
        return pathlib.Path(keras.utils.get_file(f"{name}.npz", url, cache_subdir="datasets/adbench"))
