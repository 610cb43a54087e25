"""What `fit` reads and mends in a model's variables before and after it trains."""

import hashlib
import warnings
from collections.abc import Sequence

import keras
import numpy as np

from lipdp import _keras
from lipdp.bounds.settings import settings
from lipdp.layers import ClipGradient


def traced(model: keras.Model) -> str:
    """Returns a digest of what a compiled step keeps from when it was traced, and what may change without `compile`."""
    with _keras.not_importing_tensorflow(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a lambda is hard to load: nothing is saved here
        try:
            loss = keras.saving.serialize_keras_object(model.loss)
        except Exception:  # a function that cannot be written
            loss = id(model.loss)
        return hashlib.sha256(settings(model, (loss, model.steps_per_execution)).encode()).hexdigest()


def fingerprint(model: keras.Model, more: Sequence = (), without: Sequence = ()) -> bytes | None:
    """Returns a digest of all weights and optimizer variables, or None where one cannot be read.

    Args:
        model: The model.
        more: Further variables.
        without: Variables to leave out.
    """
    digest, out = hashlib.sha256(), {id(variable) for variable in without}
    for variable in (*model.weights, *model.optimizer.variables, *more):
        if id(variable) in out:
            continue
        try:
            digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable.value)).tobytes())
        except Exception:  # JAX takes the values out of the variables while it trains
            return None
    return digest.digest()


def project(model: keras.Model) -> None:
    """Brings weights that were set by hand back into their balls; leaves the others bit for bit."""
    for variable in model.weights:
        constraint = getattr(variable, "constraint", None)
        if constraint is None:
            continue
        value = keras.ops.convert_to_numpy(variable)
        if not (hasattr(constraint, "holds") and constraint.holds(value)):
            variable.assign(constraint(variable))


def set_loss_divisor(model: keras.Model, divisor: int) -> None:
    """Tells the layers that clip cotangents by what the loss of one example is divided."""
    for layer in _keras.walk(model, include_self=True):
        if isinstance(layer, ClipGradient):
            layer.scale.assign(1.0 / divisor)
