"""What a frozen network makes of private rows, computed once."""

import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import _keras, backend, checks, isolation, sampling
from lipdp.privacy import provenance
from lipdp.sampling.arrays import refuse_stream, widened
from lipdp.sampling.columns import read
from lipdp.sampling.datasets import is_dataset
from lipdp.sampling.source import is_source
from lipdp.training import memory, model_checks
from lipdp.training.outputs import Outputs, refuse_processes
from lipdp.training.preprocessing import preprocessed
from lipdp.training.progress import in_terminal

_AT_ONCE = 16


def features(
    model: keras.Model,
    x: Any,
    path: str | os.PathLike | None = None,
    batch_size: int = 256,
    dtype: str = "float32",
    verbose: str | int = "auto",
) -> np.ndarray:
    """Returns the outputs of a network for all rows, so that heads train on them without running it again.

    Args:
        model: A built model with one output, trained on other data than `x`: public weights, or none at all. A task of
            keras_hub takes its raw rows.
        x: Rows as `fit` takes them: arrays, or a source, of which a few batches are in memory at a time.
        path: A `.npy` file to write them to, replaced if it is there; None keeps them in memory. Needed where they are
            larger than memory.
        batch_size: Rows that the network sees at once, at least 1, on a CPU with several threads as two halves; the
            largest that fits is the fastest. The last batch is filled up: rounding goes by the number of rows in it.
            For few rows pass a smaller one.
        dtype: `"float32"`, or `"float16"` for files of half the size; values above 65504 are then cut off.
        verbose: 1 shows a progress bar, 2 a line for each tenth of many rows, 0 nothing; `"auto"` shows the bar on a
            terminal.

    Returns:
        An array `(N, ...)`; with a path a `numpy.memmap` of it, which `fit` reads row by row.

    Raises:
        ValueError: a layer that may mix rows, or a network that was trained privately: its ledger would not reach the
            head. Put it into one model with the head and freeze it there.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import lipdp
        >>> backbone = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu")])
        >>> lipdp.features(backbone, np.zeros((10, 4))).shape
        (10, 8)

    **Guarantee.** Row i of the result is a function of row i of `x` and of the network's weights alone. A change of one
    row of `x` changes one row of the result, so training on the result costs what training on `x` costs, and computing
    it costs nothing. Not covered: a network whose weights come from the same rows by another way than this library,
    and the file itself, which is as private as `x`.
    """
    if not isinstance(model, keras.Model) or _keras.graph(model) is None:
        raise ValueError(
            f"`features` takes a built Sequential or functional model. Received: {type(model).__name__}. Give a "
            "Sequential model an `Input`."
        )
    refuse_processes("`features`")
    raw, model = model, model if isinstance(model, keras.Sequential) else _network(model)
    checks.integer("batch_size", batch_size, minimum=1)
    if dtype not in ("float32", "float16"):
        raise ValueError(f'`dtype` must be "float32" or "float16". Received: dtype={dtype!r}.')
    if len(model.outputs) != 1:
        raise ValueError(
            f"`features` takes a model with one output. Received: model '{model.name}' with {len(model.outputs)}. "
            "Build keras.Model(model.input, output) of the one you need."
        )
    foreign = [operation for operation, _ in isolation.foreign(model)]
    if foreign:
        if found := next(filter(None, map(isolation.advice, foreign)), None):
            raise ValueError(found)
        names = [operation.name for operation in foreign]
        shown = ", ".join(names[:3]) + (f", and {len(names) - 3} more" if len(names) > 3 else "")
        kinds = keras.layers.Add, keras.layers.Average
        sums = any(_keras.operation_name(one) == "Add" or isinstance(one, kinds) for one in foreign)
        biased = sums and keras.backend.backend() == "tensorflow"
        hint = " Put one number of each row, such as a mean, in front of what it is added to." if biased else ""
        raise ValueError(
            "The features of a row must depend on that row alone. Received: layers that are not known to keep rows "
            f"apart: {shown}. Freeze what is stock Keras (`model.trainable = False`), and declare your own layers with "
            f"lipdp.row_wise if they treat each row alone.{hint}"
        )
    if provenance.ledgers_of(raw):
        raise ValueError(
            f"Model '{model.name}' was trained privately, and what that cost would not reach a head that trains on "
            "its features alone. Put it into one model with the head, freeze it there (`trainable = False`), and "
            "train that."
        )
    _refuse_mixing(model)
    model_checks.warn_of_adapted(model, x)
    if is_dataset(x):
        raise ValueError(
            f"`features` takes arrays or a source, whose rows stay beside their labels. Received: a "
            f"{type(x).__name__}. Read it once: batches = list(data), x = numpy.concatenate([batch[0] for batch in "
            "batches]), and the labels in the same way."
        )
    if not is_source(x):
        refuse_stream(x)
    x, _ = preprocessed(raw, x)
    count = len(x) if is_source(x) else len(tree.flatten(x)[0])
    rank = len(tree.flatten(model.inputs)[0].shape)
    x, _ = sampling.as_rows(x, np.zeros(count, "int8"), rank)
    shape = (count, *model.outputs[0].shape[1:])
    if None in shape:
        raise ValueError(
            f"The features of all rows must have one size. Received: model '{model.name}' with output shape {shape}. "
            "Give its inputs their full shape, or add pooling."
        )
    out = np.empty(shape, dtype) if path is None else np.lib.format.open_memmap(path, "w+", dtype, shape)
    limit = np.finfo(dtype).max
    progress = _progress(count, int(in_terminal(verbose)) if verbose == "auto" else int(verbose))
    outputs = Outputs(model, batch_size, shared=True)
    with memory.kept():
        for start in range(0, count, _AT_ONCE * batch_size):
            rows = np.arange(start, min(start + _AT_ONCE * batch_size, count))
            taken = tree.map_structure(widened, read(x, rows))
            out[start : start + len(rows)] = np.clip(outputs(taken), -limit, limit)
            progress(start + len(rows))
    if isinstance(out, np.memmap):
        out.flush()
    return out if path is None else np.load(path, mmap_mode="r")


def _progress(count: int, verbose: int) -> Callable[[int], None]:
    """Returns what shows how many of the rows are done."""
    if verbose == 1:
        sys.stdout.write(f"Features of {count} rows\n")
        return keras.utils.Progbar(count, unit_name="row").update
    told = [0]

    def line(done: int) -> None:
        if verbose == 2 and 10 * done // count > told[0] and done < count:
            told[0] = 10 * done // count
            sys.stdout.write(f"Features of {done} of {count} rows\n")
            sys.stdout.flush()

    return line


def _refuse_mixing(model) -> None:
    """Tries a network on synthetic rows, alone and together: a help only, as all of its layers are known."""
    _, x = isolation.synthetic(_keras.graph(model))
    with backend.full_precision(), _keras.computing_in_float32(model):
        try:
            together, *alone = (
                ops.convert_to_numpy(model(tree.map_structure(lambda t, r=rows: t[r], x), training=False))
                for rows in (slice(None), slice(0, 1), slice(7, 8))
            )
        except Exception:  # it takes other inputs than random ones
            return
    for row, one in zip((0, 7), alone, strict=True):
        size = np.max(np.abs(one), initial=0.0, where=np.isfinite(one))
        same = len(together) == 11 and one.shape == (1, *together.shape[1:])
        if not same or not np.allclose(together[row], one[0], rtol=1e-3, atol=1e-3 * size + 1e-6, equal_nan=True):
            raise ValueError(
                "The features of a row must depend on that row alone. Received: model "
                f"'{model.name}', where they change with the other rows of the batch. Use layers that treat each row "
                "alone, and declare with lipdp.row_wise only those that do."
            )


def _network(model):
    """The graph of a model alone: tasks have methods of their own around it."""
    if _keras.has_own_call(model):
        return model
    made = keras.Model(*_keras.structures(_keras.graph(model)), name=model.name)
    made.run_eagerly = model.run_eagerly
    return made
