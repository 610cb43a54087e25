"""Arrays of the user's own, from a `.npz` file."""

import pathlib
import zipfile

import numpy as np

from lipdp.data.dataset import Dataset, as_texts, check_few, class_ids

_KEYS = "Save x, y or x_train, y_train[, x_test, y_test] with numpy.savez."

_MISSING = ("", "nan", "nat", "<na>")  # what NumPy and pandas make of a missing text
_FEW = "Number classes from 0, by a public list of them; to predict a number: docs/howto/regression.md."
_OBJECTS = (
    "it holds Python objects, not numbers: convert x by x.astype('float32'), y by y.astype('int64') or y.astype(str)"
)


def read_npz(path: pathlib.Path, name: str | None = None) -> Dataset:
    """Returns the data set in a `.npz` file.

    Args:
        path: a file with arrays `x`, `y`, or `x_train`, `y_train` and optionally `x_test`, `y_test`; in capital letters
            as well.
        name: name of a data set that everybody knows; default: that of the file.

    Returns:
        A `Dataset`.

    Raises:
        ValueError: when the file is not such a file; see also `from_arrays`.
    """
    arrays = _arrays(path)
    return from_arrays(arrays, name or path.stem, str(path), public=name is not None)


def from_arrays(arrays: dict, name: str, source: str, public: bool = True) -> Dataset:
    """Returns a data set from named arrays.

    Args:
        arrays: `x`, `y`, or `x_train`, `y_train` and optionally `x_test`, `y_test`; `classes`, a public list of all
            labels that there may be, else they are those that occur. Images are `(N, height,
            width)` or `(N, height, width, channels)`, 8-bit (divided by 255) or floats (taken as they are); tables
            are `(N, columns)`.
        name: name of the data set.
        source: where the arrays come from, for messages.
        public: whether everybody knows the classes.

    Returns:
        A `Dataset`.

    Raises:
        ValueError: when an array is missing, not numeric, of an unknown shape, or holds NaN or infinity; when labels
            that are not public are hardly classes.

    Example:
        >>> arrays = {"x": np.full((2, 4, 4), 255, "uint8"), "y": np.array([3, 7])}
        >>> data = from_arrays(arrays, "toy", "toy")
        >>> data.x_train.shape, float(data.x_train.max()), data.classes
        ((2, 4, 4, 1), 1.0, (3, 7))
    """
    if {"x", "y"} <= set(arrays):
        train, test = ("x", "y"), ()
    elif {"x_train", "y_train"} <= set(arrays):
        train, test = ("x_train", "y_train"), ("x_test", "y_test")
    else:
        names = ", ".join(sorted(arrays)) or "none"
        raise ValueError(f"{source} lacks the arrays of a data set. Received: {names}. {_KEYS}")
    if sum(key in arrays for key in test) != len(test):
        if any(key in arrays for key in test):
            raise ValueError(f"{source} has one of x_test and y_test without the other. Save both or none.")
        test = ()
    x_train, y_train = _pair(arrays, train, source)
    listed = None if "classes" not in arrays else _listed(arrays["classes"], source)
    public = public or listed is not None
    uncharged = () if public else ("the list of classes: those that occur among the labels",)
    unscaled = x_train.ndim > 2 and np.asarray(arrays[train[0]]).dtype != np.uint8
    facts: dict = {"uncharged": uncharged, "unscaled": unscaled}
    if not test:
        ids, classes = _ids(y_train, listed, source)
        _check_classes(ids, classes, source, public)
        return Dataset(x_train, ids, None, None, classes, name, _columns(x_train), **facts)
    x_test, y_test = _pair(arrays, test, source)
    if x_test.shape[1:] != x_train.shape[1:]:
        raise ValueError(
            f"Examples for training and for testing differ in shape. Received: {x_train.shape[1:]} and "
            f"{x_test.shape[1:]} in {source}."
        )
    ids, classes = _ids(np.concatenate([y_train, y_test]), listed, source)
    _check_classes(ids, classes, source, public)
    cut = len(y_train)
    return Dataset(x_train, ids[:cut], x_test, ids[cut:], classes, name, _columns(x_train), **facts)


def _listed(classes, source: str) -> tuple:
    """Returns a public list of classes."""
    classes = as_texts(np.asarray(classes), source)
    found = tuple(value.item() for value in np.ravel(classes))
    if len(set(found)) < len(found) or len(found) < 2 or classes.dtype.kind not in "iuU":
        raise ValueError(
            f"`classes` must list two or more labels, whole numbers or texts, each once. Received: {found[:9]!r} in "
            f"{source}."
        )
    return found


def _ids(labels: np.ndarray, listed: tuple | None, source: str) -> tuple[np.ndarray, tuple]:
    """Returns class ids, and the labels that they stand for: those of a list, or those that occur."""
    if listed is None:
        return class_ids(labels, source)
    labels = as_texts(labels, source)
    flat = labels.ravel() if labels.shape[1:] in ((), (1,)) else labels
    places = {label: place for place, label in enumerate(listed)}
    if flat.ndim != 1 or any(value.item() not in places for value in np.unique(flat)):
        raise ValueError(
            f"Labels must be one of `classes` in each row. Received: others in {source}. List all that may occur."
        )
    return np.array([places[value.item()] for value in flat], "int32"), listed


def _check_classes(ids: np.ndarray, classes: tuple, source: str, public: bool) -> None:
    """Refuses missing labels, and values that are hardly classes, as of a number to predict.

    All values would be in the files of a run.
    """
    empty = [i for i, one in enumerate(classes) if isinstance(one, str) and one.strip().lower() in _MISSING]
    missing = [i for i in empty if (ids == i).any()]  # a public list may hold others than those that occur
    if missing:
        raise ValueError(
            f"{int(np.isin(ids, missing).sum())} of {len(ids)} labels in {source} are missing. Received: "
            f"{classes[missing[0]]!r}. Remove these rows."
        )
    if not public:
        numbered = classes == tuple(range(len(classes)))
        check_few(classes, len(ids), f"The array of labels in {source}", _FEW, numbered)


def read_examples(path: pathlib.Path) -> np.ndarray:
    """Returns the examples in a `.npz` file, as `from_arrays` makes them: its array `x`, else `x_test`.

    Raises:
        ValueError: when the file is not such a file, or holds neither; for a folder.
        FileNotFoundError: when there is no such file.
    """
    if path.is_dir():
        raise ValueError(f"A folder is no file of examples. Received: {str(path)!r}. Pass a .npz or a .csv file.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no such file. Received: {str(path)!r}. Pass a .npz or a .csv file.")
    arrays = _arrays(path)
    key = next((name for name in ("x", "x_test") if name in arrays), None)
    if key is None:
        raise ValueError(f"{path} lacks the examples. Received: {', '.join(arrays) or 'none'}. Save them as x.")
    x = _examples(arrays[key], key, str(path))
    if not len(x):
        raise ValueError(f"{key} holds no example. Received: an array of length 0 in {path}.")
    return x


def _arrays(path: pathlib.Path) -> dict:
    try:
        with open(path, "rb") as file:
            content = np.load(file, allow_pickle=False)
            # A .npy file of another name is one bare array.
            arrays = _named(content) if hasattr(content, "files") else None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = f"{error}"
        if "pickle" in reason:  # numpy takes whatever it does not know for pickled objects
            known = zipfile.is_zipfile(path) or path.read_bytes()[:6] == b"\x93NUMPY"
            reason = _OBJECTS if known else "it is another kind of file"
        raise ValueError(f"{path} cannot be read as a .npz file of arrays: {reason}. {_KEYS}") from error
    if arrays is None:
        raise ValueError(f"{path} is a single array, not a .npz file. {_KEYS}")
    return arrays


def _named(content: np.lib.npyio.NpzFile) -> dict:
    """Returns the arrays of a file, `X` as `x`: many write a matrix so."""
    small = [name.lower() for name in content.files]
    # Of two names that differ in their letters alone nobody knows which is meant.
    return {
        low if small.count(low) == 1 else name: content[name] for name, low in zip(content.files, small, strict=True)
    }


def _pair(arrays: dict, keys: tuple[str, str], source: str):
    x, y = _examples(arrays[keys[0]], keys[0], source), np.asarray(arrays[keys[1]])
    if y.ndim == 0 or len(x) != len(y):
        raise ValueError(
            f"{keys[0]} and {keys[1]} must have the same length. Received: {len(x)} and "
            f"{len(y) if y.ndim else 'a scalar'} in {source}."
        )
    if not len(x):
        raise ValueError(f"{keys[0]} holds no example. Received: an array of length 0 in {source}.")
    return x, y.reshape(len(y), 1) if y.ndim == 1 else y


def _examples(x, key: str, source: str) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{key} must hold numbers. Received: dtype {x.dtype} in {source}.")
    if x.ndim not in (2, 3, 4):
        raise ValueError(
            f"{key} must be a table (N, columns) or images (N, height, width[, channels]). Received: shape {x.shape} "
            f"in {source}."
        )
    is_8_bit_image = x.ndim > 2 and x.dtype == np.uint8
    given = x
    with np.errstate(over="ignore"):
        x = x.astype("float32")
    if is_8_bit_image:
        # A property of the format, hence public.
        x /= 255.0
    elif not np.isfinite(x).all():
        bad = int((~np.isfinite(x)).reshape(len(x), -1).any(axis=1).sum())
        what = "numbers that float32 cannot hold" if np.isfinite(given).all() else "NaN or infinity"
        raise ValueError(f"{key} holds {what} in {bad} of {len(x)} examples in {source}. Remove or replace them first.")
    return x[..., None] if x.ndim == 3 else x


def _columns(x) -> tuple[str, ...] | None:
    return tuple(str(i) for i in range(x.shape[1])) if x.ndim == 2 else None
