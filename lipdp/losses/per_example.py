"""Losses of Keras, as one value per example."""

import keras
import numpy as np
from keras import ops

from lipdp.losses.base import Loss
from lipdp.losses.registry import get


def resolve(identifier):
    """A loss from whatever `compile` accepts: lipdp's by name first, then those of Keras.

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


def example_values(loss, y_true, y_pred):
    """The loss of each example, `(batch,)`, in float32, in which all is computed that follows.

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


def check_per_example(loss, y: np.ndarray, output_shape) -> None:
    """Refuses a loss whose value for one example depends on the others, by trying it on made-up numbers.

    Args:
        loss: What `resolve` returned.
        y: All labels, of which only shape, type and range are used.
        output_shape: Of the model, batch axis included.

    Raises:
        ValueError: the loss mixes examples, does not fit the labels, or the labels are out of its range.
    """
    if isinstance(loss, Loss):
        return loss.check_labels(y, output_shape[-1])
    if isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or loss in (
        keras.losses.sparse_categorical_crossentropy,
    ):
        _check_classes(loss, y, output_shape[-1])
    rng = np.random.default_rng(0)
    rows = 5
    shape = (rows, *(3 if size is None else size for size in output_shape[1:]))
    predictions = rng.uniform(0.1, 0.9, shape).astype("float32")
    labels = (np.arange(rows * int(np.prod(y.shape[1:]))) % 2).reshape(rows, *y.shape[1:]).astype(y.dtype)
    try:
        together = ops.convert_to_numpy(example_values(loss, labels, predictions))
        alone = [
            ops.convert_to_numpy(example_values(loss, labels[i : i + 1], predictions[i : i + 1])) for i in range(rows)
        ]
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"The loss cannot be computed for labels of shape {('batch', *y.shape[1:])} and outputs of shape "
            f"{('batch', *output_shape[1:])}. Received: loss={_name(loss)}, {error}"
        ) from error
    if together.shape != (rows,) or any(a.shape != (1,) for a in alone):
        raise ValueError(_mixes(loss, f"for {rows} examples it returns values of shape {together.shape}"))
    if not np.allclose(together, np.concatenate(alone), rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ValueError(_mixes(loss, "the value of an example changes with the others in its batch"))
    return None


def refuse_additional(added) -> None:
    """Refuses losses beside the one that was compiled, which no bound and no clipping covers."""
    if added:
        raise ValueError(
            "Additional losses (regularisers, `add_loss`) have no sensitivity bound. Remove them from layer "
            f"configurations. Received: {len(added)} of them."
        )


def _check_classes(loss, y, classes) -> None:
    ignored = getattr(loss, "_fn_kwargs", {}).get("ignore_class")
    wrong = (y < 0) | (y >= classes) | (y != np.floor(y))
    if ignored is not None:
        wrong &= y != ignored
    if wrong.any():
        raise ValueError(
            f"Labels must be class indices from 0 to {classes - 1}. Received: {y[wrong].flat[0]!r}, in "
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
