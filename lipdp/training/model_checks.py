"""What `fit` refuses before anything is planned or changed: arguments, data and models that cannot be trained on."""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import _keras, backend, checks
from lipdp.optimizer import PrivateOptimizer


def refuse_unsupported(fit: Callable, unknown: dict, *, shuffle: Any, class_weight: Any, sample_weight: Any) -> None:
    """Refuses what Keras' `fit` knows and a private one, `fit`, cannot do, and what nobody knows."""
    for name in unknown:
        known = [p for p in inspect.signature(fit).parameters if p not in ("self", "unknown")]
        raise checks.unexpected("fit", name, known)
    for name, value in (("sample_weight", sample_weight), ("class_weight", class_weight)):
        if value is not None:
            raise ValueError(
                f"`{name}` multiplies an example's gradient and so its sensitivity. Received: {name} given. Leave it "
                "out; to weight classes, declare priors in the loss where it has them."
            )
    if shuffle is not None:
        raise ValueError(
            "`shuffle` has no meaning here: who is in a batch is what the accountant charges for. Received: "
            f"shuffle={shuffle!r}. Leave it out for Poisson samples; `sampling='shuffle'` shuffles, at its price."
        )


def check_model(model: keras.Model) -> None:
    """Refuses a model that is not compiled, trains by steps of its own, or would draw its noise several times."""
    if not model.compiled or model.loss is None:
        raise ValueError("Call `compile(optimizer, loss=...)` with a lipdp loss before `fit`.")
    # Noise and charge are those of these methods, and of no others.
    for name in _keras.STEP_METHODS:
        source = next((c for c in type(model).__mro__ if name in vars(c)), keras.Model)
        if name in vars(model) or source.__module__.split(".")[0] not in ("lipdp", "keras"):
            raise ValueError(
                "The noise is calibrated for the loss given to `compile` and for lipdp's own training step. Received: "
                f"model '{model.name}' of {type(model).__name__}, with a `{name}` of its own. Leave it out; put what "
                "it does into the loss or into layers."
            )
    if not isinstance(model.optimizer, PrivateOptimizer):
        raise ValueError(
            "The optimizer adds the noise, so it must be the one that `compile` made private. Received: a "
            f"{type(model.optimizer).__name__} put in its place. Call `compile` with it; the ledger is kept."
        )
    model.optimizer.check()
    if backend.replicas(model) > 1:
        raise ValueError(
            "Noise would be drawn once per replica instead of once per update. Received: a distribution over "
            f"{backend.replicas(model)} devices. Build and train the model without a distribution strategy."
        )


def output_shape(model: keras.Model) -> tuple:
    """Returns the shape of a model's one output; ValueError when it has several."""
    shape = model.output_shape
    if not isinstance(shape, tuple) or len(model.outputs) != 1:
        raise ValueError(f"The model must have one output. Received: model '{model.name}' with {len(model.outputs)}.")
    return shape


def check_shapes(model: keras.Model, x: Any) -> None:
    """Refuses data that are not what the model's inputs expect."""
    expected = [tuple(t.shape) for t in tree.flatten(model.inputs)]
    received = [leaf.shape for leaf in tree.flatten(x)]
    fits = len(expected) == len(received) and all(
        len(e) == len(r) and all(a is None or a == b for a, b in zip(e[1:], r[1:], strict=True))
        for e, r in zip(expected, received, strict=False)
    )
    if not fits:
        raise ValueError(f"The data do not fit the model's inputs. Expected shapes: {expected}. Received: {received}.")


def check_weights(model: keras.Model) -> None:
    """Refuses weights that are not finite, and others than those the optimizer was built for."""
    optimizer = model.optimizer
    if optimizer.built and [id(v) for v in _keras.optimizer_variables(optimizer)] != [
        id(v) for v in model.trainable_variables
    ]:
        raise ValueError(
            "The trainable weights are not those the optimizer was built for: a layer was frozen or released since. "
            "Call `compile` again; the ledger is kept."
        )
    for variable in model.weights:
        if not np.isfinite(keras.ops.convert_to_numpy(variable)).all():
            raise ValueError(f"Weight '{variable.path}' holds NaN or infinity. Build the model anew.")


def check_ledger(model: Any) -> None:
    """Refuses a model whose optimizer has made more updates than its ledger holds."""
    optimizer = getattr(model, "optimizer", None)
    if model.run.armed or optimizer is None or not optimizer.built:
        return
    made, charged = int(keras.ops.convert_to_numpy(optimizer.iterations)), model.run.ledger.updates
    if made > charged:
        raise ValueError(
            f"The ledger of model '{model.name}' lacks updates that its optimizer has made. Received: {charged} "
            f"updates in the ledger, {made} by the optimizer. Load a file that is not corrupt; where the count was set "
            "by hand, call `compile` with a new optimizer."
        )
