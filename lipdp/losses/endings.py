"""What the outputs of a model end in: probabilities and logits have losses of their own."""

from typing import Any

import keras
from keras import tree

from lipdp import _keras

# What leaves values between 0 and 1 there, and values that are not negative so: another place, a part, or an average.
_KEEPING = {
    *("Flatten", "Reshape", "Permute", "RepeatVector", "ActivityRegularization", "Identity", "Average", "Maximum"),
    *("Concatenate", "Minimum", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "Squeeze"),
    *("ExpandDims", "Transpose", "Cast", "GetItem", "Mean", "Max", "Amax", "Clip", "UpSampling1D", "UpSampling2D"),
    *("GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D", "GlobalMaxPooling1D"),
    *("GlobalMaxPooling2D", "GlobalMaxPooling3D", "AveragePooling1D", "AveragePooling2D", "MaxPooling1D"),
    *("MaxPooling2D", "Cropping1D", "Cropping2D", "Resizing"),
}
# The activations that are looked for behind them; anything else says nothing of the values.
_TOLD = {"softmax", "sigmoid", "relu", "hard_sigmoid", "softplus", "exponential", "log_softmax"}


def endings(model: keras.Model) -> list[str]:
    """Returns, for each output, the name of the activation that it comes from, or of the layer.

    Layers behind an activation that only move or average its values, as `Flatten` does, are looked through.

    Args:
        model: A model; of one without a graph the last layer is looked at.

    Example:
        >>> from keras import layers
        >>> endings(keras.Sequential([keras.Input((4,)), layers.Dense(2, activation="softmax"), layers.Flatten()]))
        ['softmax']
    """
    found = _keras.graph(model)
    if found is None:
        return [_of_layer(layer) for layer in model.layers[-1:]]
    return [_ending(tensor) for tensor in found.outputs]


def _ending(tensor: Any) -> str:
    operation, inputs, place = _keras.origin(tensor)
    if isinstance(operation, keras.Model) and _keras.graph(operation) is not None:
        return endings(operation)[place]
    linear = getattr(getattr(operation, "activation", None), "__name__", None) == "linear"
    keeps = type(operation).__name__ in _KEEPING or (isinstance(operation, keras.layers.Activation) and linear)
    if keeps and type(operation).__module__.startswith("keras.") and inputs:
        before = {_ending(one) for one in tree.flatten(inputs)}
        if len(before) == 1 and before <= _TOLD:
            return before.pop()
    return _of_layer(operation)


def _of_layer(layer: Any) -> str:
    if isinstance(layer, keras.layers.TimeDistributed):
        layer = layer.layer
    if isinstance(layer, keras.Model) and _keras.graph(layer) is not None:
        return endings(layer)[0]
    return getattr(getattr(layer, "activation", None), "__name__", type(layer).__name__.lower())
