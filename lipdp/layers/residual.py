"""Weighted averages of a tensor and a branch of it."""

from typing import Any

from lipdp import _keras, checks
from lipdp.layers.base import LipschitzLayer


@_keras.serializable
class ResidualAverage(LipschitzLayer):
    """`(1 - w) x + w f(x)`: the residual sum of a network that stays 1-Lipschitz.

    The plain sum `x + f(x)` is `keras.layers.Add`; it doubles bounds at every block.

    Args:
        weight: w, the public share of the second input, in [0, 1].

    Call arguments:
        inputs: List of two tensors of the same shape: `[x, f(x)]`.

    Returns:
        Tensor of the same shape.

    Raises:
        ValueError: `weight` is out of range, or there are not two inputs of one known shape.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> x = np.ones((1, 2), "float32")
        >>> [float(v) for v in layers.ResidualAverage(0.25)([x, 5.0 * x])[0]]
        [2.0, 2.0]

    **Guarantee.** Lipschitz with constants 1 - w and w in its two inputs, `||y|| <= (1 - w) ||x|| + w ||f(x)||`
    (triangle inequality). With a 1-Lipschitz branch f the block is 1-Lipschitz, and the cotangent that reaches f,
    hence the gradient bound of its weights, is w times that of the block.
    """

    lipschitz_formula = "1 - w and w"

    def __init__(self, weight: float = 0.5, **kwargs: Any):
        super().__init__(**kwargs)
        self.weight = checks.between("weight", weight, 0, 1)

    def build(self, input_shape: Any) -> None:
        # Sizes that are not known may turn out to be one, which broadcasts.
        shapes = [tuple(shape)[1:] for shape in input_shape] if isinstance(input_shape[0], (tuple, list)) else []
        if len(shapes) != 2 or shapes[0] != shapes[1] or None in shapes[0]:
            raise ValueError(
                f"Layer '{self.name}' takes a list of two tensors of the same, known shape. Received: {input_shape}."
            )

    def call(self, inputs: Any) -> Any:
        first, second = inputs
        if tuple(first.shape)[1:] != tuple(second.shape)[1:]:
            raise ValueError(
                f"Layer '{self.name}' takes two inputs of the same shape. Received: {first.shape} and {second.shape}."
            )
        return (1.0 - self.weight) * first + self.weight * second

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        return (1.0 - self.weight, self.weight)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return tuple(input_shape[0])
