"""What one forward and one backward pass leave behind."""

from keras import ops


class Record:
    """Per-example gradients of a batch, in factored form.

    Attributes:
        values: Per-example losses as the loss gave them, `(batch * views,)`, not multiplied by the weights.
        y_pred: Output of the model.
        non_trainable: On JAX the updated values of the model's non-trainable variables; None on TensorFlow,
            where they are updated in place.
    """

    def __init__(self, factors, values, y_pred, non_trainable):
        self._factors = factors
        self.values, self.y_pred, self.non_trainable = values, y_pred, non_trainable

    def squared_norms(self, centre=None, inverse_scale=None) -> list:
        """Squared norms of `inverse_scale * (g_i - centre)`, one `(batch,)` tensor per trainable variable."""
        if centre is None and inverse_scale is None:
            return [factor.squared_norm() for factor in self._factors]
        centre = [0.0] * len(self._factors) if centre is None else centre
        inverse_scale = [1.0] * len(self._factors) if inverse_scale is None else inverse_scale
        return [
            factor.scaled_squared_norm(a, s) for factor, a, s in zip(self._factors, centre, inverse_scale, strict=True)
        ]

    def weighted_sum(self, coefficients) -> list:
        """`sum_i c_i g_i`, one tensor per trainable variable.

        Args:
            coefficients: One `(batch,)` tensor, or a list of them, one per trainable variable.
        """
        if not isinstance(coefficients, (list, tuple)):
            coefficients = [coefficients] * len(self._factors)
        return [
            factor.weighted_sum(ops.convert_to_tensor(c)) for factor, c in zip(self._factors, coefficients, strict=True)
        ]
