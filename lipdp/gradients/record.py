"""What one forward and one backward pass leave behind."""

from keras import ops

from lipdp._deprecated import renamed_arguments


class Record:
    """Per-example gradients of a batch, in factored form.

    Attributes:
        values: Per-example losses as the loss gave them, `(batch * copies,)`, not multiplied by the weights.
        y_pred: Output of the model.
        non_trainable: On JAX the updated values of the model's non-trainable variables; None on TensorFlow,
            where they are updated in place.
    """

    def __init__(self, factors, values, y_pred, non_trainable):
        self._factors = factors
        self.values, self.y_pred, self.non_trainable = values, y_pred, non_trainable

    @renamed_arguments(centre="center")
    def squared_norms(self, center=None, inverse_scale=None) -> list:
        """Returns squared norms of `inverse_scale * (g_i - center)`, one `(batch,)` tensor per trainable variable."""
        if center is None and inverse_scale is None:
            return [factor.squared_norm() for factor in self._factors]
        center = [0.0] * len(self._factors) if center is None else center
        inverse_scale = [1.0] * len(self._factors) if inverse_scale is None else inverse_scale
        return [
            factor.scaled_squared_norm(a, s) for factor, a, s in zip(self._factors, center, inverse_scale, strict=True)
        ]

    def costs(self) -> list:
        """Returns what the norm of one example takes, per trainable variable: way, numbers held, multiplications."""
        return [factor.cost() for factor in self._factors]

    def weighted_sum(self, coefficients, finite=None) -> list:
        """Returns `sum_i c_i g_i`, one tensor per trainable variable.

        Args:
            coefficients: One `(batch,)` tensor, or a list of them, one per trainable variable.
            finite: `(batch,)` booleans, from the norms, or None. An example where it is false is left out of the sum:
                with a coefficient of 0 alone its NaN would stay.
        """
        if not isinstance(coefficients, (list, tuple)):
            coefficients = [coefficients] * len(self._factors)
        coefficients = [ops.convert_to_tensor(c) for c in coefficients]

        def total(factors):
            return [factor.weighted_sum(c) for factor, c in zip(factors, coefficients, strict=True)]

        sums = total(self._factors)
        if finite is None:
            return sums
        # Taken hardly ever, so that ordinary batches pay for no second look at the gradients.
        return ops.cond(ops.all(finite), lambda: sums, lambda: total([f.masked(finite) for f in self._factors]))
