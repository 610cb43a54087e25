"""Kernels whose filters have mean zero and one norm, by a constraint that works after the noise."""

import math

import keras
from keras import ops

from lipdp import _keras, checks

# Squares of weights beyond it would overflow.
_HUGE = 1e15
# What is this near to mean and norm is left as it is; what differs from its mean by less counts as equal weights.
_TOLERANCE, _EQUAL = 1e-4, 1e-6


@_keras.serializable
class StandardizedKernel(keras.constraints.Constraint):
    """Gives each filter of a kernel mean 0 and one L2 norm after each update: weight standardization.

    Filters are what the last axis counts, as in `Conv2D` and `Dense`. De et al. 2022 standardize inside the forward
    pass instead, so that their gradients pass through it, and their steps get smaller as the weights behind it grow.
    The constraint sees noisy weights only, so it costs no privacy and works with every strategy that clips.

    Args:
        norm: L2 norm of a filter, from 1e-3 to 1e3. The default gives the weights a variance of one over their number,
            so that outputs are as large as inputs. Where group normalization follows, the norm changes the size of the
            steps only: twice the norm is a quarter of the learning rate.

    Raises:
        ValueError: `norm` is out of range; when called, a kernel of fewer than two axes, or whose filters have one
            weight each.

    **Guarantee.** A filter whose removed mean would have an L2 norm of at most `1e-4 norm`, and whose own norm is
    within `1e-4 norm` of `norm`, is returned bit for bit, so what the constraint returns it does not change again: a
    seeded run that goes on from a file repeats its updates. Every other filter is moved there, up to the rounding of
    float32; one of equal weights becomes zero. NaN in a filter gives NaN in all of it.

    Example:
        >>> import numpy as np
        >>> from lipdp.norms import StandardizedKernel
        >>> kernel = StandardizedKernel()(np.arange(18.0, dtype="float32").reshape(3, 3, 2))
        >>> [round(float(v), 3) for v in np.linalg.norm(kernel, axis=(0, 1))]
        [1.0, 1.0]
    """

    def __init__(self, norm: float = 1.0):
        self.norm = checks.between("norm", norm, 1e-3, 1e3)

    def __call__(self, value):
        value = ops.convert_to_tensor(value)
        fan_in = math.prod(value.shape[:-1])
        if len(value.shape) < 2 or fan_in < 2:
            raise ValueError(
                f"StandardizedKernel needs filters of two weights or more. Received: a kernel of shape "
                f"{tuple(value.shape)}. Leave the constraint out."
            )
        axes = tuple(range(len(value.shape) - 1))
        weights = ops.clip(value, -_HUGE, _HUGE)
        mean = ops.mean(weights, axis=axes, keepdims=True)
        centered = weights - mean
        length = _length(centered, axes)
        # Rounding leaves something of equal weights, which stands for nothing.
        differs = ops.logical_not(length <= _EQUAL * _length(weights, axes))
        factor = ops.where(differs, self.norm / ops.where(differs, length, ops.ones_like(length)), 0.0 * length)
        near = ops.logical_and(
            math.sqrt(fan_in) * ops.abs(mean) <= _TOLERANCE * self.norm,
            ops.abs(length - self.norm) <= _TOLERANCE * self.norm,
        )
        return ops.where(near, value, centered * factor)


def _length(value, axes):
    return ops.sqrt(ops.sum(ops.square(value), axis=axes, keepdims=True))
