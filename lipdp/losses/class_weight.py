"""Weights of classes, as `fit(class_weight=)` takes them."""

import numbers
from typing import Any

import numpy as np
from keras import ops

_LARGEST = float(np.finfo("float32").max)


def check_class_weight(class_weight: Any) -> tuple[tuple[int, float], ...]:
    """Returns the weights as pairs of class and weight, in the order of the classes; refuses what is none.

    Args:
        class_weight: Dictionary from class ids, from 0, to weights, finite and from 0.

    Returns:
        Pairs `(class id, weight)`.

    Raises:
        ValueError: no such dictionary.

    Example:
        >>> check_class_weight({1: 10, 0: 1.0})
        ((0, 1.0), (1, 10.0))
    """
    wrong = None
    if not isinstance(class_weight, dict) or not class_weight:
        wrong = f"{class_weight!r}"
    else:
        for label, weight in class_weight.items():
            if isinstance(label, bool) or not isinstance(label, numbers.Integral) or label < 0:
                wrong = f"class {label!r}"
            elif isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)):
                wrong = f"weight {weight!r} of class {label!r}"
            elif not 0 <= weight <= _LARGEST:
                wrong = f"weight {weight!r} of class {label!r}"
    if wrong is not None:
        raise ValueError(
            f"`class_weight` must be a dictionary from class ids to weights, such as {{0: 1.0, 1: 10.0}}. Received: "
            f"{wrong}. Ids are integers from 0, weights lie from 0 to {_LARGEST:.3g}; others have weight 1."
        )
    return tuple(sorted((int(label), float(weight)) for label, weight in class_weight.items()))


def check_weighted_labels(output_shape: tuple | None, y: Any) -> None:
    """Refuses labels that name no class for each example.

    Args:
        output_shape: Shape of the model's output; None for several outputs.
        y: Labels, `(N,)`, `(N, 1)` or `(N, classes)`.

    Raises:
        ValueError: several outputs, an output that is no vector, or labels of another shape.

    Example:
        >>> import numpy as np
        >>> check_weighted_labels((None, 3), np.zeros((8, 1)))
    """
    shape, vector = getattr(y, "shape", None), output_shape is not None and len(output_shape) == 2
    if shape is None or not vector or not (len(shape) == 1 or len(shape) == 2 and shape[1] in (1, output_shape[1])):
        received = "several outputs" if output_shape is None else f"labels of shape {shape} for output {output_shape}"
        raise ValueError(
            "`class_weight` needs one output (examples, classes), and labels of shape (examples,), (examples, 1) or "
            f"(examples, classes). Received: {received}. Multiply in a loss of your own instead, see "
            "docs/howto/weights.md."
        )


def class_factors(class_weight: tuple[tuple[int, float], ...], y: Any) -> Any:
    """Returns the weight of each label's class, `(batch,)`; 1 for classes without one.

    Args:
        class_weight: What `check_class_weight` returned.
        y: Class ids `(batch,)` or `(batch, 1)`, or one-hot labels `(batch, classes)`, whose largest entry counts.

    Returns:
        A float32 tensor.

    Example:
        >>> import numpy as np
        >>> [float(w) for w in class_factors(((1, 10.0),), np.array([0, 1, 2]))]
        [1.0, 10.0, 1.0]
    """
    if len(y.shape) == 2 and y.shape[1] != 1:
        labels = ops.argmax(y, axis=1)
    else:
        labels = ops.cast(ops.round(ops.cast(ops.reshape(y, (-1,)), "float32")), "int32")
    factors = ops.ones(ops.shape(labels), "float32")
    for label, weight in class_weight:
        factors = ops.where(labels == label, weight, factors)
    return factors
