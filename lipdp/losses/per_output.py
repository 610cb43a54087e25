"""One loss for each output of a model, as Keras' `compile` takes lists and dictionaries of losses."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import _keras, checks
from lipdp.losses import per_example


@_keras.serializable
class Untrained(keras.losses.Loss):
    """The loss of an output that trains nothing, as `compile(loss=...)` with None for it: 0, whatever the labels.

    **Guarantee.** The gradient of every example is 0.

    Example:
        >>> [float(value) for value in Untrained().call(None, np.ones((2, 3)))]
        [0.0, 0.0]
    """

    def __init__(self, name: str = "untrained"):
        super().__init__(name=name)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.zeros((ops.shape(y_pred)[0],))


@_keras.serializable
class OutputLosses(keras.losses.Loss):
    """The weighted sum of the losses of several outputs; `compile` makes it from what Keras takes.

    Args:
        losses: One loss for each output, in the order of the model's outputs.
        weights: Their factors; default: 1.
        names: What the outputs are called in dictionaries of labels and in logs.
        name: Name of the sum.

    Raises:
        ValueError: not one weight and one name for each loss, or a weight that is not finite.

    **Guarantee.** The value of a row and its gradient depend on no other row, as each loss is computed by
    `example_values`. The gradient of one example is that of the sum, so what clips it clips all outputs together.

    Example:
        >>> import numpy as np
        >>> both = OutputLosses(["mse", "mae"], [1.0, 0.5], ["a", "b"])
        >>> y, y_pred = np.zeros((2, 1)), np.full((2, 1), 2.0)
        >>> [float(value) for value in example_values(both, {"a": y, "b": y}, [y_pred, y_pred])]
        [5.0, 5.0]
    """

    def __init__(
        self,
        losses: Sequence,
        weights: Sequence[float] | None = None,
        names: Sequence[str] = (),
        name: str = "output_losses",
    ):
        super().__init__(name=name)
        self.losses = [per_example.resolve(loss) for loss in losses]
        given = [1.0] * len(self.losses) if weights is None else weights
        self.weights = [checks.real("loss_weights", weight) for weight in given]
        self.names = list(names) or [f"output_{i}" for i in range(len(self.losses))]
        if not len(self.losses) == len(self.weights) == len(self.names):
            raise ValueError(
                "Each output has one loss and one weight. Received: "
                f"{len(self.losses)} losses and {len(self.weights)} weights for {len(self.names)} outputs."
            )

    def get_config(self) -> dict[str, Any]:
        losses = [keras.saving.serialize_keras_object(loss) for loss in self.losses]
        return {"name": self.name, "losses": losses, "weights": self.weights, "names": self.names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "OutputLosses":
        return cls(**config | {"losses": [keras.saving.deserialize_keras_object(loss) for loss in config["losses"]]})

    def labels(self, y: Any) -> list:
        """Returns the labels of each output, from a list, tuple or dictionary of them.

        Where one output alone has a loss its labels may stand alone, as in Keras.

        Raises:
            ValueError: they are not one for each output.
        """
        needed = {n for n, loss in zip(self.names, self.losses, strict=True) if not isinstance(loss, Untrained)}
        if len(needed) == 1 and not isinstance(y, (dict, list, tuple, type(None))):
            return _filled([y if name in needed else None for name in self.names])
        wanted = f"one array for each output: {', '.join(map(repr, self.names))}"
        if isinstance(y, dict) and needed <= set(y) <= set(self.names):
            return _filled([y.get(name) for name in self.names])
        if isinstance(y, (list, tuple)) and len(y) == len(self.names):
            return _filled([y[i] if name in needed or y[i] is not None else None for i, name in enumerate(self.names)])
        flat = tree.flatten(y) if isinstance(y, (dict, list, tuple)) else None
        named = isinstance(y, dict) and not any(isinstance(part, (dict, list, tuple)) for part in y.values())
        if named or flat is None or len(flat) != len(self.names):
            received = sorted(map(str, y)) if isinstance(y, dict) else None if flat is None else len(flat)
            raise ValueError(
                f"`y` must hold {wanted}. Received: a {type(y).__name__}{'' if received is None else f' of {received}'}"
                ". Pass a list in this order, or a dictionary with these keys."
            )
        return flat

    def values(self, y_true: Any, y_pred: Any) -> list:
        """Returns the loss of each example for each output, without the weights: tensors `(batch,)`."""
        parts = zip(self.losses, self.labels(y_true), tree.flatten(y_pred), strict=True)
        return [
            loss.call(y, outputs) if isinstance(loss, Untrained) else per_example.example_values(loss, y, outputs)
            for loss, y, outputs in parts
        ]

    def call(self, y_true: Any, y_pred: Any) -> Any:
        values = self.values(y_true, y_pred)
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True))


def example_values(loss: Any, y_true: Any, y_pred: Any) -> Any:
    """Returns the loss of each example, `(batch,)`: of one output, or the weighted sum over all of them."""
    if isinstance(loss, OutputLosses):
        return loss.call(y_true, y_pred)
    return per_example.example_values(loss, y_true, y_pred)


def check_per_example(loss: Any, y: Any, output_shape: Any) -> None:
    """Refuses what `per_example.check_per_example` does, for one output or, by name, for each of several.

    Args:
        loss: What `compile` made of what it was given.
        y: All labels.
        output_shape: Shape of the output, or a list of them.
    """
    if not isinstance(loss, OutputLosses):
        return per_example.check_per_example(loss, y, output_shape)
    for name, one, labels, shape in zip(loss.names, loss.losses, loss.labels(y), output_shape, strict=True):
        try:
            if not isinstance(one, Untrained):
                per_example.check_per_example(one, labels, shape)
        except ValueError as error:
            raise ValueError(f"Output '{name}': {error}") from error
    return None


def parts(loss: Any) -> list:
    """Returns the losses of all outputs."""
    return loss.losses if isinstance(loss, OutputLosses) else [loss]


def _filled(found: list) -> list:
    """Returns labels of all outputs, 0 for those that need none."""
    there = next(labels for labels in found if labels is not None)
    if not (hasattr(there, "shape") or hasattr(there, "__len__")):
        raise ValueError(
            "`y` must hold one array for each output of the model, with a label for each row. Received: a number in "
            f"its place, {there!r}. Pass the labels of rows as an array, numpy.array([...])."
        )
    blank = ops.zeros(ops.shape(there)[:1]) if ops.is_tensor(there) else np.zeros(len(there), "float32")
    return [blank if labels is None else labels for labels in found]
