"""Random private networks: depth, fan-out, residuals, concatenation, pooling, shared layers, nested models."""

import keras
import numpy as np

from lipdp import layers

INPUT_NORM = 2.0


def random_model(seed, classes=3):
    """A functional model with one bounded input; the same seed makes the same graph."""
    rng = np.random.default_rng(seed)
    image = bool(rng.integers(2))
    shape = (4, 4, 2) if image else (6,)
    inputs = keras.Input(shape)
    tensors = [layers.BoundedInput(norm=INPUT_NORM)(inputs)]
    tensors.append(_parametric(tensors[0], rng))
    shared = layers.SpectralDense(4)
    for _ in range(rng.integers(2, 5)):
        x = tensors[rng.integers(len(tensors))]
        choice = rng.integers(7)
        if choice == 0:
            tensors.append(layers.Abs()(x))
        elif choice == 1:
            tensors.append(_parametric(x, rng))
        elif choice == 2:
            y = _same_shape(x, rng)
            tensors.append(x + y if rng.integers(2) else layers.Add()([x, y]))
        elif choice == 3:
            tensors.append(layers.Concatenate()([x, _same_shape(x, rng)]))
        elif choice == 4 and len(x.shape) == 4 and x.shape[1] > 1:
            pools = [layers.MaxPooling2D(2, strides=1), layers.L2NormPooling2D(2), layers.ScaledAveragePooling2D(2)]
            tensors.append(pools[rng.integers(3)](x))
        elif choice == 5:
            nested_input = keras.Input(x.shape[1:])
            nested = keras.Model(nested_input, layers.Bias(0.5)(_same_shape(nested_input, rng)))
            tensors.append(layers.Average()([nested(x), nested(nested(x))]))
        else:
            v = layers.SpectralDense(4)(layers.Flatten()(x))
            tensors.append(layers.GroupSort()(shared(shared(v))))
    # Several ends meet, so that most of the graph counts.
    ends = [layers.Flatten()(t) for t in tensors[-2:]]
    return keras.Model(inputs, layers.Bias(1.0)(layers.SpectralDense(classes)(layers.Concatenate()(ends))))


def _parametric(x, rng):
    if len(x.shape) == 4:
        y = layers.SpectralConv2D(int(rng.integers(2, 4)), int(rng.integers(1, 4)))(x)
    else:
        y = layers.SpectralDense(int(rng.integers(3, 6)))(x)
    return layers.Bias(0.5)(y) if rng.integers(2) else layers.Abs()(y)


def _same_shape(x, rng):
    if len(x.shape) == 4:
        y = layers.SpectralConv2D(x.shape[-1], 3)(x)
    else:
        y = layers.SpectralDense(x.shape[-1])(x)
    return layers.Abs()(y) if rng.integers(2) else y
