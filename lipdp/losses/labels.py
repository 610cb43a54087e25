"""Labels: their dense form inside the graph, and their validation on the host before training.

Functions named `*_targets` run in the graph (`keras.ops`) and look at shapes only. Functions named `check_*`
run once in numpy and look at every value. `owner` is the loss' name, for the messages.
"""

from typing import Any

import numpy as np
from keras import ops

SIMPLEX_TOLERANCE = 1e-4
# Labels that a message shows.
_SHOWN = 5


def dense_targets(owner: str, y_true: Any, num_outputs: int) -> Any:
    """Returns labels of shape `(batch, num_outputs)`; `(batch,)` is accepted when there is one output."""
    shape = tuple(y_true.shape)
    if len(shape) == 1 and num_outputs == 1:
        return ops.expand_dims(y_true, -1)
    if len(shape) == 2 and shape[1] == num_outputs:
        return y_true
    raise ValueError(_wrong_shape(owner, shape, num_outputs, dense=True, ids=False))


def row_signs(owner: str, y_true: Any) -> Any:
    """Returns labels for a loss of Keras; those of its hinges, where a row has zeros and ones only, as signs.

    These losses take bits for signs where ALL labels of a batch are bits: a row with another label would change the
    gradients of all others.

    **Guarantee.** What becomes of a row depends on no other row, here and in these losses: where all labels of a batch
    are bits now, they are ones, and ones are what Keras makes of them.
    """
    if owner not in ("Hinge", "SquaredHinge", "hinge", "squared_hinge"):
        return y_true
    y_true = ops.cast(y_true, "float32")
    bits = ops.logical_or(ops.equal(y_true, 0.0), ops.equal(y_true, 1.0))
    of_bits = ops.all(bits, axis=tuple(range(1, len(y_true.shape))), keepdims=True)
    return ops.where(of_bits, 2.0 * y_true - 1.0, y_true)


def id_targets(owner: str, y_true: Any, num_outputs: int) -> Any:
    """Returns the one-hot form of class ids of shape `(batch,)` or `(batch, 1)`.

    An id outside `[0, num_outputs)` becomes a row of zeros on every backend.
    """
    shape = tuple(y_true.shape)
    if len(shape) == 2 and shape[1] == 1:
        y_true = ops.squeeze(y_true, -1)
    elif len(shape) != 1:
        raise ValueError(_wrong_shape(owner, shape, num_outputs, dense=False, ids=True))
    return ops.one_hot(ops.cast(y_true, "int32"), num_outputs, dtype=y_true.dtype)


def class_targets(owner: str, y_true: Any, num_outputs: int) -> Any:
    """Returns one-hot labels from one-hot labels or from class ids, told apart by their shape."""
    shape = tuple(y_true.shape)
    if len(shape) == 2 and shape[1] == num_outputs:
        return y_true
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
        return id_targets(owner, y_true, num_outputs)
    raise ValueError(_wrong_shape(owner, shape, num_outputs, dense=True, ids=True))


def check_dense(owner: str, y_true: np.ndarray, num_outputs: int) -> np.ndarray:
    """Refuses labels that are not finite numbers of shape `(n, num_outputs)`; return them as that array."""
    y = _numbers(owner, y_true)
    if y.ndim == 1 and num_outputs == 1:
        y = y[:, None]
    if y.ndim != 2 or y.shape[1] != num_outputs:
        raise ValueError(_wrong_shape(owner, y.shape, num_outputs, dense=True, ids=False))
    return y


def check_ids(owner: str, y_true: np.ndarray, num_outputs: int) -> None:
    """Refuses labels that are not whole numbers in `[0, num_outputs)` of shape `(n,)` or `(n, 1)`."""
    y = _numbers(owner, y_true)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(_wrong_shape(owner, y.shape, num_outputs, dense=False, ids=True))
    if y.dtype.kind == "f":
        _refuse(owner, "class ids must be whole numbers", y, y != np.floor(y), "Pass integer class ids.")
    todo = f"Number the classes from 0 to {num_outputs - 1}, or give the last layer one output per class."
    _refuse(owner, f"class ids must lie in [0, {num_outputs})", y, (y < 0) | (y >= num_outputs), todo)


def check_simplex(owner: str, y_true: np.ndarray, num_outputs: int) -> None:
    """Refuses rows that are not probability distributions over the outputs."""
    y = check_dense(owner, y_true, num_outputs)
    bad = (y < 0).any(axis=1) | (np.abs(y.sum(axis=1, dtype=np.float64) - 1.0) > SIMPLEX_TOLERANCE)
    todo = "Pass one-hot rows (keras.utils.to_categorical) or probabilities that sum to 1."
    _refuse(owner, "each row of labels must be non-negative and sum to 1", y, bad, todo)


def check_classes(owner: str, y_true: np.ndarray, num_outputs: int) -> None:
    """Refuses labels that are neither class ids nor one-hot rows."""
    y = _numbers(owner, y_true)
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        check_ids(owner, y, num_outputs)
        return
    if y.ndim != 2 or y.shape[1] != num_outputs:
        raise ValueError(_wrong_shape(owner, y.shape, num_outputs, dense=True, ids=True))
    bad = ((y != 0) & (y != 1)).any(axis=1) | ((y == 1).sum(axis=1) != 1)
    todo = "Pass class ids, or one-hot rows (keras.utils.to_categorical)."
    _refuse(owner, "each row of labels must hold a single 1 and zeros", y, bad, todo)


def check_unit_interval(owner: str, y_true: np.ndarray, num_outputs: int) -> None:
    """Refuses labels outside `[0, 1]`; -1/+1 labels get their own advice."""
    y = check_dense(owner, y_true, num_outputs)
    signs = y.size and bool(np.isin(y, (-1, 1)).all())
    todo = "Turn -1/+1 labels into 0/1 with (y + 1) / 2." if signs else "Pass 0/1 labels or probabilities."
    _refuse(owner, "labels must lie in [0, 1]", y, ((y < 0) | (y > 1)).any(axis=1), todo)


def check_nonzero(owner: str, y_true: np.ndarray, num_outputs: int) -> None:
    """Refuses all-zero rows, which have no direction."""
    y = check_dense(owner, y_true, num_outputs)
    _refuse(owner, "a row of labels must not be all zeros", y, ~y.any(axis=1), "Remove such rows.")


def _numbers(owner: str, y_true: np.ndarray) -> np.ndarray:
    y = np.asarray(y_true)
    if y.dtype.kind not in "biuf":
        raise ValueError(f"{owner}: labels must be numbers. Received: an array of dtype {y.dtype}. Encode them first.")
    if y.dtype.kind == "b":
        return y.astype("int8")
    if y.dtype.kind == "f":
        bad = ~np.isfinite(y)
        bad = bad.any(axis=tuple(range(1, y.ndim))) if y.ndim > 1 else bad
        _refuse(owner, "labels must be finite", y, bad, "Remove or impute these rows.")
    return y


def _refuse(owner: str, rule: str, y: np.ndarray, bad: Any, todo: str) -> None:
    """Raises if any row of `bad` is set, with the number of bad rows, the first one and what to do."""
    if not np.any(bad):
        return
    rows = np.flatnonzero(bad)
    raise ValueError(
        f"{owner}: {rule}, but {len(rows)} of {len(y)} rows are not. "
        f"Received: {few(y[rows])}, first at row {rows[0]}. {todo}"
    )


def few(wrong: np.ndarray) -> str:
    """Returns a few different labels, or rows of labels, as a message shows them."""
    found = list(dict.fromkeys(repr(row) for row in wrong[:1000].tolist()))
    return ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")


def _wrong_shape(owner: str, shape: tuple, num_outputs: int, dense: bool, ids: bool) -> str:
    accepted = []
    if dense:
        accepted.append(f"(batch, {num_outputs})")
    if ids or num_outputs == 1:
        accepted.append("(batch,)")
    if ids:
        accepted.append("(batch, 1)")
    todo = "Match the labels to the outputs of the last layer."
    if len(shape) > 2:
        todo = (
            "Losses of lipdp are for one place: for outputs of several, such as pixels or steps, pass a loss of "
            "keras.losses, with a strategy that clips (strategy='dpsgd')."
        )
    elif not ids and num_outputs > 1 and (len(shape) == 1 or shape[1:] == (1,)):
        todo = "For class ids use keras.utils.to_categorical, or a loss that accepts them."
    elif not dense and len(shape) == 2:
        todo = "Make class ids of one-hot labels (y.argmax(axis=-1)), or use CategoricalCrossentropy."
    return (
        f"{owner}: with {num_outputs} outputs, labels must have shape {' or '.join(accepted)}. "
        f"Received: shape {shape}. {todo}"
    )
