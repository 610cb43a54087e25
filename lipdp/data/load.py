"""One door to all data sets."""

import difflib
import pathlib
from collections.abc import Callable

from lipdp.data import adbench, files, standard, table
from lipdp.data.dataset import Dataset

_LOADERS: dict[str, Callable[[], Dataset]] = {**standard.LOADERS, **adbench.LOADERS}
NAMES = tuple(_LOADERS)


def load(source: str, label: str | None = None) -> Dataset:
    """Returns a data set by name, or from the user's own file.

    Args:
        source: "digits", "mnist", "fashion_mnist", "cifar10", a table of `adbench.TABLES` such as "adbench/donors",
            or the path of a `.npz` or `.csv` file.
        label: name of the label column of a `.csv` file; default: its last column.

    Returns:
        A `Dataset`. The named image sets and `.npz` files with `x_test` have a test part; others have none
        until `Dataset.held_out` makes one.

    Raises:
        ValueError: when the name is unknown or the content cannot be used; says what and where.
        FileNotFoundError: when there is no such file.

    Example:
        >>> load("digits").x_train.shape
        (1437, 8, 8, 1)
    """
    source = str(source)
    if source in _LOADERS:
        _refuse_label(source, label)
        return _LOADERS[source]()
    path = pathlib.Path(source)
    if path.suffix not in (".npz", ".csv"):
        close = difflib.get_close_matches(source, NAMES, 1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Pass one of {', '.join(NAMES)}, or a .npz or .csv file."
        raise ValueError(f"The data set is not known. Received: {source!r}. {hint}")
    if not path.is_file():
        raise FileNotFoundError(f"There is no such file. Received: {source!r}. Pass the path of an existing file.")
    if path.suffix == ".csv":
        return table.read_csv(path, label)
    _refuse_label(source, label)
    return files.read_npz(path)


def _refuse_label(source: str, label: str | None) -> None:
    if label is not None:
        raise ValueError(
            f"Only a .csv file has a label column to name. Received: label {label!r} for {source!r}. Leave it out."
        )
