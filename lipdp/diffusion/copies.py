"""Copies of networks."""

import keras

from lipdp import _keras


def copied(model: keras.Model) -> keras.Model:
    """Returns a model of the same layers, with weights of their own that are equal.

    Of `set_weights` alone, layers that compute with something made of their weights (`Normalization`) know nothing.
    """
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    for layer in _keras.walk(copy):
        getattr(layer, "finalize_state", lambda: None)()
    return copy
