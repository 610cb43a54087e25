"""Labels with a weight for each example: those of `fit(sample_weight=)`, or of a dataset."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from keras import tree
from numpy.typing import ArrayLike

from lipdp.sampling.source import is_source


class WeightedLabels(NamedTuple):
    """Labels, and the weight of each example: they are drawn, cut and padded together.

    Args:
        weight: `(N,)`, float32.
        labels: Labels, or a nest of them, `(N, ...)`. They are last: what reads rows takes the last leaf for labels.

    Example:
        >>> import numpy as np
        >>> weight_and_labels(WeightedLabels(np.ones(2), np.zeros(2)))[0].tolist()
        [1.0, 1.0]
    """

    weight: Any
    labels: Any


def with_weights(y: Any, sample_weight: ArrayLike) -> WeightedLabels:
    """Returns labels with the weights of their examples; refuses what is no weight for each.

    Args:
        y: Labels, or a nest of them, `(N, ...)`.
        sample_weight: `(N,)` or `(N, 1)`, finite numbers from 0.

    Raises:
        ValueError: they are something else.

    Example:
        >>> import numpy as np
        >>> with_weights(np.zeros(2), [1, 0.5]).weight.tolist()
        [1.0, 0.5]
    """
    rows = len(tree.flatten(y)[0])
    if isinstance(sample_weight, dict):
        raise _refusal("a dictionary", "Weights by output are not supported: `loss_weights` of `compile` are.")
    if is_source(sample_weight) and not hasattr(sample_weight, "__array__"):  # numpy might read it for ever
        raise _refusal(
            f"an object of type {type(sample_weight).__name__}", "Pass an array of one number for each example."
        )
    try:
        weight = np.asarray(sample_weight)
        number = weight.dtype.kind in "biuf"
    except ValueError:
        number = False
    if not number:
        raise _refusal("what is no array of numbers", "Pass an array of one number for each example.")
    if weight.shape not in ((rows,), (rows, 1)):
        raise _refusal(
            f"an array of shape {weight.shape} for {rows} examples",
            "Pass one number for each example; to weight parts of a label, or leave them out, write a loss of "
            "your own, see docs/howto/weights.md.",
        )
    with np.errstate(over="ignore"):
        weight = weight.reshape(rows).astype("float32")
    if not (np.isfinite(weight) & (weight >= 0)).all():
        wrong = weight[~(np.isfinite(weight) & (weight >= 0))][0]
        raise _refusal(f"{wrong:g}", "Pass finite numbers from 0; an example of weight 0 moves nothing.")
    return WeightedLabels(weight, y)


def weight_and_labels(y: Any) -> tuple[Any, Any]:
    """Returns `(weight, labels)` of labels with weights, and `(None, y)` of all others.

    Args:
        y: Labels, a nest of them, or `WeightedLabels`.

    Example:
        >>> weight_and_labels([1, 2])
        (None, [1, 2])
    """
    return (y.weight, y.labels) if isinstance(y, WeightedLabels) else (None, y)


def with_weights_last(data: Any) -> Any:
    """Returns `(x, y)` with weights in its labels as Keras takes it, `(x, y, weight)`; all else as it is.

    Args:
        data: What is held out for validation, or None.

    Example:
        >>> with_weights_last(("x", WeightedLabels("weight", "y")))
        ('x', 'y', 'weight')
    """
    if not isinstance(data, tuple) or len(data) != 2:
        return data
    weight, labels = weight_and_labels(data[1])
    return data if weight is None else (data[0], labels, weight)


def _refusal(received: str, todo: str) -> ValueError:
    return ValueError(f"`sample_weight` must hold one weight for each example. Received: {received}. {todo}")
