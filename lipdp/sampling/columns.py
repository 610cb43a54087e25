"""Training data of which some is read when it is drawn: what is known of it without reading it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import tree

from lipdp import checks
from lipdp.sampling import randomness
from lipdp.sampling.arrays import (
    SMALL,
    as_arrays,
    input_array,
    label_array,
    label_type,
    large,
    only_labels,
    refuse_kind,
    refuse_large,
    widened,
)
from lipdp.sampling.pipelines import labeled_by
from lipdp.sampling.source import Source, Unlike, is_source, refuse_closed


class Column:
    """One of the arrays that the rows of a source consist of, as far as it is known without reading them.

    Args:
        source: Where the rows are.
        number: Place of this one in what `Source.read` returns.

    Attributes:
        dtype: Type that its rows are cast to.
        sample: Rows at fixed places, in that type.
    """

    def __init__(self, source: Source, number: int):
        self.source, self.number, self.name = source, number, "x"
        self.dtype = np.dtype("float32")
        self.sample, self._axis = source.sample[number], False

    def __len__(self) -> int:
        return len(self.source)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.sample.shape[1:])

    def typed(self, name: str) -> "Column":
        """Sets the type by what it is: "x", inputs, or "y", labels."""
        array, self.name = self.sample, name
        # Numbers of types that numpy does not know by itself, as bfloat16, have kind V as well.
        if array.dtype.kind == "S" or (array.dtype.type is np.void and array.dtype.names is None):
            raise ValueError(
                f"`{name}` must hold numbers. Received: rows of bytes, as dtype {array.dtype}. Decode a record in "
                "`__getitem__` of a class around the source."
            )
        refuse_kind(array, name)
        if name == "x":
            self.dtype = np.dtype(array.dtype.name if array.dtype.name in SMALL else "float32")
        else:
            self.dtype = label_type(array.dtype)
        self.sample = self.cast(array)
        return self

    def with_axis(self) -> "Column":
        """Makes of rows that are numbers rows of one number each, as an input (N, 1) takes them."""
        self.sample, self._axis = self.sample[:, None], True
        return self

    def cast(self, rows: np.ndarray) -> np.ndarray:
        """Returns rows in the type of this column; refuses other shapes than those of the sample, and large labels."""
        rows = rows[:, None] if self._axis else rows
        if rows.shape[1:] != self.shape[1:]:
            raise Unlike(
                f"The rows of a source must have one shape. Received: {rows.shape[1:]} and {self.shape[1:]}. Cut or "
                "pad them in `__getitem__`."
            )
        numbers = {"f": "biufV", "i": "biu"}.get(self.dtype.kind)
        if rows.dtype.kind not in numbers if numbers else rows.dtype != self.dtype:
            raise Unlike(
                f"The rows of a source must have one type. Received: `{self.name}` in {rows.dtype} and "
                f"in {self.dtype}. Cast them in `__getitem__`."
            )
        if self.dtype.kind == "i":
            refuse_large(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            return rows.astype(self.dtype, copy=False)

    def counted(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows in the type of this column, and for each whether it counts: it is finite, and fits that type."""
        fits = np.ones(len(rows), bool)
        if self.dtype.kind == "i":
            fits = ~large(rows).any(axis=tuple(range(1, rows.ndim)))
        if not fits.all():
            rows = rows.copy()
            rows[~fits] = 0
        rows = self.cast(rows)
        return rows, fits & finite_rows(rows)


def as_rows(
    x: Any,
    y: Any,
    example_rank: int,
    arrange: Callable[[Any], Any] | None = None,
    names: tuple[str, ...] = (),
    output: str = "",
) -> tuple[Any, Any]:
    """Returns training data whose rows `Batches` can take: arrays, and `Column`s of what is read when it is drawn.

    Args:
        x: As in `as_arrays`, or a source, or a nest with sources in it.
        y: As in `as_arrays`, a source, or the name of the labels in x, a source, dictionary, DataFrame, Arrow table,
            file of h5py or zarr, `tf.data.Dataset` of dictionaries; None where x yields `(x, y)`.
        example_rank, arrange: As in `as_arrays`.
        names: What the inputs of the model are called, of all that dictionaries hold.
        output: As in `as_arrays`.

    Raises:
        ValueError: as `as_arrays`; labels that are missing, a source whose rows are not alike.

    **Guarantee.** Of a source only `SAMPLE` rows at fixed places are read.
    """
    x = _members(x)
    if hasattr(x, "as_numpy_iterator"):
        x, y = by_name(x, y)
    if not any(map(is_source, tree.flatten((x, y)))):
        if isinstance(y, str) and (type(x) is dict or _is_frame(x)):
            x, y = _without(x, y)
            x = _single(x)
        x, y = as_arrays(_chosen(x, names), y, example_rank, arrange, keep_small=True, output=output)
        return _chosen(x, names), y
    whole = is_source(x)
    x, y = tree.map_structure(lambda leaf: _opened(leaf) if is_source(leaf) else leaf, (x, y))
    if isinstance(y, str):
        x, y = _without(x, y)
    elif y is None:
        x, y = _pair(x if whole or isinstance(x, Mapping) else None)
    elif whole:
        _refuse_labels(x, names)
    x = _chosen(x, names)
    x = _single(_inputs(x))
    if arrange is None:
        y = _label(only_labels(y, output, len(tree.flatten(x)[0])))
    else:
        y = tree.map_structure(_label, arrange(y))
    checks.one_length(map(len, tree.flatten((x, y))))
    for column in columns_of((x, y)):
        if column.sample.dtype.kind == "f" and not finite_rows(column.sample).any():
            raise ValueError(
                f"`{column.name}` holds NaN or infinity in each of {len(column.sample)} rows that were looked at. Rows "
                "that are not finite count as zero, so nothing would be learned. Replace them in `__getitem__`."
            )
    return tree.lists_to_tuples(x), y


def by_name(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns inputs and labels of a file, dictionary, DataFrame or dataset, of which `y` may name a column."""
    x = _members(x)
    if isinstance(y, str) and hasattr(x, "as_numpy_iterator"):
        return labeled_by(x, y), None
    if isinstance(y, str) and (isinstance(x, Mapping) or _is_frame(x)) and not is_source(x):
        x, y = _without(x, y)
    return _single(x), y


def columns_of(data: Any) -> list[Column]:
    """Returns the columns among the leaves of training data."""
    return [leaf for leaf in tree.flatten(data) if isinstance(leaf, Column)]


def sampled(data: Any) -> Any:
    """Returns training data with the sample of a column in its place, without rows that are not finite."""

    def sample(leaf):
        return leaf.sample[finite_rows(leaf.sample)] if isinstance(leaf, Column) else leaf

    return tree.map_structure(sample, data)


def first_row(data: Any) -> Any:
    """Returns one row of training data, in the types in which a step is traced."""

    def first(leaf):
        row = leaf.sample[:1] if isinstance(leaf, Column) else leaf[:1]
        return widened(row)

    return tree.map_structure(first, data)


def read(data: Any, index: np.ndarray) -> Any:
    """Returns rows of training data, read here and now."""
    found = {column.source: column.source.read(index) for column in columns_of(data)}

    def rows(leaf):
        return leaf.cast(found[leaf.source][leaf.number]) if isinstance(leaf, Column) else np.asarray(leaf)[index]

    return tree.map_structure(rows, data)


def digest(data: Any) -> bytes:
    """Returns what `randomness.digest` does of arrays; of a column its length, type and sample stand for all rows."""
    columns = columns_of(data)
    known = [f"{column.name}{column.dtype}{column.shape}" for column in columns]
    seen = tree.map_structure(lambda leaf: leaf.sample if isinstance(leaf, Column) else leaf, data)
    found = randomness.digest(seen)
    return randomness.derive(b"", "sampled", found, *known) if columns else found


def finite_rows(rows: np.ndarray) -> np.ndarray:
    """Returns for each row whether all of it is finite."""
    return np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))


def _members(x):
    """Returns a file or group of h5py or zarr, or a .npz file, as the dictionary of what is in it."""
    refuse_closed(x)
    return {name: x[name] for name in x} if hasattr(x, "require_group") or isinstance(x, np.lib.npyio.NpzFile) else x


def _opened(data):
    source = data if isinstance(data, Source) else Source(data)
    if source is data:
        source.look()
    return tree.map_structure(lambda place: Column(source, place), source.places)


def _input(leaf):
    return leaf.typed("x") if isinstance(leaf, Column) else input_array(leaf, keep_small=True)


def _inputs(x):
    """Returns inputs in their types; of columns with names an error says which it is."""
    if not isinstance(x, Mapping):
        return tree.map_structure(_input, x)
    found = {}
    for name, part in x.items():
        try:
            found[name] = tree.map_structure(_input, part)
        except ValueError as error:
            raise ValueError(f"Column {name!r} does not fit; leave it out if it is no input. {error}") from error
    return found


def _label(leaf):
    return leaf.typed("y") if isinstance(leaf, Column) else label_array(leaf)


def _is_frame(x):
    """Returns whether data are a table in memory whose columns have names, of pandas, polars or Arrow."""
    return hasattr(x, "iloc") or (hasattr(x, "__array__") and (hasattr(x, "column_names") or hasattr(x, "columns")))


def _without(columns, name):
    arrow = hasattr(columns, "column_names") and hasattr(columns, "select")
    names = columns if isinstance(columns, Mapping) else columns.column_names if arrow else ()
    names = list(names or getattr(columns, "columns", ()))
    if name not in names:
        found = f"columns {', '.join(map(str, names))}" if names else "rows without names"
        raise ValueError(
            f"`y` names the column of labels in the rows of x. Received: y={name!r}, and {found}. Pass one of the "
            "columns, or the labels themselves."
        )
    rest = [key for key in names if key != name]
    if isinstance(columns, Mapping):
        return {key: columns[key] for key in rest}, columns[name]
    found = columns.select(rest) if arrow else columns[rest], columns[name]
    return found if hasattr(columns, "iloc") else tuple(map(np.asarray, found))  # Keras knows pandas alone


def _pair(columns):
    if not isinstance(columns, tuple) or len(columns) != 2:
        what = "inputs only; pass the labels as y, or return (inputs, labels) from `__getitem__`"
        if isinstance(columns, tuple) and len(columns) == 3:
            what = (
                "(inputs, labels, weights); return (inputs, labels) from `__getitem__`, and pass an array of weights "
                "as sample_weight="
            )
        if isinstance(columns, Mapping):
            what = f"a dictionary of {', '.join(columns)}; pass the name of the labels as y"
        raise ValueError(f"`fit` needs labels. Received: y=None, and a source whose rows are {what}.")
    return columns


def _refuse_labels(columns, names):
    """Refuses labels beside a source whose rows bring more than the inputs."""
    more = isinstance(columns, tuple) and len(columns) in (2, 3)
    if more and names and len(tree.flatten(columns)) == len(names) + len(columns) - 1:
        raise ValueError(
            f"A source whose rows are ({', '.join(('inputs', 'labels', 'weights')[: len(columns)])}) has its own "
            "labels. Received: y as well. Leave it out, or return the inputs alone from `__getitem__`."
        )


def _chosen(x, names):
    """Returns the inputs of a model, of all that there are by name."""
    return {name: x[name] for name in names} if isinstance(x, Mapping) and names and set(names) < set(x) else x


def _single(x):
    return next(iter(x.values())) if isinstance(x, dict) and len(x) == 1 else x
