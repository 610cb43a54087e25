"""Losses of Keras, as one value per example."""

from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp.losses.base import Loss
from lipdp.losses.registry import get

_ROWS = 5
# Ranges of synthetic outputs: the next one is used where the loss is not finite on the one before.
_OUTPUTS = ((0.1, 0.9), (-3.0, 3.0), (1.1, 9.0))


def resolve(identifier: Any) -> keras.losses.Loss:
    """Returns a loss from whatever `compile` accepts: lipdp's by name first, then those of Keras.

    Args:
        identifier: An object, name or configuration of a loss, or a function `(y_true, y_pred)`.

    Returns:
        A `lipdp.losses.Loss`, a `keras.losses.Loss` or a function.

    Raises:
        ValueError: neither lipdp nor Keras knows it.
    """
    try:
        return get(identifier)
    except ValueError as refusal:
        try:
            loss = keras.losses.get(identifier)
        except (ValueError, TypeError):
            loss = None
        if not callable(loss):
            raise refusal
        return loss


def example_values(loss: keras.losses.Loss, y_true: Any, y_pred: Any) -> Any:
    """Returns the loss of each example, `(batch,)`, in float32, in which all that follows is computed.

    What Keras sums or averages over the other axes, it does here.
    """
    if isinstance(loss, Loss):
        return ops.cast(loss.call(y_true, y_pred), "float32")
    function, reduction = loss, None
    if isinstance(loss, keras.losses.Loss):
        function, reduction = loss.call, loss.reduction
    values = ops.cast(function(ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)), "float32")
    if len(values.shape) < 1:
        raise ValueError(_mixes(loss, "it returns one number for the whole batch"))
    if len(values.shape) == 1:
        return values
    axes = tuple(range(1, len(values.shape)))
    return ops.sum(values, axis=axes) if reduction == "sum" else ops.mean(values, axis=axes)


def check_per_example(loss: keras.losses.Loss, y: np.ndarray, output_shape: tuple[int | None, ...]) -> None:
    """Refuses a loss whose value for one example depends on the others, by trying it on synthetic values.

    Args:
        loss: What `resolve` returned.
        y: All labels, of which only shape, type and the range of each entry of a label are used.
        output_shape: Of the model, batch axis included.

    Raises:
        ValueError: the loss mixes examples, does not fit the labels, the labels are out of its range, or it is not
            finite on any of the synthetic values, so that nothing can be compared.
    """
    if isinstance(loss, Loss):
        return loss.check_labels(y, output_shape[-1])
    if isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or loss in (
        keras.losses.sparse_categorical_crossentropy,
    ):
        _check_classes(loss, y, output_shape[-1])
    rng = np.random.default_rng(0)
    shape = (_ROWS, *(3 if size is None else size for size in output_shape[1:]))
    low, high = _range(y)
    for least, largest in _OUTPUTS:
        finite = False
        for labels in _synthetic_labels(rng, y, low, high):
            predictions = rng.uniform(least, largest, shape).astype("float32")
            values = _compared(loss, labels, predictions, (y.shape[1:], output_shape[1:]))
            finite = finite or bool(np.isfinite(values).all())
        if finite:
            return None
    raise ValueError(
        "A loss that is NaN or infinite cannot be tested for cross-example dependence. Received: "
        f"loss={_name(loss)}, not finite on synthetic labels within the range of yours and outputs from "
        f"{_OUTPUTS[0][0]} to {_OUTPUTS[-1][1]}. Keep it finite for such values, "
        "for instance by clipping the argument of a logarithm."
    )


def _range(y):
    """The least and the largest finite value of each entry of a label; 0 and 1 where there is none."""
    if y.dtype.kind not in "biuf" or not len(y):
        return np.zeros(y.shape[1:]), np.ones(y.shape[1:])
    low, high = y.min(axis=0), y.max(axis=0)
    if np.isfinite(low).all() and np.isfinite(high).all():
        return low.astype("float64"), high.astype("float64")
    known = np.isfinite(y)
    low, high = np.where(known, y, np.inf).min(axis=0), np.where(known, y, -np.inf).max(axis=0)
    some = known.any(axis=0)
    return np.where(some, low, 0.0).astype("float64"), np.where(some, high, 1.0).astype("float64")


def _synthetic_labels(rng, y, low, high):
    """Labels at the ends of the range, and labels within."""
    shape = (_ROWS, *y.shape[1:])
    # In turn along a row and from row to row.
    ends = np.add.outer(np.arange(_ROWS), np.arange(int(np.prod(y.shape[1:])))).reshape(shape) % 2 == 0
    yield np.where(ends, low, high).astype(y.dtype)
    if y.dtype.kind == "f":
        yield (low + rng.uniform(size=shape) * (high - low)).astype(y.dtype)
    else:
        inside = low + np.floor(rng.uniform(size=shape) * (high - low + 1.0))
        # Between the signs -1 and 1 there is no label.
        signs = (low == -1.0) & (high == 1.0)
        yield np.where(signs & (inside == 0.0), 1.0, inside).astype(y.dtype)


def _compared(loss, labels, predictions, shapes):
    """Returns the values of all rows together, which must be those of each row alone."""
    try:
        together = ops.convert_to_numpy(example_values(loss, labels, predictions))
        alone = [
            ops.convert_to_numpy(example_values(loss, labels[i : i + 1], predictions[i : i + 1])) for i in range(_ROWS)
        ]
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"The loss cannot be computed for labels of shape {('batch', *shapes[0])} and outputs of shape "
            f"{('batch', *shapes[1])}. Received: loss={_name(loss)}, {error}"
        ) from error
    if together.shape != (_ROWS,) or any(a.shape != (1,) for a in alone):
        raise ValueError(_mixes(loss, f"for {_ROWS} examples it returns values of shape {together.shape}"))
    if not np.allclose(together, np.concatenate(alone), rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ValueError(_mixes(loss, "the value of an example changes with the others in its batch"))
    return together


def refuse_additional(added: list) -> None:
    """Refuses losses beside the one that was compiled, which no bound and no clipping covers."""
    if added:
        raise ValueError(
            "Additional losses (regularizers, `add_loss`) have no sensitivity bound. Remove them from layer "
            f"configurations. Received: {len(added)} of them."
        )


def _check_classes(loss, y, classes) -> None:
    ignored = getattr(loss, "ignore_class", None)
    wrong = (y < 0) | (y >= classes) | (y != np.floor(y))
    if ignored is not None:
        wrong &= y != ignored
    if wrong.any():
        raise ValueError(
            f"Labels must be class ids from 0 to {classes - 1}. Received: {y[wrong].flat[0]!r}, in "
            f"{int(wrong.sum())} of {wrong.size} labels."
        )


def _mixes(loss, reason: str) -> str:
    return (
        "A loss that mixes examples has no per-example gradients: one person would move the gradients of others. "
        f"Received: loss={_name(loss)}; {reason}. Use a loss with one value per example, such as "
        "keras.losses.CategoricalCrossentropy, or set its `axis` to exclude the batch."
    )


def _name(loss) -> str:
    return getattr(loss, "__name__", type(loss).__name__)
