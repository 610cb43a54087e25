"""What `fit` would find wrong with callbacks and validation data after an epoch is found here, before any charge."""

import contextlib
import contextvars
import importlib.util
import os
import types
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import _keras, checks, isolation, losses
from lipdp.callbacks import Checkpoint
from lipdp.sampling.columns import columns_of, sampled
from lipdp.sampling.pipelines import has_rows_of
from lipdp.sampling.source import Source, is_source
from lipdp.training import compiling, inputs, model_checks
from lipdp.training.callbacks import refuse_public_names, unpacked

# Each row has a weight, by which padding has no say.
_BY_ROW = (
    "A function among the metrics has to return one value for each row: leave out the mean over them. AUC, Precision "
    "and others that count right answers take labels of the shape of the outputs, as one-hot ones. One that counts "
    "places, such as MeanIoU or AUC of images, takes no weights of rows, which it gets beside metrics of your own: "
    "leave it out of `compile`, and call it on what `predict` returns. `update_state` of a class of your own takes "
    "sample_weight, which is 0 for rows that fill up an update."
)
# Whether the validation data of the `fit` inside were computed from rows that train, and what all its rows were.
_COMPUTED = contextvars.ContextVar[tuple[bool, Any]]("computed_from_training_rows", default=(False, None))


def check_callbacks(callbacks: Any) -> list:
    """Returns what was given as callbacks as one list; refuses what is none."""
    given = [] if callbacks is None else unpacked(callbacks)
    for callback in given:
        if not isinstance(callback, keras.callbacks.Callback):
            made = isinstance(callback, type)
            hint = "Make an object of it: its name followed by ()." if made else "Pass such objects, as a list."
            raise ValueError(f"`callbacks` must be keras.callbacks.Callback objects. Received: {callback!r}. {hint}")
        if any(kind.__name__ == "OrbaxCheckpoint" for kind in type(callback).__mro__):
            raise ValueError(
                "OrbaxCheckpoint writes the whole state of a training, with the key of the noise and without the "
                "ledger: whoever reads the file could take the noise away. Received: "
                f"{type(callback).__name__}. Use lipdp.callbacks.Checkpoint or keras.callbacks.ModelCheckpoint."
            )
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "BackupAndRestore loads weights while `fit` runs, and these would bring noise that the plan does not "
                f"charge. Received: {type(callback).__name__}. Use lipdp.callbacks.Checkpoint(path), which goes on "
                "after a crash and keeps the ledger."
            )
        if isinstance(callback, keras.callbacks.TensorBoard) and importlib.util.find_spec("tensorboard") is None:
            raise ValueError(
                f"TensorBoard needs the package tensorboard. Received: {type(callback).__name__}, and no such package. "
                "Run pip install tensorboard, or use keras.callbacks.CSVLogger."
            )
    swapping = [c for c in given if isinstance(c, keras.callbacks.SwapEMAWeights) and c.swap_on_epoch]
    if swapping and any(isinstance(callback, Checkpoint) for callback in given):
        raise ValueError(
            "A checkpoint would hold averages in the place of the weights, and a resumed `fit` would go on from them "
            "under noise that was drawn already. Received: SwapEMAWeights(swap_on_epoch=True) beside Checkpoint. Leave "
            "out swap_on_epoch: the averages come at the end."
        )
    return given


def check_options(validation_steps: Any, validation_batch_size: Any, validation_freq: Any) -> dict[str, Any]:
    """Returns options of Keras' validation as Keras takes them; refuses what would fail when an epoch has ended."""
    if isinstance(validation_freq, np.ndarray) and validation_freq.ndim == 1:
        validation_freq = validation_freq.tolist()
    hint = "Pass how many epochs lie between two validations, or a list of the epochs after which to validate."
    several = isinstance(validation_freq, Collection) and not isinstance(validation_freq, (str, dict, np.ndarray))
    if several:
        found: Any = [checks.integer("validation_freq", epoch, minimum=1, hint=hint) for epoch in validation_freq]
    else:
        found = checks.integer("validation_freq", validation_freq, minimum=1, hint=hint)
    return {
        "validation_steps": checks.integer("validation_steps", validation_steps, minimum=1, optional=True),
        "validation_batch_size": checks.integer("validation_batch_size", validation_batch_size, minimum=1),
        "validation_freq": found,
    }


def are_training_rows(x: Any, validation_data: Any) -> bool:
    """Returns whether validation data lie in the memory, or in the file, of the training data, or are the same object.

    A `tf.data.Dataset` that is made of the one that trains, or of arrays that all train, counts as well.

    Contents are not compared: that a row is in a public set would tell that it is in the private one.
    """
    if validation_data is None:
        return False
    if _COMPUTED.get()[0]:
        return True
    first = validation_data[0] if isinstance(validation_data, (tuple, list)) and validation_data else validation_data
    # Lists of numbers or words have leaves that are one object by chance.
    leaves = (map(_rows_of, tree.flatten(rows)) for rows in (x, first))
    held, given = ([leaf for leaf in each if _holds_rows(leaf)] for each in leaves)
    same = x is first or any(a is b or _share(a, b) for a in held for b in given)
    return same or has_rows_of(first, x)


@contextlib.contextmanager
def computed_from(x: Any, validation_data: Any) -> Iterator[None]:
    """Inside, validation data count as training rows if these are so: what `fit` gets there is computed from both."""
    token = _COMPUTED.set((are_training_rows(x, validation_data), x))
    try:
        yield
    finally:
        _COMPUTED.reset(token)


def given(x: Any, y: Any) -> tuple[Any, ...]:
    """Returns the data that `fit` was given, and those that these were computed from."""
    return x, y, _COMPUTED.get()[1]


def _rows_of(leaf: Any) -> Any:
    return leaf.rows if isinstance(leaf, Source) else leaf


def _holds_rows(leaf: Any) -> bool:
    return hasattr(leaf, "shape") or hasattr(leaf, "require_group") or is_source(leaf)


def _in_file(rows: Any) -> tuple[str, np.ndarray] | None:
    """Returns the file that an array maps, and an array never to be read that lies at its place there; or None."""
    if not isinstance(rows, np.memmap) or rows.filename is None:
        return None
    root = rows
    while isinstance(root.base, np.memmap):
        root = root.base
    start = root.offset + rows.ctypes.data - root.ctypes.data + 1  # no array lies at 0
    layout = {"version": 3, "shape": rows.shape, "strides": rows.strides, "typestr": rows.dtype.str}
    place = types.SimpleNamespace(__array_interface__={**layout, "data": (start, True)})
    return os.path.realpath(rows.filename), np.asarray(place)


def _share(a: Any, b: Any) -> bool:
    if type(a) is type(b) and isolation.root(type(a)) in ("h5py", "zarr"):
        return bool(a == b)  # of the same place in the same file
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return False
    first, second = _in_file(a), _in_file(b)
    if first is not None and second is not None and first[0] == second[0]:
        a, b = first[1], second[1]
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False


def check_data(model: keras.Model, validation_data: Any) -> Any:
    """Returns validation data, and refuses what the model, its loss or its labels do not allow.

    Of a source columns are returned, which are checked on a sample. Arrays are checked in full, a `tf.data.Dataset` or
    `keras.utils.PyDataset` on its first batch. What can be read only once, as a generator, is not looked at.
    """
    hint = ""
    if (source := is_source(validation_data)) or isinstance(validation_data, Mapping):
        # Not what `fit` calls y, of which the messages below speak.
        hint = " Labels, or the name of their column, stand beside the inputs: validation_data=(data, 'label')."
    if source:
        validation_data = (validation_data, None)
    batch: Any = _arrays(validation_data)
    if batch is None and (hasattr(validation_data, "shape") or isinstance(validation_data, (str, Mapping, float, int))):
        batch = validation_data
    if batch is None:
        return validation_data
    try:
        if not isinstance(batch, tuple) or len(batch) not in (2, 3):
            received = f"a tuple of {len(batch)}" if isinstance(batch, tuple) else f"a {type(batch).__name__}"
            raise ValueError(
                f"It must be (inputs, labels), or (inputs, labels, sample weights). Received: {received}. Pass that."
            )
        row = tuple(tree.flatten(model.inputs)[0].shape[1:])
        if hasattr(validation_data, "element_spec") and row != (1,) and np.shape(tree.flatten(batch[0])[0]) == row:
            raise ValueError(
                "Keras validates on batches. Received: a dataset without batches. Pass "
                "validation_data=dataset.batch(256)."
            )
        x, y = inputs.as_rows(model, batch[0], batch[1])
        if len(batch) == 3:
            batch = (*batch[:2], *_weights(batch[2], len(tree.flatten(y)[0])))
            if isinstance(validation_data, (tuple, list)):
                validation_data = batch
        losses.check_per_example(model.loss, sampled(y), model_checks.output_shapes(model))
        # Keras would fail after an epoch on names of labels, texts beside inputs, DataFrames of several kinds, and
        # tables of Arrow. Those of one output may be in a list or dictionary of one.
        named = isinstance(batch[1], (str, dict, list)) or isinstance(batch[0], dict) or hasattr(batch[0], "iloc")
        tables = any(type(part).__module__.partition(".")[0] in ("polars", "pyarrow") for part in batch[:2])
        again = (named or tables) and isinstance(validation_data, (tuple, list))
        return (x, y, *batch[2:]) if again or columns_of((x, y)) else validation_data
    except ValueError as error:
        raise ValueError(f"`validation_data` does not fit. {error}{hint}") from error


def _weights(weights: Any, rows: int) -> tuple:
    """Returns the weights of validation data in a tuple, or none where they are None, as in Keras."""
    if weights is None:
        return ()
    if isinstance(weights, dict):
        raise ValueError("Weights by output are not supported here. Received: a dict. Pass one array of weights.")
    try:
        found = np.asarray(weights, "float32")
    except (TypeError, ValueError) as error:
        raise ValueError(f"Weights must be numbers. Received: {error}. Pass an array of them.") from error
    if found.shape not in ((rows,), (rows, 1)):
        raise ValueError(f"It needs one weight per example. Received: {found.shape} for {rows} examples.")
    return (found + np.float32(0.0),)  # -0 is that of rows behind the data


def refuse_whole_metrics(model: keras.Model, persons: bool, strategy: Any) -> None:
    """Refuses metrics that count in whole numbers where a row counts for a part, as one of several of a person."""
    if persons:
        why = "each person once, so that a row"
    elif strategy.name == "dpis":
        why = "rows by how likely they were drawn, so that each"
    elif strategy.augmentation_multiplicity > 1:
        why = "each example once, so that a copy"
    else:
        return
    found = [metric for each in model.metrics for metric in getattr(each, "metrics", [each])]
    whole = [metric.name for metric in found if str(metric.dtype).startswith("int")]
    if whole:
        raise ValueError(
            f"Metrics on the training data count {why} counts for a part, which a metric of whole numbers leaves out. "
            f"Received: {', '.join(whole)}. Give it dtype='float32', or pass fit(training_metrics=False)."
        )


def build_metrics(model: keras.Model, example: tuple) -> None:
    """Builds loss and metrics for rows like an example `(x, y)`, which fails where a metric looks at its labels."""
    try:
        _keras.build_metrics(model, (*example, np.ones(1, "float32")))
    except Exception as error:
        y_pred = tree.pack_sequence_as(
            _keras.structures(_keras.graph(model))[1],
            [keras.ops.zeros([size or 1 for size in tensor.shape]) for tensor in model.outputs],
        )
        found = _failing(model, example[1], y_pred)
        if not found:
            raise
        shapes = tree.map_structure(np.shape, example)
        raise ValueError(
            f"Metrics of `compile` fail on a row of the training data. Received: {found}shapes {shapes}; "
            f"{str(error).rstrip('. ')}. {_BY_ROW}"
        ) from error


def rehearse(model: keras.Model, validation_data: Any, example: tuple | None) -> None:
    """Runs loss and metrics once on zeros of the shapes of validation data, and forgets the results.

    Without validation data of those of an example `(x, y)`: a step in which they fail is charged, and JAX keeps the
    weights. The metrics are built: they have been tried on one row. The names of their results are looked at first.
    """
    refuse_public_names(model.get_metrics_result())
    batch, named = _arrays(validation_data), "`validation_data`"
    masked = any(_keras.mask(tensor) is not None for tensor in model.outputs)  # a step has weights of places there
    if validation_data is None and (not masked or compiling.own_metrics(model)):
        batch, named = example, "batches of the training data"
    outputs = [tensor.shape for tensor in model.outputs]
    if batch is None or any(None in shape[1:] for shape in outputs):
        return

    def zeros(rows):
        rows = rows if hasattr(rows, "dtype") else np.asarray(rows)
        # Tensors of TensorFlow have types of their own.
        kind = getattr(rows.dtype, "kind", None) or keras.backend.standardize_dtype(rows.dtype)
        whole = kind in ("b", "i", "u") or kind.startswith(("int", "uint", "bool"))
        return keras.ops.zeros((2, *rows.shape[1:]), "int32" if whole else "float32")

    x, y = tree.map_structure(zeros, tuple(batch[:2]))
    y_pred = tree.pack_sequence_as(
        _keras.structures(_keras.graph(model))[1], [keras.ops.zeros((2, *shape[1:])) for shape in outputs]
    )
    arguments = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": keras.ops.ones(2)}
    try:
        model.compute_loss(**arguments, training=False)
        model.compute_metrics(**arguments)
        names = [] if example is None else _counting_all(model, x, y, y_pred)
    except Exception as error:
        shapes = tree.map_structure(np.shape, tuple(batch[:2]))
        found = _failing(model, y, y_pred)
        raise ValueError(
            f"Loss and metrics of `compile` fail on {named}. Received: {found}shapes {shapes}; {error}. {_BY_ROW}"
        ) from error
    finally:
        model.reset_metrics()
    if names:
        warnings.warn(
            "A metric counts rows of weight 0, with which updates are filled up, so that its values on the training "
            f"data are wrong. Received: {', '.join(names)}. Multiply what `update_state` counts by sample_weight, as "
            "metrics of Keras do, or pass fit(training_metrics=False).",
            stacklevel=checks.users_line(),
        )


def _counting_all(model: keras.Model, x: Any, y: Any, y_pred: Any) -> list[str]:
    """Returns the names of metrics of the user's own that a row behind the data moves, tried on zeros and ones."""
    every = [one for part in model.metrics for one in getattr(part, "metrics", [part])]
    weights = {id(variable) for variable in model.weights}  # what writes to these is refused where a step is made
    own = [
        one
        for one in every
        if not type(one).__module__.startswith(("keras.", "lipdp.")) and weights.isdisjoint(map(id, one.variables))
    ]

    def states(nest, rows):
        model.reset_metrics()
        first = tree.map_structure(lambda leaf: leaf[:rows], nest)
        model.compute_metrics(*first, sample_weight=keras.ops.convert_to_tensor([1.0, -0.0][:rows]))
        return [[keras.ops.convert_to_numpy(v) for v in metric.variables] for metric in own]

    found: set[str] = set()
    for made in (keras.ops.zeros_like, keras.ops.ones_like) if own else ():
        nest = (x, *tree.map_structure(made, (y, y_pred)))
        with contextlib.suppress(Exception):  # ones may be no labels
            each = zip(own, states(nest, 1), states(nest, 2), strict=True)
            found.update(metric.name for metric, one, two in each if not all(map(np.array_equal, one, two)))
    return sorted(found)


def _failing(model: keras.Model, y: Any, y_pred: Any) -> str:
    """Returns which metric of a model with one output fails, as words of a message."""
    several = not (hasattr(y, "shape") and hasattr(y_pred, "shape"))
    built = [one for part in model.metrics for one in getattr(part, "metrics", ())]
    given = [] if built else map(_as_metric, _keras.given_metrics(model))
    for metric in () if several else built or [one for one in given if hasattr(one, "update_state")]:
        try:
            metric.update_state(y, y_pred, sample_weight=keras.ops.ones(len(y)))
        except Exception:
            return f"metric {metric.name!r}, "
    return ""


def _as_metric(given: Any) -> Any:
    """Returns a metric by its name; None for names that Keras understands beside labels only, as "ce"."""
    try:
        return keras.metrics.get(given)
    except ValueError:
        return None


def _arrays(data):
    """Returns validation data, or their first batch, as a tuple; None where there are none, or none to spare."""
    if isinstance(data, list):
        return tuple(data)
    if isinstance(data, keras.utils.PyDataset):
        return data[0] if data.num_batches is None or data.num_batches else None
    if hasattr(data, "as_numpy_iterator"):
        return next(iter(data.as_numpy_iterator()), None)
    return data if isinstance(data, tuple) else None
