"""Losses of Keras, as one value per example."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, isolation
from lipdp.losses.base import Loss, is_as_its_class
from lipdp.losses.labels import check_unit_interval, few, row_signs
from lipdp.losses.registry import get

_ROWS = 11
_OUTLIER = 1e6
# Ranges of synthetic outputs: the next one is used where the loss is not finite on the one before.
_OUTPUTS = ((0.1, 0.9), (-3.0, 3.0), (1.1, 9.0))
# Losses of Keras whose value for a row depends on that row only. Dice, Tversky and Circle are none of them.
_KNOWN = {
    *("BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy", "CategoricalFocalCrossentropy"),
    *("CategoricalGeneralizedCrossEntropy", "CategoricalHinge", "CosineSimilarity", "Hinge", "Huber", "KLDivergence"),
    *("LogCosh", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError", "MeanSquaredLogarithmicError"),
    *("Poisson", "SparseCategoricalCrossentropy", "SquaredHinge"),
    *("binary_crossentropy", "binary_focal_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy"),
    *("categorical_generalized_cross_entropy", "categorical_hinge", "cosine_similarity", "hinge", "huber"),
    *("kl_divergence", "log_cosh", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_error"),
    *("mean_squared_logarithmic_error", "poisson", "sparse_categorical_crossentropy", "squared_hinge"),
}


class _Mixing(ValueError):
    """A loss was seen to mix examples."""


def resolve(identifier: Any, probabilities: bool = False) -> keras.losses.Loss:
    """Returns a loss from whatever `compile` accepts for one output: lipdp's by name first, then those of Keras.

    Args:
        identifier: An object, name or configuration of a loss, or a function `(y_true, y_pred)`.
        probabilities: Whether the output ends in softmax or sigmoid: the name of a cross-entropy is then that of
            Keras, as lipdp's take logits.

    Returns:
        A `lipdp.losses.Loss`, a `keras.losses.Loss` or a function.

    Raises:
        ValueError: neither lipdp nor Keras knows it.
    """
    if isinstance(identifier, (list, tuple)) or (
        isinstance(identifier, dict) and not {"class_name", "config"} & set(identifier)
    ):
        raise ValueError(
            f"An output has one loss. Received: a {type(identifier).__name__} of {len(identifier)} losses. Pass one "
            "loss for each output of the model."
        )
    if isinstance(identifier, str) and identifier.lower() == "bce":
        identifier = "binary_crossentropy"
    if probabilities and isinstance(identifier, str) and identifier.lower().endswith("crossentropy"):
        # As an object, which also fits labels (batch,) to outputs (batch, 1), as `compile` of Keras makes one.
        name = identifier.title().replace("_", "") if identifier.islower() else identifier
        if hasattr(keras.losses, name):
            return keras.losses.get(name)
    try:
        loss: Any = get(identifier)
    except ValueError as refusal:
        try:
            loss = keras.losses.get(identifier)
        except (ValueError, TypeError):
            loss = None
        if not callable(loss):
            raise refusal
    owner = next((kind for kind in type(loss).__mro__ if "__call__" in vars(kind)), None)
    if isinstance(loss, keras.losses.Loss) and owner is not keras.losses.Loss:
        raise ValueError(
            "The loss of an example is what `call` returns: `__call__`, which is of the whole batch, is not used. "
            f"Received: {type(loss).__name__} with a `__call__` of its own. Put what it does into `call`."
        )
    return loss


def example_values(loss: keras.losses.Loss, y_true: Any, y_pred: Any) -> Any:
    """Returns the loss of each example, `(batch,)`, in float32, in which all that follows is computed.

    What Keras sums or averages over the other axes, it does here; places that a mask hides are left out, as in Keras.

    **Guarantee.** The value of a row and its gradient depend on no other row: a loss that is neither lipdp's nor one of
    those of Keras that are known to keep rows apart sees one row at a time, unless it was declared (`lipdp.row_wise`).
    """
    y_true, y_pred = _only(y_true), _only(y_pred)
    mask = _keras.mask(y_pred)
    y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    if mask is not None and _keras.mask(y_pred) is None:
        _keras.set_mask(y_pred, mask)
    if _keeps_apart(loss, y_true, y_pred):
        return _values(loss, y_true, y_pred)
    return isolation.alone(functools.partial(_values, loss), f"The loss {_name(loss)}")(y_true, y_pred)


def limited_values(loss: Loss, y_true: Any, y_pred: Any, limit: Any) -> tuple[Any, Any]:
    """Returns `loss.limited`, in float32 and one row at a time where `example_values` would be."""

    def run(y_true, y_pred):
        values, norms = loss.limited(y_true, y_pred, limit)
        return ops.cast(values, "float32"), ops.cast(norms, "float32")

    y_true, y_pred = ops.convert_to_tensor(_only(y_true)), ops.convert_to_tensor(_only(y_pred))
    if not _keeps_apart(loss, y_true, y_pred):
        run = isolation.alone(run, f"The loss {_name(loss)}")
    return run(y_true, y_pred)


def _only(nest):
    """Returns the tensor of a model whose outputs are a list or dictionary of one; its rows must not become columns."""
    held = list(nest.values()) if isinstance(nest, dict) else nest
    return held[0] if isinstance(held, (list, tuple)) and len(held) == 1 and hasattr(held[0], "shape") else nest


def _values(loss, y_true, y_pred):
    if isinstance(loss, Loss):
        return ops.cast(loss.call(y_true, y_pred), "float32")
    function, reduction = loss, None
    if isinstance(loss, keras.losses.Loss):
        function, reduction = loss.call, loss.reduction
    mask = _keras.mask(y_pred)
    if _is_stock(loss):
        y_true, y_pred = _of_one_rank(loss, y_true, y_pred)
        y_true = row_signs(_name(loss), y_true)
    values = function(y_true, y_pred)
    labelled = _keras.mask(values)  # of `ignore_class`
    values = ops.cast(values, "float32")
    if len(values.shape) < 1:
        raise _Mixing(_mixes(loss, "it returns one number for the whole batch"))
    axes = tuple(range(1, len(values.shape)))
    there = _shown(mask, values)
    labelled = _shown(labelled, values)
    if labelled is not None:
        there = labelled if there is None else ops.logical_and(there, labelled)
    if there is not None:
        values = ops.where(there, values, ops.zeros_like(values))
    if not axes:
        return values
    if reduction == "sum":
        return ops.sum(values, axis=axes)
    if there is None:
        return ops.mean(values, axis=axes)
    # Of each row alone: Keras divides by the places of all rows together.
    number = ops.sum(ops.cast(there, values.dtype), axis=axes)
    return ops.sum(values, axis=axes) / ops.maximum(number, 1.0)


def _shown(mask, values):
    """Returns which values a mask of the output does not hide, or None where there is none for these axes."""
    if mask is None or len(mask.shape) > len(values.shape):
        return None
    sizes = zip(mask.shape, values.shape, strict=False)
    if any(None not in pair and pair[0] != pair[1] for pair in sizes):
        return None
    mask = ops.reshape(mask, (*ops.shape(mask), *(1 for _ in values.shape[len(mask.shape) :])))
    return ops.broadcast_to(ops.cast(mask, "bool"), ops.shape(values))


def _of_one_rank(loss, y_true, y_pred):
    """Fits labels `(batch,)` to outputs `(batch, 1)` and the like, as the loss objects of Keras do.

    Not all of its functions do: theirs would be broadcast to `(batch, batch)`, each row with all others.
    """
    more = len(y_pred.shape) - len(y_true.shape)
    if _takes_ids(loss):
        column = more == 0 and y_true.shape[-1] == 1
        return ops.squeeze(y_true, -1) if column else y_true, y_pred
    if more == 1 and y_pred.shape[-1] == 1:
        alone = len(y_true.shape) == 1
        return (ops.expand_dims(y_true, -1), y_pred) if alone else (y_true, ops.squeeze(y_pred, -1))
    if more == -1 and y_true.shape[-1] == 1:
        alone = len(y_pred.shape) == 1
        return (y_true, ops.expand_dims(y_pred, -1)) if alone else (ops.squeeze(y_true, -1), y_pred)
    return y_true, y_pred


def _takes_ids(loss) -> bool:
    """Whether a loss of Keras takes the number of a class in place of a row of labels."""
    return _name(loss).lower().startswith("sparse") or _generalized(loss)


def _generalized(loss) -> bool:
    return _name(loss).lower().replace("_", "") == "categoricalgeneralizedcrossentropy"


def _keeps_apart(loss, y_true, y_pred) -> bool:
    """Whether the value of a row is known to depend on that row only, for labels and outputs of these shapes."""
    kind = type(loss) if isinstance(loss, keras.losses.Loss) else loss
    if isolation.is_declared(kind):
        return True
    if isolation.root(kind) == "lipdp":
        return is_as_its_class(loss)
    if not _is_stock(loss):
        return kind in (keras.losses.CTC, keras.losses.ctc) and is_as_its_class(loss)
    labels, outputs = tuple(y_true.shape)[1:], tuple(y_pred.shape)[1:]
    axis = _keras.loss_arguments(loss).get("axis", -1)
    if axis is None or not isinstance(axis, int) or not axis % (len(outputs) + 1):
        return False
    known = None not in outputs or _takes_ids(loss)
    return known and _fits(loss, labels, outputs)


def _is_stock(loss) -> bool:
    """Whether a loss is one of Keras that keep rows apart, as Keras wrote it."""
    kind = type(loss) if isinstance(loss, keras.losses.Loss) else loss
    name = getattr(kind, "__name__", "")
    return name in _KNOWN and getattr(keras.losses, name, None) is kind and is_as_its_class(loss)


def _fits(loss, labels: tuple, outputs: tuple) -> bool:
    """Whether labels of one row have the shape that a loss of Keras takes for outputs of one row."""
    if _takes_ids(loss):
        if not outputs or _generalized(loss) and outputs[-1] == 1:
            return False  # there, even the object of Keras broadcasts
        return labels in (outputs[:-1], (*outputs[:-1], 1))
    # Labels of another shape would be broadcast, perhaps along the batch.
    return labels == outputs or (*labels, 1) == outputs or labels == (*outputs, 1)


def check_per_example(loss: keras.losses.Loss, y: np.ndarray, output_shape: tuple[int | None, ...]) -> None:
    """Refuses a loss that does not fit labels and outputs, or whose value for one example depends on the others.

    The latter by trying it on synthetic values, an outlier among them. That is a help, not what the guarantee rests on
    (`example_values`).

    Args:
        loss: What `resolve` returned.
        y: All labels. Their values count only where the loss takes class ids or bits, or is one of lipdp's.
        output_shape: Of the model, batch axis included.

    Raises:
        ValueError: the loss mixes examples, does not fit the labels, or the labels are out of its range.
    """
    if len(output_shape) == 1 and (isinstance(loss, Loss) or _is_stock(loss)):
        raise ValueError(
            f"The loss {_name(loss)} needs an axis behind that of the examples. Received: an output of shape (batch,), "
            "as Reshape(()) and squeeze make it. Leave these out: to an output (batch, 1) labels (N,) fit as well."
        )
    if isinstance(loss, Loss):
        return loss.check_labels(y, output_shape[-1])
    along_last = _is_stock(loss) and _keras.loss_arguments(loss).get("axis", -1) == -1
    if along_last and None not in output_shape[1:] and not _fits(loss, y.shape[1:], output_shape[1:]):
        raise ValueError(_wrong_shape(loss, y.shape[1:], output_shape[1:]))
    if (check := label_check(loss, output_shape)) is not None:
        check(y)
    rng = np.random.default_rng(0)
    # An unknown size, such as the length of a sequence, is that of the labels.
    known = dict(enumerate(y.shape)) if len(y.shape) >= len(output_shape) - 1 else {}
    shape = (_ROWS, *(known.get(k, 3) if n is None else n for k, n in enumerate(output_shape[1:], 1)))
    failure = None
    for least, largest in _OUTPUTS:
        predictions = rng.uniform(least, largest, shape).astype("float32")
        finite = False
        for labels in _synthetic_labels(rng, y, shape[-1]):
            try:
                finite = _compare(loss, labels, predictions) or finite
            except _Mixing as error:
                raise _Mixing(f"{error}{_broadcast(y.shape[1:], output_shape[1:])}") from None
            except Exception as error:  # labels of another kind may do
                failure = failure or error
                continue
            if _keeps_apart(loss, labels, predictions):
                return None
        if finite:
            return None
        if failure is not None:
            raise ValueError(
                f"The loss cannot be computed for labels of shape {('batch', *y.shape[1:])} and outputs of shape "
                f"{('batch', *output_shape[1:])}. Received: loss={_name(loss)}, {failure}"
            ) from failure
    return None


def label_check(loss: Any, output_shape: Any) -> Callable[[Any], Any] | None:
    """Returns what raises ValueError for labels that a loss does not allow; None for losses that allow all.

    Args:
        loss, output_shape: As in `check_per_example`.

    **Guarantee.** Where a bound of lipdp's losses depends on labels, it holds for all that are let through; whether a
    label is depends on no other.
    """
    if isinstance(loss, Loss):
        return lambda y: loss.check_labels(y, output_shape[-1])
    if _ids_are_checked(loss):
        return lambda y: _check_classes(loss, y, output_shape[-1])
    # Not where a row has several places: a mask may hide some, and pixels may lie a little beside [0, 1].
    if _is_stock(loss) and _name(loss).lower().startswith("binary") and len(output_shape) == 2 and output_shape[1]:
        return lambda y: check_unit_interval(_name(loss), y.reshape(len(y), output_shape[1]), output_shape[1])
    return None


def _synthetic_labels(rng, y, classes: int):
    """Labels of the shape and type of `y`: whether a loss is refused must not depend on what is in private ones."""
    shape = (_ROWS, *y.shape[1:])
    kinds = [rng.integers(0, 2, shape), rng.integers(0, max(2, classes), shape)]
    if y.dtype.kind in "if":
        kinds += [2 * rng.integers(0, 2, shape) - 1, rng.integers(2, 10, shape)]
    if y.dtype.kind == "f":
        kinds.append(rng.uniform(0.1, 0.9, shape))
    return [kind.astype(y.dtype) for kind in kinds]


def _compare(loss, labels, predictions) -> bool:
    """Refuses values of all rows together that are not those of each row alone; returns whether they are finite."""
    rows = (0, _ROWS // 2, _ROWS - 1)
    large = np.concatenate([predictions[:-1], _OUTLIER * predictions[-1:]])
    finite = True
    for outputs in (predictions, large):
        y_true, y_pred = ops.convert_to_tensor(labels), ops.convert_to_tensor(outputs)
        together = ops.convert_to_numpy(_values(loss, y_true, y_pred))
        if together.shape != (_ROWS,):
            raise _Mixing(_mixes(loss, f"for {_ROWS} examples it returns values of shape {together.shape}"))
        finite = finite and bool(np.isfinite(together[:-1]).all())
        for i in rows:
            alone = ops.convert_to_numpy(_values(loss, y_true[i : i + 1], y_pred[i : i + 1]))
            if alone.shape != (1,) or not np.allclose(together[i], alone[0], rtol=1e-4, atol=1e-5, equal_nan=True):
                raise _Mixing(_mixes(loss, "the value of an example changes with the others in its batch"))
        # As the step computes it: a vectorized map has rules of its own.
        mapped = ops.convert_to_numpy(example_values(loss, y_true, y_pred))
        if not np.allclose(mapped, together, rtol=1e-4, atol=1e-5, equal_nan=True):
            raise _Mixing(_mixes(loss, "one row at a time its values are others"))
    return finite


def _ids_are_checked(loss) -> bool:
    # Those of a subclass too, which runs one row at a time.
    return isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or _is_stock(loss) and _takes_ids(loss)


def _check_classes(loss, y, classes) -> None:
    ignored = getattr(loss, "ignore_class", None)
    wrong = (y < 0) | (y >= classes) | (y != np.floor(y))
    if ignored is not None:
        wrong &= y != ignored
    if wrong.any():
        todo = " Number the classes from 0, or give the layer of logits one output for each."
        if ignored is None and (y[wrong] == y[wrong][0]).all() and y[wrong][0] in (-1, 255):
            todo = f" To leave these out, as places without a label, pass ignore_class={y[wrong][0]:g} to the loss."
        raise ValueError(
            f"Labels must be class ids from 0 to {classes - 1}. Received: {few(y[wrong])}, in "
            f"{int(wrong.sum())} of {wrong.size} labels.{todo}"
        )


def _wrong_shape(loss, labels: tuple, outputs: tuple) -> str:
    kind = "keras.losses.CategoricalCrossentropy"
    if _takes_ids(loss):
        todo = f"For one-hot labels use {kind}." if labels == outputs else "Pass one class id per example."
    elif labels in ((), (1,)) and "categorical" in _name(loss).lower():
        todo = (
            f"For class ids use {kind.replace('Cat', 'SparseCat')}, or make them one-hot (keras.utils.to_categorical)."
        )
    else:
        todo = "They would be broadcast to each other: give labels and outputs the same shape."
    return (
        f"Labels and outputs do not fit each other. Received: loss={_name(loss)} with labels of shape "
        f"{('batch', *labels)} and outputs of shape {('batch', *outputs)}. {todo}"
    )


def _mixes(loss, reason: str) -> str:
    todo = (
        "Return one value for each example: take means and sums over its own outputs alone, by `axis=-1`, or (1, 2, 3) "
        "of images. What compares rows, as contrastive losses do, takes groups as rows: docs/howto/pairs.md."
    )
    if isolation.root(getattr(loss, "fn", type(loss) if isinstance(loss, keras.losses.Loss) else loss)) == "keras":
        todo = "Use a loss with one value per example, or set its `axis` to exclude the batch: (1, 2, 3) for images."
    return (
        "A loss that mixes examples has no per-example gradients: one person would move the gradients of others. "
        f"Received: loss={_name(loss)}; {reason}. {todo}"
    )


def _broadcast(labels: tuple, outputs: tuple) -> str:
    """Returns what to do where labels and outputs of two shapes would be broadcast along the batch; "" elsewhere."""
    if len(labels) + 1 != len(outputs) or outputs[-1] != 1:
        return ""
    return (
        f" Labels of shape {('batch', *labels)} are broadcast to outputs of shape {('batch', *outputs)}, all rows with "
        "all others: give the labels the shape of the outputs, as y[..., None]."
    )


def _name(loss) -> str:
    return getattr(loss, "__name__", type(loss).__name__)
