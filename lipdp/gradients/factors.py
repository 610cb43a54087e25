"""Forms in which the gradients of one variable, one per example, are held."""

from keras import ops


class Whole:
    """Per-example gradients as they are: `(batch, *shape)`."""

    def __init__(self, gradients):
        self._gradients = gradients

    def whole(self):
        return self._gradients

    def squared_norm(self):
        return _total(ops.square(self._gradients))

    def scaled_squared_norm(self, centre, inverse_scale):
        return _total(ops.square(inverse_scale * (self._gradients - centre)))

    def weighted_sum(self, coefficients):
        return ops.tensordot(coefficients, self._gradients, axes=1)


def _total(values):
    return ops.sum(values, axis=tuple(range(1, len(values.shape))))
