"""Training data as arrays: random access is what Poisson sampling needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import tree
from numpy.typing import ArrayLike

from lipdp import checks
from lipdp.accounting.held_out import held_out
from lipdp.sampling.datasets import PAD, is_dataset, read_dataset
from lipdp.sampling.weighted import with_weights

# Types of inputs that are float32 in the step only: each of their values is one of float32.
SMALL = ("uint8", "float16")


def as_arrays(
    x: ArrayLike,
    y: ArrayLike | None,
    example_rank: int,
    arrange: Callable[[Any], Any] | None = None,
    keep_small: bool = False,
    output: str = "",
) -> tuple[Any, Any]:
    """Reads training data into memory and checks it.

    Args:
        x: Array or tree of arrays `(N, ...)`; or a `tf.data.Dataset` of known size or a
            `keras.utils.PyDataset` that yields `(x, y)` or `(x, y, weight)`.
        y: Array of N labels; None for the datasets.
        example_rank: Rank of one batch of inputs, to tell a batched `tf.data.Dataset` from one of single
            examples.
        arrange: For models with several outputs: returns the labels of each in a nest of them.
        keep_small: Whether inputs in uint8 and float16 stay as they are: in float32 they are four times and twice as
            large.
        output: What the only output is called, in dictionaries of labels.

    Returns:
        `(x, y)`: x in float32, or uint8 and float16 where these are kept; labels in int32 or float32, `WeightedLabels`
        where a dataset has weights.

    Raises:
        ValueError: unequal lengths, no examples, NaN or infinity, weights that are none, unknown size.
    """
    weight: list = []
    refuse_none(x)
    if is_dataset(x):
        x, y, *weight = read_dataset(_no_y(x, y), example_rank)
    if y is None or isinstance(y, str):
        refuse_stream(x)
    if y is None:
        raise ValueError("`fit` needs labels. Received: y=None. Pass them as y, one row per example.")
    if isinstance(y, str):
        raise ValueError(
            f"`y` names the column of labels in the rows of x. Received: y={y!r}, and x of type {type(x).__name__}, "
            "without names of columns. Pass the labels themselves, or x as a DataFrame or a dictionary of columns"
            f"{next((f': x.{way}().' for way in ('collect', 'to_table', 'to_pandas') if hasattr(x, way)), '.')}"
        )
    if arrange is None:
        _refuse_rows(x, y, example_rank)
    x = tree.map_structure(lambda leaf: input_array(leaf, keep_small), x)
    # TensorFlow's data pipeline knows tuples, not lists.
    x = tree.lists_to_tuples(x)
    if arrange is None:
        y = label_array(only_labels(y, output, len(tree.flatten(x)[0])))
    else:
        y = tree.map_structure(label_array, arrange(y))
    if not checks.one_length(map(len, tree.flatten((x, y)))):
        raise ValueError("The training data holds no example. Received: arrays of length 0.")
    return x, with_weights(y, weight[0]) if weight else y


def split(x: Any, y: Any, fraction: float, choose: Callable[[list], np.ndarray] | None = None) -> tuple:
    """Holds out a part of the data for validation, row by row, see `accounting.held_out`.

    Args:
        x, y: Trees of arrays.
        fraction: Expected fraction of the rows, in (0, 1).
        choose: Returns one boolean for each row of a list of arrays; default: by the contents of the row.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"`validation_split` must be in (0, 1). Received: validation_split={fraction!r}.")
    if any(not isinstance(leaf, np.ndarray) for leaf in tree.flatten((x, y))):
        raise ValueError(
            "`validation_split` holds rows out by a hash of their contents, for which all of a source would have to be "
            f"read. Received: validation_split={fraction!r} and a source. Hold rows out when the source is written, by "
            "whatever each row alone says, and pass them as validation_data; or pass arrays, as np.asarray makes of a "
            "memmap that fits into memory."
        )
    leaves = tree.flatten((x, y))
    out = held_out(leaves, fraction) if choose is None else choose(leaves)
    if out.all() or not out.any():
        raise ValueError(
            f"`validation_split` leaves one part empty. Received: validation_split={fraction!r} of {len(out)} "
            "examples. Rows are held out by a hash of their contents, or of the ids of their persons; what is alike is "
            "on one side."
        )
    first = tree.map_structure(lambda leaf: leaf[~out], (x, y))
    second = tree.map_structure(lambda leaf: leaf[out], (x, y))
    return first, second


def refuse_none(x: Any) -> None:
    """Refuses data that are missing."""
    if x is None:
        raise ValueError("`fit` needs examples. Received: x=None. Pass them as x, one row per example.")


def refuse_stream(x: Any) -> None:
    """Refuses what holds no rows by itself: paths, functions, several sets at once, streams of batches."""
    if isinstance(x, (str, os.PathLike)):
        raise ValueError(
            f"`x` must hold the training data themselves. Received: x={str(x)!r}. Read the file first: "
            "data = lipdp.data.load(path), then fit(data.x_train, data.y_train)."
        )
    if hasattr(x, "x_train"):
        raise ValueError(
            f"`x` must be arrays. Received: a {type(x).__name__}. Pass its parts: fit(data.x_train, data.y_train)."
        )
    if callable(x) and not hasattr(x, "shape"):
        raise ValueError(
            f"`x` must be data. Received: a function, {getattr(x, '__name__', x)!r}. Call it, and collect what it "
            "yields into arrays x and y (numpy.concatenate)."
        )
    if isinstance(x, dict) and hasattr(x, "column_names"):  # of Hugging Face
        raise ValueError(
            f"`x` must be one data set. Received: the parts {', '.join(x)}. Pass one: x[{next(iter(x))!r}]."
        )
    batches = isinstance(x, (list, tuple)) and bool(x) and isinstance(x[0], tuple)
    if batches or (hasattr(x, "__iter__") and not hasattr(x, "shape") and not isinstance(x, (list, tuple, dict))):
        raise ValueError(
            "Who is in a batch is drawn at random from all examples, which a stream of batches cannot give. Received: "
            f"a {type(x).__name__}. Collect its batches into arrays x and y (numpy.concatenate), or pass a "
            "tf.data.Dataset of known size or a keras.utils.PyDataset; for data larger than memory, an object with "
            "`__len__` and `__getitem__`, of which only the rows are read that are drawn (docs/howto/large-data.md)."
        )


def _refuse_rows(x, y, example_rank: int) -> None:
    """Refuses a list with an array for each example, which would be taken for so many inputs."""
    rows = isinstance(x, (list, tuple)) and hasattr(y, "__len__") and len(x) == len(y) > 1
    shapes = {np.shape(row) for row in x} if rows and example_rank > 1 else set()
    if len(shapes) == 1 and len(next(iter(shapes))) == example_rank - 1:
        raise ValueError(
            "A list is taken for several inputs, each with all examples. Received: x with an array for each of "
            f"{len(x)} examples. Pass numpy.stack(x), and labels as numpy.asarray(y)."
        )


def only_labels(y: Any, output: str, rows: int) -> Any:
    """Returns the labels of a model with one output, which may be in a list or dictionary of one, as in Keras.

    Args:
        y: Labels, one for each row.
        output: What the output is called.
        rows: How many rows there are.

    Raises:
        ValueError: labels of several outputs, or of another one.
    """
    listed = isinstance(y, (list, tuple)) and len(y) not in (0, rows)
    listed = listed and all(np.shape(part)[:1] == (rows,) for part in y)
    if not listed and not isinstance(y, dict):
        return y
    if len(y) == 1 and (listed or output in y):
        return y[0 if listed else output]
    received = ", ".join(map(repr, y)) if isinstance(y, dict) else len(y)
    named = f", called {output!r}" if output and isinstance(y, dict) else ""
    raise ValueError(
        f"`y` must be one array of labels, as the model has one output{named}. Received: a {type(y).__name__} of "
        f"{received}. Pass the array itself."
    )


def input_array(leaf: ArrayLike, keep_small: bool = False) -> np.ndarray:
    """Returns inputs as an array of float32, or of a type in `SMALL` where these are kept, all of which is finite."""
    array = _plain(leaf)
    refuse_kind(array, "x", tuple(getattr(leaf, "columns", ())) if array.ndim == 2 and hasattr(leaf, "iloc") else ())
    return _finite(array, "x", array.dtype.name if keep_small and array.dtype.name in SMALL else "float32")


def widened(rows: np.ndarray) -> np.ndarray:
    """Returns rows of inputs in float32, as a step makes them, and all others as they are."""
    return rows.astype("float32") if rows.dtype.name in SMALL else rows


def label_array(y: ArrayLike) -> np.ndarray:
    """Returns labels as an array of float32 or int32, all of which is finite; refuses integers that int32 has not."""
    array = _plain(y)
    refuse_large(array)
    return _finite(array, "y", label_type(array.dtype).name)


def _plain(leaf: Any) -> np.ndarray:
    """Returns an array; of a DataFrame NumPy makes objects where numbers and truth values stand side by side."""
    array = np.asarray(leaf)
    if array.dtype != object or array.ndim != 2 or not hasattr(leaf, "dtypes"):
        return array
    if not {getattr(dtype, "kind", "O") for dtype in leaf.dtypes} <= set("biuf"):
        return array
    return leaf.to_numpy(dtype="float64", na_value=np.nan)


def label_type(dtype: np.dtype) -> np.dtype:
    """Returns the type that labels of another type are cast to."""
    return np.dtype("int32" if dtype.kind in "biu" else "float32")


def large(y: np.ndarray) -> np.ndarray:
    """Returns for each label whether it is an integer that int32 has not."""
    limits = np.iinfo("int32")
    if y.dtype.kind not in "iu" or np.can_cast(y.dtype, "int32"):
        return np.zeros(y.shape, bool)
    return (y < limits.min) | (y > limits.max)


def refuse_large(y: np.ndarray) -> None:
    """Refuses integer labels out of int32, where they would become others."""
    limits = np.iinfo("int32")
    if y.dtype.kind not in "iu" or not y.size or np.can_cast(y.dtype, "int32"):
        return
    low, high = int(y.min()), int(y.max())
    if low < limits.min or high > limits.max:
        raise ValueError(
            f"Integer labels must be within int32, from {limits.min} to {limits.max}. Received: labels from {low} to "
            f"{high} in {y.dtype}. Number the classes from 0, by a public list of them: "
            "[classes.index(label) for label in y]; pass numbers to predict as floats."
        )


def _no_y(x, y):
    if isinstance(y, str):
        raise ValueError(
            f"A {type(x).__name__} yields its own labels. Received: y={y!r}. Return (inputs, labels) from "
            "`__getitem__`, and leave y out."
        )
    if y is not None:
        raise ValueError(f"A {type(x).__name__} yields its own labels. Received: y as well; leave it out.")
    return x


def refuse_kind(array: np.ndarray, name: str, columns: tuple = ()) -> None:
    """Refuses text, complex numbers, objects and times; of a table with named columns it says where text is."""
    if array.dtype.kind in "US" or (
        array.dtype == object and any(isinstance(value, (str, bytes)) for value in array.flat)
    ):
        todo = (
            "Encode classes as the integers from 0, by a public list of them: [classes.index(label) for label in y], "
            "or lipdp.data.Table(...).labels."
            if name == "y"
            else "Encode categories by a public list of them: lipdp.data.Table(...).encode, of a description that "
            "lipdp.data.Table.template begins; sentences as tokens: lipdp.data.ByteTokenizer(length=256)(texts), or "
            "another tokenizer of lipdp.data; numbers that were read as text: x.astype('float32')."
        )
        texts = [str(c) for i, c in enumerate(columns) if any(isinstance(value, str) for value in array[:, i])]
        where = f" in {', '.join(map(repr, texts[:20]))}" if texts else ""
        todo = f"Leave out columns that are no inputs. {todo}" if texts else todo
        raise ValueError(f"`{name}` must hold numbers. Received: text, as dtype {array.dtype}{where}. {todo}")
    if array.dtype.kind == "c":
        raise ValueError(
            f"`{name}` must hold real numbers. Received: dtype {array.dtype}. Pass real and imaginary parts as columns "
            "of their own: np.concatenate([x.real, x.imag], axis=-1)."
        )
    if array.dtype.names is not None:
        fields = ", ".join(array.dtype.names)
        raise ValueError(
            f"`{name}` must hold numbers. Received: a structured array of the fields {fields}. Pass fields: "
            "rows['name'] is an array, and of a mapped file still mapped."
        )
    shapes = set(map(np.shape, array.flat)) if array.dtype == object and array.ndim else set()
    if len(shapes) == 1 and () not in shapes:
        raise ValueError(
            f"`{name}` must be an array of numbers. Received: cells that hold arrays of shape {shapes.pop()}. Make one "
            "array of each column: numpy.stack(column)."
        )
    if array.dtype == object or array.dtype.kind in "OMm" or array.dtype.type is np.void:
        raise ValueError(
            f"`{name}` must be a dense array of numbers. Received: dtype {array.dtype}. Dates, and columns with gaps: "
            f"lipdp.data.Table(...).encode. Ragged or sparse data: {PAD}"
        )


def _finite(array: np.ndarray, name: str, dtype: str) -> np.ndarray:
    refuse_kind(array, name)
    if array.ndim == 0:
        raise ValueError(
            f"`{name}` must be an array with one row per example. Received: a scalar. A list is taken for several "
            f"inputs; make one input a numpy array. Ragged data: {PAD}"
        )
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype)
    # In blocks: a mask of everything would be the largest array of all.
    bad, first = 0, None
    for start in range(0, len(array) if array.dtype.kind == "f" else 0, 1024):
        block = array[start : start + 1024]
        rows = np.flatnonzero((~np.isfinite(block)).reshape(len(block), -1).any(axis=1))
        bad, first = bad + len(rows), start + int(rows[0]) if first is None and len(rows) else first
    if bad:
        raise ValueError(
            f"`{name}` holds NaN or infinity in {bad} of {len(array)} examples, first in row {first}, for which no "
            "bound holds. Remove or replace them before training, by a public constant: a mean of the rows is a "
            "release that epsilon does not cover. Columns with gaps: lipdp.data.Table(...).encode; labels with gaps: "
            "docs/howto/weights.md."
        )
    return array
